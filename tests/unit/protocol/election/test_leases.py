"""Under a controller: whom a master waits for, whose promise it needs, what it proposes, and what
is confirmed.
"""

from __future__ import annotations

import random
from math import inf

import pytest

from rmq_ray.protocol.election.replication import (
    ASK_AGAIN_MS,
    JOIN_MS,
    LEASE_MARGIN_MS,
    LEASE_MS,
    SILENT_MS,
    Followers,
)

HELD_MS = LEASE_MS - LEASE_MARGIN_MS


def master(
    approved: tuple[int, ...] = (),
    found: int = 0,
    copies_min: int = 2,
    waits: bool = True,
    lag_ms: int = 5_000,
) -> Followers:
    table = Followers(copies_min, lag_ms, flush_counts=False, waits=waits)
    table.lead(found, approved, 0.0)
    return table


def joins(table: Followers, broker_id: int, written: int, end: int, now_ms: float = 0.0) -> bool:
    """FOLLOW_LOG answered, and the first poll."""
    table.joined(broker_id, f"s{broker_id}", 0, now_ms)
    table.answered(broker_id, now_ms)
    return table.reported(broker_id, written, written, end, now_ms)


def test_without_a_controller_there_is_no_lease_to_have() -> None:
    table = Followers(2, 5_000, flush_counts=False)
    table.begin(100)
    assert table.lease_until_ms == inf and table.proposal(0) is None and table.covered(77) == 77


def test_without_a_controller_what_was_found_is_shown_when_enough_copies_have_it() -> None:
    table = Followers(3, 5_000, flush_counts=False)
    table.begin(100)
    assert not table.has_begun and table.confirmed == 0
    joins(table, 1, 100, 100)
    joins(table, 2, 99, 100)
    assert not table.has_begun and table.in_sync == (1,), "one lacks a byte"
    joins(table, 2, 100, 100)
    assert table.has_begun and table.confirmed == 100
    table.left(1)
    table.left(2)
    assert table.has_begun, "what was confirmed stays so"


@pytest.mark.parametrize(("copies_min", "waits"), [(1, True), (2, False)])
def test_what_was_found_is_shown_at_once_where_nobody_is_waited_for(
    copies_min: int, waits: bool
) -> None:
    table = Followers(copies_min, 5_000, flush_counts=False, waits=waits)
    table.begin(100)
    assert table.has_begun and table.confirmed == 100


def test_a_master_alone_in_its_set_leads_and_shows_what_it_has() -> None:
    table = master(found=500)
    assert (
        table.lease_until_ms == inf
        and table.confirmed == 500
        and table.has_begun
        and not table.enough
    )


def test_a_slave_that_lacks_what_was_acknowledged_earlier_is_not_proposed() -> None:
    table = master((1,), found=1_000)
    assert table.confirmed == 0, "nobody has reported yet"
    joins(table, 2, 500, 1_000, 10)
    assert table.in_sync == () and table.proposal(20) is None, (
        "replica 2 was outside the set: it may lack acknowledged messages"
    )
    joins(table, 1, 700, 1_000, 30)
    assert table.in_sync == (1,), "a member may be behind: it is waited for"
    table.reported(2, 1_000, 1_000, 1_000, 40)
    assert table.in_sync == (1, 2)


def test_the_lease_counts_from_the_answer_that_the_poll_followed_not_from_the_poll() -> None:
    table = master((1,))
    assert table.lease_until_ms == -inf, "an approved slave that never polled promised nothing"
    table.joined(1, "s1", 0, 10)
    table.answered(1, 12)
    assert table.lease_until_ms == -inf
    table.reported(1, 0, 0, 0, 400)
    assert table.lease_until_ms == 12 + HELD_MS
    table.reported(1, 0, 0, 0, 450)
    assert table.lease_until_ms == 12 + HELD_MS, (
        "a second poll after the same answer renews nothing"
    )
    table.answered(1, 500)
    table.reported(1, 0, 0, 0, 900)
    assert table.lease_until_ms == 500 + HELD_MS


def test_the_lease_is_that_of_the_slave_that_was_silent_longest() -> None:
    table = master((1, 2))
    joins(table, 1, 0, 0, 100)
    assert table.lease_until_ms == -inf
    joins(table, 2, 0, 0, 300)
    assert table.lease_until_ms == 100 + HELD_MS


def test_a_slave_that_connects_anew_keeps_its_promise_another_one_under_its_id_gave_none() -> None:
    table = master((1,))
    joins(table, 1, 0, 0, 100)
    table.left(1)
    table.joined(1, "s1", 0, 200)
    assert table.lease_until_ms == 100 + HELD_MS
    table.joined(1, "elsewhere", 0, 250)
    assert table.lease_until_ms == -inf


def test_who_was_proposed_may_be_elected_before_the_approval_is_known_here() -> None:
    table = master()
    joins(table, 1, 0, 0, 10)
    assert table.lease_until_ms == inf
    assert table.proposal(20) == (1,)
    assert table.lease_until_ms == 10 + HELD_MS
    table.left(1)
    assert (
        table.lease_until_ms == 10 + HELD_MS
        and table.proposal(2_000) == ()
        and table.lease_until_ms == 10 + HELD_MS
    )
    table.approve(())
    assert table.lease_until_ms == inf and table.proposal(2_001) is None


def test_a_member_that_left_is_waited_for_until_the_controller_has_taken_it_out() -> None:
    table = master((1, 2), copies_min=2)
    for broker_id in (1, 2):
        joins(table, broker_id, 0, 0)
    assert table.left(2) and table.proposal(1) == (1,)
    assert not table.reported(1, 100, 100, 100, 2) and table.confirmed == 0
    assert table.approve((1,)) and table.confirmed == 100


def test_a_proposal_is_repeated_only_when_it_changes_or_stays_unanswered() -> None:
    table = master()
    joins(table, 1, 0, 0)
    assert (
        table.proposal(0) == (1,)
        and table.proposal(1) is None
        and table.proposal(ASK_AGAIN_MS) == (1,)
    )
    joins(table, 2, 0, 0)
    assert table.proposal(ASK_AGAIN_MS + 1) == (1, 2)
    table.approve((1, 2))
    assert table.proposal(ASK_AGAIN_MS + 2) is None


def test_an_approved_slave_that_never_joins_is_proposed_for_removal_after_a_while() -> None:
    table = master((1, 2))
    joins(table, 1, 0, 0)
    assert table.proposal(JOIN_MS - 1) is None
    assert table.proposal(JOIN_MS) == (1,)


def test_what_a_new_master_found_is_shown_when_all_who_can_be_elected_have_it() -> None:
    table = master((1, 2), found=1_000, copies_min=3)
    assert table.confirmed == 0 and not table.has_begun
    joins(table, 1, 1_000, 1_000)
    assert not table.has_begun
    joins(table, 2, 400, 1_000)
    assert table.confirmed == 400 and not table.has_begun
    assert table.approve((1,)) is False and not table.has_begun, "2 is in sync all the same"
    assert table.left(2) and table.has_begun and table.confirmed == 1_000, (
        "copies_min speaks of what is new"
    )
    table.reported(1, 1_500, 1_500, 1_500, 5)
    assert table.confirmed == 1_000, "two copies are not three"


def test_a_copy_that_is_only_proposed_does_not_make_up_the_number() -> None:
    table = master()
    joins(table, 1, 0, 0)
    assert not table.reported(1, 100, 100, 100, 1) and table.confirmed == 0
    table.proposal(1)
    assert table.approve((1,)) and table.confirmed == 100


def test_an_asynchronous_master_is_not_held_up_and_proposes_who_is_on_time() -> None:
    table = master((1,), found=900, waits=False, lag_ms=1_000)
    assert table.has_begun
    table.joined(1, "s1", 0, 0)
    table.answered(1, 0)
    table.reported(1, 100, 100, 900, 10)
    assert table.in_sync == (), "it has never had everything"
    assert table.proposal(JOIN_MS) == ()
    table.reported(1, 900, 900, 950, 1_300)
    assert table.in_sync == () and table.reported(1, 950, 950, 960, 1_400) and table.in_sync == (1,)
    assert table.proposal(1_500) == (1,)


def test_a_slave_that_lags_leaves_and_does_not_come_back_before_it_has_caught_up() -> None:
    table = master((1,), lag_ms=1_000)
    joins(table, 1, 0, 0)
    table.reported(1, 0, 0, 500, 100)
    assert table.expire(500, 1_200) and table.proposal(1_300) == ()
    table.reported(1, 100, 100, 600, 1_400)
    assert table.in_sync == (), "although nothing beyond it is confirmed"
    table.reported(1, 600, 600, 600, 1_500)
    assert table.in_sync == (1,)


def test_a_slave_that_hangs_leaves_although_nothing_is_written_that_it_could_lack() -> None:
    table = master((1,))
    joins(table, 1, 0, 0, 100)
    assert not table.expire(0, 100 + SILENT_MS) and table.expire(0, 101 + SILENT_MS)
    assert table.proposal(101 + SILENT_MS) == () and table.lease_until_ms > 101 + SILENT_MS, (
        "there is time left to take it out"
    )
    table.approve(())
    assert table.lease_until_ms == inf
    table.reported(1, 0, 0, 0, 5_000)
    assert table.in_sync == (1,) and table.proposal(5_000) == (1,)


def test_progress_is_noted_as_far_as_every_electable_copy_has_the_log() -> None:
    table = master((1,), waits=False)
    assert table.covered(500) == 0
    joins(table, 1, 300, 500)
    assert table.covered(500) == 300 and table.covered(200) == 200
    table.left(1)
    assert table.covered(500) == 300
    table.approve(())
    assert table.covered(500) == 500


@pytest.mark.parametrize("seed", range(120))
def test_nothing_confirmed_is_ever_missing_in_a_copy_that_can_be_elected(seed: int) -> None:
    """The controller answers late, in order, or refuses; slaves come, lag and go. Electable: what
    it has approved so far, told or not.
    """
    chance = random.Random(seed)
    copies_min = chance.choice((1, 2, 3))
    table = master((1, 2), copies_min=copies_min, lag_ms=50)
    held, connected, end, now_ms = {1: 0, 2: 0, 3: 0}, {1: False, 2: False, 3: False}, 0, 0.0
    electable, queue, answers, acknowledged = {1, 2}, [], [], 0
    for _ in range(400):
        now_ms += chance.randrange(1, 30)
        slave = chance.randrange(1, 4)
        action = chance.randrange(9)
        if action == 0:
            end += chance.randrange(1, 100)
        elif action == 1 and not connected[slave]:
            connected[slave] = True
            table.joined(slave, f"s{slave}", 0, now_ms)
            table.answered(slave, now_ms)
        elif action == 2 and connected[slave] and chance.random() < 0.3:
            connected[slave] = False
            table.left(slave)
        elif action in (3, 4) and connected[slave]:
            held[slave] = chance.randrange(held[slave], end + 1) if chance.random() < 0.7 else end
            table.reported(slave, held[slave], held[slave], end, now_ms)
            table.answered(slave, now_ms)
        elif action == 5:
            table.expire(end, now_ms)
        elif action == 6 and queue:
            wanted = queue.pop(0)
            if chance.random() < 0.8:
                queue.clear()  # proposals of an older version are not taken
                electable = set(wanted)
                answers.append(wanted)
        elif action == 7 and answers:
            latest = answers[-1]
            answers.clear()
            table.approve(latest)
            queue.clear()
        proposed = (
            table.proposal(now_ms) if not answers else None
        )  # the shell adds the version that it gave last: others are refused
        if proposed is not None:
            queue.append(proposed)
        assert copies_min == 1 or not table.alone
        acknowledged = max(acknowledged, end if table.alone else table.confirmed)
        assert all(held[number] >= acknowledged for number in electable), (
            "whoever is elected has it"
        )
        assert table.confirmed <= end
