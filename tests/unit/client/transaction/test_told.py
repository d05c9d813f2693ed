"""What a user is told of halves and ends that the broker has less safely than asked for."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from rmq_ray.client.transaction.transaction_engine import Half, TransactionEngine
from rmq_ray.client.transaction.transaction_listener import checked_half
from rmq_ray.errors import TransactionEnded, TransactionError, TransactionUnknown
from rmq_ray.model.ids import MessageQueue, QueueOffset
from rmq_ray.model.message import SendResult, SendStatus
from rmq_ray.protocol.transaction import LocalTransactionState
from rmq_ray.remoting.wire.codes import ResponseCode

COMMIT = LocalTransactionState.COMMIT_MESSAGE


def half(status: SendStatus) -> SendResult:
    return SendResult(status, "ID", MessageQueue("orders", "broker-a", 0), QueueOffset(0))


@pytest.fixture
def engine() -> TransactionEngine:
    core: Any = SimpleNamespace(
        config=SimpleNamespace(
            send_timeout_ms=3_000, batch_messages_max=1, batch_bytes_max=1, group="g"
        ),
        engine=SimpleNamespace(of_halves=lambda: SimpleNamespace(clock=None, config=core.config)),
        identity=None,
        async_sender=None,
        instance=SimpleNamespace(clock=None),
        group="g",
        requests={},
        closers=[],
    )
    return TransactionEngine(core)


@pytest.mark.parametrize("status", [each for each in SendStatus if each is not SendStatus.SEND_OK])
def test_an_end_that_was_not_confirmed_is_unknown_and_stays_decided(
    engine: TransactionEngine, status: SendStatus
) -> None:
    ended = Half(half(SendStatus.SEND_OK), "ID")
    engine.decide(ended, COMMIT)
    with pytest.raises(TransactionUnknown, match=status.name):
        engine.settle(ended, COMMIT, status.value, None)
    assert engine.known("ID") is COMMIT, "a broker that asks is told so"
    with pytest.raises(TransactionEnded):
        engine.settle(ended, COMMIT, ResponseCode.TRANSACTION_FAILED, "rolled back")
    assert engine.known("ID") is None


def test_a_half_that_was_not_confirmed_is_raised_unless_its_status_is_asked_for() -> None:
    poor = half(SendStatus.SLAVE_NOT_AVAILABLE)
    with pytest.raises(TransactionError, match=r"SLAVE_NOT_AVAILABLE by broker-a.*rolled back"):
        checked_half(poor, True)
    checked_half(poor, False)
    checked_half(half(SendStatus.SEND_OK), True)
