"""Who asks in a turn of the loop gets an end, whatever becomes of the producer meanwhile."""

from __future__ import annotations

import asyncio
import logging
from types import SimpleNamespace
from typing import Any

import pytest

from rmq_ray.client.producer.async_frames import AsyncFrames
from rmq_ray.client.transaction.async_sharing import LoopTurns
from rmq_ray.clock import SystemClock
from rmq_ray.config import ProducerConfig, RemotingLimits
from rmq_ray.errors import ConnectionLost, RmqError, SendError


def frames_of_a_loop() -> AsyncFrames:
    core: Any = SimpleNamespace(config=ProducerConfig(group="g"), clock=SystemClock(), group="g")
    return AsyncFrames(core, RemotingLimits())


def lost() -> RmqError:
    return ConnectionLost("closed")


def test_callers_of_a_list_whose_task_is_cancelled_before_its_first_step_get_an_end() -> None:
    async def echo(_key: str, items: list[int]) -> list[int]:
        return items

    async def main() -> None:
        frames = frames_of_a_loop()
        turns: LoopTurns[int, int] = LoopTurns(frames, echo, (10, 1000), lost)
        call = asyncio.create_task(turns.ask("k", 1, 1))
        await asyncio.sleep(0)
        for leave in frames.before_close:
            leave()
        for task in list(frames._tasks):
            task.cancel()
        with pytest.raises(ConnectionLost, match="closed"):
            await asyncio.wait_for(call, 5)

    asyncio.run(main())


def test_closing_waits_for_what_leaves_while_it_waits() -> None:
    async def main() -> None:
        frames = frames_of_a_loop()

        async def slow(key: str, items: list[int]) -> list[int]:
            for _ in range(5):
                await asyncio.sleep(0)
            if key == "first":
                late.append(asyncio.create_task(turns.ask("second", 2, 1)))
                await asyncio.sleep(0)  # it asks
                await asyncio.sleep(0)  # its list leaves
            return items

        late: list[asyncio.Task[int]] = []
        turns: LoopTurns[int, int] = LoopTurns(frames, slow, (10, 1000), lost)
        call = asyncio.create_task(turns.ask("first", 1, 1))
        await asyncio.sleep(0)
        await frames.close(5_000)
        assert (await call, await late[0]) == (1, 2)

    asyncio.run(main())


def test_an_error_that_nobody_expected_is_logged_and_told_to_every_caller(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def broken(_key: str, _items: list[int]) -> list[int]:
        raise ZeroDivisionError("oh")

    async def main() -> None:
        turns: LoopTurns[int, int] = LoopTurns(frames_of_a_loop(), broken, (10, 1000), lost)
        ends = await asyncio.wait_for(
            asyncio.gather(turns.ask("k", 1, 1), turns.ask("k", 2, 1), return_exceptions=True), 5
        )
        assert [type(end) for end in ends] == [
            SendError,
            SendError,
        ] and "ZeroDivisionError('oh')" in str(ends[0])

    with caplog.at_level(logging.ERROR):
        asyncio.run(main())
    assert "could not be sent" in caplog.text
