"""Batch after batch of one or several topics as DataFrames.

    position ─BatchPlanner─> position of the end, splits ─frame_of─> DataFrame

Decides: how many pieces a batch has. Does not decide where it ends (``client.scan.batch_planner``),
nor whether rows come from a table (``table.history``), when a batch is made or what is remembered
(``source``, ``micro_batches``, ``batch``). In the driver.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from rmq_ray.client.scan.batch_planner import BatchLimits, KnowsBrokers
from rmq_ray.codec.arrow.arrow_rows import Rows
from rmq_ray.errors import SparkError
from rmq_ray.protocol.scan.scan_positions import Where, normal
from rmq_ray.protocol.scan.scan_splits import bundled
from rmq_ray.protocol.scan.stream_offsets import StreamPosition
from rmq_ray.protocol.validators import check_topic
from rmq_ray.spark.read import SPLITS_PER_CORE, frame_of
from rmq_ray.table.history import HistoryPlanner, check_stream_source

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


@dataclass(frozen=True, slots=True)
class Reading:
    """What is read and how. ``rows_max``: of a batch, None = all there is. ``splits``: pieces of a
    batch at least, None = two for each core.
    """

    topics: tuple[str, ...]
    rows: Rows
    group: str | None = None
    start: Where = "earliest"
    kafka_compat: bool = False
    fail_on_data_loss: bool = True
    rows_max: int | None = None
    splits: int | None = None
    source: str = "log"

    def check(self) -> None:
        """``SparkError`` and ``ClientError`` for wrong values."""
        if self.rows_max is not None and self.rows_max < 1:
            raise SparkError(
                f"max_rows_per_trigger must be at least 1, not {self.rows_max}", self.rows_max
            )
        if self.splits is not None and self.splits < 1:
            raise SparkError(f"splits must be at least 1, not {self.splits}", self.splits)
        check_stream_source(self.source, self.topics, SparkError)
        normal(self.start)
        for topic in self.topics:
            check_topic(topic)


class Batches(HistoryPlanner):
    """Of one stream; a session's frames of what the planner plans."""

    def __init__(self, session: SparkSession, discovery: KnowsBrokers, reading: Reading) -> None:
        reading.check()
        limits = BatchLimits(
            reading.group, reading.start, reading.fail_on_data_loss, reading.rows_max
        )
        super().__init__(discovery, reading.topics, limits, reading.source)
        self.session = session
        self.reading = reading

    def frame(self, before: StreamPosition | None, end: StreamPosition) -> DataFrame:
        """The rows of a batch; raises what ``plan`` raises."""
        reading = self.reading
        wanted = reading.splits or self.session.sparkContext.defaultParallelism * SPLITS_PER_CORE
        pieces, plan = self.planned(before, end, wanted)
        bundles = bundled(plan.sizes, wanted)
        return frame_of(self.session, plan, reading.rows, reading.kafka_compat, bundles, pieces)


def topics_of(topic: str | Sequence[str]) -> tuple[str, ...]:
    """The names of the topics, each once. ``SparkError`` for none."""
    names = tuple(dict.fromkeys([topic] if isinstance(topic, str) else topic))
    if not names:
        raise SparkError("give a topic, or several", repr(topic))
    return names
