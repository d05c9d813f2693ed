"""What keeps a table small, and shows that it has what the log has: functions that run as Ray
tasks, and hand their files back to the table's one committer.

Decides how rows are read and written anew, and what two sides are compared by. Does not commit.
Invariant: a file that is replaced is read whole before the one in its place is complete.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from rmq_ray.actors.discovery import RayDiscovery
from rmq_ray.codec.body_crcs import body_crcs
from rmq_ray.model.ids import MessageQueue
from rmq_ray.table.actor import open_target
from rmq_ray.table.columns import BodyDecoder, schema_of
from rmq_ray.table.data_files import FileWriter, read_files, rejected_schema
from rmq_ray.table.rules import DataFile, TableSpec, parse_file_name
from rmq_ray.table.source import TopicSource

_DAY_MS = 86_400_000
SIDES = ("rows", "offset_sum", "body_bytes", "body_crc_sum")
_MASK = (1 << 64) - 1


def rewrite(spec_text: str, run: Sequence[DataFile], writer: str) -> list[DataFile]:
    """One larger file of neighbours of one queue and day."""
    spec = TableSpec.from_json(spec_text)
    target = open_target(spec)
    rejected = run[0].rejected
    schema = rejected_schema() if rejected else schema_of(spec.columns)
    folder = target.rejected_folder if rejected else target.folder
    out = FileWriter(target.storage, folder, schema, spec.file_bytes, writer, rejected)
    for one in sorted(run, key=lambda file: file.first):
        for batch in read_files(target.storage, [one.path], schema):
            if batch.num_rows:
                out.write(*_place(spec.topic, one), batch, _behind(batch))
    return out.close()


def redecode(spec_text: str, bad: Sequence[DataFile], writer: str) -> list[DataFile]:
    """Rejected rows by the columns as they are now: files of those that fit, files of the rest."""
    spec = TableSpec.from_json(spec_text)
    target = open_target(spec)
    decoder = BodyDecoder(spec.decode, spec.columns)
    made: list[DataFile] = []
    for one in sorted(bad, key=lambda f: (f.broker, f.queue_id, f.first)):
        shared = spec.file_bytes, writer
        good = FileWriter(target.storage, target.folder, schema_of(spec.columns), *shared)
        left = FileWriter(
            target.storage, target.rejected_folder, rejected_schema(), *shared, rejected=True
        )
        for batch in read_files(target.storage, [one.path], rejected_schema()):
            for out, rows in zip((good, left), decoder.split(_messages(batch)), strict=True):
                if rows.num_rows:
                    out.write(*_place(spec.topic, one), rows, _behind(rows))
        made += [*good.close(), *left.close()]
    return made


def expired(files: Sequence[DataFile], before_ms: int) -> list[DataFile]:
    """Those of days that ended before.

    >>> one = DataFile("p", "2026-11-20", "b", 0, 0, 5, 5, 9)
    >>> expired([one], 1795219200000) == [one], expired([one], 1795219199999)
    (True, [])
    """
    last = datetime.fromtimestamp((before_ms - _DAY_MS) / 1000, UTC).date()
    return [one for one in files if one.day and one.day <= str(last)]


def compare(cluster: str, spec_text: str) -> list[dict[str, Any]]:
    """A row for each queue: its ``first`` and ``next`` offset compared, ``SIDES`` of table and log,
    and whether they are ``equal``.
    """
    spec = TableSpec.from_json(spec_text)
    target = open_target(spec)
    state = target.load()
    source = TopicSource(RayDiscovery(cluster), spec.topic)
    try:
        bounds = source.look().bounds
        ranges = {
            queue: (low, min(high, state.offsets[queue]))
            for queue, (low, high) in bounds.items()
            if state.offsets.get(queue, 0) > low
        }
        from_log = {queue: dict.fromkeys(SIDES, 0) for queue in ranges}
        for queue, _, batch, _ in source.read(ranges):
            _add(from_log[queue], batch)
    finally:
        source.close()
    from_table = {queue: dict.fromkeys(SIDES, 0) for queue in ranges}
    for batch in _table_rows(target):
        brokers, queues = batch["broker"], np.asarray(batch["queue_id"])
        offsets = np.asarray(batch["queue_offset"])
        for queue, (low, high) in ranges.items():
            mine = (queues == queue.queue_id) & (offsets >= low) & (offsets < high)
            mine &= np.asarray(pc.equal(brokers, queue.broker_name))
            if mine.any():
                _add(from_table[queue], batch.filter(pa.array(mine)))
    return [
        {
            "broker": queue.broker_name,
            "queue": queue.queue_id,
            "first": low,
            "next": high,
            **{f"table_{side}": from_table[queue][side] for side in SIDES},
            **{f"log_{side}": from_log[queue][side] for side in SIDES},
            "equal": from_table[queue] == from_log[queue],
        }
        for queue, (low, high) in sorted(ranges.items())
    ]


def _table_rows(target: Any) -> Iterator[Any]:
    columns = ["broker", "queue_id", "queue_offset", "body"]
    schema = pa.schema([rejected_schema().field(name) for name in columns])
    paths = [one.path for one in target.files()]
    yield from read_files(target.storage, paths, schema, columns)


def _add(sums: dict[str, int], batch: Any) -> None:
    """Bodies as the log and the table have them: a body that cannot be read is empty."""
    bodies = batch.column("body").fill_null(b"")
    offsets = np.frombuffer(bodies.buffers()[1], np.int32, len(bodies) + 1, bodies.offset * 4)
    begins, ends = offsets[:-1].astype(np.int64), offsets[1:].astype(np.int64)
    data = memoryview(bodies.buffers()[2] or b"")
    sums["rows"] += len(bodies)
    sums["offset_sum"] += int(np.asarray(batch["queue_offset"]).sum())
    sums["body_bytes"] += int((ends - begins).sum())
    crcs = body_crcs(data, begins, ends)
    sums["body_crc_sum"] = (sums["body_crc_sum"] + int(np.asarray(crcs, np.uint64).sum())) & _MASK


def _messages(batch: Any) -> Any:
    return batch.select(batch.schema.names[:-1])


def _place(topic: str, one: DataFile) -> tuple[MessageQueue, int]:
    name = parse_file_name(one.path.rpartition("/")[2])
    return MessageQueue(topic, one.broker, one.queue_id), name[3] if name else 0


def _behind(batch: Any) -> int:
    return int(batch["queue_offset"][-1].as_py()) + 1
