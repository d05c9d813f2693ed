"""Plans a bulk read of a topic and opens readers for it. Used by Spark, Ray Data and pandas; knows
none of them.

    bounds of every queue  ->  pin what lies from the starts on  ->  where each store is, what of it
    is visible  ->  cut into splits

A plan fixes the end of every queue when it is made, pins the segments it needs against retention
(with a deadline), and names for each split both the local files and the scan stream. It pickles:
workers need no Ray and no name server.

Invariants: the visible end is asked for after the bounds, so every planned row lies below it.
Reading a split gives every planned row that is not damaged, in order, or raises.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import msgpack

from rmq_ray.client.instance.client_instance import ClientInstance
from rmq_ray.client.instance.outage import ask_for_map
from rmq_ray.client.pull.queue_queries import QueueQueries
from rmq_ray.client.scan.queues_read import queues_meant
from rmq_ray.client.scan.scan_copies import (
    MASTER_ALONE_MS,
    group_positions,
    named_offsets,
    planned_at,
)
from rmq_ray.client.scan.split_reader import LocalSplitReader
from rmq_ray.client.scan.stream_split_reader import StreamSplitReader
from rmq_ray.clock import SYSTEM_CLOCK
from rmq_ray.config import DEFAULT_CLUSTER, RemotingLimits, Tls
from rmq_ray.errors import RemotingError, StoreError
from rmq_ray.files import host_id
from rmq_ray.model.ids import Address, MessageQueue
from rmq_ray.ports import Discovery, Split
from rmq_ray.protocol.scan.scan_positions import LikeGroup, Where, group_offsets, normal, of_queues
from rmq_ray.protocol.scan.scan_splits import (
    ROWS_PER_SPLIT_MAX,
    Position,
    cut,
    resolve,
    rows_per_split,
)
from rmq_ray.remoting.connection import Connection
from rmq_ray.remoting.handshake import Credentials
from rmq_ray.remoting.wire.codes import RequestCode
from rmq_ray.remoting.wire.frame import Command
from rmq_ray.remoting.wire.records import Sizes

log = logging.getLogger("rmq_ray.scan")
PIN_MS = 3_600_000
RELEASE_TIMEOUT_MS = 3_000
TOOLS_GROUP = "TOOLS_CONSUMER"  # RocketMQ's own group for tools

Bounds = Mapping[MessageQueue, tuple[int, int]]


@dataclass(frozen=True, slots=True)
class ScanPlan:
    """``splits``: in the order of queues and offsets. ``secret``: what the scan stream's handshake
    needs, ``access_key`` whose it is (``ports.ClusterAddress``). ``pins``: (broker's address,
    pin's id).

    Whoever knows when the last row was read says ``release``, or reads in a ``with`` block; the
    others leave the pins to their deadline.
    """

    topic: str
    splits: tuple[Split, ...]
    cluster: str = DEFAULT_CLUSTER
    secret: bytes = field(default=b"", repr=False)
    pins: tuple[tuple[str, int], ...] = ()
    tls: Tls | None = None
    access_key: str = ""

    @property
    def credentials(self) -> Credentials | None:
        """What proves a reader to brokers; None for a cluster without a secret."""
        return (
            Credentials(self.cluster, "broker", self.secret, self.access_key)
            if self.secret
            else None
        )

    def __enter__(self) -> ScanPlan:
        return self

    def __exit__(self, *_: object) -> None:
        self.release()

    def release(self) -> None:
        """Give the pins back: retention may take the segments from now on, so nothing must be read
        by this plan any more.

        Never raises, and asks each broker once: a pin that cannot be given back ends within the
        hour. Again is fine.
        """
        for address in dict.fromkeys(address for address, _ in self.pins):
            try:
                connection = Connection(
                    Address.parse(address),
                    self.credentials,
                    RemotingLimits(),
                    SYSTEM_CLOCK,
                    tls=self.tls,
                )
                try:
                    for pin in [pin for at, pin in self.pins if at == address]:
                        connection.request(
                            Command(
                                RequestCode.UNPIN_SEGMENTS, body=msgpack.packb([pin]), serialize=1
                            ),
                            RELEASE_TIMEOUT_MS,
                        )
                finally:
                    connection.close()
            except RemotingError as error:
                log.debug(
                    "pins at %s were not given back, they end by themselves: %s", address, error
                )

    @property
    def rows(self) -> int:
        """Messages planned; fewer come out only where quarantined records are skipped."""
        return sum(self.sizes)

    @property
    def sizes(self) -> list[int]:
        """Messages of each split."""
        return [split.end - split.start for split in self.splits]


class ScanReader:
    """Reads any split of a plan: beside the log where it can, else through the stream."""

    def __init__(self, local: LocalSplitReader, stream: StreamSplitReader) -> None:
        self._local, self._stream = local, stream
        self._here = host_id()

    def read(self, split: Split, chunk_bytes: int) -> Iterator[tuple[memoryview, Sizes]]:
        """Yields (records, sizes); see ``ports.SplitReader``. What the files do not give is asked
        for at the broker.
        """
        at = split.start
        if split.host_id == self._here:
            try:
                for records, sizes, next_offset in self._local.read_from(split, chunk_bytes):
                    yield records, sizes
                    at = next_offset
            except StoreError as error:
                log.warning(
                    "reading %s beside the log ended at offset %d, going on through the broker: %s",
                    split.queue,
                    at,
                    error,
                )
        if at < split.end:
            yield from self._stream.read(replace(split, start=at), chunk_bytes)

    def close(self) -> None:
        """Close files and the connection."""
        self._local.close()
        self._stream.close()


def open_reader(plan: ScanPlan) -> ScanReader:
    """A reader for this process; close it."""
    return ScanReader(
        LocalSplitReader(),
        StreamSplitReader(plan.credentials, SYSTEM_CLOCK, tls=plan.tls),
    )


@dataclass(frozen=True, slots=True)
class ScanOptions:
    """How a plan is cut and what it puts up with.

    ``rows_min``, ``rows_max``: messages of a split. ``fail_on_data_loss``: whether offsets that are
    no longer there are an error, else the read begins or ends at the nearest ones. ``pattern``: the
    topic is a regular expression that whole names must match. ``only_named``: queues for which the
    start names no offset are not read. ``master_alone_ms``: how long slaves are not asked while
    their master does not answer; a read that ends at a time or a group's position never asks them.
    """

    rows_min: int = 1
    rows_max: int = ROWS_PER_SPLIT_MAX
    fail_on_data_loss: bool = True
    pattern: bool = False
    only_named: bool = False
    master_alone_ms: float = MASTER_ALONE_MS


def plan_scan(
    discovery: Discovery,
    topic: str | Sequence[str],
    start: Where,
    end: Where,
    splits_wanted: int,
    brokers_expected: Collection[str] = (),
    options: ScanOptions | None = None,
) -> ScanPlan:
    """Ask every broker of the topics for its bounds and its store, pin, and cut into about
    ``splits_wanted`` splits.

    ``topic``: one, or several. ``start``, ``end``: see ``protocol.scan.scan_positions``.
    ``brokers_expected``: whose queues belong to the read; a name server forgets the queues of a
    broker that is down. They, and brokers that recover, are waited for, 30 s at most. Raises
    ``TopicNotFound``, ``GroupNotFound``, ``OffsetOutOfRange``, ``ClientError`` for wrong arguments,
    ``ClusterError`` where there is no cluster, an expected broker stays away, or a master does that
    alone can say where the read begins or ends; ``RemotingError`` where none can be asked.
    """
    options = options or ScanOptions()
    begin, finish = normal(start), normal(end)
    instance = ClientInstance.get_or_create(discovery)
    instance.start()
    try:
        where = instance.link.cluster
        assert where is not None  # looked up by start
        queues = queues_meant(instance, topic, options.pattern, brokers_expected)
        named = named_offsets([begin]) if options.only_named else None
        alone_ms = (
            math.inf if isinstance(finish, int | LikeGroup) else options.master_alone_ms
        )  # such an end is the master's to say
        brokers, bounds = planned_at(
            instance,
            [q for own in queues.values() for q in own if named is None or q in named],
            named_offsets((begin, finish)),
            alone_ms,
        )
        low, high = (
            _looked_up(instance, position, brokers, bounds) for position in (begin, finish)
        )
        ranges = resolve(low, high, bounds, options.fail_on_data_loss)
        pins = _pin(instance, ranges, brokers)
        stores = {
            name: ask_for_map(instance, address, RequestCode.STORE_INFO, [])
            for name, address in brokers.items()
        }
    finally:
        instance.release()
    rows = rows_per_split(ranges, splits_wanted, options.rows_max, options.rows_min)
    everywhere = {
        name: _asked_first(address, instance.routes.addresses(name))
        for name, address in brokers.items()
    }
    splits = tuple(
        split_of(queue, first, last, stores[queue.broker_name], everywhere[queue.broker_name])
        for queue, first, last in cut(ranges, rows)
    )
    return ScanPlan(
        " ".join(queues), splits, where.cluster, where.secret, pins, where.tls, where.access_key
    )


def _pin(
    instance: ClientInstance,
    ranges: Mapping[MessageQueue, tuple[int, int]],
    brokers: Mapping[str, Address],
) -> tuple[tuple[str, int], ...]:
    """Keep what lies from the starts on; one request for each topic of each broker. Returns
    (address, pin's id) of each.
    """
    starts: dict[tuple[str, str], dict[int, int]] = {}
    for queue, (low, _) in ranges.items():
        starts.setdefault((queue.broker_name, queue.topic), {})[queue.queue_id] = low
    asked = [
        (brokers[broker], [topic, offsets, PIN_MS]) for (broker, topic), offsets in starts.items()
    ]
    return tuple(
        (str(address), ask_for_map(instance, address, RequestCode.PIN_SEGMENTS, body)["pin"])
        for address, body in asked
    )


def _looked_up(
    instance: ClientInstance,
    position: str | int | LikeGroup | Mapping[MessageQueue, int],
    brokers: Mapping[str, Address],
    bounds: Bounds,
) -> Position:
    """Words and offsets as they are; a time or a group's position as the offset that each queue's
    broker says.
    """
    if isinstance(position, str):
        return position
    if isinstance(position, Mapping):
        return of_queues(position, bounds)
    if isinstance(position, LikeGroup):
        found = group_offsets(
            position.group, group_positions(instance, position.group, brokers, bounds), bounds
        )
    else:
        questions = QueueQueries(instance, TOOLS_GROUP, brokers)
        found = {queue: questions.offset_at(queue, position) for queue in bounds}
    return {queue: min(max(low, found[queue]), high) for queue, (low, high) in bounds.items()}


def _asked_first(address: Address, known: Mapping[int, Address]) -> tuple[str, ...]:
    """Where a split may be read: at the broker that the plan is from, and while it is away at the
    other copies of its log.
    """
    return tuple(dict.fromkeys(map(str, (address, *known.values()))))


def split_of(
    queue: MessageQueue, low: int, high: int, store: Mapping[str, Any], addresses: tuple[str, ...]
) -> Split:
    """Offsets [low, high) of a queue in the store that a broker told by STORE_INFO."""
    return Split(
        queue=queue,
        start=low,
        end=high,
        host_id=store["host_id"],
        store_path=store["path"],
        identity=store["identity"],
        epoch=store["epoch"],
        addresses=addresses,
        segment_bytes=store["segment_bytes"],
        consume_queue_entries=store["consume_queue_entries"],
        visible_end=store["visible_end"],
    )
