"""What a slave knows besides the log: the master's topics, groups, consumed offsets, delay offsets,
and how far its timer is (protocol-behaviour 22).

    21 topics, 201 groups           when their data version differs      written at once
    43 offsets, 45 delay offsets    every time                           written with the broker's periodic saves
    REPLICA_STATE, the timer        when it differs                      written at once

What was delivered or ended (delay offsets, the timer, offsets of half messages) is taken over when
this log has all that the master's had then: a slave that is promoted must not believe in a copy
that it does not have. Not fetched, and why: queue locks (leases of 60 s, lost with a master as in
RocketMQ), popped messages (the group's offsets are behind them: they are handed out again), filters
(consumers bring them with their heartbeats, to slaves too), ends of transactions (records of the
log). Decides that. Does not decide when (``replica``). Invariant: a table is replaced as a whole or
not at all.
"""

from __future__ import annotations

import asyncio
import logging

from rmq_ray.errors import ResponseError, RmqError
from rmq_ray.protocol.transaction import SYSTEM_GROUP
from rmq_ray.remoting.async_connection import AsyncConnection
from rmq_ray.remoting.wire import bodies, bodies_admin
from rmq_ray.remoting.wire.codes import RequestCode
from rmq_ray.remoting.wire.frame import Command
from rmq_ray.remoting.wire.replicas import unpack_state
from rmq_ray.server.core.broker_core import BrokerCore
from rmq_ray.store.tables.config_files import TimerProgress

log = logging.getLogger("rmq_ray.server.replication.replication")
TIMEOUT_MS = 3_000
REACHED_PAUSE_S, REACHED_TRIES = 0.02, 150


class ReplicaTables:
    """Of one slave, whose ``core`` holds the tables."""

    def __init__(self, core: BrokerCore) -> None:
        self._core = core
        self.synced = 0
        """How often everything was fetched."""

    async def sync(self, connection: AsyncConnection) -> None:
        """Fetch everything once. Raises ``RemotingError``; what came before stays."""
        core = self._core
        if not core.tables.loaded:
            return
        self._take_topics(await self._ask(connection, RequestCode.GET_ALL_TOPIC_CONFIG))
        self._take_groups(await self._ask(connection, RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG))
        offsets = await self._ask(connection, RequestCode.GET_ALL_CONSUMER_OFFSET)
        delays = bodies_admin.decode_delay_offsets(
            (await self._ask(connection, RequestCode.GET_ALL_DELAY_OFFSET)).body_bytes()
        )
        timer, end, _ = unpack_state((await self._ask(connection, RequestCode.REPLICA_STATE)).body)
        reached = await self._reached(end)
        self._take_offsets(offsets, reached)
        if reached:
            core.delays.load(delays)
            core.timed.follow(TimerProgress(*timer))
        self.synced += 1

    async def is_stale(self, connection: AsyncConnection) -> bool:
        """Whether the master has other topics or groups than were fetched last. Raises
        ``RemotingError``.
        """
        told = unpack_state((await self._ask(connection, RequestCode.REPLICA_STATE)).body)[2]
        return bool(told) and told != self._core.tables.versions()

    async def _reached(self, end: int) -> bool:
        """Wait for the log's bytes below ``end``; False when they are not there after a while."""
        for _ in range(REACHED_TRIES):
            store = self._core.keeper.store
            if store is not None and store.end_offset >= end:
                return True
            await asyncio.sleep(REACHED_PAUSE_S)
        return False

    async def _ask(self, connection: AsyncConnection, code: RequestCode) -> Command:
        answer = await connection.request(Command(code), TIMEOUT_MS)
        if answer.code != 0:
            raise ResponseError(f"{code.name} was refused: {answer.remark}", answer.code)
        return answer

    def _take_topics(self, answer: Command) -> None:
        tables = self._core.tables
        topics, version = bodies.decode_topic_configs(answer.body_bytes())
        if version == tables.topics.version:
            return
        gone = set(tables.topics.names()) - set(topics)
        tables.topics.load(topics, version)
        tables.save_topics()
        tables.on_topics()
        store = self._core.keeper.store
        for topic in gone if store is not None else ():
            try:
                store.delete_topic(topic)  # type: ignore[union-attr]
            except RmqError as error:
                log.warning("queues of %s, which the master deleted, stay: %s", topic, error)

    def _take_groups(self, answer: Command) -> None:
        groups, version = bodies_admin.decode_group_configs(answer.body_bytes())
        if version != self._core.tables.groups.version:
            self._core.tables.groups.load(groups, version)
            self._core.tables.save_groups()

    def _take_offsets(self, answer: Command, reached: bool) -> None:
        offsets = self._core.tables.offsets
        found = {}
        for key, queues in bodies_admin.decode_offset_table(answer.body_bytes()).items():
            topic, _, group = key.partition("@")
            found[topic, group] = queues
        if not reached:
            found = {key: queues for key, queues in found.items() if key[1] != SYSTEM_GROUP}
            found |= {
                key: queues for key, queues in offsets.tables().items() if key[1] == SYSTEM_GROUP
            }
        if found != offsets.tables():
            offsets.load(found)
            offsets.dirty = True
