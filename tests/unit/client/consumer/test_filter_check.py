"""The check of SQL filters at a broker, before a consumer begins: what each answer means."""

from __future__ import annotations

import json
from typing import Any, cast

import pytest

from rmq_ray.client.consumer.subscriptions import FIRST_VERSION_WITH_FILTERS, check_sql_filters
from rmq_ray.client.instance.client_instance import ClientInstance
from rmq_ray.errors import ConnectFailed, SubscriptionInvalid
from rmq_ray.model.ids import Address
from rmq_ray.protocol.filters.subscriptions import parse_subscription, sql
from rmq_ray.remoting.wire.codes import RequestCode, ResponseCode
from rmq_ray.remoting.wire.frame import Command

BY_SQL = parse_subscription("orders", sql("a > 1"), 7)
BY_TAG = parse_subscription("bills", "x", 7)


class Broker:
    """Answers as told; ``asked`` keeps the bodies."""

    def __init__(
        self, code: int = 0, version: int = 407, remark: str | None = None, known: bool = True
    ) -> None:
        self.client_id = "me"
        self.asked: list[dict[str, Any]] = []
        self._answer = (code, version, remark)
        self._known = known

    def broker_for_topic(self, topic: str) -> Address | None:
        return Address("127.0.0.1", 1) if self._known else None

    def invoke(self, address: Address, command: Command) -> Command:
        assert command.code == RequestCode.CHECK_CLIENT_CONFIG
        self.asked.append(json.loads(bytes(command.body_bytes())))
        code, version, remark = self._answer
        if code < 0:
            raise ConnectFailed("nobody there")
        answer = command.answer(code, remark=remark)
        answer.version = version
        return answer


def check(broker: Broker) -> list[dict[str, Any]]:
    check_sql_filters(cast(ClientInstance, broker), "billing", (BY_TAG, BY_SQL))
    return broker.asked


def test_only_sql_filters_are_checked() -> None:
    (asked,) = check(Broker())
    assert asked["clientId"] == "me" and asked["group"] == "billing"
    assert (
        asked["subscriptionData"]["subString"],
        asked["subscriptionData"]["expressionType"],
    ) == ("a > 1", "SQL92")


@pytest.mark.seed("S4-081")
def test_a_broker_that_is_too_old_for_filters_is_refused() -> None:
    assert check(Broker(version=FIRST_VERSION_WITH_FILTERS))
    for broker in (
        Broker(version=FIRST_VERSION_WITH_FILTERS - 1),
        Broker(code=ResponseCode.REQUEST_CODE_NOT_SUPPORTED),
    ):
        with pytest.raises(SubscriptionInvalid, match="too old"):
            check(broker)


def test_a_refusal_is_told_with_the_brokers_words() -> None:
    for code in (ResponseCode.SYSTEM_ERROR, ResponseCode.SUBSCRIPTION_PARSE_FAILED):
        with pytest.raises(SubscriptionInvalid, match="not here"):
            check(Broker(code, remark="not here"))


def test_a_broker_that_cannot_answer_now_refuses_nothing(caplog: pytest.LogCaptureFixture) -> None:
    for broker in (Broker(-1), Broker(ResponseCode.STILL_RECOVERING), Broker(known=False)):
        check(broker)
    assert "was not checked" in caplog.text
