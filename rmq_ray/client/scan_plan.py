"""Plans a bulk read of a topic and opens readers for it. Used by Spark, Ray Data and pandas; knows none of them.

A plan fixes the end of every queue when it is made, pins the segments it needs against retention (with a deadline), and
names for each split both the local files and the scan stream. It pickles: workers need no Ray and no name server.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import msgpack

from rmq_ray.client.client_instance import ClientInstance
from rmq_ray.client.scan_stream import StreamSplitReader
from rmq_ray.clock import SYSTEM_CLOCK
from rmq_ray.config import DEFAULT_CLUSTER
from rmq_ray.errors import ClientError, OffsetOutOfRange, ResponseError, StoreError, TopicNotFound
from rmq_ray.model.ids import Address, MessageQueue
from rmq_ray.ports import Discovery, Split
from rmq_ray.protocol.scan_splits import cut, rows_per_split
from rmq_ray.remoting.codes import RequestCode, ResponseCode
from rmq_ray.remoting.frame import Command
from rmq_ray.store.split_reader import LocalSplitReader, host_id

log = logging.getLogger("rmq_ray.scan")
PIN_MS = 3_600_000
TIMEOUT_MS = 10_000

Position = str | Mapping[MessageQueue, int]


@dataclass(frozen=True, slots=True)
class ScanPlan:
    """``splits``: in the order of queues and offsets. ``secret``: what the scan stream's handshake needs."""

    topic: str
    splits: tuple[Split, ...]
    cluster: str = DEFAULT_CLUSTER
    secret: bytes = field(default=b"", repr=False)

    @property
    def rows(self) -> int:
        """Messages planned; fewer come out only where quarantined records are skipped."""
        return sum(split.end - split.start for split in self.splits)


class ScanReader:
    """Reads any split of a plan: beside the log where it can, else through the stream."""

    def __init__(self, local: LocalSplitReader, stream: StreamSplitReader) -> None:
        self._local, self._stream = local, stream
        self._here = host_id()

    def read(self, split: Split, chunk_bytes: int) -> Any:
        """Yields (records, sizes); see ``ports.SplitReader``. Files that went away meanwhile are asked for at the broker."""
        at = split.start
        if split.host_id == self._here:
            try:
                for records, sizes, next_offset in self._local.read_from(split, chunk_bytes):
                    yield records, sizes
                    at = next_offset
                return
            except StoreError as error:
                log.warning("reading %s beside the log ended at offset %d, going on through the broker: %s", split.queue, at, error)
        rest = split if at == split.start else _from(split, at)
        yield from self._stream.read(rest, chunk_bytes)

    def close(self) -> None:
        """Close files and the connection."""
        self._local.close()
        self._stream.close()


def open_reader(plan: ScanPlan) -> ScanReader:
    """A reader for this process; close it."""
    return ScanReader(LocalSplitReader(), StreamSplitReader(plan.cluster, plan.secret, SYSTEM_CLOCK))


def plan_scan(discovery: Discovery, topic: str, start: Position, end: Position, splits_wanted: int) -> ScanPlan:
    """Ask every broker of the topic for its bounds and its store, pin, and cut. See ``spark.read.read_topic`` for the arguments."""
    where = discovery.lookup()
    instance = ClientInstance.get_or_create(discovery)
    instance.start()
    try:
        brokers = _brokers_of(instance, topic)
        stores = {name: _ask(instance, address, RequestCode.STORE_INFO, []) for name, address in brokers.items()}
        ranges: dict[MessageQueue, tuple[int, int]] = {}
        for name, address in brokers.items():
            bounds = _ask(instance, address, RequestCode.QUEUE_BOUNDS, [topic]).get(topic, {})
            for queue_id, (low, high) in bounds.items():
                queue = MessageQueue(topic, name, queue_id)
                ranges[queue] = (_position(start, queue, low, high, low), _position(end, queue, low, high, high))
            _ask(instance, address, RequestCode.PIN_SEGMENTS, [topic, {q.queue_id: r[0] for q, r in ranges.items() if q.broker_name == name}, PIN_MS])
    finally:
        instance.release()
    ranges = {queue: span for queue, span in ranges.items() if span[1] > span[0]}
    rows = rows_per_split(ranges, splits_wanted)
    splits = tuple(_split(queue, low, high, stores[queue.broker_name], brokers[queue.broker_name]) for queue, low, high in cut(ranges, rows))
    return ScanPlan(topic, splits, where.cluster, where.secret)


def _brokers_of(instance: ClientInstance, topic: str) -> dict[str, Address]:
    queues = instance.routes.find_subscribe(topic)
    if not queues:
        raise TopicNotFound(f"topic {topic!r} does not exist in this cluster: create it or send to it first", topic)
    found = {}
    for name in sorted({queue.broker_name for queue in queues}):
        pair = instance.routes.subscribe_address(name)
        if pair is None:
            raise ClientError(f"no address of broker {name!r} is known to the name servers", name)
        found[name] = pair[1]
    return found


def _ask(instance: ClientInstance, address: Address, code: RequestCode, body: list[Any]) -> dict[Any, Any]:
    answer = instance.invoke(address, Command(code, body=msgpack.packb(body), serialize=1), TIMEOUT_MS)
    if answer.code != ResponseCode.SUCCESS:
        raise ResponseError(f"broker {address} refused {code.name}: {answer.remark}", answer.code)
    found = msgpack.unpackb(bytes(answer.body), strict_map_key=False)
    assert isinstance(found, dict)
    return found


def _position(position: Position, queue: MessageQueue, low: int, high: int, default: int) -> int:
    if isinstance(position, str):
        if position not in ("earliest", "latest"):
            raise ClientError(f"position {position!r} must be 'earliest', 'latest' or a mapping of MessageQueue to offset", position)
        return low if position == "earliest" else high
    offset = position.get(queue, default)
    if not low <= offset <= high:
        raise OffsetOutOfRange(f"offset {offset} of {queue} lies outside [{low}, {high}]", offset, low, high)
    return offset


def _split(queue: MessageQueue, low: int, high: int, store: Mapping[str, Any], address: Address) -> Split:
    return Split(
        queue=queue,
        start=low,
        end=high,
        host_id=store["host_id"],
        store_path=store["path"],
        identity=store["identity"],
        epoch=store["epoch"],
        addresses=(str(address),),
        segment_bytes=store["segment_bytes"],
        consume_queue_entries=store["consume_queue_entries"],
        visible_end=store["visible_end"],
    )


def _from(split: Split, start: int) -> Split:
    return replace(split, start=start)
