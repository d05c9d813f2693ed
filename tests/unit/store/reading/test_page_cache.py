"""Pages for readers that take 32 records at a time: what they are handed is what the log holds."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest

from rmq_ray.codec.record import decode_record
from rmq_ray.store.log.commit_log import CommitLog
from rmq_ray.store.reading.log_reader import GetResult, LogReader
from rmq_ray.store.reading.page_cache import PAGES_MAX, CachedPage, PageCache
from tests.support.brokers.store_rig import ROOT, StoreRig, small_config


def rig_of(sizes: list[int], queues: int = 2, frame: int = 10) -> StoreRig:
    """Frames of bodies of these sizes, by turns in some queues; segments of 64 KiB."""
    rig = StoreRig(config=small_config(segment_bytes=1 << 16))
    for number, start in enumerate(range(0, len(sizes), frame)):
        bodies = [
            b"%06d" % (start + n) + b"x" * size for n, size in enumerate(sizes[start:][:frame])
        ]
        rig.send(bodies, number, queue_id=number % queues)
    return rig


def pull(rig: StoreRig, offset: int, count: int = 32, queue_id: int = 0) -> GetResult:
    return rig.store.get_messages("TopicTest", queue_id, offset, count, 256 << 10, None, True)


def told(found: GetResult) -> tuple[Any, ...]:
    data = b"".join(bytes(part) for part in found.parts)
    return (
        *(found.status, found.next_offset, found.min_offset, found.max_offset),
        *(found.sizes.tolist(), data, found.suggest_slave),
    )


@pytest.mark.parametrize("queues", [1, 3])
@pytest.mark.parametrize("frame", [1, 7])
@pytest.mark.parametrize("seed", [1, 2])
def test_pulls_find_the_same_with_and_without_pages(queues: int, frame: int, seed: int) -> None:
    source = random.Random(seed)
    sizes = [source.choice((0, 50, 500, 3_000, 8_000)) for _ in range(400)]
    rig = rig_of(sizes, queues, frame)
    reader = rig.store.opened.reader
    asked = [
        (source.randrange(-1, 410 // queues), source.choice((1, 2, 31, 32, 40, 1_000)), n % queues)
        for n in range(150)
    ]
    ordered = [(offset, 32, queue) for queue in range(queues) for offset in range(0, 410, 32)]
    for offset, count, queue_id in asked + ordered:
        reader._memory_bytes = source.choice((1 << 30, 1 << 30, 20_000, 0))
        found = told(pull(rig, offset, count, queue_id))
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(LogReader, "_from_page", lambda *_: None)
            assert found == told(pull(rig, offset, count, queue_id))


def test_a_page_is_read_once_for_many_pulls_and_readers(monkeypatch: pytest.MonkeyPatch) -> None:
    rig = rig_of([50] * 300, 1)
    reads: list[int] = []
    read = CommitLog.read

    def counted(log: CommitLog, offset: int, count: int) -> bytes:
        reads.append(offset)
        return read(log, offset, count)

    monkeypatch.setattr(CommitLog, "read", counted)
    for _reader in range(3):
        for offset in range(0, 256, 32):
            assert pull(rig, offset).count == 32
    assert len(reads) <= 2, "the segment's end lies within"


def test_what_came_after_a_page_is_found() -> None:
    rig = rig_of([50] * 100, 1)
    for offset in range(0, 96, 32):
        pull(rig, offset)
    assert pull(rig, 96).count == 4
    rig.send([b"new"] * 40, 77)
    found = pull(rig, 96)
    assert (found.count, found.max_offset) == (32, 140)


def test_a_deleted_topic_is_not_read_from_a_page() -> None:
    rig = rig_of([50] * 100, 1)
    pull(rig, 0)
    rig.delete()
    rig.send([b"again"] * 100, 500)
    assert pull(rig, 0).next_offset == 100 and not pull(rig, 0).count
    found = pull(rig, 100)
    assert decode_record(b"".join(bytes(part) for part in found.parts)).body == b"again"


def test_a_damaged_record_is_not_handed_out_in_a_page() -> None:
    rig = rig_of([50] * 200, 1)
    log_offset = rig.records()[10].log_offset
    rig.disk.flip(f"{ROOT}/commitlog/{0:020d}", log_offset + 90)
    found = pull(rig, 0)
    assert found.count == 31 and found.next_offset == 32


def page_of(offset: int, sizes: list[int]) -> CachedPage:
    ends = [0, *np.cumsum(sizes).tolist()]
    return CachedPage(
        offset, 0, np.array(sizes, np.int32), ends, memoryview(bytes(range(ends[-1])))
    )


def test_a_page_gives_what_it_holds_whole_and_no_more_bytes_than_asked() -> None:
    page = page_of(100, [10, 20, 30])
    assert page.cut(99, 1, 100) is None and page.cut(101, 3, 100) is None
    for offset, count, most, sizes, begin in (
        (100, 2, 100, [10, 20], 0),
        (101, 2, 49, [20], 10),
        (102, 1, 1, [30], 30),
    ):
        found = page.cut(offset, count, most)
        assert found is not None and found[0].tolist() == sizes
        assert bytes(found[1]) == bytes(range(begin, begin + sum(sizes)))


def test_a_page_that_was_read_before_all_were_forgotten_is_not_kept() -> None:
    pages = PageCache()
    life = pages.life
    pages.forget()
    pages.keep(("t", 0), page_of(0, [1]), life)
    assert pages.find(("t", 0)) is None
    pages.keep(("t", 0), page_of(0, [1]), pages.life)
    assert pages.find(("t", 0)) is not None


def test_the_queues_that_were_read_last_keep_their_pages() -> None:
    pages = PageCache()
    for queue_id in range(PAGES_MAX + 1):
        pages.keep(("t", queue_id), page_of(0, [1]), pages.life)
    assert pages.find(("t", 0)) is None and pages.find(("t", 1)) is not None
