"""Ordered consumption: which message the listener gets next, and what each of its answers
leads to.
"""

from __future__ import annotations

import threading
from typing import Any

import pytest

from rmq_ray.client.messages.listener import (
    COMMIT,
    ROLLBACK,
    SUCCESS,
    SUSPEND_CURRENT_QUEUE_A_MOMENT,
    OrderlyContext,
    Reject,
)
from rmq_ray.config import ConsumerConfig
from rmq_ray.remoting.wire.codes import RequestCode, ResponseCode
from rmq_ray.remoting.wire.frame import Command
from tests.support.clients.orderly_rig import OrderlyRig

SEND_BACK, SEND, LOCK = (
    RequestCode.CONSUMER_SEND_MSG_BACK,
    RequestCode.SEND_MESSAGE_V2,
    RequestCode.LOCK_BATCH_MQ,
)


class Answers:
    """Returns (or raises) one after the other, then None. ``manual``: what the listener sets
    ``auto_commit`` to.
    """

    def __init__(self, *answers: Any, auto_commit: bool = True, suspend_ms: Any = -1) -> None:
        self._answers = list(answers)
        self._auto_commit = auto_commit
        self._suspend_ms = suspend_ms

    def __call__(self, messages: list[Any], ctx: OrderlyContext) -> Any:
        ctx.auto_commit = self._auto_commit
        ctx.suspend_ms = self._suspend_ms
        answer = self._answers.pop(0) if self._answers else None
        if isinstance(answer, BaseException):
            raise answer
        return answer


def test_messages_come_one_after_the_other_and_each_moves_the_offset() -> None:
    offsets: list[int | None] = []
    rig = OrderlyRig()
    work = rig.take_locked()
    rig.answer = lambda _messages, _ctx: offsets.append(rig.offset(work.queue))
    rig.pulled(work, 0, 1, 2)
    assert rig.work_off() == 1 and rig.calls == [[0], [1], [2]]
    assert offsets == [None, 1, 2] and rig.offset(work.queue) == 3
    assert work.counters.consumed_ok == 3 and work.process.count == 0


def test_a_call_gets_up_to_batch_size_messages() -> None:
    rig = OrderlyRig(batch_size=3)
    work = rig.take_locked()
    rig.pulled(work, *range(7))
    rig.work_off()
    assert rig.calls == [[0, 1, 2], [3, 4, 5], [6]]


def test_while_a_queue_is_worked_on_what_comes_later_waits_its_turn() -> None:
    rig = OrderlyRig()
    work = rig.take_locked()
    rig.answer = lambda messages, _ctx: (
        rig.pulled(work, 5, 6) if messages[0].queue_offset == 0 else None
    )
    rig.pulled(work, 0)
    assert work.lease is not None and work.lease.busy
    assert rig.work_off() == 1, "one turn of one thread takes them all"
    assert rig.calls == [[0], [5], [6]] and not work.lease.busy


@pytest.mark.seed("S4-064")
def test_what_is_in_work_is_apart_from_what_waits_and_not_handed_out_twice() -> None:
    rig = OrderlyRig(Answers(SUCCESS, SUCCESS, COMMIT, auto_commit=False))
    work = rig.take_locked()
    seen: list[list[int]] = []
    answer = rig.answer
    lease = work.lease
    assert lease is not None
    rig.answer = lambda messages, ctx: (
        seen.append([batch.first for batch in lease.in_work]),
        answer(messages, ctx),
    )[1]
    rig.pulled(work, 0, 1, 2, 3)
    rig.work_off()
    assert rig.calls == [[0], [1], [2], [3]]
    assert seen == [[0], [0, 1], [0, 1, 2], [3]]
    assert rig.offset(work.queue) == 3, "the last one is done, but not committed"


@pytest.mark.seed("S4-047")
@pytest.mark.parametrize(
    "failure", [SUSPEND_CURRENT_QUEUE_A_MOMENT, ValueError("no"), SystemExit(), "nonsense"]
)
def test_a_failure_stops_the_queue_for_a_second_and_the_same_message_comes_again(
    failure: object,
) -> None:
    rig = OrderlyRig(Answers(failure))
    assert ConsumerConfig("g").suspend_queue_ms == 1_000
    work = rig.take_locked()
    rig.pulled(work, 0, 1)
    rig.work_off()
    assert rig.calls == [[0]] and rig.offset(work.queue) is None
    assert rig.later(999) == 0
    assert rig.later(1) == 1
    assert rig.calls == [[0], [0], [1]] and rig.retries == [[0], [1], [0]]
    assert (work.counters.consumed_ok, work.counters.consumed_failed) == (2, 1)
    assert rig.orderly.listener_faults == (0 if failure is SUSPEND_CURRENT_QUEUE_A_MOMENT else 1)


def test_messages_that_arrive_during_the_pause_do_not_end_it() -> None:
    rig = OrderlyRig(Answers(SUSPEND_CURRENT_QUEUE_A_MOMENT))
    work = rig.take_locked()
    rig.pulled(work, 0)
    rig.work_off()
    rig.pulled(work, 1)
    assert rig.work_off() == 0
    rig.later(1_000)
    assert rig.calls == [[0], [0], [1]]


@pytest.mark.parametrize(
    ("asked", "pause_ms"),
    [(1, 10), (500, 500), (99_999, 30_000), ("x", 1_000), (float("nan"), 1_000), (0, 10)],
)
def test_the_listener_chooses_the_pause_within_bounds(asked: Any, pause_ms: int) -> None:
    rig = OrderlyRig(
        Answers(SUSPEND_CURRENT_QUEUE_A_MOMENT, suspend_ms=asked), lock_trusted_ms=50_000
    )
    rig.pulled(rig.take_locked(), 0)
    rig.work_off()
    assert rig.later(pause_ms - 1) == 0
    assert rig.later(1) == 1 and rig.calls == [[0], [0]]


def test_another_queue_goes_on_while_one_pauses() -> None:
    rig = OrderlyRig(Answers(SUSPEND_CURRENT_QUEUE_A_MOMENT))
    one, two = rig.take_locked(queue_id=0), rig.take_locked(queue_id=1)
    rig.pulled(one, 0)
    rig.work_off()
    rig.pulled(two, 7)
    rig.work_off()
    assert rig.calls == [[0], [7]] and rig.offset(two.queue) == 8


# --- how often ------------------------------------------------------------------------------------


def test_by_default_a_message_is_tried_without_end() -> None:
    rig = OrderlyRig(Answers(*[ValueError()] * 40))
    work = rig.take_locked()
    rig.pulled(work, 0)
    rig.work_off()
    for _ in range(39):
        assert rig.later(1_000) == 1
        work.lease.refreshed(rig.clock.monotonic_ms())  # type: ignore[union-attr]
    assert (
        rig.retries[-1] == [39]
        and rig.client.requests(SEND) == rig.client.requests(SEND_BACK) == []
    )


def dead_letters(rig: OrderlyRig) -> list[dict[str, str]]:
    return [command.fields or {} for command in rig.client.requests(SEND)]


def test_after_the_allowed_retries_it_becomes_a_dead_letter_and_the_queue_goes_on() -> None:
    rig = OrderlyRig(Answers(*[ValueError()] * 3), max_reconsume_times=2)
    rig.client.add_topic("%RETRY%g", 1)
    work = rig.take_locked()
    rig.pulled(work, 0, 1)
    rig.work_off()
    rig.later(1_000)
    rig.later(1_000)
    assert rig.calls == [[0], [0], [0], [1]], "1 + 2 deliveries"
    (sent,) = dead_letters(rig)
    assert (sent["b"], sent["j"], sent["l"]) == ("%RETRY%g", "3", "2"), (
        "the broker makes a dead letter of it: failed 3 times, 2 allowed"
    )
    assert rig.offset(work.queue) == 2 and work.counters.sent_back == 1


def test_without_a_route_to_the_retry_topic_the_broker_of_the_message_is_asked() -> None:
    rig = OrderlyRig(Answers(Reject))
    work = rig.take_locked()
    rig.pulled(work, 0)
    rig.work_off()
    (sent,) = rig.client.requests(SEND_BACK)
    assert (sent.fields or {})["delayLevel"] == "-1" and rig.offset(work.queue) == 1


def test_a_dead_letter_that_nobody_takes_holds_the_queue() -> None:
    rig = OrderlyRig(Answers(Reject, Reject))
    rig.client.answer(
        SEND_BACK, lambda command, _address: command.answer(ResponseCode.SYSTEM_ERROR)
    )
    work = rig.take_locked()
    rig.pulled(work, 0, 1)
    rig.work_off()
    assert rig.calls == [[0]] and rig.offset(work.queue) is None
    rig.client.answer(SEND_BACK, lambda command, _address: command.answer())
    rig.later(1_000)
    assert rig.calls == [[0], [0], [1]] and rig.offset(work.queue) == 2


def test_of_a_batch_only_what_is_not_dead_comes_again() -> None:
    refused = {2}

    def back(command: Command, _address: Any) -> Command:
        offset = (int((command.fields or {})["offset"]) - 1_000) // 100
        return command.answer(ResponseCode.SYSTEM_ERROR if offset in refused else 0)

    rig = OrderlyRig(Answers(Reject), batch_size=3)
    rig.client.answer(SEND_BACK, back)
    work = rig.take_locked(1)
    rig.pulled(work, 1, 2, 3)
    rig.work_off()
    refused.clear()
    rig.later(1_000)
    assert (
        rig.calls == [[1, 2, 3], [2]]
        and rig.retries == [[0, 0, 0], [1]]
        and rig.offset(work.queue) == 4
    )


# --- committing by oneself ------------------------------------------------------------------------


def test_a_rollback_hands_out_everything_since_the_last_commit_again_uncounted() -> None:
    rig = OrderlyRig(
        Answers(
            COMMIT,
            SUCCESS,
            SUCCESS,
            ROLLBACK,
            SUCCESS,
            SUCCESS,
            COMMIT,
            auto_commit=False,
            suspend_ms=10,
        )
    )
    work = rig.take_locked()
    rig.pulled(work, 0, 1, 2, 3)
    rig.work_off()
    assert rig.calls == [[0], [1], [2], [3]] and rig.offset(work.queue) == 1
    rig.later(10)
    assert rig.calls[4:] == [[1], [2], [3]] and rig.retries[4:] == [[0], [0], [0]]
    assert rig.offset(work.queue) == 4


def test_a_suspension_repeats_only_the_last_call_and_keeps_what_was_done_before() -> None:
    rig = OrderlyRig(Answers(SUCCESS, SUSPEND_CURRENT_QUEUE_A_MOMENT, COMMIT, auto_commit=False))
    work = rig.take_locked()
    rig.pulled(work, 0, 1)
    rig.work_off()
    assert rig.offset(work.queue) is None
    rig.later(1_000)
    assert rig.calls == [[0], [1], [1]] and rig.offset(work.queue) == 2


@pytest.mark.parametrize("answer", [COMMIT, ROLLBACK])
def test_commit_and_rollback_without_leave_count_as_success_and_as_a_fault(answer: object) -> None:
    rig = OrderlyRig(Answers(answer))
    work = rig.take_locked()
    rig.pulled(work, 0)
    rig.work_off()
    assert rig.offset(work.queue) == 1 and rig.orderly.listener_faults == 1


# --- turns, locks, leaving ------------------------------------------------------------------------


def test_after_sixty_seconds_a_queue_lets_the_others_have_the_thread() -> None:
    rig = OrderlyRig(lock_trusted_ms=3_600_000)
    work = rig.take_locked()
    rig.answer = lambda _messages, _ctx: rig.clock.advance_ms(25_000)
    rig.pulled(work, *range(5))
    rig.work_off()
    assert rig.calls == [[0], [1], [2]]
    assert rig.later(9) == 0 and rig.later(1) == 1
    assert rig.calls == [[0], [1], [2], [3], [4]]


def test_nothing_is_handed_out_under_a_lock_older_than_thirty_seconds_until_it_is_refreshed() -> (
    None
):
    rig = OrderlyRig()
    work = rig.take_locked()
    rig.advance(30_001)
    rig.client.answer(LOCK, lambda command, _address: command.answer(ResponseCode.SYSTEM_ERROR))
    rig.pulls_before = len(rig.client.pulls)  # type: ignore[attr-defined]
    rig.orderly.submit([])
    with work.lock:
        work.lease.busy = True  # type: ignore[union-attr]
    rig.orderly._ready.put(work)
    rig.work_off()
    rig.later(100)  # asked for, in vain
    assert rig.calls == []
    rig.client.answer(LOCK, rig._lock)
    assert rig.later(2_999) == 0
    rig.later(1)  # ready again, still not trusted
    rig.later(100)  # granted
    rig.later(10)
    work.lease.busy = False  # type: ignore[union-attr]
    rig.pulled(work, 0)
    rig.work_off()
    assert rig.calls == [[0]]


def test_a_queue_without_a_trusted_lock_is_not_pulled() -> None:
    rig = OrderlyRig()
    work = rig.take_locked()
    rig.advance(30_001)
    rig.puller.pull(work)
    assert rig.client.pulls == []
    rig.leases.refresh()
    rig.advance(1_000)
    assert len(rig.client.pulls) == 1


def test_pulls_and_commits_name_the_locks_epoch() -> None:
    rig = OrderlyRig()
    work = rig.take_locked()
    assert work.lease is not None
    rig.pulled(work, 0)
    rig.work_off()
    assert rig.client.pulls[-1].request.lock_epoch == work.lease.epoch > 0
    rig.parts.offsets.persist(work.queue)
    (told,) = rig.client.requests(RequestCode.UPDATE_CONSUMER_OFFSET)
    assert (told.fields or {})["rmqLockEpoch"] == str(work.lease.epoch)


def test_the_distance_to_a_slow_message_is_no_limit_for_ordered_queues() -> None:
    from math import inf

    from rmq_ray.client.consumer.flow_control import FlowControl

    rig = OrderlyRig(max_span=5)
    work = rig.take_locked()
    rig.pulled(work, 0, 50)
    assert rig.parts.flow.pressure("orders", work.process) is not None
    assert FlowControl(rig.parts.config, inf).pressure("orders", work.process) is None


def test_what_was_handed_out_before_the_queue_was_lost_changes_nothing_any_more() -> None:
    rig = OrderlyRig()
    work = rig.take_locked()
    rig.answer = lambda _messages, _ctx: work.process.drop()
    rig.pulled(work, 0, 1)
    rig.work_off()
    assert rig.calls == [[0]] and rig.offset(work.queue) is None


def test_a_queue_that_is_to_leave_hands_out_nothing_more_and_says_when_it_has_ended() -> None:
    rig = OrderlyRig()
    work = rig.take_locked()
    lease = work.lease
    assert lease is not None
    rig.answer = lambda _messages, _ctx: setattr(lease, "leaving", True)
    rig.pulled(work, 0, 1)
    rig.work_off()
    assert rig.calls == [[0]] and rig.left == [work]
    assert rig.offset(work.queue) == 1, "it is still locked, so what was done counts"
    assert rig.leases.stay(work)
    rig.answer = lambda _messages, _ctx: None
    rig.orderly.wake(work)
    rig.work_off()
    assert rig.calls == [[0], [1]]


def test_a_fault_of_settling_ends_neither_thread_nor_queue_and_skips_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rig = OrderlyRig(Answers(Reject), concurrency=1, suspend_queue_ms=10)
    work = rig.take_locked()
    broken = threading.Event()

    def failing(_message: object, _why: str) -> bool:
        broken.set()
        raise RuntimeError("planted")

    monkeypatch.setattr(rig.send_back, "dead_letter", failing)
    rig.orderly.start()
    rig.pulled(work, 0, 1)
    assert broken.wait(5)
    assert rig.orderly.stop(5_000), "the thread lives on, and ends when it is told to"
    rig.orderly._stopping = False
    rig.advance(10)
    rig.work_off()
    assert rig.calls == [[0], [0], [1]] and work.lease is not None and not work.lease.busy


def test_a_queue_that_stays_after_all_while_its_thread_is_just_leaving_it_is_not_forgotten() -> (
    None
):
    rig = OrderlyRig()
    work = rig.take_locked()
    lease = work.lease
    assert lease is not None
    rig.pulled(work, 0)
    # its thread has seen that the queue leaves, and in this moment it stays
    rig.orderly._ready.get_nowait()
    rig.orderly._rest(work, lease)
    assert rig.work_off() == 1 and rig.calls == [[0]]


def test_on_stop_the_running_listener_ends_and_nothing_more_is_handed_out() -> None:
    begun, go_on = threading.Event(), threading.Event()
    rig = OrderlyRig(concurrency=2)
    work = rig.take_locked()
    rig.answer = lambda _messages, _ctx: (begun.set(), go_on.wait(5), None)[2]
    rig.orderly.start()
    rig.pulled(work, 0, 1)
    assert begun.wait(5)
    assert not rig.orderly.stop(1), "it still runs"
    go_on.set()
    assert rig.orderly.stop(5_000)
    assert rig.calls == [[0]] and rig.offset(work.queue) == 1
    assert rig.orderly.clean_overdue() == 0
