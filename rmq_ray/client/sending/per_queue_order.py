"""The order of asynchronous frames: those of one queue of one producer leave in the order in which
they were made.

    add ──> pending ──next──> launching (one at a time) ──launched──> out ──ended──> gone
                         it must be sent again: holds the queue until it ended <──┘

Frames follow one another without waiting for answers. A queue waits for a frame that has to be sent
again, and for every frame that is ordered (one out at a time): newer ones do not overtake it.
Frames that have to be sent again go one after the other, the oldest first: when a connection broke,
all that was on it is sent again in order. What a broker stored while it refused an older frame
stays before it; only ordered frames exclude that.

Decides nothing about retries. Called by ``client.sending.async_sender``, under its lock. Invariant:
a queue without frames is forgotten.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Generic, Protocol, TypeVar

from rmq_ray.model.ids import MessageQueue


class OrderedSend(Protocol):
    """What the order needs to know of a send. ``order_key``: its queue, None = it keeps no order;
    ``ordered``: alone on its way.

    The order's own: ``holds``: newer ones wait for it; ``number``: its place; ``waiting``: what
    sends it again when older ones have ended.
    """

    order_key: MessageQueue | None
    ordered: bool
    holds: bool
    number: int
    waiting: Callable[[], None] | None


F = TypeVar("F", bound=OrderedSend)


class _QueueFrames(Generic[F]):
    """Of one queue. ``busy``: a frame is being launched; ``out``: frames launched and not ended, of
    which ``held`` hold the queue, those in ``again`` because they have to be sent again, oldest
    first.
    """

    __slots__ = ("again", "busy", "held", "out", "pending")

    def __init__(self) -> None:
        self.pending: deque[F] = deque()
        self.busy = False
        self.out = 0
        self.held = 0
        self.again: list[F] = []


class PerQueueOrder(Generic[F]):
    """All queues of a producer. Not thread-safe by itself."""

    def __init__(self) -> None:
        self._queues: dict[MessageQueue, _QueueFrames[F]] = {}
        self._count = 0

    def add(self, frame: F) -> None:
        """The frame comes after all that were added before it."""
        if frame.order_key is not None:
            frames = self._queues.get(frame.order_key)
            if frames is None:
                frames = self._queues[frame.order_key] = _QueueFrames()
            self._count += 1
            frame.number = self._count
            frames.pending.append(frame)

    def next(self, queue: MessageQueue) -> F | None:
        """The frame to be launched now by the caller, who says ``launched`` afterwards; None when
        there is none, or it must wait.
        """
        frames = self._queues.get(queue)
        if (
            frames is None
            or frames.busy
            or frames.held
            or not frames.pending
            or (frames.out and frames.pending[0].ordered)
        ):
            return None
        frame = frames.pending.popleft()
        frames.busy = True
        frames.out += 1
        if frame.ordered:
            frame.holds = True
            frames.held += 1
        return frame

    def launched(self, queue: MessageQueue) -> None:
        """The frame that ``next`` gave is on its way, or has ended."""
        frames = self._queues.get(queue)
        if frames is not None:
            frames.busy = False
            self._forget(queue, frames)

    def hold(self, frame: F) -> None:
        """The frame will be launched again: newer ones wait until it ended."""
        frames = self._queues.get(frame.order_key) if frame.order_key is not None else None
        if frames is not None and not frame.holds:
            frame.holds = True
            frames.held += 1
            frames.again.append(frame)
            frames.again.sort(key=lambda each: each.number)

    def may_go(self, frame: F, action: Callable[[], None]) -> bool:
        """Whether the frame that holds its queue may be sent again now; else ``ended`` of the last
        older one returns ``action``.
        """
        frames = self._queues.get(frame.order_key) if frame.order_key is not None else None
        if frames is None or frame not in frames.again or frames.again[0] is frame:
            return True
        frame.waiting = action
        return False

    def ended(self, frame: F) -> tuple[bool, Callable[[], None] | None]:
        """The frame is stored or given up. (pending frames may be looked at now, what sends the
        next one again that waited for this).
        """
        frames = self._queues.get(frame.order_key) if frame.order_key is not None else None
        if frames is None or frame.order_key is None:
            return False, None
        if frame in frames.pending:
            frames.pending.remove(frame)
            return False, None
        frames.out -= 1
        frames.held -= frame.holds
        if frame in frames.again:
            frames.again.remove(frame)
        action = None
        if frames.again:
            action, frames.again[0].waiting = frames.again[0].waiting, None
        self._forget(frame.order_key, frames)
        return bool(frames.pending) and not frames.held, action

    def clear(self) -> None:
        """Nothing more is launched."""
        self._queues.clear()

    def _forget(self, queue: MessageQueue, frames: _QueueFrames[F]) -> None:
        if not (frames.pending or frames.out or frames.busy) and self._queues.get(queue) is frames:
            del self._queues[queue]
