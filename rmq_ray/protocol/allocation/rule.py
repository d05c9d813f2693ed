"""What every allocation strategy must offer, and the checks that they share (protocol-behaviour
14).

Every consumer computes the whole division by itself from the same two sorted lists and takes its
own share; there is no coordinator. Callers: ``protocol.rebalance``. Does not decide when it
happens, nor what becomes of queues that move.

Invariant of a strategy: the result depends on its arguments (and its own settings) only, so that
consumers with equal lists agree.
"""

from __future__ import annotations

from collections.abc import Sequence
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
