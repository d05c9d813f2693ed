"""A listener that is not called while nothing but failures could come of it: what it needs, a
database or a service, is gone.

    consuming thread ── call ──> closed: the listener
                            └──> open:   in line ── first, its time has come ──> the listener
                                           ^                                       │ failed
                                           └──────────── behind the others <───────┘

Decides who waits and who tries while the breaker is open (``protocol.breaker`` says when that is).
A call that fails then is made again from here: its messages stay where they are and no try of
theirs is counted; full queues are pulled no further by themselves. The threads take turns, so that
one message that fails for its own sake keeps nobody else; after ``TRIES`` calls its failure is its
own.

Does not decide what becomes of failed messages: both kinds of consumption do, to whom this is the
listener. Invariants: a call is answered by the listener's own last answer, or by ``ClientError``
where the consumer stops while it waits; the context is as new at each call.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable
from typing import Any

from rmq_ray.client.messages.listener import (
    RECONSUME_LATER,
    SUSPEND_CURRENT_QUEUE_A_MOMENT,
    Reject,
    failure_of,
)
from rmq_ray.clock import Clock
from rmq_ray.errors import ClientError
from rmq_ray.guard import WHY_CHARS_MAX
from rmq_ray.protocol.breaker import Breaker, BreakerState

TRIES = 10
"""Calls with the same messages while the breaker is open."""
WAIT_SLICE_S = 5.0
FAILURES = (RECONSUME_LATER, SUSPEND_CURRENT_QUEUE_A_MOMENT)

log = logging.getLogger("rmq_ray.client.consume")


class ListenerBreaker:
    """``listener`` with a breaker before it. Any thread."""

    def __init__(
        self, listener: Callable[[Any, Any], Any], settings: Breaker, group: str, clock: Clock
    ) -> None:
        self._listener = listener
        self._settings = settings
        self._group = group
        self._clock = clock
        self._state = BreakerState(settings)
        self._changed = threading.Condition()
        self._line: deque[object] = deque()
        self._closed = False

    @property
    def open(self) -> bool:
        """Whether calls wait."""
        return self._state.open

    def close(self) -> None:
        """The consumer stops: nobody waits any more."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    def __call__(self, messages: Any, ctx: Any) -> Any:
        """What the listener answers; raises what it raises."""
        error: Exception | None = None
        answer: Any = None
        for _ in range(TRIES):
            if self._state.open:
                self._wait(error)
            ctx.__init__(ctx.group, ctx.queue)
            error, answer = None, None
            try:
                answer = self._listener(messages, ctx)
            except Exception as raised:  # noqa: BLE001 - handed on below
                error = raised
            if not self._has_failed(answer, error):
                break
        if error is not None:
            raise error
        return answer

    def _has_failed(self, answer: Any, error: Exception | None) -> bool:
        """Whether the call is made again: it failed while the breaker is open."""
        wanted_again = any(answer is one for one in FAILURES)
        failed = wanted_again if error is None else not isinstance(error, Reject)
        with self._changed:
            if not failed:
                if self._state.succeeded():
                    log.warning("listener of group %s succeeds again: it goes on", self._group)
                    self._changed.notify_all()
                return False
            if self._state.failed(self._clock.monotonic_ms()):
                log.error(
                    "listener of group %s fails again and again, lastly with %s: it pauses, and is "
                    "tried every %g s with one call; no message loses a try meanwhile",
                    self._group,
                    failure_of(answer if error is None else error)[:WHY_CHARS_MAX],
                    self._settings.pause,
                )
            return self._state.open and not self._closed

    def _wait(self, error: Exception | None) -> None:
        """Until this call may be made. ``error``: its last failure, told where the consumer stops
        meanwhile.
        """
        me = object()
        with self._changed:
            self._line.append(me)
            try:
                while self._state.open:  # ends: the breaker closes, or it is this call's turn
                    if self._closed:
                        raise ClientError(
                            f"the consumer of group {self._group!r} was stopped while its "
                            f"listener paused"
                        ) from error
                    first = self._line[0] is me
                    wait_ms = self._state.wait_ms(self._clock.monotonic_ms()) if first else None
                    if wait_ms == 0.0:
                        return
                    left_s = WAIT_SLICE_S if wait_ms is None else wait_ms / 1000
                    self._changed.wait(min(left_s, WAIT_SLICE_S))
            finally:
                self._line.remove(me)
                self._changed.notify_all()  # another one is the first now
