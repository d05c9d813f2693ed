"""Topics without an end as bounded Ray Data datasets, one after the other.

    position ─next─> plan written ─> StreamBatch(dataset, name) ─your output─> commit(): marked done
                          │
                          └ a program that is started again finds this and gives the same batch
                            again: the same offsets, number and name

Decides: when the next batch is planned, and what a program that was killed goes on with. Does not
decide where a batch ends (``client.scan.batch_planner``) nor how that is remembered
(``client.scan.stream_checkpoint``). Invariants: at most one batch is out; a batch that comes again
has the same rows, or its dataset fails; what was not committed is never passed over.
"""

from __future__ import annotations

import logging
import os
import re
import threading
from collections.abc import Callable, Iterator, Sequence
from datetime import timedelta
from types import TracebackType
from typing import Any, Self, TypeVar

import ray
from pyarrow import fs

from rmq_ray.actors.access_keys import SecretKey
from rmq_ray.actors.discovery import discovery_for, meant_cluster
from rmq_ray.actors.gateway import require_driver
from rmq_ray.client.scan.batch_planner import BatchLimits, BatchPlanner
from rmq_ray.client.scan.bulk_arguments import checked_columns
from rmq_ray.client.scan.stream_checkpoint import Checkpoint, Planned
from rmq_ray.clock import SYSTEM_CLOCK
from rmq_ray.codec.arrow.arrow_rows import Rows
from rmq_ray.config import Tls
from rmq_ray.data.checkpoint_files import FilesOfCheckpoint, file_system
from rmq_ray.data.read import check_options, dataset_of, splits_for
from rmq_ray.errors import ClientError, ClusterError, RemotingError
from rmq_ray.model.ids import MessageQueue
from rmq_ray.protocol.filters.filter_tag import tags_of_rows
from rmq_ray.protocol.scan.scan_positions import Where, normal
from rmq_ray.protocol.validators import check_group, check_topic
from rmq_ray.table.history import HistoryPlanner, check_stream_source

AVAILABLE = "available"
PATIENCE_MS = 300_000
AWAY_PAUSE_S = 1.0
IDLE_PAUSE_S = 0.1
TRIGGER_S_MAX = 86_400.0
_UNITS = dict.fromkeys(("s", "sec", "second", "seconds"), 1.0)
_UNITS |= dict.fromkeys(("min", "minute", "minutes"), 60.0)
_UNITS |= {"ms": 0.001, "h": 3_600.0, "hour": 3_600.0, "hours": 3_600.0}
_TRIGGER = re.compile(rf"(\d+(?:\.\d+)?)\s*({'|'.join(_UNITS)})")
Offsets = dict[MessageQueue, tuple[int, int]]
T = TypeVar("T")
log = logging.getLogger("rmq_ray.data")


def stream(  # noqa: PLR0913 - the settings of the outermost call
    topics: str | Sequence[str],
    *,
    checkpoint: str | os.PathLike[str],
    trigger: str | timedelta = AVAILABLE,
    start: Where = "earliest",
    group: str | None = None,
    columns: Sequence[str] | None = None,
    tags: Any = None,
    key: str | None = None,
    max_rows: int | None = None,
    fail_on_data_loss: bool = True,
    splits: int | None = None,
    source: str = "log",
    cluster: str | None = None,
    name_servers: Sequence[str] | str | None = None,
    secret: bytes = b"",
    tls: Tls | None = None,
    access_key: str = "",
    secret_key: SecretKey = "",
    **options: Any,
) -> TopicStream:
    """Bounded datasets one after the other, each with what came since the one before.

    ``trigger``: "available" = what there is now, then the end; "10 s" (ms, s, min, h, or a
    ``timedelta``) = from the begin of one batch to the next, without an end. ``checkpoint``: a
    directory of this stream's own, by path or URI: a batch's offsets are written there before it is
    handed out, and marked when ``commit`` is called. A batch that was not committed when the
    program died comes again with the same number, name and rows. ``start``: where a new checkpoint
    begins, see ``rmq_ray.protocol.scan.scan_positions``. ``group``: its lag shows how far the
    stream is. ``max_rows``: of a batch. ``fail_on_data_loss`` False: where retention or a cut of a
    log was faster, what is left is read, and ``StreamBatch.skipped`` tells what is missing.
    ``source`` "table+log": begin in the topic's table. Other arguments: see ``read_topic``.

    Raises ``ClientError`` for wrong values, and for a checkpoint of other topics, of another
    cluster or that another program uses; ``TopicNotFound``, ``TableNotFound``, ``ClusterError``;
    while iterating ``OffsetOutOfRange`` where messages that come next are gone.
    """
    require_driver("Ray Data")
    names = _checked_topics(topics, group, max_rows, source)
    normal(start)
    check_options(options)
    seconds = trigger_seconds(trigger)
    rows = Rows(tuple(checked_columns(columns, ClientError)), tags_of_rows(tags), key)
    limits = BatchLimits(group, start, fail_on_data_loss, max_rows)
    where = discovery_for(cluster, name_servers, secret, tls, access_key, secret_key)
    planner = HistoryPlanner(where, names, limits, source)
    try:
        files = FilesOfCheckpoint(checkpoint)
        kept = Checkpoint(files, names, planner.begin, meant_cluster(cluster, name_servers))
        files.own()
    except BaseException:
        planner.close()
        raise

    def made(batch: Planned) -> ray.data.Dataset:
        pieces, plan = planner.planned(batch.before, batch.end, splits_for(splits))
        return dataset_of(plan, rows, options, pieces=pieces)

    return TopicStream(planner, kept, seconds, made)


def _checked_topics(
    topics: str | Sequence[str], group: str | None, max_rows: int | None, source: str
) -> tuple[str, ...]:
    """Each name once. ``ClientError`` for none, for names that cannot be ones, for a batch without
    rows, and for a source that a stream cannot have.
    """
    if max_rows is not None and max_rows < 1:
        raise ClientError(f"max_rows must be at least 1, not {max_rows}", max_rows)
    names = tuple(dict.fromkeys([topics] if isinstance(topics, str) else topics))
    if not names:
        raise ClientError("give a topic, or several", repr(topics))
    for topic in names:
        check_topic(topic)
    if group is not None:
        check_group(group)
    check_stream_source(source, names, ClientError)
    return names


def trigger_seconds(trigger: str | timedelta) -> float | None:
    """Seconds from batch to batch; None for "available". ``ClientError`` for what is neither.

    >>> trigger_seconds("10 s"), trigger_seconds("2 minutes"), trigger_seconds("available")
    (10.0, 120.0, None)
    """
    if trigger == AVAILABLE:
        return None
    found = _TRIGGER.fullmatch(trigger.strip().lower()) if isinstance(trigger, str) else None
    seconds = trigger.total_seconds() if isinstance(trigger, timedelta) else -1.0
    if found is not None:
        seconds = float(found[1]) * _UNITS[found[2]]
    if not 0 <= seconds <= TRIGGER_S_MAX:
        raise ClientError(
            f"trigger must be 'available', or a time up to a day such as '10 s', '500 ms' or "
            f"'5 min', not {trigger!r:.80}",
            repr(trigger)[:80],
        )
    return seconds


class StreamBatch:
    """One batch of a stream. ``number``: 0, 1, 2, ...; ``name``: of this batch alone among all
    streams, the same whenever it comes again (for ``write_topic(..., once=batch.name)``);
    ``dataset``: its rows.
    """

    def __init__(
        self, owner: TopicStream, planned: Planned, dataset: ray.data.Dataset, again: bool
    ) -> None:
        self.number = planned.number
        self.name = f"{owner.id}/{planned.number}"
        self.dataset = dataset
        self.again = again
        """Whether it was handed out before, by a program that did not commit it."""
        self._owner = owner
        self._planned = planned

    @property
    def offsets(self) -> Offsets:
        """[start, end) of every queue that has rows in this batch."""
        return self._planned.end.ranges(self._planned.before)

    @property
    def skipped(self) -> Offsets:
        """Queues in which reading does not go on where the batch before ended: [that end, where
        this batch begins). Retention was faster, or the log was cut (then the second number is the
        smaller one). Only with ``fail_on_data_loss=False``, and counted in ``TopicStream``.
        """
        known = self._planned.before.offsets
        return {
            queue: (known[queue], start)
            for queue, start in self._planned.end.starts.items()
            if queue in known and known[queue] != start
        }

    @property
    def rows(self) -> int:
        """Messages between the offsets; without ``tags`` and ``key`` the dataset has as many."""
        return sum(end - start for start, end in self.offsets.values())

    def path(self, root: str | os.PathLike[str]) -> str:
        """Where this batch's output goes below ``root``: ``<root>/batch-0000000012``."""
        return f"{os.fspath(root).rstrip('/')}/batch-{self.number:010d}"

    def commit(self) -> None:
        """This batch's output is safe: it does not come again. Again is fine."""
        self._owner._commit(self._planned)

    def write(
        self,
        root: str | os.PathLike[str],
        writer: Callable[[ray.data.Dataset, str], object],
    ) -> None:
        """Remove what a killed program left of this batch, ``writer(dataset, path(root))``, then
        ``commit``. So ``root`` has each row once, below the numbers of committed batches.

        ``root``: a path or URI that pyarrow and the writer both know. ``ClientError`` where it
        cannot be reached; what the writer raises.
        """
        path = self.path(root)
        files, inside = file_system(path, "root")
        try:
            if files.get_file_info(inside).type == fs.FileType.Directory:
                files.delete_dir(inside)
        except OSError as error:
            raise ClientError(f"what is left in {path} cannot be removed: {error}", path) from error
        writer(self.dataset, path)
        self.commit()


class TopicStream(Iterator[StreamBatch]):
    """An iterator of batches, made by ``stream``; a context manager, too. ``id``: of the stream,
    the same over all restarts.
    """

    def __init__(
        self,
        planner: BatchPlanner,
        checkpoint: Checkpoint,
        seconds: float | None,
        dataset: Callable[[Planned], ray.data.Dataset],
    ) -> None:
        self.id = checkpoint.id
        self._planner, self._checkpoint, self._seconds = planner, checkpoint, seconds
        self._dataset = dataset
        self._stopping = threading.Event()
        self._began_ms: float | None = None
        self._target: dict[MessageQueue, int] | None = None
        self._out: Planned | None = None

    @property
    def position(self) -> str:
        """Where each queue goes on behind the last committed batch, as JSON text."""
        return self._checkpoint.position.to_json()

    @property
    def rows_lost(self) -> int:
        """Messages that this program passed over since they were gone
        (``fail_on_data_loss=False``).
        """
        return self._planner.rows_lost

    def stop(self) -> None:
        """End instead of the next batch; from any thread."""
        self._stopping.set()

    def close(self) -> None:
        """End, and close the connections."""
        self.stop()
        self._planner.close()

    def __next__(self) -> StreamBatch:
        if self._out is not None:
            raise ClientError(
                f"batch {self._out.number} is not committed: call batch.commit() when its output "
                f"is safe, or batch.write(...), which does both",
                self._out.number,
            )
        if self._target is None and self._seconds is None:
            self._target = self._patiently(self._planner.ends)
        again = self._checkpoint.pending()
        batch = again
        while batch is None:  # ends: at a batch, the target, or stop
            self._pause()
            if self._stopping.is_set():
                raise StopIteration
            self._began_ms = SYSTEM_CLOCK.monotonic_ms()
            batch = self._patiently(self._plan)
            if batch is None and self._seconds is None:
                raise StopIteration
        planned = batch
        dataset = self._patiently(lambda: self._dataset(planned))
        self._out = planned
        return StreamBatch(self, planned, dataset, again is not None)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def _commit(self, planned: Planned) -> None:
        if self._out is not planned:
            return
        self._checkpoint.done(planned)
        self._out = None
        self._planner.commit(planned.end)

    def _plan(self) -> Planned | None:
        before = self._checkpoint.position
        end = self._planner.next(before, self._target)
        return None if end is before else self._checkpoint.plan(end)

    def _pause(self) -> None:
        """Until the next batch is due."""
        if self._began_ms is None or self._seconds is None:
            return
        gone_s = (SYSTEM_CLOCK.monotonic_ms() - self._began_ms) / 1_000
        self._stopping.wait(max(IDLE_PAUSE_S, self._seconds - gone_s))

    def _patiently(self, ask: Callable[[], T]) -> T:
        """Ask again while brokers are away, 5 minutes; ``StopIteration`` where it is stopped
        meanwhile.
        """
        give_up = SYSTEM_CLOCK.monotonic_ms() + PATIENCE_MS
        while True:  # ends: at give_up
            try:
                return ask()
            except (ClusterError, RemotingError) as error:
                if SYSTEM_CLOCK.monotonic_ms() >= give_up:
                    raise
                log.warning("stream %s waits for its brokers: %s", self.id, error)
            if self._stopping.wait(AWAY_PAUSE_S):
                raise StopIteration
