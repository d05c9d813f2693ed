"""Asking a broker again while it is away: the one rule of bulk reads, for plans and for scan streams.

Decides: which failures pass by themselves (``retriable`` errors; answers of a broker that is busy or still recovers) and for how
long they are waited for. Does not decide what is asked or where. Every other error and answer comes out at once.
"""

from __future__ import annotations

from collections.abc import Callable

from rmq_ray.clock import Clock
from rmq_ray.errors import RemotingError, ResponseError
from rmq_ray.remoting.codes import ResponseCode
from rmq_ray.remoting.frame import Command

PAUSE_MS = 100
PASSING = frozenset((ResponseCode.SYSTEM_BUSY, ResponseCode.SERVICE_NOT_AVAILABLE, ResponseCode.STILL_RECOVERING))


def ask_patiently(attempt: Callable[[int], Command], clock: Clock, patience_ms: float) -> Command:
    """The first answer that is not "later", whatever its code. ``attempt(turn)`` asks once; turns count from 0.

    Raises the last error when ``patience_ms`` is over (a turn that began before may end after it), others at once.
    """
    give_up = clock.monotonic_ms() + patience_ms
    turn = 0
    while True:  # ends: at give_up
        try:
            answer = attempt(turn)
            if answer.code not in PASSING:
                return answer
            error: RemotingError = ResponseError(answer.remark or "the broker cannot answer now", answer.code)
        except RemotingError as lost:
            if not lost.retriable:
                raise
            error = lost
        if clock.monotonic_ms() >= give_up:
            raise error
        turn += 1
        clock.sleep_ms(PAUSE_MS)
