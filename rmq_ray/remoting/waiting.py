"""Who waits for which answer on one connection of threads.

Decides who ends a request: whoever takes its opaque out of the table owns its outcome, exactly
once. Called by ``connection``. Invariants: a waiting thread's lock is released once for each
outcome that was taken for it, never twice and never late; an error is made anew for each waiter
(one exception object raised in many threads would gather all their tracebacks).
"""

from __future__ import annotations

import itertools
import logging
import threading

from rmq_ray.errors import (
    ConnectFailed,
    ConnectionLost,
    RemotingError,
    RequestTimeout,
    TooManyRequests,
)
from rmq_ray.remoting.handler import AnswerCallback
from rmq_ray.remoting.wire.frame import Command

log = logging.getLogger("rmq_ray.remoting")

_OPAQUE_MASK = 0x7FFFFFFF
_HAND_OVER_S = 5.0


class Waiter:
    """One request's place: a thread that sleeps on ``lock``, or a ``callback`` with a deadline."""

    __slots__ = ("lock", "outcome", "sent", "busy", "callback", "deadline_ms")

    def __init__(self, callback: AnswerCallback | None = None, deadline_ms: float = 0.0) -> None:
        self.lock = threading.Lock()
        self.lock.acquire()
        self.outcome: Command | RemotingError | None = None
        self.sent = False
        """Its frame, or part of it, may have left."""
        self.busy = False
        self.callback = callback
        self.deadline_ms = deadline_ms

    def resolve(self, outcome: Command | RemotingError) -> None:
        """Hand the outcome over; only the one who took the opaque may call this."""
        if self.callback is None:
            self.outcome = outcome
            self.lock.release()
            return
        try:
            self.callback(outcome)
        except Exception:
            log.exception("the callback of a request failed")

    def hand_over(self) -> bool:
        """Wait for an outcome that another thread has just taken for this one; False if it never
        comes.
        """
        return self.lock.acquire(timeout=_HAND_OVER_S)


class _Mine(threading.local):
    waiter: Waiter | None = None


_mine = _Mine()


def thread_waiter() -> Waiter:
    """This thread's own waiter, used again and again: creating a lock for each request costs a
    fifth of a round trip.
    """
    waiter = _mine.waiter
    if waiter is None or waiter.busy:  # busy: a finalizer runs inside this thread's wait
        waiter = Waiter()
        if _mine.waiter is None:
            _mine.waiter = waiter
    waiter.busy = True
    waiter.sent = False
    waiter.outcome = None
    return waiter


def discard_thread_waiter() -> None:
    """An exception from outside broke the wait: a late release must not wake the next request."""
    _mine.waiter = None


class WaitingTable:
    """opaque -> waiter."""

    def __init__(self, limit: int, peer: str) -> None:
        self._limit = limit
        self._peer = peer
        self._waiting: dict[int, Waiter] = {}
        self.timed: dict[int, Waiter] = {}
        """Those with a callback: nobody but ``expire`` looks at their deadlines."""
        self._opaque = itertools.count(1)
        self._pop = self._waiting.pop

    def __len__(self) -> int:
        return len(self._waiting)

    def take(self, opaque: int) -> Waiter | None:
        """Who gets the waiter owns its outcome."""
        return self._pop(opaque, None)

    def next_opaque(self) -> int:
        """A number no unanswered request of this connection has."""
        if len(self._waiting) >= self._limit:
            raise TooManyRequests(
                f"{len(self._waiting)} requests to {self._peer} are unanswered, "
                f"{self._limit} may be; nothing was sent",
                self._peer,
            )
        return next(self._opaque) & _OPAQUE_MASK

    def put(self, opaque: int, waiter: Waiter) -> None:
        """From now on an answer finds the waiter."""
        self._waiting[opaque] = waiter
        if waiter.callback is not None:
            self.timed[opaque] = waiter

    def settle_timed(self, opaque: int) -> None:
        """An answer came for a waiter with a callback."""
        self.timed.pop(opaque, None)

    def expire(self, now_ms: float) -> None:
        """End the callbacks' requests whose deadline has passed."""
        try:
            due = [
                opaque
                for opaque, waiter in list(self.timed.items())
                if waiter.deadline_ms <= now_ms
            ]
        except (
            RuntimeError
        ):  # another thread added one during the copy: the next look is half a second away
            return
        for opaque in due:
            waiter = self.take(opaque)
            self.timed.pop(opaque, None)
            if waiter is not None:
                waiter.resolve(
                    RequestTimeout(
                        f"{self._peer} did not answer in time; the request may have been processed",
                        self._peer,
                    )
                )

    def fail_all(self, reason: str) -> None:
        """The connection is dead: every request ends, the oldest first, with ``ConnectFailed``
        where nothing of it had been sent.
        """
        while self._waiting:
            try:
                waiter = self._waiting.pop(next(iter(self._waiting)))
            except (
                KeyError,
                RuntimeError,
                StopIteration,
            ):  # another thread put or took one in between: look again
                continue
            waiter.resolve(
                lost(self._peer, reason) if waiter.sent else not_sent(self._peer, reason)
            )
        self.timed.clear()


def lost(peer: str, reason: str) -> ConnectionLost:
    """The request may have been processed."""
    return ConnectionLost(
        f"connection to {peer} lost: {reason}; the request may have been processed", peer
    )


def no_time_left(peer: str) -> RequestTimeout:
    """The caller's time was used up before the request could be made."""
    return RequestTimeout(f"no time is left for a request to {peer}; it was not sent", peer)


def not_sent(peer: str, reason: str) -> ConnectFailed:
    """The request never left."""
    return ConnectFailed(f"no connection to {peer}: {reason}; nothing was sent", peer)
