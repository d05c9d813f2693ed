"""Where a time lies in a topic that is a table: one offset of each queue.

    stored at   10  11  50  51  12  13  60      a clock was ahead, and set back
    asked for   12 ──────^ the first row stored then or later: offset 2

Decides that. Below the seam, where the table ends, the first such row is looked for in its files;
where all of them are earlier, in the log: up to where its broker says, which searches by halves, as
RocketMQ does, and where times do not rise may say a later place. So once a queue has a row of that
time or later, what lies before the time stays what it is, whatever comes later with an earlier
time, and wherever the seam is; of two reads whose ends meet each row is in one. Each queue is
looked at by its own broker's clock.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds

from rmq_ray.client.scan.topic_state import Bounds
from rmq_ray.model.arrow import SCHEMA, TIME
from rmq_ray.ports import Discovery
from rmq_ray.table.data_files import read_files
from rmq_ray.table.rules import DataFile, Offsets, Ranges
from rmq_ray.table.source import TopicSource
from rmq_ray.table.storage import Storage

_PLACE = ["broker", "queue_id", "queue_offset"]


@dataclass(frozen=True, slots=True)
class TopicTimes:
    """Of one topic and its table. ``seam``: the next offset of each queue of the table."""

    discovery: Discovery
    topic: str
    storage: Storage
    files: Sequence[DataFile]
    seam: Offsets

    def offsets_at(self, at_ms: int, of_log: Offsets, bounds: Bounds) -> Offsets:
        """Of every queue that the table or the log has. ``of_log``: what the brokers say;
        ``bounds``: of the log, none where it is of no interest.
        """
        first = _first_rows(self.storage, self.files, at_ms)
        found: Offsets = {}
        unsure: Ranges = {}
        for queue in {**self.seam, **of_log}:
            behind = self.seam.get(queue, 0)
            at = first.get((queue.broker_name, queue.queue_id), behind)
            found[queue] = at if at < behind else max(behind, of_log.get(queue, behind))
            low = max(behind, bounds.get(queue, (behind, 0))[0])
            if at >= behind and queue in bounds and low < found[queue]:
                unsure[queue] = low, found[queue]
        return found | self._first_in_log(unsure, at_ms)

    def _first_in_log(self, ranges: Ranges, at_ms: int) -> Offsets:
        """The first such row of these ranges, of queues that have one."""
        found: Offsets = {}
        if not ranges:
            return found
        source = TopicSource(self.discovery, self.topic)
        try:
            for queue, span in ranges.items():
                for _, _, rows, _ in source.read({queue: span}):
                    later = pc.greater_equal(rows["store_ts"], _moment(at_ms))
                    if pc.any(later).as_py():
                        found[queue] = int(rows.filter(later)["queue_offset"][0].as_py())
                        break
        finally:
            source.close()
        return found


def _moment(at_ms: int) -> Any:
    return pa.scalar(at_ms * 1000, TIME)


def _first_rows(
    storage: Storage, files: Sequence[DataFile], at_ms: int
) -> dict[tuple[str, int], int]:
    """The smallest offset in the files that was stored then or later, by broker and queue id."""
    day = str(datetime.fromtimestamp(at_ms / 1000, UTC).date())
    found: dict[tuple[str, int], int] = {}
    paths = []
    for one in files:
        if one.day > day and one.queue_id >= 0:
            place = one.broker, one.queue_id
            found[place] = min(one.first, found.get(place, one.first))
        elif one.day >= day:
            paths.append(one.path)
    schema = pa.schema([SCHEMA.field(name) for name in [*_PLACE, "store_ts"]])
    wanted = ds.field("store_ts") >= _moment(at_ms)
    for batch in read_files(storage, paths, schema, _PLACE, wanted):
        firsts = pa.table(batch).group_by(_PLACE[:2]).aggregate([("queue_offset", "min")])
        for row in firsts.to_pylist():
            place, first = (row["broker"], row["queue_id"]), row["queue_offset_min"]
            found[place] = min(first, found.get(place, first))
    return found
