"""Claims: many listener batches that one thread takes at once, and how many threads are awake."""

from __future__ import annotations

from typing import Any

import pytest

from rmq_ray.client.consumer.assigned_queue import AssignedQueue
from rmq_ray.client.messages.listener import RECONSUME_LATER, ConsumeContext
from rmq_ray.client.messages.received import MessageExt
from rmq_ray.client.push.consume_concurrently import SLOW_CALL_MS, claim_messages
from tests.support.clients.consumer_rig import (
    ConsumerRig,
    KeepingListener,
    claim_rig,
    handle_next,
    rig_with,
    sent_back,
)
from tests.support.clients.scripted_client import ADDRESS


def got(listener: KeepingListener) -> list[int]:
    return [message.queue_offset for call in listener.calls for message in call]


def test_a_claim_is_handed_out_message_by_message_and_finished_as_a_whole() -> None:
    rig, listener, work = claim_rig()
    handle_next(rig)
    assert [len(call) for call in listener.calls] == [1] * 5 and got(listener) == [0, 1, 2, 3, 4]
    assert rig.offset(work.queue) == 5 and work.process.count == work.process.body_bytes == 0
    assert work.counters.consumed_ok == 5 and rig.consumption._ready.empty()


@pytest.mark.parametrize("failing", [0, 2, 4])
def test_a_failure_in_a_claim_is_settled_by_itself_and_the_others_go_on(failing: int) -> None:
    rig, listener, work = claim_rig(
        lambda messages, _ctx: RECONSUME_LATER if messages[0].queue_offset == failing else None
    )
    handle_next(rig)
    assert [fields["offset"] for fields in sent_back(rig)] == [str(1000 + 100 * failing)]
    assert rig.offset(work.queue) == failing + 1
    while not rig.consumption._ready.empty():
        handle_next(rig)
    assert got(listener) == [0, 1, 2, 3, 4] and rig.offset(work.queue) == 5
    counters = work.counters
    assert (counters.consumed_ok, counters.consumed_failed, counters.sent_back) == (4, 1, 1)
    assert work.process.count == work.process.body_bytes == 0


def test_a_failure_that_no_broker_takes_back_keeps_its_place_in_a_claim() -> None:
    rig, listener, work = claim_rig(
        lambda messages, _ctx: RECONSUME_LATER if messages[0].queue_offset == 2 else None
    )
    rig.client.down.add(ADDRESS)
    while not rig.consumption._ready.empty():
        handle_next(rig)
    assert got(listener) == [0, 1, 2, 3, 4] and rig.offset(work.queue) == 2
    listener.answer = None
    rig.advance(5_000)
    handle_next(rig)
    assert got(listener)[5:] == [2] and rig.offset(work.queue) == 5


def test_what_waits_behind_a_call_that_does_not_return_is_given_away_after_ten_milliseconds() -> (
    None
):
    rig, listener, work = claim_rig()
    others: list[int] = []

    def block(messages: list[MessageExt], _ctx: ConsumeContext) -> None:
        if messages[0].queue_offset == 1:
            rig.advance(9)
            assert rig.consumption._ready.empty(), "not yet"
            rig.advance(11)
            assert rig.offset(work.queue) == 1, "what was done before the call is settled"
            while not rig.consumption._ready.empty():  # as another thread does
                others.append(len(listener.calls))
                handle_next(rig)
            assert rig.offset(work.queue) == 1, "nothing passes the one that is worked on"

    listener.answer = block
    handle_next(rig)
    assert got(listener) == [0, 1, 2, 3, 4] and len(others) == 3
    assert rig.offset(work.queue) == 5 and work.counters.consumed_ok == 5
    assert rig.consumption.call_mean_ms > SLOW_CALL_MS, "from now on one at a time"


def test_a_call_that_was_left_alone_may_fail_or_be_given_up_like_any_other() -> None:
    rig, listener, work = claim_rig(count=3)

    def fail(messages: list[MessageExt], _ctx: ConsumeContext) -> Any:
        if messages[0].queue_offset == 0:
            rig.advance(20)
            rig.clock.advance_ms(15 * 60_000 + 1)
            assert rig.consumption.clean_overdue() == 1, "and not those that nobody has begun"
            return RECONSUME_LATER
        return None

    listener.answer = fail
    while not rig.consumption._ready.empty():
        handle_next(rig)
    assert got(listener) == [0, 1, 2] and rig.offset(work.queue) == 3
    assert [fields["offset"] for fields in sent_back(rig)] == ["1000"]


def test_a_slow_listener_is_given_one_message_at_a_time_the_others_wait_for_the_next_thread() -> (
    None
):
    rig, listener, work = claim_rig()
    rig.consumption.call_mean_ms = SLOW_CALL_MS
    listener.answer = lambda _messages, _ctx: rig.clock.advance_ms(1)
    for done in range(1, 6):
        handle_next(rig)
        assert len(listener.calls) == done and rig.offset(work.queue) == done
    assert rig.consumption._ready.empty() and work.counters.consumed_ok == 5


def call_often(rig: ConsumerRig, work: AssignedQueue, calls: int) -> None:
    """So many messages more, one after the other."""
    first = work.process.commit_offset
    rig.consumption.submit(rig.found(work, range(first, first + calls)))
    while not rig.consumption._ready.empty():
        handle_next(rig)


def goes_on(
    rig: ConsumerRig, listener: KeepingListener, work: AssignedQueue, looks: int, together: bool
) -> list[float]:
    """How many threads may be awake after each look, while more waits for them. Between two looks
    ten calls of a millisecond end; ``together``: so many of each two threads.
    """
    listener.answer = lambda _messages, _ctx: rig.clock.advance_ms(1)
    limits = []
    for _ in range(looks):
        call_often(rig, work, 10)
        others = int(rig.consumption._ready.limit) // 2 - 1
        rig.consumption._ended += 10 * others * together
        rig.consumption.submit(rig.found(work, [work.process.commit_offset]))
        rig.consumption.look()
        limits.append(rig.consumption._ready.limit)
        while not rig.consumption._ready.empty():
            handle_next(rig)
    return limits


def test_calls_that_lost_the_processor_now_and_then_do_not_make_a_listener_slow() -> None:
    rig, listener, work = claim_rig()
    handle_next(rig)

    def lose(messages: list[MessageExt], _ctx: ConsumeContext) -> None:
        if messages[0].queue_offset == 1_000:
            rig.clock.advance_ms(100)

    listener.answer = lose
    call_often(rig, work, 2_000)
    rig.consumption.look()
    assert len(listener.calls) == 2_005 and 0 < rig.consumption.call_mean_ms < SLOW_CALL_MS


@pytest.mark.parametrize(("each", "took_ms"), [(20, 8), (50, 9), (100, 9)])
def test_a_listener_that_waits_for_less_than_a_look_now_and_then_gets_all_threads(
    each: int, took_ms: int
) -> None:
    rig, listener, work = claim_rig()
    handle_next(rig)
    rig.consumption._ready.threads = 20
    limits: list[float] = []

    def wait(messages: list[MessageExt], _ctx: ConsumeContext) -> None:
        if messages[0].queue_offset % each == 0:
            limits.append(rig.consumption._ready.limit)
            rig.consumption._ended += each * (int(limits[-1]) // 2 - 1)  # by the other threads
            rig.advance(took_ms)

    listener.answer = wait
    call_often(rig, work, 100 * each)
    assert rig.consumption.call_mean_ms > SLOW_CALL_MS
    assert limits.count(20) > 0.7 * len(limits)


def test_a_listener_that_turns_slow_after_many_quick_calls_and_quick_again_is_seen_at_once() -> (
    None
):
    rig, listener, work = claim_rig()
    call_often(rig, work, 2_000)
    rig.consumption._ready.threads = 20

    def looks_until(limit: int, calls: int) -> int:
        """Calls that fit into the time between two looks."""
        for looks in range(1, 21):
            call_often(rig, work, calls)
            rig.consumption.look()
            if rig.consumption._ready.limit == limit:
                return looks
        pytest.fail(f"not {limit} threads after 20 looks")

    listener.answer = lambda _messages, _ctx: rig.clock.advance_ms(2)
    assert looks_until(20, 10) <= 6
    listener.answer = None
    assert looks_until(2, 1_000) == 1
    assert rig.consumption.call_mean_ms < SLOW_CALL_MS


def test_calls_that_wait_for_one_another_get_two_threads_again_which_claim_messages() -> None:
    rig, listener, work = claim_rig()
    rig.consumption._ready.threads = 20
    assert 20 in goes_on(rig, listener, work, 16, together=True)
    assert 2 in goes_on(rig, listener, work, 100, together=False)
    assert rig.consumption.call_mean_ms > SLOW_CALL_MS and rig.consumption._awake.suffice
    before, first = len(listener.calls), work.process.commit_offset
    rig.consumption.submit(rig.found(work, range(first, first + 32)))
    handle_next(rig)
    assert len(listener.calls) == before + 32 and rig.offset(work.queue) == first + 32
    assert 20 in goes_on(rig, listener, work, 200, together=True), "and again"


def test_a_call_that_lost_the_interpreter_among_the_first_few_makes_no_listener_slow() -> None:
    rig, listener, work = claim_rig()
    rig.consumption._ready.threads = 20

    def lose(messages: list[MessageExt], _ctx: ConsumeContext) -> None:
        if messages[0].queue_offset == 3:
            rig.clock.advance_ms(5)

    listener.answer = lose
    handle_next(rig)
    rig.consumption.look()
    assert rig.consumption.call_mean_ms > SLOW_CALL_MS and rig.consumption._ready.limit == 4
    call_often(rig, work, 200)
    rig.consumption.look()
    assert rig.consumption.call_mean_ms < SLOW_CALL_MS and rig.consumption._ready.limit == 2


def test_calls_of_a_claim_count_while_it_lasts() -> None:
    rig, listener, _work = claim_rig(count=32)
    limits: list[float] = []
    rig.consumption._ready.threads = 20

    def wait(_messages: list[MessageExt], _ctx: ConsumeContext) -> None:
        rig.advance(9)
        limits.append(rig.consumption._ready.limit)

    listener.answer = wait
    handle_next(rig)
    assert limits[0] == 2 and 4 in limits, "more threads are tried before it ended"
    assert sum(rig.consumption.times_of("orders").counts) == len(listener.calls)


@pytest.mark.parametrize("threads", [1, 2])
def test_few_threads_see_that_calls_are_quick_again(threads: int) -> None:
    rig, listener, work = claim_rig()
    rig.consumption._ready.threads = threads
    listener.answer = lambda _messages, _ctx: rig.clock.advance_ms(5)
    call_often(rig, work, 2)
    rig.advance(10)
    assert rig.consumption.call_mean_ms > SLOW_CALL_MS
    listener.answer = None
    for _ in range(5):
        call_often(rig, work, 100)
        rig.advance(10)
    assert rig.consumption.call_mean_ms < SLOW_CALL_MS


def test_two_threads_are_awake_for_a_quick_listener_more_while_calls_block_or_are_slow() -> None:
    rig, listener, _work = claim_rig()
    ready, seen = rig.consumption._ready, []
    ready.threads = 20

    def block(messages: list[MessageExt], _ctx: ConsumeContext) -> None:
        if messages[0].queue_offset == 1:
            seen.append(ready.limit)
            rig.advance(11)
            seen.append(ready.limit)

    listener.answer = block
    handle_next(rig)
    assert seen == [2, 4], "its call has not returned"
    rig.consumption.call_mean_ms = 2 * SLOW_CALL_MS
    limits = []
    for _ in range(4):
        rig.consumption.look()
        limits.append(ready.limit)
    assert limits == [8, 16, 20, 20]
    rig.consumption.call_mean_ms = 0.0
    rig.consumption.look()
    assert ready.limit == 2


def test_on_stop_a_claim_ends_after_the_message_that_the_listener_has() -> None:
    rig, listener, work = claim_rig()

    def stop(messages: list[MessageExt], _ctx: ConsumeContext) -> None:
        if messages[0].queue_offset == 2:
            assert rig.consumption.stop(timeout_ms=10)

    listener.answer = stop
    while not rig.consumption._ready.empty():
        handle_next(rig)
    assert got(listener) == [0, 1, 2] and rig.offset(work.queue) == 3


@pytest.mark.parametrize("answer", [None, RECONSUME_LATER])
def test_a_queue_that_is_dropped_ends_its_claim_and_results_are_ignored(answer: Any) -> None:
    rig, listener, work = claim_rig()

    def drop(messages: list[MessageExt], _ctx: ConsumeContext) -> Any:
        if messages[0].queue_offset == 1:
            work.process.drop()
            return answer
        return None

    listener.answer = drop
    while not rig.consumption._ready.empty():
        handle_next(rig)
    assert got(listener) == [0, 1] and rig.offset(work.queue) is None and sent_back(rig) == []
    failed = 0 if answer is None else 1
    assert (work.counters.consumed_ok, work.counters.consumed_failed) == (2 - failed, failed)


def test_listener_batches_of_several_messages_are_portions_of_a_claim() -> None:
    rig, listener = rig_with(batch_size=4, cut_messages=claim_messages(4))
    rig.consumption.call_mean_ms = 0.0
    work = rig.take()
    rig.pull(work)
    batches = rig.found(work, list(range(38)))
    assert [batch.count for batch in batches] == [32, 6]
    rig.consumption.submit(batches)
    listener.answer = lambda messages, ctx: (
        setattr(ctx, "ack_index", 1) if messages[0].queue_offset == 8 else None
    )
    while not rig.consumption._ready.empty():
        handle_next(rig)
    assert [len(call) for call in listener.calls] == [4] * 9 + [2]
    assert [fields["offset"] for fields in sent_back(rig)] == ["2000", "2100"]
    assert rig.offset(work.queue) == 38


@pytest.mark.parametrize(
    ("batch_size", "together"), [(1, 32), (4, 32), (5, 30), (32, 32), (64, 64)]
)
def test_a_claim_is_whole_listener_batches_up_to_thirty_two_messages(
    batch_size: int, together: int
) -> None:
    assert claim_messages(batch_size) == together
