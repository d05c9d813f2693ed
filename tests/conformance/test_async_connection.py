"""Connections inside an event loop behave like those of threads."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest

from rmq_ray.clock import SYSTEM_CLOCK
from rmq_ray.config import RemotingLimits
from rmq_ray.errors import (
    ConnectFailed,
    ConnectionLost,
    FrameTooLarge,
    HandshakeFailed,
    RequestTimeout,
    TooManyRequests,
)
from rmq_ray.model.ids import Address
from rmq_ray.remoting.async_connection import AsyncConnection
from rmq_ray.remoting.wire.frame import BINARY, Command
from tests.support.wire import (
    ASK_BACK,
    CREDENTIALS,
    ECHO,
    FAIL,
    HOLD,
    PUSH_FIRST,
    RELEASE,
    Echo,
    Served,
    echo_process,
    scripted,
)

pytestmark = pytest.mark.timeout(60)
LIMITS = RemotingLimits()


@pytest.fixture(name="served")
def _served() -> Iterator[Served]:
    with Served(Echo()) as served:
        yield served


def run(
    test: Callable[[AsyncConnection], Awaitable[None]],
    address: Address,
    limits: RemotingLimits = LIMITS,
    **callbacks: Any,
) -> None:
    async def main() -> None:
        connection = await AsyncConnection.open(
            address, CREDENTIALS, limits, SYSTEM_CLOCK, **callbacks
        )
        try:
            async with asyncio.timeout(30):
                await test(connection)
        finally:
            await connection.close()

    asyncio.run(main())


async def echo(
    connection: AsyncConnection, body: bytes = b"hello", timeout_ms: int = 5_000
) -> bytes:
    return (
        await connection.request(Command(ECHO, body=body, serialize=BINARY), timeout_ms)
    ).body_bytes()


def test_requests_in_flight_together_get_their_own_answers(served: Served) -> None:
    async def test(connection: AsyncConnection) -> None:
        bodies = [b"%d" % number * (1 + number % 50) for number in range(2_000)] + [
            bytes(2_000_000)
        ]
        assert await asyncio.gather(*[echo(connection, body) for body in bodies]) == bodies
        assert (await connection.request(Command(FAIL), 5_000)).code == 1

    run(test, served.address)


def test_held_answers_come_in_any_order_and_pushes_before_them(served: Served) -> None:
    pushed: list[int] = []

    async def test(connection: AsyncConnection) -> None:
        held = [
            asyncio.ensure_future(connection.request(Command(HOLD, body=b"%d" % number), 10_000))
            for number in range(5)
        ]
        assert (await connection.request(Command(PUSH_FIRST), 5_000)).code == 0
        await connection.request(Command(RELEASE), 5_000)
        assert [answer.body_bytes() for answer in await asyncio.gather(*held)] == [
            b"0",
            b"1",
            b"2",
            b"3",
            b"4",
        ]
        assert (
            await connection.request(Command(ASK_BACK, body=b"x"), 5_000)
        ).body_bytes() == b"answer to 307"
        assert pushed == [40, 307]

    def on_request(command: Command, connection: AsyncConnection) -> Command | None:
        pushed.append(command.code)
        return None if command.is_oneway else command.answer(body=b"answer to %d" % command.code)

    run(test, served.address, on_request=on_request)


def test_a_fault_in_on_request_is_answered(served: Served) -> None:
    async def test(connection: AsyncConnection) -> None:
        assert (await connection.request(Command(ASK_BACK), 5_000)).body_bytes() == b""
        assert await echo(connection) == b"hello"

    def on_request(command: Command, connection: AsyncConnection) -> None:
        raise KeyError("fault")

    run(test, served.address, on_request=on_request)


def test_time_outs_and_cancelled_requests_leave_nothing_behind(served: Served) -> None:
    async def test(connection: AsyncConnection) -> None:
        with pytest.raises(RequestTimeout):
            await connection.request(Command(HOLD), 100)
        waiting = asyncio.ensure_future(connection.request(Command(HOLD), 10_000))
        await echo(connection)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        await connection.request(Command(RELEASE), 5_000)
        assert await echo(connection) == b"hello" and connection._waiting == {}

    run(test, served.address)


def test_oneway_requests_arrive_in_order(served: Served) -> None:
    async def test(connection: AsyncConnection) -> None:
        for number in range(50):
            connection.oneway(Command(ECHO, body=b"%d" % number))
        await echo(connection)
        assert served.handler.oneways == [b"%d" % number for number in range(50)]

    run(test, served.address)


def test_limits_hold_before_anything_is_sent(served: Served) -> None:
    async def test(connection: AsyncConnection) -> None:
        held = [asyncio.ensure_future(connection.request(Command(HOLD), 10_000)) for _ in range(2)]
        await asyncio.sleep(0)
        with pytest.raises(TooManyRequests):
            await echo(connection)
        with pytest.raises(FrameTooLarge):
            connection.oneway(Command(ECHO, body=bytes(16_777_213)))
        await connection.close()
        for future in held:
            with pytest.raises(ConnectionLost):
                await future
        with pytest.raises(ConnectFailed, match="nothing was sent"):
            connection.oneway(Command(ECHO))

    run(test, served.address, RemotingLimits(unanswered_requests_max=2))


def test_a_killed_peer_fails_what_waits_and_tells_once() -> None:
    lost: list[Any] = []
    with echo_process() as (process, address):

        async def test(connection: AsyncConnection) -> None:
            held = [
                asyncio.ensure_future(connection.request(Command(HOLD), 30_000)) for _ in range(10)
            ]
            await echo(connection)
            process.send_signal(signal.SIGKILL)
            outcomes = await asyncio.gather(*held, return_exceptions=True)
            assert {type(outcome) for outcome in outcomes} == {ConnectionLost}
            await asyncio.sleep(0)
            assert not connection.alive and len(lost) == 1
            with pytest.raises(ConnectFailed):
                await echo(connection)

        run(test, address, on_lost=lambda *args: lost.append(args))


def test_closing_is_not_told_as_a_loss(served: Served) -> None:
    lost: list[Any] = []

    async def test(connection: AsyncConnection) -> None:
        assert await echo(connection) == b"hello"

    run(test, served.address, on_lost=lambda *args: lost.append(args))
    assert lost == []


def test_opening_fails_as_it_does_for_threads(served: Served) -> None:
    async def main() -> None:
        with pytest.raises(HandshakeFailed, match="wrong secret"):
            await AsyncConnection.open(
                served.address, replace(CREDENTIALS, secret=b"wrong"), LIMITS, SYSTEM_CLOCK
            )
        with pytest.raises(ConnectFailed, match="nothing was sent"):
            await AsyncConnection.open(Address("127.0.0.1", 1), CREDENTIALS, LIMITS, SYSTEM_CLOCK)
        with scripted(lambda sock: None) as silent, pytest.raises(ConnectFailed):
            await AsyncConnection.open(
                silent, CREDENTIALS, RemotingLimits(connect_timeout_ms=200), SYSTEM_CLOCK
            )

    asyncio.run(main())


def test_nonsense_from_the_server_ends_the_connection() -> None:
    async def main() -> None:
        with scripted(lambda sock: sock.sendall(b"\xff" * 8)) as address:
            connection = await AsyncConnection.open(address, None, LIMITS, SYSTEM_CLOCK)
            with pytest.raises((ConnectionLost, ConnectFailed)):
                await echo(connection)
            await connection.close()

    asyncio.run(main())


def test_an_idle_connection_ends_itself(served: Served) -> None:
    async def end(connection: AsyncConnection) -> None:
        while connection.alive:
            await asyncio.sleep(0.02)

    run(end, served.address, RemotingLimits(idle_timeout_ms=300))
    assert served.handler.seen == 0
