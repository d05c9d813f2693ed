"""What a broker tells about itself, and pins for readers beside its log: 26, 45, STORE_INFO,
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

from rmq_ray.config import ForeignClients, TlsMode
from rmq_ray.errors import MalformedFrame
from rmq_ray.files import host_id
from rmq_ray.model.fastjson import dumps
from rmq_ray.model.topics import TRACE_TOPIC
from rmq_ray.ports import Peer
from rmq_ray.protocol.live_settings import EVERY, configured
from rmq_ray.remoting.wire import bodies_admin
from rmq_ray.remoting.wire.frame import Command
from rmq_ray.server.admin.timers import Timers
from rmq_ray.server.base.runtime import BrokerRuntime
from rmq_ray.server.tables.storage import BrokerStorage
from rmq_ray.store.front.message_store import MessageStore

PIN_MS_MAX = 24 * 3_600_000
PIN_MS_DEFAULT = 600_000


class AdminHandlers:
    """``status()``: the broker's status map."""

    def __init__(
        self,
        runtime: BrokerRuntime,
        storage: BrokerStorage,
        timers: Timers,
        status: Callable[[], dict[str, Any]],
    ) -> None:
        self._clock, self._identity = runtime.clock, runtime.identity
        self._keeper = storage.keeper
        self._settings, self._topics = storage.tables.settings, storage.tables.topics
        self._delays = timers.delays
        self._status = status

    def broker_config(self, command: Command, peer: Peer) -> Command:
        """26: ``key=value`` lines, RocketMQ's names where it has the setting."""
        config, identity = self._settings.config, self._identity
        lines: dict[str, object] = {
            one.rocketmq: value * 100 if one.percent else value
            for one in EVERY.values()
            if one.rocketmq
            for value in (configured(config, one.name),)
        }
        lines |= {
            "brokerName": identity.name,
            "brokerId": identity.broker_id,
            "brokerClusterName": identity.cluster,
            "brokerPermission": identity.permission,
            "messageDelayLevel": config.delay_levels,
            "flushDiskType": config.store.flush.name,
            "storePathRootDir": config.store.path,
            "namesrvAddr": ";".join(config.name_servers),
            "brokerRole": "SLAVE" if identity.is_slave else config.replication.name,
            "brokerIP1": identity.address.rpartition(":")[0],
            "listenPort": identity.address.rpartition(":")[2],
            "slaveReadEnable": config.slave_reads,
            "enablePropertyFilter": config.property_filter,
            "rejectTransactionMessage": config.reject_transactions,
            "aclEnable": config.foreign is ForeignClients.ACL,
            "useTLS": config.tls.mode is not TlsMode.DISABLED,
            "traceOn": True,
            "traceTopicEnable": False,
            "msgTraceTopicName": TRACE_TOPIC,
            "filterServerNums": 0,
        }
        lines |= {f"rmq_ray.{name}": value for name, value in _flat(config, "")}
        lines |= self._settings.limits()
        text = "".join(f"{name}={_text(value)}\n" for name, value in lines.items())
        version = self._topics.version
        return command.answer(
            fields={
                "version": dumps({"counter": version.counter, "timestamp": version.timestamp_ms})
            },
            body=text.encode(),
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
            "path": self._settings.config.store.path,
            "identity": store.identity,
            "epoch": store.epoch,
            "visible_end": store.visible_offset,
            "segment_bytes": self._settings.config.store.segment_bytes,
            "consume_queue_entries": self._settings.config.store.consume_queue_entries,
            "broker_name": self._identity.name,
            "broker_id": self._identity.broker_id,
        }
        return command.answer(body=msgpack.packb(info))

    def pin(self, command: Command, peer: Peer) -> Command:
        """PIN_SEGMENTS: msgpack [topic, {queue id: first offset}, duration ms] -> {"pin": id,
        "bytes": how much of the log that is}: retention spares what lies from there on.
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
        deadline_ms = self._clock.monotonic_ms() + min(
            duration_ms if duration_ms > 0 else PIN_MS_DEFAULT, PIN_MS_MAX
        )
        pin = store.pin(from_log_offset, deadline_ms, _owner(peer))
        kept = max(0, store.visible_offset - from_log_offset)
        return command.answer(body=msgpack.packb({"pin": pin, "bytes": kept}))

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
