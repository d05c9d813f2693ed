"""Equal shares: RocketMQ's AVG, which is the default, and AVG_BY_CIRCLE (protocol-behaviour 14).

Invariants: each queue goes to exactly one of the consumers listed; shares differ by one queue at
most.

What every allocation strategy must offer, and the checks that they share (protocol-behaviour
14).

Every consumer computes the whole division by itself from the same two sorted lists and takes its
own share; there is no coordinator. Callers: ``protocol.rebalance``. Does not decide when it
happens, nor what becomes of queues that move.

Invariant of a strategy: the result depends on its arguments (and its own settings) only, so that
consumers with equal lists agree.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from rmq_ray.errors import ClientError
from rmq_ray.model.ids import MessageQueue


class AllocationStrategy(Protocol):
    """RocketMQ's ``AllocateMessageQueueStrategy``."""

    @property
    def name(self) -> str:
        """RocketMQ's name of it, e.g. ``AVG``."""
        ...

    def allocate(
        self, group: str, client_id: str, queues: Sequence[MessageQueue], client_ids: Sequence[str]
    ) -> list[MessageQueue]:
        """The queues of ``client_id``. Both lists are sorted. Empty when it is not among
        ``client_ids``.

        ``ClientError`` when ``client_id``, ``queues`` or ``client_ids`` is empty.
        """
        ...


def index_of(
    client_id: str, queues: Sequence[MessageQueue], client_ids: Sequence[str]
) -> int | None:
    """The checks; then the consumer's index, None when it is not listed (its heartbeat has not
    arrived yet).
    """
    if not client_id:
        raise ClientError("allocation needs the consumer's own client id; it is empty", client_id)
    if not queues:
        raise ClientError("allocation needs at least one queue; the topic has none", client_id)
    if not client_ids:
        raise ClientError(
            "allocation needs at least one consumer id; the group has none", client_id
        )
    return client_ids.index(client_id) if client_id in client_ids else None


def host_of(client_id: str) -> str:
    """The address that a client id begins with.

    >>> host_of("192.168.0.6@15956#77")
    '192.168.0.6'
    """
    return client_id.split("@", 1)[0]


@dataclass(frozen=True, slots=True)
class Averagely:
    """Neighbouring queues in equal shares; the first ``n mod k`` consumers get one more.

    >>> queues = [MessageQueue("t", "a", i) for i in range(8)]
    >>> ids = ["c1", "c2", "c3"]
    >>> [[q.queue_id for q in Averagely().allocate("g", c, queues, ids)] for c in ids]
    [[0, 1, 2], [3, 4, 5], [6, 7]]
    """

    name: str = "AVG"

    def allocate(
        self, group: str, client_id: str, queues: Sequence[MessageQueue], client_ids: Sequence[str]
    ) -> list[MessageQueue]:
        """See the protocol."""
        index = index_of(client_id, queues, client_ids)
        if index is None:
            return []
        share, extra = divmod(len(queues), len(client_ids))
        size = share + 1 if index < extra else share
        start = index * size if index < extra else index * size + extra
        return list(queues[start : start + size])


@dataclass(frozen=True, slots=True)
class AveragelyByCircle:
    """Queues dealt out in turn: better than AVG when one broker holds clearly more messages than
    the others.

    >>> queues = [MessageQueue("t", "a", i) for i in range(8)]
    >>> [q.queue_id for q in AveragelyByCircle().allocate("g", "c2", queues, ["c1", "c2", "c3"])]
    [1, 4, 7]
    """

    name: str = "AVG_BY_CIRCLE"

    def allocate(
        self, group: str, client_id: str, queues: Sequence[MessageQueue], client_ids: Sequence[str]
    ) -> list[MessageQueue]:
        """See the protocol."""
        index = index_of(client_id, queues, client_ids)
        return [] if index is None else list(queues[index :: len(client_ids)])
