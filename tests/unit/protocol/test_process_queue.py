"""The process queue: what is unfinished, what may be committed, what is overdue."""

from __future__ import annotations

from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rmq_ray.protocol.process_queue import Batch, ProcessQueue


def filled(*ranges: tuple[int, int], start: int = 0) -> tuple[ProcessQueue, list[Batch]]:
    queue = ProcessQueue(start, 1_000)
    batches = [
        Batch(first, last, last - first + 1, 10 * (last - first + 1)) for first, last in ranges
    ]
    for batch in batches:
        queue.put(batch)
    return queue, batches


@pytest.mark.seed("S4-028", "S4-029", "S4-184")
def test_the_last_of_four_messages_done_first_leaves_the_commit_offset_at_the_first() -> None:
    queue, (a, b, c, d) = filled((0, 0), (1, 1), (2, 2), (3, 3))
    assert queue.finish(d) == 0
    assert queue.finish(a) == 1
    assert queue.finish(c) == 1
    assert queue.finish(b) == 4


@pytest.mark.seed("S4-061", "S4-063")
def test_it_counts_messages_bytes_and_the_span_of_what_is_unfinished() -> None:
    queue, (a, b) = filled((10, 19), (20, 24), start=10)
    assert (queue.count, queue.body_bytes, queue.span, queue.dropped) == (15, 150, 14, False)
    assert (queue.last_pull_ms, queue.last_consume_ms) == (1_000, 1_000)
    queue.finish(b)
    assert (queue.count, queue.body_bytes, queue.span) == (10, 100, 14)
    queue.finish(a)
    assert (queue.count, queue.body_bytes, queue.span) == (0, 0, 0)


def test_filtered_messages_at_the_end_count_as_done_once_nothing_is_unfinished() -> None:
    queue, (a,) = filled((3, 5))
    queue.advance(9)
    assert queue.commit_offset == 3
    assert queue.finish(a) == 9
    assert queue.next_offset == 9


@pytest.mark.seed("S4-062")
def test_batches_stand_in_the_order_of_their_offsets_and_no_other_is_taken() -> None:
    queue, (a, b, c) = filled((0, 3), (4, 9), (12, 15))
    assert [queue.head(skip) for skip in range(4)] == [a, b, c, None]
    for first, last in ((3, 4), (0, 0), (10, 11), (15, 16), (20, 19)):
        with pytest.raises(ValueError, match="does not follow"):
            queue.put(Batch(first, last, 1, 1))
    queue.finish(b)
    assert [queue.head(skip) for skip in range(3)] == [a, c, None]


def test_messages_kept_for_another_try_hold_the_commit_offset_at_the_first_of_them() -> None:
    queue, (a, b) = filled((0, 9), (10, 19))
    assert queue.finish(b) == 0
    assert queue.keep(a, 4, 2, 20) == 4
    assert (queue.count, queue.body_bytes) == (2, 20)
    assert queue.finish(a) == 20


def test_a_batch_is_begun_once_it_is_live_and_not_after_a_drop() -> None:
    queue, (a, b) = filled((0, 0), (1, 1))
    assert queue.begin(a, 5_000)
    assert (a.started_ms, queue.last_consume_ms) == (5_000, 5_000)
    queue.finish(a)
    assert not queue.begin(a, 6_000)
    queue.drop()
    assert not queue.begin(b, 6_000)


def test_batches_held_for_too_long_are_overdue_oldest_first_up_to_sixteen_messages() -> None:
    minute = 60_000
    queue, batches = filled(*[(10 * i, 10 * i + 9) for i in range(4)])
    for batch in batches[:3]:
        queue.begin(batch, minute)
    assert queue.overdue(16 * minute, 15 * minute) == []
    assert queue.overdue(16 * minute + 1, 15 * minute) == [batches[0]]
    queue.finish(batches[0])
    assert queue.overdue(16 * minute + 1, 15 * minute) == [batches[1]]


def test_a_batch_not_yet_begun_ends_the_list_of_overdue_ones() -> None:
    queue, batches = filled(*[(i, i) for i in range(40)])
    for batch in batches[1:]:
        queue.begin(batch, 1)
    assert queue.overdue(10_000, 100) == []
    queue.begin(batches[0], 1)
    assert queue.overdue(10_000, 100) == batches[:16]


def test_a_queue_without_pulls_for_longer_than_the_limit_is_expired() -> None:
    queue = ProcessQueue(0, 1_000)
    assert not queue.pull_expired(121_000, 120_000)
    assert queue.pull_expired(121_001, 120_000)


def test_clearing_forgets_everything() -> None:
    queue, (a,) = filled((0, 4))
    queue.clear()
    assert (queue.count, queue.body_bytes, queue.holds(a)) == (0, 0, False)


@given(
    shapes=st.lists(st.tuples(st.integers(0, 3), st.integers(1, 5)), min_size=1, max_size=30),
    choices=st.randoms(use_true_random=False),
)
def test_the_commit_offset_never_passes_an_unfinished_offset_and_never_falls(
    shapes: list[tuple[int, int]], choices: Random
) -> None:
    queue = ProcessQueue(0, 0)
    live: dict[int, tuple[Batch, set[int]]] = {}
    at, committed = 0, 0
    for gap, size in shapes:
        at += gap
        batch = Batch(at, at + size - 1, size, size)
        queue.put(batch)
        live[at] = (batch, set(range(at, at + size)))
        at += size
    queue.advance(at + choices.randrange(4))
    while live:
        batch, offsets = live[choices.choice(sorted(live))]
        kept = {offset for offset in offsets if choices.randrange(4) == 3}
        if kept:
            found = queue.keep(batch, min(kept), len(kept), len(kept))
            live[batch.first] = (batch, kept)
        else:
            found = queue.finish(batch)
            del live[batch.first]
        unfinished = [offset for _, remaining in live.values() for offset in remaining]
        assert found == (min(unfinished) if unfinished else queue.next_offset)
        assert found >= committed
        assert queue.count == len(unfinished)
        committed = found


def test_parts_take_the_place_of_a_batch_and_what_they_lack_is_finished() -> None:
    queue, (a, b, c) = filled((0, 3), (4, 8), (9, 9))
    parts = [Batch(5, 5, 1, 10), Batch(7, 8, 2, 20)]
    queue.replace(b, parts)
    assert not queue.holds(b) and all(queue.holds(part) for part in parts)
    assert (queue.count, queue.body_bytes, queue.span) == (8, 80, 9)
    assert [queue.head(skip) for skip in range(4)] == [a, *parts, c]
    assert [queue.finish(batch) for batch in (a, parts[1], parts[0], c)] == [5, 5, 9, 10]
    queue.replace(b, parts)
    assert queue.commit_offset == 10 and queue.count == 0, "a batch that is gone has no place"
