"""Settings: frozen groups, each field with its unit (in the name), its default and the reason for
it.

The only place that reads the environment. Unknown keys are errors; values are checked when a group
is built. Defaults are Apache RocketMQ 4.9's where it has the setting.
"""

from __future__ import annotations

import os
import re
from enum import Enum
from typing import Any

from msgspec import field

from rmq_ray.setting import AT_ONCE, NEXT_START, Group, require, setting, within

MIB = 1 << 20
GIB = 1 << 30
# a producer's frames on their way span fewer: with a smaller window a new one could not be told
# from a repeat
DEDUPLICATION_FRAMES = 1_024
HOUR_MS, DAY_MS = 3_600_000, 86_400_000
# of any setting: a frame has 16 MiB. What is read from a disk may be as long, for it may have been
# written under another setting
BODY_BYTES_MAX = 15 * MIB
DEFAULT_CLUSTER = "default"
CLUSTER_VARIABLE = "RMQ_CLUSTER"
"""Of the environment: the cluster that calls and commands mean which name none."""
_NAMESPACE = re.compile(r"[a-zA-Z0-9_-]+")
_HOUR = r"([01]?[0-9]|2[0-3])\s*"
_HOURS = re.compile(rf"\s*({_HOUR}(;\s*{_HOUR})*)?")


def environment(name: str, default: str | None = None) -> str | None:
    """An environment variable of ours or of Ray's; the one reading place."""
    return os.environ.get(name, default)


class FlushMode(Enum):
    """When a write counts as durable."""

    ASYNC_FLUSH = "async"  # when the kernel has it; fdatasync follows within flush_interval_ms
    SYNC_FLUSH = "sync"  # when fdatasync returned; one call covers all that wait


class ReplicationMode(Enum):
    """When a send is acknowledged with regard to slaves."""

    ASYNC_MASTER = "async"
    SYNC_MASTER = "sync"


class ForeignClients(Enum):
    """What a port does with connections that do not begin with our handshake."""

    CLOSED = "closed"
    OPEN = "open"
    ACL = "acl"


class TlsMode(Enum):
    """What a port does with a connection whose first byte begins TLS, and with one that does
    not.
    """

    DISABLED = "disabled"  # plain only
    PERMISSIVE = "permissive"  # both: for the time in which clients change over
    ENFORCING = "enforcing"  # TLS only


class ClientAuth(Enum):
    """Whether a client must show a certificate that the CA signed."""

    NONE = "none"
    OPTIONAL = "optional"  # it need not, but a wrong one is refused
    REQUIRE = "require"


class StoreConfig(Group, frozen=True):
    """One broker's store on one disk (spec: store-format 1, 7, 8, 13)."""

    path: str  # its directory
    flush: FlushMode = FlushMode.ASYNC_FLUSH  # SYNC_FLUSH: a send is on disk when it is answered
    segment_bytes: int = within(GIB, 4_096, (1 << 31) - 4096, "mappedFileSizeCommitLog")
    consume_queue_entries: int = within(300_000, 16, 1 << 26)  # entries of 20 bytes a file
    # entries refer to units with store time and bit map of SQL filters
    consume_queue_ext: bool = setting(False, "enableConsumeQueueExt")
    consume_queue_ext_bytes: int = within(
        48 * MIB, 65_536, (1 << 31) - 1, "mappedFileSizeConsumeQueueExt"
    )
    filter_bit_maps: bool = setting(False, "enableCalcFilterBitMap")  # needs consume_queue_ext
    index_slots: int = within(5_000_000, 1, 100_000_000)  # hash slots of an index file
    index_items: int = within(20_000_000, 2, 87_000_000)  # entries of an index file
    index_enabled: bool = setting(True, "messageIndexEnable")
    flush_interval_ms: int = within(500, 1, DAY_MS, "flushIntervalCommitLog", NEXT_START)
    flush_least_pages: int = within(4, 0, 4_096, "flushCommitLogLeastPages", NEXT_START)
    flush_thorough_interval_ms: int = within(
        10_000, 1, DAY_MS, "flushCommitLogThoroughInterval", NEXT_START
    )
    sync_flush_timeout_ms: int = within(5_000, 1, DAY_MS, "syncFlushTimeout")  # FLUSH_DISK_TIMEOUT
    # appends are gathered in buffers and acknowledged when committed; ASYNC_FLUSH only
    transient_store_pool: bool = setting(False, "transientStorePoolEnable")
    # buffers, used again and again
    transient_store_pool_size: int = within(5, 1, 1_024, "transientStorePoolSize")
    transient_buffer_bytes: int = within(4 * MIB, 4_096, GIB)  # of each (RocketMQ: a whole segment)
    commit_interval_ms: int = within(200, 1, 60_000, "commitIntervalCommitLog")
    commit_least_pages: int = within(4, 1, 4_096, "commitCommitLogLeastPages")
    queue_flush_interval_ms: int = within(1_000, 1, DAY_MS)  # consume queue
    # then however little there is
    queue_flush_thorough_interval_ms: int = within(60_000, 1, DAY_MS)
    # ours: short recovery
    checkpoint_interval_ms: int = within(1_000, 1, DAY_MS, changes=NEXT_START)
    checkpoint_bytes: int = within(64 * MIB, 4_096, 1 << 40)  # or after so much of log
    body_bytes_max: int = within(4 * MIB, 1, BODY_BYTES_MAX, "maxMessageSize", AT_ONCE)
    # window per producer and broker name
    deduplication_frames: int = within(DEDUPLICATION_FRAMES, DEDUPLICATION_FRAMES, 1 << 20)
    deduplication_keep_ms: int = within(600_000, 1, DAY_MS)  # producers heard within 10 minutes
    reserved_hours: int = within(72, 0, 1_000_000, "fileReservedTime", AT_ONCE)
    delete_when: str = setting("04", "deleteWhen", AT_ONCE)  # hours of the day, ";"-separated
    # expired segments go at any hour
    disk_delete_ratio: float = within(0.75, 0.01, 1.0, "diskMaxUsedSpaceRatio", AT_ONCE)
    # segments of any age go, where little is free
    disk_force_ratio: float = within(0.85, 0.01, 1.0, "diskSpaceCleanForciblyRatio", AT_ONCE)
    # sends are refused, where little is free
    disk_full_ratio: float = within(0.90, 0.01, 1.0, "diskSpaceWarningLevelRatio", AT_ONCE)
    # ours: on a large disk a tenth is plenty. Writes are refused beneath this as well as over the
    # ratio, segments of any age go beneath twice this: a few segments of 1 GiB
    disk_free_bytes_min: int = within(4 * GIB, 0, 1 << 60, changes=AT_ONCE)
    delete_files_max: int = within(10, 1, 10_000, "deleteFileBatchMax", AT_ONCE)  # a cycle
    check_crc_on_recover: bool = True
    # posix_fallocate of the next segment: fdatasync is 4 times as fast, no SIGBUS, no surprise
    preallocate: bool = True

    def _check_together(self) -> None:
        require(bool(self.path), "store path must be given", self.path)
        require(
            self.segment_bytes % 4096 == 0,
            "segment_bytes must be a multiple of 4096",
            self.segment_bytes,
        )
        require(
            self.consume_queue_ext or not self.filter_bit_maps,
            "filter_bit_maps needs consume_queue_ext=True",
            self.filter_bit_maps,
        )
        require(
            _HOURS.fullmatch(self.delete_when) is not None,
            "delete_when must be hours of the day like '04' or '04;16'",
            self.delete_when,
        )
        ratios = (self.disk_delete_ratio, self.disk_force_ratio, self.disk_full_ratio)
        require(
            ratios[0] <= ratios[1] <= ratios[2],
            "disk ratios must rise from delete over force to full",
            ratios,
        )

    @property
    def gathers(self) -> bool:
        """Whether appends go through the transient store pool: not under SYNC_FLUSH, as in
        RocketMQ.
        """
        return self.transient_store_pool and self.flush is FlushMode.ASYNC_FLUSH

    @property
    def acknowledges_later(self) -> bool:
        """Whether a send waits after its append: for the disk (SYNC_FLUSH), for the commit
        (``gathers``).
        """
        return self.flush is FlushMode.SYNC_FLUSH or self.gathers


class RemotingLimits(Group, frozen=True):
    """What one listener or connection accepts before it refuses or closes."""

    # RocketMQ's 16 MiB less the length field
    frame_bytes_max: int = within(16_777_212, 1, 16 * GIB)
    connections_max: int = within(4_096, 1, 16 * GIB)
    # of one address: room for others is left
    connections_per_host_max: int = within(3_072, 1, 16 * GIB)
    # connections of one address that proved nothing yet
    half_open_per_host_max: int = within(1_024, 1, 16 * GIB)
    # topics and groups that were not there, asked for by an account
    account_names_max: int = within(1_000, 1, 16 * GIB)
    unanswered_requests_max: int = within(65_535, 1, 16 * GIB)  # a connection of ours
    # queued answers of one connection before it is closed
    unsent_bytes_max: int = within(64 * MIB, 1, 16 * GIB)
    handshake_timeout_ms: int = within(5_000, 1, 16 * GIB)
    # RocketMQ closes after 120 s without traffic
    idle_timeout_ms: int = within(120_000, 1, 16 * GIB)
    connect_timeout_ms: int = within(3_000, 1, 16 * GIB)
    request_timeout_ms: int = within(3_000, 1, 16 * GIB)


class AuditConfig(Group, frozen=True):
    """The audit log of one server (docs/security.md)."""

    file_bytes_max: int = within(16 * MIB, 4_096, 16 * GIB)  # then the next file begins
    files_max: int = within(4, 1, 100)  # the newest; older ones are removed
    # repeats of one refusal within it are counted, not written
    fold_ms: int = within(10_000, 0, DAY_MS)


class Tls(Group, frozen=True):
    """How a client speaks TLS. Each of ``ca``, ``certificate`` and ``key`` is the path of a PEM
    file, which is read again for new connections when it changes, or its text.
    """

    __secret__ = ("key", "key_password")

    ca: str = ""  # who signs the servers' certificates; "" = whom the system trusts
    certificate: str = ""  # the client's own, where servers have client_auth
    key: str = ""  # of the certificate; "" = in the same file
    key_password: str = ""
    check_host: bool = True  # the certificate must name the host that is connected to

    def _check_together(self) -> None:
        require(
            bool(self.certificate) or not self.key,
            "a key needs its certificate, which is",
            self.certificate,
        )


class TlsSettings(Group, frozen=True):
    """TLS of a server's port, and of what the server itself connects to. Paths of PEM files, each
    on the host of its server; they are read again when they change.
    """

    __secret__ = ("key_password",)

    mode: TlsMode = TlsMode.DISABLED
    certificate: str = ""  # of the server, the chain behind it
    key: str = ""  # of the certificate; "" = in the same file
    key_password: str = ""
    ca: str = ""  # whom clients and other servers believe, and who signs clients' certificates
    client_auth: ClientAuth = ClientAuth.NONE
    client_certificate: str = ""  # what clients get that find the cluster through Ray
    client_key: str = ""  # its key; "" = in the same file
    check_host: bool = True  # certificates must name the host that is connected to

    def _check_together(self) -> None:
        if self.mode is TlsMode.DISABLED:
            return
        require(bool(self.certificate), "tls needs a certificate, a PEM file", self.certificate)
        require(bool(self.ca), "tls needs ca, the PEM file of who signed it", self.ca)


class BrokerConfig(Group, frozen=True):
    """One broker (brokerName, brokerId): rules of protocol-behaviour 5, 9-12, 17-19."""

    store: StoreConfig  # its disk
    broker_name: str = "broker-a"  # slaves of a master share it
    broker_id: int = within(0, 0, 1_000)  # 0 = master
    cluster_name: str = DEFAULT_CLUSTER  # as name servers know it
    host: str = "127.0.0.1"  # interface that is listened on
    advertise: str | None = None  # address told to name servers; None = host
    port: int = within(0, 0, 65_535)  # 0 = chosen once and kept
    name_servers: tuple[str, ...] = ()  # "host:port"
    foreign: ForeignClients = ForeignClients.CLOSED  # who may come without our handshake
    replication: ReplicationMode = ReplicationMode.ASYNC_MASTER  # brokerRole; of a master
    # SYNC_MASTER: copies in sync that an acknowledgement needs, the master's counted; with 1 it
    # waits for the slaves in sync, and goes on alone while none is
    copies_min: int = within(2, 1, 16)
    slave_timeout_ms: int = within(3_000, 1, 3_600_000, "slaveTimeout")  # FLUSH_SLAVE_TIMEOUT
    # a slave that lacks bytes for longer leaves the in-sync set (RocketMQ 5: 15 s)
    in_sync_lag_ms: int = within(5_000, 100, 3_600_000)
    # consumers far behind are sent to slaves
    slave_reads: bool = setting(False, "slaveReadEnable", AT_ONCE)
    master: str | None = None  # haMasterAddress, of a slave: "host:port"; None = name servers tell
    # how often a slave fetches topics, groups and offsets
    replica_sync_ms: int = within(10_000, 100, 3_600_000)
    replica_bytes: int = within(4 * MIB, 4_096, 32 * MIB)  # of log in one answer to a slave
    # 2 = write, 4 = read, 6 = both
    permission: int = setting(6, "brokerPermission", AT_ONCE, choices=(2, 4, 6))
    auto_create_topics: bool = setting(True, "autoCreateTopicEnable", AT_ONCE)
    auto_create_groups: bool = setting(True, "autoCreateSubscriptionGroup", AT_ONCE)
    default_topic_queues: int = within(8, 1, 4_096, "defaultTopicQueueNums", NEXT_START)  # TBW102
    register_interval_ms: int = within(30_000, 1, DAY_MS)  # how often name servers hear of it
    # SQL92 filters may be used (RocketMQ: False)
    property_filter: bool = setting(True, "enablePropertyFilter", AT_ONCE)
    long_polling: bool = setting(True, "longPollingEnable", NEXT_START)  # pulls wait for a message
    # how long they wait where long_polling is False
    short_polling_ms: int = within(1_000, 1, DAY_MS, "shortPollingTimeMills", AT_ONCE)
    hold_check_ms: int = within(5_000, 1, DAY_MS)  # how often parked pulls are looked through
    # busy for a fifth of the time or more, the broker looks for input so long before its core
    # sleeps; 0 = sleeps at once
    busy_poll_us: int = within(1_000, 0, 100_000)
    hold_link: str | None = None  # Unix socket of the hold service; None = hold inside the broker
    # how often groups' offsets are written
    offset_persist_ms: int = within(5_000, 1, DAY_MS, "flushConsumerOffsetInterval", NEXT_START)
    # how often offsets of the delay levels are written
    delay_persist_ms: int = within(10_000, 1, DAY_MS, "flushDelayOffsetInterval", NEXT_START)
    delay_levels: str = "1s 5s 10s 30s 1m 2m 3m 4m 5m 6m 7m 8m 9m 10m 20m 30m 1h 2h"
    # delay and deliver_at; RocketMQ 5 has 3 days (timerMaxDelaySec)
    timer_max_delay_hours: int = within(24 * 365, 1, 24 * 3_660, changes=NEXT_START)
    # waiting messages that are due within it are in memory
    timer_window_ms: int = within(600_000, 1, DAY_MS)
    timer_window_messages: int = within(1_000_000, 1, 1 << 30)  # but at most so many, 24 bytes each
    # delivered since then: delivered again after a crash
    timer_checkpoint_ms: int = within(1_000, 1, DAY_MS)
    # timerRollWindowSlot: who waits longer gets a new record, before retention takes the old one
    timer_roll_hours: int = within(48, 1, 24 * 366)
    # a half message is not asked about while it is younger
    transaction_timeout_ms: int = within(6_000, 0, DAY_MS, "transactionTimeOut", AT_ONCE)
    transaction_check_interval_ms: int = within(
        60_000, 1, DAY_MS, "transactionCheckInterval", AT_ONCE
    )
    # then TRANS_CHECK_MAX_TIME_TOPIC
    transaction_check_max: int = within(15, 0, 10_000, "transactionCheckMax", AT_ONCE)
    reject_transactions: bool = setting(False, "rejectTransactionMessage", AT_ONCE)
    # a client that is silent for longer is gone
    channel_expiry_ms: int = within(120_000, 1, DAY_MS, changes=AT_ONCE)
    housekeeping_ms: int = within(10_000, 1, DAY_MS)  # how often that is looked for
    # a holder that does not ask again for so long may be replaced
    queue_lock_ms: int = within(60_000, 1, DAY_MS, "rocketmq.broker.rebalance.lockMaxLiveTime")
    # our pulls; foreign ones keep RocketMQ's 32
    pull_records_max: int = within(8_192, 1, 65_536, changes=AT_ONCE)
    pull_bytes_max: int = within(MIB, 1, 15 * MIB, changes=AT_ONCE)  # of a response
    # unacknowledged send bytes before BrokerBusy
    in_flight_bytes_max: int = within(256 * MIB, 1, 1 << 40, changes=AT_ONCE)
    # sends that waited longer for a slow disk are refused; 0 = never
    stale_send_ms: int = within(200, 0, DAY_MS, "waitTimeMillsInSendQueue", AT_ONCE)
    # SYNC_FLUSH refuses while the oldest send waits longer; 0 = never
    disk_busy_ms: int = within(1_000, 0, DAY_MS, "osPageCacheBusyTimeOutMills", AT_ONCE)
    parked_pulls_max: int = within(100_000, 1, 1 << 30, changes=NEXT_START)  # more are refused
    store_replies: bool = setting(True, "storeReplyMessageEnable", AT_ONCE)
    send_hooks: tuple[
        Any, ...
    ] = ()  # objects with before(ctx) and after(ctx), pickled with this: server/send/send_hooks.py
    # popped and not settled, a group and queue
    pop_in_flight_max: int = within(10_000, 1, 1 << 30, "popInflightMessageThreshold", AT_ONCE)
    # of the actor's log, a line each
    log_format: str = setting("text", choices=("text", "json"))
    # <store>/rmq_ray/logs/broker.log; then the next begins
    log_file_bytes_max: int = within(16 * MIB, 65_536, 16 * GIB)
    log_files_max: int = within(5, 2, 1_000)  # the newest; older ones are removed
    tls: TlsSettings = field(default_factory=TlsSettings)
    limits: RemotingLimits = field(default_factory=RemotingLimits)
    audit: AuditConfig = field(default_factory=AuditConfig)


class FailoverConfig(Group, frozen=True):
    """When a slave takes over, in clusters that have slaves."""

    automatic: bool = True  # False: another replica is master only by `rmq-ray broker promote`
    # a master that does not serve for so long is replaced; Ray restarts a killed one in 1.3 s
    failover_after_ms: int = within(2_500, 100, 3_600_000)


class NameServerConfig(Group, frozen=True):
    """One name server (protocol-behaviour 4)."""

    host: str = "127.0.0.1"
    port: int = within(0, 0, 65_535)
    cluster_name: str = DEFAULT_CLUSTER
    directory: str = ""  # port and kvConfig.json live here; "" = nothing is kept
    broker_expiry_ms: int = within(120_000, 1_000, DAY_MS)
    scan_interval_ms: int = within(10_000, 1, DAY_MS)
    order_messages: bool = setting(False, "orderMessageEnable")  # routes carry orderTopicConf
    foreign: ForeignClients = ForeignClients.CLOSED
    tls: TlsSettings = field(default_factory=TlsSettings)
    limits: RemotingLimits = field(default_factory=RemotingLimits)
    audit: AuditConfig = field(default_factory=AuditConfig)


class ProducerConfig(Group, frozen=True):
    """A producer (protocol-behaviour 7, 8)."""

    group: str = "DEFAULT_PRODUCER_RMQ_RAY"  # its members answer for each other's transactions
    send_timeout_ms: int = within(3_000, 1, DAY_MS)  # one overall time-out
    retries: int = within(2, 0, 16)  # after the first attempt, sync and async
    # a longer one is MessageTooLarge
    body_bytes_max: int = within(4 * MIB, 1, BODY_BYTES_MAX, "maxMessageSize")
    default_topic_queues: int = within(4, 1, 1_024)  # of a topic that the first send creates
    retry_another_broker_when_not_store_ok: bool = False
    raise_on_status: bool = True  # SendUnconfirmed for a status below SEND_OK; RocketMQ returns it
    linger_ms: float = within(2.0, 0, 60_000)  # send_async: how long a message waits for others
    batch_messages_max: int = within(1_000, 1, 65_536)  # of a frame of send_async, or of threads
    batch_bytes_max: int = within(MIB, 1, 8 * MIB)  # of a frame
    frames_in_flight_max: int = within(8, 1, 256)  # a broker; send_async waits or raises beyond it
    # unanswered batches of send_async, all brokers together; holds a batch
    buffer_bytes_max: int = within(32 * MIB, 1, 1 << 40)
    # "block" waits up to the time-out, "raise" raises BrokerBusy at once; for a topic's next master
    # both wait up to the time-out
    on_full: str = setting("block", choices=("block", "raise"))
    # Apache RocketMQ 4.9's consumers read zlib only
    compression: str | None = setting(None, choices=(None, "zlib", "lz4", "zstd"))
    # shorter bodies stay as they are
    compress_over_bytes: int = within(4_096, 1, BODY_BYTES_MAX, "compressMsgBodyOverHowmuch")
    # None = 5 for zlib, which has 0 to 9; the codec's own for zstd
    compression_level: int | None = within(None, -7, 22)
    namespace: str = ""  # put before every topic and group name: ns%orders
    trace: bool = False  # enableMsgTrace: what became of each message, in trace_topic
    trace_topic: str = "RMQ_SYS_TRACE_TOPIC"  # where trace goes
    idempotent: bool = False  # retry an UNKNOWN on the same broker name only
    # keep away from slow and failing brokers
    latency_fault: bool = setting(False, "sendLatencyFaultEnable")
    # isolation ends when the broker answers again, not after 600 s
    latency_fault_probe: bool = True

    def _check_together(self) -> None:
        require(
            not self.namespace or _NAMESPACE.fullmatch(self.namespace) is not None,
            "namespace must consist of letters, digits, _ -",
            self.namespace,
        )
        require(bool(self.trace_topic), "trace_topic must be a topic", self.trace_topic)
        require(
            self.compression != "zlib" or (self.compression_level or 5) in range(10),
            "zlib has levels 0 to 9",
            self.compression_level,
        )
        require(
            self.buffer_bytes_max >= self.batch_bytes_max,
            "buffer_bytes_max must hold a batch of batch_bytes_max",
            self.buffer_bytes_max,
        )


class ConsumerConfig(Group, frozen=True):
    """A push consumer; ranges of protocol-behaviour 15 are enforced."""

    group: str  # whose offsets count
    concurrency: int = within(20, 1, 1_000)  # threads; consumeThreadMin = consumeThreadMax
    # of a call; of messages at most 1024
    batch_size: int = within(1, 1, 8_192, "consumeMessageBatchMaxSize")
    # a response; cut into batch_size pieces in the client (RocketMQ: 32)
    pull_records: int = within(256, 1, 8_192)
    pull_bytes: int = within(MIB, 1, 15 * MIB)  # a response
    pull_interval_ms: int = within(0, 0, 65_535)  # between two pulls of a queue
    # with so many unfinished messages a queue is not pulled
    threshold_messages: int = within(1_000, 1, 65_535, "pullThresholdForQueue")
    threshold_mib: int = within(100, 1, 1_024, "pullThresholdSizeForQueue")  # the same by size
    # of a topic's queues here together
    threshold_messages_topic: int = within(-1, 1, 6_553_500, "pullThresholdForTopic", none=-1)
    threshold_mib_topic: int = within(-1, 1, 102_400, "pullThresholdSizeForTopic", none=-1)
    # of all queues of the consumer together; divided among them as the topic's are
    threshold_messages_group: int = within(-1, 1, 6_553_500, none=-1)
    threshold_mib_group: int = within(-1, 1, 102_400, none=-1)
    # offsets from first to last unfinished one
    max_span: int = within(2_000, 1, 65_535, "consumeConcurrentlyMaxSpan")
    suspend_ms: int = within(15_000, 0, 3_600_000)  # broker holds a pull this long
    pull_timeout_ms: int = within(30_000, 1, DAY_MS)  # for the answer; above suspend_ms
    flow_control_delay_ms: int = within(50, 1, 3_600_000)  # before a full queue is looked at again
    exception_delay_ms: int = within(1_000, 1, 3_600_000)  # before a failed pull is repeated
    offset_persist_ms: int = within(5_000, 1, 3_600_000)  # how often brokers are told the offsets
    offset_persist_first_ms: int = within(10_000, 0, DAY_MS)  # the first time after the start
    # how often queues are divided, unless something changes
    rebalance_ms: int = within(20_000, 1, 3_600_000)
    heartbeat_ms: int = within(30_000, 1, 3_600_000)  # how often brokers hear of it
    pull_idle_ms: int = within(120_000, 1, DAY_MS)  # recovery of a queue whose pulls stopped
    # then a message that a listener still has is sent back
    consume_timeout_minutes: int = within(15, 1, 525_600)
    # -1 = 16 for concurrent consumption, without end for orderly
    max_reconsume_times: int = within(-1, 0, (1 << 31) - 1, "maxReconsumeTimes", none=-1)
    # pause of an ordered queue after a failure
    suspend_queue_ms: int = within(1_000, 10, 30_000, "suspendCurrentQueueTimeMillis")
    lock_refresh_ms: int = within(20_000, 10, 3_600_000, "rocketmq.client.rebalance.lockInterval")
    # without a refresh for so long nothing is handed out; below queue_lock_ms
    lock_trusted_ms: int = within(
        30_000, 10, 3_600_000, "rocketmq.client.rebalance.lockMaxLiveTime"
    )
    # of a lock that was refused while messages wait for it
    lock_retry_ms: int = within(3_000, 1, 3_600_000)
    # then a queue lets the others have the thread
    max_continuous_ms: int = within(
        60_000, 1, 3_600_000, "rocketmq.client.maxTimeConsumeContinuously"
    )
    # before a message that no broker took back comes again here
    send_back_retry_ms: int = within(5_000, 1, 3_600_000)
    # before an offset out of range is corrected
    offset_illegal_delay_ms: int = within(10_000, 0, DAY_MS)
    consume_timestamp_ms: int | None = None  # start_from="timestamp"; None = 30 minutes ago
    # where broadcasting consumers keep offsets; "" = ~/.rocketmq_offsets
    local_offset_dir: str = setting("", "rocketmq.client.localOffsetStoreDir")
    namespace: str = ""  # put before every topic and group name: ns%orders

    def _check_together(self) -> None:
        require(
            self.lock_trusted_ms >= self.lock_refresh_ms,
            f"lock_trusted_ms must be {self.lock_refresh_ms} to 3600000",
            self.lock_trusted_ms,
        )

    @property
    def offsets_root(self) -> str:
        """The directory of broadcasting consumers' offsets."""
        return self.local_offset_dir or os.path.join(os.path.expanduser("~"), ".rocketmq_offsets")


def put_environment(name: str, value: str) -> None:
    """Set an environment variable of this process and its children; the one writing place."""
    os.environ[name] = value
