"""The start of a producer on an event loop, and its end, while calls are cancelled, closed or made
from other loops.
"""

from __future__ import annotations

import asyncio
import gc
import threading
import time
import warnings
from collections.abc import Iterator

import pytest

from rmq_ray.client.instance.client_instance import ClientInstance
from rmq_ray.client.instance.managed import ServiceState
from rmq_ray.client.producer.async_producer import AsyncProducer
from rmq_ray.client.sending.producer_core import ProducerCore
from rmq_ray.errors import ClientError
from rmq_ray.ports import ClusterAddress
from tests.support.brokers.tiny_cluster import FixedDiscovery, TinyCluster
from tests.support.waiting import eventually


class Slow:
    """A discovery that answers when it is told to."""

    def __init__(self, cluster: TinyCluster) -> None:
        self.asked, self.go_on = threading.Event(), threading.Event()
        self._found = cluster.lookup()

    def lookup(self) -> ClusterAddress:
        self.asked.set()
        self.go_on.wait(10)
        return self._found


@pytest.fixture
def cluster() -> Iterator[TinyCluster]:
    with TinyCluster(topics={"orders": 2}) as running:
        yield running


@pytest.fixture
def slow(cluster: TinyCluster) -> Slow:
    return Slow(cluster)


async def begun(slow: Slow) -> None:
    await asyncio.to_thread(slow.asked.wait, 10)


async def closed_while_it_starts(
    slow: Slow,
) -> tuple[AsyncProducer, asyncio.Task[None], asyncio.Task[None]]:
    """The producer, its start and its closing, which waits for it."""
    producer = AsyncProducer("web", discovery=slow)
    starting = asyncio.create_task(producer.start())
    await begun(slow)
    closing = asyncio.create_task(producer.close())
    await asyncio.sleep(0)
    return producer, starting, closing


@pytest.fixture(autouse=True)
def _before() -> None:
    BEFORE.clear()
    BEFORE.extend(ClientInstance.running())


BEFORE: list[ClientInstance] = []
"""What other tests of this process left open."""


def clients() -> int:
    return sum(not any(found is other for other in BEFORE) for found in ClientInstance.running())


def test_a_first_send_that_is_cancelled_takes_the_start_from_nobody(slow: Slow) -> None:
    async def run() -> None:
        producer = AsyncProducer("web", discovery=slow)
        first, second = (
            asyncio.create_task(producer.send("orders", body)) for body in (b"1", b"2")
        )
        await begun(slow)
        first.cancel()
        with pytest.raises(asyncio.CancelledError):
            await first
        slow.go_on.set()
        assert (await second).queue_offset >= 0
        assert (await producer.send("orders", b"3")).queue_offset >= 0
        await producer.close()

    asyncio.run(run())
    eventually(lambda: clients() == 0)


def test_a_start_whose_only_caller_gave_up_is_there_for_the_next_one(slow: Slow) -> None:
    async def run() -> None:
        async with AsyncProducer("web", discovery=FixedDiscovery(slow._found)) as ready:
            producer = AsyncProducer("late", discovery=slow)
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(producer.start(), 0.05)
            assert (await ready.send("orders", b"the loop goes on")).queue_offset >= 0
            slow.go_on.set()
            assert (
                await producer.send("orders", b"x")
            ).queue_offset >= 0 and producer.state is ServiceState.RUNNING
            await producer.close()

    asyncio.run(run())
    eventually(lambda: clients() == 0)


def test_a_start_for_which_nobody_waits_any_more_leaves_nothing_open(slow: Slow) -> None:
    async def run() -> None:
        producer = AsyncProducer("web", discovery=slow)
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.05), producer:
                pass
        slow.go_on.set()
        await asyncio.to_thread(
            eventually, lambda: producer.state is ServiceState.CREATE_JUST and clients() == 0
        )
        await producer.start()
        assert (await producer.send("orders", b"x")).queue_offset >= 0
        await producer.close()

    asyncio.run(run())
    assert clients() == 0


def test_who_gives_up_in_the_moment_in_which_the_start_ends_leaves_nothing_open(slow: Slow) -> None:
    async def run() -> None:
        producer = AsyncProducer("web", discovery=slow)
        first = asyncio.create_task(producer.start())
        await begun(slow)
        assert producer._starting is not None
        start = producer._starting.task
        slow.go_on.set()
        while not start.done():
            await asyncio.sleep(0)
        assert first.cancel()
        with pytest.raises(asyncio.CancelledError):
            await first
        await asyncio.to_thread(eventually, lambda: clients() == 0)
        assert (await producer.send("orders", b"x")).queue_offset >= 0
        await producer.close()

    asyncio.run(run())
    assert clients() == 0


def test_a_start_may_follow_one_that_was_given_up_and_is_still_being_closed(
    slow: Slow, monkeypatch: pytest.MonkeyPatch
) -> None:
    closing, may_close, close = threading.Event(), threading.Event(), ProducerCore.close

    def closes(core: ProducerCore) -> None:
        closing.set()
        may_close.wait(10)
        close(core)

    monkeypatch.setattr(ProducerCore, "close", closes)

    async def run() -> None:
        producer = AsyncProducer("web", discovery=slow)
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(producer.start(), 0.05)
        slow.go_on.set()
        await asyncio.to_thread(closing.wait, 10)
        again = asyncio.create_task(producer.start())
        await asyncio.sleep(0)
        may_close.set()
        await again
        assert (await producer.send("orders", b"x")).queue_offset >= 0 and clients() == 1
        await producer.close()

    asyncio.run(run())
    assert clients() == 0


@pytest.mark.parametrize("ended", [False, True])
def test_a_closing_that_is_cancelled_while_it_waits_for_the_start_gives_it_up(
    slow: Slow, ended: bool
) -> None:
    """``ended``: the start ends in the same moment."""

    async def run() -> AsyncProducer:
        producer, starting, closing = await closed_while_it_starts(slow)
        assert producer._starting is not None
        start = producer._starting.task
        if ended:
            slow.go_on.set()
            while not start.done():
                await asyncio.sleep(0)
        assert closing.cancel()
        with pytest.raises(asyncio.CancelledError):
            await closing
        slow.go_on.set()
        for error in await asyncio.gather(starting, return_exceptions=True):
            assert ended or (isinstance(error, ClientError) and "was closed" in str(error))
        await asyncio.to_thread(eventually, lambda: clients() == 0)
        with pytest.raises(ClientError):
            await producer.send("orders", b"x")
        return producer

    assert asyncio.run(run()).state is ServiceState.SHUTDOWN_ALREADY


def test_closing_while_it_starts_waits_for_the_start_and_leaves_nothing_open(slow: Slow) -> None:
    async def run() -> AsyncProducer:
        producer, starting, closing = await closed_while_it_starts(slow)
        slow.go_on.set()
        await asyncio.gather(starting, closing)
        with pytest.raises(ClientError, match="closed"):
            await producer.send("orders", b"x")
        return producer

    assert asyncio.run(run()).state is ServiceState.SHUTDOWN_ALREADY
    eventually(lambda: clients() == 0)


def test_a_loop_that_ends_during_the_start_leaves_nothing_open_and_another_loop_may_begin(
    slow: Slow,
) -> None:
    producer = AsyncProducer("web", discovery=slow)

    async def give_up() -> None:
        starting = asyncio.create_task(producer.start())
        await begun(slow)
        starting.cancel()
        threading.Timer(0.1, slow.go_on.set).start()

    asyncio.run(give_up())
    eventually(lambda: clients() == 0)

    async def again() -> None:
        assert (await producer.send("orders", b"x")).queue_offset >= 0
        await producer.close()

    asyncio.run(again())
    assert clients() == 0


def test_it_can_be_closed_after_its_loop_has_ended_but_not_from_another_while_that_runs(
    cluster: TinyCluster,
) -> None:
    loop = asyncio.new_event_loop()
    producer = AsyncProducer("web", discovery=cluster)
    loop.run_until_complete(producer.send("orders", b"x"))
    with pytest.raises(ClientError, match="another event loop"):
        asyncio.run(producer.close())
    with warnings.catch_warnings():  # sockets of a loop that was closed before they were
        warnings.simplefilter("ignore", ResourceWarning)
        loop.close()
        asyncio.run(producer.close())
        gc.collect()
    assert producer.state is ServiceState.SHUTDOWN_ALREADY and clients() == 0


def test_a_start_that_ends_while_its_loop_does_leaves_nothing_open(slow: Slow) -> None:
    producer = AsyncProducer("web", discovery=slow)

    async def leave() -> asyncio.Task[None]:
        starting = asyncio.create_task(producer.start())
        await begun(slow)
        slow.go_on.set()
        eventually(lambda: clients() == 1)
        time.sleep(0.2)  # noqa: ASYNC251 - the core is made, and the loop has not seen it
        return starting

    assert asyncio.run(leave()).cancelled()
    eventually(lambda: clients() == 0)

    async def again() -> None:
        await producer.start()
        await producer.close()

    asyncio.run(again())
    assert clients() == 0


@pytest.mark.parametrize("made", [False, True])
def test_a_start_whose_loop_was_closed_under_it_keeps_nobody_waiting(
    cluster: TinyCluster, slow: Slow, made: bool
) -> None:
    loop = asyncio.new_event_loop()
    loop.set_exception_handler(lambda _loop, _context: None)  # is told of tasks that were pending
    producer, other = (AsyncProducer(group, discovery=slow) for group in ("web", "other"))
    tasks = [loop.create_task(each.start()) for each in (producer, other)]
    loop.run_until_complete(begun(slow))
    for call in (producer.close, producer.start, lambda: producer.send("orders", b"x")):
        with pytest.raises(ClientError, match="another event loop"):
            asyncio.run(call())
    if made:
        slow.go_on.set()
        eventually(lambda: clients() == 2)
    loop.close()
    slow.go_on.set()

    async def go_on() -> None:
        async with asyncio.timeout(5):
            await producer.close()
            assert (await other.send("orders", b"x")).queue_offset >= 0
            await other.close()

    asyncio.run(go_on())
    assert producer.state is other.state is ServiceState.SHUTDOWN_ALREADY
    eventually(lambda: clients() == 0)
    del tasks
    gc.collect()


def test_calls_that_come_while_it_waits_to_be_closed_are_told_so(slow: Slow) -> None:
    async def run() -> None:
        producer, starting, closing = await closed_while_it_starts(slow)
        calls = [
            asyncio.create_task(call)
            for call in (
                producer.send("orders", b"x"),
                producer.send("orders", b"x", message_group="g"),
                producer.recall_message("orders", "handle"),
            )
        ]
        await asyncio.sleep(0)
        slow.go_on.set()
        await asyncio.gather(starting, closing)
        for error in await asyncio.gather(*calls, return_exceptions=True):
            assert isinstance(error, ClientError) and "was closed" in str(error)

    asyncio.run(run())
    eventually(lambda: clients() == 0)


def test_a_start_that_is_cancelled_before_its_first_step_is_none(cluster: TinyCluster) -> None:
    producer = AsyncProducer("web", discovery=cluster)
    loop = asyncio.new_event_loop()
    sending = producer.send("orders", b"x")
    loop.call_soon(loop.create_task, sending)
    loop.call_soon(loop.stop)
    loop.run_forever()
    loop.call_soon(loop.stop)
    loop.run_forever()
    for task in asyncio.all_tasks(loop):
        task.cancel()
    loop.run_until_complete(asyncio.sleep(0))
    assert producer.state is ServiceState.START_FAILED and not clients()
    loop.close()

    async def again() -> None:
        await producer.start()
        await producer.close()

    asyncio.run(again())


def test_a_call_that_starts_it_again_while_it_is_closed_leaves_nothing_open(
    cluster: TinyCluster,
) -> None:
    class FailsOnce(Slow):
        def lookup(self) -> ClusterAddress:
            first = not self.asked.is_set()
            found = super().lookup()
            if first:
                raise ClientError("not yet")
            return found

    failing = FailsOnce(cluster)

    async def run() -> AsyncProducer:
        producer = AsyncProducer("web", discovery=failing)

        async def twice() -> None:
            with pytest.raises(ClientError, match="not yet"):
                await producer.send("orders", b"x")
            with pytest.raises(ClientError, match="was closed"):
                await producer.send("orders", b"x")

        calling = asyncio.create_task(twice())
        await begun(failing)
        closing = asyncio.create_task(producer.close())
        await asyncio.sleep(0)
        failing.go_on.set()
        await asyncio.gather(calling, closing)
        return producer

    assert asyncio.run(run()).state is ServiceState.SHUTDOWN_ALREADY
    eventually(lambda: clients() == 0)
