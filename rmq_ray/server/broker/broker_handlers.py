"""Which handler serves which request of a broker, and what each handler is made of.

Decides the table, nothing else. Called by ``broker_core`` once.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from rmq_ray.files import FileSystem
from rmq_ray.ports import Peer
from rmq_ray.remoting.wire.codes import RequestCode as Code
from rmq_ray.remoting.wire.frame import Command
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
from rmq_ray.server.pull.hold_link import Hold, OnWake
from rmq_ray.server.pull.moved_events import MovedEvents
from rmq_ray.server.pull.pull_handlers import PullHandlers, PullTables
from rmq_ray.server.send.bundle_handler import BundleHandler
from rmq_ray.server.send.fast_failure import FastFailure
from rmq_ray.server.send.records_handlers import RecordsHandlers, SendPath
from rmq_ray.server.send.reply_handlers import ReplyHandlers
from rmq_ray.server.send.send_back import SendBack
from rmq_ray.server.send.send_handlers import SendHandlers
from rmq_ray.server.tables.topic_gate import TopicGate
from rmq_ray.server.transaction.halves_handlers import HalvesHandlers
from rmq_ray.server.transaction.transaction_handlers import TransactionHandlers

if TYPE_CHECKING:
    from rmq_ray.server.broker.broker_core import BrokerCore

Handler = Callable[[Command, Peer], Command | None]


def make_handlers(
    core: BrokerCore,
    make_hold: Callable[[OnWake], Hold],
    store_host: tuple[str, int],
    files: FileSystem,
) -> dict[int, Handler]:
    """Request code -> who serves it; the parts that ``core`` needs itself are set on it."""
    tables, keeper, identity = core.tables, core.keeper, core.identity
    path = SendPath(
        keeper,
        tables.topics,
        TopicGate(identity, tables.topics, tables.groups),
        tables.fresh,
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
    back = SendBack(path, core.writer, tables.groups, identity, core.answer_from)
    shared = PullTables(
        identity, tables.topics, tables.groups, core.members, tables.offsets, tables.filters
    )
    core.pulls = pulls = PullHandlers(
        keeper,
        shared,
        MovedEvents(core.writer, core.clock),
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
    return {
        Code.SEND_RECORDS: records.send,
        Code.SEND_MESSAGE: sends.send,
        Code.SEND_MESSAGE_V2: sends.send_v2,
        Code.SEND_BATCH_MESSAGE: sends.send_batch,
        Code.END_TRANSACTION: ends.end,
        Code.SEND_HALVES: halves.send,
        Code.END_TRANSACTIONS: ends.end_many,
        Code.RECALL_MESSAGE: recalls.recall,
        Code.BUNDLE: bundles.bundle,
        Code.SEND_REPLY_MESSAGE: replies.reply,
        Code.SEND_REPLY_MESSAGE_V2: replies.reply_v2,
        Code.CONSUMER_SEND_MSG_BACK: back.send_back,
        Code.PULL_MESSAGE: pulls.pull_message,
        Code.PULL_RECORDS: pulls.pull_records,
        Code.SCAN_RECORDS: pulls.scan_records,
        Code.HEART_BEAT: groups.heartbeat,
        Code.UNREGISTER_CLIENT: groups.unregister,
        Code.GET_CONSUMER_LIST_BY_GROUP: groups.consumer_list,
        Code.LOCK_BATCH_MQ: locks.lock,
        Code.UNLOCK_BATCH_MQ: locks.unlock,
        Code.CHECK_CLIENT_CONFIG: pulls.check_client,
        Code.QUERY_CONSUMER_OFFSET: offsets.query,
        Code.UPDATE_CONSUMER_OFFSET: offsets.update,
        Code.GET_ALL_CONSUMER_OFFSET: offsets.all_offsets,
        Code.GET_MAX_OFFSET: offsets.max_offset,
        Code.GET_MIN_OFFSET: offsets.min_offset,
        Code.SEARCH_OFFSET_BY_TIMESTAMP: offsets.by_time,
        Code.GET_EARLIEST_MSG_STORETIME: offsets.earliest,
        Code.QUEUE_BOUNDS: offsets.bounds,
        Code.UPDATE_AND_CREATE_TOPIC: topics.create_topic,
        Code.GET_ALL_TOPIC_CONFIG: topics.all_topics,
        Code.DELETE_TOPIC_IN_BROKER: topics.delete_topic,
        Code.QUERY_TOPIC_CONSUME_BY_WHO: topics.topic_groups,
        Code.GET_SYSTEM_TOPIC_LIST_FROM_BROKER: topics.system_topics,
        Code.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP: topics.create_group,
        Code.GET_ALL_SUBSCRIPTIONGROUP_CONFIG: topics.all_groups,
        Code.DELETE_SUBSCRIPTIONGROUP: topics.delete_group,
        Code.QUERY_MESSAGE: queries.by_key,
        Code.VIEW_MESSAGE_BY_ID: queries.by_id,
        Code.GET_TOPIC_STATS_INFO: queries.topic_stats,
        Code.GET_CONSUME_STATS: queries.consume_stats,
        Code.GET_CONSUMER_CONNECTION_LIST: queries.consumers,
        Code.GET_PRODUCER_CONNECTION_LIST: queries.producers,
        Code.GET_BROKER_CONFIG: admin.broker_config,
        Code.GET_BROKER_RUNTIME_INFO: admin.runtime_info,
        Code.GET_ALL_DELAY_OFFSET: admin.delay_offsets,
        Code.BROKER_STATUS: admin.broker_status,
        Code.STORE_INFO: admin.store_info,
        Code.PIN_SEGMENTS: admin.pin,
        Code.UNPIN_SEGMENTS: admin.unpin,
        **core.pops.handlers(),
        **operations.handlers(),
        Code.DRAIN_BROKER: core.drain.ordered,
        Code.DELETE_EXPIRED_COMMITLOG: core.upkeep.delete_expired,
        **core.replication.handlers(),
    }
