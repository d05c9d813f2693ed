"""Who is in sync, and what may be acknowledged."""

from __future__ import annotations

import random

import pytest

from rmq_ray.protocol.election.replication import Followers


def followers(
    copies_min: int = 2, lag_ms: int = 5_000, flush_counts: bool = False, confirmed: int = 0
) -> Followers:
    found = Followers(copies_min, lag_ms, flush_counts=flush_counts)
    found.begin(confirmed)
    return found


def test_a_slave_is_in_sync_when_it_has_what_was_confirmed() -> None:
    table = followers(confirmed=1_000)
    table.joined(1, "s1", 0, 0)
    assert not table.reported(1, 999, 0, 1_500, 1) and not table.enough
    assert table.reported(1, 1_000, 0, 1_500, 2) and table.enough and table.in_sync == (1,)
    assert table.confirmed == 1_000
    assert table.reported(1, 1_500, 0, 1_500, 3) and table.confirmed == 1_500


def test_every_member_of_the_set_must_have_it() -> None:
    table = followers()
    for number in (1, 2):
        table.joined(number, f"s{number}", 0, 0)
        table.reported(number, 0, 0, 100, 0)
    table.reported(1, 100, 100, 100, 1)
    assert table.confirmed == 0
    table.reported(2, 60, 60, 100, 2)
    assert table.confirmed == 60


def test_where_the_disk_counts_written_is_not_enough() -> None:
    table = followers(flush_counts=True)
    table.joined(1, "s1", 0, 0)
    table.reported(1, 100, 40, 100, 1)
    assert table.confirmed == 40


def test_too_few_copies_confirm_nothing_however_far_they_are() -> None:
    table = followers(copies_min=3)
    table.joined(1, "s1", 0, 0)
    table.reported(1, 500, 500, 500, 1)
    assert not table.enough and table.confirmed == 0
    table.joined(2, "s2", 0, 0)
    assert table.reported(2, 300, 0, 500, 2) and table.enough and table.confirmed == 300


def test_a_slave_that_stays_behind_is_put_out_and_the_others_go_on() -> None:
    table = followers(lag_ms=5_000)
    for number in (1, 2):
        table.joined(number, f"s{number}", 0, 0)
        table.reported(number, 10, 0, 10, 0)
    table.reported(1, 50, 0, 50, 100)
    assert not table.expire(50, 5_000) and table.confirmed == 10
    assert (
        table.expire(50, 5_001) and table.in_sync == (1,) and table.confirmed == 50 and table.enough
    )
    assert table.reported(2, 50, 0, 50, 6_000) and table.in_sync == (1, 2), (
        "back when it has everything again"
    )


def test_a_slave_that_keeps_up_with_a_growing_log_is_not_put_out() -> None:
    table = followers(lag_ms=1_000)
    table.joined(1, "s1", 0, 0)
    table.reported(1, 0, 0, 0, 0)
    for turn in range(1, 100):  # always one report behind
        table.reported(1, 100 * (turn - 1), 0, 100 * turn, 300 * turn)
        assert not table.expire(100 * turn, 300 * turn), turn


def test_when_the_only_slave_leaves_nothing_more_is_confirmed() -> None:
    table = followers()
    table.joined(1, "s1", 0, 0)
    table.reported(1, 10, 0, 10, 0)
    assert table.left(1) and not table.enough and table.confirmed == 10
    assert not table.left(1) and not table.reported(1, 99, 0, 99, 1)


def test_lag_is_told_in_bytes_and_in_ms_since_it_had_everything() -> None:
    table = followers()
    follower = table.joined(1, "s1", 0, 0)
    table.reported(1, 100, 0, 100, 1_000)
    assert (
        table.lag(follower, 100, 9_000) == table.lag(follower, 50, 1_000)
        and table.lag(follower, 100, 9_000).ms == 0
    )
    assert (table.lag(follower, 160, 3_500).bytes, table.lag(follower, 160, 3_500).ms) == (
        60,
        2_500,
    )


def test_a_master_that_is_content_with_one_copy_goes_on_alone() -> None:
    table = followers(copies_min=1)
    assert table.alone and table.enough
    table.joined(1, "s1", 0, 0)
    assert not table.reported(1, 0, 0, 700, 1) and table.alone, "it copies what there is"
    assert not table.in_sync and table.confirmed == 700
    assert table.reported(1, 700, 0, 900, 2) and not table.alone, "it keeps up: it is awaited"
    assert table.confirmed == 900 and not table.in_sync, "900 may have been acknowledged alone"
    assert not table.reported(1, 899, 0, 1_000, 3) and table.confirmed == 900
    assert table.reported(1, 950, 0, 1_000, 4) and table.in_sync == (1,)
    assert table.confirmed == 950, "from here on as any slave in sync"
    assert table.left(1) and table.alone


def test_who_is_awaited_and_does_not_come_holds_up_nobody_for_long() -> None:
    table = followers(copies_min=1, lag_ms=1_000)
    table.joined(1, "s1", 0, 0)
    table.reported(1, 0, 0, 100, 0)
    table.reported(1, 100, 0, 200, 500)
    assert not table.alone and not table.expire(300, 900)
    assert table.expire(300, 1_101) and table.alone
    table.reported(1, 300, 0, 400, 2_000)
    table.reported(1, 400, 0, 500, 2_100)
    assert not table.alone and table.left(1) and table.alone, "nor one that goes"


@pytest.mark.parametrize("seed", range(30))
def test_confirmed_never_falls_and_never_passes_a_member_of_the_set(seed: int) -> None:
    chance = random.Random(seed)
    table = followers(
        copies_min=chance.choice((1, 2, 3)), lag_ms=50, flush_counts=chance.random() < 0.5
    )
    end, now, held, acknowledged = 0, 0, dict.fromkeys((1, 2, 3), 0), 0
    for _ in range(400):
        now += chance.randrange(20)
        end += chance.randrange(50)
        number, before = chance.choice((1, 2, 3)), table.confirmed
        action = chance.random()
        if action < 0.1:
            table.joined(number, "s", held[number], now)
        elif action < 0.15:
            table.left(number)
        elif action < 0.25:
            table.expire(end, now)
        else:
            held[number] = chance.randrange(held[number], end + 1)
            table.reported(number, held[number], held[number], end, now)
        assert before <= table.confirmed <= end
        acknowledged = max(acknowledged, end if table.alone else table.confirmed)
        assert all(held[member] >= acknowledged for member in table.in_sync)
        assert table.confirmed == before or table.enough
