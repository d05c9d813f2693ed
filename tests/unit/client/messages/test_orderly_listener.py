"""What an ordered listener's answer means, and which settings of ordered consumption make sense."""

from __future__ import annotations

from typing import Any

import pytest

import rmq_ray as rmq
from rmq_ray.client.consumer.consumer_options import push_settings
from rmq_ray.client.messages.listener import (
    COMMIT,
    RECONSUME_LATER,
    ROLLBACK,
    SUCCESS,
    SUSPEND_CURRENT_QUEUE_A_MOMENT,
    OrderlyContext,
    OrderlyStep,
    Reject,
    judge_orderly,
    pause_ms,
)
from rmq_ray.config import ConsumerConfig
from rmq_ray.errors import ConfigError, ConsumeError
from rmq_ray.model.ids import MessageQueue


def context(auto_commit: bool = True) -> OrderlyContext:
    ctx = OrderlyContext("g", MessageQueue("orders", "broker-a", 0))
    ctx.auto_commit = auto_commit
    return ctx


@pytest.mark.parametrize(
    ("answer", "by_itself", "by_the_listener"),
    [
        (None, OrderlyStep.COMMIT, OrderlyStep.KEEP),
        (SUCCESS, OrderlyStep.COMMIT, OrderlyStep.KEEP),
        (COMMIT, OrderlyStep.COMMIT, OrderlyStep.COMMIT),
        (ROLLBACK, OrderlyStep.COMMIT, OrderlyStep.ROLLBACK),
        (SUSPEND_CURRENT_QUEUE_A_MOMENT, OrderlyStep.SUSPEND, OrderlyStep.SUSPEND),
        (Reject, OrderlyStep.REJECT, OrderlyStep.REJECT),
        (Reject(), OrderlyStep.REJECT, OrderlyStep.REJECT),
        (ValueError(), OrderlyStep.SUSPEND, OrderlyStep.SUSPEND),
        (RECONSUME_LATER, OrderlyStep.SUSPEND, OrderlyStep.SUSPEND),
        (True, OrderlyStep.SUSPEND, OrderlyStep.SUSPEND),
    ],
)
def test_answers_mean_what_rocketmqs_do(
    answer: object, by_itself: OrderlyStep, by_the_listener: OrderlyStep
) -> None:
    assert judge_orderly(answer, context()).step is by_itself
    assert judge_orderly(answer, context(auto_commit=False)).step is by_the_listener


def test_what_means_nothing_is_told_with_the_remedy() -> None:
    later, wrong = (
        judge_orderly(RECONSUME_LATER, context()).fault,
        judge_orderly(3, context()).fault,
    )
    assert isinstance(later, ConsumeError) and "for concurrent consumption" in str(later)
    assert isinstance(
        wrong, ConsumeError
    ) and "returned 3; return None, SUCCESS, SUSPEND_CURRENT_QUEUE_A_MOMENT or Reject" in str(wrong)
    assert "set ctx.auto_commit = False" in str(judge_orderly(ROLLBACK, context()).fault)
    assert judge_orderly(ROLLBACK, context(auto_commit=False)).fault is None


def test_an_answer_that_cannot_be_shown_and_a_pause_that_is_no_float_stop_nothing() -> None:
    class Unshowable:
        def __repr__(self) -> str:
            raise RuntimeError

    assert judge_orderly(Unshowable(), context()).step is OrderlyStep.SUSPEND
    ctx = context()
    for asked, pause in ((10**400, 30_000), (float("nan"), 7_000), ("x", 7_000), (None, 7_000)):
        ctx.suspend_ms = asked
        assert pause_ms(ctx, 7_000) == pause


def test_the_public_names_are_these() -> None:
    assert (
        rmq.SUSPEND_CURRENT_QUEUE_A_MOMENT is SUSPEND_CURRENT_QUEUE_A_MOMENT
        and rmq.COMMIT is COMMIT
        and rmq.ROLLBACK is ROLLBACK
    )
    assert rmq.OrderlyContext is OrderlyContext and rmq.ConsumeOrderlyResult.COMMIT is COMMIT


@pytest.mark.parametrize(
    "settings",
    [
        {"lock_trusted_ms": 19_999},
        {"lock_refresh_ms": 30_001},
        {"suspend_queue_ms": 9},
        {"suspend_queue_ms": 30_001},
        {"max_continuous_ms": 0},
        {"lock_retry_ms": 0},
    ],
)
def test_settings_that_make_no_sense_are_refused(settings: dict[str, Any]) -> None:
    with pytest.raises(
        ConfigError,
        match=next(iter(settings)) if "lock_refresh_ms" not in settings else "lock_trusted_ms",
    ):
        ConsumerConfig("g", **settings)


def test_orderly_is_an_option_of_true_or_false() -> None:
    assert (
        push_settings("g", None, {"orderly": True}).orderly
        and not push_settings("g", None, {}).orderly
    )
    with pytest.raises(ConfigError, match="orderly must be True or False, not 'yes'"):
        push_settings("g", None, {"orderly": "yes"})
