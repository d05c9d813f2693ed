"""Concurrent consumption: what a listener gets, and what its answers do to offsets and messages."""

from __future__ import annotations

import logging
from typing import Any

import pytest

from rmq_ray.client.messages.listener import (
    RECONSUME_LATER,
    SUCCESS,
    ConsumeContext,
    Reject,
    failure_of,
)
from rmq_ray.client.messages.received import MessageExt
from rmq_ray.errors import RequestTimeout
from rmq_ray.model.ids import MessageQueue
from rmq_ray.model.message import decode_properties
from rmq_ray.remoting.wire.codes import RequestCode
from tests.support.clients.consumer_rig import rig_with, sent_back
from tests.support.clients.scripted_client import ADDRESS, record

BACK, SEND = RequestCode.CONSUMER_SEND_MSG_BACK, RequestCode.SEND_MESSAGE_V2


@pytest.mark.seed("S4-023", "S4-024", "S4-182", "S4-228")
def test_a_finished_batch_moves_the_offset_in_memory() -> None:
    rig, listener = rig_with(SUCCESS, batch_size=4)
    work = rig.take()
    rig.pull(work)
    rig.consume(*rig.found(work, range(8)))
    assert [[message.queue_offset for message in call] for call in listener.calls] == [
        [0, 1, 2, 3],
        [4, 5, 6, 7],
    ]
    assert (rig.offset(work.queue), work.counters.consumed_ok, work.process.count) == (8, 8, 0)
    assert (listener.contexts[0].queue, listener.contexts[0].group) == (work.queue, "g")


@pytest.mark.seed("S4-184", "S4-028")
def test_the_last_batch_done_first_leaves_the_offset_at_the_first() -> None:
    rig, _ = rig_with(batch_size=1)
    work = rig.take()
    rig.pull(work)
    a, b, c, d = rig.found(work, range(4))
    for batch, offset in ((d, 0), (b, 0), (a, 2), (c, 4)):
        rig.consume(batch)
        assert rig.offset(work.queue) == offset


@pytest.mark.seed("S4-172", "S4-176")
def test_a_dropped_queue_is_not_handed_out_and_results_that_come_late_are_ignored() -> None:
    rig, listener = rig_with()
    work = rig.take()
    rig.pull(work)
    first, second = rig.found(work, [0, 1])
    listener.answer = lambda _messages, _ctx: work.process.drop()
    rig.consume(first, second)
    assert (len(listener.calls), rig.offset(work.queue)) == (1, None)


def test_failures_of_a_queue_dropped_meanwhile_are_not_sent_back() -> None:
    rig, listener = rig_with()
    work = rig.take()
    rig.pull(work)

    def fail(_messages: list[MessageExt], _ctx: ConsumeContext) -> Any:
        work.process.drop()
        return RECONSUME_LATER

    listener.answer = fail
    rig.consume(*rig.found(work, [0]))
    assert sent_back(rig) == []


@pytest.mark.seed("S4-180", "S4-183", "S4-046", "S4-186")
def test_failed_messages_go_back_to_their_broker_and_the_offset_moves_on() -> None:
    rig, _ = rig_with(RECONSUME_LATER, batch_size=2)
    work = rig.take()
    rig.pull(work)
    rig.consume(*rig.found(work, [0, 1], properties="UNIQ_KEY\x01" + "A" * 32))
    assert sent_back(rig)[0] == {
        "offset": "1000",
        "group": "g",
        "delayLevel": "0",
        "originMsgId": "A" * 32,
        "originTopic": "orders",
        "unitMode": "false",
        "maxReconsumeTimes": "16",
        "rmqFailedWith": "RECONSUME_LATER",
        "rmqFailedOn": "10.0.0.9@1#1",
    }
    assert [fields["offset"] for fields in sent_back(rig)] == ["1000", "1100"]
    assert (rig.offset(work.queue), work.counters.consumed_failed, work.counters.sent_back) == (
        2,
        2,
        2,
    )


@pytest.mark.seed("S4-177")
def test_ack_index_sends_back_only_what_follows_it() -> None:
    def partly(_messages: list[MessageExt], ctx: ConsumeContext) -> None:
        ctx.ack_index = 1
        ctx.delay_level_when_next_consume = 4

    rig, _ = rig_with(partly, batch_size=4)
    work = rig.take()
    rig.pull(work)
    rig.consume(*rig.found(work, range(4)))
    assert [(fields["offset"], fields["delayLevel"]) for fields in sent_back(rig)] == [
        ("1200", "4"),
        ("1300", "4"),
    ]
    assert (work.counters.consumed_ok, work.counters.consumed_failed, rig.offset(work.queue)) == (
        2,
        2,
        4,
    )


@pytest.mark.parametrize("answer", [Reject, Reject("no")])
def test_reject_sends_to_the_dead_letter_topic_at_once(answer: Any) -> None:
    rig, _ = rig_with(answer)
    work = rig.take()
    rig.pull(work)
    rig.consume(*rig.found(work, [0]))
    assert [fields["delayLevel"] for fields in sent_back(rig)] == ["-1"]


@pytest.mark.seed("S4-175")
@pytest.mark.parametrize("error", [ValueError("bad"), SystemExit(3)])
def test_a_listener_that_raises_gets_the_message_again_later(
    error: BaseException, caplog: pytest.LogCaptureFixture
) -> None:
    rig, _ = rig_with(error)
    work = rig.take()
    rig.pull(work)
    properties = "KEYS\x01k-1\x02UNIQ_KEY\x01" + "A" * 32
    rig.consume(*rig.found(work, [0], properties=properties))
    assert (len(sent_back(rig)), rig.consumption.listener_faults) == (1, 1)
    (line,) = [one for one in caplog.records if one.name == "rmq_ray.client.consume"]
    why = failure_of(error)
    message = "(keys k-1) of orders, queue 0 of broker-a, offset 0; 16 tries left"
    assert line.getMessage() == (
        f"listener of group g failed with {why}: message {'A' * 32} {message}"
    )
    assert line.exc_info is not None and sent_back(rig)[0]["rmqFailedWith"] == why


def test_the_traceback_comes_with_the_first_failure_of_a_kind_and_each_hundredth(
    caplog: pytest.LogCaptureFixture,
) -> None:
    def fail(messages: list[MessageExt], _ctx: ConsumeContext) -> Any:
        if messages[0].queue_offset == 150:
            raise KeyError("elsewhere")
        raise ValueError(f"bad\n{messages[0].queue_offset}")

    rig, _ = rig_with(fail)
    work = rig.take()
    rig.pull(work)
    rig.consume(*rig.found(work, range(201)))
    lines = [one for one in caplog.records if one.name == "rmq_ray.client.consume"]
    assert len(lines) == 201, "one line for each failure"
    assert [n for n, one in enumerate(lines) if one.exc_info] == [0, 99, 150, 200]
    assert "failed with ValueError: bad 7: message " in lines[7].getMessage()


def test_what_cannot_stand_in_a_property_is_taken_out_of_the_reason(
    caplog: pytest.LogCaptureFixture,
) -> None:
    # half a surrogate pair in a captured line cannot be told to the process that runs the tests
    caplog.set_level(logging.CRITICAL, "rmq_ray.client.consume")
    rig, _ = rig_with(ValueError("a\x01b\x02c\ud800" + "x" * 1_000))
    work = rig.take()
    rig.pull(work)
    rig.consume(*rig.found(work, [0]))
    why = sent_back(rig)[0]["rmqFailedWith"]
    assert why.startswith("ValueError: a b c?xxx") and len(why) == 512


def test_a_listener_that_returns_nonsense_is_reported_and_the_message_comes_again(
    caplog: pytest.LogCaptureFixture,
) -> None:
    rig, _ = rig_with("ok")
    work = rig.take()
    rig.pull(work)
    rig.consume(*rig.found(work, [0]))
    assert (len(sent_back(rig)), work.counters.consumed_failed) == (1, 1)
    assert "Counted as RECONSUME_LATER" in caplog.text


def test_a_listener_that_empties_its_list_loses_no_message() -> None:
    def clear(messages: list[MessageExt], _ctx: ConsumeContext) -> Any:
        messages.clear()
        return RECONSUME_LATER

    rig, _ = rig_with(clear, batch_size=3)
    work = rig.take()
    rig.pull(work)
    rig.consume(*rig.found(work, range(3)))
    assert len(sent_back(rig)) == 3


def test_what_the_broker_refuses_is_written_into_the_retry_topic_instead() -> None:
    rig, _ = rig_with(RECONSUME_LATER)
    work = rig.take()
    rig.client.add_topic("%RETRY%g", queues=1)
    rig.client.answer(
        BACK, lambda command, _address: command.answer(1, remark="look message by offset failed")
    )
    rig.pull(work)
    rig.consume(
        *rig.found(
            work,
            [0],
            body=b"again",
            properties="TRAN_MSG\x01true\x02k\x01v\x02UNIQ_KEY\x01" + "B" * 32,
        )
    )
    (command,) = rig.client.requests(SEND)
    fields = command.fields or {}
    assert (fields["b"], fields["e"], fields["j"], fields["l"], fields["m"]) == (
        "%RETRY%g",
        "0",
        "1",
        "17",
        "false",
    ), "16 more tries, the next one included"
    assert command.body == b"again"
    assert decode_properties(fields["i"]) == {
        "k": "v",
        "UNIQ_KEY": "B" * 32,
        "RETRY_TOPIC": "orders",
        "ORIGIN_MESSAGE_ID": "B" * 32,
        "DELAY": "3",
        "RMQ_FAILED_WITH": "RECONSUME_LATER",
        "RMQ_FAILED_ON": "10.0.0.9@1#1",
    }
    assert rig.offset(work.queue) == 1


@pytest.mark.parametrize(("tries_before", "dead"), [(1, False), (2, False), (3, True)])
def test_by_either_way_a_message_is_tried_as_often(tries_before: int, dead: bool) -> None:
    """The broker counts a copy that it makes before the failure, one that a client writes
    after it.
    """
    rig, _ = rig_with(RECONSUME_LATER, max_reconsume_times=3)
    work = rig.take()
    rig.client.add_topic("%RETRY%g", queues=1)
    rig.client.answer(BACK, lambda command, _address: command.answer(1, remark="refused"))
    rig.pull(work)
    rig.client.pulls[-1].reply(0, 1, [record(work.queue, 0, reconsume_times=tries_before)])
    rig.consume(*rig.submitted)
    by_broker, by_copy = (
        rig.client.requests(BACK)[0].fields or {},
        rig.client.requests(SEND)[0].fields or {},
    )
    assert (tries_before >= int(by_broker["maxReconsumeTimes"])) is dead
    assert (int(by_copy["j"]) >= int(by_copy["l"])) is dead


def test_a_rejected_message_written_into_the_retry_topic_counts_as_failed_often_enough() -> None:
    rig, _ = rig_with(Reject)
    work = rig.take()
    rig.client.add_topic("%RETRY%g", queues=1)
    rig.client.answer(BACK, lambda command, _address: command.answer(1))
    rig.pull(work)
    rig.consume(*rig.found(work, [0]))
    assert (rig.client.requests(SEND)[0].fields or {})["j"] == "16"


@pytest.mark.seed("S4-180")
def test_what_no_broker_takes_stays_here_and_comes_again_after_five_seconds_counted_once_more() -> (
    None
):
    rig, listener = rig_with(RECONSUME_LATER, batch_size=4)
    work = rig.take()
    rig.pull(work)
    rig.client.answer(
        BACK,
        lambda command, _address: (
            command.answer()
            if (command.fields or {})["offset"] == "1200"
            else RequestTimeout("slow", "a")
        ),
    )
    (batch,) = rig.found(work, range(4))
    rig.consume(batch)
    assert (rig.offset(work.queue), work.process.count, work.counters.sent_back) == (0, 3, 1)
    assert (rig.advance(4_999), len(rig.submitted)) == (0, 1)
    listener.answer = None
    assert rig.advance(1) == 1
    rig.consumption.consume(batch)
    assert [(message.queue_offset, message.reconsume_times) for message in listener.calls[1]] == [
        (0, 1),
        (1, 1),
        (3, 1),
    ]
    assert (rig.offset(work.queue), work.process.count) == (4, 0)


@pytest.mark.seed("S4-048")
def test_a_message_that_takes_longer_than_fifteen_minutes_is_sent_back_and_its_result_ignored() -> (
    None
):
    rig, listener = rig_with()
    work = rig.take()
    rig.pull(work)
    first, second = rig.found(work, [0, 1])

    def hang(_messages: list[MessageExt], _ctx: ConsumeContext) -> Any:
        rig.clock.advance_ms(15 * 60_000 + 1)
        assert rig.consumption.clean_overdue() == 1
        return RECONSUME_LATER

    listener.answer = hang
    rig.consume(first)
    assert [(fields["offset"], fields["delayLevel"]) for fields in sent_back(rig)] == [
        ("1000", "3")
    ]
    assert rig.offset(work.queue) == 1
    listener.answer = None
    rig.consume(second)
    assert rig.offset(work.queue) == 2


def test_an_overdue_message_that_no_broker_takes_stays_unfinished() -> None:
    rig, listener = rig_with()
    work = rig.take()
    rig.pull(work)

    def hang(_messages: list[MessageExt], _ctx: ConsumeContext) -> Any:
        rig.clock.advance_ms(15 * 60_000 + 1)
        assert rig.consumption.clean_overdue() == 0

    batches = rig.found(work, [0])
    rig.client.down.add(ADDRESS)
    listener.answer = hang
    rig.consume(*batches)
    assert rig.offset(work.queue) == 1


def test_on_stop_batches_not_yet_seen_are_left_except_those_before_one_that_was() -> None:
    rig, listener = rig_with()
    work = rig.take()
    rig.pull(work)
    a, b, c = rig.found(work, [0, 1, 2])
    rig.consume(b)
    assert rig.consumption.stop(timeout_ms=10)
    rig.consume(a, c)
    assert [call[0].queue_offset for call in listener.calls] == [1, 0]
    assert rig.offset(work.queue) == 2


def test_a_retry_message_reaches_the_listener_under_its_original_topic() -> None:
    rig, listener = rig_with()
    rig.topic = "%RETRY%g"
    rig.parts.subscriptions.put("%RETRY%g", None, 1)
    work = rig.take()
    rig.pull(work).reply(
        0, 1, [record(work.queue, 0, properties="RETRY_TOPIC\x01orders", reconsume_times=2)]
    )
    rig.consume(*rig.submitted)
    (message,) = listener.calls[0]
    assert (message.topic, message.reconsume_times, message.queue) == (
        "orders",
        2,
        MessageQueue("%RETRY%g", "broker-a", 0),
    )
