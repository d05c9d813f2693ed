"""Equal shares: RocketMQ's AVG, which is the default, and AVG_BY_CIRCLE (protocol-behaviour 14).

Invariants: each queue goes to exactly one of the consumers listed; shares differ by one queue at
most.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rmq_ray.model.ids import MessageQueue
from rmq_ray.protocol.allocation.rule import index_of


@dataclass(frozen=True, slots=True)
class Averagely:
    """Neighbouring queues in equal shares; the first ``n mod k`` consumers get one more.

    >>> queues = [MessageQueue("t", "a", i) for i in range(8)]
    >>> [[q.queue_id for q in Averagely().allocate("g", c, queues, ["c1", "c2", "c3"])] for c in ("c1", "c2", "c3")]
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
