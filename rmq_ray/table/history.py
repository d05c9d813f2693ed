"""What of a topic only its table still has, for readers that go batch by batch: a stream of Spark
or Ray Data that begins in the table and goes on in the log.

    table's oldest row ──────[seam)──────────────> end of the log
              files                splits of a plan

Decides: offsets below the seam come from files, those from it on from the log. The seam is how far
the table was when it was read last; it is read again for every batch that needs files, and where
retention has passed the seam. Where the log was cut behind the table, the seam is the cut. Rows are
named by their offsets, so a batch that is planned again has the same rows, wherever the seam is by
then, and besides them at most what a cut removed and the table keeps. Does not decide where a batch
ends, nor what is remembered. Blocking; in the driver. Raises ``TableStorageError`` where the store
cannot be read.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from rmq_ray.client.scan.batch_planner import BatchLimits, BatchPlanner, KnowsBrokers
from rmq_ray.client.scan.scan_plan import ScanPlan
from rmq_ray.client.scan.topic_state import Bounds, State
from rmq_ray.errors import RmqError
from rmq_ray.ports import Discovery
from rmq_ray.protocol.scan.scan_positions import normal
from rmq_ray.protocol.scan.stream_offsets import StreamPosition
from rmq_ray.table.actor import open_target
from rmq_ray.table.as_of import TopicTimes
from rmq_ray.table.reading import TablePiece, check_source, pieces_of, table_of
from rmq_ray.table.rules import Gap, Offsets, Ranges


class TopicHistory:
    """Of one topic. ``cut_to``: where logs were cut that had these epochs at these offsets, asked
    of the brokers now. ``TableNotFound`` where the topic is no table.
    """

    def __init__(
        self,
        discovery: Discovery,
        topic: str,
        cut_to: Callable[[Offsets, Mapping[str, int]], Offsets],
    ) -> None:
        self._discovery, self._topic, self._cut_to = discovery, topic, cut_to
        self._spec = table_of(discovery, topic)
        self._target = open_target(self._spec)
        self._lows: Offsets | None = None
        """The log's oldest offsets when the table was read last, None = it was not."""

    def widened(self, state: State) -> State:
        """The bounds from the table's oldest row on, also of queues whose broker is gone."""
        lows = {queue: low for queue, (low, _) in state.bounds.items()}
        known = self._lows
        if known is None or any(
            low > max(self._seam.get(queue, 0), known.get(queue, 0)) for queue, low in lows.items()
        ):
            self._read()
            self._lows = lows
        bounds: Bounds = {q: (first, self._seam[q]) for q, first in self._first.items()}
        for queue, (low, high) in state.bounds.items():
            bounds[queue] = (min(low, self._first.get(queue, low)), high)
        return State(dict(sorted(bounds.items())), state.epochs)

    def split(self, ranges: Ranges) -> tuple[list[TablePiece], Ranges, list[Gap]]:
        """(what reads the part of a batch that the table has, the ranges that are left for the
        log, gaps of the table in that part).
        """
        if self._lows is not None and not any(
            low < self._seam.get(queue, 0) for queue, (low, _) in ranges.items()
        ):
            return [], ranges, []
        self._read()
        mine = {q: (low, min(high, self._seam.get(q, 0))) for q, (low, high) in ranges.items()}
        mine = {queue: (low, high) for queue, (low, high) in mine.items() if low < high}
        rest = {q: (mine[q][1] if q in mine else low, high) for q, (low, high) in ranges.items()}
        gaps = [
            gap
            for gap in self._gaps
            if gap.queue in mine and overlap(gap, mine[gap.queue]) and gap.reason == "retention"
        ]
        rest = {queue: (low, high) for queue, (low, high) in rest.items() if low < high}
        return pieces_of(self._spec, self._files, mine), rest, gaps

    def offsets_at(self, at_ms: int, of_log: Offsets, bounds: Bounds) -> Offsets:
        """The first row stored at a time or later, of every queue; see ``as_of``."""
        storage, files = self._target.storage, self._files
        times = TopicTimes(self._discovery, self._topic, storage, files, self._seam)
        return times.offsets_at(at_ms, of_log, bounds)

    def _read(self) -> None:
        state = self._target.load()
        self._files = self._target.files()
        self._seam = state.offsets | self._cut_to(state.offsets, state.epochs)
        self._gaps = state.gaps
        self._first: Offsets = {}
        places = {(queue.broker_name, queue.queue_id): queue for queue in self._seam}
        for one in self._files:
            if one.queue_id < 0:  # another engine's: it may have rows of any queue
                self._first = dict.fromkeys(self._seam, 0)
                return
            queue = places.get((one.broker, one.queue_id))
            if queue is not None:
                self._first[queue] = min(one.first, self._first.get(queue, one.first))


def overlap(gap: Gap, bounds: tuple[int, int]) -> int:
    """How many offsets of a gap lie within these bounds.

    >>> overlap(Gap(MessageQueue("t", "b", 0), 3, 9, "retention", 0), (5, 7))
    2
    """
    return max(0, min(gap.next, bounds[1]) - max(gap.first, bounds[0]))


class HistoryPlanner(BatchPlanner):
    """A planner of batches whose ``source`` may be "table+log": what is below the table's end comes
    from its files.
    """

    def __init__(
        self, discovery: KnowsBrokers, topics: Sequence[str], limits: BatchLimits, source: str
    ) -> None:
        super().__init__(discovery, topics, limits)
        self._history = (
            None if source == "log" else TopicHistory(discovery, topics[0], self._cut_to)
        )

    def now(self, partial: bool = False) -> State:
        """As the planner's, from the table's oldest row on where the stream begins there."""
        found = super().now(partial)
        return found if self._history is None else self._history.widened(found)

    def start_offsets(self, state: State) -> Offsets:
        """As the planner's; a time may lie before the log's oldest message."""
        start = normal(self._limits.start)
        if self._history is None or not isinstance(start, int):
            return super().start_offsets(state)
        log = super().now()
        return self._history.offsets_at(start, super().start_offsets(log), log.bounds)

    def planned(
        self, before: StreamPosition | None, end: StreamPosition, wanted: int
    ) -> tuple[list[TablePiece], ScanPlan]:
        """What reads a batch, of the table and of the log; see ``plan``."""
        ranges = end.ranges(before)
        if self._history is None:
            return [], self.plan_ranges(ranges, end, wanted)
        pieces, rest, gaps = self._history.split(ranges)
        for gap in gaps:
            why = f"retention took what lies before {gap.next} before the table had it"
            self.refuse(gap.queue, gap.first, ranges[gap.queue], why)
            self.lost(overlap(gap, ranges[gap.queue]), f"of {gap.queue}, a gap of its table")
        return pieces, self.plan_ranges(rest, end, wanted)

    def _cut_to(self, offsets: Offsets, epochs: Mapping[str, int]) -> Offsets:
        super().now(partial=True)  # the epochs of this moment
        return self.state.cut_to(offsets, epochs)


def check_stream_source(source: str, topics: Sequence[str], fault: type[RmqError]) -> None:
    """``ClientError`` for what is no source, ``fault`` for one that a stream cannot have."""
    if check_source(source) == "table":
        raise fault(
            "a stream has no end as a table has: read_topic reads source='table', a stream "
            "'table+log' or 'log'",
            source,
        )
    if source != "log" and len(topics) > 1:
        raise fault(f"source={source!r} reads one topic, not {', '.join(topics)}", source)
