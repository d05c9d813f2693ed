"""Jobs for many workers: more workers than queues, some jobs fail and come again, one is hopeless,
one worker dies with work in hand.

    python -m examples.jobs

Thumbnails of pictures, say. The topic has one queue, four workers receive from it. A picture of
which the name ends in 7 fails at the first try and is given back; "broken" is rejected; the first
worker takes two jobs and vanishes: they come again to the others.
"""

from __future__ import annotations

import threading
from collections import Counter

import ray

import rmq_ray as rmq

TOPIC, GROUP = "thumbnails", "painters"
PICTURES = 60
WORKERS = 4


class Results:
    """What all workers have done."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.done: Counter[str] = Counter()
        self.again = 0
        self.complete = threading.Event()

    def finished(self, name: str) -> None:
        """One picture more."""
        with self.lock:
            self.done[name] += 1
            if len(self.done) == PICTURES:
                self.complete.set()


def work(cluster: str, results: Results) -> None:
    """One worker: until all pictures are done."""
    with rmq.SimpleConsumer(TOPIC, GROUP, cluster=cluster) as consumer:
        while not results.complete.is_set():
            for message in consumer.receive(4, invisible=10, wait=1):
                name = message.body.decode()
                if name == "broken":
                    message.reject()  # nobody can do it: dead letter
                elif name.endswith("7") and message.reconsume_times == 0:
                    message.nack(delay=0.2)  # perhaps later
                    results.again += 1
                else:
                    results.finished(name)
                    message.ack()


def vanish(cluster: str) -> list[str]:
    """A worker that takes two jobs for one second, and is never heard of again."""
    consumer = rmq.SimpleConsumer(TOPIC, GROUP, cluster=cluster)
    consumer.start()
    names = [message.body.decode() for message in consumer.receive(2, invisible=1, wait=5)]
    consumer.close()
    return names


def main(cluster: str = "default") -> int:
    """Run it on a cluster that is up; 0 when every picture was done and the broken one is a dead
    letter.
    """
    mq = rmq.connect(cluster)
    mq.admin.create_topic(TOPIC, queues=1)
    with rmq.Producer(cluster=cluster) as producer:
        producer.send_batch(
            [rmq.Message(TOPIC, f"picture-{number}".encode()) for number in range(PICTURES)]
        )
        producer.send(TOPIC, b"broken")
    lost = vanish(cluster)
    results = Results()
    workers = [
        threading.Thread(target=work, args=(cluster, results), daemon=True) for _ in range(WORKERS)
    ]
    for worker in workers:
        worker.start()
    complete = results.complete.wait(60)
    for worker in workers:
        worker.join(10)
    with rmq.SimpleConsumer(f"%DLQ%{GROUP}", "undertaker", cluster=cluster) as undertaker:
        dead = undertaker.receive(8, wait=5)
        undertaker.ack_all(dead)
    print(
        f"{len(results.done)} of {PICTURES} pictures by {WORKERS} workers from 1 queue; "
        f"{results.again} were given back once"
    )
    print(
        f"the worker that vanished had {' and '.join(lost)}: done by others "
        f"{all(results.done[name] for name in lost)}"
    )
    print(f"dead letters: {[message.body.decode() for message in dead]}")
    return (
        0
        if complete
        and [message.body for message in dead] == [b"broken"]
        and all(results.done[name] for name in lost)
        else 1
    )


if __name__ == "__main__":
    ray.init(include_dashboard=False, log_to_driver=False)
    queue = rmq.start("default", store_path="rmq-data")
    code = main()
    queue.stop()
    raise SystemExit(code)
