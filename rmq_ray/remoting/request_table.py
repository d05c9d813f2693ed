"""The one table of requests: what is true of each request code, whoever serves it.

Decides: who may ask, in which role and state it is served, whether it writes, which hooks run, what
is audited, and which right on which resource it needs. Dispatch of brokers and name servers, the
fence of masters, hooks, and the page ``docs/wire-protocol.md`` read this table and nothing else.
Does not decide how a request is served: handlers do, bound where a server's parts are made.

Invariants, each a test: every ``RequestCode`` has a row; a code has one row for each party that
serves it; every row that a party serves has a handler there, and the other way round.

To add a request: its code (``remoting.wire.codes``), its row here, its handler. Its right
is checked where ports take accounts (``server.security.access_guard``).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum, Flag, auto
from functools import partial

from rmq_ray.ports import Peer
from rmq_ray.protocol.access.decision import Action
from rmq_ray.remoting.wire import group_headers
from rmq_ray.remoting.wire import headers as h
from rmq_ray.remoting.wire.browse import BrowseHeader
from rmq_ray.remoting.wire.codes import RequestCode as Code
from rmq_ray.remoting.wire.frame import Command
from rmq_ray.remoting.wire.header import Header
from rmq_ray.remoting.wire.headers import (
    ConsumerGroupHeader,
    PushReplyHeader,
    SendHeader,
    TopicHeader,
)

Handler = Callable[[Command, Peer], Command | None]


PUB, SUB, ANY, ADMIN = Action.PUB, Action.SUB, Action.ANY, Action.ADMIN


class Party(Enum):
    """Who serves a request."""

    BROKER = "broker"
    NAME_SERVER = "name server"
    CLIENT = "client"
    PORT = "port"
    """The connection itself, before any party sees a frame."""
    NOBODY = "nobody"
    """Known by name, answered as not supported."""


class Asker(Flag):
    """Who may ask. Whoever proved the cluster's secret counts as what it says it is."""

    CLIENT = auto()
    FOREIGN = auto()
    """Apache RocketMQ's clients and tools, on a port that is open to them."""
    SLAVE = auto()
    BROKER = auto()
    OPERATOR = auto()


class Resource(Flag):
    """What a right is asked on; several = a right on each."""

    NOTHING = 0
    TOPIC = auto()
    GROUP = auto()
    CLUSTER = auto()


class Fence(Enum):
    """What a broker must know before it serves a request: CONFIRMED with slaves that are waited
    for, LEADS under a controller.
    """

    NOTHING = "nothing"
    """The request tells nothing of the log, or tells it to slaves."""
    CONFIRMED = "confirmed"
    """What was confirmed of the log: readers see nothing that another master would not have."""
    LEADS = "leads"
    """That it may lead now: the request writes, or hands out what only one broker may."""
    HANDS_OUT = "hands out"
    """Both: it hands out messages, and notes that it did."""


@dataclass(frozen=True, slots=True)
class Row:
    """What is true of one request code at one party. ``handler``: class and method that serve it.

    ``body``: its type in words where it has one; ours are drawn in docs/wire-protocol.md.
    """

    code: Code
    handler: str
    resource: Resource
    action: Action
    header: type[Header] | None = None
    body: str = ""
    served_by: Party = Party.BROKER
    asked_by: Asker = Asker.CLIENT | Asker.FOREIGN
    fence: Fence = Fence.CONFIRMED
    master_only: bool = False
    """A slave refuses it (16); what has an answer of its own there is not marked."""
    any_state: bool = False
    """Served before the store is recovered, and after it failed."""
    hooked: bool = False
    """``BrokerConfig.send_hooks`` run around it."""
    audited: bool = False
    """It changes how the cluster is set up."""


NOTHING, TOPIC, GROUP, CLUSTER = Resource.NOTHING, Resource.TOPIC, Resource.GROUP, Resource.CLUSTER
BOTH = TOPIC | GROUP
OURS, FREE, LEADS = Asker.CLIENT, Fence.NOTHING, Fence.LEADS
TOOLS = Asker.OPERATOR | Asker.FOREIGN

# What many rows have in common.
sends = partial(Row, resource=TOPIC, action=PUB, fence=LEADS)
hooked = partial(sends, hooked=True)
reads = partial(Row, resource=TOPIC, action=SUB)
consumes = partial(Row, resource=BOTH, action=SUB)
hands_out = partial(consumes, fence=LEADS, master_only=True)
of_group = partial(Row, resource=GROUP, action=SUB)
bounds = partial(Row, resource=TOPIC, action=ANY)
shows = partial(Row, resource=CLUSTER, action=ADMIN, asked_by=TOOLS)
copies = partial(shows, asked_by=Asker.SLAVE | TOOLS, fence=FREE)
replicates = partial(shows, asked_by=Asker.SLAVE, fence=FREE)
changes = partial(Row, action=ADMIN, asked_by=TOOLS, audited=True)
sets = partial(changes, fence=LEADS, master_only=True)
routes = partial(Row, served_by=Party.NAME_SERVER, resource=CLUSTER, action=ANY, fence=FREE)
registers = partial(routes, action=ADMIN, asked_by=Asker.BROKER | Asker.FOREIGN)
configures = partial(routes, action=ADMIN, asked_by=TOOLS, audited=True)
tells = partial(
    Row,
    served_by=Party.CLIENT,
    resource=NOTHING,
    action=Action.NONE,
    asked_by=Asker.BROKER,
    fence=FREE,
)
opens = partial(
    Row,
    served_by=Party.PORT,
    resource=NOTHING,
    action=Action.NONE,
    asked_by=OURS | Asker.SLAVE | Asker.BROKER | Asker.OPERATOR,
    fence=FREE,
    any_state=True,
)
refused = partial(shows, served_by=Party.NOBODY, handler="", fence=FREE)

SENDS = (
    hooked(Code.SEND_MESSAGE, "SendHandlers.send", header=SendHeader, body="message"),
    hooked(Code.SEND_MESSAGE_V2, "SendHandlers.send_v2", header=SendHeader, body="message"),
    hooked(Code.SEND_BATCH_MESSAGE, "SendHandlers.send_batch", header=SendHeader, body="messages"),
    hooked(Code.SEND_RECORDS, "RecordsHandlers.send", body="records"),
    hooked(Code.SEND_HALVES, "HalvesHandlers.send", body="records"),
    hooked(
        Code.SEND_REPLY_MESSAGE,
        "ReplyHandlers.reply",
        header=SendHeader,
        body="message",
        master_only=True,
    ),
    hooked(
        Code.SEND_REPLY_MESSAGE_V2,
        "ReplyHandlers.reply_v2",
        header=SendHeader,
        body="message",
        master_only=True,
    ),
    sends(Code.END_TRANSACTION, "TransactionHandlers.end", header=h.EndTransactionHeader),
    sends(Code.END_TRANSACTIONS, "TransactionHandlers.end_many", body="msgpack"),
    sends(Code.RECALL_MESSAGE, "RecallHandler.recall", header=h.RecallHeader, master_only=True),
    of_group(
        Code.CONSUMER_SEND_MSG_BACK,
        "SendBackHandler.send_back",
        header=h.SendBackHeader,
        fence=LEADS,
        master_only=True,
    ),
    Row(
        Code.BUNDLE,
        "BundleHandler.bundle",
        NOTHING,
        Action.NONE,
        body="msgpack; each part by its own row",
        asked_by=OURS,
        fence=LEADS,
        master_only=True,
    ),
)
READS = (
    consumes(Code.PULL_MESSAGE, "PullHandlers.pull_message", header=h.PullHeader),
    consumes(Code.PULL_RECORDS, "PullHandlers.pull_records", body="msgpack"),
    reads(Code.SCAN_RECORDS, "PullHandlers.scan_records", body="msgpack"),
    hands_out(Code.POP_RECORDS, "PopHandlers.pop_records", body="msgpack", fence=Fence.HANDS_OUT),
    hands_out(Code.SETTLE_POPPED, "PopHandlers.settle", body="msgpack"),
    reads(Code.QUERY_MESSAGE, "QueryHandlers.by_key", header=h.QueryMessageHeader),
    reads(Code.VIEW_MESSAGE_BY_ID, "QueryHandlers.by_id", header=h.ViewMessageHeader),
    reads(Code.STORE_INFO, "AdminHandlers.store_info", resource=CLUSTER, asked_by=OURS),
    reads(Code.PIN_SEGMENTS, "AdminHandlers.pin", body="msgpack", asked_by=OURS),
    reads(Code.UNPIN_SEGMENTS, "AdminHandlers.unpin", body="msgpack", asked_by=OURS),
)
GROUPS = (
    consumes(Code.HEART_BEAT, "GroupHandlers.heartbeat", body="JSON", fence=FREE),
    of_group(
        Code.UNREGISTER_CLIENT,
        "GroupHandlers.unregister",
        header=h.UnregisterClientHeader,
        fence=FREE,
    ),
    of_group(
        Code.GET_CONSUMER_LIST_BY_GROUP, "GroupHandlers.consumer_list", header=ConsumerGroupHeader
    ),
    consumes(Code.CHECK_CLIENT_CONFIG, "PullHandlers.check_client", body="JSON"),
    hands_out(Code.LOCK_BATCH_MQ, "LockHandlers.lock", body="JSON"),
    hands_out(Code.UNLOCK_BATCH_MQ, "LockHandlers.unlock", body="JSON"),
    consumes(Code.QUERY_CONSUMER_OFFSET, "OffsetHandlers.query", header=h.QueryOffsetHeader),
    hands_out(Code.UPDATE_CONSUMER_OFFSET, "OffsetHandlers.update", header=h.UpdateOffsetHeader),
    copies(Code.GET_ALL_CONSUMER_OFFSET, "OffsetHandlers.all_offsets", header=h.AllOffsetsHeader),
    bounds(Code.GET_MAX_OFFSET, "OffsetHandlers.max_offset", header=h.QueueHeader),
    bounds(Code.GET_MIN_OFFSET, "OffsetHandlers.min_offset", header=h.QueueHeader),
    bounds(Code.SEARCH_OFFSET_BY_TIMESTAMP, "OffsetHandlers.by_time", header=h.SearchOffsetHeader),
    bounds(Code.GET_EARLIEST_MSG_STORETIME, "OffsetHandlers.earliest", header=h.QueueHeader),
    bounds(Code.QUEUE_BOUNDS, "OffsetHandlers.bounds", body="msgpack"),
    of_group(Code.GET_CONSUME_STATS, "QueryHandlers.consume_stats", header=h.ConsumeStatsHeader),
    sets(
        Code.INVOKE_BROKER_TO_RESET_OFFSET,
        "GroupOperations.reset",
        BOTH,
        header=group_headers.ResetOffsetHeader,
        body="JSON",
    ),
    sets(
        Code.CLONE_GROUP_OFFSET,
        "GroupOperations.clone",
        BOTH,
        header=group_headers.CloneGroupHeader,
    ),
    consumes(
        Code.INVOKE_BROKER_TO_GET_CONSUMER_STATUS,
        "GroupOperations.positions",
        header=group_headers.ConsumerStatusHeader,
        asked_by=TOOLS,
    ),
    of_group(
        Code.GET_CONSUMER_RUNNING_INFO,
        "GroupOperations.running_info",
        header=group_headers.RunningInfoHeader,
        asked_by=TOOLS,
    ),
    changes(
        Code.CONSUME_MESSAGE_DIRECTLY,
        "GroupOperations.consume_directly",
        BOTH,
        header=group_headers.ConsumeDirectlyHeader,
    ),
    shows(
        Code.GET_BROKER_CONSUME_STATS,
        "GroupOperations.all_stats",
        header=group_headers.BrokerConsumeStatsHeader,
    ),
    shows(Code.GET_ALL_PRODUCER_INFO, "GroupOperations.producers"),
    of_group(
        Code.GET_CONSUMER_CONNECTION_LIST,
        "QueryHandlers.consumers",
        header=ConsumerGroupHeader,
        asked_by=TOOLS,
    ),
    shows(
        Code.GET_PRODUCER_CONNECTION_LIST,
        "QueryHandlers.producers",
        resource=GROUP,
        header=h.ProducerGroupHeader,
    ),
)
ADMINISTRATION = (
    sets(
        Code.UPDATE_AND_CREATE_TOPIC,
        "TopicHandlers.create_topic",
        TOPIC,
        header=h.CreateTopicHeader,
    ),
    sets(Code.DELETE_TOPIC_IN_BROKER, "TopicHandlers.delete_topic", TOPIC, header=TopicHeader),
    copies(Code.GET_ALL_TOPIC_CONFIG, "TopicHandlers.all_topics"),
    bounds(Code.GET_TOPIC_CONFIG, "TopicHandlers.topic_config", header=TopicHeader, asked_by=TOOLS),
    reads(
        Code.QUERY_TOPIC_CONSUME_BY_WHO,
        "TopicHandlers.topic_groups",
        header=TopicHeader,
        asked_by=TOOLS,
    ),
    shows(Code.GET_SYSTEM_TOPIC_LIST_FROM_BROKER, "TopicHandlers.system_topics"),
    bounds(
        Code.GET_TOPIC_STATS_INFO, "QueryHandlers.topic_stats", header=TopicHeader, asked_by=TOOLS
    ),
    sets(
        Code.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, "TopicHandlers.create_group", GROUP, body="JSON"
    ),
    sets(
        Code.DELETE_SUBSCRIPTIONGROUP,
        "TopicHandlers.delete_group",
        GROUP,
        header=h.DeleteGroupHeader,
    ),
    copies(Code.GET_ALL_SUBSCRIPTIONGROUP_CONFIG, "TopicHandlers.all_groups"),
    shows(Code.GET_BROKER_CONFIG, "AdminHandlers.broker_config", fence=FREE, any_state=True),
    sets(Code.UPDATE_BROKER_CONFIG, "SettingsHandlers.update", CLUSTER, body="key=value"),
    copies(
        Code.BROKER_SETTINGS,
        "SettingsHandlers.told",
        body="answered with msgpack",
    ),
    shows(Code.GET_BROKER_RUNTIME_INFO, "StatisticsHandlers.runtime_info"),
    shows(Code.VIEW_BROKER_STATS_DATA, "StatisticsHandlers.view", header=h.BrokerStatsHeader),
    consumes(
        Code.QUERY_CONSUME_QUEUE,
        "QueryHandlers.consume_queue",
        header=h.ConsumeQueueHeader,
        asked_by=TOOLS,
    ),
    copies(Code.GET_ALL_DELAY_OFFSET, "AdminHandlers.delay_offsets"),
    shows(
        Code.BROKER_STATUS,
        "AdminHandlers.broker_status",
        asked_by=OURS | TOOLS,
        fence=FREE,
        any_state=True,
    ),
    shows(
        Code.BROKER_OVERVIEW,
        "OverviewHandlers.overview",
        action=ANY,
        body="msgpack; told of what the account has a right on",
        asked_by=OURS | Asker.OPERATOR,
        fence=FREE,
        any_state=True,
    ),
    reads(
        Code.BROWSE_MESSAGES,
        "BrowseHandlers.browse",
        header=BrowseHeader,
        asked_by=OURS | Asker.OPERATOR,
    ),
    changes(
        Code.NOTE_CHANGE,
        "BrowseHandlers.note_change",
        CLUSTER,
        asked_by=OURS | Asker.OPERATOR,
        fence=FREE,
        any_state=True,
    ),
    changes(Code.DRAIN_BROKER, "Drain.ordered", CLUSTER, body="msgpack", asked_by=Asker.OPERATOR),
    changes(Code.DELETE_EXPIRED_COMMITLOG, "Upkeep.delete_expired", CLUSTER),
    changes(Code.CLEAN_EXPIRED_CONSUMEQUEUE, "Upkeep.clean_expired_queues", CLUSTER),
    sets(Code.CLEAN_UNUSED_TOPIC, "Upkeep.clean_unused_topics", CLUSTER),
    changes(
        Code.UPDATE_AND_CREATE_ACL_CONFIG,
        "AccessHandlers.put_account",
        CLUSTER,
        fence=FREE,
    ),
    changes(Code.DELETE_ACL_CONFIG, "AccessHandlers.drop_account", CLUSTER, fence=FREE),
    changes(
        Code.UPDATE_GLOBAL_WHITE_ADDRS_CONFIG,
        "AccessHandlers.set_white_addresses",
        CLUSTER,
        fence=FREE,
    ),
    shows(Code.GET_BROKER_CLUSTER_ACL_INFO, "AccessHandlers.version", fence=FREE),
    shows(Code.GET_BROKER_CLUSTER_ACL_CONFIG, "AccessHandlers.accounts", fence=FREE),
    replicates(Code.FOLLOW_LOG, "Replication.follow", body="msgpack"),
    replicates(Code.REPLICATE, "Replication.replicate", body="msgpack"),
    replicates(Code.REPLICA_STATE, "Replication.state"),
    replicates(Code.GIVE_RECORDS, "Replication.given", body="two numbers, bytes of the log"),
)
NAME_SERVERS = (
    registers(
        Code.REGISTER_BROKER,
        "RouteHandlers.register",
        header=h.RegisterBrokerHeader,
        body="JSON, or packed by zlib",
    ),
    registers(Code.UNREGISTER_BROKER, "RouteHandlers.unregister", header=h.BrokerHeader),
    registers(Code.QUERY_DATA_VERSION, "RouteHandlers.query_data_version", header=h.BrokerHeader),
    routes(
        Code.GET_ROUTEINFO_BY_TOPIC,
        "RouteHandlers.route",
        resource=TOPIC,
        header=h.RouteHeader,
        asked_by=OURS | Asker.BROKER | TOOLS,
    ),
    routes(Code.GET_BROKER_CLUSTER_INFO, "RouteHandlers.cluster_info"),
    routes(Code.GET_ALL_TOPIC_LIST_FROM_NAMESERVER, "RouteHandlers.all_topics"),
    routes(Code.GET_TOPICS_BY_CLUSTER, "RouteHandlers.topics_of_cluster"),
    routes(Code.GET_SYSTEM_TOPIC_LIST_FROM_NS, "RouteHandlers.system_topics"),
    routes(Code.GET_UNIT_TOPIC_LIST, "RouteHandlers.unit_topics"),
    routes(Code.GET_HAS_UNIT_SUB_TOPIC_LIST, "RouteHandlers.unit_topics"),
    routes(Code.GET_HAS_UNIT_SUB_UNUNIT_TOPIC_LIST, "RouteHandlers.unit_topics"),
    configures(
        Code.WIPE_WRITE_PERM_OF_BROKER,
        "RouteHandlers.wipe_write_permission",
        header=h.BrokerNameHeader,
    ),
    configures(
        Code.ADD_WRITE_PERM_OF_BROKER,
        "RouteHandlers.add_write_permission",
        header=h.BrokerNameHeader,
    ),
    configures(
        Code.DELETE_TOPIC_IN_NAMESRV,
        "RouteHandlers.delete_topic",
        resource=TOPIC,
        header=TopicHeader,
    ),
    configures(Code.PUT_KV_CONFIG, "NameServerSettingsHandlers.put", header=h.KeyValueHeader),
    configures(
        Code.GET_KV_CONFIG, "NameServerSettingsHandlers.get", header=h.KeyValueHeader, audited=False
    ),
    configures(Code.DELETE_KV_CONFIG, "NameServerSettingsHandlers.delete", header=h.KeyValueHeader),
    configures(
        Code.GET_KVLIST_BY_NAMESPACE,
        "NameServerSettingsHandlers.list_all",
        header=h.KeyValueHeader,
        audited=False,
    ),
    configures(
        Code.UPDATE_NAMESRV_CONFIG, "NameServerSettingsHandlers.update_config", body="key=value"
    ),
    configures(Code.GET_NAMESRV_CONFIG, "NameServerSettingsHandlers.get_config", audited=False),
)
CLIENTS = (
    tells(
        Code.CHECK_TRANSACTION_STATE,
        "TransactionChecks.asked",
        header=h.CheckTransactionHeader,
        body="record",
    ),
    tells(Code.NOTIFY_CONSUMER_IDS_CHANGED, "ClientInstance"),
    tells(
        Code.RESET_CONSUMER_CLIENT_OFFSET,
        "consumers",
        header=group_headers.ResetOffsetHeader,
        body="JSON",
    ),
    tells(
        Code.GET_CONSUMER_STATUS_FROM_CLIENT, "consumers", header=group_headers.ConsumerStatusHeader
    ),
    tells(Code.GET_CONSUMER_RUNNING_INFO, "consumers", header=group_headers.RunningInfoHeader),
    tells(
        Code.CONSUME_MESSAGE_DIRECTLY,
        "consumers",
        header=group_headers.ConsumeDirectlyHeader,
        body="record",
    ),
    tells(
        Code.PUSH_REPLY_MESSAGE_TO_CLIENT, "RequestReply", header=PushReplyHeader, body="message"
    ),
)
OTHERS = (
    opens(Code.HELLO, "ServerPeer", body="msgpack"),
    opens(Code.PROVE, "ServerPeer", body="32 bytes"),
)
REQUESTS: tuple[Row, ...] = (
    *SENDS,
    *READS,
    *GROUPS,
    *ADMINISTRATION,
    *NAME_SERVERS,
    *CLIENTS,
    *OTHERS,
)
"""Every row, in the order of the page."""


def rows_of(party: Party) -> dict[int, Row]:
    """Code -> row of what ``party`` serves."""
    return {int(row.code): row for row in REQUESTS if row.served_by is party}


def bind(party: Party, *parts: object) -> dict[int, tuple[Row, Handler]]:
    """Code -> row and bound handler, which is looked up by name among ``parts``."""
    named = {type(part).__name__: part for part in parts}
    bound = {}
    for code, row in rows_of(party).items():
        holder, _, method = row.handler.partition(".")
        bound[code] = row, getattr(named[holder], method)
    return bound
