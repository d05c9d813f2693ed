"""A topic read back: the table up to where it is, the log behind it, each row once.

    start ──────────────[table's next offset of each queue)──────────────> end
           files of the table                  splits of a plan of the log

Decides which rows come from where: offsets below the table's next one from its files (rejected rows
are messages, too), all others from the log. Read the table first: what it commits meanwhile is read
from the log. Rows "as of" a time or a group's position are a read with that ``end``; no old
snapshot is needed for it; what a time means ``as_of`` decides.

Invariant: a queue's rows come once, whatever is committed or compacted after the plan; a file that
a compaction has deleted meanwhile is an error, never a shorter result. Where a log was cut behind
the table, what lies behind the cut comes from the log.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from operator import or_
from typing import Any

import pyarrow as pa
import pyarrow.dataset as ds

from rmq_ray.client.scan.range_plan import plan_ranges
from rmq_ray.client.scan.scan_plan import ScanOptions, ScanPlan, open_reader, plan_scan
from rmq_ray.client.scan.shared_queues import expected_of
from rmq_ray.client.scan.topic_state import State, TopicState
from rmq_ray.codec.arrow.arrow_rows import Rows, chosen, needed_columns, to_rows
from rmq_ray.errors import ClientError, TableNotFound, TopicNotFound
from rmq_ray.model.arrow import SCHEMA
from rmq_ray.model.ids import MessageQueue
from rmq_ray.ports import Discovery
from rmq_ray.protocol.scan.scan_positions import (
    EARLIEST_OFFSET,
    LATEST,
    LATEST_OFFSET,
    LikeGroup,
    Where,
    normal,
)
from rmq_ray.table.actor import open_target
from rmq_ray.table.as_of import TopicTimes
from rmq_ray.table.data_files import read_files
from rmq_ray.table.registry import TableRegistry
from rmq_ray.table.rules import DataFile, Offsets, TableSpec
from rmq_ray.table.storage import Storage

SOURCES = ("log", "table", "table+log")
PIECE_BYTES = 128 << 20
CHUNK_BYTES = 8 << 20
Range = tuple[str, int, int, int]


@dataclass(frozen=True, slots=True)
class TablePiece:
    """Some files of a table and what of them is wanted; pickles. ``ranges``: (broker, queue id,
    first, next offset). ``rows``: at most.
    """

    spec: str
    files: tuple[DataFile, ...]
    ranges: tuple[Range, ...]

    @property
    def rows(self) -> int:
        """Of the files, wanted or not."""
        return sum(one.rows for one in self.files)

    def read(self, rows: Rows) -> Iterator[Any]:
        """Record batches of the wanted rows and columns."""
        needed = needed_columns(rows)
        storage = Storage(TableSpec.from_json(self.spec).location)
        paths = [one.path for one in self.files]
        for batch in read_files(storage, paths, SCHEMA, needed, self._where()):
            if batch.num_rows:
                yield chosen(batch, rows)

    def _where(self) -> Any:
        field = ds.field
        return reduce(
            or_,
            (
                (field("broker") == broker)
                & (field("queue_id") == queue_id)
                & (field("queue_offset") >= first)
                & (field("queue_offset") < behind)
                for broker, queue_id, first, behind in self.ranges
            ),
        )


def plan_source(
    source: str, discovery: Discovery, topic: Any, *asked: Any
) -> tuple[list[TablePiece], ScanPlan]:
    """``plan_union``, or with ``source`` "log" what ``plan_scan`` plans, with the same arguments.
    ``ClientError`` for another source.
    """
    if check_source(source) == "log":
        return [], plan_scan(discovery, topic, *asked)
    return plan_union(discovery, topic, *asked, source=source)


def plan_union(
    discovery: Discovery,
    topic: object,
    start: Where,
    end: Where,
    splits_wanted: int,
    brokers_expected: Collection[str] = (),
    options: ScanOptions | None = None,
    *,
    source: str = "table+log",
) -> tuple[list[TablePiece], ScanPlan]:
    """What to read of the table, and what of the log; of ``source`` "table" the log's part is
    empty. See ``plan_scan`` for the rest; ``TableNotFound`` where the topic is no table.
    """
    if not isinstance(topic, str):
        raise ClientError(f"source={source!r} reads one topic, not {topic!r:.80}", repr(topic)[:80])
    spec = table_of(discovery, topic)
    target = open_target(spec)
    kept, files = target.load(), target.files()
    committed, state = kept.offsets, State({}, {})
    begin, finish = normal(start), normal(end)
    first: Offsets = {}
    last: Offsets = {}
    try:
        with TopicState(discovery, topic) as asked:
            state = asked.now(brokers_expected)
            committed = committed | asked.cut_to(committed, kept.epochs)
            nothing = dict.fromkeys([*state.bounds, *committed], 0)
            first = _resolved(asked, begin, state, nothing)
            last = _resolved(asked, finish, state, state.ends())
    except TopicNotFound:
        if isinstance(begin, LikeGroup) or isinstance(finish, LikeGroup):
            raise
    times = TopicTimes(discovery, topic, target.storage, files, committed)
    log = state.bounds if source != "table" else {}
    if isinstance(begin, int):
        first = times.offsets_at(begin, first, log)
    if isinstance(finish, int):
        last = times.offsets_at(finish, last, log)
    begins = {q: max(committed.get(q, 0), first[q]) for q in log}
    of_log = {q: (low, max(low, last[q])) for q, low in begins.items()}
    plan = plan_ranges(discovery, of_log, splits_wanted, options)
    ranges = {q: (first.get(q, 0), min(at, last.get(q, at))) for q, at in committed.items()}
    ranges = {queue: (low, high) for queue, (low, high) in ranges.items() if low < high}
    return pieces_of(spec, files, ranges), plan


def table_of(discovery: Discovery, topic: str) -> TableSpec:
    """The settings of a topic's table; ``TableNotFound``."""
    spec = TableRegistry(discovery).all().get(topic)
    if spec is None:
        raise TableNotFound(
            f"topic {topic!r} is no table: create one, or read it with source='log'", topic
        )
    return spec


def _resolved(asked: TopicState, position: Any, state: State, default: Offsets) -> Offsets:
    """The offset of each queue; "earliest" is the table's beginning, ``default`` what queues get
    that are not named.
    """
    if position == LATEST:
        return state.ends()
    if isinstance(position, str):
        return dict.fromkeys(default, 0)
    if not isinstance(position, Mapping):
        return asked.offsets_of(position, state)
    for queue in position:
        if queue not in state.bounds:
            raise ClientError(f"{queue} is no queue of {', '.join(asked.topics)}", str(queue))
    words = {EARLIEST_OFFSET: dict.fromkeys(default, 0), LATEST_OFFSET: state.ends()}
    return default | {
        queue: words[offset][queue] if offset in words else offset
        for queue, offset in position.items()
    }


def pieces_of(
    spec: TableSpec,
    files: Sequence[DataFile],
    ranges: Mapping[MessageQueue, tuple[int, int]],
) -> list[TablePiece]:
    """Files that may have wanted rows, neighbours together."""
    if not ranges:
        return []
    by_place = {(q.broker_name, q.queue_id): bounds for q, bounds in ranges.items()}
    wanted = tuple((broker, number, *bounds) for (broker, number), bounds in by_place.items())
    found: list[TablePiece] = []
    group: list[DataFile] = []
    for one in sorted(files, key=lambda f: (f.broker, f.queue_id, f.first)):
        low, high = by_place.get((one.broker, one.queue_id), (0, 0))
        if one.queue_id >= 0 and not (one.first < high and low < one.next):
            continue
        if sum(f.bytes for f in group) + one.bytes > PIECE_BYTES and group:
            found.append(TablePiece(spec.to_json(), tuple(group), wanted))
            group = []
        group.append(one)
    if group:
        found.append(TablePiece(spec.to_json(), tuple(group), wanted))
    return found


def read_union(
    discovery: Discovery, topic: str, start: Where, end: Where, rows: Rows, source: str
) -> Any:
    """All rows as one ``pyarrow.Table`` in this process's memory."""
    expected = expected_of(discovery)
    pieces, plan = plan_union(discovery, topic, start, end, 1, expected, source=source)
    batches = [batch for piece in pieces for batch in piece.read(rows)]
    with plan:
        reader = open_reader(plan)
        try:
            for split in plan.splits:
                queue = split.queue
                for records, sizes in reader.read(split, CHUNK_BYTES):
                    batches.append(to_rows(queue.topic, queue.broker_name, records, sizes, rows))
        finally:
            reader.close()
    schema = pa.schema([SCHEMA.field(name) for name in rows.columns])
    return pa.Table.from_batches([batch.cast(schema) for batch in batches], schema)


def check_source(source: object) -> str:
    """Itself; ``ClientError`` for what is none."""
    if source not in SOURCES:
        raise ClientError(
            f"source must be one of {', '.join(SOURCES)}, not {source!r:.80}", repr(source)[:80]
        )
    return str(source)
