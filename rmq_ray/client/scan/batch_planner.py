"""Batch after batch of one or several topics: where the next one ends, and the plan that reads it.

    position ─now─> bounds, epochs ─moved? retention?─> starts ─limit─> position of the end
        ─plan─> splits

Decides: what becomes of a position that the logs have overtaken: a typed error, or the nearest that
is there, counted. Does not decide when a batch is made or what is remembered. In the driver: of
Spark's streams, of Ray Data's, in a training worker. Invariant: a batch that is planned again from
its two positions has the same rows, or fails.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from rmq_ray.client.instance import outage
from rmq_ray.client.scan import range_plan
from rmq_ray.client.scan.scan_plan import ScanOptions, ScanPlan
from rmq_ray.client.scan.topic_state import State, TopicState
from rmq_ray.clock import SYSTEM_CLOCK
from rmq_ray.errors import OffsetOutOfRange, RemotingError, RmqError, TopicNotFound
from rmq_ray.model.ids import MessageQueue
from rmq_ray.ports import ClusterAddress
from rmq_ray.protocol.scan.scan_positions import Where
from rmq_ray.protocol.scan.stream_offsets import StreamPosition, limited

log = logging.getLogger("rmq_ray.scan")


class KnowsBrokers(Protocol):
    """A ``ports.Discovery`` that can tell which brokers there should be."""

    def lookup(self) -> ClusterAddress:
        """As ``ports.Discovery.lookup``."""
        ...

    def broker_names(self) -> Collection[str]:
        """All brokers of the cluster, those included that are down; none where nobody knows."""
        ...


@dataclass(frozen=True, slots=True)
class BatchLimits:
    """``group``: whose lag shows how far the reader is. ``start``: where a reader begins that has
    no position. ``rows_max``: of a batch, None = all there is.
    """

    group: str | None = None
    start: Where = "earliest"
    fail_on_data_loss: bool = True
    rows_max: int | None = None


class BatchPlanner:
    """Of one reader. ``rows_lost``: messages that were passed over, because retention or a cut of a
    log was faster (``fail_on_data_loss`` False).

    ``mine``: which queues are read, of all that there are, None = all.
    """

    def __init__(
        self,
        discovery: KnowsBrokers,
        topics: Sequence[str],
        limits: BatchLimits,
        mine: Callable[[Collection[MessageQueue]], Collection[MessageQueue]] | None = None,
    ) -> None:
        self.rows_lost = 0
        self._discovery = discovery
        self._topics = tuple(topics)
        self._limits = limits
        self._mine = mine
        self._told: dict[MessageQueue, int] = {}
        self._pinned: list[tuple[StreamPosition, ScanPlan]] = []
        self._opened: TopicState | None = None

    @property
    def state(self) -> TopicState:
        """Opened when it is needed: a reader may go on after ``close``."""
        if self._opened is None:
            self._opened = TopicState(self._discovery, self._topics)
        return self._opened

    def close(self) -> None:
        """Close the connections, until something is asked again."""
        opened, self._opened = self._opened, None
        if opened is not None:
            opened.close()

    def now(self, partial: bool = False) -> State:
        """Bounds and epochs of the queues that are read; see ``state_of``."""
        found = state_of(self.state, self._discovery, partial)
        if self._mine is None:
            return found
        mine = set(self._mine(found.bounds.keys()))
        return State({q: at for q, at in found.bounds.items() if q in mine}, found.epochs)

    def begin(self) -> StreamPosition:
        """Where the stream begins: a batch without rows. Raises as ``read_topic`` does for wrong
        positions.
        """
        state = self.now()
        at = self.start_offsets(state)
        for queue, offset in at.items():
            self._inside(queue, offset, state.bounds[queue])
        at = {queue: min(max(low, at[queue]), high) for queue, (low, high) in state.bounds.items()}
        return StreamPosition(at, state.epochs, dict(at))

    def start_offsets(self, state: State) -> dict[MessageQueue, int]:
        """Where the settings say that the stream begins, as the brokers know it."""
        return self.state.offsets_of(self._limits.start, state)

    def ends(self, partial: bool = False) -> dict[MessageQueue, int]:
        """The next offset of every queue now; see ``state_of``."""
        return self.now(partial).ends()

    def next(
        self, before: StreamPosition, target: Mapping[MessageQueue, int] | None = None
    ) -> StreamPosition:
        """The end of the batch behind ``before``, and no further than ``target``; ``before`` itself
        when there is nothing new. Until a target is reached all brokers are waited for; without one
        those that are away have nothing new.

        Raises ``OffsetOutOfRange`` where messages behind ``before`` are gone, and
        ``fail_on_data_loss`` is set.
        """
        if target is not None and all(
            before.offsets.get(queue, -1) >= end for queue, end in target.items()
        ):
            return before
        state = self.now(partial=target is None)
        at = {queue: self._start(queue, before, bounds) for queue, bounds in state.bounds.items()}
        ends = (
            state.ends()
            if target is None
            else {
                queue: min(high, target.get(queue, at[queue]))
                for queue, high in state.ends().items()
            }
        )
        offsets = limited(at, ends, self._limits.rows_max)
        if offsets == at and all(
            before.offsets.get(queue, start) == start for queue, start in at.items()
        ):
            return before
        starts = {queue: start for queue, start in at.items() if before.offsets.get(queue) != start}
        return StreamPosition(
            {**before.offsets, **offsets}, {**before.epochs, **state.epochs}, starts
        )

    def plan(self, before: StreamPosition | None, end: StreamPosition, wanted: int) -> ScanPlan:
        """What reads the rows of a batch, in about ``wanted`` splits; ``commit`` gives its pins
        back. ``ClusterError`` while one of its brokers is away, ``OffsetOutOfRange`` where rows of
        it are gone.
        """
        return self.plan_ranges(end.ranges(before), end, wanted)

    def plan_ranges(
        self, ranges: Mapping[MessageQueue, tuple[int, int]], end: StreamPosition, wanted: int
    ) -> ScanPlan:
        """The same of these ranges of the batch that ends at ``end``."""
        strict = self._limits.fail_on_data_loss
        plan = range_plan.plan_ranges(
            self._discovery, ranges, wanted, ScanOptions(fail_on_data_loss=strict)
        )
        if strict:  # readers refuse what lies behind a cut that came after the plan
            splits = [
                replace(
                    split,
                    epoch=min(split.epoch, end.epochs.get(split.queue.broker_name) or split.epoch),
                )
                for split in plan.splits
            ]
            plan = replace(plan, splits=tuple(splits))
        self._pinned.append((end, plan))
        self.lost(sum(high - low for low, high in ranges.values()) - plan.rows, "of a batch")
        return plan

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
        if self._limits.group is None or not news:
            return
        try:
            self.state.commit(self._limits.group, news)
            self._told.update(news)
        except RmqError as error:
            log.warning(
                "the lag of group %s is shown too high for now: %s", self._limits.group, error
            )

    def _start(self, queue: MessageQueue, before: StreamPosition, bounds: tuple[int, int]) -> int:
        low, high = bounds
        at = before.offsets.get(queue)
        if at is None:
            return low
        moved = self.state.moved(queue, at, before.epochs.get(queue.broker_name, 0))
        if moved is not None:
            self.refuse(
                queue,
                at,
                bounds,
                f"the broker lost the end of its log; messages from offset {moved} on are "
                f"others now",
            )
            self.lost(at - moved, f"of {queue}, cut off")
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
        self.lost(low - at, f"of {queue}, removed by retention")
        return max(at, low)

    def _inside(self, queue: MessageQueue, offset: int, bounds: tuple[int, int]) -> None:
        low, high = bounds
        if offset < low:
            self.refuse(queue, offset, bounds, "retention has removed what lay before")
        elif offset > high:
            self.refuse(
                queue,
                offset,
                bounds,
                "there is no such message (a wrong offset, or the topic was made anew)",
            )

    def refuse(self, queue: MessageQueue, offset: int, bounds: tuple[int, int], why: str) -> None:
        """``OffsetOutOfRange`` with ``fail_on_data_loss``."""
        if self._limits.fail_on_data_loss:
            raise OffsetOutOfRange(
                f"offset {offset} of {queue} cannot be gone on with, it has [{bounds[0]}, "
                f"{bounds[1]}): {why}; "
                "say fail_on_data_loss=False to go on with what is left",
                offset,
                *bounds,
            )

    def lost(self, rows: int, where: str) -> None:
        """Count messages that are passed over."""
        if rows > 0:
            self.rows_lost += rows
            log.warning("%d messages %s are passed over (fail_on_data_loss=False)", rows, where)


def state_of(asked: TopicState, discovery: KnowsBrokers, partial: bool = False) -> State:
    """The state of the topics now, with the queues of all brokers of the cluster; see
    ``TopicState.now``. Name servers and brokers that restart are asked again, 30 s.

    ``partial``: of the brokers that are there now, for who reads on as long as it takes. But a
    topic that is not there may be that of brokers that are down: then they are waited for.
    """
    give_up = SYSTEM_CLOCK.monotonic_ms() + outage.PATIENCE_MS
    while True:  # ends: at give_up
        try:
            return asked.now(() if partial else discovery.broker_names())
        except TopicNotFound:
            if not partial:
                raise
            partial = False
            continue
        except RemotingError as error:
            if not error.retriable or SYSTEM_CLOCK.monotonic_ms() >= give_up:
                raise
        SYSTEM_CLOCK.sleep_ms(outage.PAUSE_MS)
