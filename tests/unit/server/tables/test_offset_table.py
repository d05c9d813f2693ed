"""Whose commit counts."""

from __future__ import annotations

import pytest

from rmq_ray.clock import ManualClock
from rmq_ray.server.tables.offset_table import Commit, OffsetTable


def committed(offset: int = 100, puller: str = "one") -> OffsetTable:
    table = OffsetTable(ManualClock())
    table.commit("orders", "billing", 0, offset, puller)
    table.pulled("orders", "billing", 0, puller)
    return table


@pytest.mark.seed("S4-113", "S4-224")
def test_offsets_are_kept_by_topic_group_and_queue() -> None:
    table = committed()
    table.commit("orders", "other", 0, 7, "x")
    assert table.query("orders", "billing", 0) == 100
    assert (
        table.query("orders", "billing", 1) is None and table.query("absent", "billing", 0) is None
    )
    assert table.of_group("billing") == {"orders": {0: 100}} and sorted(
        table.groups_of("orders")
    ) == ["billing", "other"]


def test_a_higher_commit_is_taken_from_anyone() -> None:
    table = committed()
    assert table.commit("orders", "billing", 0, 101, "stranger") is Commit.STORED


@pytest.mark.seed("S4-225")
def test_a_lower_commit_is_taken_from_the_latest_puller_counted_and_warned_of(
    caplog: pytest.LogCaptureFixture,
) -> None:
    table = committed()
    assert table.commit("orders", "billing", 0, 50, "one") is Commit.LOWERED
    assert (table.query("orders", "billing", 0), table.lowered, table.refused) == (50, 1, 0)
    assert [record.getMessage() for record in caplog.records] == [
        "group billing goes back in orders queue 0 from offset 100 to 50: its messages come again"
    ]
    for offset in range(49, 0, -1):
        table.commit("orders", "billing", 0, offset, "one")
    assert (table.lowered, len(caplog.records)) == (50, 1)


def test_a_zombie_that_was_followed_by_another_puller_cannot_go_back() -> None:
    table = committed()
    table.pulled("orders", "billing", 0, "two")
    assert table.commit("orders", "billing", 0, 50, "one") is Commit.REFUSED
    assert (table.query("orders", "billing", 0), table.refused) == (100, 1)


def test_an_administrator_may_lower() -> None:
    assert (
        committed().commit("orders", "billing", 0, 0, "admin", administrator=True) is Commit.LOWERED
    )


def test_a_locked_queue_takes_commits_from_the_holder_only() -> None:
    table = committed()
    assert table.commit("orders", "billing", 0, 120, "one", holder="two") is Commit.REFUSED
    assert table.commit("orders", "billing", 0, 120, "two", holder="two") is Commit.STORED
    assert table.commit("orders", "billing", 0, 60, "two", holder="two") is Commit.LOWERED


def test_negative_offsets_are_refused() -> None:
    table = OffsetTable(ManualClock())
    assert table.commit("orders", "billing", 0, -1, "one", administrator=True) is Commit.REFUSED
    assert table.query("orders", "billing", 0) is None


def test_offsets_beyond_the_log_are_clamped_and_counted() -> None:
    table = committed()
    assert table.clamp(lambda topic, queue_id: 40) == 1
    assert (table.query("orders", "billing", 0), table.clamped, table.dirty) == (40, 1, True)


def test_the_table_is_dirty_until_a_snapshot_was_taken() -> None:
    table = committed()
    assert table.dirty and table.snapshot() == {("orders", "billing"): {0: 100}} and not table.dirty
    table.commit("orders", "billing", 0, 100, "one")
    assert not table.dirty, "the same offset again changes nothing"


def test_deleted_groups_and_topics_are_forgotten() -> None:
    table = committed()
    table.commit("orders", "other", 0, 1, "x")
    table.commit("clicks", "other", 0, 1, "x")
    table.forget_group("billing")
    assert table.groups_of("orders") == ["other"]
    table.forget_topic("orders")
    assert table.of_group("other") == {"clicks": {0: 1}}


def test_a_pullers_memory_of_a_forgotten_group_is_gone() -> None:
    table = committed()
    table.forget_group("billing")
    table.commit("orders", "billing", 0, 9, "x")
    assert table.commit("orders", "billing", 0, 5, "one") is Commit.REFUSED


def test_the_age_of_an_offset_is_that_of_its_last_commit_moved_or_not() -> None:
    clock = ManualClock()
    table = OffsetTable(clock)
    table.load({("orders", "billing"): {0: 5}})
    assert table.committed_age_ms("orders", "billing", 0) is None, "it is from the file"
    table.commit("orders", "billing", 0, 5, "one")
    clock.advance_ms(1_500)
    assert table.committed_age_ms("orders", "billing", 0) == 1_500
    table.commit("orders", "billing", 0, 4, "stranger")
    assert table.committed_age_ms("orders", "billing", 0) == 1_500, "it was refused"
    table.commit("orders", "billing", 0, 6, "one")
    assert table.committed_age_ms("orders", "billing", 0) == 0
    assert table.committed_age_ms("orders", "billing", 1) is None
    table.forget_group("billing")
    assert table.committed_age_ms("orders", "billing", 0) is None


def test_a_slave_is_told_what_changed_since_it_asked_or_to_take_all() -> None:
    table = OffsetTable(ManualClock())
    table.load({("orders", "billing"): {0: 5, 1: 6}, ("clicks", "billing"): {0: 1}})
    known = table.changes
    assert table.since(known) == {} and table.since(known + 1) is None
    table.commit("orders", "billing", 1, 7, "one")
    table.commit("orders", "billing", 1, 7, "one")
    assert table.changes == known + 1, "the same offset again changes nothing"
    table.commit("clicks", "other", 0, 3, "one")
    table.commit("orders", "billing", 0, 9, "one")
    assert table.since(known) == {("orders", "billing"): {0: 9, 1: 7}, ("clicks", "other"): {0: 3}}
    assert table.since(known + 2) == {("orders", "billing"): {0: 9, 1: 7}}
    known = table.changes
    table.forget_group("other")
    assert table.since(known) is None, "that a group is gone is no offset"
    known = table.changes
    assert table.clamp(lambda _topic, _queue_id: 8) == 1
    assert table.since(known) is None and table.since(table.changes) == {}


def test_what_a_slave_was_told_is_merged_into_what_it_knows() -> None:
    table = OffsetTable(ManualClock())
    table.load({("orders", "billing"): {0: 5, 1: 6}, ("clicks", "billing"): {0: 1}})
    table.merge({("orders", "billing"): {0: 9, 1: 7}, ("orders", "new"): {0: 2}})
    assert table.dirty and table.tables() == {
        ("orders", "billing"): {0: 9, 1: 7},
        ("orders", "new"): {0: 2},
        ("clicks", "billing"): {0: 1},
    }
