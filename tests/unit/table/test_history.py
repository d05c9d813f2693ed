"""A reader that goes batch by batch gets old rows from the table and new ones from the log, each
once, wherever the table is at the time.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from rmq_ray.client.scan.topic_state import State
from rmq_ray.codec.arrow.arrow_rows import Rows
from rmq_ray.model.ids import MessageQueue
from rmq_ray.table import history
from rmq_ray.table.archivist import Archivist
from rmq_ray.table.history import TopicHistory
from rmq_ray.table.rules import Offsets, Ranges
from tests.support.tables.table_rig import START_MS, TOPIC, MemoryTopic, archivist_at, spec_at

DAY_MS = 86_400_000


@pytest.fixture
def spec(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    made = spec_at(tmp_path)
    monkeypatch.setattr(history, "table_of", lambda _discovery, _topic: made)
    return made


def told(spec: Any, cuts: Offsets | None = None) -> TopicHistory:
    found = cuts or {}
    return TopicHistory(None, TOPIC, lambda _at, _epochs: found)  # type: ignore[arg-type]


def sent(topic: MemoryTopic, queue: int, count: int, at_ms: int = START_MS) -> None:
    for _ in range(count):
        topic.send(queue, b"%d" % len(topic.rows[topic.queues[queue]]), at_ms)


def kept(spec: Any, topic: MemoryTopic) -> Archivist:
    made = archivist_at(spec, topic, f"w{len(topic.held)}")
    made.turn(force=True)
    return made


def offsets(pieces: Any) -> list[tuple[int, int]]:
    rows = Rows(("queue_id", "queue_offset"))
    found = [row for piece in pieces for batch in piece.read(rows) for row in batch.to_pylist()]
    return sorted((row["queue_id"], row["queue_offset"]) for row in found)


def retained(topic: MemoryTopic, *lows: int) -> State:
    """What the brokers say after retention has taken what lies below."""
    topic.lows = dict(zip(topic.queues, lows, strict=True))
    return topic.look()


def test_bounds_begin_with_the_table_and_end_with_the_log(spec: Any) -> None:
    topic = MemoryTopic(3)
    sent(topic, 0, 20), sent(topic, 1, 10)
    kept(spec, topic)
    sent(topic, 0, 5), sent(topic, 2, 4)
    log = retained(topic, 15, 10, 0)
    gone = MessageQueue(TOPIC, "broker-a", 1)
    found = told(spec).widened(State({q: b for q, b in log.bounds.items() if q != gone}, {}))
    assert list(found.bounds.values()) == [(0, 25), (0, 10), (0, 4)], "the second: of a broker lost"


def test_a_batch_is_files_below_the_seam_and_log_behind_it(spec: Any) -> None:
    topic = MemoryTopic(2)
    sent(topic, 0, 20), sent(topic, 1, 10)
    kept(spec, topic)
    one, two = topic.queues
    asked: Ranges = {one: (3, 30), two: (2, 5)}
    pieces, rest, gaps = told(spec).split(asked)
    assert offsets(pieces) == [*((0, n) for n in range(3, 20)), (1, 2), (1, 3), (1, 4)]
    assert (rest, gaps) == ({one: (20, 30)}, [])
    assert told(spec).split({one: (20, 30)}) == ([], {one: (20, 30)}, [])


def test_the_same_batch_has_the_same_rows_when_the_table_has_gone_on(spec: Any) -> None:
    topic = MemoryTopic(1)
    (queue,) = topic.queues
    sent(topic, 0, 10)
    kept(spec, topic)
    before = told(spec)
    _, rest, _ = before.split({queue: (5, 15)})
    assert rest == {queue: (10, 15)}
    sent(topic, 0, 10)
    kept(spec, topic)
    pieces, rest, _ = before.split({queue: (5, 15)})
    assert (offsets(pieces), rest) == ([(0, n) for n in range(5, 15)], {})


def test_a_table_is_read_again_when_retention_has_passed_what_was_known_of_it(spec: Any) -> None:
    topic = MemoryTopic(1)
    (queue,) = topic.queues
    sent(topic, 0, 10)
    kept(spec, topic)
    known = told(spec)
    known.widened(topic.look())
    sent(topic, 0, 10)
    kept(spec, topic)
    known.widened(retained(topic, 15))
    pieces, rest, _ = known.split({queue: (12, 20)})
    assert (offsets(pieces), rest) == ([(0, n) for n in range(12, 20)], {})


def test_a_gap_of_the_table_is_told_with_the_batches_that_it_lies_in(spec: Any) -> None:
    topic = MemoryTopic(1)
    (queue,) = topic.queues
    sent(topic, 0, 10)
    kept(spec, topic)
    sent(topic, 0, 10)
    retained(topic, 14)
    kept(spec, topic)
    pieces, _, (gap,) = told(spec).split({queue: (8, 16)})
    assert offsets(pieces) == [(0, n) for n in (8, 9, 14, 15)]
    assert history.overlap(gap, (8, 16)) == 4
    assert told(spec).split({queue: (0, 10)})[2] == []


def test_where_the_log_was_cut_behind_the_table_the_log_counts_from_the_cut_on(spec: Any) -> None:
    topic = MemoryTopic(1)
    (queue,) = topic.queues
    sent(topic, 0, 20)
    kept(spec, topic)
    pieces, rest, _ = told(spec, {queue: 15}).split({queue: (10, 25)})
    assert (offsets(pieces), rest) == ([(0, n) for n in range(10, 15)], {queue: (15, 25)})


def test_a_time_before_the_logs_oldest_message_is_looked_up_in_the_files(spec: Any) -> None:
    topic = MemoryTopic(2)
    for day in range(4):
        sent(topic, 0, 10, START_MS + day * DAY_MS)
        sent(topic, 0, 10, START_MS + day * DAY_MS + DAY_MS // 2)
    sent(topic, 1, 5)
    kept(spec, topic)
    log = retained(topic, 70, 5)
    one, two = topic.queues
    noon = START_MS + DAY_MS + DAY_MS // 2
    found = told(spec)
    found.widened(log)
    assert found.offsets_at(noon, {one: 70, two: 5}, log.bounds) == {one: 30, two: 5}
    assert found.offsets_at(noon + 1, {one: 70, two: 5}, log.bounds)[one] == 40
    assert found.offsets_at(0, {one: 70, two: 5}, log.bounds) == {one: 0, two: 0}
    late = START_MS + 9 * DAY_MS
    assert found.offsets_at(late, {one: 80, two: 5}, log.bounds) == {one: 80, two: 5}


def test_a_time_is_the_first_row_that_was_stored_then_also_where_a_clock_was_set_back(
    spec: Any,
) -> None:
    topic = MemoryTopic(1)
    (queue,) = topic.queues
    for hour in (0, 30, 1, 60):  # the second: of a clock that was ahead
        sent(topic, 0, 10, START_MS + hour * DAY_MS // 24)
    kept(spec, topic)
    found = told(spec)
    found.widened(topic.look())

    def at(hour: float) -> int:
        return found.offsets_at(int(START_MS + hour * DAY_MS / 24), {queue: 35}, {})[queue]

    assert [at(hour) for hour in (0, 0.5, 1, 30, 31, 60)] == [0, 10, 10, 10, 30, 30]
    assert at(61) == 40, "no broker names what the table has"
