"""Producers and consumers as Ray actors, without a decorator: two actors send, two share the
queues and count, the script only asks.

python -m examples.actors
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from typing import Any

import ray

import rmq_ray as rmq

TOPIC = "visits"
PAGES = ("home", "shop", "help")
SENDERS, VISITS = 2, 1_500


def browse(producer: rmq.Producer, site: str, visits: int) -> int:
    """Runs inside a producer actor: one call to the actor, many messages. How many are stored."""
    futures = [
        producer.send_async(TOPIC, site.encode(), tag=PAGES[number % len(PAGES)])
        for number in range(visits)
    ]
    return sum(future.result().count for future in futures)


class Visits:
    """The listener of a consumer actor; its state lives as long as the actor."""

    def __init__(self, start: int) -> None:
        self._pages: Counter[str] = Counter(dict.fromkeys(PAGES, start))
        self._lock = threading.Lock()  # the consumer's threads and ask() meet here

    def __call__(self, messages: list[rmq.MessageExt], ctx: rmq.ConsumeContext) -> None:
        """To return is to acknowledge."""
        with self._lock:
            self._pages.update(message.tag for message in messages if message.tag)

    def pages(self) -> Counter[str]:
        """What ``ask("pages")`` returns."""
        with self._lock:
            return self._pages.copy()


def shares(consumers: list[Any]) -> list[int]:
    """How many queues of the topic each consumer has."""
    found = ray.get([consumer.stats.remote() for consumer in consumers])
    return [sum(row["topic"] == TOPIC for row in one["queues"]) for one in found]


def main(cluster: str = "default") -> tuple[Counter[str], str]:
    """(visits by page as the consumers counted them, what a wrong question is told)."""
    mq = rmq.connect(cluster)
    mq.admin.create_topic(TOPIC, queues=4)
    small = {"num_cpus": 0}
    consumers = [
        rmq.ConsumerActor.options(**small).remote(
            "visit-counters",
            Visits,
            {TOPIC: "*"},
            listener_args=[0],
            start_from="first",
            cluster=cluster,
        )
        for _ in range(2)
    ]
    producers = [
        rmq.ProducerActor.options(**small).remote(f"site-{number}", cluster=cluster)
        for number in range(SENDERS)
    ]
    ray.get([actor.ping.remote() for actor in producers + consumers])  # all are connected
    while shares(consumers) != [2, 2]:  # each gets its half of the queues a moment later
        time.sleep(0.1)
    stored = sum(
        ray.get(
            [
                actor.run.remote(browse, f"site-{number}", VISITS)
                for number, actor in enumerate(producers)
            ]
        )
    )
    print(ray.get(producers[0].send.remote(TOPIC, b"the script", tag="home")).status.name)
    pages: Counter[str] = Counter()
    deadline = time.monotonic() + 60
    while pages.total() < stored + 1 and time.monotonic() < deadline:
        time.sleep(0.2)
        pages = sum(ray.get([actor.ask.remote("pages") for actor in consumers]), Counter())
    try:
        ray.get(consumers[0].ask.remote("page"))
    except rmq.ClientError as error:
        complaint = str(error)
    ray.get([actor.stop.remote() for actor in consumers])
    ray.get([actor.close.remote() for actor in producers])
    print(dict(pages))
    return pages, complaint


if __name__ == "__main__":
    ray.init()
    queue = rmq.start("default", store_path="rmq-data")
    main()
    queue.stop()
