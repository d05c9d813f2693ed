"""What a listener may answer, and the options of a consumer."""

from __future__ import annotations

import functools
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from rmq_ray.client.consumer.consumer_options import (
    as_ms,
    check_listener,
    pull_settings,
    push_settings,
)
from rmq_ray.client.consumer.subscriptions import check_subscriptions
from rmq_ray.client.messages.listener import (
    ACK_ALL,
    RECONSUME_LATER,
    SUCCESS,
    ConsumeContext,
    Reject,
    judge,
)
from rmq_ray.config import ConsumerConfig
from rmq_ray.errors import ClientError, ConfigError, ConsumeError, SubscriptionInvalid
from rmq_ray.model.arrow import COLUMNS
from rmq_ray.model.groups import ConsumeFromWhere, MessageModel
from rmq_ray.model.ids import MessageQueue
from rmq_ray.model.moments import moment_ms


def context() -> ConsumeContext:
    return ConsumeContext("g", MessageQueue("t", "b", 0))


@pytest.mark.seed("S4-177", "S4-181")
def test_success_is_every_message_and_a_later_retry_none() -> None:
    ctx = context()
    assert (ctx.ack_index, ctx.delay_level_when_next_consume) == (ACK_ALL, 0)
    assert [judge(answer, ctx, 4).done for answer in (None, SUCCESS, RECONSUME_LATER)] == [4, 4, 0]


def test_ack_index_makes_a_success_partial_and_is_capped_at_the_last_message() -> None:
    for ack_index, done in ((-7, 0), (-1, 0), (0, 1), (2, 3), (3, 4), (900, 4)):
        ctx = context()
        ctx.ack_index = ack_index
        assert judge(None, ctx, 4).done == done


@pytest.mark.seed("S4-175")
def test_an_exception_counts_as_reconsume_later_and_is_kept_for_the_log() -> None:
    ctx = context()
    ctx.delay_level_when_next_consume = 5
    error = ValueError("x")
    verdict = judge(error, ctx, 2)
    assert (verdict.done, verdict.delay_level, verdict.fault) == (0, 5, error)


def test_reject_asks_for_the_dead_letter_topic_returned_or_raised() -> None:
    for answer in (Reject, Reject("bad order")):
        verdict = judge(answer, context(), 3)
        assert (verdict.done, verdict.delay_level, verdict.fault) == (0, -1, None)


def test_nonsense_is_a_typed_error_and_counts_as_reconsume_later() -> None:
    for answer in (True, "ok", 0, []):
        verdict = judge(answer, context(), 2)
        assert verdict.done == 0
        assert isinstance(verdict.fault, ConsumeError)


class Unshowable:
    """Whatever is done with it raises."""

    def __repr__(self) -> str:
        raise RuntimeError

    def __eq__(self, other: object) -> bool:
        raise RuntimeError

    __hash__ = None  # type: ignore[assignment]


@pytest.mark.parametrize("value", ["x", None, 1.5, [], Unshowable()])
def test_a_context_with_nonsense_in_it_is_a_typed_error_and_nothing_counts_as_done(
    value: Any,
) -> None:
    ctx = context()
    ctx.ack_index = value
    verdict = judge(None, ctx, 2)
    assert (
        (verdict.done, verdict.delay_level) == (0, 0)
        and isinstance(verdict.fault, ConsumeError)
        and "ack_index" in str(verdict.fault)
    )
    ctx = context()
    ctx.delay_level_when_next_consume = value
    for answer in (RECONSUME_LATER, None):
        ctx.ack_index = 0
        verdict = judge(answer, ctx, 2)
        assert (
            verdict.delay_level == 0
            and isinstance(verdict.fault, ConsumeError)
            and "delay_level" in str(verdict.fault)
        )
    assert isinstance(
        judge(value if value is not None else Unshowable(), context(), 2).fault, ConsumeError
    )


def test_levels_beyond_what_a_request_can_say_are_the_highest_and_negative_ones_dead_letters() -> (
    None
):
    for given, told in ((10**12, (1 << 31) - 1), (-7, -1), (True, 1)):
        ctx = context()
        ctx.delay_level_when_next_consume = given
        assert judge(RECONSUME_LATER, ctx, 1).delay_level == told


@pytest.mark.seed("S4-030", "S4-031", "S3-126")
def test_without_options_a_consumer_is_clustering_and_starts_last() -> None:
    settings = push_settings("g", None, {})
    assert (settings.model, settings.start_from, settings.strategy.name) == (
        MessageModel.CLUSTERING,
        ConsumeFromWhere.CONSUME_FROM_LAST_OFFSET,
        "AVG",
    )


@pytest.mark.seed("S4-036", "S4-037", "S4-039", "S4-040", "S4-041")
def test_defaults_of_threads_and_thresholds_are_rocketmqs() -> None:
    config = push_settings("g", None, {}).config
    assert (
        config.concurrency,
        config.max_span,
        config.threshold_messages,
        config.threshold_mib,
    ) == (20, 2_000, 1_000, 100)


@pytest.mark.seed("S4-042", "S4-043", "S4-077")
def test_defaults_of_pulls_and_batches_are_rocketmqs() -> None:
    config = push_settings("g", None, {}).config
    assert (
        config.pull_interval_ms,
        config.batch_size,
        config.max_reconsume_times,
        config.suspend_ms,
        config.pull_timeout_ms,
    ) == (0, 1, -1, 15_000, 30_000)
    assert (
        config.exception_delay_ms,
        config.flow_control_delay_ms,
        config.offset_illegal_delay_ms,
        config.consume_timeout_minutes,
    ) == (1_000, 50, 10_000, 15)


@pytest.mark.seed("S3-111")
def test_options_are_put_over_the_configuration() -> None:
    settings = push_settings(
        "g",
        ConsumerConfig("other", concurrency=3),
        {"batch_size": 32, "start_from": "timestamp", "start_at": 77, "allocate": "avg_by_circle"},
    )
    assert (
        settings.config.group,
        settings.config.concurrency,
        settings.config.batch_size,
        settings.config.consume_timestamp_ms,
    ) == ("g", 3, 32, 77)
    assert (settings.start_from, settings.strategy.name) == (
        ConsumeFromWhere.CONSUME_FROM_TIMESTAMP,
        "AVG_BY_CIRCLE",
    )


@pytest.mark.parametrize(
    "options",
    [
        {"orderly": 1},
        {"columns": ["body"]},
        {"batch": "arrow", "columns": ["x"]},
        {"hooks": [7]},
        {"model": "x"},
        {"batch": "x"},
        {"start_from": "middle"},
        {"allocate": "x"},
        {"concurrency": 0},
        {"batch_size": 1025},
        {"max_reconsume_times": -2},
        {"start_at": "now"},
        {"cocurrency": 3},
        {"batch_size": "a"},
        {"batch_size": True},
        {"concurrency": 2.5},
        {"max_reconsume_times": "x"},
        {"max_reconsume_times": 1.5},
        {"namespace": 3},
        {"batch": "arrow", "columns": 3},
        {"model": None},
        {"start_from": None},
        {"allocate": None},
    ],
)
def test_what_is_wrong_is_a_configuration_error(options: dict[str, Any]) -> None:
    with pytest.raises(ConfigError):
        push_settings("g", None, options)


@pytest.mark.seed("S4-034")
def test_a_moment_to_begin_at_is_heeded_or_refused_but_never_passed_over() -> None:
    moment = datetime(2026, 1, 2, 3, 4, 5, 678_000, UTC)
    for options in ({"start_at": moment}, {"start_at": moment, "start_from": "timestamp"}):
        settings = push_settings("g", None, options)
        assert (settings.start_from, settings.config.consume_timestamp_ms) == (
            ConsumeFromWhere.CONSUME_FROM_TIMESTAMP,
            1_767_323_045_678,
        )
    assert (
        pull_settings("g", None, {"start_at": moment}).start_from
        is ConsumeFromWhere.CONSUME_FROM_TIMESTAMP
    )
    for name in ("first", "last"):
        with pytest.raises(
            ConfigError, match=f"start_at goes with start_from='timestamp', not with '{name}'"
        ):
            push_settings("g", None, {"start_at": moment, "start_from": name})
    with pytest.raises(
        ConfigError, match="'timestamp' .with the moment as start_at., not datetime"
    ):
        push_settings("g", None, {"start_from": moment})


@pytest.mark.parametrize(
    "moment",
    [
        datetime.min,
        datetime(1969, 12, 31, tzinfo=UTC),
        datetime.max.replace(tzinfo=UTC) - timedelta(1),
        -1,
        True,
        "now",
        None,
    ],
)
def test_a_moment_is_a_time_since_1970(moment: Any) -> None:
    if isinstance(moment, datetime) and moment.year > 1970:
        assert as_ms(moment) == moment_ms(moment)
        return
    with pytest.raises(ConfigError, match="a moment must be a datetime or ms since 1970, not"):
        as_ms(moment)


@pytest.mark.parametrize(
    "name",
    [
        "consume_timeout_minutes",
        "rebalance_ms",
        "heartbeat_ms",
        "exception_delay_ms",
        "flow_control_delay_ms",
    ],
)
def test_a_pause_of_nothing_that_would_turn_a_loop_without_rest_is_refused(name: str) -> None:
    for wrong in (0, -1, 1.5, "1"):
        with pytest.raises(ConfigError, match=name):
            ConsumerConfig("g", **{name: wrong})


def test_a_configuration_of_another_kind_is_refused() -> None:
    with pytest.raises(ConfigError, match="ConsumerConfig"):
        push_settings("g", {"concurrency": 3}, {})  # type: ignore[arg-type]


@pytest.mark.parametrize("name", ["", "a b", "DEFAULT_CONSUMER", "x" * 121, "../etc"])
def test_an_illegal_group_is_refused(name: str) -> None:
    with pytest.raises(ClientError):
        push_settings(name, None, {})


@pytest.mark.seed("S3-111")
def test_subscriptions_are_tag_expressions_of_legal_topics() -> None:
    assert check_subscriptions({"a": "x || y", "b": None}) == {"a": "x || y", "b": None}
    cases: tuple[tuple[Any, type[Exception]], ...] = (
        ({}, ConfigError),
        ({"a": object()}, ConfigError),
        ({"a": "||"}, SubscriptionInvalid),
        ({"a/b": "*"}, ClientError),
        (None, ConfigError),
        ("a", ConfigError),
    )
    for subscriptions, error in cases:
        with pytest.raises(error):
            check_subscriptions(subscriptions)


def test_a_listener_is_a_callable_or_a_coroutine_function() -> None:
    async def coroutine(messages: Any, ctx: Any) -> None: ...

    class Callable:
        def __call__(self, messages: Any, ctx: Any) -> None: ...

    check_listener(Callable())
    check_listener(lambda messages, ctx: None)
    check_listener(coroutine)
    for good in (
        lambda *both: None,
        lambda messages, ctx, more=1: None,
        print,
        min,
        functools.partial(lambda more, messages, ctx: None, 1),
    ):
        check_listener(good)
    for wrong in (None, "f", Callable):
        with pytest.raises(ConfigError):
            check_listener(wrong)


def test_a_listener_that_every_message_would_fail_in_is_refused_before_the_first_one() -> None:
    class Method:
        def handle(self, message: Any) -> None: ...

    async def coroutine(message: Any) -> None: ...

    for wrong in (
        lambda: None,
        lambda message: None,
        lambda messages, ctx, more: None,
        lambda messages, *, ctx: None,
        Method().handle,
        coroutine,
    ):
        with pytest.raises(ConfigError, match=r"\(messages, ctx\)"):
            check_listener(wrong)


def test_arrow_batches_are_pages_unless_the_settings_say_otherwise() -> None:
    settings = push_settings("g", None, {"batch": "arrow"})
    assert (settings.config.batch_size, settings.config.pull_records, settings.columns) == (
        8_192,
        8_192,
        COLUMNS,
    )
    assert push_settings(
        "g", None, {"batch": "arrow", "batch_size": 7, "columns": "body"}
    ).columns == ("body",)
    assert push_settings("g", ConsumerConfig("g"), {"batch": "arrow"}).config.batch_size == 1
    assert push_settings("g", None, {}).columns is None


def test_broadcasting_is_a_model() -> None:
    assert (
        push_settings("g", None, {"model": "broadcasting"}).broadcasting
        and not push_settings("g", None, {"model": "clustering"}).broadcasting
    )
