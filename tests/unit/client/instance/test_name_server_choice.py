"""Which name server is asked, and for how long."""

from __future__ import annotations

from typing import Any

import pytest

from rmq_ray.client.instance.broker_link import BrokerLink
from rmq_ray.clock import ManualClock
from rmq_ray.config import RemotingLimits
from rmq_ray.errors import ConnectFailed
from rmq_ray.model.ids import Address
from rmq_ray.ports import ClusterAddress
from rmq_ray.remoting.wire.frame import Command

A, B = "10.0.0.1:9876", "10.0.0.2:9876"


class Servers:
    """A discovery, and the pool: each request takes ``ms`` and fails as long as there are
    failures.
    """

    def __init__(self, addresses: tuple[str, ...], failures: int, ms: float) -> None:
        self.clock = ManualClock()
        self.asked: list[tuple[str, float]] = []
        self._addresses = addresses
        self._failures = failures
        self._ms = ms
        self.link = BrokerLink(self, RemotingLimits(), self.clock, lambda *_: None)
        self.link.look_up()
        self.link._name_servers = self  # type: ignore[assignment]

    def lookup(self) -> ClusterAddress:
        return ClusterAddress("orders", self._addresses)

    def request(self, address: Address, command: Command, timeout_ms: float) -> Any:
        self.asked.append((str(address), timeout_ms))
        self.clock.advance_ms(self._ms)
        if len(self.asked) <= self._failures:
            raise ConnectFailed("no answer to the handshake in time", str(address))
        return command

    def ask(self) -> Command:
        return self.link.ask_name_servers(Command(105), 3_000, float("inf"))


def test_the_only_one_that_was_silent_is_asked_again_in_the_time_that_is_left() -> None:
    servers = Servers((A,), failures=1, ms=1_500)
    servers.ask()
    assert servers.asked == [(A, 3_000), (A, 1_500)]


def test_twice_silent_is_told() -> None:
    servers = Servers((A,), failures=2, ms=1_500)
    with pytest.raises(ConnectFailed):
        servers.ask()
    assert len(servers.asked) == 2


def test_one_that_refuses_at_once_is_not_asked_again() -> None:
    servers = Servers((A,), failures=1, ms=0)
    with pytest.raises(ConnectFailed):
        servers.ask()
    assert servers.asked == [(A, 3_000)]


def test_where_there_are_two_the_other_one_is_asked() -> None:
    servers = Servers((A, B), failures=1, ms=1_500)
    servers.ask()
    assert servers.asked == [(A, 3_000), (B, 3_000)]


def test_one_whose_time_is_nearly_over_is_not_asked_again() -> None:
    servers = Servers((A,), failures=1, ms=250)
    with pytest.raises(ConnectFailed):
        servers.link.ask_name_servers(Command(105), 600, float("inf"))
    assert servers.asked == [(A, 600)]
