"""The wait for the queues that a topic may be written to: what is asked again, with which pauses,
and what is told in the end.

    RouteWait       attempt ──None──> pause ──> attempt ──> ... ──queues, or given_up──> caller
    TopicQueues     a thread sleeps between attempts
    LoopRouteWait   tasks of an event loop await one look-up for each topic

Decides that a name server which does not answer and a topic between two masters pass by themselves,
and nothing else: a topic that is read-only by its own permission stays so (``RouteCache`` tells it
from one whose broker is drained). Each caller waits for its own time-out.

Invariants of the loop's look-ups: callers go on in the order in which they came; attempts have one
thread of their own (one at a time reaches a name server anyway), so that no outage takes threads
from anybody else, and a wait between attempts takes none; a wait ends when nobody wants to know any
more.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

from rmq_ray.client.instance.client_instance import ClientInstance
from rmq_ray.client.instance.route_cache import RouteCache
from rmq_ray.clock import left_ms
from rmq_ray.config import ProducerConfig
from rmq_ray.errors import BrokerUnreachable, ClientError, NoRoute, RemotingError, SendError
from rmq_ray.model.ids import MessageQueue
from rmq_ray.protocol.retry import BACK_OFF_FIRST_MS, BACK_OFF_MAX_MS

ATTEMPT_MS = 3_000.0  # of one attempt of a loop: others wait for the thread meanwhile


class RouteWait:
    """One wait; does not wait itself. ``default_queues``: of a topic that is not created yet."""

    def __init__(self, routes: RouteCache, topic: str, default_queues: int) -> None:
        self.topic = topic
        self._routes = routes
        self._default_queues = default_queues
        self._pause_ms = BACK_OFF_FIRST_MS
        self.met: Exception | None = None
        """What the last attempt came to: the cause of ``given_up``."""

    def attempt(self, until_ms: float) -> Sequence[MessageQueue] | None:
        """Look the route up once; blocks, until then (monotonic) at most. None: ask again after
        ``pause_ms``. ``NoRoute`` where no master is missing, ``TopicNotWritable`` where the topic
        forbids it.
        """
        try:
            return self._routes.find_publish(self.topic, self._default_queues, until_ms).queues
        except NoRoute as error:
            if not self._routes.is_between_masters(self.topic):
                raise
            self.met = error
        except RemotingError as error:
            self.met = error
        return None

    def pause_ms(self) -> float:
        """How long to wait before the next attempt: longer each time."""
        pause, self._pause_ms = self._pause_ms, min(self._pause_ms * 2, BACK_OFF_MAX_MS)
        return pause

    def given_up(self, timeout_ms: float) -> SendError:
        """What a caller is told who has waited for ``timeout_ms``: nothing was sent."""
        topic, met = self.topic, self.met
        if isinstance(met, NoRoute):
            said = f"no broker takes messages of topic {topic!r} now, after {timeout_ms:.0f} ms"
            return NoRoute(
                f"{said}: its master is gone, is drained, or takes no messages; nothing was sent",
                topic,
            )
        why = (
            f"no answer within {timeout_ms:.0f} ms"
            if met is None
            else str(met).removesuffix("; nothing was sent")
        )
        return BrokerUnreachable(
            f"the route of topic {topic!r} is unknown and no name server answers: {why}; "
            f"nothing was sent",
            topic,
        )


class TopicQueues:
    """The queues of topics, for the threads of one producer. ``closing``: who waits for a route
    stops waiting.
    """

    def __init__(self, instance: ClientInstance, config: ProducerConfig) -> None:
        self.group = config.group
        self.clock = instance.clock
        self.closing = False
        self._routes = instance.routes
        self._default_queues = config.default_topic_queues

    def known(self, topic: str) -> Sequence[MessageQueue] | None:
        """The queues of a topic without asking anybody; None = ``find`` has to ask, and perhaps to
        wait.
        """
        info = self._routes.publish(topic)
        return info.queues if info is not None and info.queues else None

    def find(self, topic: str, timeout_ms: float) -> Sequence[MessageQueue]:
        """The queues of a topic; asks again, with pauses, while no name server answers or no master
        is there.

        Raises ``NoRoute``, ``TopicNotWritable``, ``BrokerUnreachable``, and ``ClientError`` when
        the producer is closed meanwhile.
        """
        found = self.known(topic)
        if found is not None:
            return found
        wait, deadline = self.wait_for(topic), self.clock.monotonic_ms() + timeout_ms
        while (found := wait.attempt(deadline)) is None:  # ends: at the deadline
            pause = wait.pause_ms()
            if self.closing:
                raise self.closed_meanwhile(topic)
            if self.clock.monotonic_ms() + pause >= deadline:
                raise wait.given_up(timeout_ms) from wait.met
            self.clock.sleep_ms(pause)
        return found

    def wait_for(self, topic: str) -> RouteWait:
        """A wait for the queues of a topic."""
        return RouteWait(self._routes, topic, self._default_queues)

    def closed_meanwhile(self, topic: str) -> ClientError:
        """What a caller is told who waits for a route when the producer is closed."""
        return ClientError(
            f"producer {self.group!r} was closed while a send waited for the route of topic "
            f"{topic!r}; nothing was sent",
            topic,
        )


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
            known = self._queues.known(topic)
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
