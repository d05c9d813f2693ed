"""What producers and consumers must offer so that a client instance can run them; the states all of
them share.

Decides nothing. ``ClientInstance`` calls these methods from its timer thread and from connections'
reader threads; the docstrings say which may block.
"""

from __future__ import annotations

from collections.abc import Collection
from enum import Enum
from typing import Protocol

from rmq_ray.client.instance.settling import Debtor, HandOver
from rmq_ray.model.groups import ConsumerData
from rmq_ray.model.ids import Address
from rmq_ray.remoting.wire.frame import Command


class ServiceState(Enum):
    """Life of a client instance, producer or consumer (protocol-behaviour 27)."""

    CREATE_JUST = "created"
    START_FAILED = "starting, or its start failed"
    RUNNING = "running"
    SHUTDOWN_ALREADY = "closed"
    INHERITED = "inherited through a fork: it belongs to the parent process"


class ManagedProducer(Debtor, Protocol):
    """A producer, as its client instance sees it."""

    @property
    def group(self) -> str:
        """The producer group, unique in the instance."""
        ...

    @property
    def has_checker(self) -> bool:
        """Whether it can say what became of a transaction; brokers are told."""
        ...

    def published_topics(self) -> Collection[str]:
        """Topics whose routes are refreshed every 30 s. Called from the timer thread."""
        ...

    def handle_request(self, command: Command, address: Address) -> Command | None:
        """A request of the broker at ``address`` to producers (39 check transaction, 326 reply).

        Every producer of the instance is asked until one returns an answer. Called from a reader
        thread: must be quick. ``command.body`` must be copied before returning.
        """
        ...


class ManagedConsumer(Protocol):
    """A consumer of any kind, as its client instance sees it."""

    @property
    def group(self) -> str:
        """The consumer group, unique in the instance."""
        ...

    def consumer_data(self) -> ConsumerData:
        """What the heartbeat says of this consumer. Called from the timer thread and by
        ``heartbeat()``'s callers.
        """
        ...

    def subscribed_topics(self) -> Collection[str]:
        """Topics whose routes are refreshed every 30 s, the retry topic included."""
        ...

    def route_changed(self, topic: str) -> None:
        """The cache has a new route of ``topic`` (one of ``subscribed_topics``). Must not block."""
        ...

    def rebalance_now(self) -> None:
        """A broker said that the group's members changed (40). Called from a reader thread: set a
        flag, return.
        """
        ...

    def persist_offsets(self) -> None:
        """Every 5 s, from the timer thread: hand offsets to the brokers (one-way) or to the local
        file.
        """
        ...

    def halt(self) -> HandOver:
        """The program is over: pull and hand out nothing more, and keep the offsets as they are
        now. Must not block.
        """
        ...

    def handle_request(self, command: Command, address: Address) -> Command | None:
        """A request of the broker at ``address`` for this group (220, 221, 307, 309), found by its
        header's group.

        None when it is one-way (220). Called from a reader thread: must be quick. ``command.body``
        must be copied before returning.
        """
        ...
