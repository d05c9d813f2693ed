"""What a chaos run did and what is left of it: senders that keep their acknowledgements, the log as
stored, and the checks of both.

Used by tests that kill processes; the parts know nothing of Ray and of how the cluster came to be.
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from rmq_ray.client.producer.producer import Producer
from rmq_ray.client.scan.scan_plan import open_reader, plan_scan
from rmq_ray.codec.record import Record, decode_record
from rmq_ray.errors import RmqError, SendError, SendUnknown
from rmq_ray.model.ids import MessageQueue
from rmq_ray.model.message import SendResult, SendStatus
from rmq_ray.ports import Discovery
from tests.support.outcomes import judging

CHUNK_BYTES = 1 << 20
Place = tuple[str, int, int]
"""Broker name, queue id, queue offset."""


def place_of(result: SendResult) -> Place:
    """Where an acknowledgement says that the message is."""
    return result.queue.broker_name, result.queue.queue_id, int(result.queue_offset)


@dataclass
class Acknowledged:
    """Bodies and where they were said to be. ``failed``: body -> what the producer raised."""

    places: dict[bytes, Place] = field(default_factory=dict)
    failed: dict[bytes, BaseException] = field(default_factory=dict)


class SendingThread:
    """Sends numbered bodies from a thread until it is stopped; ``wait`` False = ``send_async``."""

    def __init__(
        self, producer: Producer, topic: str, name: str, *, wait: bool, pause_s: float = 0.001
    ) -> None:
        self.acknowledged = Acknowledged()
        self._producer = producer
        self._topic = topic
        self._name = name
        self._send: Callable[[bytes], None] = self._send_and_wait if wait else self._send_async
        self._pause_s = pause_s
        self._stop = threading.Event()
        self._futures: list[tuple[bytes, Any]] = []
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> SendingThread:
        self._producer.start()
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.finish()
        self._producer.close()

    def finish(self, timeout_s: float = 40.0) -> Acknowledged:
        """Stop, and wait for every answer."""
        self._stop.set()
        self._thread.join(timeout_s)
        assert not self._thread.is_alive()
        deadline = time.monotonic() + timeout_s
        futures, self._futures = self._futures, []
        for body, future in futures:
            self._settle(body, partial(future.result, max(0.1, deadline - time.monotonic())))
        return self.acknowledged

    def _run(self) -> None:
        number = 0
        while not self._stop.is_set():
            self._send(b"%s-%d" % (self._name.encode(), number))
            number += 1
            if self._pause_s:
                time.sleep(self._pause_s)

    def _send_and_wait(self, body: bytes) -> None:
        self._settle(body, lambda: self._producer.send(self._topic, body))

    def _send_async(self, body: bytes) -> None:
        try:
            self._futures.append((body, self._producer.send_async(self._topic, body)))
        except RmqError as error:
            self.acknowledged.failed[body] = error

    def _settle(self, body: bytes, result: Callable[[], SendResult]) -> None:
        try:
            found = result()
            if found.status is SendStatus.SEND_OK:  # anything less may be stored or not
                self.acknowledged.places[body] = place_of(found)
        except (RmqError, TimeoutError) as error:
            self.acknowledged.failed[body] = error


def read_log(discovery: Discovery, topic: str) -> dict[Place, Record]:
    """Every record of a topic as a scan gives it, by its place."""
    plan = plan_scan(discovery, topic, "earliest", "latest", 1)
    reader = open_reader(plan)
    found: dict[Place, Record] = {}
    try:
        for split in plan.splits:
            for records, sizes in reader.read(split, CHUNK_BYTES):
                at = 0
                for size in sizes:
                    record = decode_record(records, at)
                    at += int(size)
                    found[split.queue.broker_name, record.queue_id, record.queue_offset] = record
    finally:
        reader.close()
    return found


@judging()
def check_log(
    log: dict[Place, Record], acknowledged: Acknowledged, ends: dict[MessageQueue, int]
) -> None:
    """Acknowledged = stored, at that place, once. Nothing is stored twice, definite failures are
    not stored, offsets have no gaps.
    """
    bodies = Counter(record.body for record in log.values())
    missing = {
        body: place
        for body, place in acknowledged.places.items()
        if place not in log or log[place].body != body
    }
    assert not missing, (
        f"acknowledged and not at their places: {dict(list(missing.items())[:5])}, "
        f"{len(missing)} in all"
    )
    twice = [body for body, count in bodies.items() if count > 1]
    assert not twice, f"stored twice: {twice[:5]}, {len(twice)} in all"
    definite = {
        body
        for body, error in acknowledged.failed.items()
        if isinstance(error, SendError) and not isinstance(error, SendUnknown)
    }
    assert not definite & bodies.keys(), (
        f"said to be refused, and stored: {sorted(definite & bodies.keys())[:5]}"
    )
    for queue, end in ends.items():
        offsets = sorted(
            offset
            for broker, queue_id, offset in log
            if (broker, queue_id) == (queue.broker_name, queue.queue_id)
        )
        assert offsets == list(range(end)), f"{queue}: {len(offsets)} records, {end} expected"
