"""A name server's answer with an order table that comes while the broker has no core: it registers
again soon, and nothing dies of it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

import pytest

from rmq_ray.clock import SYSTEM_CLOCK
from rmq_ray.config import RemotingLimits
from rmq_ray.errors import StoreNotReady
from rmq_ray.model.topics import DataVersion
from rmq_ray.remoting.async_connection import AsyncConnection
from rmq_ray.remoting.wire import bodies
from rmq_ray.remoting.wire.frame import Command
from rmq_ray.server.base.identity import Identity
from rmq_ray.server.broker import registration
from rmq_ray.server.broker.registration import BrokerRegistration, NameServers


class NameServer:
    """A connection to one that has an order table."""

    async def request(self, command: Command, _timeout_ms: int) -> Command:
        return command.answer(body=bodies.encode_table({"orders": "broker-a:4"}))

    async def close(self) -> None:
        """Nothing to close."""


async def opened(*_arguments: object) -> NameServer:
    return NameServer()


def test_an_order_table_that_nobody_can_take_now_is_asked_for_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(registration, "FAILURE_PAUSE_S", 0.01)
    monkeypatch.setattr(AsyncConnection, "open", opened)
    taken: list[Mapping[str, str]] = []
    fatal: list[object] = []
    refusals = [StoreNotReady("the broker changes its role")] * 2

    def take(ordered: Mapping[str, str]) -> None:
        if refusals:
            raise refusals.pop()
        taken.append(ordered)

    async def story() -> None:
        identity = Identity("broker-a", 0, "c", boot_ms=0)
        told = BrokerRegistration(
            identity,
            NameServers(("127.0.0.1:9",), None, RemotingLimits(), 30_000),
            SYSTEM_CLOCK,
            lambda: ({}, DataVersion()),
            take,
            fatal.append,
        )
        told.start()
        async with asyncio.timeout(20):
            while not taken and not fatal:
                await asyncio.sleep(0.005)
        await told.stop()

    asyncio.run(story())
    assert not fatal
    assert taken == [{"orders": "broker-a:4"}]
