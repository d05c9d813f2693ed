"""Consumers that get only what they ask for: by tag, and by conditions over properties that the
broker evaluates.

    python -m examples.filters

A shop sends orders with an amount, a region and, some of them, a coupon. Invoices are for paid
orders (tag), the fraud desk sees dear ones from abroad, marketing those that used a coupon. A
condition with a mistake is refused where it is written, with the place of the mistake.
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from typing import Any

import ray

import rmq_ray as rmq

TOPIC = "shop-orders"
ORDERS = 600
REGIONS = ("eu", "us", "cn")
SUBSCRIPTIONS = {
    "invoices": "paid || shipped",
    "fraud-desk": rmq.sql("amount > 900 AND region NOT IN ('eu')"),
    "marketing": rmq.sql("coupon IS NOT NULL AND (coupon = 'SPRING' OR amount BETWEEN 10 AND 20)"),
}


def orders() -> list[rmq.Message]:
    """Every fifth is paid; every seventh has a coupon."""
    made = []
    for number in range(ORDERS):
        properties = {"amount": str(number % 100 * 10), "region": REGIONS[number % 3]}
        if number % 7 == 0:
            properties["coupon"] = "SPRING" if number % 2 else "AUTUMN"
        made.append(
            rmq.Message(
                TOPIC,
                b"%d" % number,
                tag="paid" if number % 5 == 0 else "open",
                properties=properties,
            )
        )
    return made


def expected() -> dict[str, int]:
    """What each consumer has to get, worked out here in Python."""
    found: Counter[str] = Counter()
    for message in orders():
        amount, region, coupon = (
            int(message.properties["amount"]),
            message.properties["region"],
            message.properties.get("coupon"),
        )
        found["invoices"] += message.tag == "paid"
        found["fraud-desk"] += amount > 900 and region != "eu"
        found["marketing"] += coupon == "SPRING" or (coupon is not None and 10 <= amount <= 20)
    return dict(found)


def main(cluster: str = "default") -> dict[str, int]:
    """Run it on a cluster that is up; returns how many messages each consumer got."""
    try:
        rmq.sql("amount > 900 AND region NOT ('eu')")
    except rmq.RmqError as mistake:
        print(mistake)
    with rmq.Producer(cluster=cluster) as producer:
        producer.send_batch(orders())
    got: Counter[str] = Counter()
    lock = threading.Lock()

    def count(group: str) -> Any:
        def listener(messages: list[rmq.MessageExt], ctx: rmq.ConsumeContext) -> None:
            with lock:
                got[group] += len(messages)

        return listener

    consumers = [
        rmq.PushConsumer(
            group,
            listener=count(group),
            subscriptions={TOPIC: wanted},
            start_from="first",
            batch_size=32,
            cluster=cluster,
        )
        for group, wanted in SUBSCRIPTIONS.items()
    ]
    for consumer in consumers:
        consumer.start()
    deadline = time.monotonic() + 20
    while dict(got) != expected() and time.monotonic() < deadline:
        time.sleep(0.05)
    for consumer in consumers:
        consumer.stop()
    print(f"of {ORDERS} orders: {dict(sorted(got.items()))}")
    return dict(got)


if __name__ == "__main__":
    ray.init(include_dashboard=False, log_to_driver=False)
    rmq.start(store_path="rmq-data")
    main()
