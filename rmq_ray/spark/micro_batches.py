"""A function called with one batch of a topic after the other: plan, run, mark, over and over in a
thread of its own.

    position ─next─> plan written ─frame─> fn(df, number) ─returned─> marked done
                          │                                               └─> group's position told
                          └ a restart finds this and runs the same batch again, with its rows

Decides: when the next batch begins, what is waited for, and when the loop ends. Does not decide
what a batch is (``batches``) or how it is remembered (``client.scan.stream_checkpoint``).
Invariants: at most one batch runs; a batch is marked when ``fn`` returned; an error of ``fn`` ends
the loop and is raised by ``await_termination``; brokers that are away while a batch is planned are
waited for, 5 minutes.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

from rmq_ray.client.scan.stream_checkpoint import Checkpoint, Planned
from rmq_ray.clock import SYSTEM_CLOCK, Clock
from rmq_ray.errors import ClusterError, RemotingError, SparkError, TableStorageError
from rmq_ray.model.ids import MessageQueue
from rmq_ray.spark.batches import Batches

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

log = logging.getLogger("rmq_ray.spark")
PATIENCE_MS = 300_000
AWAY_PAUSE_S = 1.0
IDLE_PAUSE_S = 0.1
STOP_S = 60.0
BatchFunction = Callable[["DataFrame", int], object]
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Trigger:
    """``seconds``: from the begin of one batch to the next; ``available_now``: what there is when
    the query starts, then the end.
    """

    seconds: float = 10.0
    available_now: bool = False

    def __post_init__(self) -> None:
        if not 0 <= self.seconds <= 86_400:
            raise SparkError(
                f"trigger_seconds must be 0 to a day, not {self.seconds!r}", self.seconds
            )

    def for_spark(self) -> dict[str, Any]:
        """The arguments of ``DataStreamWriter.trigger``."""
        if self.available_now:
            return {"availableNow": True}
        return {"processingTime": f"{self.seconds} seconds"}


@dataclass(frozen=True, slots=True)
class BatchProgress:
    """One batch that is done. ``rows``: that were planned; ``seconds``: all of it."""

    batch: int
    rows: int
    seconds: float


class BatchQuery:
    """A running ``foreach_batch``. ``last_progress``: the last batch that is done, None before the
    first.
    """

    def __init__(
        self,
        batches: Batches,
        checkpoint: Checkpoint,
        fn: BatchFunction,
        trigger: Trigger,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        self.id = checkpoint.id
        self.last_progress: BatchProgress | None = None
        self._batches, self._checkpoint, self._fn, self._trigger, self._clock = (
            batches,
            checkpoint,
            fn,
            trigger,
            clock,
        )
        self._stopping = threading.Event()
        self._error: BaseException | None = None
        self._thread = threading.Thread(
            target=self._run, name=f"rmq-stream-{self.id[:8]}", daemon=True
        )

    def start(self) -> BatchQuery:
        """Begin; once."""
        self._thread.start()
        return self

    @property
    def is_active(self) -> bool:
        """Whether it goes on."""
        return self._thread.is_alive()

    @property
    def exception(self) -> BaseException | None:
        """What ended it, None where nothing went wrong."""
        return self._error

    @property
    def rows_lost(self) -> int:
        """Messages that were passed over since they were gone (``fail_on_data_loss=False``)."""
        return self._batches.rows_lost

    def await_termination(self, timeout: float | None = None) -> bool:
        """Wait up to ``timeout`` s (None = for ever) for the end; whether it has come. Raises what
        ended the query.
        """
        self._thread.join(timeout)
        if self._error is not None:
            raise self._error
        return not self._thread.is_alive()

    awaitTermination = await_termination  # noqa: N815 - as Spark's own queries call it

    def stop(self, timeout: float = STOP_S) -> None:
        """End after the batch that runs now; ``SparkError`` where that takes longer than
        ``timeout`` s (it goes on then, and ends).
        """
        self._stopping.set()
        if self._thread is threading.current_thread():  # the user's function ends its own query
            return
        self._thread.join(timeout)
        if self._thread.is_alive():
            raise SparkError(
                f"the batch that runs did not end within {timeout} s; the query ends behind it",
                timeout,
            )

    def _run(self) -> None:
        try:
            self._batches.commit(
                self._checkpoint.position
            )  # so that the lag is seen while the first batch runs
            target = self._patiently(self._batches.ends) if self._trigger.available_now else None
            while not self._stopping.is_set():  # ends: at stop, at the target, or with an error
                began_ms = self._clock.monotonic_ms()
                ran = self._one(target)
                if not ran and target is not None:
                    return
                pause_s = (
                    0.0
                    if target is not None
                    else self._trigger.seconds - (self._clock.monotonic_ms() - began_ms) / 1000
                )
                self._stopping.wait(max(pause_s, 0.0 if ran else IDLE_PAUSE_S))
        except _Stopped:
            return
        except BaseException as error:  # noqa: BLE001
            self._error = error
            log.error("stream %s ended: %s: %s", self.id, type(error).__name__, error)
        finally:
            self._batches.close()

    def _one(self, target: dict[MessageQueue, int] | None) -> bool:
        """Run the batch that was planned, or the next; False where there is nothing new."""
        began_ms = self._clock.monotonic_ms()
        batch = self._checkpoint.pending() or self._patiently(lambda: self._plan(target))
        if batch is None:
            return False
        planned = batch
        frame = self._patiently(lambda: self._batches.frame(planned.before, planned.end))
        self._fn(frame, batch.number)
        self._checkpoint.done(batch)
        self._batches.commit(batch.end)
        rows = sum(end - start for start, end in batch.end.ranges(batch.before).values())
        self.last_progress = BatchProgress(
            batch.number, rows, (self._clock.monotonic_ms() - began_ms) / 1000
        )
        return True

    def _plan(self, target: dict[MessageQueue, int] | None) -> Planned | None:
        before = self._checkpoint.position
        end = self._batches.next(before, target)
        return None if end is before else self._checkpoint.plan(end)

    def _patiently(self, ask: Callable[[], T]) -> T:
        """Ask again while brokers, or the store of the topic's table, are away."""
        give_up = self._clock.monotonic_ms() + PATIENCE_MS
        while True:  # ends: at give_up
            try:
                return ask()
            except (ClusterError, RemotingError, TableStorageError) as error:
                if self._clock.monotonic_ms() >= give_up:
                    raise
                log.warning("stream %s waits: %s", self.id, error)
            if self._stopping.wait(AWAY_PAUSE_S):
                raise _Stopped


class _Stopped(Exception):
    """The query was stopped while it waited for brokers."""
