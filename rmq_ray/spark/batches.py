"""Batch after batch of one or several topics: where the next one ends, and the rows of one as a
DataFrame.

    position ─now─> bounds, epochs ─moved? retention?─> starts ─limit─> position of the end
        ─plan─> DataFrame

Decides: what becomes of a position that the logs have overtaken: a typed error, or the nearest that
is there, counted. Does not decide when a batch is made or what is remembered (``source``,
``micro_batches``, ``batch``). In the driver. Invariant: a batch that is made again from its two
positions has the same rows, or fails.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from rmq_ray.actors.discovery import RayDiscovery, StaticDiscovery
from rmq_ray.client.instance import outage
from rmq_ray.client.scan.scan_plan import ScanOptions, ScanPlan, plan_scan
from rmq_ray.client.scan.topic_state import State, TopicState
from rmq_ray.clock import SYSTEM_CLOCK
from rmq_ray.codec.arrow_reader import Rows
from rmq_ray.errors import (
    ClusterError,
    OffsetOutOfRange,
    RemotingError,
    RmqError,
    SparkError,
    TopicNotFound,
)
from rmq_ray.model.ids import MessageQueue
from rmq_ray.protocol.scan.scan_positions import LATEST_OFFSET, Where, normal
from rmq_ray.protocol.scan.scan_splits import bundled
from rmq_ray.protocol.scan.stream_offsets import StreamPosition, limited
from rmq_ray.protocol.validators import check_topic
from rmq_ray.spark.read import SPLITS_PER_CORE, frame_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

log = logging.getLogger("rmq_ray.spark")


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

    def check(self) -> None:
        """``SparkError`` and ``ClientError`` for wrong values."""
        if self.rows_max is not None and self.rows_max < 1:
            raise SparkError(
                f"max_rows_per_trigger must be at least 1, not {self.rows_max}", self.rows_max
            )
        if self.splits is not None and self.splits < 1:
            raise SparkError(f"splits must be at least 1, not {self.splits}", self.splits)
        normal(self.start)
        for topic in self.topics:
            check_topic(topic)


class Batches:
    """Of one stream. ``rows_lost``: messages that were passed over, because retention or a cut of a
    log was faster (``fail_on_data_loss`` False).
    """

    def __init__(
        self, session: SparkSession, discovery: RayDiscovery | StaticDiscovery, reading: Reading
    ) -> None:
        reading.check()
        self.session = session
        self.reading = reading
        self.rows_lost = 0
        self._discovery = discovery
        self._told: dict[MessageQueue, int] = {}
        self._pinned: list[tuple[StreamPosition, ScanPlan]] = []
        self._opened: TopicState | None = None

    @property
    def _state(self) -> TopicState:
        """Opened when it is needed: a DataFrame's second query goes on with a source that the first
        one has stopped.
        """
        if self._opened is None:
            self._opened = TopicState(self._discovery, self.reading.topics)
        return self._opened

    def close(self) -> None:
        """Close the connections, until something is asked again."""
        opened, self._opened = self._opened, None
        if opened is not None:
            opened.close()

    def begin(self) -> StreamPosition:
        """Where the stream begins: a batch without rows. Raises as ``read_topic`` does for wrong
        positions.
        """
        state = state_of(self._state, self._discovery)
        at = self._state.offsets_of(self.reading.start, state)
        for queue, offset in at.items():
            self._inside(queue, offset, state.bounds[queue])
        at = {queue: min(max(low, at[queue]), high) for queue, (low, high) in state.bounds.items()}
        return StreamPosition(at, state.epochs, dict(at))

    def ends(self) -> dict[MessageQueue, int]:
        """The next offset of every queue now."""
        return state_of(self._state, self._discovery).ends()

    def next(
        self, before: StreamPosition, target: Mapping[MessageQueue, int] | None = None
    ) -> StreamPosition:
        """The end of the batch behind ``before``, and no further than ``target``; ``before`` itself
        when there is nothing new.

        Raises ``OffsetOutOfRange`` where messages behind ``before`` are gone, and
        ``fail_on_data_loss`` is set.
        """
        state = state_of(self._state, self._discovery)
        at = {queue: self._start(queue, before, bounds) for queue, bounds in state.bounds.items()}
        ends = (
            state.ends()
            if target is None
            else {
                queue: min(high, target.get(queue, at[queue]))
                for queue, high in state.ends().items()
            }
        )
        offsets = limited(at, ends, self.reading.rows_max)
        if offsets == at and all(
            before.offsets.get(queue, start) == start for queue, start in at.items()
        ):
            return before
        starts = {queue: start for queue, start in at.items() if before.offsets.get(queue) != start}
        return StreamPosition(
            {**before.offsets, **offsets}, {**before.epochs, **state.epochs}, starts
        )

    def frame(self, before: StreamPosition | None, end: StreamPosition) -> DataFrame:
        """The rows of a batch. ``ClusterError`` while one of its brokers is away,
        ``OffsetOutOfRange`` where rows of it are gone.
        """
        ranges = end.ranges(before)
        state = state_of(self._state, self._discovery)
        missing = sorted({queue.broker_name for queue in ranges if queue not in state.bounds})
        if missing:
            raise ClusterError(
                f"the queues of {', '.join(missing)} belong to this batch and are not there "
                f"now; see `rmq-ray status`",
                missing[0],
            )
        others = {queue: LATEST_OFFSET for queue in state.bounds if queue not in ranges}
        start, last = (
            {q: low for q, (low, _) in ranges.items()} | others,
            {q: high for q, (_, high) in ranges.items()} | others,
        )
        wanted = (
            self.reading.splits or self.session.sparkContext.defaultParallelism * SPLITS_PER_CORE
        )
        options = ScanOptions(fail_on_data_loss=self.reading.fail_on_data_loss)
        plan = plan_scan(
            self._discovery,
            self.reading.topics,
            start,
            last,
            wanted,
            self._discovery.broker_names(),
            options,
        )
        splits = [split for split in plan.splits if split.queue in ranges]
        if (
            self.reading.fail_on_data_loss
        ):  # readers refuse what lies behind a cut that came after the plan
            splits = [
                replace(
                    split,
                    epoch=min(split.epoch, end.epochs.get(split.queue.broker_name) or split.epoch),
                )
                for split in splits
            ]
        plan = replace(plan, splits=tuple(splits))
        self._pinned.append((end, plan))
        self._lost(sum(high - low for low, high in ranges.values()) - plan.rows, "of a batch")
        return frame_of(
            self.session,
            plan,
            self.reading.rows,
            self.reading.kafka_compat,
            bundled(plan.sizes, wanted),
        )

    def commit(self, end: StreamPosition) -> None:
        """The batch up to there is done: retention may take what it read. Tell the brokers how far
        the group is, so that its lag can be seen. The checkpoint counts, so a failure is only
        logged.
        """
        pinned, self._pinned = self._pinned, []
        for upto, plan in pinned:
            if all(offset <= end.offsets.get(queue, -1) for queue, offset in upto.offsets.items()):
                plan.release()
            else:
                self._pinned.append((upto, plan))
        news = {
            queue: offset
            for queue, offset in end.offsets.items()
            if self._told.get(queue) != offset
        }
        if self.reading.group is None or not news:
            return
        try:
            self._state.commit(self.reading.group, news)
            self._told.update(news)
        except RmqError as error:
            log.warning(
                "the lag of group %s is shown too high for now: %s", self.reading.group, error
            )

    def _start(self, queue: MessageQueue, before: StreamPosition, bounds: tuple[int, int]) -> int:
        low, high = bounds
        at = before.offsets.get(queue)
        if at is None:
            return low
        moved = self._state.moved(queue, at, before.epochs.get(queue.broker_name, 0))
        if moved is not None:
            self._refuse(
                queue,
                at,
                bounds,
                f"the broker lost the end of its log; messages from offset {moved} on are "
                f"others now",
            )
            self._lost(at - moved, f"of {queue}, cut off")
            return max(moved, low)
        self._inside(queue, at, bounds)
        if at > high:
            log.warning(
                "offset %d of %s is behind its end %d: its topic was made anew, and is read "
                "from its beginning",
                at,
                queue,
                high,
            )
            return low
        self._lost(low - at, f"of {queue}, removed by retention")
        return max(at, low)

    def _inside(self, queue: MessageQueue, offset: int, bounds: tuple[int, int]) -> None:
        low, high = bounds
        if offset < low:
            self._refuse(queue, offset, bounds, "retention has removed what lay before")
        elif offset > high:
            self._refuse(
                queue,
                offset,
                bounds,
                "there is no such message (a wrong offset, or the topic was made anew)",
            )

    def _refuse(self, queue: MessageQueue, offset: int, bounds: tuple[int, int], why: str) -> None:
        if self.reading.fail_on_data_loss:
            raise OffsetOutOfRange(
                f"offset {offset} of {queue} cannot be gone on with, it has [{bounds[0]}, "
                f"{bounds[1]}): {why}; "
                "say fail_on_data_loss=False to go on with what is left",
                offset,
                *bounds,
            )

    def _lost(self, rows: int, where: str) -> None:
        if rows > 0:
            self.rows_lost += rows
            log.warning("%d messages %s are passed over (fail_on_data_loss=False)", rows, where)


def state_of(asked: TopicState, discovery: RayDiscovery | StaticDiscovery) -> State:
    """The state of the topics now. Name servers and brokers that restart are asked again, 30 s. A
    topic that is not there may be that of brokers that are down: they are waited for as long.
    """
    give_up = SYSTEM_CLOCK.monotonic_ms() + outage.PATIENCE_MS
    while True:  # ends: at give_up
        try:
            return asked.now()
        except TopicNotFound:
            asked.wait_for(discovery.broker_names())
            return asked.now()
        except RemotingError as error:
            if not error.retriable or SYSTEM_CLOCK.monotonic_ms() >= give_up:
                raise
        SYSTEM_CLOCK.sleep_ms(outage.PAUSE_MS)


def topics_of(topic: str | Sequence[str]) -> tuple[str, ...]:
    """The names of the topics, each once. ``SparkError`` for none."""
    names = tuple(dict.fromkeys([topic] if isinstance(topic, str) else topic))
    if not names:
        raise SparkError("give a topic, or several", repr(topic))
    return names
