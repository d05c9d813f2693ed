"""A backlog worked off by simple consumers: receives of 1,024, bodies read, each page acknowledged
with one request; beside a push consumer's rate.
"""

from __future__ import annotations

import threading
import time
from typing import Any

import rmq_ray as rmq
from benchmarks.scene import PATIENCE_S

WORKERS = 2  # threads that share one consumer
PAGE = 1_024


def simple_rate(mq: rmq.Cluster, topic: str, messages: int, number: int) -> float:
    """Messages a second from the first receive's end to the last acknowledgement's answer, of a new
    group.
    """
    state = _Tally(messages)
    with rmq.SimpleConsumer(topic, f"{topic}-workers-{number}", cluster=mq.name) as consumer:
        threads = [
            threading.Thread(target=_work, args=(consumer, state), daemon=True)
            for _ in range(WORKERS)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(PATIENCE_S)
    if state.count < messages:
        raise RuntimeError(f"only {state.count} of {messages} messages came: {state.error}")
    return (state.count - state.first) / (state.ended - state.began)


class _Tally:
    def __init__(self, wanted: int) -> None:
        self.wanted = wanted
        self.count = self.first = self.bytes = 0
        self.began = self.ended = 0.0
        self.error: Exception | None = None
        self.lock = threading.Lock()

    def add(self, count: int, size: int, received: float) -> None:
        with self.lock:
            if not self.began:
                self.began, self.first = received, count
            self.count += count
            self.bytes += size
            self.ended = time.perf_counter()


def _work(consumer: Any, state: _Tally) -> None:
    deadline = time.perf_counter() + PATIENCE_S
    while state.count < state.wanted and time.perf_counter() < deadline:
        try:
            messages = consumer.receive(PAGE, invisible=60, wait=1)
            received = time.perf_counter()
            size = sum(len(message.body) for message in messages)
            consumer.ack_all(messages)
        except rmq.RmqError as error:
            state.error = error
            return
        if messages:
            state.add(len(messages), size, received)
