"""Every way to send, side by side: waiting, many threads, batches, futures, ordered, delayed,
compressed, with a hook that watches.

    python -m examples.produce

A shop writes what happens to its orders. What matters to one order stays in order: created, paid,
shipped.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from concurrent.futures import ThreadPoolExecutor
from threading import Event

import ray

import rmq_ray as rmq

TOPIC = "order-events"
ORDERS = 50
STEPS = ("created", "paid", "shipped")


class Stopwatch:
    """A hook: how many sends there were and how long the slowest took."""

    def __init__(self) -> None:
        self.sends: Counter[str] = Counter()
        self.slowest_ms = 0.0

    def before(self, ctx: rmq.SendContext) -> None:
        """Adds a property to every message."""
        ctx.add_property("shop", "main street")

    def after(self, ctx: rmq.SendContext) -> None:
        """Counts."""
        self.sends[ctx.mode] += 1
        self.slowest_ms = max(self.slowest_ms, ctx.cost_ms)


def send_all(producer: rmq.Producer) -> int:
    """Returns how many messages were sent."""
    with ThreadPoolExecutor(8) as threads:  # threads that send at once share frames by themselves
        created = list(
            threads.map(
                lambda n: producer.send(
                    TOPIC, STEPS[0].encode(), message_group=f"o-{n}", keys=[f"o-{n}"]
                ),
                range(ORDERS),
            )
        )
    assert not any(result.unknown for result in created)
    futures = [
        producer.send_async(TOPIC, step.encode(), message_group=f"o-{n}", keys=[f"o-{n}"])
        for step in STEPS[1:]
        for n in range(ORDERS)
    ]
    assert all(future.result(10).queue_offset >= 0 for future in futures)
    producer.send_batch([rmq.Message(TOPIC, b"page view", tag="web") for _ in range(50)])
    pages = [producer.send_batch_async(TOPIC, [b"page view"] * 25, tags="web") for _ in range(2)]
    assert sum(result.count for page in pages for result in page.result(10)) == 50
    producer.send(
        TOPIC, b"the whole catalogue " * 5_000, tag="catalogue"
    )  # compressed on its way and in the log
    producer.send(TOPIC, b"still interested?", tag="reminder", delay_level=1)  # a second later
    producer.send_oneway(TOPIC, b"a heartbeat nobody misses", tag="web")
    return len(created) + len(futures) + 100 + 3


def main(cluster: str = "default") -> tuple[Counter[str], list[str]]:
    """Send everything and read it again; returns what arrived by tag, and the orders whose steps
    came out of order (none).
    """
    rmq.connect(cluster).admin.create_topic(TOPIC, queues=4)
    tags: Counter[str] = Counter()
    steps: defaultdict[str, list[str]] = defaultdict(list)
    complete = Event()
    expected = ORDERS * len(STEPS) + 103

    def read(messages: list[rmq.MessageExt], ctx: rmq.ConsumeContext) -> None:
        for message in messages:
            tags[message.tag or "order"] += 1
            for order in message.keys:
                steps[order].append(message.body.decode())
            assert message.properties.get("shop") == "main street"
        if tags.total() >= expected:
            complete.set()

    watch = Stopwatch()
    with rmq.PushConsumer(
        "reporting",
        listener=read,
        subscriptions={TOPIC: "*"},
        cluster=cluster,
        start_from="first",
        concurrency=1,
    ):
        with rmq.Producer(
            "shop", cluster=cluster, compression="zstd", idempotent=True, hooks=[watch]
        ) as producer:
            sent = send_all(producer)
        complete.wait(20)
    print(
        f"{sent} messages in {watch.sends.total()} calls {dict(watch.sends)}, the slowest "
        f"took {watch.slowest_ms:.0f} ms; arrived: {dict(tags)}"
    )
    return tags, [order for order, found in steps.items() if found != list(STEPS)]


if __name__ == "__main__":
    ray.init()
    mq = rmq.start("default", store_path="rmq-data")
    try:
        main()
    finally:
        mq.stop()
