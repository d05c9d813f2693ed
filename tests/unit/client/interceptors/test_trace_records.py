"""The thread that sends trace records: what it drops, how it cuts, and that nobody waits for it."""

from __future__ import annotations

import threading
from types import SimpleNamespace
from typing import Any, cast

import pytest

from rmq_ray.client.instance.managed import ServiceState
from rmq_ray.client.interceptors import message_trace
from rmq_ray.client.interceptors.message_trace import TraceDispatcher
from rmq_ray.clock import ManualClock
from rmq_ray.errors import ConnectionLost
from rmq_ray.model.ids import Address, MessageQueue
from rmq_ray.model.message import decode_properties
from rmq_ray.model.trace import SubBefore, decode
from rmq_ray.remoting.wire.frame import Command
from rmq_ray.remoting.wire.headers import SendHeader


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """A close waits for what is queued, however long its thread has no turn."""
    monkeypatch.setattr(message_trace, "STOP_S", 60.0)


class FakeClient:
    """As much of a client instance as tracing touches. ``outcomes``: codes or errors of the next
    sends, then 0.
    """

    def __init__(self, outcomes: list[Any] | None = None) -> None:
        self.client_id, self.clock, self.state = "c", ManualClock(), ServiceState.RUNNING
        self.sent: list[Command] = []
        self.gate = threading.Event()
        self.gate.set()
        self._outcomes = outcomes or []
        queues = tuple(MessageQueue("RMQ_SYS_TRACE_TOPIC", "b", number) for number in range(2))
        self.routes = SimpleNamespace(find_publish=lambda topic: SimpleNamespace(queues=queues))

    def broker_address(self, name: str) -> Address:
        return Address("h", 1)

    def invoke(self, address: Address, command: Command, timeout_ms: float) -> Command:
        self.gate.wait(10)
        self.sent.append(command)
        outcome = self._outcomes.pop(0) if self._outcomes else 0
        if isinstance(outcome, Exception):
            raise outcome
        return command.answer(outcome)

    def records(self) -> list[Any]:
        return [record for command in self.sent for record in decode(command.body_bytes())]


def dispatcher(client: FakeClient) -> TraceDispatcher:
    return TraceDispatcher(cast(Any, client), "RMQ_SYS_TRACE_TOPIC")


def record(n: int, keys: str = "") -> SubBefore:
    return SubBefore(n, "r", "g", "q", f"ID{n}", 0, keys)


def test_records_leave_together_and_the_rest_when_it_closes() -> None:
    client = FakeClient()
    made = dispatcher(client)
    made.start()
    assert all(made.add(record(n, "k")) for n in range(250))
    made.close()
    assert (
        client.records() == [record(n, "k") for n in range(250)]
        and len(client.sent) < 50
        and made.sent == 250
    )
    header = SendHeader.from_v2(client.sent[0].fields)
    assert (
        header.topic == "RMQ_SYS_TRACE_TOPIC"
        and "ID0" in decode_properties(header.properties or "")["KEYS"].split()
    )
    assert not made.add(record(1)) and made.dropped == 1


def test_a_full_queue_drops_and_never_blocks(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(message_trace, "QUEUE_MAX", 8)
    client = FakeClient()
    client.gate.clear()
    made = dispatcher(client)
    made.start()
    taken = [made.add(record(n)) for n in range(200)]
    assert (
        taken.count(True) <= 8 + message_trace.BATCH_MAX and made.dropped == taken.count(False) > 0
    )
    client.gate.set()
    made.close()
    assert len(client.records()) == taken.count(True) and "dropped" in caplog.text


def test_a_batch_longer_than_the_queue_is_traced_whole_and_many_of_them_have_a_limit(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(message_trace, "QUEUE_MAX", 8)
    monkeypatch.setattr(message_trace, "RECORDS_MAX", 500)
    client = FakeClient()
    client.gate.clear()
    made = dispatcher(client)
    made.start()
    taken = [made.add(*(record(n) for n in range(300))) for _ in range(5)]
    assert taken[0] and taken.count(True) in (1, 2) and made.dropped == 300 * taken.count(False)
    client.gate.set()
    made.close()
    assert len(client.records()) == 300 * taken.count(True) == made.sent


def test_large_records_are_cut_into_several_messages(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(message_trace, "MESSAGE_BYTES_MAX", 1_000)
    client = FakeClient()
    made = dispatcher(client)
    made.start()
    for n in range(20):
        made.add(record(n, "k" * 300))
    made.close()
    assert (
        client.records() == [record(n, "k" * 300) for n in range(20)]
        and max(len(command.body_bytes()) for command in client.sent) <= 1_000
    )


def test_a_message_that_fails_is_repeated_once_then_dropped_and_the_thread_goes_on() -> None:
    client = FakeClient([ConnectionLost("broke"), 0, ConnectionLost("broke"), 14, 0])
    made = dispatcher(client)
    for n in range(3):
        made._send([record(n)], "x")
    assert (made.sent, made.dropped) == (2, 1)


@pytest.mark.seed("S3-006")
def test_a_trace_that_cannot_start_is_only_warned_of(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(_self: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", fail)
    made = dispatcher(FakeClient())
    made.start()
    assert not made.add(record(1)) and made.dropped == 1 and "nothing is traced" in caplog.text
    made.close()
