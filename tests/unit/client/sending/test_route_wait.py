"""Tasks of a loop that wait for a topic's queues go on in the order in which they came, whatever
comes while they are woken; who has waited in vain is told what was found out.
"""

from __future__ import annotations

import asyncio
import threading
from typing import Any, cast

import pytest

from rmq_ray.client.sending.loop_route_wait import ATTEMPT_MS, LoopRouteWait
from rmq_ray.client.sending.topic_queues import TopicQueues
from rmq_ray.clock import SYSTEM_CLOCK, ManualClock
from rmq_ray.config import ProducerConfig
from rmq_ray.errors import BrokerUnreachable, ClientError, NoRoute, RequestTimeout, SendError
from rmq_ray.model.ids import MessageQueue
from tests.support.waiting import loop_turns

QUEUES = [MessageQueue("orders", "broker-a", 0)]


class Queues:
    """A producer whose queues are known as soon as the thread that looks them up knows them, before
    the loop hears of it.
    """

    group = "web"
    clock = SYSTEM_CLOCK

    def __init__(self) -> None:
        self.looked_up: list[MessageQueue] | None = None
        self.fails: Exception | None = None
        self.go_on = threading.Event()

    @property
    def routes(self) -> Queues:
        return self

    def writable(self, topic: str) -> list[MessageQueue] | None:
        return self.looked_up

    def wait_for(self, topic: str) -> Queues:
        return self

    def attempt(self, until_ms: float) -> list[MessageQueue]:
        self.go_on.wait(5)
        if self.fails is not None:
            raise self.fails
        self.looked_up = QUEUES
        return QUEUES

    def closed_meanwhile(self, topic: str) -> ClientError:
        return ClientError("the producer was closed")


@pytest.mark.parametrize("turns", range(12))
def test_who_comes_while_others_are_woken_goes_on_behind_them(turns: int) -> None:
    async def run() -> list[int]:
        queues, order = Queues(), []
        finding = LoopRouteWait(cast(Any, queues))

        async def one(n: int) -> None:
            assert (await finding.queues("orders", 5_000.0))[0] == QUEUES
            order.append(n)

        tasks = [asyncio.create_task(one(0)), asyncio.create_task(one(1))]
        await loop_turns()
        lookup = finding._lookups["orders"]
        queues.go_on.set()
        while queues.looked_up is None:
            await loop_turns()
        passed = 0
        while (
            len(tasks) < 40
        ):  # one each turn of the loop, before, while and after the first ones are woken
            if passed >= turns or lookup.found.done():
                tasks.append(asyncio.create_task(one(len(tasks))))
            passed += 1
            await loop_turns()
        await asyncio.gather(*tasks)
        finding.close()
        return order

    assert asyncio.run(run()) == list(range(40))


def test_an_error_reaches_all_who_wait_and_the_next_one_looks_again() -> None:
    async def run() -> None:
        queues = Queues()
        queues.fails = NoRoute("no such topic", "orders")
        finding = LoopRouteWait(cast(Any, queues))
        waiting = [asyncio.create_task(finding.queues("orders", 5_000.0)) for _ in range(3)]
        await loop_turns()
        waiting[1].cancel()
        queues.go_on.set()
        ends = await asyncio.gather(*waiting, return_exceptions=True)
        assert [type(end) for end in ends] == [NoRoute, asyncio.CancelledError, NoRoute]
        queues.fails = None
        assert (await finding.queues("orders", 5_000.0))[0] == QUEUES
        finding.close()

    asyncio.run(run())


def test_closing_tells_who_waits() -> None:
    async def run() -> None:
        queues = Queues()
        finding = LoopRouteWait(cast(Any, queues))
        waiting = asyncio.create_task(finding.queues("orders", 5_000.0))
        await loop_turns()
        finding.close()
        queues.go_on.set()
        with pytest.raises(ClientError, match="closed"):
            await waiting

    asyncio.run(run())


class Outage:
    """A client whose name server says that the topic has no master, and then nothing more.
    ``silent_ms``: how long each of its silences lasts.
    """

    def __init__(self, silent_ms: float) -> None:
        self.clock = ManualClock()
        self.answers = 3
        self._silent_ms = silent_ms

    @property
    def routes(self) -> Outage:
        return self

    stopped = routes

    def writable(self, topic: str) -> None:
        return None

    def is_between_masters(self, topic: str) -> bool:
        return True

    def brokers_missed(self, topic: str) -> list[str]:
        return []

    def why(self, brokers: list[str]) -> str:
        return ""

    def find_publish(self, topic: str, default_queues: int, until_ms: float) -> None:
        self.answers -= 1
        if self.answers >= 0:
            raise NoRoute("no master", topic)
        left_ms = until_ms - self.clock.monotonic_ms()
        self.clock.advance_ms(min(left_ms, self._silent_ms))
        raise RequestTimeout("no answer in time", topic)


@pytest.mark.parametrize(
    ("silent_ms", "error", "told"),
    [
        (1_000.0, NoRoute, "after 300 ms: its master is gone"),
        (100.0, BrokerUnreachable, "no name server answers"),
    ],
    ids=["cut short", "while there was time"],
)
def test_a_question_that_the_time_out_cuts_short_hides_no_answer_before_it(
    silent_ms: float, error: type[SendError], told: str
) -> None:
    queues = TopicQueues(cast(Any, Outage(silent_ms)), ProducerConfig("web"))
    with pytest.raises(error, match=told):
        queues.find("orders", 300.0)


def test_silence_that_lasted_is_told_whatever_was_known_before() -> None:
    outage = Outage(3_000.0)
    wait = TopicQueues(cast(Any, outage), ProducerConfig("web")).wait_for("orders")
    for _ in range(4):  # three answers, then a silence as long as an attempt of a loop
        assert wait.attempt(outage.clock.monotonic_ms() + ATTEMPT_MS) is None
    assert isinstance(wait.given_up(60_000), BrokerUnreachable)
