"""A broker without sockets and threads of its own: which parts it has, how they are wired, what
happens when its store serves or is lost, and when time passes.

Decides: what each part is handed, how often periodic work runs. Does not decide which requests are
served and how errors become answers (``dispatch``), or anything about messages: handlers, rules and
the store do. ``Broker`` gives it a port and a loop; tests drive it directly.

Invariants: one loop calls everything here; in a thread run only ``_make_store``, ``_read_tables``,
``_remove_handed_out`` and the work that ``close`` returns. ``handle`` never blocks on a disk's sync
and never raises an ``RmqError``.
"""

from __future__ import annotations

import contextlib
import logging
import os
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from rmq_ray.config import BrokerConfig, FlushMode, ReplicationMode
from rmq_ray.errors import BrokerBusy, RmqError, StoreFailed
from rmq_ray.ports import Peer
from rmq_ray.protocol.delay import DelayLevels
from rmq_ray.remoting.request_table import Party, bind
from rmq_ray.remoting.wire.codes import RequestCode
from rmq_ray.server.admin.access_handlers import AccessHandlers
from rmq_ray.server.admin.admin_handlers import AdminHandlers
from rmq_ray.server.admin.browse import BrowseHandlers
from rmq_ray.server.admin.clients import Clients
from rmq_ray.server.admin.overview import OverviewHandlers
from rmq_ray.server.admin.query_handlers import QueryHandlers
from rmq_ray.server.admin.settings_handlers import SettingsHandlers
from rmq_ray.server.admin.statistics_handlers import StatisticsHandlers
from rmq_ray.server.admin.timers import Timers
from rmq_ray.server.admin.topic_handlers import TopicHandlers
from rmq_ray.server.base.runtime import BrokerRuntime
from rmq_ray.server.base.statistics import Statistics
from rmq_ray.server.base.store_keeper import StoreKeeper, StoreOwner
from rmq_ray.server.base.timers import BrokerTimers
from rmq_ray.server.core.broker_metrics import BrokerMetrics
from rmq_ray.server.core.dispatch import Dispatch
from rmq_ray.server.core.drain import Drain
from rmq_ray.server.core.upkeep import CLEAN_MS, Upkeep
from rmq_ray.server.delay.delay_service import DelayService
from rmq_ray.server.delay.recall_handler import RecallHandler
from rmq_ray.server.delay.timer_service import TimerService
from rmq_ray.server.groups.group_handlers import GroupHandlers
from rmq_ray.server.groups.group_operations import GroupOperations
from rmq_ray.server.groups.lock_handlers import LockHandlers
from rmq_ray.server.groups.membership import GroupMembership
from rmq_ray.server.groups.offset_handlers import OffsetHandlers
from rmq_ray.server.pop.pop_service import PopService
from rmq_ray.server.pull.pull_handlers import PullHandlers
from rmq_ray.server.replication.leadership import Leadership
from rmq_ray.server.replication.leadership_gate import ConfirmedGate, LeadershipGate
from rmq_ray.server.replication.replication import Replication
from rmq_ray.server.security.access_copy import AccessCopy
from rmq_ray.server.security.broker_security import BrokerSecurity
from rmq_ray.server.send.bundle_handler import BundleHandler
from rmq_ray.server.send.message_writer import MessageWriter
from rmq_ray.server.send.own_writes import OwnWrites
from rmq_ray.server.send.plain_sends import PlainSends
from rmq_ray.server.send.records_handlers import RecordsHandlers
from rmq_ray.server.send.reply_handlers import ReplyHandlers
from rmq_ray.server.send.send_back import SendBackHandler
from rmq_ray.server.send.send_handlers import SendHandlers
from rmq_ray.server.send.send_hooks import hooked
from rmq_ray.server.send.send_path import Acknowledgements, SendPath
from rmq_ray.server.send.writers import Writers
from rmq_ray.server.slave.replica import FollowerParts
from rmq_ray.server.tables.broker_settings import BrokerSettings
from rmq_ray.server.tables.broker_tables import FIRST_POSITIONS_MS, BrokerTables, LoadedTables
from rmq_ray.server.tables.storage import BrokerStorage
from rmq_ray.server.tables.waiting_counts import WaitingMessages
from rmq_ray.server.transaction.halves_handlers import HalvesHandlers
from rmq_ray.server.transaction.transaction_asker import TransactionAsker
from rmq_ray.server.transaction.transaction_handlers import TransactionHandlers
from rmq_ray.server.transaction.transaction_service import Transactions
from rmq_ray.store.front.message_store import MessageStore
from rmq_ray.store.queue.dispatcher import DispatchRules
from rmq_ray.store.replication.follower_store import FollowerStore

log = logging.getLogger("rmq_ray.server")
TICK_MS = 50
FALL_BEHIND_TOLD = 20
FIRST_PERSIST_MS = FILTER_PERSIST_MS = 10_000


class BrokerCore:
    """The rooms of a broker, in the order of ``base.runtime``, and what happens in them.

    ``leadership``, ``epoch``: under a controller, and of which epoch it is master (None = a
    follower).
    """

    def __init__(
        self,
        runtime: BrokerRuntime,
        *,
        security: BrokerSecurity | None = None,
        leadership: Leadership | None = None,
        epoch: int | None = None,
    ) -> None:
        self.settings = BrokerSettings(runtime)
        self.config = config = self.settings.config
        self._runtime = runtime = replace(runtime, config=config)
        self.identity, self.clock, self.offload = runtime.identity, runtime.clock, runtime.offload
        self.identity.permission = config.permission
        self.counters = runtime.counters
        self.statistics = Statistics(runtime.counters, runtime.identity.cluster)
        self.statistics.sample(runtime.clock.now_ms())

        self.tables = tables = BrokerTables(runtime, self.settings)
        self.keeper = StoreKeeper(runtime.offload, reopens=leadership is None or epoch is None)
        self._storage = storage = BrokerStorage(self.keeper, tables)
        security = security or BrokerSecurity()
        self.dispatch = Dispatch(runtime, storage, security)
        self.handle = self.dispatch.handle
        """Serve one request, see ``Dispatch.handle``."""
        self.upkeep = Upkeep(runtime, storage)
        self.drain = Drain(runtime.identity, tables.topics)
        self.members = GroupMembership(runtime.identity.name, runtime.clock, config.queue_lock_ms)
        self.acks = Acknowledgements(answer_wait_ms(config), config.in_flight_bytes_max)

        writers = self._make_writers()
        timers = self._make_timers(writers)
        self.replication = Replication(
            runtime,
            storage,
            self.dispatch,
            settle=self._durable,
            timer=lambda: self.timed.saved,
            leadership=leadership,
            epoch=epoch,
        )
        self.gate = (
            LeadershipGate(runtime, self.replication, leadership, epoch)
            if leadership is not None
            else None
        )
        clients = self._make_clients(writers)
        self.metrics = BrokerMetrics(runtime, storage, timers, clients)
        self._serve_requests(writers, timers, clients, security)

        self._found: LoadedTables | None = None
        self._more_delays = self._more_checks = False
        self._replica_status: Callable[[], dict[str, Any]] | None = None
        self._started: list[Callable[[RmqError | None], None]] = []
        self._periodic = BrokerTimers(runtime.clock.monotonic_ms())
        self._set_timers()

    def _make_writers(self) -> Writers:
        self.levels = levels = DelayLevels.parse(self.config.delay_levels)
        self.writer = MessageWriter(self._runtime, self.keeper, levels)
        return Writers(levels, self.writer, OwnWrites(self._storage, self.counters))

    def _make_timers(self, writers: Writers) -> Timers:
        runtime, storage = self._runtime, self._storage
        self.delays = DelayService(runtime, storage, writers)
        self.timed = TimerService(runtime, storage, writers)
        asker = TransactionAsker(self.members, runtime.store_host, self.dispatch.may_send)
        self.transactions = Transactions(runtime, storage, writers, asker)
        self.waiting = WaitingMessages(
            self.identity, self.delays.counting, self.timed.counting, self.transactions.counting
        )
        return Timers(self.delays, self.timed, self.transactions, self.waiting)

    def _make_clients(self, writers: Writers) -> Clients:
        runtime, storage, members = self._runtime, self._storage, self.members
        self.pulls = PullHandlers(runtime, storage, members, writers.writer, self.dispatch)
        self.pops = PopService(runtime, storage, writers, members, self.pulls, self.dispatch)
        self.group_handlers = GroupHandlers(runtime, self.tables, members)
        self.lock_handlers = LockHandlers(members.locks, self.tables.locks, self.clock)
        return Clients(members, self.pulls, self.pops, self.statistics)

    def _serve_requests(
        self, writers: Writers, timers: Timers, clients: Clients, security: BrokerSecurity
    ) -> None:
        """Make the handlers; dispatch begins to hand requests on. Which of them serves which
        request is in ``remoting.request_table``.
        """
        runtime, pulls, pops, follow = self._runtime, self.pulls, self.pops, self.settings.follow
        path = SendPath(runtime, self._storage, self.acks, self.replication, self.dispatch)
        requests = bind(
            Party.BROKER,
            *self._sending(path, writers),
            *self._administering(path, timers, clients, security.access),
            pulls,
            pops.handlers,
            self.group_handlers,
            self.lock_handlers,
            self.drain,
            self.upkeep,
            self.replication,
        )
        plain = PlainSends(runtime, path, requests[RequestCode.SEND_MESSAGE_V2][0])
        hooks = self.config.send_hooks
        self.dispatch.begin(
            hooked(requests, hooks),
            self.gate or ConfirmedGate(self.identity, self.replication),
            None if hooks else plain,
        )
        follow(path.fast.configure, pulls.configure, pops.handlers.configure)
        follow(self.tables.configure, self.drain.configure, self.acks.configure)
        follow(self.timed.configure, self.transactions.configure, self._configure_store)

    def _sending(self, path: SendPath, writers: Writers) -> tuple[object, ...]:
        runtime, dispatch, groups = self._runtime, self.dispatch, self.tables.groups
        sends = SendHandlers(runtime, path, groups, writers.writer)
        halves = HalvesHandlers(path, self.config.reject_transactions)
        ends = TransactionHandlers(runtime, path, self.transactions, dispatch)
        replies = ReplyHandlers(runtime, path, writers.writer, self.members, dispatch)
        self.settings.follow(sends.configure, halves.configure, ends.configure, replies.configure)
        return (
            RecordsHandlers(path, self.pops.handlers.untaken),
            sends,
            halves,
            ends,
            replies,
            SendBackHandler(runtime, path, groups, writers, dispatch),
            RecallHandler(runtime, path, self.timed, dispatch),
            BundleHandler(dispatch.handle),
        )

    def _administering(
        self, path: SendPath, timers: Timers, clients: Clients, access: AccessCopy | None
    ) -> tuple[object, ...]:
        runtime, storage, dispatch = self._runtime, self._storage, self.dispatch
        members, statistics = clients.members, clients.statistics
        topics = TopicHandlers(runtime, storage, members, dispatch)
        self.settings.follow(topics.configure)
        return (
            topics,
            OffsetHandlers(runtime, storage, members, dispatch),
            GroupOperations(runtime, storage, members, statistics, dispatch),
            QueryHandlers(runtime, storage, clients, dispatch),
            AdminHandlers(runtime, storage, timers, self.status),
            StatisticsHandlers(runtime, storage, timers, statistics, path),
            OverviewHandlers(
                runtime, storage, timers, clients, dispatch, status=self.status, access=access
            ),
            BrowseHandlers(storage, timers, dispatch),
            AccessHandlers(runtime, access, dispatch),
            SettingsHandlers(self.settings, dispatch),
        )

    def _configure_store(self, config: BrokerConfig) -> None:
        self.config = config
        if self.keeper.store is not None:
            self.keeper.store.configure(config.store)

    # --- life ---

    def closed(self, peer: Peer) -> None:
        """A connection ended."""
        self.pops.closed(peer)
        self.pulls.closed(peer)
        self.group_handlers.closed(peer)
        self.replication.closed(peer)

    def open(
        self, create: bool, identity: str | None, started: Callable[[RmqError | None], None]
    ) -> None:
        """Begin to open and recover the store; ``started(None)`` once it serves, ``started(error)``
        if it never will.
        """
        self._started.append(started)
        owner = StoreOwner(
            make=self._make_store,
            prepare=self._read_tables,
            serving=self._serving,
            lost=self._lost,
            durable=self._durable,
            broken=self._give_up,
            covered=self.replication.covered,
        )
        self.keeper.start(create, identity, owner)

    def tick(self) -> None:
        """Time has passed: run what is due."""
        self._periodic.run_due(self.clock.monotonic_ms())

    def close(self) -> Callable[[], None]:
        """Serve nothing any more. The returned work, to be run in a thread, flushes and closes the
        store and writes all tables.

        It raises the store's error when the log could not be flushed.
        """
        delays = self.delays.offsets()
        store = self.keeper.close()
        self._give_up(self.keeper.refusal())  # who waits for its start
        self.pops.close()
        self.lock_handlers.close()

        def finish() -> None:
            saved = delays
            try:
                if store is not None:
                    if not store.shutdown():
                        raise StoreFailed(
                            "the log could not be flushed at the stop: what waits for its "
                            "acknowledgement may be lost with this host"
                        )
                    if self.gate is None:
                        saved = self.delays.settled()
                        self.timed.settle()
                    else:  # whoever is master next has less than this log, perhaps
                        self.timed.keep()
            finally:
                for error in self.tables.save_all(saved):
                    log.error("a table was not saved at the stop: %s", error)

        return finish

    def forget_handed_out(self) -> None:
        """Of a follower, before it follows: locks and popped messages of an epoch that is over;
        another master hands them out since.
        """
        with contextlib.suppress(BrokerBusy):  # stale ones are told by their epochs, too
            self.offload.submit(self._remove_handed_out, _removed)

    def _remove_handed_out(self) -> None:
        for name in ("queue_locks", "pop.journal"):
            self._runtime.files.unlink(f"{self.config.store.path}/rmq_ray/{name}")

    def show_replica(self, status: Callable[[], dict[str, Any]]) -> None:
        """Of a slave: what it says of its following goes into the status, too."""
        self._replica_status = status

    def follower_parts(self) -> FollowerParts:
        """What following a master feeds."""
        return FollowerParts(
            self.identity,
            self.keeper,
            self.tables,
            self.delays.load,
            self.timed.follow,
            self.pulls.parked.arrived,
            self.gate.confirmed if self.gate is not None else lambda _end, _opened: None,
        )

    def status(self) -> dict[str, Any]:
        """BROKER_STATUS (operations: status): states and counts; plain values."""
        store, keeper, identity, tables = (
            self.keeper.store,
            self.keeper,
            self.identity,
            self.tables,
        )
        found: dict[str, Any] = {
            "state": keeper.state.value,
            "error": None
            if keeper.error is None
            else f"{type(keeper.error).__name__}: {keeper.error}",
            "reopened": keeper.reopened,
            "pid": os.getpid(),
            "broker_name": identity.name,
            "broker_id": identity.broker_id,
            "cluster": identity.cluster,
            "address": identity.address,
            "boot_ms": identity.boot_ms,
            "draining": identity.draining,
            "flush": self.config.store.flush.value,
            "topics": len(tables.topics),
            "consumer_groups": self.members.consumers.groups(),
            "parked_pulls": len(self.pulls.parked),
            "late_pulls": self.pulls.parked.late,
            "hold_alive": self.pulls.parked.alive,
            "waiting_acks": len(self.acks),
            "in_flight_bytes": self.acks.in_flight_bytes,
            "flush_timeouts": self.acks.timeouts,
            "slave_timeouts": self.acks.slave_timeouts,
            "offsets_lowered": tables.offsets.lowered,
            "offsets_refused": tables.offsets.refused,
            "offsets_clamped": tables.offsets.clamped,
            "commits_fenced": tables.offsets.fenced,
            "queue_locks": len(self.members.locks),
            "delay_offsets": self.delays.offsets(),
            "fall_behind": tables.offsets.behind.worst(FALL_BEHIND_TOLD),
            "half_messages": self.transactions.pending,
            "timing_messages": self.timed.waiting,
            "pop": self.pops.status(),
            "replication": self.replication.status(),
            "settings_changed": len(self.settings.changes),
            **self.settings.limiter.status(),
            "identity": None,
            "epoch": 0,
            **self.upkeep.status(),
            **self.counters.as_dict(),
        }
        if store is not None:
            found |= {
                "identity": store.identity,
                "epoch": store.epoch,
                "visible_offset": store.visible_offset,
                "durable_offset": store.durable_offset,
                "store": store.status(),
            }
        if self._replica_status is not None:
            found["replica"] = self._replica_status()
        return found

    # --- wiring ---

    def _read_tables(self, store: MessageStore) -> None:
        """In a thread; nothing once they were loaded: then memory is newer than the files."""
        self._found = None if self.tables.loaded else self.tables.read()
        store.expire_topics(self.clock.now_ms(), self.tables.retention(self._found))
        self.timed.read()
        self.pops.read()

    def _make_store(self) -> MessageStore:
        levels = self.levels
        make = FollowerStore if self.identity.is_slave else MessageStore
        epoch = None if self.gate is None else self.gate.epoch
        return make(
            self.config.store,
            self.clock,
            broker_name=self.identity.name,
            store_host=self._runtime.store_host,
            files=self._runtime.files,
            rules=DispatchRules(
                lambda level: levels.delay_ms(level) if 1 <= level <= levels.highest else None,
                levels.highest,
                self.tables.filters if self.config.store.filter_bit_maps else None,
            ),
            new_epoch=epoch,
            lives=self.tables.lives,
        )

    def _set_timers(self) -> None:
        every, config = self._periodic.every, self.config
        every(TICK_MS, self._often)
        every(1_000, self._each_second)
        every(config.offset_persist_ms, self._save_offsets, FIRST_PERSIST_MS)
        every(FIRST_POSITIONS_MS, self.tables.save_first_positions)
        every(FILTER_PERSIST_MS, self.tables.save_filters, FIRST_PERSIST_MS)
        every(config.timer_checkpoint_ms, self.timed.save)
        every(
            config.delay_persist_ms,
            lambda: self.tables.save_delays(self.delays.offsets()),
            FIRST_PERSIST_MS,
        )
        every(
            config.housekeeping_ms,
            lambda: self.group_handlers.housekeeping(self.config.channel_expiry_ms),
        )
        every(config.housekeeping_ms, self.lock_handlers.housekeeping)
        every(CLEAN_MS, self.upkeep.clean_in_turn)

    def _often(self) -> None:
        store = self.keeper.store
        self.acks.expire(self.clock.monotonic_ms(), 0 if store is None else store.durable_offset)
        self.pulls.parked.tick()
        self.pulls.delayed.tick()
        self.replication.tick()
        if self.identity.is_slave:  # everything below writes
            return
        self.pops.tick()
        if not self._more_delays:
            self._deliver()
        if not self._more_checks:
            self._check_halves()

    def _each_second(self) -> None:
        self.statistics.rate.sample()
        self.statistics.sample(self.clock.now_ms())
        self._durable()  # what could not become visible for want of room
        self.keeper.tick(self.clock.monotonic_ms())
        if not self.identity.is_slave:
            self.pops.each_second()

    def _deliver(self) -> None:
        """Due delayed messages; a long list goes on in the next turns of the loop, so that requests
        are served in between.
        """
        now_ms = self.clock.now_ms()
        self._more_delays = self.delays.tick(now_ms) | self.timed.tick(now_ms)
        if self._more_delays:
            self.offload.post(self._deliver)

    def _check_halves(self) -> None:
        self._more_checks = self.transactions.tick(self.clock.now_ms())
        if self._more_checks:
            self.offload.post(self._check_halves)

    def _save_offsets(self) -> None:
        if not self.identity.is_slave:
            self.transactions.save()
        self.tables.save_offsets()

    # --- the store's events ---

    def _serving(self, store: MessageStore) -> None:
        """The store is recovered and about to serve."""
        if self._found is not None:
            self.lock_handlers.load(
                self._found.locks, 0 if self.gate is None else self.gate.epoch or 0
            )
        self.delays.load(
            self.delays.offsets()
            if self._found is None
            else self.tables.take_over(self._found, self.levels.highest)
        )
        self.replication.serving(store)
        self.upkeep.serving(store)
        if self.gate is not None:
            self.gate.serving(store)
        if not self.identity.is_slave:
            self._lead(store)
        started, self._started = self._started, []
        for call in started:
            self.offload.post(lambda call=call: call(None))  # type: ignore[misc]

    def _lead(self, store: MessageStore) -> None:
        """What only a master does with a store."""
        clamped = self.tables.offsets.clamp(
            lambda topic, queue_id: store.bounds(topic, queue_id)[1]
        )
        if clamped:
            log.warning(
                "%d consumed offsets lay beyond the log's end and were lowered to it", clamped
            )
        self.pops.serving(store)
        self.transactions.load(store)
        self.timed.load(store)
        self.offload.post(self.transactions.pay)
        if self.config.long_polling:
            store.set_arrival_listener(self.pulls.parked.arrived)

    def _lost(self) -> None:
        self.replication.lost()
        if self.gate is not None and self.gate.lost():
            self.acks.abandon()
        self.acks.fail_all()

    def _durable(self) -> None:
        store = self.keeper.store
        if store is not None:
            durable = self.replication.settled(
                store.durable_offset
            )  # read before the dispatch: what is acknowledged is visible already
            try:
                store.dispatch_durable()
            except RmqError as error:
                self.keeper.check(error)
                return
            self.acks.durable(durable)
            self.replication.written()

    def _give_up(self, error: RmqError) -> None:
        started, self._started = self._started, []
        for call in started:
            call(error)


def _removed(outcome: object) -> None:
    if isinstance(outcome, RmqError):
        log.warning("what another master has handed out since is still noted here: %s", outcome)
    elif isinstance(outcome, Exception):
        raise outcome


def answer_wait_ms(config: BrokerConfig) -> int:
    """How long the answer to a send waits: for the disk (syncFlushTimeout), else for slaves
    (slaveTimeout).
    """
    waits_for_disk = (
        config.store.flush is FlushMode.SYNC_FLUSH
        or config.replication is ReplicationMode.ASYNC_MASTER
    )
    return config.store.sync_flush_timeout_ms if waits_for_disk else config.slave_timeout_ms
