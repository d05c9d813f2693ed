"""A slave's side of replication: follows the master's log over a connection of our own, for as long
as the broker runs.

    find the master ─> FOLLOW_LOG ─> REPLICATE, REPLICATE, .. (``replica_stream``)
        ─> arrivals, positions
          ^                               │ lost, refused, other epoch
          └──────────── pause ────────────┘

Decides: whom to follow (configured, or as name servers tell), when to begin anew. Does not decide
which bytes are good (the store does), who is in sync (the master). Made by ``Broker``; everything
but the store's work runs in its loop.

Invariants: one session at a time; what changes the store is done by one thread, in the order in
which it was given to it.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from rmq_ray.clock import Clock
from rmq_ray.codec.config_files import TimerProgress
from rmq_ray.config import BrokerConfig
from rmq_ray.errors import (
    ConnectFailed,
    LogDiverged,
    RemotingError,
    ResponseError,
    RmqError,
    StoreCorrupt,
    StoreNotReady,
)
from rmq_ray.model.ids import Address
from rmq_ray.protocol.election.parting_point import parting_point
from rmq_ray.protocol.transaction import SYSTEM_GROUP
from rmq_ray.remoting.async_connection import AsyncConnection
from rmq_ray.remoting.handshake import Credentials
from rmq_ray.remoting.tls import of_member
from rmq_ray.remoting.wire import bodies, bodies_admin, body_json
from rmq_ray.remoting.wire.codes import RequestCode, ResponseCode
from rmq_ray.remoting.wire.frame import BINARY, Command
from rmq_ray.remoting.wire.headers import AllOffsetsAnswer, AllOffsetsHeader
from rmq_ray.remoting.wire.replicas import (
    BYTES_MAX,
    FollowLog,
    LogLineage,
    pack_follow,
    unpack_lineage,
    unpack_settings,
    unpack_state,
)
from rmq_ray.server.base.identity import Identity
from rmq_ray.server.base.offload import ThreadOffload
from rmq_ray.server.base.store_keeper import StoreKeeper
from rmq_ray.server.base.waits import wait_at_most
from rmq_ray.server.replication.leadership import Leadership
from rmq_ray.server.slave.replica_stream import (
    TIMEOUT_MS,
    Repair,
    ReplicaStream,
    StreamEvents,
    Threads,
    sound_answer,
)
from rmq_ray.server.tables.broker_tables import BrokerTables
from rmq_ray.server.tables.offset_table import Tables
from rmq_ray.store.replication.follower_store import FollowerStore, Lineage
from rmq_ray.store.replication.log_source import Tail
from rmq_ray.store.tables.topic_lives import decode_lives

log = logging.getLogger("rmq_ray.server.replication.replication")
PAUSE_MS, PAUSE_DIVERGED_MS, PAUSE_LED_MS = 250, 5_000, 100
MASTER_FENCED = int(ResponseCode.MASTER_FENCED)
STOP_WAIT_S = 60.0  # for what the thread does with the store: cutting a log takes a while
FRAME_BYTES_MAX = BYTES_MAX + (1 << 20)
FIRST_SYNC_MS = 1_000  # RocketMQ: 3 s
LOOK_MS = 1_000
REACHED_PAUSE_S, REACHED_TRIES = 0.02, 150


@dataclass(frozen=True, slots=True)
class FollowerParts:
    """What of a broker a slave feeds. ``arrived``: wakes pulls that are held here; ``confirmed(log
    offset, opened end)``: up to where the master's log is confirmed.
    """

    identity: Identity
    keeper: StoreKeeper
    tables: BrokerTables
    take_delays: Callable[[dict[int, int]], None]
    take_timer: Callable[[TimerProgress], None]
    arrived: Callable[[str, int, int, Sequence[int]], None]
    confirmed: Callable[[int, int], None]


class Replica:
    """Of one slave. ``look_up()``: have the name servers asked for the master soon. Under a
    controller (``leadership``) the master is the one of ``epoch`` at ``config.master``, and no
    other.
    """

    def __init__(
        self,
        config: BrokerConfig,
        parts: FollowerParts,
        credentials: Credentials | None,
        clock: Clock,
        look_up: Callable[[], None],
        on_fatal: Callable[[object], None],
        leadership: Leadership | None = None,
        epoch: int | None = None,
    ) -> None:
        self._leadership = leadership
        self._epoch = epoch
        self._config = config
        self._parts = parts
        self._credentials = credentials
        self._clock = clock
        self._look_up = look_up
        self._on_fatal = on_fatal
        self._limits = config.limits.but(frame_bytes_max=FRAME_BYTES_MAX)
        self._thread = ThreadOffload(f"{config.broker_name}-replica", on_fatal, 1)
        self._helper = ThreadOffload(f"{config.broker_name}-replica-helper", on_fatal, 1)
        self._repair = Repair(self._thread, self._polls, clock)
        self._tables = ReplicaTables(parts)
        self._task: asyncio.Task[None] | None = None
        self._master = config.master
        self._connected = False
        self._master_end = 0
        self._caught_up_ms: float | None = None
        self._sessions = self._removed_bytes = self._master_begin = 0
        self._fault: str | None = None
        self._strange = asyncio.Event()

    def start(self) -> None:
        """Begin; returns at once."""
        self._task = asyncio.get_running_loop().create_task(
            self._run(), name=f"replica of {self._config.broker_name}"
        )
        self._task.add_done_callback(self._ended)

    async def stop(self) -> None:
        """End; nothing touches the store after this. May be called again, also when it was
        cancelled in between.
        """
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        await asyncio.to_thread(self._thread.close, STOP_WAIT_S)
        await asyncio.to_thread(self._helper.close, STOP_WAIT_S)

    def master_at(self, address: str) -> None:
        """A name server says where the master is; a configured master stays."""
        if self._config.master is None and address != self._parts.identity.address:
            self._master = address

    def status(self) -> dict[str, Any]:
        """Plain values. ``lag_ms``: since this slave last had all of the master's log; None = it
        never had.
        """
        store = self._parts.keeper.store
        behind = max(0, self._master_end - (0 if store is None else store.end_offset))
        lag_ms: int | None = 0
        if behind or not self._connected:
            lag_ms = (
                None
                if self._caught_up_ms is None
                else int(self._clock.monotonic_ms() - self._caught_up_ms)
            )
        return {
            "master": self._master,
            "connected": self._connected,
            "lag_bytes": behind,
            "lag_ms": lag_ms,
            "sessions": self._sessions,
            "tables_synced": self._tables.synced,
            "fault": self._fault,
            "removed_bytes": self._removed_bytes,
            "mended": self._repair.mended,
        }

    # --- one session after the other --------------------------------------------------------------

    async def _run(self) -> None:
        while True:
            pause_ms = PAUSE_MS
            try:
                await self._session()
            except (LogDiverged, StoreCorrupt) as error:
                pause_ms = PAUSE_DIVERGED_MS
                self._failed(error, logging.ERROR)
            except RmqError as error:
                self._parts.keeper.check(error)
                self._failed(error, logging.INFO)
            await asyncio.sleep(
                (pause_ms if self._epoch is None else min(pause_ms, PAUSE_LED_MS)) / 1000
            )

    def _failed(self, error: RmqError, level: int) -> None:
        if str(error) != self._fault:
            log.log(
                level,
                "slave %d of %s does not follow now: %s",
                self._parts.identity.broker_id,
                self._config.broker_name,
                error,
            )
        self._fault = str(error)
        if isinstance(error, RemotingError) and self._config.master is None:
            self._look_up()

    async def _session(self) -> None:
        store = self._parts.keeper.store
        if not isinstance(store, FollowerStore):
            raise StoreNotReady("the slave still reads its disk")
        if self._master is None:
            raise ConnectFailed("no name server knows the master yet")
        connection = await AsyncConnection.open(
            Address.parse(self._master),
            self._credentials,
            self._limits,
            self._clock,
            tls=of_member(self._config.tls),
        )
        syncing: asyncio.Task[None] | None = None
        try:
            store.set_arrival_listener(
                lambda *arrived: self._thread.post(lambda: self._arrived(*arrived))
            )
            flush_counts = await self._follow(connection, store)
            self._sessions += 1
            self._connected, self._fault = True, None
            syncing = asyncio.get_running_loop().create_task(
                self._sync_tables(connection), name="tables of the master"
            )
            syncing.add_done_callback(self._ended)
            await self._repair.run(connection, store, self._master_begin)
            stream = ReplicaStream(
                self._parts.keeper,
                connection,
                store,
                Threads(self._thread, self._helper),
                self._config.replica_bytes,
                StreamEvents(
                    self._polls, self._parts.confirmed, lambda end: self._note(store, end)
                ),
                flush_counts,
            )
            await stream.run()
        finally:
            self._connected = False
            if syncing is not None:
                syncing.cancel()
                await asyncio.gather(
                    syncing, return_exceptions=True
                )  # the next session has tables of its own
            await connection.close()

    async def _follow(self, connection: AsyncConnection, store: FollowerStore) -> bool:
        tail, origin = await self._thread.run(lambda: (store.tail(), store.origin()))
        asked = FollowLog(
            self._parts.identity.broker_id,
            self._parts.identity.address,
            origin.log,
            tail.begin,
            tail.end,
            tail.crc,
        )
        try:
            return await self._join(connection, store, asked)
        except LogDiverged as error:
            diverged = error
        if MASTER_FENCED in diverged.args:
            raise diverged
        for shorter in await self._thread.run(lambda: store.shorter_tails(tail)):
            with contextlib.suppress(LogDiverged):
                return await self._join(connection, store, _showing(asked, shorter))
        if self._epoch is None:
            raise diverged
        await self._part(connection, store, asked, diverged)
        return await self._join(
            connection, store, _showing(asked, await self._thread.run(store.tail))
        )

    async def _part(
        self,
        connection: AsyncConnection,
        store: FollowerStore,
        asked: FollowLog,
        diverged: LogDiverged,
    ) -> None:
        """This log has what the elected master's has not: remove it, from the point on where their
        lineages part. ``diverged`` where that is not known.
        """
        found = await self._ask_lineage(
            connection, replace(asked, tail_begin=asked.tail_end, tail_crc=0)
        )
        point = (
            parting_point(store.epochs, store.end_offset, found.epochs)
            if found.log == asked.log
            else None
        )
        if point is None or not store.begin_offset <= point < store.end_offset:
            raise diverged
        self._removed_bytes += await self._thread.run(lambda: store.truncate(point))

    async def _ask_lineage(self, connection: AsyncConnection, asked: FollowLog) -> LogLineage:
        answer = await connection.request(
            Command(RequestCode.FOLLOW_LOG, body=pack_follow(asked), serialize=BINARY), TIMEOUT_MS
        )
        found = unpack_lineage(sound_answer(answer).body)
        newest = found.epochs[-1][0] if found.epochs else 0
        if self._epoch is not None and newest != self._epoch:
            raise RemotingError(
                f"the broker there writes epoch {newest}, the master to follow has {self._epoch}",
                self._master,
            )
        return found

    async def _join(
        self, connection: AsyncConnection, store: FollowerStore, asked: FollowLog
    ) -> bool:
        found = await self._ask_lineage(connection, asked)
        await self._thread.run(
            lambda: store.follow(Lineage(found.log, found.epochs, found.begin, found.segment_bytes))
        )
        self._master_begin = found.begin
        return found.flush_counts

    def _polls(self) -> None:
        if self._leadership is not None:
            self._leadership.promise()

    def _note(self, store: FollowerStore, end: int) -> None:
        self._master_end = end
        if (
            self._leadership is not None and not store.report.sound and store.end_offset >= end
        ):  # ``confirmed`` is 0 while a new master begins
            self._thread.submit(store.absolve, self._absolved)
        if store.end_offset >= end:
            self._caught_up_ms = self._clock.monotonic_ms()

    def _absolved(self, outcome: object) -> None:
        if isinstance(outcome, RmqError):
            log.error("the mark of an unsound log was not removed: %s", outcome)

    def _arrived(self, topic: str, queue_id: int, maximum: int, codes: Sequence[int]) -> None:
        """Messages became visible here: held pulls are woken; a topic that this slave does not know
        is a reason to fetch the tables.
        """
        if self._parts.tables.topics.adopt(topic, queue_id):
            self._strange.set()
        if self._config.long_polling:
            self._parts.arrived(topic, queue_id, maximum, codes)

    @property
    def _look_ms(self) -> int:
        """How often it is looked whether tables changed: who may be promoted tomorrow must know the
        topic that was made today.
        """
        return (
            self._config.replica_sync_ms
            if self._epoch is None
            else min(LOOK_MS, self._config.replica_sync_ms)
        )

    async def _sync_tables(self, connection: AsyncConnection) -> None:
        """Until the session ends. What fails is tried with the next turn."""
        passed_ms = self._config.replica_sync_ms  # a session begins with everything
        wait_ms = min(FIRST_SYNC_MS if self._epoch is None else 0, passed_ms)
        while True:
            await wait_at_most(self._strange, wait_ms / 1000)
            wait_ms, passed_ms = self._look_ms, passed_ms + wait_ms
            try:
                if (
                    self._strange.is_set()
                    or passed_ms >= self._config.replica_sync_ms
                    or not self._tables.complete
                    or await self._tables.is_stale(connection)
                ):
                    self._strange.clear()
                    await self._tables.sync(connection)
                    passed_ms = 0
                else:
                    await self._tables.sync_offsets(connection)
            except RmqError as error:
                log.warning(
                    "tables of the master of %s were not fetched: %s",
                    self._config.broker_name,
                    error,
                )

    def _ended(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and (error := task.exception()) is not None:
            self._on_fatal(error)


class ReplicaTables:
    """What a slave knows besides the log: the master's topics, groups, consumed offsets, delay
    offsets, and how far its timer is (protocol-behaviour 22).

        21 topics, 201 groups,          when their data version differs   written at once
        20070 changed settings
        43 offsets                      every time; between, what changed with the periodic saves
        45 delay offsets                every time                        with the periodic saves
        REPLICA_STATE, the timer        when it differs                   written at once

    What was delivered or ended (delay offsets, the timer, offsets of half messages) is taken over
    when this log has all that the master's had then: a slave that is promoted must not believe in a
    copy that it does not have. Not fetched, and why: queue locks (leases of 60 s, lost with a
    master as in RocketMQ), popped messages (the group's offsets are behind them: they are handed
    out again), filters (consumers bring them with their heartbeats, to slaves too), ends of
    transactions (records of the log). A topic whose messages come before its settings is known at
    once, with the queues that were seen: the master may die before it tells more. Invariant: a
    table is replaced as a whole or not at all, but for the offsets that changed.
    """

    def __init__(self, parts: FollowerParts) -> None:
        self._parts = parts
        self._change: int | None = None
        self.synced = 0
        """How often everything was fetched."""

    @property
    def complete(self) -> bool:
        """Whether everything has been fetched, so that what changes since is enough."""
        return self._change is not None

    async def sync(self, connection: AsyncConnection) -> None:
        """Fetch everything once. Raises ``RemotingError``; what came before stays."""
        parts = self._parts
        self._change = None  # it was another master's, perhaps
        if not parts.tables.loaded:
            return
        self._take_topics(await self._ask(connection, RequestCode.GET_ALL_TOPIC_CONFIG))
        self._take_groups(await self._ask(connection, RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG))
        self._take_settings(await self._ask(connection, RequestCode.BROKER_SETTINGS))
        offsets = await self._ask(connection, RequestCode.GET_ALL_CONSUMER_OFFSET)
        delays = bodies_admin.decode_delay_offsets(
            (await self._ask(connection, RequestCode.GET_ALL_DELAY_OFFSET)).body_bytes()
        )
        timer, end, _ = unpack_state((await self._ask(connection, RequestCode.REPLICA_STATE)).body)
        found = _offsets_in(offsets)
        self._take_offsets(found)
        reached = await self._reached(end)
        self._change = AllOffsetsAnswer.from_fields(offsets.fields).change
        if reached:
            self._take_offsets(found, halves=True)
            parts.take_delays(delays)
            parts.take_timer(TimerProgress(*timer))
        self.synced += 1

    async def sync_offsets(self, connection: AsyncConnection) -> None:
        """Fetch the offsets of groups that changed since the last time: who is promoted hands out
        again what was committed behind them. Raises ``RemotingError``.
        """
        asked = AllOffsetsHeader(self._change)
        answer = await self._ask(connection, RequestCode.GET_ALL_CONSUMER_OFFSET, asked.to_fields())
        told, found = AllOffsetsAnswer.from_fields(answer.fields), _offsets_in(answer)
        if told.since is None:
            self._take_offsets(found)
        else:
            self._parts.tables.offsets.merge(_picked(found, halves=False))
        self._change = told.change

    async def is_stale(self, connection: AsyncConnection) -> bool:
        """Whether the master has other topics or groups than were fetched last. Raises
        ``RemotingError``.
        """
        told = unpack_state((await self._ask(connection, RequestCode.REPLICA_STATE)).body)[2]
        return bool(told) and told != self._parts.tables.versions()

    async def _reached(self, end: int) -> bool:
        """Wait for the log's bytes below ``end``; False when they are not there after a while."""
        for _ in range(REACHED_TRIES):
            store = self._parts.keeper.store
            if store is not None and store.end_offset >= end:
                return True
            await asyncio.sleep(REACHED_PAUSE_S)
        return False

    async def _ask(
        self, connection: AsyncConnection, code: RequestCode, fields: dict[str, str] | None = None
    ) -> Command:
        answer = await connection.request(Command(code, fields=fields or {}), TIMEOUT_MS)
        if answer.code != 0:
            raise ResponseError(f"{code.name} was refused: {answer.remark}", answer.code)
        return answer

    def _take_topics(self, answer: Command) -> None:
        tables = self._parts.tables
        topics, version = bodies.decode_topic_configs(answer.body_bytes())
        lives = decode_lives(body_json.parse(answer.body_bytes()))
        before = tables.lives.snapshot()
        if version == tables.topics.version and lives == before and not tables.topics.has_adopted():
            return
        gone = set(tables.topics.names()) - set(topics)
        gone |= {topic for topic, life in lives.items() if before.get(topic) != life}
        tables.topics.load(topics, version)
        store = self._parts.keeper.store
        if isinstance(store, FollowerStore):
            store.take_lives(lives)
        tables.save_topics(partial(self._parts.keeper.free_topics, gone))
        tables.on_topics()

    def _take_groups(self, answer: Command) -> None:
        groups, version = bodies_admin.decode_group_configs(answer.body_bytes())
        if version != self._parts.tables.groups.version:
            self._parts.tables.groups.load(groups, version)
            self._parts.tables.save_groups()

    def _take_settings(self, answer: Command) -> None:
        self._parts.tables.settings.replace(*unpack_settings(answer.body_bytes()))

    def _take_offsets(self, found: Tables, *, halves: bool = False) -> None:
        """``halves``: how far half messages are decided, too."""
        offsets = self._parts.tables.offsets
        if not halves:
            found = _picked(found, halves=False) | _picked(offsets.tables(), halves=True)
        if found != offsets.tables():
            offsets.load(found)
            offsets.dirty = True


def _picked(tables: Tables, *, halves: bool) -> Tables:
    return {key: queues for key, queues in tables.items() if (key[1] == SYSTEM_GROUP) is halves}


def _offsets_in(answer: Command) -> Tables:
    found = {}
    for key, queues in bodies_admin.decode_offset_table(answer.body_bytes()).items():
        topic, _, group = key.partition("@")
        found[topic, group] = queues
    return found


def _showing(asked: FollowLog, tail: Tail) -> FollowLog:
    return replace(asked, tail_begin=tail.begin, tail_end=tail.end, tail_crc=tail.crc)
