"""Retention waits for a table up to ``hold_bytes``, however long nothing is committed: by the pins
that brokers have, on a clock that is moved by hand.
"""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import pytest

from rmq_ray.client.scan.scan_plan import PIN_MS
from rmq_ray.clock import ManualClock
from rmq_ray.errors import TableStorageError
from rmq_ray.model.ids import MessageQueue
from rmq_ray.server.core.upkeep import CLEAN_MS, FIRST_CLEAN_MS
from rmq_ray.store.reading.retention import Pins
from rmq_ray.table.archivist import Archivist
from rmq_ray.table.manifest import ManifestTable
from rmq_ray.table.retention_hold import ALARM_EVERY_MS, HOLD_EVERY_MS, RetentionHold
from rmq_ray.table.rules import Offsets
from rmq_ray.table.source import HOLD_TIMEOUT_MS
from rmq_ray.table.storage import Storage
from tests.support.tables.table_rig import START_MS, TOPIC, MemoryTopic, glob_rows, spec_at

ROW = 100
HOUR_MS = 3_600_000


class KeptTopic(MemoryTopic):
    """On one broker, whose retention wants everything; rows are of ``ROW`` bytes in its log."""

    def __init__(self, clock: ManualClock) -> None:
        super().__init__(2)
        self.clock = clock
        self.log: list[tuple[MessageQueue, int]] = []
        self.pins, self.pin = Pins(), 0
        self.next_clean_ms = 0.0

    def send(self, queue: int, body: bytes, at_ms: int = START_MS) -> None:
        name = self.queues[queue]
        self.log.append((name, len(self.rows[name])))
        super().send(queue, body, at_ms)

    def start_again(self) -> None:
        """The broker; what is pinned was in its memory."""
        self.pins = Pins(self.clock.now_ms())
        self.next_clean_ms = self.clock.monotonic_ms() + FIRST_CLEAN_MS

    def clean(self) -> None:
        """What retention does by itself."""
        now = self.clock.monotonic_ms()
        if now < self.next_clean_ms:
            return
        self.next_clean_ms = now + CLEAN_MS
        lowest = self.pins.lowest(now)
        begin = len(self.log) if lowest is None else lowest // ROW
        for queue in self.queues:
            left = [offset for name, offset in self.log[begin:] if name == queue]
            self.lows[queue] = max(self.lows[queue], left[0] if left else len(self.rows[queue]))

    def hold(self, committed: Offsets | None, hold_bytes: int) -> int:
        known = committed or {}
        starts = {queue: max(self.lows[queue], known.get(queue, 0)) for queue in self.queues}
        lacking = [at for at, (queue, offset) in enumerate(self.log) if offset >= starts[queue]]
        first = min(lacking, default=len(self.log))
        if committed is None:
            first = max(first, len(self.log) - hold_bytes // ROW)
        before, kept = self.pin, (len(self.log) - first) * ROW
        self.pin = self.pins.pin(first * ROW, self.clock.monotonic_ms() + PIN_MS)
        if kept > hold_bytes:
            self.pins.unpin(self.pin)
        self.pins.unpin(before)
        return kept

    def let_go(self) -> None:
        self.pins.unpin(self.pin)


class Bucket(Storage):
    """``away``: nobody reaches it; ``away_with``: from a file on whose name begins so."""

    away = False
    away_with = "nothing"

    def _reached(self) -> None:
        if self.away:
            raise TableStorageError("injected: away", self.uri)

    def begin(self, name: str) -> Any:
        self._reached()
        return super().begin(name)

    def finish(self, name: str, stream: Any) -> int:
        self.away |= name.startswith(self.away_with)
        self._reached()
        return super().finish(name, stream)

    def read_whole(self, name: str) -> bytes | None:
        self._reached()
        return super().read_whole(name)

    def list(self, folder: str) -> Any:
        self._reached()
        return super().list(folder)

    def delete(self, name: str) -> None:
        self._reached()
        super().delete(name)


class Kept:
    """A table with ten rows, its topic and its bucket; ``hold_bytes``: a thousand rows."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.clock = ManualClock(START_MS)
        self.topic = KeptTopic(self.clock)
        self.spec = spec_at(folder, hold_bytes=1_000 * ROW)
        self.starts = 0
        self.archivist = self.started()
        self.send(10)
        self.archivist.turn(force=True)

    def started(self) -> Archivist:
        """Another start of its archivist."""
        self.starts += 1
        self.bucket = Bucket(self.spec.location)
        target = ManifestTable(self.bucket, TOPIC, f"w{self.starts}")
        return Archivist(self.spec, self.topic, target, self.clock)

    def send(self, count: int) -> None:
        for _ in range(count):
            self.topic.send(len(self.topic.log) % 2, b"%d" % len(self.topic.log))

    def pass_ms(self, duration_ms: float, paused: bool = False) -> None:
        """Retention wants to delete all the while; turns are taken as after many errors."""
        until_ms = self.clock.monotonic_ms() + duration_ms
        while self.clock.monotonic_ms() < until_ms:
            self.topic.clean()
            try:
                self.archivist.watch() if paused else self.archivist.turn()
            except TableStorageError:
                assert self.bucket.away
            self.clock.advance_ms(30_000)

    def gaps(self) -> list[tuple[int, int, str]]:
        return [(gap.first, gap.next, gap.reason) for gap in self.archivist.opened().gaps]

    def caught_up(self) -> None:
        """All is in the table, and nothing of it was lost."""
        self.bucket.away, self.bucket.away_with = False, "nothing"
        self.archivist.turn(force=True)
        assert self.gaps() == [] and len(glob_rows(self.folder)) == len(self.topic.log)


@pytest.fixture
def kept(tmp_path: Path) -> Kept:
    return Kept(tmp_path)


@pytest.mark.parametrize("away_with", ["day=", "_rmq/commits/"])
def test_a_bucket_that_is_away_for_three_hours_costs_no_row_and_the_lag_is_told(
    kept: Kept, away_with: str
) -> None:
    kept.send(100)
    kept.bucket.away_with = away_with
    kept.pass_ms(2 * HOUR_MS)
    kept.send(100)
    kept.pass_ms(HOUR_MS)
    assert kept.archivist.hold.held_bytes == 200 * ROW and kept.archivist.hold.holding
    assert kept.archivist.lag.messages == 200 and kept.archivist.lag.ms >= 2.9 * HOUR_MS
    kept.caught_up()
    assert kept.archivist.hold.held_bytes == 0


def test_beyond_hold_bytes_there_is_an_alarm_and_then_a_gap(
    kept: Kept, caplog: pytest.LogCaptureFixture
) -> None:
    kept.bucket.away = True
    kept.send(1_000)
    with caplog.at_level(logging.ERROR, "rmq_ray.table"):
        kept.pass_ms(2 * HOUR_MS)
        assert kept.archivist.hold.holding and caplog.text == ""
        kept.send(1)
        kept.archivist.hold.renew()
        assert not kept.archivist.hold.holding
        assert "lags by 100100 bytes" in caplog.text and "no longer waits" in caplog.text
    kept.topic.clean()
    kept.bucket.away = False
    kept.archivist.turn(force=True)
    assert kept.gaps() == [(5, 506, "retention"), (5, 505, "retention")]
    assert kept.archivist.hold.holding


def test_a_table_that_is_paused_for_three_hours_is_held_and_its_lag_is_told(kept: Kept) -> None:
    kept.send(100)
    kept.pass_ms(3 * HOUR_MS, paused=True)
    assert kept.archivist.hold.held_bytes == 100 * ROW
    assert kept.archivist.lag.messages == 100 and kept.archivist.lag.ms >= 2.9 * HOUR_MS
    assert len(glob_rows(kept.folder)) == 10, "nothing was committed"
    kept.caught_up()


def test_a_table_whose_archivist_starts_while_it_is_paused_is_held(kept: Kept) -> None:
    kept.send(100)
    kept.archivist = kept.started()
    kept.pass_ms(3 * HOUR_MS, paused=True)
    assert kept.archivist.hold.held_bytes == 100 * ROW and len(glob_rows(kept.folder)) == 10
    kept.caught_up()


@pytest.mark.parametrize("paused", [True, False])
def test_a_broker_that_starts_again_is_told_before_its_retention_runs(
    kept: Kept, paused: bool
) -> None:
    kept.send(100)
    kept.bucket.away = not paused
    for _ in range(20):
        kept.topic.start_again()
        kept.pass_ms(10 * 60_000, paused)
        assert kept.archivist.hold.held_bytes == 100 * ROW
    kept.caught_up()


def test_a_time_of_day_that_jumps_an_hour_ends_no_hold(kept: Kept) -> None:
    kept.send(100)
    kept.bucket.away = True
    for jump_ms in (HOUR_MS + 1, -2 * HOUR_MS, 30 * 24 * HOUR_MS):
        kept.pass_ms(60_000)
        kept.clock.jump_ms(jump_ms)
        kept.topic.next_clean_ms = 0.0
        kept.topic.clean()
        assert set(kept.topic.lows.values()) == {5}, "what is committed is gone, and no more"
    kept.caught_up()


def test_an_archivist_that_starts_while_the_bucket_is_away_holds_the_newest_of_the_log(
    kept: Kept,
) -> None:
    kept.send(1_990)
    kept.archivist.turn(force=True)
    kept.send(800)
    kept.archivist = kept.started()
    kept.topic.start_again()  # so that nothing of the start before is held
    kept.bucket.away = True
    kept.pass_ms(3 * HOUR_MS)
    assert kept.archivist.hold.holding
    assert sum(kept.topic.lows.values()) == 2_000 - 200, "all that hold_bytes allow"
    kept.caught_up()


def test_renewals_come_before_a_broker_that_starts_deletes_by_itself() -> None:
    silent = 9 * HOLD_TIMEOUT_MS
    assert HOLD_EVERY_MS + silent < FIRST_CLEAN_MS < PIN_MS


class Asked:
    """A log of which so many bytes are not in the table."""

    bytes = 0
    holds = 0

    def hold(self, committed: Offsets | None, hold_bytes: int) -> int:
        self.holds += 1
        return self.bytes

    def let_go(self) -> None:
        self.bytes = -1


def test_a_hold_is_renewed_when_it_is_due_and_when_it_is_first_known_how_far_the_table_is() -> None:
    clock, log = ManualClock(), Asked()
    hold = RetentionHold(log, TOPIC, 10, clock)
    hold.renew_when_due()
    hold.renew_when_due()
    assert log.holds == 1
    hold.know({})
    hold.renew_when_due()
    assert log.holds == 2
    hold.know({})
    clock.advance_ms(HOLD_EVERY_MS - 1)
    hold.renew_when_due()
    assert log.holds == 2
    clock.advance_ms(1)
    hold.renew_when_due()
    assert log.holds == 3
    hold.close()
    hold.renew()
    assert (log.holds, log.bytes) == (3, -1), "nothing is held after the end"
    assert (hold.holding, hold.held_bytes) == (False, 0)


def test_the_alarm_comes_at_once_again_every_ten_minutes_and_its_end_is_told(
    caplog: pytest.LogCaptureFixture,
) -> None:
    clock, log = ManualClock(), Asked()
    hold = RetentionHold(log, TOPIC, 10, clock)
    alarms = "no longer waits"
    with caplog.at_level(logging.INFO, "rmq_ray.table"):
        hold.renew()
        assert caplog.text == ""
        log.bytes = 11
        for _ in range(ALARM_EVERY_MS // HOLD_EVERY_MS):
            hold.renew()
            clock.advance_ms(HOLD_EVERY_MS)
        assert caplog.text.count(alarms) == 1
        hold.renew()
        assert caplog.text.count(alarms) == 2 and "again" not in caplog.text
        log.bytes = 10
        hold.renew()
        assert hold.holding and f"waits for the table of {TOPIC} again" in caplog.text
