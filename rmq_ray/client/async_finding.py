"""The waits of an event loop for the queues of topics: one for each topic, however many callers want to know.

Decides who waits for how long: each caller for its own time-out. What is asked again is ``client.finding``'s. Belongs to one loop; called by
``client.async_frames``. Invariants: callers go on in the order in which they came; a wait takes a thread for its attempts only, so that no topic's outage
holds up another topic; a wait ends when nobody wants to know any more.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from rmq_ray.client.finding import Finding
from rmq_ray.client.producer_core import ProducerCore
from rmq_ray.model.ids import MessageQueue


class _Lookup:
    """Of one topic. ``found``: what it comes to; ``waiting``: how many still want to know."""

    __slots__ = ("finding", "found", "waiting")

    def __init__(self, finding: Finding, found: asyncio.Future[Sequence[MessageQueue]]) -> None:
        self.finding = finding
        self.found = found
        self.waiting = 0


class AsyncFinding:
    """See the module."""

    def __init__(self, core: ProducerCore) -> None:
        self._core = core
        self._loop = asyncio.get_running_loop()
        self._lookups: dict[str, _Lookup] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._closed = False

    async def queues(self, topic: str, timeout_ms: float) -> tuple[Sequence[MessageQueue], float]:
        """The topic's queues, and what is left of the time. Only the first calls for a topic wait, and those while it has no master.

        Raises ``NoRoute``, ``BrokerUnreachable``, and ``ClientError`` when the producer is closed meanwhile.
        """
        lookup = self._lookups.get(topic)
        if lookup is None:
            known = self._core.known_queues(topic)
            if known is not None:
                return known, timeout_ms
            lookup = self._begin(topic)
        began_ms = self._core.clock.monotonic_ms()
        while lookup.found.done() and self._lookups.get(topic) is lookup:  # those who waited longer come first
            await asyncio.sleep(0)
        lookup.waiting += 1
        try:
            async with asyncio.timeout(timeout_ms / 1000):
                queues = await asyncio.shield(lookup.found)
        except TimeoutError:
            raise lookup.finding.given_up(timeout_ms) from lookup.finding.met
        finally:
            lookup.waiting -= 1
        return queues, self._core.left_ms(timeout_ms, began_ms)

    def close(self) -> None:
        """Who waits is told now that the producer is closed."""
        self._closed = True
        for task in self._tasks:
            task.cancel()
        lookups, self._lookups = self._lookups, {}
        for topic, lookup in lookups.items():
            _fail(lookup, self._core.closed_while_finding(topic))

    # --- inside --------------------------------------------------------------------------------------------------------

    def _begin(self, topic: str) -> _Lookup:
        if self._closed:
            raise self._core.closed_while_finding(topic)
        lookup = self._lookups[topic] = _Lookup(self._core.finding(topic), self._loop.create_future())
        task = self._loop.create_task(self._look_up(topic, lookup))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return lookup

    async def _look_up(self, topic: str, lookup: _Lookup) -> None:
        try:
            while (queues := await asyncio.to_thread(lookup.finding.attempt)) is None:  # ends: found, refused, or nobody waits any more
                await asyncio.sleep(lookup.finding.pause_ms() / 1000)
                if not lookup.waiting:
                    del self._lookups[topic]
                    return
            lookup.found.set_result(queues)
        except Exception as error:  # noqa: BLE001 - every caller gets it
            _fail(lookup, error)
        self._loop.call_soon(self._lookups.pop, topic, None)  # behind the callers that are being woken


def _fail(lookup: _Lookup, error: Exception) -> None:
    if not lookup.found.done():
        lookup.found.set_exception(error)
        lookup.found.exception()  # looked at even if every caller was cancelled
