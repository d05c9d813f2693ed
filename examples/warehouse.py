"""Orders into tables, in two ways that go on where they were: a nightly batch of a group, and a
loop over batches with a checkpoint.

    python -m examples.warehouse

The nightly batch takes what is new for the group "nightly" and appends it to a Parquet table; the
group's position moves when the block ends without an exception. The first night the table cannot be
written: nothing moves, the next night has all of it. The loop keeps totals in a database (here
SQLite) and remembers each batch's number in the same transaction: a batch that comes again after a
crash changes nothing.
"""

from __future__ import annotations

import sqlite3
import tempfile
from pathlib import Path
from typing import Any

import ray

import rmq_ray as rmq
from rmq_ray import spark as mqs

TOPIC = "shop-orders"
ORDERS, NIGHTS = 600, 3


def send(cluster: str, first: int) -> None:
    """The orders of a day: the body is what was paid, the tag where."""
    with rmq.Producer("shop", cluster=cluster) as producer:
        producer.send_batch(
            [
                rmq.Message(TOPIC, b"%d" % (n % 50), tag=("web", "app")[n % 2])
                for n in range(first, first + ORDERS // NIGHTS)
            ]
        )


def night(session: Any, cluster: str, table: Path) -> int:
    """Append what is new; how many orders that were."""
    with mqs.batch(
        session, TOPIC, group="nightly", columns=["tag", "body", "store_ts"], cluster=cluster
    ) as new:
        if not table.parent.is_dir():
            raise NotADirectoryError(str(table.parent))
        new.df.selectExpr("tag as shop", "int(string(body)) as paid", "store_ts as at").write.mode(
            "append"
        ).parquet(str(table))
    return new.rows


def totals(session: Any, cluster: str, directory: Path) -> dict[str, int]:
    """Bring the totals in the database up to date; what they are then."""
    database = sqlite3.connect(
        directory / "totals.db", check_same_thread=False
    )  # used by the loop's thread
    database.executescript(
        "create table if not exists done (batch primary key); create table if not exists "
        "totals (shop primary key, paid)"
    )

    def add(df: Any, number: int) -> None:
        if database.execute("select 1 from done where batch = ?", (number,)).fetchone():
            return  # the driver died between the commit and the checkpoint
        paid = (
            df.selectExpr("tag", "int(string(body)) as paid").groupBy("tag").sum("paid").collect()
        )
        with database:  # one transaction
            database.execute("insert into done values (?)", (number,))
            database.executemany(
                "insert into totals values (?1, ?2) on conflict do update set paid = paid + ?2",
                [tuple(row) for row in paid],
            )

    stream = mqs.read_stream(
        session,
        TOPIC,
        group="totals",
        columns=["tag", "body"],
        max_rows_per_trigger=250,
        cluster=cluster,
    )
    stream.foreach_batch(
        add, checkpoint=directory / "checkpoint", available_now=True
    ).await_termination(120)  # a service: trigger_seconds=10
    found = dict(database.execute("select shop, paid from totals").fetchall())
    database.close()
    return found


def main(cluster: str = "default", session: Any = None) -> tuple[list[int], dict[str, int]]:
    """Run it on a cluster that is up; returns the orders of each night, and what was paid by shop.
    ``session``: a Spark session to use.
    """
    rmq.connect(cluster).admin.create_topic(TOPIC, queues=4)
    spark = session or mqs.session("warehouse", quick_start=True)
    nights = []
    with tempfile.TemporaryDirectory() as directory:
        table = Path(directory) / "lake" / "orders"
        for day in range(NIGHTS):
            send(cluster, day * ORDERS // NIGHTS)
            try:
                nights.append(night(spark, cluster, table))
            except NotADirectoryError as error:
                print(f"night {day}: {error} is not there; the group has not moved")
                table.parent.mkdir()
            found = totals(spark, cluster, Path(directory))
        stored = {
            row["shop"]: row["sum(paid)"]
            for row in spark.read.parquet(str(table)).groupBy("shop").sum("paid").collect()
        }
        assert stored == found, "the table and the database agree"
    if session is None:
        mqs.stop()
    print(f"nights of {nights} orders, paid by shop: {found}")
    return nights, found


if __name__ == "__main__":
    ray.init(include_dashboard=False, log_to_driver=False)
    rmq.start(store_path="rmq-data")
    main()
