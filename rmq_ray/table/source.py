"""What an archivist reads: a topic's visible rows, beside the log where it lies on this machine,
else through the broker's scan stream; and how much of the log it holds back from retention.

    hold, at every copy of every log:  bounds ─> pin from the committed offsets on ─> unpin the last
                                          └ more than hold_bytes ─> unpin both: let go

Decides what a hold is. A slave is asked as its master is, since each copy has a retention of its
own, and one that takes over must still have the rows. Does not decide what is read (``client.scan``
plans and reads) or when a hold is renewed (``retention_hold``). Blocking. Invariants: rows that
were asked for come all, in order, or an error comes (damaged records apart, which every bulk read
leaves out); a copy that does not answer keeps no other from being asked.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import suppress
from typing import Any, NamedTuple

import msgpack

from rmq_ray.client.instance.client_instance import ClientInstance
from rmq_ray.client.instance.outage import ask_for_map
from rmq_ray.client.scan.range_plan import plan_ranges
from rmq_ray.client.scan.scan_plan import PIN_MS, RELEASE_TIMEOUT_MS, open_reader
from rmq_ray.client.scan.topic_state import State, TopicState
from rmq_ray.codec.arrow.arrow_reader import to_batch
from rmq_ray.errors import RmqError, TopicNotFound
from rmq_ray.model.ids import Address, MessageQueue
from rmq_ray.ports import Discovery
from rmq_ray.remoting.wire.codes import RequestCode
from rmq_ray.remoting.wire.frame import Command
from rmq_ray.table.rules import Offsets, Ranges

log = logging.getLogger("rmq_ray.table")
CHUNK_BYTES = 8 << 20
HOLD_TIMEOUT_MS = 3_000  # of each request: a broker that is away deletes nothing
HALVINGS = 16


class _HeldLog(NamedTuple):
    """Of one copy of a log. ``pin``: None = it was let go."""

    pin: int | None
    bytes: int


class TopicSource:
    """Of one topic; close it. ``hold`` and ``let_go`` may run beside the rest, one at a time."""

    def __init__(self, discovery: Discovery, topic: str) -> None:
        self._discovery, self._topic = discovery, topic
        self._state = TopicState(discovery, topic)
        self._instance = ClientInstance.get_or_create(discovery)
        self._instance.start()
        self._held: dict[Address, _HeldLog] = {}

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
        with plan_ranges(self._discovery, ranges, 1) as plan:
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

    def hold(self, committed: Offsets | None, hold_bytes: int) -> int:
        """Keep what is not committed from retention for the next hour, and give the last hold
        back; the most bytes that one copy of a log keeps because of that. One that would keep more
        than ``hold_bytes`` is let go. None = nobody knows what is committed: as much of the newest
        as ``hold_bytes`` are is kept. A copy that does not answer counts as it did before.
        """
        with suppress(RmqError):  # the topic, or every name server, may be gone
            self._instance.routes.refresh(self._topic)
        routes = self._instance.routes
        queues = {*routes.subscribe(self._topic), *(committed or ())}
        found: dict[Address, _HeldLog] = {}
        for broker in sorted({queue.broker_name for queue in queues}):
            for address in tuple(routes.addresses(broker).values()):
                before = self._held.get(address)
                try:
                    found[address] = self._hold_at(address, broker, committed, hold_bytes)
                except RmqError as error:
                    log.info("retention at %s was not told what to keep: %s", address, error)
                    if before is not None:
                        found[address] = before
                else:
                    self._release(address, before)
        self._held = found
        return max((one.bytes for one in found.values()), default=0)

    def let_go(self) -> None:
        """Give every hold back."""
        held, self._held = self._held, {}
        for address, one in held.items():
            self._release(address, one)

    def close(self) -> None:
        """Give holds and connections back."""
        self.let_go()
        self._state.close()
        self._instance.release()

    # --- asking one copy of a log -----------------------------------------------------------------

    def _hold_at(
        self, address: Address, broker: str, committed: Offsets | None, hold_bytes: int
    ) -> _HeldLog:
        bounds = self._ask(address, RequestCode.QUEUE_BOUNDS, [self._topic]).get(self._topic, {})
        known = committed or {}
        starts = {
            number: max(int(low), known.get(MessageQueue(self._topic, broker, int(number)), 0))
            for number, (low, _) in bounds.items()
        }
        for _ in range(HALVINGS):
            body = [self._topic, starts, PIN_MS]
            pinned = self._ask(address, RequestCode.PIN_SEGMENTS, body)
            held = _HeldLog(int(pinned["pin"]), int(pinned.get("bytes", 0)))
            if held.bytes <= hold_bytes:
                return held
            self._release(address, held)
            if committed is not None:
                break
            starts = {number: (at + bounds[number][1] + 1) // 2 for number, at in starts.items()}
        return _HeldLog(None, held.bytes if committed is not None else 0)

    def _ask(self, address: Address, code: RequestCode, body: list[Any]) -> dict[Any, Any]:
        return ask_for_map(self._instance, address, code, body, HOLD_TIMEOUT_MS)

    def _release(self, address: Address, held: _HeldLog | None) -> None:
        if held is None or held.pin is None:
            return
        body = msgpack.packb([held.pin])
        command = Command(RequestCode.UNPIN_SEGMENTS, body=body, serialize=1)
        with suppress(RmqError):  # it ends by itself
            self._instance.invoke(address, command, RELEASE_TIMEOUT_MS)
