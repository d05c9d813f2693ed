"""Many failed messages go back in bundles; those that a bundle did not settle go one by one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgpack
import numpy as np
import pytest

from rmq_ray.client.messages.received import MessageExt, PulledPage
from rmq_ray.client.push.send_back import BUNDLE_MAX, RetrySender
from rmq_ray.clock import ManualClock
from rmq_ray.errors import ConnectFailed, ConnectionLost, RequestTimeout
from rmq_ray.model.ids import Address
from rmq_ray.remoting.wire.codes import RequestCode
from rmq_ray.remoting.wire.frame import Command
from tests.support.clients.scripted_client import ScriptedClient, record

BACK = RequestCode.CONSUMER_SEND_MSG_BACK


def failed(client: ScriptedClient, count: int) -> list[MessageExt]:
    queue = client.add_topic("orders", 1)[0]
    raw = [record(queue, n) for n in range(count)]
    return list(
        PulledPage(queue, b"".join(raw), np.array([len(one) for one in raw], np.int32)).messages()
    )


def bundles(answer: Callable[[list[Any]], list[int]]) -> Callable[[Command, Address], Command]:
    def answered(command: Command, _address: Address) -> Command:
        codes = answer(msgpack.unpackb(command.body_bytes()))
        return command.answer(body=msgpack.packb([[code, {}, None] for code in codes]))

    return answered


def back(client: ScriptedClient) -> RetrySender:
    return RetrySender(client, "g", 16, ManualClock())


def test_a_batch_goes_back_in_a_few_requests() -> None:
    client = ScriptedClient()
    seen: list[int] = []
    client.answer(
        RequestCode.BUNDLE,
        bundles(
            lambda parts: seen.extend(int(part[1]["offset"]) for part in parts) or [0] * len(parts)
        ),
    )
    messages = failed(client, BUNDLE_MAX + 44)
    assert back(client).send_back_all(messages, 3) == []
    assert len(client.sent) == 2 and seen == [message.log_offset for message in messages]
    (fields,) = {
        (part[1]["group"], part[1]["delayLevel"], part[0])
        for part in msgpack.unpackb(client.sent[0][1].body_bytes())
    }
    assert fields == ("g", "3", BACK)


def test_what_a_bundle_refused_is_asked_for_by_itself_and_what_nobody_takes_is_kept() -> None:
    client = ScriptedClient()
    client.answer(RequestCode.BUNDLE, bundles(lambda parts: [0, 1, 0, 1, 0]))
    messages = failed(client, 5)
    client.answer(
        BACK,
        lambda command, _address: command.answer(
            0 if (command.fields or {})["offset"] == str(messages[1].log_offset) else 1
        ),
    )
    assert back(client).send_back_all(messages, 0) == [messages[3]]
    assert len(client.requests(BACK)) == 2


@pytest.mark.parametrize(
    "outcome",
    [
        lambda command, _: ConnectFailed("refused", "x"),
        lambda command, _: command.answer(16),
        lambda command, _: command.answer(body=b"\xc1"),
        bundles(lambda _: [0]),
    ],
    ids=["unreachable", "refused", "unreadable", "too few"],
)
def test_where_there_are_no_bundles_each_message_goes_by_itself(outcome: Any) -> None:
    client = ScriptedClient()
    client.answer(RequestCode.BUNDLE, outcome)
    assert (
        back(client).send_back_all(failed(client, 3), 0) == [] and len(client.requests(BACK)) == 3
    )


@pytest.mark.parametrize("outcome", [ConnectionLost("gone", "x"), RequestTimeout("late", "x")])
def test_a_bundle_without_an_answer_may_be_kept_and_is_not_asked_for_again_at_once(
    outcome: Exception,
) -> None:
    client = ScriptedClient()
    client.answer(RequestCode.BUNDLE, lambda command, _: outcome)
    messages = failed(client, 3)
    assert back(client).send_back_all(messages, 0) == messages and client.requests(BACK) == []


def test_one_message_needs_no_bundle_and_none_nothing() -> None:
    client = ScriptedClient()
    assert (
        back(client).send_back_all(failed(client, 1), 0) == back(client).send_back_all([], 0) == []
    )
    assert [command.code for _, command in client.sent] == [BACK]
