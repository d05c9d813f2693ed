"""A topic as a Ray Data dataset, transformed in parallel, and back into a topic: orders become a
bill for each customer.

    python -m examples.ray_data

Nothing is copied into one process: read tasks read beside the log, write tasks send by columns. The
write has a name, so that a task or a program that is run again stores nothing twice.
"""

from __future__ import annotations

import json

import pyarrow as pa
import pyarrow.compute as pc
import ray

import rmq_ray as rmq
from rmq_ray import data as mqd

ORDERS, BILLS = "fruit-orders", "fruit-bills"
CUSTOMERS, ORDERS_EACH = 40, 50


def send_orders(cluster: str) -> int:
    """Each customer orders for 1, 2, 3, ... cents; every fifth order is cancelled. How many orders
    are stored.
    """
    cents = [cent for cent in range(1, ORDERS_EACH + 1) for _ in range(CUSTOMERS)]
    table = pa.table(
        {
            "body": [str(cent) for cent in cents],
            "customer": [f"c-{number % CUSTOMERS}" for number in range(len(cents))],
            "state": ["cancelled" if cent % 5 == 0 else "paid" for cent in cents],
        }
    )
    with rmq.Producer("shop", cluster=cluster) as producer:
        results = producer.send_arrow(ORDERS, table, key="customer", tag="state")
    return sum(result.count for result in results)


def priced(table: pa.Table) -> pa.Table:
    """One block: the columns that are worked with. Keys are lists, a body is bytes."""
    return pa.table(
        {
            "customer": pc.list_element(table["keys"], 0),
            "cents": table["body"].cast(pa.string()).cast(pa.int64()),
        }
    )


def billed(table: pa.Table) -> pa.Table:
    """One block of sums: the columns of the messages to be."""
    rows = table.to_pylist()
    return pa.table(
        {
            "body": pa.array(
                [json.dumps({"cents": row["sum(cents)"]}) for row in rows], pa.string()
            ),
            "customer": pa.array([row["customer"] for row in rows], pa.string()),
        }
    )  # types are named for the sake of blocks without rows


def main(cluster: str = "default") -> tuple[int, int, dict[str, int]]:
    """(orders stored, bills written, cents by customer as the bills say)."""
    mq = rmq.connect(cluster)
    for topic in (ORDERS, BILLS):
        mq.admin.create_topic(topic, queues=4)
    stored = send_orders(cluster)
    orders = mqd.read_topic(ORDERS, tags="paid", columns=["keys", "body"], cluster=cluster)
    sums = orders.map_batches(priced, batch_format="pyarrow").groupby("customer").sum("cents")
    bills = sums.sort("customer").map_batches(billed, batch_format="pyarrow").materialize()
    written = 0
    for _ in range(2):  # the second one, as after a crash, stores nothing anew
        written = mqd.write_topic(bills, BILLS, key="customer", once="bills/17", cluster=cluster)
    found = mqd.read_topic(BILLS, columns=["keys", "body"], cluster=cluster).take_all()
    totals = {row["keys"][0]: json.loads(row["body"])["cents"] for row in found}
    print(f"{stored} orders, {written} bills of {sum(totals.values())} cents, {len(found)} stored")
    assert len(found) == written, "a bill is there twice"
    return stored, written, totals


if __name__ == "__main__":
    ray.init(include_dashboard=False, log_to_driver=False)
    rmq.start(store_path="rmq-data")
    main()
