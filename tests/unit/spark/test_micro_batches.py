"""The loop around a user's function: order of its steps, restarts, errors, brokers that are away.
No Spark: frames are numbers.
"""

from __future__ import annotations

from typing import Any

import pytest

from rmq_ray.client.scan.stream_checkpoint import Checkpoint
from rmq_ray.errors import ClusterError, OffsetOutOfRange, SparkError
from rmq_ray.model.ids import MessageQueue
from rmq_ray.protocol.scan.stream_offsets import StreamPosition
from rmq_ray.spark import micro_batches
from rmq_ray.spark.micro_batches import BatchQuery, Trigger
from tests.support.waiting import eventually
from tests.unit.client.scan.test_stream_checkpoint import InMemory

QUEUE = MessageQueue("orders", "broker-a", 0)
NOW = Trigger(0, available_now=True)


class Rows:
    """What ``Batches`` does, over a queue of ``high`` messages, ``step`` a batch. ``faults`` are
    raised by the next calls of ``frame``.
    """

    rows_lost = 0

    def __init__(self, high: int = 10, step: int = 4) -> None:
        self.high, self.step = high, step
        self.committed: list[int] = []
        self.faults: list[Exception] = []
        self.closed = False

    def begin(self) -> StreamPosition:
        return StreamPosition({QUEUE: 0})

    def ends(self) -> dict[MessageQueue, int]:
        return {QUEUE: self.high}

    def next(
        self, before: StreamPosition, target: dict[MessageQueue, int] | None = None
    ) -> StreamPosition:
        end = min(self.high, before.offsets[QUEUE] + self.step)
        return before if end == before.offsets[QUEUE] else StreamPosition({QUEUE: end})

    def frame(self, before: StreamPosition, end: StreamPosition) -> range:
        if self.faults:
            raise self.faults.pop(0)
        return range(before.offsets[QUEUE], end.offsets[QUEUE])

    def commit(self, end: StreamPosition) -> None:
        self.committed.append(end.offsets[QUEUE])

    def close(self) -> None:
        self.closed = True


@pytest.fixture(autouse=True)
def short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(micro_batches, "AWAY_PAUSE_S", 0.001)
    monkeypatch.setattr(micro_batches, "IDLE_PAUSE_S", 0.001)


def query(rows: Any, directory: Any, fn: Any, trigger: Trigger = NOW) -> BatchQuery:
    return BatchQuery(rows, Checkpoint(directory, ["orders"], rows.begin), fn, trigger).start()


def test_every_row_comes_once_in_numbered_batches_and_the_group_follows() -> None:
    rows, seen = Rows(), []
    running = query(rows, InMemory(), lambda frame, number: seen.append((number, list(frame))))
    assert running.await_termination(20) and not running.is_active and running.exception is None
    assert seen == [(0, [0, 1, 2, 3]), (1, [4, 5, 6, 7]), (2, [8, 9])]
    assert rows.committed == [0, 4, 8, 10] and rows.closed
    assert running.last_progress is not None and (
        running.last_progress.batch,
        running.last_progress.rows,
    ) == (2, 2)


def test_a_batch_whose_function_failed_comes_again_with_its_number_and_rows() -> None:
    rows, directory, seen = Rows(high=3), InMemory(), []

    def failing(frame: range, number: int) -> None:
        seen.append((number, list(frame)))
        raise ValueError("the sink is full")

    with pytest.raises(ValueError, match="the sink is full"):
        query(rows, directory, failing).await_termination(20)
    rows = Rows(high=10)
    query(
        rows, directory, lambda frame, number: seen.append((number, list(frame)))
    ).await_termination(20)
    assert seen == [(0, [0, 1, 2]), (0, [0, 1, 2]), (1, [3, 4, 5, 6]), (2, [7, 8, 9])]
    assert rows.committed == [0, 3, 7, 10]


def test_brokers_that_are_away_are_waited_for_and_other_errors_end_the_query() -> None:
    rows = Rows(high=2)
    rows.faults = [ClusterError("away"), ClusterError("away")]
    assert query(rows, InMemory(), lambda frame, number: None).await_termination(20)
    assert rows.committed == [0, 2]
    rows = Rows(high=2)
    rows.faults = [OffsetOutOfRange("gone", 1, 2, 3)]
    with pytest.raises(OffsetOutOfRange):
        query(rows, InMemory(), lambda frame, number: None).await_termination(20)
    assert rows.committed == [0] and rows.closed


def test_patience_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(micro_batches, "PATIENCE_MS", 0)
    rows = Rows()
    rows.faults = [ClusterError("away")]
    with pytest.raises(ClusterError):
        query(rows, InMemory(), lambda frame, number: None).await_termination(20)


def test_a_query_without_an_end_goes_on_until_it_is_stopped() -> None:
    rows = Rows(high=3)
    running = query(rows, InMemory(), lambda frame, number: None, Trigger(0))
    eventually(lambda: rows.committed == [0, 3])
    assert not running.await_termination(0.05) and running.is_active
    running.stop()
    assert running.await_termination(0) and rows.committed == [0, 3]


def test_a_function_may_stop_its_own_query() -> None:
    rows, running = Rows(high=100), []
    running.append(
        BatchQuery(
            rows,
            Checkpoint(InMemory(), ["orders"], rows.begin),
            lambda frame, number: running[0].stop(),
            Trigger(0),
        )
    )
    assert running[0].start().await_termination(20) and rows.committed == [0, 4]


def test_a_query_that_waits_for_brokers_can_be_stopped() -> None:
    rows = Rows()
    rows.faults = [ClusterError("away")] * 100_000
    running = query(rows, InMemory(), lambda frame, number: None)
    running.stop()
    assert running.exception is None and rows.committed == [0]


def test_wrong_triggers_are_refused() -> None:
    with pytest.raises(SparkError, match="trigger_seconds"):
        Trigger(-1)
