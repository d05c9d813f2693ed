"""The archivist of a table: brings what is visible of a topic into the table, commit by commit.

    look ──due──> read, write files ──> commit ──> hold the rest of the log, as each turn does
                                          │ refused, unknown
                                          └──> settle: look it up before anything is repeated

Decides the order of these steps, so that it may die between any two: what was written and not
committed is a leftover, what was committed is said by the commit itself. Does not decide when a
commit counts (``manifest``, ``iceberg``) or which rows come next (``rules``). Synchronous; one
thread at a time. Invariant: a change whose outcome is not known is settled before the next one is
made.
"""

from __future__ import annotations

import logging
import uuid
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Protocol

import pyarrow.compute as pc

from rmq_ray.client.scan.topic_state import State
from rmq_ray.clock import Clock
from rmq_ray.errors import (
    CommitRefused,
    CommitterReplaced,
    RmqError,
    TableError,
    TableStorageError,
    TopicNotFound,
)
from rmq_ray.model.ids import MessageQueue
from rmq_ray.table.columns import BodyDecoder, schema_of
from rmq_ray.table.data_files import FileWriter, rejected_schema
from rmq_ray.table.retention_hold import RetentionHold
from rmq_ray.table.rules import (
    Change,
    DataFile,
    Offsets,
    Ranges,
    Settled,
    TableSpec,
    TableState,
    Work,
    is_due,
    next_work,
    rows_of_cycle,
    settle,
)
from rmq_ray.table.storage import Storage

log = logging.getLogger("rmq_ray.table")
PRUNE_EVERY_MS = 600_000
SWEEP_EVERY_MS = 3_600_000
SETTLE_TRIES = 5


class Source(Protocol):
    """A topic; ``source.TopicSource`` by connections."""

    def look(self) -> State: ...  # noqa: D102 - see TopicSource
    def cut_to(self, committed: Offsets, epochs: dict[str, int]) -> Offsets: ...  # noqa: D102
    def read(self, ranges: Ranges) -> Iterator[tuple[MessageQueue, int, Any, int]]: ...  # noqa: D102
    def hold(self, committed: Offsets | None, hold_bytes: int) -> int: ...  # noqa: D102
    def let_go(self) -> None: ...  # noqa: D102


class Target(Protocol):
    """A table; ``manifest.ManifestTable`` and ``iceberg.IcebergTable``. ``storage``, ``folder``,
    ``rejected_folder``, ``writer_name``: where a committer's files go.
    """

    storage: Storage
    folder: str
    rejected_folder: str

    @property
    def writer_name(self) -> str: ...  # noqa: D102 - see ManifestTable
    def load(self) -> TableState: ...  # noqa: D102
    def take_over(self) -> TableState: ...  # noqa: D102
    def commit(self, expected: TableState, change: Change) -> TableState: ...  # noqa: D102
    def files(self) -> tuple[DataFile, ...]: ...  # noqa: D102
    def sweep(self, now_ms: int) -> int: ...  # noqa: D102
    def prune(self) -> None: ...  # noqa: D102
    def expire_versions(self, before_ms: int) -> int: ...  # noqa: D102
    def alter(self, schema: Any) -> None: ...  # noqa: D102
    def check_location(self) -> None: ...  # noqa: D102
    def drop(self) -> int: ...  # noqa: D102


@dataclass(frozen=True, slots=True)
class Lag:
    """Behind what is visible: messages, and ms since the oldest of them was stored."""

    messages: int
    ms: float


class Archivist:
    """Of one table. ``turn`` is called again and again, also after an error; ``watch`` in its
    place while the table is paused. ``hold``: where somebody else renews it, too.
    """

    def __init__(
        self,
        spec: TableSpec,
        source: Source,
        target: Target,
        clock: Clock,
        hold: RetentionHold | None = None,
    ) -> None:
        self.lag = Lag(0, 0.0)
        self.hold = hold or RetentionHold(source, spec.topic, spec.hold_bytes, clock)
        self.committed_ms = 0
        self.topic_gone = False
        self.sweeps_from_ms = 0.0
        """Not before this (monotonic): upkeep writes files that no commit names yet."""
        self._source, self._target, self._clock = source, target, clock
        self.take_spec(spec)
        self._state: TableState | None = None
        self._unsettled: tuple[TableState, Change] | None = None
        self._replaced: CommitterReplaced | None = None
        self._rows = self._body_bytes = 0
        self._reached_ms: dict[MessageQueue, int] = {}
        """When the last row committed was stored, or when there was none to commit."""
        self._pruned_ms = self._swept_ms = -1e18

    @property
    def state(self) -> TableState | None:
        """What is committed, as this committer knows it."""
        return self._state

    @property
    def files(self) -> Sequence[DataFile]:
        """Of that state."""
        return self._target.files()

    def turn(self, force: bool = False) -> bool:
        """Commit what is due, or with ``force`` whatever is there; whether it did. Raises what kept
        it from that; the next turn goes on where this one was. The hold is renewed in any case.
        """
        state = self._watched()
        seen = self._look(state)
        if seen is None:
            return False
        now_ms = self._clock.now_ms()
        rows_max = rows_of_cycle(self._rows, self._body_bytes)
        cuts = self._source.cut_to(state.offsets, dict(state.epochs))
        work = next_work(state.offsets, seen.bounds, cuts, rows_max, now_ms)
        due = is_due(self.lag.messages, rows_max, self.lag.ms, self.spec.max_lag_s * 1000)
        if work and (due or force or work.gaps):
            self._cycle(state, work, seen)
            self._measure(self._state or state, seen, self._clock.now_ms())
            return True
        self._keep_house()
        return False

    def watch(self) -> bool:
        """A turn that commits no rows: hold and lag go on. Always False."""
        state = self._state
        if state is None:
            state = self._watched()
        self.hold.renew_when_due()
        self._look(state)
        return False

    def ends(self) -> Offsets:
        """The next visible offset of every queue: what a flush waits for."""
        return self._source.look().ends()

    def replace_files(
        self, removed: Sequence[DataFile], added: Sequence[DataFile], replayed: str = ""
    ) -> None:
        """Commit other files in the place of these; see ``Change`` for ``replayed``."""
        if removed or added:
            change = Change(_new_id(), tuple(added), tuple(removed), replayed=replayed)
            self._commit(self.opened(), change)

    def take_spec(self, spec: TableSpec) -> None:
        """Other settings from the next turn on."""
        self.spec = spec
        self.hold.hold_bytes = spec.hold_bytes
        self._decoder = BodyDecoder(spec.decode, spec.columns) if spec.decode else None

    def sweep(self) -> int:
        """Delete what no commit names; how many files."""
        self.opened()
        self._swept_ms = self._clock.monotonic_ms()
        return self._target.sweep(self._clock.now_ms())

    def writer(self, schema: Any, rejected: bool = False) -> FileWriter:
        """For the files of a change."""
        target = self._target
        folder = target.rejected_folder if rejected else target.folder
        return FileWriter(
            target.storage, folder, schema, self.spec.file_bytes, target.writer_name, rejected
        )

    # --- a cycle ----------------------------------------------------------------------------------

    def _cycle(self, state: TableState, work: Work, seen: State) -> None:
        cut = {gap.queue for gap in work.gaps if gap.reason == "cut"}
        known = {q: at for q, at in state.rejected_offsets.items() if q not in cut}
        reached: dict[MessageQueue, int] = {}
        with (
            self.writer(schema_of(self.spec.columns)) as good,
            self.writer(rejected_schema(), rejected=True) as bad,
        ):
            for queue, epoch, batch, behind in self._source.read(work.ranges):
                if epoch != seen.epochs[queue.broker_name]:
                    raise TableError(
                        f"the log of {queue.broker_name} was cut while it was read; the next turn "
                        f"goes on where it was",
                        str(queue),
                    )
                self._count(batch)
                reached[queue] = int(batch["store_ts"][-1].value) // 1000
                if self._decoder is None:
                    good.write(queue, epoch, batch, behind)
                    continue
                fitting, rejected = self._decoder.split(batch)
                good.write(queue, epoch, fitting, behind)
                if known.get(queue, 0) > 0 and rejected.num_rows:
                    there = pc.greater_equal(rejected["queue_offset"], known[queue])
                    rejected = rejected.filter(there)
                bad.write(queue, epoch, rejected, behind)
            added = (*good.close(), *bad.close())
        offsets = {queue: high for queue, (_, high) in work.ranges.items()}
        for gap in work.gaps:
            behind = gap.next if gap.reason == "retention" else gap.first
            offsets[gap.queue] = max(behind, offsets.get(gap.queue, 0))
            said = (self.spec.topic, gap.first, gap.next, gap.queue, gap.reason)
            log.warning("the table of %s lacks offsets [%d, %d) of %s: %s", *said)
        # the epochs of before the read: a log that was cut since then is seen at the next turn
        epochs = {**state.epochs, **seen.epochs}
        self._commit(state, Change(_new_id(), added, (), offsets, epochs, work.gaps))
        self._reached_ms |= reached
        self.hold.renew()
        self._prune()

    def _commit(self, state: TableState, change: Change) -> None:
        self._unsettled = state, change
        try:
            self._state = self._target.commit(state, change)
        except (CommitRefused, TableStorageError) as error:
            log.warning("a commit to the table of %s is looked up: %s", self.spec.topic, error)
            self._settle()
        except CommitterReplaced as error:
            self._state, self._unsettled, self._replaced = None, None, error
            raise
        self._unsettled = None
        self.committed_ms = self._clock.now_ms()
        if self._state is not None:
            self.hold.know(self._state.offsets)

    def _settle(self) -> None:
        """Until it is known what became of the change. Raises where nobody can say now."""
        assert self._unsettled is not None
        expected, change = self._unsettled
        for tries_left in reversed(range(SETTLE_TRIES)):
            found = self._target.load()
            outcome = settle(expected, change, found)
            if outcome is Settled.COMMITTED:
                self._state = found
                return
            if outcome is Settled.LOST:
                self._state = self._unsettled = None
                raise CommitRefused(
                    f"another committer brought the same rows of {self.spec.topic!r} into the "
                    "table; this one reads the table again and goes on behind them",
                    self.spec.topic,
                )
            try:
                self._state = self._target.commit(found, change)
                return
            except (CommitRefused, TableStorageError) as error:
                log.info("the commit to the table of %s again: %s", self.spec.topic, error)
                if not tries_left:
                    if change.removed and isinstance(error, CommitRefused):
                        self._give_up(change)
                    raise

    def _give_up(self, change: Change) -> None:
        """Rows go on without an upkeep whose files another engine replaced. A replay comes to its
        end while its files are there, since its rows are in the table.
        """
        if change.replayed:
            try:
                there = {one.path for one in self._target.files()}
            except TableStorageError:
                raise
            except TableError:  # delete files: another engine's, too
                there = set()
            if all(one.path in there for one in change.removed):
                return
            log.warning(
                "another engine replaced rejected rows of %s while %s was replayed: they stay "
                "rejected beside their replay, and would be taken in again by the next one",
                self.spec.topic,
                change.replayed,
            )
        self._state = self._unsettled = None

    def opened(self) -> TableState:
        """Take the table over at first, and settle what is not settled."""
        if self._replaced is not None:
            raise self._replaced
        if self._unsettled is not None:
            self._settle()
            self._unsettled = None
        if self._state is None:
            self._state = self._target.take_over()
            self._target.sweep(self._clock.now_ms())
            self._swept_ms = self._clock.monotonic_ms()
        self.hold.know(self._state.offsets)
        return self._state

    # --- beside it --------------------------------------------------------------------------------

    def _watched(self) -> TableState:
        """The table's state, and the hold renewed. Where the table cannot be reached both the hold
        and the lag go by what was known of it.
        """
        try:
            state = self.opened()
        except TableError:
            self.hold.renew_when_due()
            if self._state is not None:
                with suppress(RmqError):  # what is raised is the reason
                    self._look(self._state)
            raise
        self.hold.renew_when_due()
        return state

    def _look(self, state: TableState) -> State | None:
        """What is visible now, and the lag by that; None = the topic is gone."""
        try:
            seen = self._source.look()
        except TopicNotFound:
            self.topic_gone, self.lag = True, Lag(0, 0.0)
            return None
        self.topic_gone = False
        self._measure(state, seen, self._clock.now_ms())
        return seen

    def _keep_house(self) -> None:
        now = self._clock.monotonic_ms()
        if now - self._pruned_ms >= PRUNE_EVERY_MS:
            self._prune()
        if now >= self.sweeps_from_ms and now - self._swept_ms >= SWEEP_EVERY_MS:
            self.sweep()

    def _prune(self) -> None:
        self._pruned_ms = self._clock.monotonic_ms()
        self._target.prune()

    def _measure(self, state: TableState, seen: State, now_ms: int) -> None:
        messages, oldest = 0, now_ms
        for queue, (low, high) in seen.bounds.items():
            behind = high - max(low, state.offsets.get(queue, low))
            messages += max(0, behind)
            reached = self._reached_ms.get(queue, now_ms) if behind > 0 else now_ms
            # never ahead of a clock that was set back, else nothing would be due until it caught up
            self._reached_ms[queue] = min(reached, now_ms)
            oldest = min(oldest, self._reached_ms[queue])
        self.lag = Lag(messages, float(now_ms - oldest))

    def _count(self, batch: Any) -> None:
        self._rows += batch.num_rows
        self._body_bytes += batch.column("body").nbytes
        if self._rows > 10_000_000:  # the newest bodies count most
            self._rows, self._body_bytes = self._rows // 2, self._body_bytes // 2


def _new_id() -> str:
    return uuid.uuid4().hex
