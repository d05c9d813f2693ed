"""Ordered tasks of which most fail: their queues take turns, and no try is counted."""

from __future__ import annotations

from typing import Any

import pytest

from rmq_ray.client.messages.listener import (
    ROLLBACK,
    SUCCESS,
    SUSPEND_CURRENT_QUEUE_A_MOMENT,
)
from rmq_ray.errors import SendUnknown
from rmq_ray.serve import result_store
from rmq_ray.serve.task_codec import Status
from tests.support.clients.task_rig import BREAKER, PAUSE_MS, TaskMessage, TaskRig


def opened(rig: TaskRig) -> None:
    for number in range(100, 100 + BREAKER["window"]):
        rig.hand_out(TaskMessage("calls", number))
    assert rig.ordered.pauses


def fill_window(rig: TaskRig) -> None:
    for number in range(BREAKER["window"]):
        assert rig.hand_out(TaskMessage("calls", number))[0] is SUCCESS


@pytest.mark.parametrize("settings", [{}, {"result_ttl_s": 0}])
def test_no_try_counts_while_it_is_open_and_each_queue_waits_for_its_turn(
    settings: dict[str, int],
) -> None:
    rig = TaskRig(max_retries=0, **settings)
    opened(rig)
    assert len(rig.dead) == BREAKER["window"] - 1
    first, other = TaskMessage("calls", 1), TaskMessage("calls", 2, queue_id=1)
    for _ in range(40):
        for message in (first, other):
            answer, ctx = rig.hand_out(message)
            assert answer is ROLLBACK and not ctx.auto_commit
            assert ctx.suspend_ms == 1_000, "it looks whether it is over"
        rig.clock.advance_ms(PAUSE_MS)
        runs = rig.runs
        answer, tried = rig.hand_out(first)
        assert answer is ROLLBACK and not tried.auto_commit and rig.runs == runs + 1
        assert tried.suspend_ms == 7_000, "behind the other queue's turn"
        first, other = other, first
    assert len(rig.dead) == BREAKER["window"] - 1
    assert rig.statuses(first) == [Status.STARTED, Status.PENDING] * 20
    rig.gone = False
    rig.clock.advance_ms(PAUSE_MS)
    assert [rig.hand_out(message)[0] for message in (first, other)] == [SUCCESS] * 2
    assert rig.tries(first) == rig.tries(other) == 1 and not rig.ordered.pauses


def test_a_queue_comes_a_moment_behind_the_turn() -> None:
    rig = TaskRig()
    opened(rig)
    rig.clock.advance_ms(PAUSE_MS - 300)
    assert rig.hand_out(TaskMessage("calls", 1))[1].suspend_ms == 310


def test_tries_before_and_after_an_outage_are_counted_together() -> None:
    rig = TaskRig(max_retries=2)
    poison = TaskMessage("poison")
    assert rig.hand_out(poison)[0] is SUSPEND_CURRENT_QUEUE_A_MOMENT
    opened(rig)
    for _ in range(50):
        rig.clock.advance_ms(PAUSE_MS)
        assert rig.hand_out(poison)[0] is ROLLBACK
    rig.gone = False
    rig.clock.advance_ms(PAUSE_MS)
    fill_window(rig)
    poison.reconsume_times = 1
    assert rig.hand_out(poison)[0] is SUSPEND_CURRENT_QUEUE_A_MOMENT
    assert rig.tries(poison) == 2
    fill_window(rig)
    assert rig.hand_out(poison)[0] is SUCCESS
    assert rig.dead[-1] == (poison.keys[0], "ValueError: for its own sake")
    assert rig.tries(poison) == 3


def test_another_replica_finds_that_the_try_did_not_count() -> None:
    rig, other = TaskRig(max_retries=0), TaskRig(max_retries=0)
    opened(rig)
    task = TaskMessage("calls", 1)
    for _ in range(3):
        rig.clock.advance_ms(PAUSE_MS)
        assert rig.hand_out(task)[0] is ROLLBACK
    other.told, other.gone = rig.told, False
    assert other.hand_out(task)[0] is SUCCESS
    assert other.tries(task) == 1 and len(rig.dead) == BREAKER["window"] - 1


def test_what_was_told_and_is_not_found_yet_counts_no_try() -> None:
    rig = TaskRig(max_retries=0)
    opened(rig)
    task = TaskMessage("calls", 1)
    for _ in range(3):
        rig.clock.advance_ms(PAUSE_MS)
        assert rig.hand_out(task)[0] is ROLLBACK
        assert rig.told.pop().status is Status.PENDING
    assert rig.tries(task) == 1 and len(rig.dead) == BREAKER["window"] - 1


def test_one_that_fails_again_behind_a_success_has_had_a_try() -> None:
    rig = TaskRig(max_retries=0)
    opened(rig)
    poison = TaskMessage("poison")
    rig.clock.advance_ms(PAUSE_MS)
    assert rig.hand_out(poison)[0] is ROLLBACK
    rig.gone = False
    rig.clock.advance_ms(PAUSE_MS)
    assert rig.hand_out(TaskMessage("calls", queue_id=1))[0] is SUCCESS
    assert rig.hand_out(poison)[0] is SUCCESS and rig.ordered.pauses
    assert rig.dead[-1] == (poison.keys[0], "ValueError: for its own sake")


def test_a_dead_letter_that_is_sent_again_has_all_its_tries() -> None:
    rig = TaskRig(max_retries=1, breaker=None)
    rig.hand_out(TaskMessage("calls", message_id="first"))
    assert rig.hand_out(TaskMessage("calls", message_id="first"))[0] is SUCCESS
    assert rig.dead == [("calls-0", "ConnectionError: the database is gone")]
    again = TaskMessage("calls", message_id="sent again")
    assert rig.hand_out(again)[0] is SUSPEND_CURRENT_QUEUE_A_MOMENT
    rig.gone = False
    assert rig.hand_out(again)[0] is SUCCESS and rig.runs == 4 and len(rig.dead) == 1
    assert rig.statuses(again)[-1] is Status.SUCCESS and rig.tries(again) == 2


@pytest.mark.parametrize("name", ["calls", "poison"])
def test_a_task_that_was_ended_is_not_begun_again_where_only_its_offset_was_lost(
    name: str,
) -> None:
    rig, other = TaskRig(breaker=None), TaskRig(breaker=None)
    rig.gone = False
    task = TaskMessage(name)
    assert rig.hand_out(task)[0] is SUCCESS
    ended, other.told = list(rig.told), rig.told
    assert other.hand_out(task)[0] is SUCCESS
    assert other.told == ended and other.runs == 0 and other.dead == []


def test_a_task_whose_workers_died_counts_those_tries_at_the_next_one() -> None:
    rig = TaskRig(max_retries=1, breaker=None)
    task, key = TaskMessage("calls", message_id="first"), ("calls-0", 0)
    for tries in (1, 2):
        rig.write(key, Status.STARTED, tries, message_id="first")
    assert rig.hand_out(task)[0] is SUCCESS and rig.runs == 0
    assert "2 workers died" in rig.dead[0][1]


def test_a_cancelled_task_and_one_that_nobody_can_run_do_not_wait() -> None:
    rig = TaskRig()
    opened(rig)
    cancelled = TaskMessage("calls", 1)
    rig.revoked.add(cancelled.keys[0])
    assert rig.hand_out(cancelled)[0] is SUCCESS
    assert rig.statuses(cancelled) == [Status.REVOKED]
    rig.clock.advance_ms(PAUSE_MS)
    assert rig.hand_out(TaskMessage("unknown"))[0] is SUCCESS
    assert rig.ordered.pauses


def test_one_that_succeeded_and_whose_result_nobody_told_of_comes_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rig = TaskRig()
    rig.gone = False
    write = rig.write

    def silent(key: Any, status: Status, *rest: Any, **more: Any) -> None:
        if status is not Status.SUCCESS:
            write(key, status, *rest, **more)

    monkeypatch.setattr(rig, "write", silent)
    monkeypatch.setattr(result_store, "STORED_S", 0)
    with pytest.raises(SendUnknown):
        rig.hand_out(TaskMessage("calls", 0))
    assert rig.runs == 1 and not rig.dead
