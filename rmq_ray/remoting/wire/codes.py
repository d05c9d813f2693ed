"""Request and response codes (remoting 3-6, protocol-behaviour 2). Ours begin at 20001, outside
RocketMQ's range.
"""

from __future__ import annotations

from enum import IntEnum


class RequestCode(IntEnum):
    """What a request asks for; from 20001 on ours."""

    SEND_MESSAGE = 10
    PULL_MESSAGE = 11
    QUERY_MESSAGE = 12
    QUERY_CONSUMER_OFFSET = 14
    UPDATE_CONSUMER_OFFSET = 15
    UPDATE_AND_CREATE_TOPIC = 17
    GET_ALL_TOPIC_CONFIG = 21
    UPDATE_BROKER_CONFIG = 25
    GET_BROKER_CONFIG = 26
    GET_BROKER_RUNTIME_INFO = 28
    SEARCH_OFFSET_BY_TIMESTAMP = 29
    GET_MAX_OFFSET = 30
    GET_MIN_OFFSET = 31
    GET_EARLIEST_MSG_STORETIME = 32
    VIEW_MESSAGE_BY_ID = 33
    HEART_BEAT = 34
    UNREGISTER_CLIENT = 35
    CONSUMER_SEND_MSG_BACK = 36
    END_TRANSACTION = 37
    GET_CONSUMER_LIST_BY_GROUP = 38
    CHECK_TRANSACTION_STATE = 39
    NOTIFY_CONSUMER_IDS_CHANGED = 40
    LOCK_BATCH_MQ = 41
    UNLOCK_BATCH_MQ = 42
    GET_ALL_CONSUMER_OFFSET = 43
    GET_ALL_DELAY_OFFSET = 45
    CHECK_CLIENT_CONFIG = 46
    UPDATE_AND_CREATE_ACL_CONFIG = 50
    DELETE_ACL_CONFIG = 51
    GET_BROKER_CLUSTER_ACL_INFO = 52
    UPDATE_GLOBAL_WHITE_ADDRS_CONFIG = 53
    GET_BROKER_CLUSTER_ACL_CONFIG = 54
    PUT_KV_CONFIG = 100
    GET_KV_CONFIG = 101
    DELETE_KV_CONFIG = 102
    REGISTER_BROKER = 103
    UNREGISTER_BROKER = 104
    GET_ROUTEINFO_BY_TOPIC = 105
    GET_BROKER_CLUSTER_INFO = 106
    UPDATE_AND_CREATE_SUBSCRIPTIONGROUP = 200
    GET_ALL_SUBSCRIPTIONGROUP_CONFIG = 201
    GET_TOPIC_STATS_INFO = 202
    GET_CONSUMER_CONNECTION_LIST = 203
    GET_PRODUCER_CONNECTION_LIST = 204
    WIPE_WRITE_PERM_OF_BROKER = 205
    GET_ALL_TOPIC_LIST_FROM_NAMESERVER = 206
    DELETE_SUBSCRIPTIONGROUP = 207
    GET_CONSUME_STATS = 208
    DELETE_TOPIC_IN_BROKER = 215
    DELETE_TOPIC_IN_NAMESRV = 216
    GET_KVLIST_BY_NAMESPACE = 219
    RESET_CONSUMER_CLIENT_OFFSET = 220
    GET_CONSUMER_STATUS_FROM_CLIENT = 221
    INVOKE_BROKER_TO_RESET_OFFSET = 222
    INVOKE_BROKER_TO_GET_CONSUMER_STATUS = 223
    GET_TOPICS_BY_CLUSTER = 224
    QUERY_TOPIC_CONSUME_BY_WHO = 300
    GET_SYSTEM_TOPIC_LIST_FROM_NS = 304
    GET_SYSTEM_TOPIC_LIST_FROM_BROKER = 305
    CLEAN_EXPIRED_CONSUMEQUEUE = 306
    GET_CONSUMER_RUNNING_INFO = 307
    CONSUME_MESSAGE_DIRECTLY = 309
    SEND_MESSAGE_V2 = 310
    GET_UNIT_TOPIC_LIST = 311
    GET_HAS_UNIT_SUB_TOPIC_LIST = 312
    GET_HAS_UNIT_SUB_UNUNIT_TOPIC_LIST = 313
    CLONE_GROUP_OFFSET = 314
    VIEW_BROKER_STATS_DATA = 315
    CLEAN_UNUSED_TOPIC = 316
    GET_BROKER_CONSUME_STATS = 317
    UPDATE_NAMESRV_CONFIG = 318
    GET_NAMESRV_CONFIG = 319
    SEND_BATCH_MESSAGE = 320
    QUERY_CONSUME_QUEUE = 321
    QUERY_DATA_VERSION = 322
    SEND_REPLY_MESSAGE = 324
    SEND_REPLY_MESSAGE_V2 = 325
    PUSH_REPLY_MESSAGE_TO_CLIENT = 326
    ADD_WRITE_PERM_OF_BROKER = 327
    GET_ALL_PRODUCER_INFO = 328
    DELETE_EXPIRED_COMMITLOG = 329
    GET_TOPIC_CONFIG = 351
    """RocketMQ 5's tools ask for one topic's settings."""
    RECALL_MESSAGE = 370
    """RocketMQ 5's: take a message back that waits for its delivery time."""
    HELLO = 20001
    """Ours: first frame of a connection. msgpack [protocol version, cluster, role, client nonce (32
    bytes)] -> [server nonce].
    """
    PROVE = 20002
    """Ours: second frame. HMAC-SHA256(secret, client nonce + server nonce + cluster + 0 + role) ->
    code 0 or 16.
    """
    SEND_RECORDS = 20010
    """Ours: a frame of pre-encoded records; see ``remoting.wire.records``."""
    PULL_RECORDS = 20011
    """Ours: a pull whose answer carries an array of sizes and as many records as the byte limit
    allows.
    """
    FOLLOW_LOG = 20040
    """Ours: a slave shows the end of its log and is told what to follow; see
    ``remoting.wire.replicas``.
    """
    REPLICATE = 20041
    """Ours: a slave's poll for bytes of the log, which acknowledges what it has; held until there
    are some.
    """
    REPLICA_STATE = 20042
    """Ours: what a slave keeps besides topics, groups and offsets."""
    GIVE_RECORDS = 20080
    """Ours: a slave's whole records for a stretch that its master has broken, and asked for in an
    answer to REPLICATE.
    """
    BUNDLE = 20060
    """Ours: several single requests of one client in one frame; see
    ``server.send.bundle_handler``.
    """
    SEND_HALVES = 20061
    """Ours: a frame of half messages of one real queue, as SEND_RECORDS; see
    ``remoting.wire.halves``.
    """
    END_TRANSACTIONS = 20062
    """Ours: many ends of one producer group's transactions; see ``remoting.wire.halves``."""
    SCAN_RECORDS = 20020
    """Ours: a bulk read of queue offsets [start, end); same answer as PULL_RECORDS, never
    suspended, no group.
    """
    PIN_SEGMENTS = 20021
    UNPIN_SEGMENTS = 20022
    QUEUE_BOUNDS = 20023
    """Ours: msgpack [topics] -> {topic: {queue id: [min, max]}}; an empty list = all topics."""
    STORE_INFO = 20024
    """Ours: msgpack map of what a reader beside the log must know: host_id, path, identity, epoch,
    visible_end, segment_bytes, ...
    """
    BROKER_STATUS = 20025
    """Ours: msgpack map of counters and states for ``status`` and tests."""
    DRAIN_BROKER = 20026
    """Ours: msgpack [true or false]: take no more messages, or take them again; see
    ``server.core.drain``.
    """
    BROKER_OVERVIEW = 20027
    """Ours: groups with their lag, topics, clients and status of a broker in one answer; see
    ``remoting.wire.overview``.
    """
    BROWSE_MESSAGES = 20100
    """Ours: messages of all queues of a topic for people to look at; see
    ``remoting.wire.browse``.
    """
    NOTE_CHANGE = 20101
    """Ours: a line of the audit log for what a console does that no other request tells."""
    BROKER_SETTINGS = 20070
    """Ours: settings that change while a broker runs, their limits and sources; see
    ``server.admin.settings_handlers``.
    """
    POP_RECORDS = 20030
    """Ours: take messages of any queue for a time; see ``remoting.wire.pops``."""
    SETTLE_POPPED = 20031
    """Ours: acknowledge, put off or reject popped messages; safe to repeat."""


class ResponseCode(IntEnum):
    """How a request ended; from 20001 on ours."""

    SUCCESS = 0
    SYSTEM_ERROR = 1
    SYSTEM_BUSY = 2
    REQUEST_CODE_NOT_SUPPORTED = 3
    TRANSACTION_FAILED = 4
    FLUSH_DISK_TIMEOUT = 10
    SLAVE_NOT_AVAILABLE = 11
    FLUSH_SLAVE_TIMEOUT = 12
    MESSAGE_ILLEGAL = 13
    SERVICE_NOT_AVAILABLE = 14
    VERSION_NOT_SUPPORTED = 15
    NO_PERMISSION = 16
    TOPIC_NOT_EXIST = 17
    TOPIC_EXIST_ALREADY = 18
    PULL_NOT_FOUND = 19
    PULL_RETRY_IMMEDIATELY = 20
    PULL_OFFSET_MOVED = 21
    QUERY_NOT_FOUND = 22
    SUBSCRIPTION_PARSE_FAILED = 23
    SUBSCRIPTION_NOT_EXIST = 24
    SUBSCRIPTION_NOT_LATEST = 25
    SUBSCRIPTION_GROUP_NOT_EXIST = 26
    FILTER_DATA_NOT_EXIST = 27
    FILTER_DATA_NOT_LATEST = 28
    TRANSACTION_SHOULD_COMMIT = 200
    TRANSACTION_SHOULD_ROLLBACK = 201
    TRANSACTION_STATE_UNKNOW = 202
    TRANSACTION_STATE_GROUP_WRONG = 203
    NO_BUYER_ID = 204
    NOT_IN_CURRENT_UNIT = 205
    CONSUMER_NOT_ONLINE = 206
    CONSUME_MSG_TIMEOUT = 207
    NO_MESSAGE = 208
    UPDATE_AND_CREATE_ACL_CONFIG_FAILED = 209
    DELETE_ACL_CONFIG_FAILED = 210
    UPDATE_GLOBAL_WHITE_ADDRS_CONFIG_FAILED = 211
    FLOW_CONTROL = 215
    DUPLICATE_MISMATCH = 20001
    """Ours: (producer id, sequence) was used before with other bytes."""
    STILL_RECOVERING = 20002
    """Ours: the broker reads its disk; a definite refusal, repeat within the time-out without
    counting it.
    """
    BAD_RECORDS = 20003
    """Ours: a frame of records failed the checks; nothing was written; the remark names the record
    and the fault.
    """
    NOT_AUTHORIZED = 20004
    """Ours: the account has not the right that this needs; the remark says which one, and on what.
    Apache RocketMQ's clients get code 1, as its own brokers answer.
    """
    TOPIC_FULL = 20090
    """Ours: as much of a bounded topic waits for its consumers as may; nothing was written.
    Apache RocketMQ's clients get code 2, SYSTEM_BUSY.
    """
    NO_ROOM = 20091
    """Ours: the send names a bound (``SendWithin``) that it would pass; nothing was written."""
    LOG_DIVERGED = 20040
    """Ours: a slave's log is no prefix of the master's; the remark says where they part."""
    MASTER_FENCED = 20041
    """Ours: the slave knows a later epoch than this master, which was replaced."""
    GROUP_IN_OTHER_USE = 20030
    """Ours: the group is popped and pushed or pulled at once, or with another subscription; the
    remark says by whom.
    """
