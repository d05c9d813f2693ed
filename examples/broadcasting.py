"""Every process gets every message: two caches follow a topic of prices; one stops, misses some,
and catches up.

python -m examples.broadcasting
"""

from __future__ import annotations

import tempfile
import time
from typing import Any

import ray

import rmq_ray as rmq

TOPIC = "prices"
ARTICLES = 50


class Cache:
    """The prices as one process knows them. Its client id says which offsets are its own, on its
    own machine.
    """

    def __init__(self, cluster: str, name: str, directory: str) -> None:
        self.prices: dict[str, int] = {}
        self.heard = 0
        self.consumer = rmq.PushConsumer(
            "price-caches",
            listener=self.update,
            subscriptions={TOPIC: "*"},
            model="broadcasting",
            start_from="first",
            concurrency=1,
            client_id=name,
            config=rmq.ConsumerConfig("price-caches", local_offset_dir=directory),
            cluster=cluster,
        )

    def update(self, messages: list[Any], ctx: rmq.ConsumeContext) -> None:
        """Keep the latest price of each article."""
        for message in messages:
            self.prices[message.keys[0]] = int(message.body)
            self.heard += 1

    def follow(self, expected: int) -> dict[str, int]:
        """Listen until so many messages were heard (10 s at most), then stop; the offsets are in
        the file.
        """
        with self.consumer:
            deadline = time.monotonic() + 10
            while self.heard < expected and time.monotonic() < deadline:
                time.sleep(0.02)
        return self.prices


def publish(cluster: str, price: int) -> None:
    """The same price for every article."""
    with rmq.Producer(cluster=cluster) as producer:
        for number in range(ARTICLES):
            producer.send(
                TOPIC, b"%d" % price, keys=[f"article-{number}"], message_group=f"article-{number}"
            )


def main(cluster: str = "default") -> tuple[int, int, bool]:
    """Run it on a cluster that is up; (messages that the first cache heard in its two lives, those
    of the second, both know the same).
    """
    rmq.connect(cluster).admin.create_topic(TOPIC, queues=4)
    with tempfile.TemporaryDirectory() as directory:
        publish(cluster, 10)
        first = Cache(cluster, "cache@one", directory)
        first.follow(ARTICLES)
        publish(cluster, 12)  # nobody listens
        again, second = (
            Cache(cluster, "cache@one", directory),
            Cache(cluster, "cache@two", directory),
        )
        caught_up = first.prices | again.follow(ARTICLES)
        other = second.follow(2 * ARTICLES)
    print(
        f"cache one heard {first.heard} prices, then {again.heard} more after its restart; "
        f"cache two heard all {second.heard}"
    )
    print(f"both know the same {len(other)} prices: {caught_up == other}")
    return (
        first.heard + again.heard,
        second.heard,
        caught_up == other and set(other.values()) == {12},
    )


if __name__ == "__main__":
    ray.init(include_dashboard=False, log_to_driver=False)
    rmq.start(store_path="rmq-data")
    main()
