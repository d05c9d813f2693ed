"""What an archivist reads: a topic's visible rows, beside the log where it lies on this machine,
else through the broker's scan stream; and how much of the log it holds back from retention.

Decides nothing: ``client.scan`` plans and reads. Blocking. Invariant: rows that were asked for come
all, in order, or an error comes (damaged records apart, which every bulk read leaves out).
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from contextlib import suppress
from typing import Any

import msgpack

from rmq_ray.client.instance.client_instance import ClientInstance
from rmq_ray.client.instance.outage import ask_for_map
from rmq_ray.client.scan.scan_plan import PIN_MS, RELEASE_TIMEOUT_MS, open_reader, plan_scan
from rmq_ray.client.scan.topic_state import State, TopicState
from rmq_ray.codec.arrow.arrow_reader import to_batch
from rmq_ray.errors import RmqError, TopicNotFound
from rmq_ray.model.ids import Address, MessageQueue
from rmq_ray.ports import Discovery
from rmq_ray.remoting.wire.codes import RequestCode
from rmq_ray.remoting.wire.frame import Command
from rmq_ray.table.rules import Offsets, Ranges

CHUNK_BYTES = 8 << 20


class TopicSource:
    """Of one topic; close it."""

    def __init__(self, discovery: Discovery, topic: str) -> None:
        self._discovery, self._topic = discovery, topic
        self._state = TopicState(discovery, topic)
        self._instance = ClientInstance.get_or_create(discovery)
        self._instance.start()
        self._pins: list[tuple[Address, int]] = []

    def look(self) -> State:
        """Bounds of every queue now, and the epochs of their logs. ``TopicNotFound``."""
        state = self._state.now()
        if not state.bounds:  # its route may still be told for a while
            raise TopicNotFound(f"no broker has topic {self._topic!r} any more", self._topic)
        return state

    def cut_to(self, committed: Offsets, epochs: dict[str, int]) -> Offsets:
        """Where to go on in queues whose log was cut since it had these epochs."""
        return self._state.cut_to(committed, epochs)

    def read(self, ranges: Ranges) -> Iterator[tuple[MessageQueue, int, Any, int]]:
        """(queue, epoch of its log, rows, next offset) of these ranges, queue by queue."""
        start = {queue: low for queue, (low, _) in ranges.items()}
        end = {queue: high for queue, (_, high) in ranges.items()}
        bounds = self._state.now().bounds
        others = {queue: high for queue, (_, high) in bounds.items() if queue not in ranges}
        with plan_scan(
            self._discovery, self._topic, start | others, end | others, 1, self._brokers(ranges)
        ) as plan:
            reader = open_reader(plan)
            try:
                for split in plan.splits:
                    queue = split.queue
                    for records, sizes in reader.read(split, CHUNK_BYTES):
                        rows = to_batch(queue.topic, queue.broker_name, records, sizes)
                        behind = int(rows["queue_offset"][-1].as_py()) + 1
                        yield queue, split.epoch, rows, behind
            finally:
                reader.close()

    def hold(self, committed: Offsets, hold_bytes: int) -> int:
        """Keep what is not committed from retention for the next hour, and give the last hold
        back; the most bytes that one broker keeps because of that. One that would keep more than
        ``hold_bytes`` is let go.
        """
        before, self._pins, most = self._pins, [], 0
        with suppress(RmqError):  # the topic may be gone
            self._instance.routes.refresh(self._topic)
        starts: dict[str, dict[int, int]] = {}
        for queue, offset in committed.items():
            starts.setdefault(queue.broker_name, {})[queue.queue_id] = offset
        for broker, offsets in starts.items():
            address = self._instance.broker_address(broker)
            if address is None:
                continue  # away: nothing of it is deleted, either
            body = [self._topic, offsets, PIN_MS]
            with suppress(RmqError):  # asked again at the next turn
                found = ask_for_map(self._instance, address, RequestCode.PIN_SEGMENTS, body)
                pin = (address, int(found["pin"]))
                kept = int(found.get("bytes", 0))
                most = max(most, kept)
                if kept > hold_bytes:
                    self._release([pin])
                else:
                    self._pins.append(pin)
        self._release(before)
        return most

    def close(self) -> None:
        """Give pins and connections back."""
        self._release(self._pins)
        self._state.close()
        self._instance.release()

    def _release(self, pins: list[tuple[Address, int]]) -> None:
        for address, pin in pins:
            command = Command(RequestCode.UNPIN_SEGMENTS, body=msgpack.packb([pin]), serialize=1)
            with suppress(RmqError):  # it ends by itself
                self._instance.invoke(address, command, RELEASE_TIMEOUT_MS)

    def _brokers(self, ranges: Ranges) -> Collection[str]:
        return sorted({queue.broker_name for queue in ranges})
