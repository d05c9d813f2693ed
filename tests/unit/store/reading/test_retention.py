"""Retention: which segments go when, and what goes with them."""

from __future__ import annotations

import time
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
import pytest

from rmq_ray.clock import ManualClock
from rmq_ray.codec.store_files import ENTRY
from rmq_ray.config import GIB, StoreConfig
from rmq_ray.errors import StoreError
from rmq_ray.files import DiskSpace, FileSystem
from rmq_ray.store.log.segment_chain import SegmentChain
from rmq_ray.store.queue.index_service import IndexService
from rmq_ray.store.queue.queue_table import QueueTable
from rmq_ray.store.reading.retention import (
    MANUAL_CYCLES,
    PINS_MAX,
    PINS_OF_OWNER_MAX,
    Pins,
    Reason,
    Retention,
    RetentionPlan,
    Room,
    SegmentFacts,
    decide,
    is_delete_hour,
)

HOUR_MS = 3_600_000
NOW_MS = 1_700_000_000_000
LOCAL_HOUR = datetime.fromtimestamp(NOW_MS / 1000, UTC).astimezone().hour
NOT_NOW, NOW = f"{(LOCAL_HOUR + 1) % 24}", f"{LOCAL_HOUR}"
END = 20 * 100
ROOMY = DiskSpace(0.1, 100 * GIB)


def segments(count: int = 20, age_hours: int = 80) -> list[SegmentFacts]:
    """Segments of 100 bytes; the oldest was written ``age_hours`` ago, each other one an hour
    later.
    """
    return [
        SegmentFacts(100 * n, 100 * n + 100, NOW_MS - (age_hours - n) * HOUR_MS)
        for n in range(count)
    ]


def plan(
    ratio: float = 0.1,
    free_bytes: int = 0,
    when: str = NOT_NOW,
    count: int = 20,
    log_end: int = END - 50,
    **options: object,
) -> RetentionPlan:
    return decide(
        segments(count),
        NOW_MS,
        DiskSpace(ratio, free_bytes),
        StoreConfig("/s", delete_when=when),
        log_end=log_end,
        **options,
    )  # type: ignore[arg-type]


def test_nothing_goes_at_another_hour_on_a_disk_with_room() -> None:
    assert plan() == RetentionPlan((), Room.ENOUGH, Reason.NONE)


@pytest.mark.parametrize(
    ("options", "room", "reason"),
    [
        ({"when": f"{NOT_NOW};{NOW}"}, Room.ENOUGH, Reason.TIME),
        ({"ratio": 0.751}, Room.SHORT, Reason.SPACE),
        ({"manual": True}, Room.ENOUGH, Reason.MANUAL),
    ],
)
def test_expired_segments_go_at_the_hour_on_a_full_disk_or_on_request(
    options: dict[str, object], room: Room, reason: Reason
) -> None:
    assert plan(**options) == RetentionPlan(tuple(100 * n for n in range(9)), room, reason)  # type: ignore[arg-type]


def test_a_segment_expires_exactly_after_its_hours() -> None:
    config = StoreConfig("/s", delete_when=NOW, reserved_hours=72)
    for late_ms, deleted in ((0, (0,)), (1, ())):
        facts = [
            SegmentFacts(0, 100, NOW_MS - 72 * HOUR_MS + late_ms),
            SegmentFacts(100, 200, NOW_MS),
        ]
        assert decide(facts, NOW_MS, ROOMY, config, log_end=150).delete == deleted


def test_the_first_segment_that_stays_ends_the_cycle() -> None:
    facts = segments()
    facts[2] = SegmentFacts(200, 300, NOW_MS)
    assert decide(facts, NOW_MS, ROOMY, StoreConfig("/s", delete_when=NOW), log_end=END).delete == (
        0,
        100,
    )


@pytest.mark.parametrize(
    ("ratio", "free_gib", "count", "room", "reason"),
    [
        (0.75, 0, 0, Room.ENOUGH, Reason.NONE),
        (0.76, 0, 9, Room.SHORT, Reason.SPACE),
        (0.85, 0, 9, Room.SHORT, Reason.SPACE),
        (0.86, 0, 10, Room.SHORT, Reason.FORCED),
        (0.91, 0, 10, Room.FULL, Reason.FORCED),
        (0.92, 3.9, 10, Room.FULL, Reason.FORCED),
        (0.92, 4, 10, Room.SHORT, Reason.FORCED),
        (0.92, 8, 9, Room.SHORT, Reason.SPACE),
        (0.92, 16, 9, Room.ENOUGH, Reason.SPACE),
        (0.99, 60, 9, Room.ENOUGH, Reason.SPACE),
        (0.5, 1, 0, Room.ENOUGH, Reason.NONE),
    ],
)
def test_disk_levels_delete_expired_then_any_then_refuse_writes_where_little_is_free(
    ratio: float, free_gib: float, count: int, room: Room, reason: Reason
) -> None:
    found = plan(ratio, int(free_gib * GIB))
    assert (len(found.delete), found.room, found.reason) == (count, room, reason)


@pytest.mark.parametrize(
    ("count", "log_end", "deleted"),
    [(3, 250, 2), (3, 300, 3), (3, 201, 2), (4, 250, 2), (1, 50, 0), (2, 100, 1), (0, 0, 0)],
)
def test_the_segment_that_is_written_and_those_prepared_behind_it_never_go(
    count: int, log_end: int, deleted: int
) -> None:
    assert len(plan(0.95, count=count, log_end=log_end).delete) == deleted


def test_pinned_segments_stay_even_on_a_full_disk() -> None:
    assert plan(0.95, pinned_from=350).delete == (0, 100, 200)
    assert plan(0.95, pinned_from=0).delete == ()
    assert plan(0.95, pinned_from=300).delete == (0, 100, 200)


def test_the_hours_are_a_list() -> None:
    assert (
        is_delete_hour(NOW_MS, f"4;{NOW} ;23")
        and not is_delete_hour(NOW_MS, f"{NOT_NOW};x;")
        and not is_delete_hour(NOW_MS, "")
    )


@pytest.mark.parametrize(
    ("zone", "at"),
    [
        ("UTC", "2024-01-15T04:30"),
        ("America/New_York", "2024-01-15T09:30"),
        ("America/New_York", "2024-07-15T08:30"),
    ],
)
def test_the_hour_is_that_of_the_hosts_own_clock_summer_and_winter(
    monkeypatch: pytest.MonkeyPatch, zone: str, at: str
) -> None:
    monkeypatch.setenv("TZ", zone)
    time.tzset()
    try:
        at_ms = int(datetime.fromisoformat(at).replace(tzinfo=UTC).timestamp() * 1000)
        assert (
            is_delete_hour(at_ms, "04")
            and not is_delete_hour(at_ms + HOUR_MS, "04")
            and not is_delete_hour(at_ms - HOUR_MS, "04")
        )
    finally:
        monkeypatch.undo()
        time.tzset()


def test_a_pin_ends_at_its_deadline_or_when_it_is_given_back() -> None:
    pins = Pins()
    first, second = pins.pin(500, 1_000), pins.pin(300, 900)
    assert first != second and pins.lowest(899) == 300
    assert pins.lowest(900) == 500 and len(pins) == 1
    pins.unpin(first)
    pins.unpin(first)
    assert pins.lowest(0) is None


def test_a_time_of_day_that_is_set_forward_ends_no_pin_and_set_back_keeps_none(
    tmp_path: Path,
) -> None:
    retention, *_, clock = a_store(tmp_path)
    retention.request()
    retention.pins.pin(4096, clock.monotonic_ms() + HOUR_MS)
    clock.jump_ms(24 * HOUR_MS)
    assert retention.run(clock.now_ms(), 25 * 4096).begin == 4096
    clock.jump_ms(-48 * HOUR_MS)
    clock.advance_ms(HOUR_MS)
    assert retention.pinned_from() is None
    assert retention.run(NOW_MS, 25 * 4096).begin > 4096


def test_a_later_start_gives_out_no_id_of_an_earlier_one() -> None:
    first, second = (Pins(first_id=started_ms).pin(0, 1) for started_ms in (1_000, 2_000))
    assert first < second


def test_a_pin_is_given_back_by_its_owner_or_by_the_cluster() -> None:
    pins = Pins()
    shop, eve = pins.pin(500, 1_000, "web-shop"), pins.pin(600, 1_000, "eve-shop")
    pins.unpin(shop, "eve-shop")
    assert pins.lowest(0) == 500
    pins.unpin(shop, "web-shop")
    assert pins.lowest(0) == 600
    pins.unpin(eve)
    assert pins.lowest(0) is None


def test_one_owner_leaves_pins_to_others() -> None:
    pins = Pins()
    for _ in range(PINS_OF_OWNER_MAX):
        pins.pin(0, 1, "eve-shop")
    with pytest.raises(StoreError, match="eve-shop has 1000 bulk reads"):
        pins.pin(0, 1, "eve-shop")
    assert pins.pin(0, 1, "web-shop") and pins.pin(0, 1)


def test_pins_have_a_limit() -> None:
    pins = Pins()
    for _ in range(PINS_MAX):
        pins.pin(0, 1)
    with pytest.raises(StoreError, match="bulk reads have pinned"):
        pins.pin(0, 1)


class FullDisk(FileSystem):
    ratio = 0.1

    def disk_space(self, path: str) -> DiskSpace:
        return DiskSpace(self.ratio, 0)


def a_store(
    path: Path,
) -> tuple[Retention, SegmentChain, QueueTable, IndexService, FullDisk, ManualClock]:
    """25 segments of 4 KiB with one record of 128 bytes in each, queued in files of 16 entries and
    indexed in files of 8.
    """
    files, clock = FullDisk(), ManualClock(NOW_MS)
    config = StoreConfig(str(path), segment_bytes=4096, delete_when=NOT_NOW)
    files.make_dirs(str(path / "rmq_ray"))
    chain = SegmentChain(
        str(path / "commitlog"), str(path / "rmq_ray"), 4096, files, clock, ahead=False
    )
    chain.load()
    queues, index = (
        QueueTable(str(path / "consumequeue"), 16, files),
        IndexService(str(path / "index"), 7, 9, files, clock),
    )
    for n in range(25):
        segment = chain.ensure(4096 * n)
        queues.get_or_create("T", 0).append(n, ENTRY.pack(4096 * n, 128, 0))
        index.put_many(np.array([n], np.int32), np.array([4096 * n]), NOW_MS)
        files.set_modified_ms(segment.path, NOW_MS - (90 - n) * HOUR_MS)
    index.flush()
    return Retention(chain, queues, index, files, config, clock), chain, queues, index, files, clock


def test_a_cycle_removes_ten_segments_at_most_and_then_what_was_derived_from_them(
    tmp_path: Path,
) -> None:
    retention, chain, queues, index, files, clock = a_store(tmp_path)
    retention.request()
    report = retention.run(NOW_MS, 25 * 4096)
    assert (report.segments, report.begin, report.reason) == (10, 10 * 4096, Reason.MANUAL)
    assert chain.begin == 10 * 4096 and queues.get_or_create("T", 0).min_offset == 10
    assert (report.queue_files, report.index_files) == (0, 1)
    assert clock.monotonic_ms() == 900  # a pause of 100 ms between two
    report = retention.run(NOW_MS, 25 * 4096)
    assert (report.segments, report.begin, report.queue_files, report.index_files) == (
        9,
        19 * 4096,
        1,
        1,
    )
    assert sorted(path.name for path in (tmp_path / "consumequeue" / "T" / "0").iterdir()) == [
        "00000000000000000320"
    ]
    assert retention.run(NOW_MS, 25 * 4096).segments == 0


def test_a_request_lasts_twenty_cycles(tmp_path: Path) -> None:
    retention, *_ = a_store(tmp_path)
    retention.request()
    reasons = [retention.run(NOW_MS, 25 * 4096).reason for _ in range(MANUAL_CYCLES + 1)]
    assert reasons == [Reason.MANUAL] * MANUAL_CYCLES + [Reason.NONE]


def test_a_disk_that_is_too_full_loses_segments_of_any_age_and_the_flag_falls_again(
    tmp_path: Path,
) -> None:
    retention, chain, _, _, files, clock = a_store(tmp_path)
    files.ratio = 0.95
    assert retention.run(NOW_MS - 300 * HOUR_MS, 25 * 4096).segments == 10 and retention.disk_full
    pin = retention.pins.pin(12 * 4096, clock.monotonic_ms() + HOUR_MS)
    assert retention.run(NOW_MS, 25 * 4096).begin == 12 * 4096
    retention.pins.unpin(pin)
    assert [retention.run(NOW_MS, 25 * 4096).begin for _ in range(3)] == [
        22 * 4096,
        24 * 4096,
        24 * 4096,
    ]  # the last one stays
    files.ratio = 0.2
    retention.run(NOW_MS, 25 * 4096)
    assert not retention.disk_full and chain.begin == 24 * 4096


def test_a_restarted_store_is_cleaned_to_its_logs_beginning_without_a_deletion(
    tmp_path: Path,
) -> None:
    retention, chain, queues, *_ = a_store(tmp_path)
    for _ in range(18):
        chain.remove_first()
    report = retention.run(NOW_MS, 25 * 4096)
    assert (report.segments, report.queue_files, report.index_files) == (0, 1, 2)
    assert queues.get_or_create("T", 0).min_offset == 18
