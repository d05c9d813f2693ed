"""Threads for slow work: results come back in the loop, surprises are fatal, too much is
refused.
"""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest

from rmq_ray.errors import BrokerBusy, StoreFull
from rmq_ray.server.base import offload as offload_module
from rmq_ray.server.base.offload import ThreadOffload


def test_work_runs_in_a_thread_and_its_outcome_comes_back_in_the_loop() -> None:
    async def run() -> None:
        fatal: list[object] = []
        offload = ThreadOffload("t", fatal.append)
        loop_thread, outcomes, done_threads = threading.get_ident(), [], []
        finished = asyncio.Event()

        def failing() -> None:
            raise StoreFull("no room")

        def done(outcome: object) -> None:
            outcomes.append(outcome)
            done_threads.append(threading.get_ident())
            if len(outcomes) == 2:
                finished.set()

        offload.submit(threading.get_ident, done)
        offload.submit(failing, done)
        await asyncio.wait_for(finished.wait(), 10)
        assert done_threads == [loop_thread] * 2
        assert {type(outcome) for outcome in outcomes} == {
            int,
            StoreFull,
        } and loop_thread not in outcomes
        with pytest.raises(StoreFull):
            await offload.run(failing)
        assert await offload.run(lambda: 7) == 7 and fatal == []
        offload.close()

    asyncio.run(run())


def test_an_exception_in_the_loop_is_fatal() -> None:
    async def run() -> None:
        fatal: list[object] = []
        offload = ThreadOffload("t", fatal.append)

        def surprise(_: object) -> None:
            raise KeyError("impossible")

        offload.submit(lambda: 1, surprise)
        await offload.run(lambda: None)
        while not fatal:
            await asyncio.sleep(0.01)
        assert [type(error) for error in fatal] == [KeyError]
        offload.close()

    asyncio.run(run())


def test_too_much_waiting_work_is_refused_and_a_close_lets_the_rest_finish_at_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(offload_module, "IDLE_CHECK_S", 60.0)

    async def run() -> None:
        offload = ThreadOffload("t", lambda reason: None, threads=1, waiting_max=2)
        gate, outcomes = threading.Event(), []
        offload.submit(lambda: gate.wait(10), outcomes.append)
        while not offload._work.empty():
            await asyncio.sleep(0.01)
        offload.submit(lambda: 1, outcomes.append)
        offload.submit(lambda: 2, outcomes.append)
        with pytest.raises(BrokerBusy):
            offload.submit(lambda: 3, outcomes.append)
        gate.set()
        offload.close(timeout_s=20)
        assert not any(thread.is_alive() for thread in offload._threads)
        await asyncio.sleep(0)
        assert outcomes == [True, 1, 2]

    asyncio.run(run())


class ClosingLoop:
    """A loop that is closed by another thread right behind the question whether it is."""

    def __init__(self) -> None:
        self.closed = False

    def is_closed(self) -> bool:
        return self.closed

    def call_soon_threadsafe(self, *_call: object) -> None:
        self.closed = True
        raise RuntimeError("Event loop is closed")


def test_a_thread_that_ends_its_work_while_the_loop_is_closed_does_not_die_of_it() -> None:
    async def run() -> None:
        offload = ThreadOffload("t", lambda reason: None, threads=1)
        loop: Any = ClosingLoop()
        offload._loop = loop
        offload.post(lambda: None)
        assert loop.closed
        offload.close()

    asyncio.run(run())


def test_who_waits_for_work_behind_the_close_is_refused_and_does_not_hang() -> None:
    async def run() -> None:
        offload = ThreadOffload("t", lambda reason: None, threads=1)
        offload.close()
        waiting = asyncio.create_task(offload.run(lambda: 1))
        await asyncio.wait([waiting], timeout=2)
        with pytest.raises(BrokerBusy, match="ended"):
            waiting.result()

    asyncio.run(run())
