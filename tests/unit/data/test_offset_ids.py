"""Which messages were written, as ranges of one integer for each message."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from rmq_ray.data.offset_ids import behind, check_apart, first_id, inside, ranges_of
from rmq_ray.model.ids import MessageQueue

QUEUES = [MessageQueue(topic, "broker-a", n) for topic in ("a", "b") for n in range(50)]


@given(st.lists(st.sets(st.integers(0, 40)), max_size=5))
def test_ranges_hold_what_was_written_and_nothing_else(files: list[set[int]]) -> None:
    found = ranges_of([])
    for ids in files:
        found = ranges_of(sorted(ids), found)
    written = set().union(*files) if files else set()
    everything = np.arange(42)
    assert set(everything[inside(everything, found)].tolist()) == written
    assert all(found[1:, 0] > found[:-1, 1]), "ranges that touch are one"


def test_a_job_begins_behind_what_is_written_from_the_start_on() -> None:
    queue = QUEUES[3]
    base = first_id(queue)
    found = ranges_of([base + n for n in (2, 3, 4, 8)])
    assert [behind(found, queue, low) for low in (0, 2, 4, 8, 9)] == [0, 5, 5, 9, 9]
    assert behind(found, QUEUES[4], 2) == 2


def test_queues_have_ids_of_their_own() -> None:
    check_apart(QUEUES)
    assert len({first_id(queue) for queue in QUEUES}) == len(QUEUES)
    assert all(0 <= first_id(queue) < 1 << 63 for queue in QUEUES)
