"""What the clients of a program that is over still owe, paid in one order over all of them.

    consumers: hand out nothing more ──> producers: send what they took ──> consumers: hand over
               keep how far they are                until nothing is left   what they kept

Decides the order and the time. An offset covers what a listener sent, so it is handed over behind
that, and not at all where something was left unsent: its messages come again. Invariants: an offset
that moves meanwhile is not handed over; producers have one deadline together, which covers the
longest time-out that was asked for, and consumers one; what is left then ends with an error.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Protocol

from rmq_ray.clock import Clock
from rmq_ray.guard import guarded

HAND_OVER_MS = 3_000.0
CALLBACKS_MS = 1_000.0
"""For the callbacks of what was left."""

HandOver = Callable[[float], None]
"""Hands over the offsets that were kept, until this time, monotonic."""

log = logging.getLogger("rmq_ray.client")


class Debtor(Protocol):
    """A producer, as it is settled."""

    @property
    def due_ms(self) -> float:
        """How long what it took may still take."""
        ...

    @property
    def outstanding(self) -> int:
        """How many batches, single messages and callbacks have not ended."""
        ...

    @property
    def admitted(self) -> int:
        """How many batches and single messages have left so far."""
        ...

    def ship(self) -> None:
        """Send what lingers, without waiting for answers."""
        ...

    def wait_through(self, timeout_ms: float) -> None:
        """Wait for the answers, and for the callbacks of those that came."""
        ...

    def give_up(self, why: str) -> None:
        """End what is left with an error; callbacks run soon."""
        ...


Debtors = Callable[[], Sequence[Debtor]]
"""All producers there are; a callback may start one."""


def settle(debtors: Debtors, halts: Sequence[Callable[[], HandOver]], clock: Clock) -> None:
    """Pay. ``halts``: of each consumer what stops it. Never raises."""
    kept = [
        hand_over
        for halt in halts
        if (hand_over := guarded(log, "stopping a consumer", halt, then="the program ends"))
    ]
    if guarded(log, "sending what was taken", drained, debtors, clock, then="the program ends"):
        until_ms = clock.monotonic_ms() + HAND_OVER_MS
        for hand_over in kept:
            guarded(log, "handing offsets over", hand_over, until_ms, then="the program ends")


def drained(debtors: Debtors, clock: Clock) -> bool:
    """Whether all of it was sent, or has failed by itself."""
    due_ms = max((producer.due_ms for producer in debtors()), default=0.0)
    deadline_ms = clock.monotonic_ms() + due_ms
    while not _at_rest(debtors):
        producers = debtors()
        if clock.monotonic_ms() >= deadline_ms:
            _give_up(producers, clock)
            return False
        for producer in producers:
            producer.ship()
        for producer in producers:
            producer.wait_through(max(0.0, deadline_ms - clock.monotonic_ms()))
    return True


def _at_rest(debtors: Debtors) -> bool:
    """Nothing is on its way anywhere. Looked at twice: a callback of one that was not looked at yet
    may have sent by one that was; then that is open, or it has left, the second time.
    """
    admitted = sum(producer.admitted for producer in debtors())
    idle = not any(producer.outstanding for _ in range(2) for producer in debtors())
    return idle and admitted == sum(producer.admitted for producer in debtors())


def _give_up(producers: Sequence[Debtor], clock: Clock) -> None:
    log.warning(
        "the program ends, and %d batches, messages or callbacks of its producers have not ended; "
        "offsets are not handed over, so that their messages come again",
        sum(producer.outstanding for producer in producers),
    )
    for producer in producers:
        producer.give_up("the program ended before the broker answered")
    deadline_ms = clock.monotonic_ms() + CALLBACKS_MS
    for producer in producers:
        producer.wait_through(max(0.0, deadline_ms - clock.monotonic_ms()))
