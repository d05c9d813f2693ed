"""What a broker tells about itself, and pins for readers beside its log: 26, 28, 45, STORE_INFO,
BROKER_STATUS, PIN, UNPIN (remoting 5).

Decides: the names under which values are told. Does not decide the values. BROKER_STATUS and 26 are
answered in every state of the store.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields, is_dataclass
from enum import Enum
from typing import Any

import msgpack

from rmq_ray.clock import Clock
from rmq_ray.config import BrokerConfig
from rmq_ray.errors import MalformedFrame
from rmq_ray.files import FileSystem, host_id
from rmq_ray.model.fastjson import dumps
from rmq_ray.model.topics import SCHEDULE_TOPIC
from rmq_ray.ports import Peer
from rmq_ray.remoting.wire import bodies, bodies_admin
from rmq_ray.remoting.wire.frame import Command
from rmq_ray.server.base.counters import Counters, PutRate
from rmq_ray.server.base.identity import Identity
from rmq_ray.server.base.store_keeper import StoreKeeper
from rmq_ray.server.delay.delay_service import DelayService
from rmq_ray.server.tables.topic_table import TopicTable
from rmq_ray.store.front.message_store import MessageStore

VERSION_TEXT = "V4_9_7"
PIN_MS_MAX = 24 * 3_600_000
PIN_MS_DEFAULT = 600_000


class AdminHandlers:
    """``status()``: the broker's status map."""

    def __init__(  # noqa: PLR0913 - it tells about everything
        self,
        keeper: StoreKeeper,
        identity: Identity,
        config: BrokerConfig,
        topics: TopicTable,
        delays: DelayService,
        counters: Counters,
        rate: PutRate,
        clock: Clock,
        status: Callable[[], dict[str, Any]],
        files: FileSystem,
    ) -> None:
        self._keeper = keeper
        self._identity = identity
        self._config = config
        self._topics = topics
        self._delays = delays
        self._counters = counters
        self._rate = rate
        self._clock = clock
        self._status = status
        self._files = files

    def broker_config(self, command: Command, peer: Peer) -> Command:
        """26: ``key=value`` lines, RocketMQ's names where it has the setting."""
        config, identity = self._config, self._identity
        lines = {
            "brokerName": identity.name,
            "brokerId": identity.broker_id,
            "brokerClusterName": identity.cluster,
            "brokerPermission": identity.permission,
            "autoCreateTopicEnable": config.auto_create_topics,
            "autoCreateSubscriptionGroup": config.auto_create_groups,
            "defaultTopicQueueNums": config.default_topic_queues,
            "longPollingEnable": config.long_polling,
            "shortPollingTimeMills": config.short_polling_ms,
            "messageDelayLevel": config.delay_levels,
            "flushDiskType": config.store.flush.name,
            "storePathRootDir": config.store.path,
            "mappedFileSizeCommitLog": config.store.segment_bytes,
            "maxMessageSize": config.store.body_bytes_max,
            "fileReservedTime": config.store.reserved_hours,
            "deleteWhen": config.store.delete_when,
            "namesrvAddr": ";".join(config.name_servers),
            "brokerRole": "SLAVE" if identity.is_slave else "ASYNC_MASTER",
        }
        lines |= {f"rmq_ray.{name}": value for name, value in _flat(config, "")}
        text = "".join(f"{name}={_text(value)}\n" for name, value in lines.items())
        version = self._topics.version
        return command.answer(
            fields={
                "version": dumps({"counter": version.counter, "timestamp": version.timestamp_ms})
            },
            body=text.encode(),
        )

    def runtime_info(self, command: Command, peer: Peer) -> Command:
        """28: RocketMQ's table of runtime values (protocol-behaviour 25)."""
        store, counters, now_ms = self._store(), self._counters, self._clock.now_ms()
        ratio = f"{self._files.disk_space(self._config.store.path).used_ratio:.4f}"
        puts, gets, misses = self._rate.put_tps(), self._rate.get_tps(), self._rate.miss_tps()
        table = {
            "bootTimestamp": self._identity.boot_ms,
            "runtime": _duration(now_ms - self._identity.boot_ms),
            "brokerVersionDesc": VERSION_TEXT,
            "brokerVersion": 407,
            "putTps": puts,
            "getTotalTps": gets,
            "getFoundTps": gets,
            "getMissTps": misses,
            "getTransferedTps": gets,
            "msgPutTotalTodayNow": counters.put_messages,
            "msgPutTotalTodayMorning": 0,
            "msgPutTotalYesterdayMorning": 0,
            "msgGetTotalTodayNow": counters.got_messages,
            "msgGetTotalTodayMorning": 0,
            "msgGetTotalYesterdayMorning": 0,
            "sendThreadPoolQueueSize": 0,
            "sendThreadPoolQueueCapacity": 10_000,
            "sendThreadPoolQueueHeadWaitTimeMills": 0,
            "pullThreadPoolQueueSize": 0,
            "pullThreadPoolQueueCapacity": 100_000,
            "pullThreadPoolQueueHeadWaitTimeMills": 0,
            "queryThreadPoolQueueSize": 0,
            "queryThreadPoolQueueCapacity": 20_000,
            "queryThreadPoolQueueHeadWaitTimeMills": 0,
            "EndTransactionQueueSize": 0,
            "EndTransactionThreadPoolQueueCapacity": 100_000,
            "pageCacheLockTimeMills": 0,
            "dispatchBehindBytes": store.end_offset - store.visible_offset,
            "commitLogMaxOffset": store.visible_offset,
            "commitLogMinOffset": store.begin_offset,
            "commitLogDiskRatio": ratio,
            "consumeQueueDiskRatio": ratio,
            "earliestMessageTimeStamp": store.earliest_store_ms(),
            "remainTransientStoreBufferNumbs": 0,
            **{
                f"scheduleMessageOffset_{level}": (
                    f"{offset},{store.bounds(SCHEDULE_TOPIC, level - 1)[1]}"
                )
                for level, offset in self._delays.offsets().items()
            },
        }
        return command.answer(
            body=bodies.encode_table({name: _text(value) for name, value in table.items()})
        )

    def delay_offsets(self, command: Command, peer: Peer) -> Command:
        """45."""
        return command.answer(body=bodies_admin.encode_delay_offsets(self._delays.offsets()))

    def broker_status(self, command: Command, peer: Peer) -> Command:
        """BROKER_STATUS: msgpack map."""
        return command.answer(body=msgpack.packb(self._status(), default=str))

    def store_info(self, command: Command, peer: Peer) -> Command:
        """STORE_INFO: what a reader beside the log must know; only for connections that proved the
        secret (it names a path).
        """
        store = self._store()
        info = {
            "host_id": host_id(),
            "path": self._config.store.path,
            "identity": store.identity,
            "epoch": store.epoch,
            "visible_end": store.visible_offset,
            "segment_bytes": self._config.store.segment_bytes,
            "consume_queue_entries": self._config.store.consume_queue_entries,
            "broker_name": self._identity.name,
            "broker_id": self._identity.broker_id,
        }
        return command.answer(body=msgpack.packb(info))

    def pin(self, command: Command, peer: Peer) -> Command:
        """PIN_SEGMENTS: msgpack [topic, {queue id: first offset}, duration ms] -> {"pin": id}:
        retention spares what lies from there on.
        """
        asked = _unpack(command)
        if (
            len(asked) != 3
            or not isinstance(asked[0], str)
            or not isinstance(asked[1], dict)
            or not isinstance(asked[2], int)
        ):
            raise MalformedFrame(
                "body of PIN_SEGMENTS must be [topic, {queue id: first offset}, duration in ms]"
            )
        topic, starts, duration_ms = asked
        store = self._store()
        positions = [
            store.log_offset_of(topic, int(queue_id), int(offset))
            for queue_id, offset in starts.items()
        ]
        known = [position for position in positions if position >= 0]
        from_log_offset = min(known, default=store.visible_offset)
        deadline_ms = self._clock.now_ms() + min(
            duration_ms if duration_ms > 0 else PIN_MS_DEFAULT, PIN_MS_MAX
        )
        return command.answer(
            body=msgpack.packb({"pin": store.pin(from_log_offset, deadline_ms, _owner(peer))})
        )

    def unpin(self, command: Command, peer: Peer) -> Command:
        """UNPIN_SEGMENTS: msgpack [pin id]; an account gives back its own."""
        asked = _unpack(command)
        if len(asked) != 1 or not isinstance(asked[0], int):
            raise MalformedFrame("body of UNPIN_SEGMENTS must be [pin id]")
        self._store().unpin(asked[0], _owner(peer))
        return command.answer()

    def _store(self) -> MessageStore:
        store = self._keeper.store
        if store is None:
            raise self._keeper.refusal()
        return store


def _owner(peer: Peer) -> str:
    """Of a pin: the account; an address stands for clients that need none; "" = the cluster."""
    return "" if peer.member else peer.account or peer.host


def _unpack(command: Command) -> list[Any]:
    try:
        found = msgpack.unpackb(command.body, strict_map_key=False)
    except (ValueError, msgpack.UnpackException) as error:
        raise MalformedFrame(f"body of request {command.code} is no msgpack: {error}") from None
    return found if isinstance(found, list) else [found]


def _flat(group: object, prefix: str) -> list[tuple[str, object]]:
    """Dotted names of all settings of a group of groups, but for secret ones."""
    found: list[tuple[str, object]] = []
    if is_dataclass(group):
        for entry in fields(group):
            if not entry.repr:
                continue
            value = getattr(group, entry.name)
            found += (
                _flat(value, f"{prefix}{entry.name}.")
                if is_dataclass(value)
                else [(prefix + entry.name, value)]
            )
    return found


def _text(value: object) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    return str(value.value) if isinstance(value, Enum) else str(value)


def _duration(elapsed_ms: int) -> str:
    seconds = elapsed_ms // 1_000
    days, hours, minutes = seconds // 86_400, seconds // 3_600 % 24, seconds // 60 % 60
    return f"[ {days} days, {hours} hours, {minutes} minutes, {seconds % 60} seconds ]"
