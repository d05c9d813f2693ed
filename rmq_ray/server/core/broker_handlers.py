"""What each handler of a broker is made of.

Which of them serves which request is in ``remoting.request_table``.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from rmq_ray.files import FileSystem
from rmq_ray.remoting.request_table import Handler, Party, Row, bind
from rmq_ray.server.admin.admin_handlers import AdminHandlers
from rmq_ray.server.admin.query_handlers import QueryHandlers
from rmq_ray.server.admin.topic_handlers import TopicHandlers
from rmq_ray.server.delay.recall_handler import RecallHandler
from rmq_ray.server.groups.group_handlers import GroupHandlers
from rmq_ray.server.groups.group_operations import GroupOperations
from rmq_ray.server.groups.lock_handlers import LockHandlers
from rmq_ray.server.groups.offset_handlers import OffsetHandlers
from rmq_ray.server.groups.subscription_watch import SubscriptionWatch
from rmq_ray.server.pop.pop_service import PopService
from rmq_ray.server.pull.parked_pulls import Hold, OnWake
from rmq_ray.server.pull.pull_handlers import PullHandlers, PullTables
from rmq_ray.server.send.bundle_handler import BundleHandler
from rmq_ray.server.send.records_handlers import RecordsHandlers
from rmq_ray.server.send.reply_handlers import ReplyHandlers
from rmq_ray.server.send.send_back import SendBackHandler
from rmq_ray.server.send.send_handlers import SendHandlers
from rmq_ray.server.send.send_path import FastFailure, SendPath, TopicGate
from rmq_ray.server.transaction.transaction_handlers import HalvesHandlers, TransactionHandlers

if TYPE_CHECKING:
    from rmq_ray.server.core.broker_core import BrokerCore


def make_handlers(
    core: BrokerCore,
    make_hold: Callable[[OnWake], Hold],
    store_host: tuple[str, int],
    files: FileSystem,
) -> dict[int, tuple[Row, Handler]]:
    """Request code -> its row and who serves it; the parts that ``core`` needs itself are set on it."""
    tables, keeper, identity = core.tables, core.keeper, core.identity
    path = SendPath(
        keeper,
        tables.topics,
        TopicGate(identity, tables.topics, tables.groups),
        tables.pending_topics,
        core.acks,
        core.counters,
        core.clock,
        core.config.store.acknowledges_later or core.replication.sync,
        core.serve,
        FastFailure(
            core.clock, core.offload.post, core.config.stale_send_ms, core.config.disk_busy_ms
        ),
        core.replication,
    )
    records, halves = RecordsHandlers(path), HalvesHandlers(path, core.config.reject_transactions)
    sends = SendHandlers(
        path,
        core.writer,
        tables.groups,
        identity,
        core.config.store.body_bytes_max,
        store_host,
        core.config.reject_transactions,
    )
    ends = TransactionHandlers(
        path, core.transactions, identity, core.answer_from, core.config.store.body_bytes_max
    )
    bundles = BundleHandler(core.handle)
    recalls = RecallHandler(path, core.timed, identity, core.clock, core.answer_from)
    replies = ReplyHandlers(
        path,
        core.writer,
        core.members,
        identity,
        store_host,
        core.answer,
        core.config.store_replies,
    )
    back = SendBackHandler(path, core.writer, tables.groups, identity, core.answer_from)
    shared = PullTables(
        identity, tables.topics, tables.groups, core.members, tables.offsets, tables.filters
    )
    core.pulls = pulls = PullHandlers(
        keeper,
        shared,
        core.writer,
        core.counters,
        core.clock,
        core.config,
        make_hold,
        core.answer,
        core.answer_from,
    )
    core.pops = PopService(
        core.config,
        files,
        path,
        core.writer,
        shared,
        pulls.parked,
        core.clock,
        core.answer,
        core.offload,
        core.reads,
    )
    watch = SubscriptionWatch(core.members.consumers, tables.filters, core.counters, core.clock)
    core.group_handlers = groups = GroupHandlers(
        core.members, tables.groups, tables.topics, core.counters, core.clock, watch
    )
    core.lock_handlers = locks = LockHandlers(core.members.locks, tables.locks, core.clock)
    offsets = OffsetHandlers(keeper, tables.topics, tables.offsets, core.members, core.answer_from)
    topics = TopicHandlers(
        keeper,
        tables.topics,
        tables.groups,
        tables.offsets,
        core.members,
        tables.save_topics,
        tables.save_groups,
        core.answer,
    )
    queries = QueryHandlers(
        keeper, identity, tables.topics, tables.offsets, core.members, core.answer_from, core.clock
    )
    admin = AdminHandlers(
        keeper,
        identity,
        core.config,
        tables.topics,
        core.delays,
        core.counters,
        core.rate,
        core.clock,
        core.status,
        files,
    )
    operations = GroupOperations(
        keeper, identity, tables.topics, tables.offsets, core.members, core.clock, core.answer_from
    )
    return bind(
        Party.BROKER,
        records,
        sends,
        ends,
        halves,
        recalls,
        bundles,
        replies,
        back,
        pulls,
        groups,
        locks,
        offsets,
        topics,
        queries,
        admin,
        operations,
        core.pops.handlers,
        core.drain,
        core.upkeep,
        core.replication,
    )
