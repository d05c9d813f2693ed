"""Repeats are recognised within the window, and only there (design: 1,024 frames a producer, 10
minutes).
"""

from __future__ import annotations

import msgpack
import pytest

from rmq_ray.errors import DuplicateMismatch
from rmq_ray.model.ids import FrameId
from rmq_ray.store.frames import deduplication
from rmq_ray.store.frames.deduplication import DeduplicationCache, StoredFrame


def frame_id(sequence: int, producer: int = 1) -> FrameId:
    return FrameId(producer.to_bytes(16, "big"), sequence)


def stored(number: int) -> StoredFrame:
    return StoredFrame(
        number, "T", 0, number * 10, number * 100, number * 100 + 99, 1000 + number, 10
    )


def filled(count: int, window: int = 4) -> DeduplicationCache:
    cache = DeduplicationCache(window, 600_000)
    for number in range(count):
        cache.add(frame_id(number), stored(number))
    return cache


def test_a_known_frame_is_found_and_an_unknown_one_is_not() -> None:
    cache = filled(3)
    assert cache.find(frame_id(1), 1) == stored(1)
    assert cache.find(frame_id(3), 3) is None
    assert cache.find(frame_id(1, producer=2), 1) is None


def test_the_same_number_with_another_content_is_a_mismatch() -> None:
    with pytest.raises(DuplicateMismatch, match="log offset 100"):
        filled(3).find(frame_id(1), 99)


def test_a_number_older_than_the_window_is_refused_rather_than_stored_twice() -> None:
    cache = filled(6)
    assert cache.find(frame_id(2), 2) == stored(2)
    for number in (0, 1):
        with pytest.raises(DuplicateMismatch, match="older than the last 4 frames"):
            cache.find(frame_id(number), number)
    gaps = DeduplicationCache(2, 1)
    for number in (10, 5, 20):
        gaps.add(frame_id(number), stored(number))
    assert gaps.find(frame_id(15), 0) is None, "never sent here, and above what fell out"


def test_producers_that_fell_silent_are_dropped() -> None:
    cache = filled(2)
    assert cache.expire(1_000) == 0
    cache.add(frame_id(0, producer=2), stored(0))
    assert cache.expire(500_000) == 0
    assert cache.expire(601_000) == 0
    assert cache.expire(601_001) == 1 and len(cache) == 1
    assert cache.find(frame_id(0, producer=2), 0) == stored(0)


def test_whoever_is_heard_after_a_long_silence_of_all_stays() -> None:
    cache = filled(2)
    cache.expire(0)
    cache.add(frame_id(2), stored(2))
    assert cache.expire(10_000_000) == 0
    assert cache.find(frame_id(2), 2) == stored(2)


def test_the_number_of_producers_is_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(deduplication, "PRODUCERS_MAX", 3)
    cache = DeduplicationCache(4, 600_000)
    for producer in (1, 2, 3, 1, 4):
        cache.add(frame_id(0, producer), stored(0))
    assert len(cache) == 3
    assert cache.find(frame_id(0, 2), 0) is None, "the longest unheard went"
    assert cache.find(frame_id(0, 1), 0) == stored(0)


def test_windows_survive_a_round_through_the_checkpoint() -> None:
    cache = filled(6)
    cache.add(frame_id(9, producer=7), stored(9))
    copy = DeduplicationCache(4, 600_000)
    copy.restore(msgpack.unpackb(msgpack.packb(cache.snapshot())))
    assert copy.find(frame_id(5), 5) == stored(5) and copy.find(
        frame_id(9, producer=7), 9
    ) == stored(9)
    with pytest.raises(DuplicateMismatch):
        copy.find(frame_id(1), 1)
    assert copy.snapshot() == cache.snapshot(), "the longest unheard is first again"


def test_frames_behind_a_cut_are_forgotten() -> None:
    cache = filled(4)
    cache.cut_from(250)
    assert cache.find(frame_id(1), 1) == stored(1)
    assert cache.find(frame_id(2), 2) is None and cache.find(frame_id(3), 99) is None
