"""Orders and their messages, together or not at all: a table of orders (SQLite) and a topic that
must agree.

    python -m examples.transaction          starts a cluster of its own

One order is placed, one fails, and one is left open by a producer that goes away: the broker asks
another member of the group, who looks at the table.
"""

from __future__ import annotations

import sqlite3
import tempfile
import threading

import ray

import rmq_ray as rmq

QUICK = {"transaction_timeout_ms": 500, "transaction_check_interval_ms": 500}
"""A broker asks after a minute otherwise."""


class Shop:
    """The table of orders."""

    def __init__(self, path: str) -> None:
        self._path = path
        with sqlite3.connect(path) as table:
            table.execute("create table if not exists orders (id text primary key)")

    def place(self, order: str) -> None:
        """Fails for an order without a name."""
        if not order.strip("o-"):
            raise ValueError("an order needs a number")
        with sqlite3.connect(self._path) as table:
            table.execute("insert into orders values (?)", (order,))

    def has(self, message: rmq.MessageExt) -> bool:
        """The checker: was the order of this half message placed?"""
        with sqlite3.connect(self._path) as table:
            return (
                table.execute("select 1 from orders where id = ?", (message.keys[0],)).fetchone()
                is not None
            )

    def all(self) -> list[str]:
        """Every order in the table."""
        with sqlite3.connect(self._path) as table:
            return sorted(row[0] for row in table.execute("select id from orders"))


def main(cluster: str) -> tuple[list[str], list[str]]:
    """(orders in the table, orders that the consumer saw)."""
    seen: list[str] = []
    enough = threading.Event()

    def handle(messages: list[rmq.MessageExt], _ctx: rmq.ConsumeContext) -> None:
        seen.extend(bytes(message.body).decode() for message in messages)
        if len(seen) >= 2:
            enough.set()

    with tempfile.TemporaryDirectory() as directory:
        shop = Shop(f"{directory}/shop.db")
        with (
            rmq.Producer("shop", cluster=cluster) as producer,
            rmq.PushConsumer(
                "billing-tx",
                listener=handle,
                subscriptions={"orders-tx": "*"},
                start_from="first",
                cluster=cluster,
            ),
        ):
            for order in ("o-1", "o-"):
                try:
                    with producer.transaction(shop.has) as tx:
                        tx.send("orders-tx", order.encode(), keys=[order])
                        shop.place(order)
                except ValueError as error:
                    print(f"{order!r} is rolled back: {error}")
            leaves_early(cluster, shop)
            enough.wait(20)
        return shop.all(), sorted(seen)


def leaves_early(cluster: str, shop: Shop) -> None:
    """A producer that places its order and goes away before it could commit."""
    with rmq.Producer("shop", cluster=cluster) as producer:
        producer.transaction(shop.has).send("orders-tx", b"o-2", keys=["o-2"])
        shop.place("o-2")


if __name__ == "__main__":
    ray.init()
    mq = rmq.start(store_path=tempfile.mkdtemp(prefix="rmq-"), broker_settings=QUICK)
    print(main(mq.name))
    mq.stop()
