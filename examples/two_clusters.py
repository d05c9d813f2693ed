"""Two message clusters in one Ray cluster, and which one a call means.

    python -m examples.two_clusters

A process that started or connected to one cluster means that one wherever it names none. With two
of them it must say: by the handle (``mq.producer()``) or by ``cluster="..."``. A Ray task has
started nothing: it gets a producer, which knows its cluster, a name, or RMQ_CLUSTER.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

import ray

import rmq_ray as rmq

SMALL = {"segment_bytes": 64 << 20}


@ray.remote(num_cpus=0)
def sell(producer: rmq.Producer, what: bytes) -> str:
    """A task with a producer that was made elsewhere."""
    with producer:
        return producer.send("sales", what).queue.topic


@ray.remote(num_cpus=0, runtime_env={"env_vars": {"RMQ_CLUSTER": "museum"}})
def give(what: bytes) -> str:
    """A task whose environment names the cluster."""
    with rmq.Producer("donors") as producer:
        return producer.send("gifts", what).queue.topic


def main(store: Path, market_name: str = "market", museum_name: str = "museum") -> dict[str, list]:
    """Cluster -> its own topics; and what an unnamed cluster is told."""
    market = rmq.start(market_name, store_path=store / "market", store_settings=SMALL)
    with rmq.Producer("stalls") as producer:  # there is one cluster: it is meant
        producer.send("sales", b"apples")
    museum = rmq.start(museum_name, store_path=store / "museum", store_settings=SMALL)
    running = [market, museum]
    try:
        try:
            rmq.Producer("stalls")
            told = ""
        except rmq.ConfigError as error:
            told = str(error)
        with museum.producer("donors") as producer:
            producer.send("gifts", b"a vase")
        ray.get([sell.remote(market.producer("stalls"), b"pears"), give.remote(b"a coin")])
        sales = _bodies(market, "sales")
        running.pop(0).stop()  # one is left, and meant again: by actors made from here, too
        donor = rmq.ProducerActor.options(num_cpus=0).remote("donors")
        ray.get(donor.send.remote("gifts", b"a bust"))
        ray.get(donor.close.remote())
        return {market.name: sales, museum.name: _bodies(museum, "gifts"), "told": [told]}
    finally:
        for mq in running:
            mq.stop()


def _bodies(mq: rmq.Cluster, topic: str) -> list[bytes]:
    """Everything in a topic, sorted; a consumer that is bound to its cluster reads it."""
    count = sum(queue.max_offset for queue in mq.admin.topic_stats(topic).values())
    found: list[bytes] = []
    with mq.pull_consumer("readers", start_from="first") as reader:
        reader.assign(reader.fetch_message_queues(topic))
        while len(found) < count:
            found += [message.body for message in reader.poll(100, timeout=5.0)]
    return sorted(found)


if __name__ == "__main__":
    ray.init()
    with tempfile.TemporaryDirectory() as directory:
        for name, told in main(Path(directory)).items():
            print(f"{name}: {told}")
