"""Pops that found nothing and wait for a message: long polling for groups of workers
(protocol-behaviour 11, 26).

    worker 1 ┐                    ┌ queue 0 ─ parked at the hold, once for the room
    worker 2 ├ room of (group,    ├ queue 1 ─ ...
    worker 3 ┘ topic), in turn    └ %RETRY%group, queue 0
                    └──── woken, or messages were settled in a full queue: serve the first, then
                          the next, until nothing is left

Decides: whose turn it is, and that every waiting pop is answered, by its deadline at the latest.
Which arrival wakes a room is the hold's; ``ParkedPulls`` holds for it as it does for pulls.

Invariants: a room is served in a later turn of the loop than what woke it; one arrival wakes a room
once, however many wait there; a pop leaves when it is answered or its connection closes.
"""

from __future__ import annotations

import heapq
from collections import OrderedDict
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, cast

from rmq_ray.clock import Clock
from rmq_ray.errors import TooManyRequests
from rmq_ray.ports import Peer
from rmq_ray.remoting.wire.frame import Command
from rmq_ray.remoting.wire.pops import PopRecords
from rmq_ray.server.pull.parked_pulls import ParkedPulls

HOLD_MS = 60_000  # a room parks its queues anew after this
WAITING_PER_PEER_MAX = 4_096
WAITING = "waiting_pops"

RoomName = tuple[str, str]
"""(group, topic)."""
Wish = tuple[str, int, int, frozenset[int] | None]
"""What a room waits for: topic, queue id, from offset, tag codes."""


@dataclass(slots=True)
class WaitingPop:
    """One pop and where its answer goes."""

    pop: PopRecords
    command: Command
    peer: Peer
    number: int


class _Nobody:
    """Stands for a connection at ``ParkedPulls``: what a room parks belongs to no single worker."""

    def __init__(self) -> None:
        self.attributes: dict[str, Any] = {}


@dataclass(slots=True)
class _Room:
    name: RoomName
    waiting: OrderedDict[int, WaitingPop] = field(default_factory=OrderedDict)
    parked: set[tuple[str, int]] = field(default_factory=set)
    holder: _Nobody = field(default_factory=_Nobody)
    planned: bool = False


@dataclass(frozen=True, slots=True)
class RoomWake:
    """What a room parks at the hold: ``rerun`` is called when it wakes."""

    wake: Callable[[], None]

    def rerun(self, peer: Peer) -> None:
        """The queue has something, or was parked long enough."""
        self.wake()


class PopWaiting:
    """``serve(waiting)``: True when it was answered. ``wishes(pop)``: where the room's next message
    may come from. ``give_up(waiting)``: its time is over.
    """

    def __init__(
        self,
        parked: ParkedPulls[Any],
        post: Callable[[Callable[[], None]], None],
        serve: Callable[[WaitingPop], bool],
        wishes: Callable[[PopRecords], Iterable[Wish]],
        give_up: Callable[[WaitingPop], None],
        clock: Clock,
        waiting_max: int,
    ) -> None:
        self._parked = parked
        self._post = post
        self._serve = serve
        self._wishes = wishes
        self._give_up = give_up
        self._clock = clock
        self._waiting_max = waiting_max
        self._rooms: dict[RoomName, _Room] = {}
        self._deadlines: list[tuple[int, int, RoomName]] = []
        self._numbers = 0
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def add(self, pop: PopRecords, command: Command, peer: Peer) -> None:
        """Let it wait as long as it asked. Raises ``TooManyRequests``."""
        mine: dict[int, RoomName] = peer.attributes.setdefault(WAITING, {})
        if self._count >= self._waiting_max or len(mine) >= WAITING_PER_PEER_MAX:
            raise TooManyRequests(
                f"{self._count} receives wait ({len(mine)} of this connection); receive again later"
            )
        name = (pop.group, pop.topic)
        room = self._rooms.setdefault(name, _Room(name))
        self._numbers += 1
        room.waiting[self._numbers] = WaitingPop(pop, command, peer, self._numbers)
        mine[self._numbers] = name
        self._count += 1
        heapq.heappush(self._deadlines, (self._clock.now_ms() + pop.wait_ms, self._numbers, name))
        self._park(room, pop)

    def withdraw(self, name: RoomName, attempt: int) -> WaitingPop | None:
        """The pop of this attempt, which leaves; its answer is the caller's to send."""
        room = self._rooms.get(name)
        if room is None or not attempt:
            return None
        for waiting in room.waiting.values():
            if waiting.pop.attempt == attempt:
                self._leave(room, waiting)
                return waiting
        return None

    def wake(self, name: RoomName) -> None:
        """Look again for this room, soon."""
        room = self._rooms.get(name)
        if room is not None and not room.planned:
            room.planned = True
            self._post(lambda: self._run(room))

    def wake_group(self, group: str) -> None:
        """Look again for all rooms of the group, soon."""
        for name in [name for name in self._rooms if name[0] == group]:
            self.wake(name)

    def tick(self, now_ms: int) -> None:
        """Answer those whose time is over."""
        deadlines = self._deadlines
        while deadlines and deadlines[0][0] <= now_ms:
            _, number, name = heapq.heappop(deadlines)
            room = self._rooms.get(name)
            waiting = None if room is None else room.waiting.get(number)
            if room is not None and waiting is not None:
                self._leave(room, waiting)
                self._give_up(waiting)

    def closed(self, peer: Peer) -> None:
        """The connection is gone: its pops leave."""
        for number, name in list(peer.attributes.get(WAITING, {}).items()):
            room = self._rooms.get(name)
            waiting = None if room is None else room.waiting.get(number)
            if room is not None and waiting is not None:
                self._leave(room, waiting)

    def _run(self, room: _Room) -> None:
        """Serve in the order of arrival until nothing is left for the first."""
        room.planned = False
        for waiting in list(room.waiting.values()):
            if not self._serve(waiting):
                break
            self._leave(room, waiting)
        first = next(iter(room.waiting.values()), None)
        if first is not None:
            self._park(room, first.pop)

    def _park(self, room: _Room, pop: PopRecords) -> None:
        """See to it that the room hears of every queue."""
        deadline = self._clock.now_ms() + HOLD_MS
        for topic, queue_id, from_offset, codes in self._wishes(pop):
            queue = (topic, queue_id)
            if queue in room.parked:
                continue
            room.parked.add(queue)
            request = RoomWake(lambda queue=queue: self._woken(room, queue))  # type: ignore[misc]
            try:
                self._parked.park(
                    request, cast(Peer, room.holder), queue, from_offset, deadline, codes
                )
            except TooManyRequests:
                room.parked.discard(queue)  # its deadline answers it

    def _woken(self, room: _Room, queue: tuple[str, int]) -> None:
        room.parked.discard(queue)
        if room.waiting:
            self.wake(room.name)

    def _leave(self, room: _Room, waiting: WaitingPop) -> None:
        del room.waiting[waiting.number]
        waiting.peer.attributes[WAITING].pop(waiting.number, None)
        self._count -= 1
        if not room.waiting:
            self._rooms.pop(room.name, None)
            room.parked.clear()
            self._parked.closed(cast(Peer, room.holder))
        if len(self._deadlines) > 2 * self._count + 1_000:
            self._deadlines = [
                entry
                for entry in self._deadlines
                if entry[2] in self._rooms and entry[1] in self._rooms[entry[2]].waiting
            ]
            heapq.heapify(self._deadlines)
