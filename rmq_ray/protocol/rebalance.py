"""Rebalance: which queues a consumer keeps, drops and adds when the group or the topic changed
(protocol-behaviour 13).

Three steps per subscribed topic, each pure: ``allot`` (which queues are mine), ``plan`` (what
changes), ``is_balanced`` (did the change succeed). Where to begin in a new queue:
``first_offset_rule``. Does not ask brokers, persist offsets or start pulls:
``client.consumer.rebalancer`` does.

Invariants: a list that could not be had (no route, no consumer ids) changes nothing. Dropped queues
come before added ones. A queue in which pulls stopped is dropped and, being still allotted, added
anew.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from operator import attrgetter

from rmq_ray.errors import ClientError
from rmq_ray.guard import attempt
from rmq_ray.model.groups import ConsumeFromWhere, MessageModel
from rmq_ray.model.ids import MessageQueue
from rmq_ray.model.topics import RETRY_PREFIX
from rmq_ray.protocol.allocation.even import AllocationStrategy
from rmq_ray.protocol.process_queue import ProcessQueue

_ORDER = attrgetter("topic", "broker_name", "queue_id")  # as MessageQueue sorts, ten times as fast
NO_STORED_OFFSET = -1
"""The broker has no offset of this group: the start rule decides."""
OFFSET_UNKNOWN = -2
"""The broker could not be asked: the queue is not taken now, the next rebalance tries again."""
LONG_AGO_MS = 1 << 52
"""For how long a group has had a position that was found in a file: nobody knows since when."""


class AllotmentOutcome(Enum):
    """How ``allot`` ended. Only ``ALLOTTED`` changes anything."""

    ALLOTTED = "the share is known"
    NO_QUEUES = "no route to the topic"
    NO_CONSUMERS = "no broker told the group's consumers"
    STRATEGY_FAILED = "the allocation strategy raised"


@dataclass(frozen=True, slots=True)
class Allotment:
    """This consumer's share of a topic. ``error`` is what the strategy raised."""

    outcome: AllotmentOutcome
    queues: frozenset[MessageQueue] = frozenset()
    error: BaseException | None = None

    @property
    def settled(self) -> bool:
        """False when it is worth trying again soon."""
        return self.outcome is AllotmentOutcome.ALLOTTED


@dataclass(frozen=True, slots=True)
class Membership:
    """Who divides: the group, its model, this consumer's client id and the strategy."""

    group: str
    client_id: str
    model: MessageModel
    strategy: AllocationStrategy


@dataclass(frozen=True, slots=True)
class RebalancePlan:
    """What to do for one topic. ``expired`` are those of ``drop`` that are dropped because their
    pulls stopped.
    """

    keep: tuple[MessageQueue, ...] = ()
    drop: tuple[MessageQueue, ...] = ()
    add: tuple[MessageQueue, ...] = ()
    expired: tuple[MessageQueue, ...] = ()

    @property
    def changed(self) -> bool:
        """True when the subscription's version rises and the brokers are told at once."""
        return bool(self.drop or self.add)


def allot(
    member: Membership, queues: Collection[MessageQueue] | None, client_ids: Collection[str] | None
) -> Allotment:
    """The queues of one topic that belong to ``member``. None or empty = that list could not be
    had.

    Broadcasting: every queue. Clustering: both lists are sorted, so that all consumers see the
    same, and the strategy divides. One that raises or exits, or answers something else than queues
    of the topic, changes nothing.
    """
    if not queues:
        return Allotment(AllotmentOutcome.NO_QUEUES)
    if member.model is MessageModel.BROADCASTING:
        return Allotment(AllotmentOutcome.ALLOTTED, frozenset(queues))
    if not client_ids:
        return Allotment(AllotmentOutcome.NO_CONSUMERS)
    share, error = attempt(_share, member, sorted(queues, key=_ORDER), sorted(client_ids))
    if error is not None:
        return Allotment(AllotmentOutcome.STRATEGY_FAILED, error=error)
    return Allotment(AllotmentOutcome.ALLOTTED, share)


def plan(
    allotted: Collection[MessageQueue],
    held: Mapping[MessageQueue, ProcessQueue],
    now_ms: int,
    pull_idle_ms: int,
    passive: bool = True,
) -> RebalancePlan:
    """What changes for one topic. ``held``: the topic's queues that this consumer works on;
    ``passive``: a push consumer.

    Dropped: queues no longer allotted, and (push only) those without a pull for longer than
    ``pull_idle_ms``. A queue marked dropped that is still allotted is left alone: its offset is
    being corrected. All results are sorted.
    """
    wanted = frozenset(allotted)
    expired = {
        queue
        for queue, process in held.items()
        if queue in wanted and passive and process.pull_expired(now_ms, pull_idle_ms)
    }
    drop = {queue for queue in held if queue not in wanted} | expired
    keep = held.keys() - drop
    return RebalancePlan(_sorted(keep), _sorted(drop), _sorted(wanted - keep), _sorted(expired))


def foreign_queues(
    subscribed: Collection[str], held: Collection[MessageQueue]
) -> tuple[MessageQueue, ...]:
    """Held queues of topics that are no longer subscribed: dropped after all topics were gone
    through.
    """
    return _sorted(queue for queue in held if queue.topic not in subscribed)


def is_balanced(allotment: Allotment, working: Collection[MessageQueue]) -> bool:
    """True when the queues worked on are exactly the share; false = the next rebalance comes after
    1 s instead of 20 s.
    """
    return allotment.settled and allotment.queues == frozenset(working)


class StartRule(Enum):
    """Where to begin in a queue without a stored offset."""

    MINIMUM = "the queue's smallest offset"
    MAXIMUM = "the queue's end"
    TIMESTAMP = "the first message stored at or after the given time"


def first_offset_rule(start_from: ConsumeFromWhere, topic: str) -> StartRule:
    """The rule for a group that is new in a queue. A retry topic holds nothing but what the group
    has failed with: it is never skipped. RocketMQ skips it with TIMESTAMP.

    FIRST_OFFSET asks for the minimum: RocketMQ begins at 0 and is corrected 10 s later when the
    minimum is greater.
    """
    if start_from is ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET or topic.startswith(RETRY_PREFIX):
        return StartRule.MINIMUM
    timed = start_from is ConsumeFromWhere.CONSUME_FROM_TIMESTAMP
    return StartRule.TIMESTAMP if timed else StartRule.MAXIMUM


def divided_threshold(topic_threshold: int, queues: int, otherwise: int) -> int:
    """A queue's threshold from the topic's: divided by the queues held, at least 1; -1 = there is
    none, ``otherwise`` counts.

    >>> divided_threshold(1000, 3, 77), divided_threshold(2, 5, 77), divided_threshold(-1, 3, 77)
    (333, 1, 77)
    """
    return otherwise if topic_threshold == -1 or queues == 0 else max(1, topic_threshold // queues)


def _share(
    member: Membership, ordered: Sequence[MessageQueue], client_ids: Sequence[str]
) -> frozenset[MessageQueue]:
    """What the strategy gives. Raises what it raises."""
    strategy = member.strategy
    given = strategy.allocate(member.group, member.client_id, ordered, client_ids)
    share = frozenset(given)
    _check_share(share, ordered, strategy.name)
    return share


def _check_share(
    share: frozenset[MessageQueue], ordered: Sequence[MessageQueue], name: str
) -> None:
    """A strategy of a user's own may be wrong: ``ClientError`` for a queue that the topic does not
    have.
    """
    for queue in share:
        at = bisect_left(ordered, _ORDER(queue), key=_ORDER)
        if at == len(ordered) or ordered[at] != queue:
            raise ClientError(
                f"allocation strategy {name} gave {queue!s:.200}, which is none of the "
                f"topic's queues",
                name,
            )


def _sorted(queues: Iterable[MessageQueue]) -> tuple[MessageQueue, ...]:
    return tuple(sorted(queues, key=_ORDER))
