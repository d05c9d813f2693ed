"""What each handler of a broker is made of.

Which of them serves which request is in ``remoting.request_table``.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from rmq_ray.clock import Clock
from rmq_ray.config import BrokerConfig
from rmq_ray.files import FileSystem
from rmq_ray.remoting.request_table import Handler, Party, Row, bind
from rmq_ray.remoting.wire.codes import RequestCode
from rmq_ray.server.admin.access_handlers import AccessHandlers
from rmq_ray.server.admin.admin_handlers import AdminHandlers
from rmq_ray.server.admin.browse import BrowseHandlers
from rmq_ray.server.admin.overview import OverviewHandlers, Popped
from rmq_ray.server.admin.query_handlers import QueryHandlers
from rmq_ray.server.admin.settings_handlers import SettingsHandlers
from rmq_ray.server.admin.statistics_handlers import StatisticsHandlers
from rmq_ray.server.admin.topic_handlers import TopicHandlers
from rmq_ray.server.base.counters import Counters, PutRate
from rmq_ray.server.base.identity import Identity
from rmq_ray.server.base.offload import Offload
from rmq_ray.server.base.statistics import Statistics
from rmq_ray.server.base.store_keeper import StoreKeeper
from rmq_ray.server.core.dispatch import Dispatch
from rmq_ray.server.core.drain import Drain
from rmq_ray.server.core.upkeep import Upkeep
from rmq_ray.server.delay.delay_service import DelayService
from rmq_ray.server.delay.recall_handler import RecallHandler
from rmq_ray.server.delay.timer_service import TimerService
from rmq_ray.server.groups.group_handlers import GroupHandlers, SubscriptionWatch
from rmq_ray.server.groups.group_operations import GroupOperations
from rmq_ray.server.groups.lock_handlers import LockHandlers
from rmq_ray.server.groups.membership import GroupMembership
from rmq_ray.server.groups.offset_handlers import OffsetHandlers
from rmq_ray.server.pop.pop_service import PopService
from rmq_ray.server.pull.pull_handlers import PullHandlers, PullTables
from rmq_ray.server.replication.replication import Replication
from rmq_ray.server.security.access_copy import AccessCopy
from rmq_ray.server.send.bundle_handler import BundleHandler
from rmq_ray.server.send.message_writer import MessageWriter
from rmq_ray.server.send.own_writes import OwnWrites
from rmq_ray.server.send.plain_sends import PlainSends
from rmq_ray.server.send.records_handlers import RecordsHandlers
from rmq_ray.server.send.reply_handlers import ReplyHandlers
from rmq_ray.server.send.send_back import SendBackHandler
from rmq_ray.server.send.send_handlers import SendHandlers
from rmq_ray.server.send.send_path import Acknowledgements, FastFailure, SendPath, TopicGate
from rmq_ray.server.send.slot_gate import SlotGate
from rmq_ray.server.tables.broker_tables import BrokerTables
from rmq_ray.server.tables.waiting_counts import WaitingMessages
from rmq_ray.server.transaction.halves_handlers import HalvesHandlers
from rmq_ray.server.transaction.transaction_handlers import TransactionHandlers
from rmq_ray.server.transaction.transaction_service import Transactions


@dataclass(frozen=True, slots=True)
class HandlerParts:
    """The parts of a broker that handlers are made of."""

    config: BrokerConfig
    files: FileSystem
    store_host: tuple[str, int]
    clock: Clock
    identity: Identity
    keeper: StoreKeeper
    tables: BrokerTables
    members: GroupMembership
    counters: Counters
    rate: PutRate
    statistics: Statistics
    acks: Acknowledgements
    writer: MessageWriter
    own: OwnWrites
    delays: DelayService
    timed: TimerService
    transactions: Transactions
    waiting: WaitingMessages
    replication: Replication
    offload: Offload
    reads: Offload
    dispatch: Dispatch
    drain: Drain
    upkeep: Upkeep
    status: Callable[[], dict[str, Any]]
    access: AccessCopy | None


@dataclass(frozen=True, slots=True)
class Handlers:
    """``requests``: request code -> its row and who serves it; ``plain``: single sends that came
    together; the others hear of time, too.
    """

    requests: dict[int, tuple[Row, Handler]]
    plain: PlainSends
    pulls: PullHandlers
    pops: PopService
    groups: GroupHandlers
    locks: LockHandlers


def make_handlers(parts: HandlerParts) -> Handlers:
    """All handlers of a broker."""
    tables, dispatch, config = parts.tables, parts.dispatch, parts.config
    path = SendPath(
        parts.keeper,
        tables.topics,
        TopicGate(parts.identity, tables.topics, tables.groups),
        tables.pending_topics,
        parts.acks,
        parts.counters,
        parts.clock,
        config.store.acknowledges_later or parts.replication.sync,
        dispatch.serve,
        FastFailure(parts.clock, parts.offload.post, config.stale_send_ms, config.disk_busy_ms),
        parts.replication,
        SlotGate(parts.keeper, tables.topics, tables.offsets, parts.clock),
        tables.settings.limiter,
    )
    shared = PullTables(
        parts.identity, tables.topics, tables.groups, parts.members, tables.offsets, tables.filters
    )
    pulls = PullHandlers(
        parts.keeper,
        shared,
        parts.writer,
        parts.counters,
        parts.clock,
        config,
        parts.offload,
        dispatch.answer,
        dispatch.answer_from,
        tables.settings.limiter,
    )
    pops = PopService(
        config,
        parts.files,
        path,
        parts.writer,
        shared,
        pulls.parked,
        pulls.delayed,
        tables.settings.limiter,
        parts.clock,
        dispatch.answer,
        parts.offload,
        parts.reads,
    )
    tables.settings.follow(path.fast.configure, pulls.configure, pops.handlers.configure)
    watch = SubscriptionWatch(parts.members.consumers, tables.filters, parts.counters, parts.clock)
    groups = GroupHandlers(
        parts.members, tables.groups, tables.topics, parts.counters, parts.clock, watch
    )
    locks = LockHandlers(parts.members.locks, tables.locks, parts.clock)
    requests = bind(
        Party.BROKER,
        *_sending(parts, path),
        pulls,
        pops.handlers,
        groups,
        locks,
        *_administering(parts, lambda: pops.ledger.table.queues),
        _statistics(parts, path),
        *_observing(parts, pops),
        parts.drain,
        parts.upkeep,
        parts.replication,
    )
    plain = PlainSends(
        path,
        parts.identity,
        config.store.body_bytes_max,
        parts.store_host,
        requests[RequestCode.SEND_MESSAGE_V2][0],
    )
    return Handlers(requests, plain, pulls, pops, groups, locks)


def _observing(parts: HandlerParts, pops: PopService) -> tuple[object, ...]:
    """What people look at."""
    overview = OverviewHandlers(
        parts.keeper,
        parts.tables,
        parts.members,
        parts.counters,
        parts.clock,
        parts.status,
        lambda: pops.ledger.table.queues,
        parts.waiting,
        parts.dispatch.answer_from,
        parts.access,
    )
    browse = BrowseHandlers(
        parts.keeper,
        parts.tables,
        parts.transactions,
        parts.delays,
        parts.timed,
        parts.dispatch.answer_from,
    )
    return overview, browse


def _sending(parts: HandlerParts, path: SendPath) -> tuple[object, ...]:
    tables, dispatch, config = parts.tables, parts.dispatch, parts.config
    records, halves = RecordsHandlers(path), HalvesHandlers(path, config.reject_transactions)
    sends = SendHandlers(
        path,
        parts.writer,
        tables.groups,
        parts.identity,
        config.store.body_bytes_max,
        parts.store_host,
        config.reject_transactions,
    )
    ends = TransactionHandlers(
        path,
        parts.transactions,
        parts.identity,
        dispatch.answer_from,
        config.store.body_bytes_max,
        dispatch.check_topic,
    )
    bundles = BundleHandler(dispatch.handle)
    recalls = RecallHandler(path, parts.timed, parts.identity, parts.clock, dispatch.answer_from)
    replies = ReplyHandlers(
        path,
        parts.writer,
        parts.members,
        parts.identity,
        parts.store_host,
        dispatch.answer,
        config.store_replies,
    )
    back = SendBackHandler(
        path,
        parts.writer,
        parts.own,
        tables.groups,
        parts.identity,
        dispatch.answer_from,
        dispatch.check_topic,
    )
    tables.settings.follow(halves.configure, sends.configure, ends.configure, replies.configure)
    return records, sends, ends, halves, recalls, bundles, replies, back


def _administering(parts: HandlerParts, popped: Popped) -> tuple[object, ...]:
    tables, dispatch = parts.tables, parts.dispatch
    offsets = OffsetHandlers(parts.keeper, tables, parts.members, dispatch.answer_from, parts.clock)
    topics = TopicHandlers(
        parts.keeper,
        tables.topics,
        tables.groups,
        tables.offsets,
        parts.members,
        tables.save_topics,
        tables.save_groups,
        dispatch.answer,
        parts.config.store.reserved_hours,
        tables.settings.forget,
    )
    tables.settings.follow(topics.configure)
    queries = QueryHandlers(
        parts.keeper,
        parts.identity,
        tables.topics,
        tables.offsets,
        parts.members,
        dispatch.answer_from,
        parts.clock,
        parts.statistics,
        popped,
        dispatch.check_topic,
    )
    admin = AdminHandlers(
        parts.keeper,
        parts.identity,
        tables.settings,
        tables.topics,
        parts.delays,
        parts.clock,
        parts.status,
    )
    operations = GroupOperations(
        parts.keeper,
        parts.identity,
        tables.topics,
        tables.offsets,
        parts.members,
        parts.clock,
        dispatch.answer_from,
        parts.statistics,
    )
    access = AccessHandlers(parts.access, parts.identity, dispatch.answer)
    settings = SettingsHandlers(tables.settings, dispatch.answer)
    return offsets, topics, queries, admin, operations, access, settings


def _statistics(parts: HandlerParts, path: SendPath) -> StatisticsHandlers:
    return StatisticsHandlers(
        parts.keeper,
        parts.identity,
        parts.config,
        parts.delays,
        parts.counters,
        parts.rate,
        parts.statistics,
        path,
        parts.reads,
        parts.clock,
        parts.files,
    )
