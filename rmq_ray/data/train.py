"""A topic for the workers of a training run: each has its queues, and a checkpoint of the model
keeps exactly which rows it was trained on.

    queues of this worker ─BatchPlanner─> a window in memory ─shuffled─> table ─> the loop
                                                │                                    │
                              state_dict(): low, high, done of each queue <── model saved

Decides: which queues a worker has, when a window is read, and what a state means for a worker of
another run. Does not decide the order in a window (``train_windows``) nor where a model is kept.
Invariant: from a state on, every row behind it is handed out once, whatever the number of workers.
"""

from __future__ import annotations

import json
import os
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Self

import numpy as np
import pyarrow as pa

from rmq_ray.actors.access_keys import SecretKey
from rmq_ray.actors.discovery import discovery_for, meant_cluster
from rmq_ray.client.scan.batch_planner import BatchLimits, BatchPlanner, KnowsBrokers
from rmq_ray.client.scan.bulk_arguments import checked_columns
from rmq_ray.client.scan.scan_plan import open_reader
from rmq_ray.clock import SYSTEM_CLOCK
from rmq_ray.codec.arrow.arrow_rows import Rows, to_rows
from rmq_ray.config import Tls
from rmq_ray.data.train_windows import (
    TrainState,
    Window,
    advanced,
    hand_out_order,
    merged,
    of_queues,
)
from rmq_ray.errors import ClientError, ClusterError, GroupNotFound
from rmq_ray.model.arrow import SCHEMA
from rmq_ray.model.ids import MessageQueue
from rmq_ray.protocol.filters.filter_tag import tags_of_rows
from rmq_ray.protocol.scan.scan_positions import LikeGroup, Where, normal
from rmq_ray.protocol.scan.stream_offsets import StreamPosition
from rmq_ray.protocol.validators import check_group, check_topic

CHUNK_BYTES = 8 << 20
IDLE_PAUSE_MS = 100
WINDOW_ROWS = 16_384
STATE_FILE = "rmq-position-{}.json"
States = Mapping[str, Any] | str | Sequence[Mapping[str, Any] | str]


def train_source(  # noqa: PLR0913 - the settings of the outermost call
    topic: str,
    group: str,
    *,
    batch_size: int = 1_024,
    shuffle_rows: int = 0,
    seed: int = 0,
    columns: Sequence[str] | None = None,
    tags: Any = None,
    start: Where = "earliest",
    end: Where | None = None,
    idle_s: float | None = None,
    shard: tuple[int, int] | None = None,
    fail_on_data_loss: bool = True,
    cluster: str | None = None,
    name_servers: Sequence[str] | str | None = None,
    secret: bytes = b"",
    tls: Tls | None = None,
    access_key: str = "",
    secret_key: SecretKey = "",
) -> TrainSource:
    """``pyarrow.Table`` after table of ``batch_size`` rows (at a window's end less), for one worker
    of a training run.

    ``shuffle_rows``: rows are shuffled within windows of so many, seeded by ``seed``; 0 = in the
    order of offsets. ``shard`` = (rank, workers): every ``workers``-th queue; default what Ray
    Train says, (0, 1) outside of it. Without a state reading begins where ``group`` is, else at
    ``start``; ``commit`` moves the group. ``end``: "latest" = what there is now, or a position; it
    is kept in the state; None = never. ``idle_s``: an iteration ends when nothing came for so long,
    and may be entered again. ``columns``, ``tags``: as ``read_topic``.

    ``state_dict()`` belongs into the checkpoint of the model, and ``load_state_dict`` takes those
    of all workers back, in as many workers as there are now; ``save`` and ``restore`` do both with
    files for Ray Train. Raises ``ClientError`` for wrong values; the first table ``TopicNotFound``,
    ``ClientError`` for more workers than queues, ``OffsetOutOfRange`` where rows are gone.
    """
    check_topic(topic)
    check_group(group)
    _check_numbers(batch_size, shuffle_rows, seed)
    for where in (start, "latest" if end is None else end):
        normal(where)
    rows = Rows(tuple(checked_columns(columns, ClientError)), tags_of_rows(tags))
    meant = meant_cluster(cluster, name_servers)
    discovery = discovery_for(cluster, name_servers, secret, tls, access_key, secret_key)
    limits = BatchLimits(
        None, start, fail_on_data_loss, shuffle_rows or max(WINDOW_ROWS, batch_size)
    )
    state = TrainState(topic, meant, seed if shuffle_rows else None, {}, shard=_checked(shard))
    return TrainSource(discovery, group, state, limits, rows, (batch_size, idle_s, end))


def _check_numbers(batch_size: int, shuffle_rows: int, seed: int) -> None:
    for name, value, least in (
        ("batch_size", batch_size, 1),
        ("shuffle_rows", shuffle_rows, 0),
        ("seed", seed, 0),
    ):
        if type(value) is not int or value < least:
            raise ClientError(
                f"{name} must be an integer of {least} or more, not {value!r:.80}",
                repr(value)[:80],
            )


def _checked(shard: tuple[int, int] | None) -> tuple[int, int]:
    """``ClientError`` for what is no (rank, workers); Ray Train's for None."""
    rank, workers = _train_shard() if shard is None else shard
    if not 0 <= rank < workers:
        raise ClientError(
            f"shard must be (rank, workers) with 0 <= rank < workers, not {shard!r:.80}",
            repr(shard)[:80],
        )
    return rank, workers


def _train_shard() -> tuple[int, int]:
    """(rank, workers) of the Ray Train worker that this process is, else (0, 1)."""
    try:
        from ray import train
    except ImportError:  # the extra "train" is not installed
        return 0, 1
    try:
        context = train.get_context()
        return int(context.get_world_rank()), int(context.get_world_size())
    except RuntimeError:  # no worker of Ray Train
        return 0, 1


class TrainSource(Iterator[pa.Table]):
    """An iterator of tables, made by ``train_source``; a context manager, too."""

    def __init__(
        self,
        discovery: KnowsBrokers,
        group: str,
        state: TrainState,
        limits: BatchLimits,
        rows: Rows,
        pace: tuple[int, float | None, Where | None],
    ) -> None:
        self._discovery, self._group, self._rows = discovery, group, rows
        self._fresh, self._state = state, state
        self._batch_size, self._idle_s, self._end = pace
        self._queues: list[MessageQueue] = []
        self._loaded: TrainState | None = None
        self._alone = False  # the loaded state is that of one of several workers
        self._planner = BatchPlanner(discovery, (state.topic,), limits, self._mine)
        self._limits = limits
        self._window: Iterator[pa.Table] = iter(())

    # --- the state --------------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        """What was handed out, exactly; plain values of some 50 bytes a queue."""
        self._open()
        return self._state.to_dict()

    def load_state_dict(self, states: States) -> None:
        """Go on behind a state: of this worker, or a list of those of all workers of the run that
        saved them. ``ClientError`` for those of another topic, cluster or seed, and where the
        states of some workers are missing.
        """
        given = [states] if isinstance(states, str | Mapping) else list(states)
        found = [TrainState.from_dict(state) for state in given]
        whole = found[0] if found and found[0].shard == self._fresh.shard else None
        self._alone = whole is not None and len(found) == 1 < whole.shard[1]
        state = whole if whole is not None and len(found) == 1 else merged(found)
        for name in ("topic", "cluster", "seed"):
            kept, here = getattr(state, name), getattr(self._fresh, name)
            if kept != here:
                raise ClientError(
                    f"this state is of {name} {kept!r}, and the source of {here!r}: "
                    f"give the same, or begin without the state",
                    repr(kept),
                )
        self._loaded, self._queues, self._window = state, [], iter(())
        self._state = self._fresh

    def save(self, directory: str | os.PathLike[str]) -> None:
        """``state_dict()`` as a file of this worker in a directory that it reports as (its part of)
        a checkpoint.
        """
        path = Path(directory) / STATE_FILE.format(self._fresh.shard[0])
        path.write_text(json.dumps(self.state_dict()))

    def restore(self, checkpoint: Any) -> bool:
        """Load what all workers saved in a ``ray.train.Checkpoint`` or a directory; False for None:
        there is no checkpoint yet. ``ClientError`` where it has no such files.
        """
        if checkpoint is None:
            return False
        if hasattr(checkpoint, "as_directory"):
            with checkpoint.as_directory() as directory:
                return self.restore(directory)
        files = sorted(Path(checkpoint).glob(STATE_FILE.format("*")))
        if not files:
            raise ClientError(
                f"{checkpoint} has no {STATE_FILE.format('<rank>')}: every worker calls "
                f"save(directory) before it reports the directory",
                str(checkpoint),
            )
        self.load_state_dict([path.read_text() for path in files])
        return True

    def commit(self) -> None:
        """Move the group to where everything before was handed out, as after a checkpoint was
        reported: for `rmq-ray group lag`, and for runs that begin without a state. Raises
        ``CommitFailed``.
        """
        self._open()
        safe = {queue: at.safe for queue, at in self._state.windows.items()}
        self._planner.state.commit(self._group, safe)

    # --- the rows ---------------------------------------------------------------------------------

    def __next__(self) -> pa.Table:
        self._open()
        heard_ms = SYSTEM_CLOCK.monotonic_ms()
        while True:  # ends: with rows, at the end, or when nothing came for idle_s
            table = next(self._window, None)
            if table is not None:
                return table
            if not self._next_window():
                gone_s = (SYSTEM_CLOCK.monotonic_ms() - heard_ms) / 1_000
                if self._at_end() or (self._idle_s is not None and gone_s >= self._idle_s):
                    raise StopIteration
                SYSTEM_CLOCK.sleep_ms(IDLE_PAUSE_MS)

    def close(self) -> None:
        """Close the connections; the state stays."""
        self._planner.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _mine(self, queues: Collection[MessageQueue]) -> Collection[MessageQueue]:
        return self._queues or queues

    def _open(self) -> None:
        """Share the queues and find where each goes on; once."""
        if self._queues:
            return
        everywhere = self._planner.now()
        rank, workers = self._fresh.shard
        known = set() if self._loaded is None else self._loaded.windows.keys()
        missing = sorted(known - everywhere.bounds.keys())
        if missing:
            raise ClusterError(
                f"{', '.join(map(str, missing))} belong to this state and are not there now; see "
                f"`rmq-ray status`",
                str(missing[0]),
            )
        if len(everywhere.bounds) < workers:
            raise ClientError(
                f"{workers} workers cannot share the {len(everywhere.bounds)} queues of "
                f"{self._fresh.topic!r}: give it more queues, or take fewer workers",
                workers,
            )
        mine = sorted(everywhere.bounds)[rank::workers]
        if self._loaded is not None and self._alone and set(mine) - known:
            raise ClientError(
                f"{self._fresh.topic!r} has other queues than when this state was saved, and they "
                f"are shared anew: give load_state_dict the states of all workers",
                rank,
            )
        try:
            self._queues = mine
            self._state = self._begun(mine)
        except BaseException:
            self._queues = []
            raise
        self._window = self._read()

    def _begun(self, mine: list[MessageQueue]) -> TrainState:
        """The state that reading begins with."""
        topics, here = self._planner.state, self._planner.now()
        found = {} if self._loaded is None else of_queues(self._loaded, mine)
        end = None if self._loaded is None else self._loaded.end
        if self._loaded is None:
            try:
                at = topics.offsets_of(LikeGroup(self._group), here)
            except GroupNotFound:
                at = topics.offsets_of(self._limits.start, here)
        else:  # queues that came after the state was saved
            at = {queue: low for queue, (low, _) in here.bounds.items()}
        found |= {queue: Window(at[queue], at[queue]) for queue in mine if queue not in found}
        if self._end is not None:
            there = topics.offsets_of(self._end, here)
            end = {queue: (end or {}).get(queue, there[queue]) for queue in mine}
        epochs = here.epochs if self._loaded is None else self._loaded.epochs
        return TrainState(
            self._fresh.topic,
            self._fresh.cluster,
            self._fresh.seed,
            found,
            {**here.epochs, **epochs},
            None if self._end is None else end,
            self._fresh.shard,
        )

    def _at_end(self) -> bool:
        end = self._state.end
        return end is not None and all(
            at.safe >= end[queue] for queue, at in self._state.windows.items()
        )

    def _next_window(self) -> bool:
        """Open the next window, of what there is; whether it has rows."""
        state = self._state
        before = StreamPosition(
            {queue: at.high for queue, at in state.windows.items()}, state.epochs
        )
        ends = self._planner.next(before, state.end)
        if ends is before:
            return False
        starts = before.offsets | ends.starts
        windows = {
            queue: Window(starts[queue], max(starts[queue], ends.offsets[queue]))
            for queue in self._queues
        }
        self._state = TrainState(
            state.topic, state.cluster, state.seed, windows, ends.epochs, state.end, state.shard
        )
        self._window = self._read()
        return True

    def _read(self) -> Iterator[pa.Table]:
        """What is left of the open windows, read at once, handed out table by table. The state is
        behind a table when that is handed out.
        """
        numbers, offsets = hand_out_order(self._queues, self._state.windows, self._state.seed)
        if not len(numbers):
            return
        table, row_of = self._rows_of_windows(numbers, offsets)
        places = np.flatnonzero(row_of >= 0)
        done = 0
        for first in range(0, len(places), self._batch_size):
            last = min(len(places), first + self._batch_size)
            upto = len(numbers) if last == len(places) else int(places[last - 1]) + 1
            self._advance(numbers[done:upto])
            done = upto
            yield table.take(pa.array(row_of[places[first:last]]))
        self._advance(numbers[done:])  # places without rows: left out by tags, or damaged

    def _advance(self, numbers: Any) -> None:
        state = self._state
        windows = advanced(self._queues, state.windows, numbers)
        self._state = TrainState(
            state.topic, state.cluster, state.seed, windows, state.epochs, state.end, state.shard
        )

    def _rows_of_windows(self, numbers: Any, offsets: Any) -> tuple[pa.Table, Any]:
        """The rows of the open windows, and for each place the number of its row, -1 without."""
        windows, columns = self._state.windows, self._rows.columns
        wanted = columns if "queue_offset" in columns else (*columns, "queue_offset")
        rows = Rows(wanted, self._rows.tags)
        low, high = (
            StreamPosition({queue: getattr(at, side) for queue, at in windows.items()}, {})
            for side in ("low", "high")
        )
        end = StreamPosition(high.offsets, self._state.epochs)
        plan = self._planner.plan(low, end, 1)
        schema = pa.schema([SCHEMA.field(name) for name in wanted])
        tables, row_of, behind = [schema.empty_table()], np.full(len(numbers), -1, np.int64), 0
        reader = open_reader(plan)
        try:
            for split in plan.splits:
                batches = [
                    to_rows(split.queue.topic, split.queue.broker_name, records, sizes, rows)
                    for records, sizes in reader.read(split, CHUNK_BYTES)
                ]
                found = pa.Table.from_batches(batches, schema)
                there = found["queue_offset"].to_numpy()
                here = np.flatnonzero(
                    (numbers == self._queues.index(split.queue))
                    & (offsets >= split.start)
                    & (offsets < split.end)
                )
                at = np.searchsorted(there, offsets[here])
                hit = np.zeros(len(here), bool)
                inside = at < len(there)
                hit[inside] = there[at[inside]] == offsets[here][inside]
                row_of[here[hit]] = at[hit] + behind
                tables.append(found.select(list(columns)))
                behind += found.num_rows
        finally:
            reader.close()
            self._planner.commit(end)  # gives the pins back
        tables[0] = tables[0].select(list(columns))
        return pa.concat_tables(tables), row_of
