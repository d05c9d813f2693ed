"""A store's whole content as plain values, told by our store and by Apache RocketMQ's, in one form:
so that two dumps can be compared.

A dump is read from a *copy* of a store, because opening recovers it. Geometry: small, so that a few
hundred messages roll segments, consume queue files and index files.
"""

from __future__ import annotations

import hashlib
import ipaddress
import json
import shutil
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rmq_ray.clock import SYSTEM_CLOCK
from rmq_ray.codec.record import Record, body_crc, decode_record
from rmq_ray.config import FlushMode, StoreConfig
from rmq_ray.model.message import decode_properties
from rmq_ray.store.front.message_store import MessageStore
from rmq_ray.store.queue.dispatcher import DispatchRules
from tools import interop

SEGMENT_BYTES = 65_536
QUEUE_ENTRIES = 64
INDEX_SLOTS = 100
INDEX_ITEMS = 400
GEOMETRY = f"{SEGMENT_BYTES},{QUEUE_ENTRIES},{INDEX_SLOTS},{INDEX_ITEMS}"
STORE_HOST = ("127.0.0.1", 10_911)
TWO_HOURS_MS = 7_200_000  # delay level 18
KEY_QUERY_MAX = 64  # maxMsgsNumBatch: neither side returns more

Place = tuple[str, int, int]


@dataclass(slots=True)
class Dump:
    """What one side sees: every message by (topic, queue, offset), bounds, look-ups by time, key
    queries, and the log's bounds.
    """

    messages: dict[Place, dict[str, Any]] = field(default_factory=dict)
    bounds: dict[tuple[str, int], tuple[int, int]] = field(default_factory=dict)
    times: dict[tuple[str, int, int], int] = field(default_factory=dict)
    keys: dict[tuple[str, str], list[int]] = field(default_factory=dict)
    log: tuple[int, int] = (0, 0)

    def message_keys(self) -> list[tuple[str, str]]:
        """(topic, key) of every key and unique key that a message carries."""
        found = set()
        for (topic, _, _), message in self.messages.items():
            found.update((topic, key) for key in _keys_of(message))
        return sorted(found)

    def log_offsets(self) -> set[int]:
        """Where the messages lie."""
        return {message["log"] for message in self.messages.values()}


def config_for(path: Path, flush: FlushMode = FlushMode.ASYNC_FLUSH) -> StoreConfig:
    """Our settings with the test's geometry."""
    return StoreConfig(
        str(path),
        flush=flush,
        segment_bytes=SEGMENT_BYTES,
        consume_queue_entries=QUEUE_ENTRIES,
        index_slots=INDEX_SLOTS,
        index_items=INDEX_ITEMS,
    )


def open_ours(
    path: Path,
    create: bool = False,
    flush: FlushMode = FlushMode.ASYNC_FLUSH,
    on_durable: Callable[[int], None] = lambda _offset: None,
) -> MessageStore:
    """Our store, open, recovered and started; a store that cannot be opened holds nothing."""
    store = MessageStore(
        config_for(path, flush),
        SYSTEM_CLOCK,
        broker_name="broker-a",
        store_host=STORE_HOST,
        rules=DispatchRules({18: TWO_HOURS_MS}.get),
    )
    store.open(create)
    store.recover()
    store.start(on_durable)
    return store


def copy_of(store: Path, name: str) -> Path:
    """A copy beside the store, times of the files kept (look-ups by time read them)."""
    target = store.with_name(f"{store.name}-{name}")
    shutil.copytree(store, target)
    return target


def dump_theirs(path: Path) -> Dump:
    """Everything that Apache RocketMQ's own store finds in the directory, by every key that one of
    its messages carries.
    """
    dump = Dump()
    for line in interop.run("StoreReader", path, GEOMETRY).splitlines():
        _take(dump, json.loads(line))
    assert sorted(dump.keys) == dump.message_keys()
    _without_equal_hashes(dump)
    return dump


def _without_equal_hashes(dump: Dump) -> None:
    """RocketMQ's store finds by the key's hash and leaves it to clients to compare the keys; two of
    some thousand unique keys have equal hashes now and then.
    """
    carried = {message["log"]: _keys_of(message) for message in dump.messages.values()}
    for (topic, key), found in dump.keys.items():
        dump.keys[topic, key] = [log for log in found if key in carried.get(log, {key})]


def _keys_of(message: dict[str, Any]) -> set[str]:
    """Its keys and its unique key."""
    properties = message["properties"]
    found = {key for key in properties.get("KEYS", "").split(" ") if key}
    return found | ({properties["UNIQ_KEY"]} if "UNIQ_KEY" in properties else set())


def _take(dump: Dump, line: dict[str, Any]) -> None:
    kind = line.pop("kind")
    if kind == "message":
        line["born_host"], line["store_host"] = _host(line["born_host"]), _host(line["store_host"])
        dump.messages[line["topic"], line["queue"], line.pop("offset")] = line
    elif kind == "bounds":
        if line["max"]:  # queues that were only looked at are made by the look
            dump.bounds[line["topic"], line["queue"]] = (line["min"], line["max"])
    elif kind == "time":
        dump.times[line["topic"], line["queue"], line["ms"]] = line["offset"]
    elif kind == "key":
        dump.keys[line["topic"], line["key"]] = sorted(
            set(line["found"])
        )  # RocketMQ indexes anew what it recovers
    else:
        dump.log = (line["min"], line["max"])


def _host(text: str) -> tuple[str, int]:
    host, _, port = text.rpartition(":")
    return str(ipaddress.ip_address(host)), int(port)


def dump_ours(
    store: MessageStore,
    keys: Iterable[tuple[str, str]] = (),
    times: Iterable[tuple[str, int, int]] = (),
) -> Dump:
    """Everything that our store finds, through its front door."""
    dump = Dump()
    for topic, queue_id in sorted(store.queues()):
        low, high = store.bounds(topic, queue_id)
        if high:
            dump.bounds[topic, queue_id] = (int(low), int(high))
        offset = int(low)
        while offset < high:
            records = _records(store, topic, queue_id, offset)
            assert records, f"{topic} {queue_id}: nothing at {offset} of [{low}, {high})"
            for record in records:
                dump.messages[topic, queue_id, offset] = _describe(record)
                offset += 1
    for topic, key in keys:
        found = store.query(topic, key, KEY_QUERY_MAX, 0, 1 << 62)
        dump.keys[topic, key] = sorted(decode_record(record).log_offset for record in found)
    for topic, queue_id, ms in times:
        dump.times[topic, queue_id, ms] = int(store.offset_by_time(topic, queue_id, ms))
    return dump


def _records(store: MessageStore, topic: str, queue_id: int, offset: int) -> list[Record]:
    result = store.get_messages(topic, queue_id, offset, 32, 1 << 20, None)
    data = b"".join(bytes(part) for part in result.parts)
    records, at = [], 0
    for size in result.sizes:
        records.append(decode_record(data, at))
        at += int(size)
    assert at == len(data)
    return records


def _describe(record: Record) -> dict[str, Any]:
    return {
        "topic": record.topic,
        "queue": record.queue_id,
        "own_offset": record.queue_offset,
        "log": record.log_offset,
        "size": record.size,
        "store_ms": record.store_ms,
        "born_ms": record.born_ms,
        "born_host": record.born_host,
        "store_host": record.store_host,
        "flag": record.flag,
        "sys_flag": record.sys_flag,
        "reconsume_times": record.reconsume_times,
        "prepared": record.prepared_offset,
        "crc": body_crc(record.body),
        "body": hashlib.sha256(record.body).hexdigest(),
        "properties": decode_properties(record.properties),
    }


def store_times(dump: Dump) -> dict[tuple[str, int, int], int]:
    """Store time of what each look-up by time found, for queues of one file.

    RocketMQ picks the file by its time of change, which mmap sets late: in queues of several files
    its answer may lie a file off. Within one file several messages of one millisecond are equally
    right.
    """
    return {
        (topic, queue_id, ms): dump.messages[topic, queue_id, offset]["store_ms"]
        for (topic, queue_id, ms), offset in dump.times.items()
        if dump.bounds[topic, queue_id][1] <= QUEUE_ENTRIES
    }


def differences(ours: Dump, theirs: Dump) -> list[str]:
    """Where two dumps differ, in words; at most 20."""
    found = [
        f"only {side}: {place}"
        for side, places in (
            ("ours", ours.messages.keys() - theirs.messages.keys()),
            ("theirs", theirs.messages.keys() - ours.messages.keys()),
        )
        for place in sorted(places)
    ]
    for place in sorted(ours.messages.keys() & theirs.messages.keys()):
        mine, other = ours.messages[place], theirs.messages[place]
        found += [
            f"{place} {name}: ours {mine[name]!r}, theirs {other[name]!r}"
            for name in other
            if mine[name] != other[name]
        ]
    for what, mine_table, other_table in (
        ("bounds", ours.bounds, theirs.bounds),
        ("time", store_times(ours), store_times(theirs)),
        ("key", ours.keys, theirs.keys),
    ):
        for key in sorted(mine_table.keys() | other_table.keys(), key=str):
            if mine_table.get(key) != other_table.get(key):
                found.append(
                    f"{what} {key}: ours {mine_table.get(key)}, theirs {other_table.get(key)}"
                )
    return found[:20]
