"""Which queues of a topic belong to which consumer of a group (protocol-behaviour 14).

Every consumer computes the whole division by itself from the same two sorted lists and takes its own share; there is no
coordinator. Callers: ``protocol.rebalance``. Does not decide when it happens, nor what becomes of queues that move.

Invariants of every strategy here: each queue goes to exactly one of the consumers listed; the result depends on its arguments
only. A further strategy is an object with ``name`` and ``allocate``, added with ``register``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from rmq_ray.errors import ClientError, ConfigError
from rmq_ray.model.ids import MessageQueue


class AllocationStrategy(Protocol):
    """RocketMQ's ``AllocateMessageQueueStrategy``."""

    @property
    def name(self) -> str:
        """RocketMQ's name of it, e.g. ``AVG``."""
        ...

    def allocate(self, group: str, client_id: str, queues: Sequence[MessageQueue], client_ids: Sequence[str]) -> list[MessageQueue]:
        """The queues of ``client_id``. Both lists are sorted. Empty when it is not among ``client_ids``.

        ``ClientError`` when ``client_id``, ``queues`` or ``client_ids`` is empty.
        """
        ...


def index_of(client_id: str, queues: Sequence[MessageQueue], client_ids: Sequence[str]) -> int | None:
    """Checks that all strategies share; the consumer's index, None when it is not listed (its heartbeat has not arrived yet)."""
    if not client_id:
        raise ClientError("allocation needs the consumer's own client id; it is empty", client_id)
    if not queues:
        raise ClientError("allocation needs at least one queue; the topic has none", client_id)
    if not client_ids:
        raise ClientError("allocation needs at least one consumer id; the group has none", client_id)
    return client_ids.index(client_id) if client_id in client_ids else None


@dataclass(frozen=True, slots=True)
class Averagely:
    """Neighbouring queues in equal shares; the first ``n mod k`` consumers get one more.

    >>> queues = [MessageQueue("t", "a", i) for i in range(8)]
    >>> [[q.queue_id for q in Averagely().allocate("g", c, queues, ["c1", "c2", "c3"])] for c in ("c1", "c2", "c3")]
    [[0, 1, 2], [3, 4, 5], [6, 7]]
    """

    name: str = "AVG"

    def allocate(self, group: str, client_id: str, queues: Sequence[MessageQueue], client_ids: Sequence[str]) -> list[MessageQueue]:
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
    """Queues dealt out in turn: better than AVG when one broker holds clearly more messages than the others.

    >>> queues = [MessageQueue("t", "a", i) for i in range(8)]
    >>> [q.queue_id for q in AveragelyByCircle().allocate("g", "c2", queues, ["c1", "c2", "c3"])]
    [1, 4, 7]
    """

    name: str = "AVG_BY_CIRCLE"

    def allocate(self, group: str, client_id: str, queues: Sequence[MessageQueue], client_ids: Sequence[str]) -> list[MessageQueue]:
        """See the protocol."""
        index = index_of(client_id, queues, client_ids)
        return [] if index is None else list(queues[index :: len(client_ids)])


@dataclass(frozen=True, slots=True)
class OnlyHosts:
    """Another strategy among the consumers of some hosts only; consumers elsewhere get nothing (a client id begins with its host).

    The consumer list is filtered before the division, so that every queue still has an owner. While no consumer of these
    hosts lives, nobody owns the queues.
    """

    inner: AllocationStrategy
    hosts: frozenset[str]

    @property
    def name(self) -> str:
        """The inner name with the restriction."""
        return f"{self.inner.name}-ONLY_HOSTS"

    def allocate(self, group: str, client_id: str, queues: Sequence[MessageQueue], client_ids: Sequence[str]) -> list[MessageQueue]:
        """See the protocol."""
        index_of(client_id, queues, client_ids)
        allowed = [other for other in client_ids if other.split("@", 1)[0] in self.hosts]
        return self.inner.allocate(group, client_id, queues, allowed) if client_id in allowed else []


_STRATEGIES: dict[str, AllocationStrategy] = {}


def register(strategy: AllocationStrategy) -> None:
    """Make a strategy known under its name (upper or lower case); the same name replaces."""
    _STRATEGIES[strategy.name.upper()] = strategy


def strategy_named(name: str) -> AllocationStrategy:
    """The registered strategy. ``ConfigError`` for an unknown name.

    >>> strategy_named("avg").name
    'AVG'
    """
    found = _STRATEGIES.get(name.upper())
    if found is None:
        raise ConfigError(f"unknown allocation strategy {name!r}; known are {', '.join(sorted(known.lower() for known in _STRATEGIES))}", name)
    return found


register(Averagely())
register(AveragelyByCircle())
