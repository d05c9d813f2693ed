"""Which queue a message goes to, and what is learnt from how sends end (protocol-behaviour 7.1 to
7.3).

    RoundRobin    counters, one per topic
    QueueChoice   latency_fault=False   rotation; a repeat leaves the broker that failed
                  latency_fault=True    rotation over brokers that are not kept away from, judged by
                                        ``LatencyFaults``
    GroupOrder    the queue of a message group: its messages stay in order while routes change
    BrokerProbe   every 3 s asks each isolated broker, for 200 ms; one that answers may be chosen

Decides which ends of a send speak against its broker: a connection that failed, no answer, and
refusals that another broker may not share. A message that no broker would take says nothing about
this one. Does not decide who is isolated (``LatencyFaults``), nor the order within a queue
(``client.sending.per_queue_order``). All of it is of one producer, and thread-safe.

Invariants: with ``latency_fault`` off an end costs nothing and nothing is remembered; at most
``GROUPS_MAX`` groups are remembered, and those only while something of them, or of an older one, is
under way: one that is forgotten follows its hash.
"""

from __future__ import annotations

import itertools
import logging
import os
import threading
from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import Protocol

from rmq_ray.clock import Clock
from rmq_ray.errors import FrameTooLarge, HandshakeFailed, RemotingError, TooManyRequests
from rmq_ray.model.ids import Address, MessageQueue
from rmq_ray.model.topics import DEFAULT_TOPIC
from rmq_ray.protocol.retry import RETRIED_CODES
from rmq_ray.protocol.routing.queue_selection import (
    LatencyFaults,
    NextIndex,
    select_by_group,
    select_queue,
)
from rmq_ray.remoting.wire.codes import RequestCode
from rmq_ray.remoting.wire.frame import Command

PROBE_EVERY_MS = 3_000
PROBE_TIMEOUT_MS = 200.0
GROUPS_MAX = 10_000

log = logging.getLogger("rmq_ray.client")

Outcome = Command | RemotingError
OURS = (TooManyRequests, FrameTooLarge, HandshakeFailed)
"""Ends that this side caused."""


class RoundRobin:
    """Counters, one per topic, each from a random start (protocol-behaviour 7.1). Thread-safe:
    ``count`` steps atomically.
    """

    def __init__(self) -> None:
        self._counters: dict[str, NextIndex] = {}

    def of(self, topic: str) -> NextIndex:
        """The topic's counter."""
        found = self._counters.get(topic)
        if found is None:
            found = self._counters.setdefault(
                topic, itertools.count(int.from_bytes(os.urandom(4))).__next__
            )
        return found

    def topics(self) -> list[str]:
        """Topics that were sent to."""
        return list(self._counters)


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


class Sent(Protocol):
    """Something that ends: a future."""

    def done(self) -> bool:
        """True when it has ended."""
        ...


class GroupOrder:
    """A group's queue follows from the hash of its name, so that all producers agree. When the
    topic gets or loses queues the hash leads elsewhere: the group moves only once everything this
    producer sent for it has ended, else a later message could be stored before an earlier one
    (seed S3-071 to S3-074).
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._last: OrderedDict[tuple[str, str], tuple[MessageQueue, Sent]] = OrderedDict()

    def choose(self, topic: str, group: str, queues: Sequence[MessageQueue]) -> MessageQueue:
        """The queue for the group's next message."""
        wanted = select_by_group(queues, group)
        known = self._last.get((topic, group))
        if known is not None and known[0] != wanted and not known[1].done():
            return known[0]
        return wanted

    def sent(self, group: str, queue: MessageQueue, sent: Sent) -> None:
        """A message of the group is on its way to ``queue``; what went before it there ends before
        it.
        """
        key = (queue.topic, group)
        with self._lock:
            self._last[key] = (queue, sent)
            self._last.move_to_end(key)
            if len(self._last) > GROUPS_MAX:
                self._last.popitem(last=False)
            self._forget_ended()

    def _forget_ended(self) -> None:
        """Under the lock: the oldest that have ended say nothing any more. Two a call: more than
        come in.
        """
        for _ in range(2):
            oldest = next(iter(self._last))
            if len(self._last) == 1 or not self._last[oldest][1].done():
                return
            del self._last[oldest]

    def __len__(self) -> int:
        return len(self._last)


class BrokerProbe:
    """Asks isolated brokers whether they are there again, so that isolation ends with its cause and
    not after ten minutes: one daemon thread while there is somebody to ask; a broker that does not
    even refuse a connection delays the others by one connect time-out. ``address(name)``: a
    broker's master, None when no route tells it. ``ask``: ``ClientInstance.invoke``.
    """

    def __init__(
        self,
        name: str,
        clock: Clock,
        faults: LatencyFaults,
        address: Callable[[str], Address | None],
        ask: Callable[[Address, Command, float], Command],
    ) -> None:
        self._name = name
        self._clock = clock
        self._faults = faults
        self._address = address
        self._ask = ask
        self._lock = threading.Lock()
        self._running = False
        self._stop = threading.Event()

    def begin(self, _broker_name: str = "") -> None:
        """A broker is isolated: see to it. Any thread; returns at once."""
        with self._lock:
            if self._running or self._stop.is_set():
                return
            self._running = True
        threading.Thread(target=self._run, name=f"rmq-probe-{self._name}", daemon=True).start()

    def stop(self) -> None:
        """No probe begins after this."""
        self._stop.set()

    def probe_all(self) -> bool:
        """Ask every isolated broker once; False when there was none."""
        names = self._faults.isolated(self._clock.monotonic_ms())
        for name in names:
            if not self._stop.is_set():
                self._probe(name)
        return bool(names)

    def _probe(self, name: str) -> None:
        address = self._address(name)
        if address is None:
            return
        began = self._clock.monotonic_ms()
        question = Command(
            RequestCode.GET_MAX_OFFSET, fields={"topic": DEFAULT_TOPIC, "queueId": "0"}
        )
        try:
            self._ask(address, question, PROBE_TIMEOUT_MS)
        except RemotingError as error:
            log.debug("isolated broker %s is still away: %s", name, error)
            return
        now = self._clock.monotonic_ms()
        self._faults.reached(name, now - began, now)
        log.info("isolated broker %s answers again", name)

    def _run(self) -> None:
        while not self._stop.wait(PROBE_EVERY_MS / 1000):
            if self.probe_all():
                continue
            with self._lock:
                if not self._faults.isolated(self._clock.monotonic_ms()):
                    self._running = False
                    return


def _speaks_against_broker(outcome: Outcome) -> bool:
    if isinstance(outcome, Command):
        return outcome.code in RETRIED_CODES
    return not isinstance(outcome, OURS)
