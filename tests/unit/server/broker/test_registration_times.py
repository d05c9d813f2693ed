"""When a broker tells its name servers what it has: at the start, after 10 s, then every 30 s; soon
again after a failure, at once after a change. Who waits for it goes on when all that are connected
have taken it.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from rmq_ray.clock import SYSTEM_CLOCK
from rmq_ray.config import BrokerConfig, RemotingLimits, StoreConfig
from rmq_ray.errors import ConnectFailed, StoreNotReady
from rmq_ray.model.topics import DataVersion, TopicConfig
from rmq_ray.server.base.identity import Identity
from rmq_ray.server.broker import registration
from rmq_ray.server.broker.registration import BrokerRegistration, NameServers
from tests.support.waiting import eventually_async, loop_turns

DEFAULT_MS = BrokerConfig(StoreConfig("/s")).register_interval_ms
Turn = Callable[[], None]


def nothing() -> tuple[dict[str, TopicConfig], DataVersion]:
    return {}, DataVersion()


def registering(*addresses: str, period_ms: int = DEFAULT_MS) -> BrokerRegistration:
    """Of a broker without topics, with name servers at these addresses."""
    return BrokerRegistration(
        Identity("broker-a", 0, "c", boot_ms=0),
        NameServers(addresses, None, RemotingLimits(), period_ms),
        SYSTEM_CLOCK,
        nothing,
        print,
        print,
    )


def pauses(monkeypatch: pytest.MonkeyPatch, period_ms: int, turns: list[Turn]) -> list[float]:
    """Seconds that the broker would wait after each turn, a turn being one registration: what
    ``turns`` do in its place.
    """
    waited: list[float] = []

    async def story() -> None:
        done = asyncio.Event()
        told = registering("127.0.0.1:9", period_ms=period_ms)
        left = iter(turns)

        async def register(_server: object, _body: bytes) -> None:
            if (turn := next(left, None)) is None:
                done.set()
                await asyncio.Event().wait()
            else:
                turn()

        real = asyncio.timeout

        def at_once(delay: float | None) -> asyncio.Timeout:
            if not done.is_set():
                waited.append(delay or 0.0)
            return real(0)

        monkeypatch.setattr(told, "_register", register)
        monkeypatch.setattr(asyncio, "timeout", at_once)
        told.start()
        await done.wait()
        monkeypatch.undo()
        await told.stop()

    asyncio.run(story())
    return waited


def works() -> None:
    """The name server took it."""


def fails() -> None:
    raise ConnectFailed("no name server")


def not_ready() -> None:
    raise StoreNotReady("its role changes")


def test_a_broker_registers_again_after_10_s_and_then_every_30(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert pauses(monkeypatch, DEFAULT_MS, [works] * 4) == [10.0, 30.0, 30.0, 30.0]


@pytest.mark.parametrize(
    ("period_ms", "seconds"), [(1, 10.0), (10_000, 10.0), (45_000, 45.0), (60_001, 60.0)]
)
def test_no_setting_makes_it_rarer_than_a_minute_or_more_often_than_every_10_s(
    monkeypatch: pytest.MonkeyPatch, period_ms: int, seconds: float
) -> None:
    assert pauses(monkeypatch, period_ms, [works] * 3) == [10.0, seconds, seconds]


def test_a_registration_that_failed_comes_again_within_a_quarter_of_a_second(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert pauses(monkeypatch, DEFAULT_MS, [fails, fails, works, not_ready, works]) == [
        0.25,
        0.25,
        10.0,
        0.25,
        30.0,
    ]


def test_a_changed_topic_is_told_without_waiting_for_the_next_turn() -> None:
    async def story() -> int:
        told = registering("127.0.0.1:9")
        turns, again = 0, asyncio.Event()

        async def register(_server: object, _body: bytes) -> None:
            nonlocal turns
            turns += 1
            if turns == 2:
                again.set()

        told._register = register  # type: ignore[method-assign,assignment]
        told.start()
        await loop_turns()
        told.changed()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(5):
                await again.wait()
        await told.stop()
        return turns

    assert asyncio.run(story()) == 2


class TwoNameServers:
    """Each takes a registration when its event is set; ``away``: the second is not connected."""

    def __init__(self, away: bool = False) -> None:
        self.takes = {port: asyncio.Event() for port in (1, 2)}
        self._away = away
        self.told = registering("127.0.0.1:1", "127.0.0.1:2")
        self.told._register = self._register  # type: ignore[method-assign]

    async def _register(self, server: Any, _body: bytes) -> None:
        if self._away and server.address.port == 2:
            raise ConnectFailed("no name server")
        server.connection = server.connection or Connected()
        await self.takes[server.address.port].wait()


class Connected:
    async def close(self) -> None:
        """Nothing to close."""


def of_two(story: Callable[[TwoNameServers, list[str]], Awaitable[None]], away: bool) -> list[str]:
    """What happened, in its order: the story's words, and "known" when the waiter went on."""
    happened: list[str] = []

    async def run() -> None:
        both = TwoNameServers(away)
        both.told.start()
        await loop_turns(20)
        both.told.changed()
        both.told.when_registered(lambda: happened.append("known"))
        await loop_turns(20)
        await story(both, happened)
        await both.told.stop()

    asyncio.run(run())
    return happened


@pytest.fixture
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody goes on because of the time."""
    monkeypatch.setattr(registration, "REGISTERED_WAIT_S", 60.0)


@pytest.mark.usefixtures("patient")
def test_who_waits_for_a_change_goes_on_when_every_connected_name_server_has_taken_it() -> None:
    async def story(both: TwoNameServers, happened: list[str]) -> None:
        for port in (1, 2):
            happened.append(f"{port} takes")
            both.takes[port].set()
            await loop_turns(20)

    assert of_two(story, away=False) == ["1 takes", "2 takes", "known"]


@pytest.mark.usefixtures("patient")
def test_a_name_server_that_is_away_is_not_waited_for() -> None:
    async def story(both: TwoNameServers, happened: list[str]) -> None:
        happened.append("1 takes")
        both.takes[1].set()
        await loop_turns(20)

    assert of_two(story, away=True) == ["1 takes", "known"]


def test_a_name_server_that_hangs_is_not_waited_for_for_ever(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(registration, "REGISTERED_WAIT_S", 0.05)

    async def story(both: TwoNameServers, happened: list[str]) -> None:
        both.takes[1].set()
        await eventually_async(lambda: happened)

    assert of_two(story, away=False) == ["known"]


@pytest.mark.usefixtures("patient")
def test_behind_a_stop_nobody_goes_on() -> None:
    async def story(both: TwoNameServers, happened: list[str]) -> None:
        await both.told.stop()
        both.takes[1].set()
        both.takes[2].set()

    assert of_two(story, away=False) == []
