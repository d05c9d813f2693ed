"""What people run on the head of a cluster: producer and consumer actors from a script.

python three_hosts_job.py produce 0 2000         producer actors send messages 0..1999, prints how many are stored
python three_hosts_job.py consume 4000           consumer actors gather messages until so many different ones came, prints them
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any

import ray

import rmq_ray as rmq

CLUSTER, TOPIC = "hosts", "orders"
ACTORS, BATCH = 2, 100


class Gather:
    """Keeps the numbers of the messages that it was given."""

    def __init__(self) -> None:
        self.seen: list[int] = []

    def __call__(self, message: Any) -> None:
        self.seen.append(int(message.body))

    def numbers(self) -> list[int]:
        return self.seen


def produce(first: int, end: int) -> dict[str, Any]:
    """Each actor sends every second number; ``send_batch`` raises unless all of a batch is stored."""
    actors = [rmq.ProducerActor.options(num_cpus=0).remote(cluster=CLUSTER) for _ in range(ACTORS)]
    waiting: list[Any] = []
    for index, actor in enumerate(actors):
        numbers = list(range(first + index, end, ACTORS))
        batches = [[rmq.Message(TOPIC, b"%d" % number) for number in numbers[at : at + BATCH]] for at in range(0, len(numbers), BATCH)]
        waiting += [actor.send_batch.remote(batch) for batch in batches]
    results = [result for found in ray.get(waiting, timeout=60) for result in found]
    return {
        "stored": sum(result.count for result in results if result.status is rmq.SendStatus.SEND_OK),
        "brokers": sorted({result.queue.broker_name for result in results}),
    }


def consume(expected: int) -> dict[str, Any]:
    """Until that many different numbers came, at most 60 s."""
    app = rmq.consumer(TOPIC, group=f"readers-{expected}", start_from="first")(Gather)
    workers = app.deploy(ACTORS, cluster=CLUSTER, num_cpus=0)
    deadline = time.monotonic() + 60
    try:
        while True:
            seen = [number for numbers in workers.ask("numbers") for number in numbers]
            if len(set(seen)) >= expected or time.monotonic() > deadline:
                return {"numbers": sorted(set(seen)), "repeats": len(seen) - len(set(seen))}
            time.sleep(0.2)
    finally:
        workers.stop()


if __name__ == "__main__":
    ray.init(address="auto", log_to_driver=False, logging_level="ERROR")
    first, end = int(sys.argv[2]), int(sys.argv[3])
    answer = produce(first, end)
    if "consume" in sys.argv:
        answer |= consume(end)
    Path("/mnt/answer.json").write_text(json.dumps(answer))
