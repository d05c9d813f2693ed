"""Ext fields of requests and responses as values (remoting 3-7).

Every class is made of its fields' wire names and types; ``from_fields`` parses what came,
``to_fields`` writes what goes. All values are text on the wire. A required field that is missing or
cannot be parsed raises ``HeaderInvalid`` with its name (Apache RocketMQ answers an exception's text
there; a clear remark is all a client can use).
"""

from __future__ import annotations

from rmq_ray.model.ids import FrameId
from rmq_ray.remoting.wire.header import Fields, Header, Int32, wire_names

_LETTERS = {
    "a": "producerGroup",
    "b": "topic",
    "c": "defaultTopic",
    "d": "defaultTopicQueueNums",
    "e": "queueId",
    "f": "sysFlag",
    "g": "bornTimestamp",
    "h": "flag",
    "i": "properties",
    "j": "reconsumeTimes",
    "k": "unitMode",
    "l": "maxReconsumeTimes",
    "m": "batch",
    "n": "bname",
    "rmqFrame": "rmqFrame",
}


class PushReplyHeader(
    Header,
    frozen=True,
    rename=wire_names(
        born_ms="bornTimestamp",
        store_ms="storeTimestamp",
        default_topic_queues="defaultTopicQueueNums",
    ),
):
    """``born_host``, ``store_host``: ``ip:port``. ``properties`` hold CORRELATION_ID."""

    producer_group: str
    topic: str
    default_topic: str
    default_topic_queues: Int32
    queue_id: Int32
    sys_flag: Int32
    born_ms: int
    flag: Int32
    born_host: str
    store_host: str
    store_ms: int
    properties: str | None = None
    reconsume_times: Int32 | None = None
    unit_mode: bool | None = None


class SendHeader(
    Header,
    frozen=True,
    rename=wire_names(
        default_topic_queues="defaultTopicQueueNums",
        born_ms="bornTimestamp",
        broker_name="bname",
        frame_id="rmqFrame",
    ),
):
    """SEND_MESSAGE 10, long names. ``from_v2`` and ``to_v2`` use the letters of 310 and 320.

    ``frame_id``: ours, makes a retry of a single message recognisable; travels as ``rmqFrame``,
    producer id and sequence in hex.
    """

    producer_group: str
    topic: str
    queue_id: Int32
    sys_flag: Int32
    born_ms: int
    flag: Int32
    default_topic: str = "TBW102"
    default_topic_queues: Int32 = 4
    properties: str | None = None
    reconsume_times: Int32 | None = None
    unit_mode: bool | None = None
    batch: bool | None = None
    max_reconsume_times: Int32 | None = None
    broker_name: str | None = None
    frame_id: FrameId | None = None

    @classmethod
    def from_v2(cls, found: Fields) -> SendHeader:
        """From the letters a..m."""
        source = found or {}
        return cls.from_fields(
            {long: source[letter] for letter, long in _LETTERS.items() if letter in source}
        )

    def to_v2(self) -> dict[str, str]:
        """As the letters a..n."""
        long = self.to_fields()
        return {letter: long[name] for letter, name in _LETTERS.items() if name in long}


class SendAnswerHeader(Header, frozen=True, rename=wire_names(message_id="msgId")):
    """Answer to a send: the offset id, the queue and its offset."""

    message_id: str
    queue_id: Int32
    queue_offset: int
    transaction_id: str | None = None


class PullHeader(
    Header,
    frozen=True,
    rename=wire_names(max_count="maxMsgNums", suspend_ms="suspendTimeoutMillis"),
):
    """PULL_MESSAGE 11 (remoting 7)."""

    consumer_group: str
    topic: str
    queue_id: Int32
    queue_offset: int
    max_count: Int32
    sys_flag: Int32
    commit_offset: int
    suspend_ms: int
    sub_version: int
    subscription: str | None = None
    expression_type: str | None = None


class PullAnswerHeader(
    Header,
    frozen=True,
    rename=wire_names(suggested_broker="suggestWhichBrokerId", next_offset="nextBeginOffset"),
):
    """The four fields that are always there when the store was asked."""

    suggested_broker: int
    next_offset: int
    min_offset: int
    max_offset: int


class QueueHeader(Header, frozen=True):
    """30, 31, 32: a queue of a topic."""

    topic: str
    queue_id: Int32


class SearchOffsetHeader(
    Header, frozen=True, rename=wire_names(timestamp_ms="timestamp", exact="rmqExact")
):
    """SEARCH_OFFSET_BY_TIMESTAMP 29. ``exact`` (ours): the first message stored then or later, the
    queue's end where there is none; without it RocketMQ's answer.
    """

    topic: str
    queue_id: Int32
    timestamp_ms: int
    exact: bool | None = None


class QueryOffsetHeader(
    Header, frozen=True, rename=wire_names(with_epoch="rmqWithEpoch", known_ms="rmqKnownMs")
):
    """QUERY_CONSUMER_OFFSET 14. ``set_zero_if_not_found`` False (RocketMQ 5): only an offset that
    was committed is one; brokers of 4.9 do not know it. ``with_epoch`` (ours): the answer shall
    name the log's epoch, and how long the group is known in the topic. ``known_ms`` (ours): how
    long another broker of the topic knows it.
    """

    consumer_group: str
    topic: str
    queue_id: Int32
    set_zero_if_not_found: bool | None = None
    with_epoch: bool | None = None
    known_ms: int | None = None


class GroupKnown(Header, frozen=True, rename=wire_names(known_ms="rmqKnownMs")):
    """For how long the group has had a position in the topic (ours): in an answer of 14, with or
    without an offset, at this broker, where it was asked ``with_epoch``; in a pop that begins, at
    another one. None where it has none.
    """

    known_ms: int | None = None


class FailedTry(Header, frozen=True, rename=wire_names(reconsume_times="rmqReconsumeTimes")):
    """What a SETTLE_POPPED gives back are failed tries (ours): of messages that had come again so
    often before. None: it says nothing of failures.
    """

    reconsume_times: int | None = None


class UpdateOffsetHeader(
    Header,
    frozen=True,
    rename=wire_names(
        lock_epoch="rmqLockEpoch",
        client_id="rmqClient",
        log_epoch="rmqLogEpoch",
        increase_only="rmqIncreaseOnly",
    ),
):
    """UPDATE_CONSUMER_OFFSET 15. ``lock_epoch`` (ours): under which lock of the queue this was
    consumed in order. ``client_id`` (ours): a consumer says so, whatever this connection has told
    before; tools leave it out. ``log_epoch`` (ours): of the answer that brought the reader there.
    ``increase_only`` (ours): nobody asked to go back, so what is higher stays.
    """

    consumer_group: str
    topic: str
    queue_id: Int32
    commit_offset: int
    lock_epoch: int | None = None
    client_id: str | None = None
    log_epoch: int | None = None
    increase_only: bool | None = None


class AllOffsetsHeader(Header, frozen=True, rename=wire_names(since="rmqSince")):
    """GET_ALL_CONSUMER_OFFSET 43. ``since`` (ours): only what changed behind that change, if the
    broker can tell.
    """

    since: int | None = None


class AllOffsetsAnswer(
    Header, frozen=True, rename=wire_names(change="rmqChange", since="rmqSince")
):
    """Answer of 43. ``change`` (ours): the latest one in it. ``since`` (ours): the body holds no
    more than what changed behind that one.
    """

    change: int | None = None
    since: int | None = None


class OffsetAnswer(Header, frozen=True, rename=wire_names(log_epoch="rmqLogEpoch")):
    """Answer of 14, 29, 30, 31. ``log_epoch`` (ours): in which the offset holds, where 14 was asked
    for it.
    """

    offset: int
    log_epoch: int | None = None


class ViewMessageHeader(Header, frozen=True):
    """VIEW_MESSAGE_BY_ID 33: a physical offset."""

    offset: int


class QueryMessageHeader(
    Header,
    frozen=True,
    rename=wire_names(
        max_count="maxNum",
        begin_ms="beginTimestamp",
        end_ms="endTimestamp",
        unique_key="_UNIQUE_KEY_QUERY",
    ),
):
    """QUERY_MESSAGE 12."""

    topic: str
    key: str
    max_count: Int32
    begin_ms: int
    end_ms: int
    unique_key: bool | None = None


class UnregisterClientHeader(Header, frozen=True, rename=wire_names(client_id="clientID")):
    """UNREGISTER_CLIENT 35: one of the groups."""

    client_id: str
    producer_group: str | None = None
    consumer_group: str | None = None


class SendBackHeader(
    Header,
    frozen=True,
    rename=wire_names(
        origin_message_id="originMsgId", failed_with="rmqFailedWith", failed_on="rmqFailedOn"
    ),
):
    """CONSUMER_SEND_MSG_BACK 36. ``delay_level``: 0 = the broker decides, -1 = dead letter. Ours:
    ``failed_with``, why the listener failed, and ``failed_on``, the client that it belongs to.
    """

    offset: int
    group: str
    delay_level: Int32
    origin_message_id: str | None = None
    origin_topic: str | None = None
    unit_mode: bool | None = None
    max_reconsume_times: Int32 | None = None
    failed_with: str | None = None
    failed_on: str | None = None


class EndTransactionHeader(
    Header,
    frozen=True,
    rename=wire_names(
        state_table_offset="tranStateTableOffset", message_id="msgId", ask_another="rmqAskAnother"
    ),
):
    """END_TRANSACTION 37. ``commit_or_rollback``: 8 commit, 12 rollback, 0 unknown. Ours is
    ``ask_another``: who was asked cannot say, the next producer of the group is to be asked.
    """

    producer_group: str
    state_table_offset: int
    commit_log_offset: int
    commit_or_rollback: Int32
    message_id: str
    from_transaction_check: bool | None = None
    transaction_id: str | None = None
    ask_another: bool | None = None


class CheckTransactionHeader(
    Header,
    frozen=True,
    rename=wire_names(
        state_table_offset="tranStateTableOffset",
        message_id="msgId",
        offset_message_id="offsetMsgId",
    ),
):
    """CHECK_TRANSACTION_STATE 39, broker to producer: offsets of the half that END_TRANSACTION must
    name.
    """

    state_table_offset: int
    commit_log_offset: int
    message_id: str | None = None
    transaction_id: str | None = None
    offset_message_id: str | None = None


class RecallHeader(Header, frozen=True):
    """RECALL_MESSAGE 370."""

    topic: str
    recall_handle: str
    producer_group: str | None = None


class ConsumerGroupHeader(Header, frozen=True):
    """38, 40, 203: a consumer group."""

    consumer_group: str


class ProducerGroupHeader(Header, frozen=True):
    """204: a producer group."""

    producer_group: str


class CreateTopicHeader(
    Header,
    frozen=True,
    rename=wire_names(
        read_queues="readQueueNums",
        write_queues="writeQueueNums",
        permission="perm",
        filter_type="topicFilterType",
        sys_flag="topicSysFlag",
    ),
):
    """UPDATE_AND_CREATE_TOPIC 17."""

    topic: str
    default_topic: str
    read_queues: Int32
    write_queues: Int32
    permission: Int32
    filter_type: str = "SINGLE_TAG"
    sys_flag: Int32 | None = None
    order: bool = False
    attributes: str | None = None
    """RocketMQ 5's changes of attributes, separated by commas: ``+name=value`` sets one, ``-name``
    takes it away.
    """


class TopicHeader(Header, frozen=True):
    """202, 215, 216, 300: a topic, and where it matters a cluster."""

    topic: str
    cluster_name: str | None = None


class DeleteGroupHeader(Header, frozen=True):
    """DELETE_SUBSCRIPTIONGROUP 207. ``remove_offset``: all that the group has goes, too; ours:
    ``keep_dead_letters``, but for its dead letters.
    """

    group_name: str
    remove_offset: bool | None = None
    keep_dead_letters: bool | None = None


class ConsumeStatsHeader(Header, frozen=True):
    """GET_CONSUME_STATS 208; without a topic: all that the group consumes."""

    consumer_group: str
    topic: str | None = None


class ConsumeQueueHeader(Header, frozen=True):
    """QUERY_CONSUME_QUEUE 321."""

    topic: str
    queue_id: Int32
    index: int
    count: Int32
    consumer_group: str | None = None


class BrokerStatsHeader(Header, frozen=True):
    """VIEW_BROKER_STATS_DATA 315: one statistic of one topic, group or cluster."""

    stats_name: str
    stats_key: str


class RouteHeader(Header, frozen=True):
    """GET_ROUTEINFO_BY_TOPIC 105."""

    topic: str
    accept_standard_json_only: bool | None = None


class RegisterBrokerHeader(
    Header,
    frozen=True,
    rename=wire_names(ha_address="haServerAddr", body_crc="bodyCrc32", broker_address="brokerAddr"),
):
    """REGISTER_BROKER 103. ``body_crc``: CRC-32 of the body as sent, without the sign bit; 0 = not
    checked. ``master_epoch``: our own field, of a master that a controller elected.
    """

    broker_name: str
    broker_address: str
    cluster_name: str
    ha_address: str
    broker_id: int
    compressed: bool = False
    body_crc: int | None = None
    master_epoch: int | None = None


class RegisterBrokerAnswer(
    Header, frozen=True, rename=wire_names(master_address="masterAddr", ha_address="haServerAddr")
):
    """Only slaves are told their master."""

    master_address: str | None = None
    ha_address: str | None = None


class BrokerHeader(Header, frozen=True, rename=wire_names(broker_address="brokerAddr")):
    """104 and 322: one broker."""

    broker_name: str
    broker_address: str
    cluster_name: str
    broker_id: int


class BrokerNameHeader(Header, frozen=True):
    """205 and 327."""

    broker_name: str


class KeyValueHeader(Header, frozen=True):
    """100, 101, 102, 219: the name server's own table."""

    namespace: str
    key: str | None = None
    value: str | None = None
