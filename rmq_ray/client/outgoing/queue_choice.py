"""The choice of a queue for messages that may go anywhere, and what it learns from how sends end
(protocol-behaviour 7.1, 7.2).

    latency_fault=False   rotation; a repeat leaves the broker that failed
    latency_fault=True    rotation over brokers that are not kept away from, judged by ``protocol.routing.fault_latency``

Decides which ends of a send speak against its broker: a connection that failed, no answer, and
refusals that another broker may not share. A message that no broker would take says nothing about
this one. Called by everything that sends for one producer. Thread-safe.

Invariant: switched off, an end costs nothing and nothing is remembered.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from rmq_ray.clock import Clock
from rmq_ray.errors import FrameTooLarge, HandshakeFailed, RemotingError, TooManyRequests
from rmq_ray.model.ids import MessageQueue
from rmq_ray.protocol.retry import RETRIED_CODES
from rmq_ray.protocol.routing.fault_latency import LatencyFaults
from rmq_ray.protocol.routing.queue_selection import NextIndex, select_queue
from rmq_ray.remoting.wire.frame import Command

Outcome = Command | RemotingError
OURS = (TooManyRequests, FrameTooLarge, HandshakeFailed)
"""Ends that this side caused."""


class QueueChoice:
    """See the module. ``isolated(broker name)`` is called when a broker becomes isolated; must not
    block.
    """

    def __init__(
        self,
        clock: Clock,
        latency_fault: bool,
        isolated: Callable[[str], None] = lambda _name: None,
    ) -> None:
        self._clock = clock
        self._isolated = isolated
        self.faults = LatencyFaults() if latency_fault else None

    def next(
        self, queues: Sequence[MessageQueue], turn: NextIndex, last_broker: str | None = None
    ) -> MessageQueue:
        """The queue of the next attempt; ``last_broker``: where the one before failed."""
        if self.faults is None:
            return select_queue(queues, turn, last_broker)
        return self.faults.select(queues, turn, self._clock.monotonic_ms(), last_broker)

    def ended(self, broker_name: str, began_ms: float, outcome: Outcome) -> None:
        """An attempt to a broker ended. ``began_ms``: monotonic."""
        if self.faults is None:
            return
        now = self._clock.monotonic_ms()
        isolation = _speaks_against_broker(outcome)
        self.faults.update(broker_name, now - began_ms, isolation, now)
        if isolation:
            self._isolated(broker_name)

    def watching(
        self, broker_name: str, callback: Callable[[Outcome], None]
    ) -> Callable[[Outcome], None]:
        """``callback``, told about first; the attempt begins now."""
        if self.faults is None:
            return callback
        began = self._clock.monotonic_ms()

        def ended(outcome: Outcome) -> None:
            self.ended(broker_name, began, outcome)
            callback(outcome)

        return ended


def _speaks_against_broker(outcome: Outcome) -> bool:
    if isinstance(outcome, Command):
        return outcome.code in RETRIED_CODES
    return not isinstance(outcome, OURS)
