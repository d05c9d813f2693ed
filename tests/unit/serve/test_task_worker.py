"""Tasks of which most fail: they wait, lose no try, and one of them finds out when it is over."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from rmq_ray.client.messages.listener import SUCCESS
from rmq_ray.errors import BodyUnreadable, SendUnknown
from rmq_ray.serve.task_codec import Status
from rmq_ray.serve.task_worker import UNTRIED_MAX
from tests.support.clients.task_rig import BREAKER, PAUSE_MS, TaskMessage, TaskRig
from tests.support.waiting import eventually


def opened(rig: TaskRig, count: int = 10) -> None:
    """So many tasks, of which those failed that it takes."""
    rig.put("calls", count)
    for _ in range(BREAKER["window"]):
        rig.step()
    assert rig.tasks.pauses


def test_what_fails_while_the_breaker_is_open_is_no_try_and_what_failed_before_is_one() -> None:
    rig = TaskRig()
    opened(rig)
    assert len(rig.dead) == rig.tasks.counts["failed"] == BREAKER["window"] - 1
    for number in range(20):
        rig.clock.advance_ms(PAUSE_MS)
        rig.step()
        assert rig.runs == BREAKER["window"] + number + 1
    assert len(rig.dead) == BREAKER["window"] - 1
    assert not any(record.tries > 1 for record in rig.told)


def test_it_goes_on_by_itself_and_every_task_that_waited_is_done_at_its_first_try() -> None:
    rig = TaskRig()
    opened(rig)
    rig.gone = False
    rig.clock.advance_ms(PAUSE_MS)
    rig.step()
    assert not rig.tasks.pauses
    for _ in range(6):
        rig.step()
    assert rig.tasks.counts == {"failed": 3, "succeeded": 7}
    assert not rig.tasks._held


def test_tasks_that_fail_for_their_own_sake_keep_no_other_one() -> None:
    rig = TaskRig()
    opened(rig, BREAKER["window"])
    poison = rig.put("poison", 3)
    rig.put("calls")
    rig.gone = False
    rig.runs = 0
    for _ in range(4):
        rig.clock.advance_ms(PAUSE_MS)
        rig.step()
        if not rig.tasks.pauses:
            break
    assert rig.tasks.counts["succeeded"] == 1, "not tried before that one: what failed already"
    for _ in range(8):  # it opens again at once while the last failures are remembered
        rig.put("calls")
        rig.clock.advance_ms(PAUSE_MS)
        rig.step()
    ends = [rig.statuses(message)[-1:] for message in poison]
    assert ends == [[Status.FAILURE]] * 3
    assert {key for key, _ in rig.dead} >= {message.keys[0] for message in poison}


def test_while_it_waits_it_takes_one_task_more_a_try_up_to_a_limit() -> None:
    rig = TaskRig()
    opened(rig, BREAKER["window"])
    rig.asked.clear()
    rig.put("poison", 2 * UNTRIED_MAX)
    for _ in range(UNTRIED_MAX + 10):
        rig.clock.advance_ms(PAUSE_MS)
        rig.step()
    assert set(rig.asked) == {(1, 0.0)}, "and no wait for others"
    assert len(rig.tasks._held) == UNTRIED_MAX == len(rig.asked) + 1


def test_where_nothing_else_is_there_the_one_that_failed_is_tried_again() -> None:
    rig = TaskRig()
    opened(rig, BREAKER["window"])
    for _ in range(3):
        rig.clock.advance_ms(PAUSE_MS)
        assert rig.step().message.settled == []
    assert rig.runs == BREAKER["window"] + 3 and len(rig.tasks._held) == 1


def test_a_worker_that_stops_gives_back_what_waits_and_calls_nobody() -> None:
    rig = TaskRig()
    waiting = rig.put("calls", 5)
    for _ in range(BREAKER["window"]):
        rig.step()
    taken = rig.tasks._next()
    assert taken is not None
    runs = rig.runs
    rig.tasks._stop.set()
    assert rig.tasks._breaker is not None
    rig.tasks._breaker.close()
    rig.tasks._run(taken)
    while (held := rig.tasks._next()) is not None:
        rig.tasks._run(held)
    assert rig.runs == runs and rig.tasks.stop(0.0)
    assert [message.settled for message in waiting[3:]] == [["given back"]] * 2


def test_a_task_that_is_cancelled_while_it_waits_does_not_begin() -> None:
    rig = TaskRig()
    waiting = rig.put("calls", 4)
    for _ in range(BREAKER["window"]):
        rig.step()
    rig.revoked.add(waiting[3].keys[0])
    runs = rig.runs
    rig.step()
    assert rig.statuses(waiting[3]) == [Status.REVOKED] and rig.runs == runs
    assert waiting[3].settled == ["done"] and rig.tasks.pauses


def test_a_failure_that_cannot_be_told_is_no_dead_letter_yet() -> None:
    """Its status would be STARTED for as long as that is kept, and nobody would know."""
    rig = TaskRig(breaker=None)
    (task,) = rig.put("poison")
    rig.away = SendUnknown("no answer")
    rig.step()
    assert rig.dead == [] and task.settled == [] and rig.tasks.counts["failed"] == 0
    rig.away = None
    rig.waiting.append(task)
    rig.step()
    assert rig.dead == [(task.keys[0], "ValueError: for its own sake")]
    assert rig.statuses(task)[-1] is Status.FAILURE


class RevokingGate(threading.Semaphore):
    """A task is cancelled while it waits for another one to leave."""

    def __init__(self, rig: TaskRig, task_id: str) -> None:
        super().__init__(1)
        self._rig, self._task_id = rig, task_id

    def acquire(self, blocking: bool = True, timeout: float | None = None) -> bool:
        self._rig.revoked.add(self._task_id)
        return super().acquire(blocking, timeout)

    __enter__ = acquire


@pytest.mark.parametrize("ordered", [False, True], ids=["plain", "ordered"])
def test_a_task_that_is_cancelled_while_another_one_runs_does_not_begin(ordered: bool) -> None:
    rig = TaskRig()
    (task,) = rig.put("calls")
    rig.tasks._gate = rig.ordered._gate = RevokingGate(rig, task.keys[0])
    if ordered:
        rig.hand_out(task)
    else:
        rig.step()
    assert rig.statuses(task)[-1] is Status.REVOKED and rig.runs == 0


def test_tasks_that_nobody_can_run_are_dead_letters_also_meanwhile() -> None:
    rig = TaskRig()
    opened(rig, BREAKER["window"])
    (unknown,) = rig.put("unknown")
    rig.clock.advance_ms(PAUSE_MS)
    rig.step()
    assert rig.statuses(unknown) == [Status.FAILURE] and rig.tasks.pauses


def test_one_that_runs_too_long_while_it_is_open_waits_like_one_that_raised() -> None:
    rig = TaskRig(task_timeout_s=1.0)
    opened(rig, BREAKER["window"])
    rig.clock.advance_ms(PAUSE_MS)
    held = rig.tasks._next()
    assert held is not None
    rig.tasks._alive = 2  # no other thread takes the place of this one
    held.since_ms = rig.clock.monotonic_ms()
    rig.clock.advance_ms(500)
    rig.tasks._look_at(held, rig.clock.monotonic_ms())
    rig.clock.advance_ms(500)
    rig.tasks._look_at(held, rig.clock.monotonic_ms())
    eventually(
        lambda: (
            [record.status for record in rig.records(held.key[0])]
            == [Status.PENDING, Status.STARTED]
        )
    )
    (again,) = rig.tasks._ready
    assert again is not held and again.message is held.message and len(rig.dead) == 3
    assert not rig.tasks._claim(held), "its thread has no say any more"
    rig.tasks.stop(0.0)


def test_who_looks_after_leases_does_not_wait_for_what_became_of_one_that_ran_too_long() -> None:
    rig = TaskRig(task_timeout_s=1.0)
    rig.put("calls", 2)
    rig.clock.advance_ms(1)
    first, second = rig.tasks._next(), rig.tasks._next()
    assert first is not None and second is not None
    rig.tasks._alive = 2
    away = threading.Event()
    rig.tell = lambda *_: away.wait(20)
    first.since_ms = second.since_ms = rig.clock.monotonic_ms()
    rig.clock.advance_ms(1_000)
    for held in (first, second):
        rig.tasks._look_at(held, rig.clock.monotonic_ms())
    assert rig.tasks.stats()["hung"] == 2 and not rig.dead
    away.set()
    eventually(lambda: len(rig.dead) == 2 and not rig.tasks._held)


def test_one_that_ran_too_long_is_told_where_no_thread_can_be_started(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refuse(_thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    rig = TaskRig(task_timeout_s=1.0)
    rig.put("calls")
    rig.clock.advance_ms(1)
    held = rig.tasks._next()
    assert held is not None
    monkeypatch.setattr(threading.Thread, "start", refuse)
    held.since_ms = rig.clock.monotonic_ms()
    rig.tasks._alive = 1
    rig.clock.advance_ms(1_000)
    with pytest.raises(RuntimeError):
        rig.tasks._look_at(held, rig.clock.monotonic_ms())
    assert len(rig.dead) == 1 and not rig.tasks._held
    assert rig.tasks._alive == 1, "nobody takes its place, so it goes on when its handler returns"


def test_a_call_that_returns_behind_its_time_says_nothing_to_the_breaker() -> None:
    rig = TaskRig(task_timeout_s=1.0)
    opened(rig, BREAKER["window"])
    rig.clock.advance_ms(PAUSE_MS)
    held = rig.tasks._next()
    assert held is not None
    rig.tasks._alive = 2
    rig.gone = False

    def late() -> None:
        rig.clock.advance_ms(1_000)
        rig.tasks._look_at(held, rig.clock.monotonic_ms())

    rig.during = late
    rig.tasks._run(held)
    assert rig.tasks.pauses and rig.tasks.counts["succeeded"] == 0


def test_without_a_breaker_every_failure_counts() -> None:
    rig = TaskRig(breaker=None)
    rig.put("calls", 10)
    for _ in range(10):
        rig.step()
    assert len(rig.dead) == 10 and not rig.tasks.pauses


class Torn(TaskMessage):
    """Its body is marked as compressed and cannot be uncompressed."""

    @property
    def body(self) -> bytes:
        raise BodyUnreadable("torn is compressed, and no data")


@pytest.mark.parametrize("limits", [None, {"concurrency": 1}], ids=["", "with limits by key"])
def test_a_body_that_cannot_be_uncompressed_is_a_dead_letter(limits: Any) -> None:
    rig = TaskRig(breaker=None, key_limits=limits)
    rig.waiting.append(Torn("torn"))
    rig.put("calls")
    rig.gone = False
    rig.step()
    rig.step()
    (dead,) = rig.dead
    assert dead[0] == "torn-0" and "no data" in dead[1]
    assert rig.runs == 1


def test_so_it_is_among_ordered_ones() -> None:
    rig = TaskRig(breaker=None)
    answer, _ = rig.hand_out(Torn("torn"))
    assert answer is SUCCESS and [name for name, _ in rig.dead] == ["torn-0"]
