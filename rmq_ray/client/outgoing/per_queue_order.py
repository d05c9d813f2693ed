"""The order of asynchronous frames: those of one queue of one producer leave in the order in which
they were made.

    add ──> pending ──next──> launching (one at a time) ──launched──> out ──ended──> gone
                                                                       '── must be sent again: holds the lane until it ended

Frames follow one another without waiting for answers. A lane waits for a frame that has to be sent
again, and for every frame that is ordered (one out at a time): newer ones do not overtake it.
Frames that have to be sent again go one after the other, the oldest first: when a connection broke,
all that was on it is sent again in order. What a broker stored while it refused an older frame
stays before it; only ordered frames exclude that.

Decides nothing about retries. Called by ``client.sending.async_sender``, under its lock. Invariant:
a lane without frames is forgotten.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Generic, Protocol, TypeVar

from rmq_ray.model.ids import MessageQueue


class Frame(Protocol):
    """What a lane needs to know of a job. ``lane``: its queue, None = it belongs to no lane;
    ``ordered``: alone on its way.

    The lanes' own: ``holds``: newer ones wait for it; ``number``: its place; ``waiting``: what
    sends it again when older ones have ended.
    """

    lane: MessageQueue | None
    ordered: bool
    holds: bool
    number: int
    waiting: Callable[[], None] | None


F = TypeVar("F", bound=Frame)


class _Lane(Generic[F]):
    """Of one queue. ``busy``: a frame is being launched; ``out``: frames launched and not ended, of
    which ``held`` hold the lane, those in ``again`` because they have to be sent again, oldest
    first.
    """

    __slots__ = ("again", "busy", "held", "out", "pending")

    def __init__(self) -> None:
        self.pending: deque[F] = deque()
        self.busy = False
        self.out = 0
        self.held = 0
        self.again: list[F] = []


class Lanes(Generic[F]):
    """All lanes of a producer. Not thread-safe by itself."""

    def __init__(self) -> None:
        self._lanes: dict[MessageQueue, _Lane[F]] = {}
        self._count = 0

    def add(self, frame: F) -> None:
        """The frame comes after all that were added before it."""
        if frame.lane is not None:
            lane = self._lanes.get(frame.lane)
            if lane is None:
                lane = self._lanes[frame.lane] = _Lane()
            self._count += 1
            frame.number = self._count
            lane.pending.append(frame)

    def next(self, queue: MessageQueue) -> F | None:
        """The frame to be launched now by the caller, who says ``launched`` afterwards; None when
        there is none, or it must wait.
        """
        lane = self._lanes.get(queue)
        if (
            lane is None
            or lane.busy
            or lane.held
            or not lane.pending
            or (lane.out and lane.pending[0].ordered)
        ):
            return None
        frame = lane.pending.popleft()
        lane.busy = True
        lane.out += 1
        if frame.ordered:
            frame.holds = True
            lane.held += 1
        return frame

    def launched(self, queue: MessageQueue) -> None:
        """The frame that ``next`` gave is on its way, or has ended."""
        lane = self._lanes.get(queue)
        if lane is not None:
            lane.busy = False
            self._forget(queue, lane)

    def hold(self, frame: F) -> None:
        """The frame will be launched again: newer ones wait until it ended."""
        lane = self._lanes.get(frame.lane) if frame.lane is not None else None
        if lane is not None and not frame.holds:
            frame.holds = True
            lane.held += 1
            lane.again.append(frame)
            lane.again.sort(key=lambda each: each.number)

    def may_go(self, frame: F, action: Callable[[], None]) -> bool:
        """Whether the frame that holds its lane may be sent again now; else ``ended`` of the last
        older one returns ``action``.
        """
        lane = self._lanes.get(frame.lane) if frame.lane is not None else None
        if lane is None or frame not in lane.again or lane.again[0] is frame:
            return True
        frame.waiting = action
        return False

    def ended(self, frame: F) -> tuple[bool, Callable[[], None] | None]:
        """The frame is stored or given up. (pending frames may be looked at now, what sends the
        next one again that waited for this).
        """
        lane = self._lanes.get(frame.lane) if frame.lane is not None else None
        if lane is None or frame.lane is None:
            return False, None
        if frame in lane.pending:
            lane.pending.remove(frame)
            return False, None
        lane.out -= 1
        lane.held -= frame.holds
        if frame in lane.again:
            lane.again.remove(frame)
        action = None
        if lane.again:
            action, lane.again[0].waiting = lane.again[0].waiting, None
        self._forget(frame.lane, lane)
        return bool(lane.pending) and not lane.held, action

    def clear(self) -> None:
        """Nothing more is launched."""
        self._lanes.clear()

    def _forget(self, queue: MessageQueue, lane: _Lane[F]) -> None:
        if not (lane.pending or lane.out or lane.busy) and self._lanes.get(queue) is lane:
            del self._lanes[queue]
