"""A broker that takes no more messages: before it stops, or because somebody wants to take it away
(operations: a broker's life).

    open ─set─> draining: sends are refused with SERVICE_NOT_AVAILABLE, after which producers
      ^           │       ask another broker; name servers get every topic without its write
      └───set─────┘       permission; everything else is served, what it holds is delivered

Decides what name servers are told meanwhile and how long a stop waits for those who wait. Does not
decide who is refused (``TopicGate``). Called by the broker's core, its stop and the DRAIN_BROKER
request. Not kept over a restart: an upgraded broker takes messages again by itself.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace

import msgpack

from rmq_ray.clock import Clock
from rmq_ray.config import BrokerConfig
from rmq_ray.errors import MalformedFrame
from rmq_ray.model.topics import DataVersion, Permission, TopicConfig
from rmq_ray.ports import Peer
from rmq_ray.remoting.wire.codes import ResponseCode
from rmq_ray.remoting.wire.frame import Command
from rmq_ray.server.base.identity import Identity
from rmq_ray.server.base.responses import Refused
from rmq_ray.server.tables.topic_table import TopicTable

POLL_S = 0.005
_WRITE = int(Permission.WRITE)


class Drain:
    """Of one broker; loop only."""

    def __init__(self, identity: Identity, topics: TopicTable) -> None:
        self._identity = identity
        self._topics = topics

    def set(self, draining: bool) -> None:
        """Begin or end it; name servers are told at once. Nothing where it is so already."""
        if self._identity.draining != draining:
            self._identity.draining = draining
            self._topics.announce()

    def configure(self, config: BrokerConfig) -> None:
        """Settings were changed: name servers are told of another permission at once."""
        if self._identity.permission != config.permission:
            self._identity.permission = config.permission
            self._topics.announce()

    def snapshot(self) -> tuple[dict[str, TopicConfig], DataVersion]:
        """The topics as name servers are told them: with what the broker's own permission leaves
        (protocol-behaviour 5).
        """
        topics, version = self._topics.snapshot()
        allowed = (
            self._identity.permission & ~_WRITE
            if self._identity.draining
            else self._identity.permission
        )
        if allowed & Permission.READ_WRITE == Permission.READ_WRITE:
            return topics, version
        left = allowed | int(Permission.INHERIT | Permission.PRIORITY)
        return {
            name: replace(config, permission=config.permission & left)
            for name, config in topics.items()
        }, version

    def ordered(self, command: Command, peer: Peer) -> Command:
        """DRAIN_BROKER: msgpack [draining]; answer: {"draining", "was"}. Only for connections that
        proved the cluster's secret (``remoting.request_table``).
        """
        try:
            asked = msgpack.unpackb(command.body)
        except (ValueError, msgpack.UnpackException) as error:
            raise MalformedFrame(f"body of DRAIN_BROKER is no msgpack: {error}") from None
        if not isinstance(asked, list) or len(asked) != 1 or not isinstance(asked[0], bool):
            raise MalformedFrame("body of DRAIN_BROKER must be [true] or [false]")
        if self._identity.is_slave:
            raise Refused(
                f"broker {self._identity.name} at {self._identity.address} is a slave and "
                f"takes no sends; drain the master",
                ResponseCode.NO_PERMISSION,
            )
        was = self._identity.draining
        self.set(asked[0])
        return command.answer(body=msgpack.packb({"draining": asked[0], "was": was}))


async def wind_down(
    identity: Identity, waiting: Callable[[], int], clock: Clock, limit_ms: int
) -> None:
    """The first step of a stop: refuse sends from now on, wait for the ``waiting()`` ones
    (``limit_ms`` at most). Name servers hear of the stop itself, right behind it: a route that
    shows the broker without write permission would make sends fail that have no other broker and
    could wait for its next start.
    """
    identity.draining = True
    deadline = clock.monotonic_ms() + limit_ms
    while waiting() and clock.monotonic_ms() < deadline:
        await asyncio.sleep(POLL_S)
