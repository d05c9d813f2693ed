"""Tasks whose keys have limits: they wait without a thread, keep their leases and lose no try, and
those of other keys go on.
"""

from __future__ import annotations

import threading
from typing import Any, cast

import pytest

from rmq_ray.client.consumer.key_limits import KeyLimits
from rmq_ray.clock import ManualClock
from rmq_ray.errors import RequestTimeout
from rmq_ray.serve.task_codec import Status
from rmq_ray.serve.task_limiter import WAITING_MAX, TaskLimiter
from tests.support.clients.task_rig import BREAKER, PAUSE_MS, TaskMessage, TaskRig
from tests.support.waiting import eventually


def limited(breaker: Any = None, adapter: Any = None, **limits: Any) -> TaskRig:
    rig = TaskRig(key_limits=limits, breaker=breaker, **(adapter or {}))
    rig.gone = False
    return rig


def waits(rig: TaskRig) -> int:
    return int(rig.tasks.stats()["waiting_for_keys"])


def test_a_task_whose_handler_is_busy_waits_and_those_of_other_handlers_go_on() -> None:
    rig = limited(concurrency=1)
    tasks = rig.put("calls", 3) + rig.put("poison")
    seen = list[Any]()

    def others() -> None:
        rig.step()
        held = [held.message.number for held in rig.tasks._held if held.message.name == "calls"]
        seen.extend((list(rig.stepped), waits(rig), sorted(held)))

    rig.during = others
    rig.step()
    assert seen == [["calls-0", "poison-0"], 2, [0, 1, 2]], "those that wait are extended, too"
    rig.step()
    rig.step()
    assert rig.stepped[2:] == ["calls-1", "calls-2"] and waits(rig) == 0
    assert [task.settled for task in tasks[:3]] == [["done"]] * 3
    assert {record.tries for record in rig.told} == {1} and not rig.tasks._held


def test_a_property_may_be_the_key_and_what_has_none_is_not_limited() -> None:
    rig = limited(concurrency=1, by="tenant")
    rig.put("calls", 2, tenant="t1")
    rig.put("poison", tenant="t2")
    rig.put("unknown", 2)

    def others() -> None:
        for _ in range(3):
            rig.step()

    rig.during = others
    rig.step()
    assert rig.stepped == ["calls-0", "poison-0", "unknown-0", "unknown-1"]
    rig.step()
    assert rig.stepped[4:] == ["calls-1"]


def test_with_a_rate_the_next_one_begins_at_its_time_and_no_thread_sleeps_longer() -> None:
    rig = limited(rate=2)
    rig.put("calls", 3)
    rig.put("poison")
    for _ in range(2):
        rig.step()
    assert rig.stepped == ["calls-0", "poison-0"] and rig.clock.monotonic_ms() == 0
    for number in (1, 2):
        rig.step()
        assert rig.stepped[-1] == f"calls-{number}"
        assert rig.clock.monotonic_ms() == pytest.approx(500 * number, abs=1)
    assert max(wait for _, wait in rig.asked[2:]) == pytest.approx(0.5, abs=0.001)


def test_a_handler_that_fails_frees_its_key_and_the_retry_is_a_call_as_any_other() -> None:
    rig = limited(concurrency=1)
    rig.put("poison", 2)
    rig.step()
    rig.step()
    assert len(rig.dead) == 2 and waits(rig) == 0


def test_one_that_runs_too_long_keeps_its_key_no_longer() -> None:
    rig = limited(adapter={"task_timeout_s": 1.0}, concurrency=1)
    rig.put("calls", 2)
    rig.put("poison")
    rig.clock.advance_ms(1)
    first = rig.tasks._next()
    assert first is not None

    def late() -> None:
        rig.step()
        assert waits(rig) == 1
        rig.tasks._alive = 2  # no other thread takes the place of this one
        rig.clock.advance_ms(1_000)
        rig.tasks._look_at(first, rig.clock.monotonic_ms())
        assert waits(rig) == 0
        rig.step()

    rig.during = late
    rig.tasks._run(first)
    assert rig.stepped == ["poison-0", "calls-1"]
    message = cast(TaskMessage, first.message)
    eventually(lambda: rig.statuses(message) == [Status.FAILURE])


def test_a_busy_key_has_so_many_tasks_wait_and_then_no_more_are_taken() -> None:
    rig = limited(concurrency=1)
    rig.put("calls", 2 * WAITING_MAX)
    second = threading.Thread(target=rig.step)

    def full() -> None:
        second.start()
        eventually(lambda: waits(rig) == WAITING_MAX and not rig.tasks._taking)
        assert len(rig.waiting) == WAITING_MAX - 1

    rig.during = full
    rig.step()
    second.join(60)
    assert rig.stepped == ["calls-0", "calls-1"]


def test_a_worker_that_stops_gives_back_at_once_what_waits_for_its_key() -> None:
    rig = limited(concurrency=1)
    running, *waiting = rig.put("calls", 3)
    rig.put("poison")
    stopped = list[bool]()
    stopping = threading.Thread(target=lambda: stopped.append(rig.tasks.stop(60.0)))

    def stops() -> None:
        rig.step()
        stopping.start()
        eventually(lambda: [task.settled for task in waiting] == [["given back"]] * 2)
        assert running.settled == []

    rig.during = stops
    rig.step()
    assert rig.tasks._next() is None
    stopping.join(60)
    assert stopped == [True] and running.settled == ["done"] and rig.runs == 2


def test_a_worker_that_stops_waits_once_for_a_broker_that_is_away(
    caplog: pytest.LogCaptureFixture,
) -> None:
    rig = limited(rate=0.01)
    first, *waiting = rig.put("calls", 4)
    rig.step()
    rig.tasks._held.update(found := rig.tasks._take(3, 0.0))
    rig.tasks._ready.extend(found)
    assert rig.tasks._begin_first() is None and waits(rig) == 3
    for task in waiting:
        task.away = RequestTimeout("no answer")
    assert rig.tasks.stop(0.0)
    assert first.settled == ["done"] and [task.settled for task in waiting] == [[], [], []]
    (said,) = caplog.messages
    assert said == "some of 3 tasks come again when their leases end: no answer"


def test_what_is_taken_while_it_stops_does_not_wait_either() -> None:
    rig = limited(rate=0.01)
    first, late = rig.put("calls", 2)
    rig.step()
    rig.tasks._held.update(found := rig.tasks._take(1, 0.0))
    rig.tasks._ready.extend(found)
    rig.tasks._stop.set()
    assert rig.tasks._next() is None
    assert (first.settled, late.settled) == (["done"], ["given back"])


def test_a_task_that_is_cancelled_while_it_waits_does_not_wait_for_its_turn() -> None:
    rig = limited(concurrency=1)
    _, cancelled, late, _ = rig.put("calls", 4)
    rig.put("poison")

    def cancels() -> None:
        rig.revoked.add(late.keys[0])  # before it was taken
        rig.step()
        rig.revoked.add(cancelled.keys[0])
        rig.tasks.revoke(cancelled.keys[0])
        rig.step()
        rig.step()

    rig.during = cancels
    rig.step()
    assert rig.stepped == ["calls-0", "calls-2", "calls-1", "poison-0"]
    assert rig.statuses(cancelled) == rig.statuses(late) == [Status.REVOKED]
    rig.step()
    assert rig.stepped[4:] == ["calls-3"] and waits(rig) == 0


def test_what_waits_for_its_key_takes_no_turn_behind_an_open_breaker_and_loses_no_try() -> None:
    rig = limited(breaker=BREAKER, concurrency=1)
    rig.gone = True
    rig.put("calls", 10)
    rig.put("poison")
    for _ in range(BREAKER["window"]):
        rig.step()
    assert rig.tasks.pauses and len(rig.dead) == BREAKER["window"] - 1

    def others() -> None:
        rig.clock.advance_ms(PAUSE_MS)
        rig.step()
        assert rig.stepped[-2:] == ["calls-4", "poison-0"] and waits(rig) == 6

    rig.during = others
    rig.clock.advance_ms(PAUSE_MS)
    rig.step()
    assert rig.tasks.pauses and rig.runs == BREAKER["window"] + 2
    rig.gone = False
    while rig.tasks._held:
        rig.clock.advance_ms(PAUSE_MS)
        rig.step()
    assert rig.tasks.counts["succeeded"] == 7 and len(rig.dead) == BREAKER["window"]
    assert {record.tries for record in rig.told} == {1}


class Clocked:
    """A limiter, and what it frees."""

    def __init__(self, **limits: Any) -> None:
        self.clock = ManualClock()
        self.freed = list[str]()
        self.limiter: TaskLimiter[str] = TaskLimiter(
            KeyLimits(**limits), self.clock, self.freed.extend
        )


@pytest.mark.parametrize("rate", [3, 7, 0.3, 333.3])
def test_those_of_a_rate_are_freed_one_by_one_at_the_times_that_were_told(rate: float) -> None:
    bench = Clocked(rate=rate)
    bench.clock.advance_ms(1_764_000_000.123)
    names = [str(number) for number in range(50)]
    assert [bench.limiter.begins("a", name) for name in names] == [True] + [False] * 49
    for number in range(1, 50):
        for _ in range(2):  # a time that was rounded is looked at twice
            bench.clock.advance_ms(bench.limiter.next_s() * 1_000)
            bench.limiter.look()
            if bench.freed == names[1 : number + 1]:
                break
        assert bench.freed == names[1 : number + 1]


def test_an_end_that_is_told_twice_frees_one() -> None:
    bench = Clocked(concurrency=1)
    assert [bench.limiter.begins("a", name) for name in "xyz"] == [True, False, False]
    bench.limiter.end("x")
    bench.limiter.end("x")
    bench.limiter.end("never begun")
    assert bench.freed == ["y"] and bench.limiter.begins("a", "y") and bench.limiter.waiting == 1


def test_what_was_withdrawn_is_handed_out_by_nobody() -> None:
    bench = Clocked(concurrency=1)
    for name in "wxyz":
        bench.limiter.begins("a", name)
    assert bench.limiter.withdraw("x") and not bench.limiter.withdraw("x")
    bench.limiter.end("w")
    assert bench.freed == ["y"] and bench.limiter.withdraw_all() == ["z"]
    bench.limiter.end("y")
    assert bench.freed == ["y"] and bench.limiter.room == WAITING_MAX
