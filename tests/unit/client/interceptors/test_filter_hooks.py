"""Messages that a consumer's own code takes out before its listener."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from rmq_ray.client.consumer.consumer_options import push_settings
from rmq_ray.client.interceptors.consume_hooks import with_filters
from rmq_ray.client.messages.listener import ACK_ALL, RECONSUME_LATER, ConsumeContext
from rmq_ray.client.messages.received import MessageExt, PulledPage
from rmq_ray.errors import ConfigError
from rmq_ray.model.groups import ConsumeFromWhere, ConsumerData, ConsumeType, MessageModel
from rmq_ray.model.ids import MessageQueue
from tests.support.clients.scripted_client import record

QUEUE = MessageQueue("orders", "broker-a", 0)


def messages(count: int) -> list[MessageExt]:
    raw = [record(QUEUE, n, b"%d" % n) for n in range(count)]
    return PulledPage(QUEUE, b"".join(raw), np.array([len(one) for one in raw])).messages()


def even(message: MessageExt) -> bool:
    return int(message.body) % 2 == 0


@pytest.mark.seed("S3-114")
def test_a_listener_gets_what_all_filters_keep_and_units_are_off() -> None:
    seen: list[list[bytes]] = []
    call = with_filters(
        lambda found, ctx: seen.append([m.body for m in found]), [even, lambda m: m.body != b"4"]
    )
    assert call(messages(7), ConsumeContext("g", QUEUE)) is None
    assert call(messages(7)[1:2], ConsumeContext("g", QUEUE)) is None, (
        "taken out altogether: consumed"
    )
    assert seen == [[b"0", b"2", b"6"]]
    assert not ConsumerData(
        "g",
        ConsumeType.CONSUME_PASSIVELY,
        MessageModel.CLUSTERING,
        ConsumeFromWhere.CONSUME_FROM_LAST_OFFSET,
    ).unit_mode


def test_without_filters_or_when_all_pass_the_listener_is_called_as_it_is() -> None:
    assert with_filters(print, ()) is print
    given = messages(3)
    assert (
        with_filters(lambda found, ctx: found is given, [lambda m: True])(
            given, ConsumeContext("g", QUEUE)
        )
        is True
    )
    assert (
        with_filters(lambda found, ctx: RECONSUME_LATER, [even])(given, ConsumeContext("g", QUEUE))
        is RECONSUME_LATER
    )


@pytest.mark.parametrize(
    ("acknowledged", "expected"), [(ACK_ALL, ACK_ALL), (2, 2), (1, 3), (0, 1), (-1, -1)]
)
def test_a_partial_success_covers_what_was_taken_out_before_the_first_unfinished_message(
    acknowledged: int, expected: int
) -> None:
    def listener(found: list[MessageExt], ctx: Any) -> None:
        ctx.ack_index = acknowledged

    ctx = ConsumeContext("g", QUEUE)
    with_filters(listener, [even])(messages(6), ctx)  # 0, 2, 4 are kept
    assert ctx.ack_index == expected


def test_a_filter_that_raises_loses_nothing(caplog: pytest.LogCaptureFixture) -> None:
    seen: list[bytes] = []
    with_filters(
        lambda found, ctx: seen.extend(m.body for m in found), [lambda m: 1 // int(m.body) > 0]
    )(messages(3), ConsumeContext("g", QUEUE))
    assert seen == [b"0", b"1"] and "a filter failed" in caplog.text


@pytest.mark.parametrize(
    "options", [{"filters": [1]}, {"filters": "tag"}, {"filters": [even], "batch": "arrow"}]
)
def test_what_is_no_filter_is_refused(options: dict[str, Any]) -> None:
    with pytest.raises(ConfigError):
        push_settings("g", None, options)
    assert push_settings("g", None, {"filters": [even]}).filters == (even,)
