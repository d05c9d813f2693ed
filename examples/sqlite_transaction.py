"""A row in SQLite and a message, together or not at all, although processes die in between.

    python -m examples.sqlite_transaction          starts a cluster of its own

Three processes sell a ticket each: one lives, one dies between the commit in SQLite and the end of
the message's transaction, one dies before its commit. Afterwards a new producer, which opens no
transaction, is asked by the broker; its checker looks into SQLite.
"""

from __future__ import annotations

import os
import sqlite3
import tempfile
import threading
import time

import ray

import rmq_ray as rmq

QUICK = {"transaction_timeout_ms": 500, "transaction_check_interval_ms": 500}
"""A broker asks after a minute otherwise."""
TOPIC, GROUP = "tickets", "box-office"
TICKETS = 10
PATIENCE_S = 2.0  # more than a sale takes in SQLite


class BoxOffice:
    """The table of sales and the number of tickets left, in one file."""

    def __init__(self, path: str) -> None:
        self._path = path
        with sqlite3.connect(path) as db:
            db.execute("create table if not exists sales (id text primary key)")
            db.execute("create table if not exists stock (tickets integer)")
            db.execute(
                "insert into stock select ? where not exists (select * from stock)", (TICKETS,)
            )

    def sell(self, sale: str) -> None:
        """One transaction of SQLite: both statements count, or none."""
        with sqlite3.connect(self._path) as db:
            db.execute("update stock set tickets = tickets - 1")
            db.execute("insert into sales values (?)", (sale,))

    def checker(self, message: rmq.MessageExt) -> bool | None:
        """What became of the sale of this half message? No row yet may mean that its process is
        still at it: only when that is out of the question the answer is no.
        """
        with sqlite3.connect(self._path) as db:
            row = db.execute("select 1 from sales where id = ?", (message.keys[0],)).fetchone()
        if row is not None:
            return True
        return None if time.time() - message.born_ms / 1_000 < PATIENCE_S else False

    def state(self) -> tuple[list[str], int]:
        """(sales, tickets left)."""
        with sqlite3.connect(self._path) as db:
            sales = [row[0] for row in db.execute("select id from sales order by id")]
            return sales, db.execute("select tickets from stock").fetchone()[0]


@ray.remote(num_cpus=0, max_retries=0)
def sell(cluster: str, path: str, sale: str, dies: str = "") -> None:
    """Runs in a process of its own. ``dies``: "before" or "after" the commit in SQLite."""
    office = BoxOffice(path)
    with (
        rmq.Producer(GROUP, cluster=cluster, checker=office.checker) as producer,
        producer.transaction() as tx,
    ):
        tx.send(TOPIC, sale.encode(), keys=[sale])
        if dies == "before":
            os._exit(1)
        office.sell(sale)
        if dies == "after":
            os._exit(1)


def main(cluster: str) -> tuple[list[str], list[str], int]:
    """(sales in SQLite, sales that the consumer heard of, tickets left)."""
    mq = rmq.connect(cluster)
    mq.admin.create_topic(TOPIC, queues=1)
    with tempfile.TemporaryDirectory() as directory:
        path = f"{directory}/tickets.db"
        office = BoxOffice(path)
        ray.get(sell.remote(cluster, path, "s-1"))
        for sale, dies in (("s-2", "after"), ("s-3", "before")):
            try:
                ray.get(sell.remote(cluster, path, sale, dies))
            except ray.exceptions.WorkerCrashedError:
                print(f"{sale}: its process died {dies} its commit; open halves: {open_halves(mq)}")
        heard = settle(mq, office)
        sales, left = office.state()
    print(f"SQLite has {sales}, consumers heard of {heard}, {left} tickets are left")
    assert sales == heard == ["s-1", "s-2"] and left == TICKETS - len(sales)
    return sales, heard, left


def settle(mq: rmq.Cluster, office: BoxOffice) -> list[str]:
    """A producer that is only there to be asked, until no half is open. What consumers hear of."""
    heard: list[str] = []
    enough = threading.Event()

    def listener(messages: list[rmq.MessageExt], _ctx: rmq.ConsumeContext) -> None:
        heard.extend(bytes(message.body).decode() for message in messages)
        if len(heard) >= 2:
            enough.set()

    with (
        rmq.Producer(GROUP, cluster=mq.name, checker=office.checker),
        rmq.PushConsumer(
            "ticket-printer",
            listener=listener,
            subscriptions={TOPIC: "*"},
            start_from="first",
            cluster=mq.name,
        ),
    ):
        deadline = time.monotonic() + 60
        while open_halves(mq) and time.monotonic() < deadline:
            time.sleep(0.2)
        if not enough.wait(30) or open_halves(mq):
            raise TimeoutError("a half is open still, or nobody heard of its sale")
    return sorted(heard)


def open_halves(mq: rmq.Cluster) -> int:
    """How many half messages of the cluster are neither committed nor rolled back."""
    status = mq.status()
    return sum(state.get("half_messages", 0) for state in status.values() if type(state) is dict)


if __name__ == "__main__":
    ray.init()
    running = rmq.start(store_path=tempfile.mkdtemp(prefix="rmq-"), broker_settings=QUICK)
    main(running.name)
    running.stop()
