"""Workers on a live cluster: consumers that receive in threads of their own and keep what
they got.
"""

from __future__ import annotations

import threading
from collections import Counter
from typing import Any

from rmq_ray.client.pop.simple_consumer import SimpleConsumer
from rmq_ray.errors import ReceiptStale, RmqError


class Worker(threading.Thread):
    """Receives and acknowledges until it is stopped; ``done`` are the bodies that were
    acknowledged, ``got`` all deliveries.
    """

    def __init__(
        self, topic: str, group: str, discovery: Any, batch: int = 8, invisible: float = 10.0
    ) -> None:
        super().__init__(name=f"worker-{group}", daemon=True)
        self.consumer = SimpleConsumer(topic, group, discovery=discovery)
        self.batch, self.invisible = batch, invisible
        self.got: Counter[bytes] = Counter()
        self.done: Counter[bytes] = Counter()
        self.stale = 0
        self.errors: list[RmqError] = []
        self._ending = threading.Event()

    def run(self) -> None:
        with self.consumer:
            while not self._ending.is_set():
                try:
                    for message in self.consumer.receive(
                        self.batch, invisible=self.invisible, wait=0.5
                    ):
                        self.got[message.body] += 1
                        self._settle(message)
                except RmqError as error:
                    self.errors.append(error)

    def _settle(self, message: Any) -> None:
        try:
            message.ack()
        except ReceiptStale:
            self.stale += 1
        else:
            self.done[message.body] += 1

    def end(self) -> None:
        """Returns at once; the current receive is the last."""
        self._ending.set()


def stop(workers: list[Worker]) -> None:
    """End all of them and wait."""
    for worker in workers:
        worker.end()
    for worker in workers:
        worker.join(20)
        assert not worker.is_alive()


def together(workers: list[Worker], name: str) -> Counter[bytes]:
    """Sum of one of their counters, which they may be counting in at this moment."""
    total: Counter[bytes] = Counter()
    for worker in workers:
        total += getattr(worker, name).copy()
    return total
