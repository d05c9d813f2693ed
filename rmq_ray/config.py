"""Settings: frozen groups, each field with its unit (in the name), its default and the reason for
it.

The only place that reads the environment. Unknown keys are errors; values are checked when a group
is built. Defaults are Apache RocketMQ 4.9's where it has the setting.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from enum import Enum
from numbers import Integral, Real
from typing import Any, Self

from rmq_ray.errors import ConfigError

MIB = 1 << 20
GIB = 1 << 30
# a producer's frames on their way span fewer: with a smaller window a new one could not be told
# from a repeat
DEDUPLICATION_FRAMES = 1_024
DAY_MS = 86_400_000
# of any setting: a frame has 16 MiB. What is read from a disk may be as long, for it may have been
# written under another setting
BODY_BYTES_MAX = 15 * MIB
DEFAULT_CLUSTER = "default"
CLUSTER_VARIABLE = "RMQ_CLUSTER"
"""Of the environment: the cluster that calls and commands mean which name none."""


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


class _Group:
    """Mixin of the setting groups: build from a mapping with unknown keys refused."""

    @classmethod
    def from_mapping(cls, values: Mapping[str, Any]) -> Self:
        """The settings that a mapping names; ``ConfigError`` for an unknown one."""
        known = {f.name for f in fields(cls)}  # type: ignore[arg-type]
        for key in values:
            if key not in known:
                raise ConfigError(
                    f"unknown setting {key!r} in {cls.__name__}; known are "
                    f"{', '.join(sorted(known))}",
                    key,
                )
        return cls(**values)

    def but(self, **changes: Any) -> Self:
        """A copy with some fields changed; unknown names are errors."""
        known = {f.name for f in fields(self)}  # type: ignore[arg-type]
        for key in changes:
            if key not in known:
                raise ConfigError(
                    f"unknown setting {key!r} in {type(self).__name__}; known are "
                    f"{', '.join(sorted(known))}",
                    key,
                )
        return replace(self, **changes)  # type: ignore[type-var]


def _is_whole(value: object) -> bool:
    return isinstance(value, Integral) and not isinstance(value, bool)


def _require(condition: bool, what: str, value: object) -> None:
    if not condition:
        raise ConfigError(f"{what}, not {value!r}", value)


def _within(group: object, **limits: tuple[int, int]) -> None:
    """``ConfigError`` for a setting that is no whole number between its limits, both included."""
    for name, (low, high) in limits.items():
        value = getattr(group, name)
        _require(
            _is_whole(value) and low <= value <= high, f"{name} must be {low} to {high}", value
        )


_NAMESPACE = re.compile(r"[a-zA-Z0-9_-]+")
_HOUR = r"([01]?[0-9]|2[0-3])\s*"
_HOURS = re.compile(rf"\s*({_HOUR}(;\s*{_HOUR})*)?")
_KINDS: dict[str, type] = {
    "int": Integral,
    "float": Real,
    "str": str,
    "bool": bool,
    "None": type(None),
}


def _check_kinds(group: Any) -> None:
    """``ConfigError`` for a value of another kind than its field's: numbers, strings and switches
    only.
    """
    for setting in fields(group):
        value, kinds = getattr(group, setting.name), str(setting.type).split(" | ")
        if all(kind in _KINDS for kind in kinds):
            fits = any(isinstance(value, _KINDS[kind]) for kind in kinds) and (
                not isinstance(value, bool) or "bool" in kinds
            )
            _require(fits, f"{setting.name} must be {setting.type.replace(' | ', ' or ')}", value)


@dataclass(frozen=True, slots=True)
class StoreConfig(_Group):
    """One broker's store on one disk (spec: store-format 1, 7, 8, 13)."""

    path: str  # its directory
    flush: FlushMode = FlushMode.ASYNC_FLUSH  # SYNC_FLUSH: a send is on disk when it is answered
    segment_bytes: int = GIB  # mappedFileSizeCommitLog
    consume_queue_entries: int = 300_000  # entries of 20 bytes a file
    # enableConsumeQueueExt: entries refer to units with store time and bit map of SQL filters
    consume_queue_ext: bool = False
    consume_queue_ext_bytes: int = 48 * MIB  # mappedFileSizeConsumeQueueExt
    filter_bit_maps: bool = False  # enableCalcFilterBitMap: needs consume_queue_ext
    index_slots: int = 5_000_000  # hash slots of an index file
    index_items: int = 20_000_000  # entries of an index file
    index_enabled: bool = True  # messageIndexEnable
    flush_interval_ms: int = 500  # flushIntervalCommitLog
    flush_least_pages: int = 4  # flushCommitLogLeastPages
    flush_thorough_interval_ms: int = 10_000  # flushCommitLogThoroughInterval
    sync_flush_timeout_ms: int = 5_000  # syncFlushTimeout -> FLUSH_DISK_TIMEOUT
    # transientStorePoolEnable: appends are gathered in buffers and acknowledged when committed;
    # ASYNC_FLUSH only
    transient_store_pool: bool = False
    transient_store_pool_size: int = 5  # transientStorePoolSize: buffers, used again and again
    transient_buffer_bytes: int = 4 * MIB  # of each (RocketMQ: a whole segment)
    commit_interval_ms: int = 200  # commitIntervalCommitLog
    commit_least_pages: int = 4  # commitCommitLogLeastPages
    queue_flush_interval_ms: int = 1_000  # consume queue
    queue_flush_thorough_interval_ms: int = 60_000  # then however little there is
    checkpoint_interval_ms: int = 1_000  # ours: short recovery
    checkpoint_bytes: int = 64 * MIB  # or after so much of log
    body_bytes_max: int = 4 * MIB  # maxMessageSize
    deduplication_frames: int = DEDUPLICATION_FRAMES  # window per producer and broker name
    deduplication_keep_ms: int = 600_000  # producers heard within 10 minutes
    reserved_hours: int = 72  # fileReservedTime
    delete_when: str = "04"  # hours of the day, ';'-separated
    disk_delete_ratio: float = 0.75  # diskMaxUsedSpaceRatio: expired segments go at any hour
    disk_force_ratio: float = 0.85  # segments of any age go, where little is free
    disk_full_ratio: float = 0.90  # sends are refused, where little is free
    # ours: on a large disk a tenth is plenty. Writes are refused beneath this as well as over the
    # ratio, segments of any age go beneath twice this: a few segments of 1 GiB
    disk_free_bytes_min: int = 4 * GIB
    delete_files_max: int = 10  # a cycle
    check_crc_on_recover: bool = True
    # posix_fallocate of the next segment: fdatasync is 4 times as fast, no SIGBUS, no surprise
    preallocate: bool = True

    def __post_init__(self) -> None:
        _check_kinds(self)
        _require(bool(self.path), "store path must be given", self.path)
        _require(
            self.segment_bytes % 4096 == 0,
            "segment_bytes must be a multiple of 4096",
            self.segment_bytes,
        )
        _require(
            self.consume_queue_ext or not self.filter_bit_maps,
            "filter_bit_maps needs consume_queue_ext=True",
            self.filter_bit_maps,
        )
        _require(
            _HOURS.fullmatch(self.delete_when) is not None,
            "delete_when must be hours of the day like '04' or '04;16'",
            self.delete_when,
        )
        ratios = (self.disk_delete_ratio, self.disk_force_ratio, self.disk_full_ratio)
        _require(
            0 < ratios[0] <= ratios[1] <= ratios[2] <= 1,
            "disk ratios must rise from delete over force to full, within (0, 1]",
            ratios,
        )
        _within(  # no file of 2 GiB: Apache RocketMQ counts a file's bytes in 31 bits
            self,
            body_bytes_max=(1, BODY_BYTES_MAX),
            index_slots=(1, 100_000_000),
            index_items=(2, 87_000_000),
            transient_store_pool_size=(1, 1_024),
            commit_interval_ms=(1, 60_000),
            commit_least_pages=(1, 4_096),
            flush_interval_ms=(1, DAY_MS),
            flush_least_pages=(0, 4_096),
            flush_thorough_interval_ms=(1, DAY_MS),
            sync_flush_timeout_ms=(1, DAY_MS),
            queue_flush_interval_ms=(1, DAY_MS),
            queue_flush_thorough_interval_ms=(1, DAY_MS),
            transient_buffer_bytes=(4_096, GIB),
            checkpoint_interval_ms=(1, DAY_MS),
            checkpoint_bytes=(4_096, 1 << 40),
            disk_free_bytes_min=(0, 1 << 60),
            segment_bytes=(4_096, (1 << 31) - 4096),
            deduplication_frames=(DEDUPLICATION_FRAMES, 1 << 20),
            deduplication_keep_ms=(1, DAY_MS),
            reserved_hours=(0, 1_000_000),
            delete_files_max=(1, 10_000),
            consume_queue_entries=(16, 1 << 26),
            consume_queue_ext_bytes=(65_536, (1 << 31) - 1),
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


@dataclass(frozen=True, slots=True)
class RemotingLimits(_Group):
    """What one listener or connection accepts before it refuses or closes."""

    frame_bytes_max: int = 16_777_212  # RocketMQ's 16 MiB less the length field
    connections_max: int = 4_096
    connections_per_host_max: int = 3_072  # of one address: room for others is left
    half_open_per_host_max: int = 1_024  # connections of one address that proved nothing yet
    account_names_max: int = 1_000  # topics and groups that were not there, asked for by an account
    unanswered_requests_max: int = 65_535  # a connection of ours
    unsent_bytes_max: int = 64 * MIB  # queued answers of one connection before it is closed
    handshake_timeout_ms: int = 5_000
    idle_timeout_ms: int = 120_000  # RocketMQ closes after 120 s without traffic
    connect_timeout_ms: int = 3_000
    request_timeout_ms: int = 3_000

    def __post_init__(self) -> None:
        _check_kinds(self)
        _within(self, **{setting.name: (1, 16 * GIB) for setting in fields(self)})


@dataclass(frozen=True, slots=True)
class AuditConfig(_Group):
    """The audit log of one server (docs/security.md)."""

    file_bytes_max: int = 16 * MIB  # then the next file begins
    files_max: int = 4  # the newest; older ones are removed
    fold_ms: int = 10_000  # repeats of one refusal within it are counted, not written

    def __post_init__(self) -> None:
        _check_kinds(self)
        _within(self, file_bytes_max=(4_096, 16 * GIB), files_max=(1, 100), fold_ms=(0, DAY_MS))


@dataclass(frozen=True, slots=True)
class Tls(_Group):
    """How a client speaks TLS. Each of ``ca``, ``certificate`` and ``key`` is the path of a PEM
    file, which is read again for new connections when it changes, or its text.
    """

    ca: str = ""  # who signs the servers' certificates; "" = whom the system trusts
    certificate: str = ""  # the client's own, where servers have client_auth
    key: str = field(default="", repr=False)  # of the certificate; "" = in the same file
    key_password: str = field(default="", repr=False)
    check_host: bool = True  # the certificate must name the host that is connected to

    def __post_init__(self) -> None:
        _check_kinds(self)
        _require(
            bool(self.certificate) or not self.key,
            "a key needs its certificate, which is",
            self.certificate,
        )


@dataclass(frozen=True, slots=True)
class TlsSettings(_Group):
    """TLS of a server's port, and of what the server itself connects to. Paths of PEM files, each
    on the host of its server; they are read again when they change.
    """

    mode: TlsMode = TlsMode.DISABLED
    certificate: str = ""  # of the server, the chain behind it
    key: str = ""  # of the certificate; "" = in the same file
    key_password: str = field(default="", repr=False)
    ca: str = ""  # whom clients and other servers believe, and who signs clients' certificates
    client_auth: ClientAuth = ClientAuth.NONE
    client_certificate: str = ""  # what clients get that find the cluster through Ray
    client_key: str = ""  # its key; "" = in the same file
    check_host: bool = True  # certificates must name the host that is connected to

    def __post_init__(self) -> None:
        _check_kinds(self)
        if self.mode is TlsMode.DISABLED:
            return
        _require(bool(self.certificate), "tls needs a certificate, a PEM file", self.certificate)
        _require(bool(self.ca), "tls needs ca, the PEM file of who signed it", self.ca)


@dataclass(frozen=True, slots=True)
class BrokerConfig(_Group):
    """One broker (brokerName, brokerId): rules of protocol-behaviour 5, 9-12, 17-19."""

    store: StoreConfig  # its disk
    broker_name: str = "broker-a"  # slaves of a master share it
    broker_id: int = 0  # 0 = master
    cluster_name: str = DEFAULT_CLUSTER  # as name servers know it
    host: str = "127.0.0.1"  # interface that is listened on
    advertise: str | None = None  # address told to name servers; None = host
    port: int = 0  # 0 = chosen once and kept
    name_servers: tuple[str, ...] = ()  # "host:port"
    foreign: ForeignClients = ForeignClients.CLOSED  # who may come without our handshake
    replication: ReplicationMode = ReplicationMode.ASYNC_MASTER  # brokerRole; of a master
    # SYNC_MASTER: copies in sync that an acknowledgement needs, the master's counted; with 1 it
    # waits for the slaves in sync, and goes on alone while none is
    copies_min: int = 2
    slave_timeout_ms: int = 3_000  # slaveTimeout -> FLUSH_SLAVE_TIMEOUT
    # a slave that lacks bytes for longer leaves the in-sync set (RocketMQ 5: 15 s)
    in_sync_lag_ms: int = 5_000
    slave_reads: bool = False  # slaveReadEnable: consumers far behind are sent to slaves
    master: str | None = None  # haMasterAddress, of a slave: "host:port"; None = name servers tell
    replica_sync_ms: int = 10_000  # how often a slave fetches topics, groups and offsets
    replica_bytes: int = 4 * MIB  # of log in one answer to a slave
    permission: int = 6  # brokerPermission: 2 = write, 4 = read, 6 = both
    auto_create_topics: bool = True  # autoCreateTopicEnable
    auto_create_groups: bool = True  # autoCreateSubscriptionGroup
    default_topic_queues: int = 8  # TBW102
    register_interval_ms: int = 30_000  # how often name servers hear of it
    # enablePropertyFilter: SQL92 filters may be used (RocketMQ: False)
    property_filter: bool = True
    long_polling: bool = True  # longPollingEnable: pulls wait for a message
    short_polling_ms: int = 1_000  # how long they wait where long_polling is False
    hold_check_ms: int = 5_000  # how often parked pulls are looked through
    # busy for a fifth of the time or more, the broker looks for input so long before its core
    # sleeps; 0 = sleeps at once
    busy_poll_us: int = 1_000
    hold_link: str | None = None  # Unix socket of the hold service; None = hold inside the broker
    offset_persist_ms: int = 5_000  # how often groups' offsets are written
    delay_persist_ms: int = 10_000  # how often offsets of the delay levels are written
    delay_levels: str = "1s 5s 10s 30s 1m 2m 3m 4m 5m 6m 7m 8m 9m 10m 20m 30m 1h 2h"
    # delay and deliver_at; RocketMQ 5 has 3 days (timerMaxDelaySec)
    timer_max_delay_hours: int = 24 * 365
    timer_window_ms: int = 600_000  # waiting messages that are due within it are in memory
    timer_window_messages: int = 1_000_000  # but at most so many, 24 bytes each
    timer_checkpoint_ms: int = 1_000  # delivered since then: delivered again after a crash
    # timerRollWindowSlot: who waits longer gets a new record, before retention takes the old one
    timer_roll_hours: int = 48
    # transactionTimeOut: a half message is not asked about while it is younger
    transaction_timeout_ms: int = 6_000
    transaction_check_interval_ms: int = 60_000  # transactionCheckInterval
    transaction_check_max: int = 15  # transactionCheckMax; then TRANS_CHECK_MAX_TIME_TOPIC
    reject_transactions: bool = False  # rejectTransactionMessage
    channel_expiry_ms: int = 120_000  # a client that is silent for longer is gone
    housekeeping_ms: int = 10_000  # how often that is looked for
    # rocketmq.broker.rebalance.lockMaxLiveTime: a holder that does not ask again for so long may be
    # replaced
    queue_lock_ms: int = 60_000
    pull_records_max: int = 8_192  # our pulls; foreign ones keep RocketMQ's 32
    pull_bytes_max: int = MIB  # of a response
    in_flight_bytes_max: int = 256 * MIB  # unacknowledged send bytes before BrokerBusy
    # waitTimeMillsInSendQueue: sends that waited longer for a slow disk are refused; 0 = never
    stale_send_ms: int = 200
    # osPageCacheBusyTimeOutMills: SYNC_FLUSH refuses while the oldest send waits longer; 0 = never
    disk_busy_ms: int = 1_000
    parked_pulls_max: int = 100_000  # more are refused
    store_replies: bool = True  # storeReplyMessageEnable
    send_hooks: tuple[
        Any, ...
    ] = ()  # objects with before(ctx) and after(ctx), pickled with this: server/send/send_hooks.py
    # popped and not settled, a group and queue (RocketMQ 5's popInflightMessageThreshold)
    pop_in_flight_max: int = 10_000
    log_format: str = "text"  # of the actor's log: "text" or "json", a line each
    log_file_bytes_max: int = 16 * MIB  # <store>/rmq_ray/logs/broker.log; then the next begins
    log_files_max: int = 5  # the newest; older ones are removed
    tls: TlsSettings = field(default_factory=TlsSettings)
    limits: RemotingLimits = field(default_factory=RemotingLimits)
    audit: AuditConfig = field(default_factory=AuditConfig)

    def __post_init__(self) -> None:
        _check_kinds(self)
        _require(
            1 <= self.copies_min <= 16,
            "copies_min must be 1 to 16 (the master counts; with 1 it goes on alone)",
            self.copies_min,
        )
        choices = {"permission": (2, 4, 6), "log_format": ("text", "json")}
        for name, allowed in choices.items():
            given = getattr(self, name)
            _require(given in allowed, f"{name} must be one of {allowed}", given)
        _within(
            self,
            broker_id=(0, 1_000),
            port=(0, 65_535),
            replica_bytes=(4_096, 32 * MIB),
            slave_timeout_ms=(1, 3_600_000),
            in_sync_lag_ms=(100, 3_600_000),
            replica_sync_ms=(100, 3_600_000),
            default_topic_queues=(1, 4_096),
            register_interval_ms=(1, DAY_MS),
            short_polling_ms=(1, DAY_MS),
            hold_check_ms=(1, DAY_MS),
            offset_persist_ms=(1, DAY_MS),
            delay_persist_ms=(1, DAY_MS),
            timer_max_delay_hours=(1, 24 * 3_660),
            timer_window_ms=(1, DAY_MS),
            timer_window_messages=(1, 1 << 30),
            timer_checkpoint_ms=(1, DAY_MS),
            timer_roll_hours=(1, 24 * 366),
            transaction_timeout_ms=(0, DAY_MS),
            transaction_check_interval_ms=(1, DAY_MS),
            transaction_check_max=(0, 10_000),
            channel_expiry_ms=(1, DAY_MS),
            housekeeping_ms=(1, DAY_MS),
            queue_lock_ms=(1, DAY_MS),
            pull_records_max=(1, 65_536),
            pull_bytes_max=(1, 15 * MIB),
            in_flight_bytes_max=(1, 1 << 40),
            stale_send_ms=(0, DAY_MS),
            disk_busy_ms=(0, DAY_MS),
            parked_pulls_max=(1, 1 << 30),
            pop_in_flight_max=(1, 1 << 30),
            busy_poll_us=(0, 100_000),
            log_file_bytes_max=(65_536, 16 * GIB),
            log_files_max=(2, 1_000),
        )


@dataclass(frozen=True, slots=True)
class FailoverConfig(_Group):
    """When a slave takes over, in clusters that have slaves."""

    automatic: bool = True  # False: another replica is master only by `rmq-ray broker promote`
    # a master that does not serve for so long is replaced; Ray restarts a killed one in 1.3 s
    failover_after_ms: int = 2_500

    def __post_init__(self) -> None:
        _check_kinds(self)
        _require(
            100 <= self.failover_after_ms <= 3_600_000,
            "failover_after_ms must be 100 to 3600000",
            self.failover_after_ms,
        )


@dataclass(frozen=True, slots=True)
class NameServerConfig(_Group):
    """One name server (protocol-behaviour 4)."""

    host: str = "127.0.0.1"
    port: int = 0
    cluster_name: str = DEFAULT_CLUSTER
    directory: str = ""  # port and kvConfig.json live here; "" = nothing is kept
    broker_expiry_ms: int = 120_000
    scan_interval_ms: int = 10_000
    order_messages: bool = False  # orderMessageEnable: routes carry orderTopicConf
    foreign: ForeignClients = ForeignClients.CLOSED
    tls: TlsSettings = field(default_factory=TlsSettings)
    limits: RemotingLimits = field(default_factory=RemotingLimits)
    audit: AuditConfig = field(default_factory=AuditConfig)

    def __post_init__(self) -> None:
        _check_kinds(self)
        _within(
            self, port=(0, 65_535), broker_expiry_ms=(1_000, DAY_MS), scan_interval_ms=(1, DAY_MS)
        )


@dataclass(frozen=True, slots=True)
class ProducerConfig(_Group):
    """A producer (protocol-behaviour 7, 8)."""

    group: str = "DEFAULT_PRODUCER_RMQ_RAY"  # its members answer for each other's transactions
    send_timeout_ms: int = 3_000  # one overall time-out
    retries: int = 2  # after the first attempt, sync and async
    body_bytes_max: int = 4 * MIB  # maxMessageSize; a longer one is MessageTooLarge
    default_topic_queues: int = 4  # of a topic that the first send creates
    retry_another_broker_when_not_store_ok: bool = False
    raise_on_status: bool = True  # SendUnconfirmed for a status below SEND_OK; RocketMQ returns it
    linger_ms: float = 2.0  # send_async: how long a message waits for others
    batch_messages_max: int = 1_000  # of a frame of send_async
    batch_bytes_max: int = MIB  # of a frame
    frames_in_flight_max: int = 8  # a broker; send_async waits or raises beyond it
    buffer_bytes_max: int = 32 * MIB  # unanswered batches of send_async, all brokers together
    # "block" waits up to the time-out, "raise" raises BrokerBusy at once; for a topic's next master
    # both wait up to the time-out
    on_full: str = "block"
    compression: str | None = (
        None  # "zlib", "lz4", "zstd"; Apache RocketMQ 4.9's consumers read zlib only
    )
    compress_over_bytes: int = 4_096  # compressMsgBodyOverHowmuch: shorter bodies stay as they are
    compression_level: int | None = None  # None = 5 for zlib, the codec's own for zstd
    namespace: str = ""  # put before every topic and group name: ns%orders
    trace: bool = False  # enableMsgTrace: what became of each message, in trace_topic
    trace_topic: str = "RMQ_SYS_TRACE_TOPIC"  # where trace goes
    idempotent: bool = False  # retry an UNKNOWN on the same broker name only
    latency_fault: bool = False  # sendLatencyFaultEnable: keep away from slow and failing brokers
    latency_fault_probe: bool = (
        True  # isolation ends when the broker answers again, not after 600 s
    )

    def __post_init__(self) -> None:
        _check_kinds(self)
        _require(
            not self.namespace or _NAMESPACE.fullmatch(self.namespace) is not None,
            "namespace must consist of letters, digits, _ -",
            self.namespace,
        )
        _require(bool(self.trace_topic), "trace_topic must be a topic", self.trace_topic)
        _require(self.send_timeout_ms > 0, "send_timeout_ms must be positive", self.send_timeout_ms)
        _require(
            0 < self.batch_bytes_max <= 8 * MIB,
            "batch_bytes_max must be 1 byte to 8 MiB",
            self.batch_bytes_max,
        )
        _within(
            self,
            body_bytes_max=(1, BODY_BYTES_MAX),
            retries=(0, 16),
            batch_messages_max=(1, 65_536),
            frames_in_flight_max=(1, 256),
            default_topic_queues=(1, 1_024),
        )
        _require(0 <= self.linger_ms <= 60_000, "linger_ms must be 0 to 60000", self.linger_ms)
        _require(
            self.compression in (None, "zlib", "lz4", "zstd"),
            "compression must be None, 'zlib', 'lz4' or 'zstd'",
            self.compression,
        )
        _require(
            self.compress_over_bytes >= 1,
            "compress_over_bytes must be at least 1",
            self.compress_over_bytes,
        )
        _require(
            self.compression_level is None or -7 <= self.compression_level <= 22,
            "compression_level must be None or -7 to 22",
            self.compression_level,
        )
        _require(
            self.compression != "zlib" or (self.compression_level or 5) in range(10),
            "zlib has levels 0 to 9",
            self.compression_level,
        )
        _require(
            self.on_full in ("block", "raise"), "on_full must be 'block' or 'raise'", self.on_full
        )
        _require(
            self.buffer_bytes_max >= self.batch_bytes_max,
            "buffer_bytes_max must hold a batch of batch_bytes_max",
            self.buffer_bytes_max,
        )


@dataclass(frozen=True, slots=True)
class ConsumerConfig(_Group):
    """A push consumer; ranges of protocol-behaviour 15 are enforced."""

    group: str  # whose offsets count
    concurrency: int = 20  # threads; consumeThreadMin = consumeThreadMax
    batch_size: int = 1  # of a call; consumeMessageBatchMaxSize; of messages at most 1024
    pull_records: int = 256  # a response; cut into batch_size pieces in the client (RocketMQ: 32)
    pull_bytes: int = MIB  # a response
    pull_interval_ms: int = 0  # between two pulls of a queue
    # pullThresholdForQueue: with so many unfinished messages a queue is not pulled
    threshold_messages: int = 1_000
    threshold_mib: int = 100  # pullThresholdSizeForQueue: the same by size
    threshold_messages_topic: int = -1  # of a topic's queues here together; -1 = none
    threshold_mib_topic: int = -1  # of a topic's queues here together; -1 = none
    threshold_messages_group: int = (
        -1
    )  # of all queues of the consumer together; divided among them as the topic's are
    threshold_mib_group: int = -1  # the same by size
    max_span: int = 2_000  # consumeConcurrentlyMaxSpan: offsets from first to last unfinished one
    suspend_ms: int = 15_000  # broker holds a pull this long
    pull_timeout_ms: int = 30_000  # for the answer; above suspend_ms
    flow_control_delay_ms: int = 50  # before a full queue is looked at again
    exception_delay_ms: int = 1_000  # before a failed pull is repeated
    offset_persist_ms: int = 5_000  # how often brokers are told the offsets
    offset_persist_first_ms: int = 10_000  # the first time after the start
    rebalance_ms: int = 20_000  # how often queues are divided, unless something changes
    heartbeat_ms: int = 30_000  # how often brokers hear of it
    pull_idle_ms: int = 120_000  # recovery of a queue whose pulls stopped
    consume_timeout_minutes: int = 15  # then a message that a listener still has is sent back
    max_reconsume_times: int = -1  # -1 = 16 for concurrent consumption, without end for orderly
    suspend_queue_ms: int = (
        1_000  # suspendCurrentQueueTimeMillis: pause of an ordered queue after a failure
    )
    lock_refresh_ms: int = 20_000  # rocketmq.client.rebalance.lockInterval
    # rocketmq.client.rebalance.lockMaxLiveTime: without a refresh for so long nothing is handed
    # out; below queue_lock_ms
    lock_trusted_ms: int = 30_000
    lock_retry_ms: int = 3_000  # of a lock that was refused while messages wait for it
    # rocketmq.client.maxTimeConsumeContinuously: then a queue lets the others have the thread
    max_continuous_ms: int = 60_000
    send_back_retry_ms: int = 5_000  # before a message that no broker took back comes again here
    offset_illegal_delay_ms: int = 10_000  # before an offset out of range is corrected
    consume_timestamp_ms: int | None = None  # start_from="timestamp"; None = 30 minutes ago
    # rocketmq.client.localOffsetStoreDir: where broadcasting consumers keep offsets; "" =
    # ~/.rocketmq_offsets
    local_offset_dir: str = ""
    namespace: str = ""  # put before every topic and group name: ns%orders

    def __post_init__(self) -> None:
        _within(
            self,
            concurrency=(1, 1_000),
            batch_size=(1, 8_192),
            pull_records=(1, 8_192),
            max_span=(1, 65_535),
            threshold_messages=(1, 65_535),
            threshold_mib=(1, 1_024),
            pull_interval_ms=(0, 65_535),
            suspend_queue_ms=(10, 30_000),
            lock_refresh_ms=(10, 3_600_000),
            lock_trusted_ms=(self.lock_refresh_ms, 3_600_000),
            lock_retry_ms=(1, 3_600_000),
            max_continuous_ms=(1, 3_600_000),
            consume_timeout_minutes=(1, 525_600),
            rebalance_ms=(1, 3_600_000),
            heartbeat_ms=(1, 3_600_000),
            offset_persist_ms=(1, 3_600_000),
            exception_delay_ms=(1, 3_600_000),
            flow_control_delay_ms=(1, 3_600_000),
            send_back_retry_ms=(1, 3_600_000),
            pull_bytes=(1, 15 * MIB),
            suspend_ms=(0, 3_600_000),
            pull_timeout_ms=(1, DAY_MS),
            pull_idle_ms=(1, DAY_MS),
            offset_persist_first_ms=(0, DAY_MS),
            offset_illegal_delay_ms=(0, DAY_MS),
        )
        for unit, high in (("messages", 6_553_500), ("mib", 102_400)):
            for name in (f"threshold_{unit}_topic", f"threshold_{unit}_group"):
                value = getattr(self, name)
                _require(
                    _is_whole(value) and (value == -1 or 1 <= value <= high),
                    f"{name} must be -1 or 1 to {high}",
                    value,
                )
        tries = self.max_reconsume_times
        _require(
            _is_whole(tries) and tries >= -1,
            "max_reconsume_times must be -1 (16 times; without end when orderly) or more",
            tries,
        )
        _require(isinstance(self.namespace, str), "namespace must be a text", self.namespace)

    @property
    def offsets_root(self) -> str:
        """The directory of broadcasting consumers' offsets."""
        return self.local_offset_dir or os.path.join(os.path.expanduser("~"), ".rocketmq_offsets")


def put_environment(name: str, value: str) -> None:
    """Set an environment variable of this process and its children; the one writing place."""
    os.environ[name] = value
