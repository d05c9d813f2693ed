"""The parts of a pull consumer: options, pausing, what lies between pull and poll, what a broker's
answer means.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import numpy as np
import pytest

from rmq_ray.client.consumer.assigned_queue import AssignedQueue, ReadyBatch, cut
from rmq_ray.client.consumer.consumer_options import pull_settings
from rmq_ray.client.consumer.flow_control import PauseTable
from rmq_ray.client.messages.received import PulledPage
from rmq_ray.client.pull.prefetch_buffer import PrefetchBuffer, PrefetchLimits
from rmq_ray.client.pull.queue_queries import OnePull, PullResult, QueueQueries
from rmq_ray.clock import ManualClock
from rmq_ray.config import ConsumerConfig
from rmq_ray.errors import (
    ClientError,
    ConfigError,
    ConsumeError,
    GroupNotFound,
    NotAuthorized,
    ResponseError,
    SubscriptionInvalid,
    TopicNotFound,
)
from rmq_ray.model.groups import ConsumeFromWhere
from rmq_ray.model.ids import Address, MessageQueue
from rmq_ray.model.pulling import GetMessageStatus, PullStatus, PullSysFlag
from rmq_ray.protocol.filters.subscriptions import parse_subscription
from rmq_ray.remoting.wire.codes import RequestCode, ResponseCode
from rmq_ray.remoting.wire.frame import Command
from rmq_ray.remoting.wire.records import pack_pull_answer, unpack_pull
from rmq_ray.server.pull.pull_results import response_code
from tests.support.clients.scripted_client import ScriptedClient, record

ORDERS = [MessageQueue("orders", "broker-a", number) for number in range(4)]


def page(queue: MessageQueue, first: int, count: int, body: bytes = b"body") -> PulledPage:
    records = [record(queue, first + i, body) for i in range(count)]
    return PulledPage(queue, b"".join(records), np.array([len(one) for one in records], ">i4"))


# --- options --------------------------------------------------------------------------------------


def test_settings_are_those_of_lite_pull_unless_given() -> None:
    settings = pull_settings("g", None, {})
    assert (settings.auto_commit, settings.auto_commit_interval_ms, settings.prefetch_messages) == (
        True,
        5_000,
        10_000,
    )
    assert (
        settings.config.threshold_messages,
        settings.config.threshold_mib,
        settings.config.max_span,
    ) == (1_000, 100, 2_000)
    assert (settings.config.batch_size, settings.start_from) == (
        8_192,
        ConsumeFromWhere.CONSUME_FROM_LAST_OFFSET,
    )
    given = pull_settings(
        "g",
        ConsumerConfig("other", pull_records=32),
        {"start_from": "timestamp", "start_at": datetime(2026, 1, 1, tzinfo=UTC)},
    )
    assert (given.config.group, given.config.pull_records, given.config.consume_timestamp_ms) == (
        "g",
        32,
        1_767_225_600_000,
    )


@pytest.mark.parametrize(
    ("options", "what"),
    [
        ({"auto_commit_interval_ms": 999}, "1000 to"),
        ({"prefetch_messages": 0}, "prefetch_messages must be"),
        ({"prefetch_mib": True}, "not True"),
        ({"concurrency": 3}, "unknown option 'concurrency' of PullConsumer"),
        ({"start_from": "middle"}, "'last', 'first' or 'timestamp'"),
    ],
)
def test_wrong_options_are_refused_with_the_remedy(options: dict[str, Any], what: str) -> None:
    with pytest.raises(ConfigError, match=what):
        pull_settings("g", None, options)


# --- pausing --------------------------------------------------------------------------------------


def test_pausing_a_topic_covers_its_queues_and_resuming_it_resumes_them_one_by_one_paused_too() -> (
    None
):
    table = PauseTable()
    table.add([ORDERS[1], "bills"])
    assert [
        table.covers(queue) for queue in (ORDERS[0], ORDERS[1], MessageQueue("bills", "b", 7))
    ] == [False, True, True]
    table.add(["orders"])
    assert table.covers(ORDERS[0])
    table.remove(["orders"])
    assert not table.covers(ORDERS[1]) and table.all() == ["bills"]
    table.clear()
    assert table.all() == []
    with pytest.raises(ClientError, match="cannot be paused"):
        table.add([7])  # type: ignore[list-item]


# --- between pull and poll ------------------------------------------------------------------------


class Ready:
    """A buffer and its queues."""

    def __init__(self) -> None:
        self.clock: Any = ManualClock()
        self.pauses = PauseTable()
        self.buffer = PrefetchBuffer(self.pauses, self.clock)

    def queue(self, number: int = 0, first: int = 0) -> AssignedQueue:
        return AssignedQueue(ORDERS[number], first, 0)

    def put(self, work: AssignedQueue, first: int, count: int) -> list[ReadyBatch]:
        batches = cut(work, page(work.queue, first, count), range(count), 1_024)
        for batch in batches:
            work.process.put(batch)
        self.buffer.put(batches)
        return batches

    def offsets(self, count: int) -> list[int]:
        return [message.queue_offset for message in self.buffer.take(count, 0)[0]]


def test_messages_leave_in_the_order_in_which_they_came_cut_at_the_asked_number() -> None:
    ready = Ready()
    one, two = ready.queue(0), ready.queue(1, 50)
    ready.put(one, 0, 5)
    ready.put(two, 50, 2)
    ready.put(one, 5, 3)
    assert (ready.buffer.messages, ready.buffer.body_bytes) == (10, 40)
    batch, owners = ready.buffer.take(6, 0)
    assert ([m.queue_offset for m in batch], batch.next_offsets, owners) == (
        [0, 1, 2, 3, 4, 50],
        {ORDERS[0]: 5, ORDERS[1]: 51},
        [one, two],
    )
    assert (one.position, two.position, two.process.count, ready.buffer.messages) == (5, 51, 1, 4)
    assert ready.offsets(100) == [51, 5, 6, 7]
    assert (one.position, two.position, ready.buffer.messages, ready.buffer.body_bytes) == (
        8,
        52,
        0,
        0,
    )


def test_paused_queues_stay_where_they_are_and_dropped_ones_vanish() -> None:
    ready = Ready()
    one, two, three = ready.queue(0), ready.queue(1), ready.queue(2)
    for work in (one, two, three):
        ready.put(work, 0, 2)
    ready.put(one, 2, 1)
    ready.pauses.add([ORDERS[0]])
    two.process.drop()
    batch, owners = ready.buffer.take(100, 0)
    assert (batch.queues, owners, ready.buffer.messages) == ([ORDERS[2]], [three], 3)
    ready.pauses.clear()
    assert ready.offsets(2) == [0, 1] and ready.offsets(2) == [2]
    ready.put(three, 2, 4)
    three.process.drop()
    ready.buffer.discard(three)
    assert (ready.buffer.messages, ready.buffer.body_bytes, ready.offsets(9)) == (0, 0, [])


def test_limits_hold_for_all_queues_together() -> None:
    ready = Ready()
    flow = PrefetchLimits(ConsumerConfig("g"), ready.buffer, messages=10, mib=1)
    idle, busy = ready.queue(0), ready.queue(1)
    assert flow.pressure("orders", idle.process) is None and not flow.starved
    ready.put(busy, 0, 11)
    assert flow.pressure("orders", idle.process) is not None and flow.starved
    ready.offsets(5)
    assert flow.pressure("orders", idle.process) is None


# --- what a broker's answer means -----------------------------------------------------------------

PULLS = [
    (GetMessageStatus.FOUND, 5, PullStatus.FOUND),
    (GetMessageStatus.NO_MATCHED_MESSAGE, 5, PullStatus.NO_MATCHED_MSG),
    (GetMessageStatus.MESSAGE_WAS_REMOVING, 5, PullStatus.NO_MATCHED_MSG),
    (GetMessageStatus.OFFSET_FOUND_NULL, 5, PullStatus.NO_NEW_MSG),
    (GetMessageStatus.OFFSET_OVERFLOW_ONE, 5, PullStatus.NO_NEW_MSG),
    (GetMessageStatus.OFFSET_OVERFLOW_BADLY, 5, PullStatus.OFFSET_ILLEGAL),
    (GetMessageStatus.OFFSET_TOO_SMALL, 5, PullStatus.OFFSET_ILLEGAL),
    (GetMessageStatus.NO_MATCHED_LOGIC_QUEUE, 0, PullStatus.NO_NEW_MSG),
    (GetMessageStatus.NO_MATCHED_LOGIC_QUEUE, 5, PullStatus.OFFSET_ILLEGAL),
    (GetMessageStatus.NO_MESSAGE_IN_QUEUE, 0, PullStatus.NO_NEW_MSG),
    (GetMessageStatus.NO_MESSAGE_IN_QUEUE, 5, PullStatus.OFFSET_ILLEGAL),
]


def ask(
    answer: Callable[[Command], Command], offset: int = 5, expression: str = "*"
) -> tuple[PullResult, Any]:
    client = ScriptedClient()
    client.add_topic("orders")
    client.answer(RequestCode.PULL_RECORDS, lambda command, _address: answer(command))
    result = QueueQueries(client, "g").pull(
        ORDERS[0], parse_subscription("orders", expression, 7), OnePull(offset, 32, 1_000)
    )
    body: Any = client.requests(RequestCode.PULL_RECORDS)[0].body
    return result, unpack_pull(body)


@pytest.mark.seed("S4-111", "S4-114")
@pytest.mark.parametrize(
    ("found", "offset", "status"), PULLS, ids=lambda value: getattr(value, "name", str(value))
)
def test_every_status_of_the_store_reaches_the_client_with_the_corrected_offset(
    found: GetMessageStatus, offset: int, status: PullStatus
) -> None:
    records = [record(ORDERS[0], offset)] if found is GetMessageStatus.FOUND else []
    sizes = np.array([len(one) for one in records], ">i4")
    result, asked = ask(
        lambda command: command.answer(
            response_code(found, offset),
            body=pack_pull_answer(77, 3, 99, 1, 0, sizes, tuple(records)),
        ),
        offset,
    )
    assert (
        result.status,
        result.next_offset,
        result.min_offset,
        result.max_offset,
        len(result.messages),
    ) == (status, 77, 3, 99, len(records))
    assert asked.sys_flag == int(PullSysFlag.SUBSCRIPTION | PullSysFlag.LITE_PULL) and (
        asked.expression,
        asked.offset,
    ) == ("*", offset)


def test_the_table_of_statuses_is_complete() -> None:
    assert {found for found, _, _ in PULLS} == set(GetMessageStatus) and {
        status for _, _, status in PULLS
    } == set(PullStatus)


def test_messages_whose_tag_only_has_the_same_code_are_left_out() -> None:
    records = [
        record(ORDERS[0], 5 + i, b"x", f"TAGS\x01{tag}") for i, tag in enumerate(("Aa", "BB"))
    ]
    sizes = np.array([len(one) for one in records], ">i4")
    assert [
        m.tag
        for m in ask(
            lambda command: command.answer(
                0, body=pack_pull_answer(7, 0, 7, 1, 0, sizes, tuple(records))
            ),
            expression="Aa",
        )[0].messages
    ] == ["Aa"]
    nothing, _ = ask(
        lambda command: command.answer(
            0, body=pack_pull_answer(7, 0, 7, 1, 0, sizes, tuple(records))
        ),
        expression="C#",
    )
    assert (nothing.status, nothing.next_offset) == (PullStatus.NO_MATCHED_MSG, 7)


@pytest.mark.parametrize(
    ("code", "error"),
    [
        (ResponseCode.TOPIC_NOT_EXIST, TopicNotFound),
        (ResponseCode.SUBSCRIPTION_PARSE_FAILED, SubscriptionInvalid),
        (ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, GroupNotFound),
        (ResponseCode.NO_PERMISSION, NotAuthorized),
        (ResponseCode.FLOW_CONTROL, ConsumeError),
        (ResponseCode.STILL_RECOVERING, ResponseError),
    ],
)
def test_a_refused_pull_is_the_error_that_it_means(
    code: ResponseCode, error: type[Exception]
) -> None:
    with pytest.raises(error, match="as the test wants it"):
        ask(lambda command: command.answer(code, remark="as the test wants it"))


def test_a_queue_whose_broker_no_route_tells_is_not_found() -> None:
    client = ScriptedClient()
    client.add_topic("orders")
    with pytest.raises(TopicNotFound, match="broker-z"):
        QueueQueries(client, "g").bounds(MessageQueue("orders", "broker-z", 0))
    assert Address("10.0.0.1", 10911) not in client.down
