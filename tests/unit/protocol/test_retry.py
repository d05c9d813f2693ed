"""The table of ``protocol.retry``: what each kind of failure leads to, and how sends end
(protocol-behaviour 8).
"""

from __future__ import annotations

import re

import pytest

from rmq_ray.errors import (
    BrokerBusy,
    BrokerUnreachable,
    ClientError,
    DuplicateMismatch,
    MessageIllegal,
    NoNameServer,
    NoRoute,
    SendError,
    SendNotAuthorized,
    SendTimeout,
    SendUnknown,
    TopicNotFound,
    TopicNotWritable,
)
from rmq_ray.model.message import SendStatus
from rmq_ray.protocol.retry import (
    RETRIED_CODES,
    STATUS_OF_CODE,
    TRANSIENT_CODES,
    Decision,
    Failure,
    SendAttempts,
    Step,
    refusal,
)


def attempts(
    *,
    alone: bool = False,
    idempotent: bool = False,
    retries: int = 2,
    timeout_ms: float = 3000,
    codes_retried: bool = True,
) -> SendAttempts:
    return SendAttempts(
        0,
        timeout_ms,
        retries,
        brokers=1 if alone else 2,
        idempotent=idempotent,
        codes_retried=codes_retried,
    )


@pytest.mark.seed("S3-028", "S3-036", "S3-077", "S3-037")
def test_a_send_to_several_brokers_is_tried_three_times_each_on_another_broker() -> None:
    send = attempts()
    assert send.failed(Failure.UNKNOWN, 0, 1) == Decision(Step.ELSEWHERE)
    assert send.failed(Failure.NOT_SENT, 0, 2) == Decision(Step.ELSEWHERE)
    assert send.attempts == 3
    assert send.failed(Failure.UNKNOWN, 0, 3).step is Step.GIVE_UP


@pytest.mark.seed("S3-038")
@pytest.mark.parametrize("code", [17, 14, 1, 16, 204, 205, 2, 20002])
def test_listed_refusals_are_tried_on_another_broker(code: int) -> None:
    assert attempts().failed(Failure.REFUSED, code, 1) == Decision(Step.ELSEWHERE)
    assert code in RETRIED_CODES


@pytest.mark.seed("S3-039")
@pytest.mark.parametrize("code", [13, 26, 20001, 20003, 3])
def test_other_refusals_end_the_send(code: int) -> None:
    assert attempts().failed(Failure.REFUSED, code, 1).step is Step.GIVE_UP
    assert attempts(alone=True).failed(Failure.REFUSED, code, 1).step is Step.GIVE_UP


@pytest.mark.seed("S3-029")
def test_an_asynchronous_send_hands_refusals_to_the_caller_but_repeats_what_was_not_answered() -> (
    None
):
    assert attempts(codes_retried=False).failed(Failure.REFUSED, 1, 1).step is Step.GIVE_UP
    assert attempts(codes_retried=False).failed(Failure.NOT_SENT, 0, 1).step is Step.ELSEWHERE
    assert attempts(codes_retried=False, alone=True).failed(Failure.REFUSED, 20002, 1) == Decision(
        Step.REPEAT, 10
    )


@pytest.mark.parametrize("code", sorted(TRANSIENT_CODES))
def test_with_one_broker_passing_refusals_pause_and_do_not_count(code: int) -> None:
    send = attempts(alone=True)
    pauses = [send.failed(Failure.REFUSED, code, 0).delay_ms for _ in range(8)]
    assert pauses == [10, 20, 40, 80, 160, 200, 200, 200]
    assert send.attempts == 1


def test_with_one_broker_refused_connections_pause_until_the_time_out_and_end_definitely() -> None:
    send = attempts(alone=True, timeout_ms=100)
    now, steps = 0.0, 0
    while (decision := send.failed(Failure.NOT_SENT, 0, now)).step is Step.REPEAT:
        now, steps = now + decision.delay_ms, steps + 1
        assert steps < 10
    assert now == 10 + 20 and steps == 2, "a third one had 30 ms left behind a pause of 40"
    error = send.error(Failure.NOT_SENT, 0, "refused", "T", ["a"], now)
    assert type(error) is BrokerUnreachable and error.retriable


def test_an_unknown_outcome_is_repeated_on_the_same_broker_if_alone_or_idempotent() -> None:
    assert attempts(alone=True).failed(Failure.UNKNOWN, 0, 1) == Decision(Step.REPEAT, 10)
    assert attempts(idempotent=True).failed(Failure.UNKNOWN, 0, 1) == Decision(Step.REPEAT, 10)
    assert attempts(idempotent=True).failed(Failure.NOT_SENT, 0, 1) == Decision(Step.ELSEWHERE)


def test_an_idempotent_send_that_may_be_stored_stays_with_its_broker_whatever_happens_there() -> (
    None
):
    send = attempts(idempotent=True)
    send.failed(Failure.UNKNOWN, 0, 1)
    assert send.failed(Failure.NOT_SENT, 0, 2) == Decision(Step.REPEAT, 20)
    assert send.failed(Failure.REFUSED, 1, 3) == Decision(Step.REPEAT, 40)


@pytest.mark.seed("S3-031", "S3-043")
def test_nothing_begins_after_the_overall_time_out() -> None:
    send = attempts(timeout_ms=3000)
    assert send.attempt_timeout_ms(3000) <= 0
    assert send.failed(Failure.UNKNOWN, 0, 3000).step is Step.GIVE_UP
    error = send.error(Failure.UNKNOWN, 10006, "no answer", "T", ["a"], 3000)
    assert type(error) is SendTimeout


def test_where_repeats_are_recognised_an_attempt_waits_for_its_share_of_the_time() -> None:
    send = attempts(alone=True)
    assert send.attempt_timeout_ms(0) == 1000
    send.failed(Failure.UNKNOWN, 0, 1000)
    assert send.attempt_timeout_ms(1000) == 1000
    assert attempts().attempt_timeout_ms(0) == 3000


@pytest.mark.seed("S3-042")
def test_the_error_names_attempts_cost_topic_and_brokers() -> None:
    send = attempts()
    for _ in range(3):
        send.failed(Failure.UNKNOWN, 0, 10)
    error = send.error(Failure.UNKNOWN, 10002, "connection lost", "orders", ["a", "b", "a"], 42)
    assert str(error).startswith(
        "Send [3] times, still failed, cost [42]ms, Topic: orders, BrokersSent: [a, b, a]"
    )
    assert type(error) is SendUnknown and error.code == 10002


def test_the_error_of_many_attempts_counts_them_by_broker_and_says_once_that_nothing_was_sent() -> (
    None
):
    error = attempts().error(
        Failure.NOT_SENT,
        0,
        "cannot connect to a:1: refused; nothing was sent",
        "orders",
        ["a", "b"] * 20,
        42,
    )
    assert "BrokersSent: [a (20 times), b (20 times)]: cannot connect" in str(error)
    assert str(error).count("nothing was sent") == 1 and str(error).endswith(
        "check that the broker runs"
    )


@pytest.mark.seed("S3-044")
def test_every_error_of_a_send_has_the_code_of_its_cause() -> None:
    send = attempts()
    assert send.error(Failure.NOT_SENT, 0, "refused", "T", ["a"], 1).code == 10001, "no connection"
    send.failed(Failure.UNKNOWN, 0, 1)
    assert (
        send.error(Failure.UNKNOWN, 0, "lost", "T", ["a"], 1).code
        == send.error(Failure.UNKNOWN, 0, "slow", "T", ["a"], 9_999).code
        == 10002
    ), "no answer"
    assert (ClientError.code, NoNameServer.code, NoRoute.code) == (10003, 10004, 10005)


def test_a_send_that_was_unknown_once_never_ends_as_a_definite_failure() -> None:
    send = attempts()
    send.failed(Failure.UNKNOWN, 0, 1)
    assert send.failed(Failure.REFUSED, 13, 2).step is Step.GIVE_UP
    assert isinstance(send.error(Failure.REFUSED, 13, "illegal", "T", ["a", "b"], 2), SendUnknown)


@pytest.mark.seed("S0-050", "S3-035")
def test_a_status_below_ok_goes_to_another_broker_as_long_as_attempts_are_left() -> None:
    send = attempts()
    assert send.not_stored(1) == Decision(Step.ELSEWHERE)
    assert send.not_stored(2) == Decision(Step.ELSEWHERE)
    assert send.not_stored(3).step is Step.GIVE_UP
    assert attempts(alone=True).not_stored(1).step is Step.GIVE_UP


def test_refusals_have_types() -> None:
    kinds = {
        17: TopicNotFound,
        16: TopicNotWritable,
        2: BrokerBusy,
        14: BrokerBusy,
        20002: BrokerBusy,
        13: MessageIllegal,
        20003: MessageIllegal,
        20001: DuplicateMismatch,
        20004: SendNotAuthorized,
        99: SendError,
    }
    assert {code: type(refusal(code, "no", "T")) for code in kinds} == kinds
    assert not any(isinstance(refusal(code, "no", "T"), SendUnknown) for code in kinds)


def test_four_codes_mean_stored() -> None:
    assert STATUS_OF_CODE == {
        0: SendStatus.SEND_OK,
        10: SendStatus.FLUSH_DISK_TIMEOUT,
        11: SendStatus.SLAVE_NOT_AVAILABLE,
        12: SendStatus.FLUSH_SLAVE_TIMEOUT,
    }


@pytest.mark.parametrize("codes_retried", [True, False], ids=["waiting", "asynchronous"])
def test_busy_brokers_are_left_at_once_then_with_growing_pauses_and_never_counted(
    codes_retried: bool,
) -> None:
    attempts = SendAttempts(0.0, 1_000.0, 2, brokers=2, codes_retried=codes_retried)
    decisions = [attempts.failed(Failure.REFUSED, 2, float(n)) for n in range(6)]
    assert {decision.step for decision in decisions} == {Step.ELSEWHERE} and attempts.attempts == 1
    assert [decision.delay_ms for decision in decisions] == [0.0, 10.0, 20.0, 40.0, 80.0, 160.0]
    assert attempts.failed(Failure.REFUSED, 2, 900.0).step is Step.GIVE_UP
    assert isinstance(
        attempts.error(Failure.REFUSED, 2, "busy", "T", ["a", "b"], 900.0), BrokerBusy
    )


@pytest.mark.parametrize("brokers", [1, 2, 3, 5])
def test_however_many_brokers_refuse_a_send_asks_each_once_and_then_as_seldom_as_one(
    brokers: int,
) -> None:
    send = SendAttempts(0.0, 2_800.0, 2, brokers=brokers)
    now, asked, pauses = 0.0, 1, []
    while (decision := send.failed(Failure.REFUSED, 14, now)).step is not Step.GIVE_UP:
        pauses.append(decision.delay_ms)
        now, asked = now + decision.delay_ms, asked + 1
        assert asked < 100
    assert pauses[: brokers - 1] == [0.0] * (brokers - 1)
    assert pauses[brokers - 1 : brokers + 5] == [10, 20, 40, 80, 160, 200]
    assert asked <= 18 + brokers and now <= 2_800
    names = [f"broker-{number % brokers}" for number in range(asked)]
    error = send.error(Failure.REFUSED, 14, "the disk is full", "orders", names, now)
    assert max(map(int, re.findall(r"\((\d+) times\)", str(error)))) <= 18
