"""The wait of an event loop's tasks for the queues of topics: one look-up for each topic.

Invariants: callers go on in the order in which they came; attempts have one thread of their own
(one at a time reaches a name server anyway), so that no outage takes threads from anybody else,
and a wait between attempts takes none; a wait ends when nobody wants to know any more. What is
asked again, and what is told in the end, decides ``topic_queues``.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

from rmq_ray.client.sending.topic_queues import RouteWait, TopicQueues
from rmq_ray.clock import left_ms
from rmq_ray.model.ids import MessageQueue

ATTEMPT_MS = 3_000.0  # of one attempt of a loop: others wait for the thread meanwhile


class _Lookup:
    """Of one topic. ``found``: what it comes to; ``waiters``: of those who want to know, in the
    order in which they came.
    """

    __slots__ = ("found", "wait", "waiters")

    def __init__(self, wait: RouteWait, found: asyncio.Future[Sequence[MessageQueue]]) -> None:
        self.wait = wait
        self.found = found
        self.waiters: list[asyncio.Future[Sequence[MessageQueue]]] = []


class LoopRouteWait:
    """See the module. Belongs to the loop in which it was made."""

    def __init__(self, queues: TopicQueues) -> None:
        self._queues = queues
        self._loop = asyncio.get_running_loop()
        self._lookups: dict[str, _Lookup] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._thread = ThreadPoolExecutor(1, f"rmq-routes-{queues.group}")
        self._closed = False

    async def queues(self, topic: str, timeout_ms: float) -> tuple[Sequence[MessageQueue], float]:
        """The topic's queues, and what is left of the time. Only the first calls for a topic wait,
        and those while it has no master.

        Raises ``NoRoute``, ``TopicNotWritable``, ``BrokerUnreachable``, and ``ClientError`` when
        the producer is closed meanwhile.
        """
        lookup = self._lookups.get(topic)
        if lookup is None:
            known = self._queues.routes.writable(topic)
            if known is not None:
                return known, timeout_ms
            lookup = self._begin(topic)
        began_ms = self._queues.clock.monotonic_ms()
        while (
            lookup.found.done() and self._lookups.get(topic) is lookup
        ):  # those who waited longer come first
            await asyncio.sleep(0)
        queues = await (lookup.found if lookup.found.done() else self._wait(lookup, timeout_ms))
        return queues, left_ms(self._queues.clock, timeout_ms, began_ms)

    def close(self) -> None:
        """Who waits is told now that the producer is closed."""
        self._closed = True
        for task in self._tasks:
            task.cancel()
        self._thread.shutdown(wait=False, cancel_futures=True)
        lookups, self._lookups = self._lookups, {}
        for topic, lookup in lookups.items():
            _end(lookup, self._queues.closed_meanwhile(topic))

    # --- inside -----------------------------------------------------------------------------------

    async def _wait(self, lookup: _Lookup, timeout_ms: float) -> Sequence[MessageQueue]:
        mine: asyncio.Future[Sequence[MessageQueue]] = (
            self._loop.create_future()
        )  # its own: woken at once, before anybody who comes now
        lookup.waiters.append(mine)
        try:
            async with asyncio.timeout(timeout_ms / 1000):
                return await mine
        except TimeoutError:
            raise lookup.wait.given_up(timeout_ms) from lookup.wait.met
        finally:
            lookup.waiters.remove(mine)

    def _begin(self, topic: str) -> _Lookup:
        if self._closed:
            raise self._queues.closed_meanwhile(topic)
        lookup = self._lookups[topic] = _Lookup(
            self._queues.wait_for(topic), self._loop.create_future()
        )
        task = self._loop.create_task(self._look_up(topic, lookup))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return lookup

    async def _look_up(self, topic: str, lookup: _Lookup) -> None:
        try:
            while (
                queues := await self._loop.run_in_executor(self._thread, self._attempt, lookup)
            ) is None:  # ends: found, refused, or nobody waits any more
                await asyncio.sleep(lookup.wait.pause_ms() / 1000)
                if not lookup.waiters:
                    del self._lookups[topic]
                    return
            _end(lookup, queues)
        except Exception as error:  # noqa: BLE001 - every caller gets it
            _end(lookup, error)
        self._loop.call_soon(
            self._lookups.pop, topic, None
        )  # behind the callers that are being woken

    def _attempt(self, lookup: _Lookup) -> Sequence[MessageQueue] | None:
        """In the thread."""
        return lookup.wait.attempt(self._queues.clock.monotonic_ms() + ATTEMPT_MS)


def _end(lookup: _Lookup, outcome: Sequence[MessageQueue] | Exception) -> None:
    """What it comes to, and everybody who waits is woken; nothing when it has ended before."""
    if lookup.found.done():
        return
    for future in (lookup.found, *lookup.waiters):
        if future.done():
            continue
        if isinstance(outcome, Exception):
            future.set_exception(outcome)
        else:
            future.set_result(outcome)
    lookup.found.exception()  # looked at even if every caller was cancelled
