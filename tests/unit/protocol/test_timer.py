"""Rules of exact delivery times, and the window that keeps what is due soon in order."""

from __future__ import annotations

import random

import numpy as np
import pytest

from rmq_ray.errors import ClientError, MessageIllegal
from rmq_ray.model.topics import TIMER_TOPIC
from rmq_ray.protocol.due_window import HEAP_MAX, DueWindow, OffsetSet, nearest
from rmq_ray.protocol.timer import (
    RecallHandle,
    asked_due_ms,
    is_timed,
    park_until,
    release_timed,
    rolled,
)

NOW = 1_700_000_000_000
YEAR = 365 * 86_400_000


@pytest.mark.parametrize(
    ("name", "value", "due"),
    [
        ("TIMER_DELIVER_MS", str(NOW + 5), NOW + 5),
        ("TIMER_DELAY_MS", "5", NOW + 5),
        ("TIMER_DELAY_SEC", "5", NOW + 5_000),
    ],
)
def test_the_three_ways_to_ask_for_a_time(name: str, value: str, due: int) -> None:
    assert is_timed({name: value}) and asked_due_ms({name: value}, NOW, YEAR) == due


@pytest.mark.parametrize("value", ["", "-5", "soon", "1.5", "9" * 16, "٣"])
def test_what_is_no_time_is_refused(value: str) -> None:
    with pytest.raises(MessageIllegal, match="must be a number"):
        asked_due_ms({"TIMER_DELAY_MS": value}, NOW, YEAR)


def test_a_time_beyond_the_limit_is_refused_with_the_limit() -> None:
    assert asked_due_ms({"TIMER_DELAY_MS": str(YEAR)}, NOW, YEAR) == NOW + YEAR
    with pytest.raises(MessageIllegal, match="timer_max_delay_hours"):
        asked_due_ms({"TIMER_DELAY_MS": str(YEAR + 1)}, NOW, YEAR)


def test_parked_and_released_a_message_is_what_it_was() -> None:
    user = {"TAGS": "paid", "UNIQ_KEY": "K" * 32, "a": "b"}
    topic, queue_id, parked = park_until(
        "orders", 3, NOW + 5, {**user, "TIMER_DELAY_MS": "5", "DELAY": "3", "WAIT": "true"}
    )
    assert (topic, queue_id, parked["TIMER_OUT_MS"]) == (TIMER_TOPIC, 0, str(NOW + 5))
    assert release_timed(parked) == ("orders", 3, user)
    again = rolled(rolled(parked, 7), 9)
    assert (again["TIMER_ROLL_TIMES"], again["RMQ_TIMER_CANCELS"]) == ("2", "9") and release_timed(
        again
    ) == ("orders", 3, user)


@pytest.mark.parametrize(
    "topic", ["", TIMER_TOPIC, "RMQ_SYS_TRANS_HALF_TOPIC", "SCHEDULE_TOPIC_XXXX"]
)
def test_nothing_is_released_into_a_system_topic(topic: str) -> None:
    assert release_timed({"REAL_TOPIC": topic, "REAL_QID": "0"}) is None


def test_handles_are_texts_and_others_are_refused() -> None:
    handle = RecallHandle("orders", "broker-a", "K" * 32, 7, 1 << 40)
    assert RecallHandle.decode(handle.encode()) == handle
    for wrong in (None, "", "x", handle.encode()[:40], "djIgYSBiIGMgMSAy"):
        with pytest.raises(ClientError, match="is no recall handle"):
            RecallHandle.decode(wrong)


def rows(*dues: tuple[int, int]) -> np.ndarray:
    return np.array([(due, offset, offset * 100) for due, offset in dues], np.int64).reshape(-1, 3)


def drain(window: DueWindow, until: int) -> list[tuple[int, int]]:
    found = []
    while (due := window.take(until)) is not None:
        found.append(due[:2])
        window.drop()
    return found


def test_messages_come_by_due_time_then_by_offset_and_never_early() -> None:
    window = DueWindow(100)
    window.extend(rows((30, 0), (10, 1), (20, 2), (10, 3)), 100)
    window.add(rows((10, 4), (15, 5), (100, 6)))
    assert drain(window, 9) == []
    assert drain(window, 15) == [(10, 1), (10, 3), (10, 4), (15, 5)]
    assert drain(window, 1_000) == [(20, 2), (30, 0)], "what is due behind the end is not inside"


def test_a_full_window_drops_the_latest_and_its_end_comes_nearer() -> None:
    window = DueWindow(3)
    window.extend(rows((10, 0), (20, 1), (30, 2), (40, 3), (50, 4)), 100)
    assert (
        len(window) == 3
        and window.end_ms == 40
        and drain(window, 1_000) == [(10, 0), (20, 1), (30, 2)]
    )


def test_messages_of_one_millisecond_stay_together_even_beyond_the_limit() -> None:
    window = DueWindow(2)
    window.extend(rows((10, 0), (10, 1), (10, 2), (10, 3), (11, 4)), 100)
    assert window.end_ms == 11 and drain(window, 100) == [(10, 0), (10, 1), (10, 2), (10, 3)]
    kept, end = nearest(rows((10, 0), (10, 1), (10, 2), (11, 3)), 1)
    assert len(kept) == 3 and end == 11 and nearest(kept, 3)[1] is None


def test_a_window_delivers_what_a_sorted_list_would() -> None:
    """Random arrivals, scans and takes; whatever is below the end must come, once, in order."""
    for seed in range(60):
        rng = random.Random(seed)
        window, everything, taken, now, offset = DueWindow(rng.choice([5, 50, 1_000])), [], [], 0, 0
        for _ in range(60):
            batch = [(now + rng.randrange(1, 60), offset + n) for n in range(rng.randrange(12))]
            offset += len(batch)
            everything += batch
            window.add(rows(*batch))
            if window.end_ms <= now + 20:
                start = window.end_ms
                target = now + rng.randrange(20, 80)
                window.extend(
                    rows(*[due for due in everything if start <= due[0] < target]), target
                )
            now = min(now + rng.randrange(8), window.end_ms)
            taken += drain(window, now - 1)
        assert taken == sorted(
            due for due in everything if due[0] <= max((t[0] for t in taken), default=-1)
        ), seed


def test_many_arrivals_leave_the_heap() -> None:
    window = DueWindow(10 * HEAP_MAX)
    window.extend(rows(), 1 << 40)
    rng = random.Random(1)
    dues = [(rng.randrange(1 << 30), offset) for offset in range(2 * HEAP_MAX + 10)]
    for at in range(0, len(dues), 1_000):
        window.add(rows(*dues[at : at + 1_000]))
    assert len(window._heap) <= HEAP_MAX and drain(window, 1 << 40) == sorted(dues)


@pytest.mark.parametrize("seed", range(3))
def test_offsets_that_wait_no_more_are_a_sorted_array_as_well(seed: int) -> None:
    chance, kept, model, taken = random.Random(seed), OffsetSet(), set[int](), []
    for _ in range(2_000):
        offset = chance.randrange(500)
        if chance.random() < 0.7:
            kept.add(offset)
            model.add(offset)
        else:
            kept.discard(offset)
            model.discard(offset)
        assert len(kept) == len(model) and (offset in kept) is (offset in model)
        if chance.random() < 0.1:
            begin = chance.randrange(500)
            found = kept.array(begin)
            told = found.tolist()
            assert told == sorted(told) and {at for at in model if at >= begin} <= set(told)
            assert len(set(kept.array().tolist())) <= 2 * len(model)
            taken.append((found, told))
    assert all(found.tolist() == told for found, told in taken), "a thread may keep it"


def test_nothing_is_sorted_again_where_nothing_was_added() -> None:
    kept = OffsetSet()
    for offset in (7, 3, 5):
        kept.add(offset)
    assert np.shares_memory(kept.array(), kept.array(5)) and kept.array(5).tolist() == [5, 7]
