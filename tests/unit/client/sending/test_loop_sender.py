"""Who asks in a turn of the loop gets an end, whatever becomes of the producer meanwhile."""

from __future__ import annotations

import asyncio
import logging

import pytest

from rmq_ray.client.sending.loop_sender import LoopGroup, LoopGroups, LoopTasks
from rmq_ray.errors import ConnectionLost, RmqError, SendError
from tests.support.waiting import loop_turns

Numbers = LoopGroups[LoopGroup[int, int], int, int]


def lost(_group: LoopGroup[int, int]) -> RmqError:
    return ConnectionLost("closed")


async def ask(groups: Numbers, key: str, number: int) -> int:
    group = groups.find(key, 1) or groups.open(LoopGroup(key))
    return await groups.ask(group, number, 1)


def test_callers_of_a_list_whose_task_is_cancelled_before_its_first_step_get_an_end() -> None:
    async def echo(group: LoopGroup[int, int]) -> list[int]:
        return group.items

    async def main() -> None:
        tasks = LoopTasks()
        groups: Numbers = LoopGroups(tasks, echo, (10, 1000), lost)
        call = asyncio.create_task(ask(groups, "k", 1))
        await loop_turns()
        for leave in tasks.before_close:
            leave()
        for task in list(tasks._tasks):
            task.cancel()
        with pytest.raises(ConnectionLost, match="closed"):
            await asyncio.wait_for(call, 5)

    asyncio.run(main())


def test_closing_waits_for_what_leaves_while_it_waits() -> None:
    async def main() -> None:
        tasks = LoopTasks()

        async def slow(group: LoopGroup[int, int]) -> list[int]:
            await loop_turns(5)
            if group.key == "first":
                late.append(asyncio.create_task(ask(groups, "second", 2)))
                await loop_turns()  # it asks
                await loop_turns()  # its list leaves
            return group.items

        late: list[asyncio.Task[int]] = []
        groups: Numbers = LoopGroups(tasks, slow, (10, 1000), lost)
        call = asyncio.create_task(ask(groups, "first", 1))
        await loop_turns()
        await tasks.close(5_000)
        assert (await call, await late[0]) == (1, 2)

    asyncio.run(main())


def test_an_error_that_nobody_expected_is_logged_and_told_to_every_caller(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def broken(_group: LoopGroup[int, int]) -> list[int]:
        raise ZeroDivisionError("oh")

    async def main() -> None:
        groups: Numbers = LoopGroups(LoopTasks(), broken, (10, 1000), lost)
        ends = await asyncio.wait_for(
            asyncio.gather(ask(groups, "k", 1), ask(groups, "k", 2), return_exceptions=True), 5
        )
        assert [type(end) for end in ends] == [
            SendError,
            SendError,
        ] and "ZeroDivisionError('oh')" in str(ends[0])

    with caplog.at_level(logging.ERROR):
        asyncio.run(main())
    assert "could not be sent" in caplog.text


def test_a_group_that_is_full_leaves_at_once_and_one_without_room_ahead_of_the_next() -> None:
    async def main() -> None:
        shipped: list[list[int]] = []

        async def ship(group: LoopGroup[int, int]) -> list[int]:
            shipped.append(list(group.items))
            return group.items

        groups: Numbers = LoopGroups(LoopTasks(), ship, (2, 3), lost)
        assert await asyncio.gather(*(ask(groups, "k", n) for n in range(5))) == list(range(5))
        assert shipped == [[0, 1], [2, 3], [4]]

    asyncio.run(main())
