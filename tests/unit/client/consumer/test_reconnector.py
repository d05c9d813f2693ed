"""A broker that was lost: it is asked until it answers, and then looked for in the routes."""

from __future__ import annotations

import threading
from types import SimpleNamespace
from typing import Any

import pytest

from rmq_ray.client.consumer import consumer_engine
from rmq_ray.client.consumer.consumer_engine import LOOKS_MIN, Reconnector
from rmq_ray.clock import ManualClock
from rmq_ray.model.ids import Address
from rmq_ray.remoting.wire.codes import ResponseCode
from rmq_ray.remoting.wire.frame import Command


class Client:
    """What a reconnector asks of its client instance. Routes show the broker after two looks."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.client_id = "c"
        self.routes = self
        self.looks: list[str] = []
        self.shown = threading.Event()

    def invoke(self, _address: Address, command: Command, _timeout_ms: float) -> Command:
        return command.answer(ResponseCode.SUCCESS)

    def refresh_route_soon(self, topic: str) -> None:
        self.looks.append(topic)
        if len(self.looks) >= LOOKS_MIN:
            self.shown.set()

    def route(self, _topic: str) -> Any:
        names = ["broker-a"] if self.shown.is_set() else []
        return SimpleNamespace(brokers=[SimpleNamespace(broker_name=name) for name in names])

    def broker_address(self, _name: str) -> Address:
        return Address("127.0.0.1", 10911)

    def addresses(self, _name: str) -> dict[int, Address]:
        return {0: self.broker_address(_name)}


def test_a_broker_that_answers_again_is_looked_for_in_the_routes_until_they_show_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(consumer_engine, "ROUTES_MS", 1)
    client, back = Client(), threading.Event()
    data = SimpleNamespace(subscriptions=[SimpleNamespace(topic="orders")])
    monkeypatch.setattr(consumer_engine, "encode_heartbeat", lambda *_: b"")
    lost = Reconnector(
        client,  # type: ignore[arg-type]
        lambda: data,  # type: ignore[arg-type,return-value]
        lambda _name: None,
        lambda _name: back.set(),
    )
    lost.lost("broker-a")
    assert back.wait(10) and client.shown.wait(10)
    assert client.looks[:LOOKS_MIN] == ["orders"] * LOOKS_MIN
    assert not lost.is_down("broker-a")
