"""A scaled group: consumer actors of one consumer group, and the actor that starts, watches, scales
and drains them.

    Workers (in the driver) ─ start, scale, status, stop ─> FleetShell (one actor, no CPU)
                                     creates, pings ConsumerShell (n actors) ─┘

Decides when a worker is created anew (Ray restarts a process that dies; one whose constructor
failed meanwhile is gone for good) and applies ``protocol.autoscale`` to the group's lag. Does not
kill workers that are slow to answer: a handler may keep the interpreter for as long as it likes.
Called by ``actors.workers.deployment``.

Invariants: fewer workers are made by stopping the youngest gracefully (what it had begun is
finished and committed); the fleet's actor owns its workers: when it goes they go, and their
messages come to other members of the group. So it lives on the head, which goes last.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from rmq_ray.actors import gateway, placement
from rmq_ray.actors.client_actors import ConsumerShell
from rmq_ray.actors.discovery import RayDiscovery
from rmq_ray.actors.gateway import Ping
from rmq_ray.actors.shell import is_restart, spawn
from rmq_ray.client.admin.admin import Admin
from rmq_ray.clock import SYSTEM_CLOCK, seconds_to
from rmq_ray.config import put_environment
from rmq_ray.errors import ClusterError, ConfigError, GroupNotFound, RmqError
from rmq_ray.model.topics import Permission
from rmq_ray.protocol.actor_resources import ActorResources
from rmq_ray.protocol.autoscale import Autoscale, Scaler, check_actors

log = logging.getLogger("rmq_ray.fleet")
WATCH_S = 2.0
PING_TIMEOUT_S = 5.0
NODE_TIMEOUT_S = 2.0
STOP_MARGIN_S = 10.0
RESTART_TIMEOUT_S = 60.0
GOING_MAX = 16
"""Nodes that go, the newest: no worker is made on them until they are said to stay."""


@dataclass(frozen=True, slots=True)
class FleetSpec:
    """What the workers are made of. ``actors``: how many at first; ``options``: Ray's actor
    options; ``settings``: keywords of ``ConsumerActor``; ``wait_for_nodes``: the Ray cluster may
    grow on demand.
    """

    cluster: str
    group: str
    listener: Any
    subscriptions: dict[str, Any]
    settings: dict[str, Any]
    actors: int = 1
    options: dict[str, Any] = field(default_factory=dict)
    autoscale: Autoscale | None = None
    wait_for_nodes: bool = False


class FleetShell:
    """All state belongs to the actor's one loop. ``packed``: a ``FleetSpec`` as ``gateway.pack``
    makes it, so that Ray can restart the actor.
    """

    def __init__(self, packed: bytes) -> None:
        spec: FleetSpec = gateway.unpack(packed)
        # the lag is measured in a thread, where a blocking call holds nothing up; Ray warns all the
        # same
        put_environment("RAY_WARN_BLOCKING_GET_INSIDE_ASYNC", "0")
        self._spec = spec
        self._workers: list[Any] = []
        self._target = 0
        self._made_anew = 0
        self._demand = ActorResources.of(spec.options)
        self._scaler = Scaler(spec.autoscale) if spec.autoscale else None
        self._admin: Admin | None = None
        self._changing = asyncio.Lock()
        self._stopped = False
        self._going: deque[str] = deque(maxlen=GOING_MAX)
        self._lag = 0
        self._measured_ms: float | None = None
        if is_restart():
            spawn(self._start_again(), "fleet restart")

    async def ping(self) -> str:
        """The consumer group, as long as the actor lives."""
        return self._spec.group

    async def start(self, timeout_s: float) -> None:
        """Create the first workers and wait until all have joined. ``ClusterError`` names what
        keeps them; nothing is left then.
        """
        try:
            async with self._changing:
                await self._grow(self._spec.actors, timeout_s)
        except ClusterError:
            await self.stop(False, 0.0)
            raise
        self._begin_to_watch()

    async def scale(self, actors: int, timeout_s: float) -> int:
        """Grow or shrink to ``actors``; returns when the new ones have joined or the old ones have
        left. ``TooFewResources`` at once where so many could never run.
        """
        async with self._changing:
            if self._stopped:
                raise ClusterError(
                    f"the workers of group {self._spec.group!r} were stopped; deploy them anew",
                    self._spec.group,
                )
            if actors > len(self._workers):
                await self._look_for_room(actors)
                await self._grow(actors, timeout_s)
            else:
                self._target = actors
                await self._shrink(actors, True, timeout_s)
            return len(self._workers)

    async def status(self) -> dict[str, Any]:
        """``group, actors, target, made_anew, lag`` (as last measured for scaling), ``lag_age_ms``
        (since then; None without autoscale) and ``workers``: ``stats`` of each, or its error.
        """
        found = await asyncio.gather(*(self._stats(worker) for worker in self._workers))
        return {
            "group": self._spec.group,
            "actors": len(self._workers),
            "target": self._target,
            "made_anew": self._made_anew,
            "lag": self._lag,
            "lag_age_ms": self._measured_ms
            and round(SYSTEM_CLOCK.monotonic_ms() - self._measured_ms),
            "workers": found,
        }

    async def lag(self) -> GroupLag:
        """Messages that the group has still to finish: over all its queues, those of its retry
        topic included.
        """
        return (await asyncio.to_thread(self._measure))[0]

    async def ask(self, method: str, *arguments: Any) -> list[Any]:
        """Call a public method of every worker's listener object."""
        return list(
            await asyncio.gather(
                *(gateway.call_async(worker, "ask", method, *arguments) for worker in self._workers)
            )
        )

    async def stop(self, drain: bool, timeout_s: float) -> bool:
        """End all workers; with ``drain`` what they have begun is finished and committed first.
        False when some did not end in time.
        """
        self._stopped = True
        async with self._changing:
            self._target = 0
            drained = await self._shrink(0, drain, timeout_s)
        if self._admin is not None:
            self._admin.close()
            self._admin = None
        return drained

    async def leave_node(self, node: str, timeout_s: float) -> dict[str, Any]:
        """Make others, elsewhere, instead of the workers on this node of Ray (its id), which goes,
        and end those, what they have begun finished and committed: all within ``timeout_s``. The
        new ones wait where there is no room yet. ``group``, ``moved`` (how many) and ``ended``:
        False when some did not end in time.
        """
        until_ms = SYSTEM_CLOCK.monotonic_ms() + timeout_s * 1000
        if node not in self._going:
            self._going.append(node)
        asked = list(self._workers)
        ask_s = min(NODE_TIMEOUT_S, timeout_s / 4)
        nodes = await asyncio.gather(*(self._node(worker, ask_s) for worker in asked))
        # not behind ``_changing``: who grows holds it for as long as there is no room
        there = [
            worker
            for worker, its in zip(asked, nodes, strict=True)
            if its == node and worker in self._workers
        ]
        for worker in there:
            self._workers[self._workers.index(worker)] = self._create()
        left_s = seconds_to(SYSTEM_CLOCK, until_ms)
        margin_s = min(STOP_MARGIN_S, left_s / 4)
        ended = await self._end(there, True, left_s - margin_s, margin_s)
        return {"group": self._spec.group, "moved": len(there), "ended": ended}

    async def keep_nodes(self) -> None:
        """No node goes any more: workers may be made on all of them again."""
        self._going.clear()

    # --- workers ----------------------------------------------------------------------------------

    def _create(self) -> Any:
        spec = self._spec
        return gateway.create_worker(
            ConsumerShell,
            (spec.group, spec.listener, spec.subscriptions),
            {"cluster": spec.cluster, **spec.settings},
            spec.options | placement.elsewhere(self._going),
        )

    async def _node(self, worker: Any, timeout_s: float = NODE_TIMEOUT_S) -> str | None:
        """Where it runs; None where it does not say."""
        try:
            return str(await gateway.call_async(worker, "node", timeout_s=timeout_s))
        except RmqError as error:
            log.warning("a worker of group %s does not say its node: %s", self._spec.group, error)
            return None

    async def _look_for_room(self, actors: int) -> None:
        nodes, free = await gateway.resources_beside()
        if not self._spec.wait_for_nodes:
            self._demand.require_room(actors, nodes, free, self._spec.group)
        shortage = self._demand.shortage(actors - len(self._workers), nodes, free)
        if shortage is not None:
            log.warning("group %s waits for resources: %s", self._spec.group, shortage)

    async def _grow(self, actors: int, timeout_s: float) -> None:
        before = len(self._workers)
        until_ms = SYSTEM_CLOCK.monotonic_ms() + timeout_s * 1000
        fresh = [self._create() for _ in range(actors - before)]
        outcomes = await asyncio.gather(
            *(self._join(worker, until_ms) for worker in fresh), return_exceptions=True
        )
        failures = [outcome for outcome in outcomes if isinstance(outcome, BaseException)]
        if failures:
            supply = await self._supply()  # as long as those that came still use theirs
            joined, self._workers = self._workers[before:], self._workers[:before]
            for worker in dict.fromkeys([*fresh, *joined]):
                gateway.kill_worker(worker)
            raise ClusterError(
                f"{len(failures)} of {len(fresh)} workers of group {self._spec.group!r} did "
                f"not start: {failures[0]}; {self._demand.asked(len(fresh))}; {supply}",
                self._spec.group,
            )
        self._target = actors

    async def _join(self, worker: Any, until_ms: float) -> None:
        """It is one of the workers as soon as it has joined. Where Ray has made it meanwhile on a
        node that goes, another one is.
        """
        await gateway.call_async(worker, "ping", timeout_s=seconds_to(SYSTEM_CLOCK, until_ms))
        if self._going and await self._node(worker) in self._going:
            self._workers.append(self._create())
            await self._end([worker], True, seconds_to(SYSTEM_CLOCK, until_ms))
        else:
            self._workers.append(worker)

    async def _shrink(self, actors: int, drain: bool, timeout_s: float) -> bool:
        leaving, self._workers = self._workers[actors:], self._workers[:actors]
        return await self._end(leaving, drain, timeout_s)

    async def _end(
        self,
        leaving: Sequence[Any],
        drain: bool,
        timeout_s: float,
        margin_s: float = STOP_MARGIN_S,
    ) -> bool:
        ended = [True] * len(leaving)
        if drain:
            ended = list(
                await asyncio.gather(
                    *(self._drained(worker, timeout_s, margin_s) for worker in leaving)
                )
            )
        for worker in leaving:
            gateway.kill_worker(worker)
        return all(ended)

    async def _drained(self, worker: Any, timeout_s: float, margin_s: float) -> bool:
        try:
            return bool(
                await gateway.call_async(worker, "stop", timeout_s, timeout_s=timeout_s + margin_s)
            )
        except RmqError as error:
            log.warning("a worker of group %s did not stop by itself: %s", self._spec.group, error)
            return False

    async def _stats(self, worker: Any) -> dict[str, Any]:
        try:
            return dict(await gateway.call_async(worker, "stats", timeout_s=PING_TIMEOUT_S))
        except RmqError as error:
            return {"error": str(error)}

    async def _supply(self) -> str:
        try:
            return self._demand.free_of(*await gateway.resources_beside())
        except ClusterError as error:
            return f"what is free is not known: {error}"

    async def _start_again(self) -> None:
        """This process died, and its workers with it; Ray made a new one. As many as at first:
        autoscaling and ``scale`` find the number again.
        """
        while not self._stopped:  # paced by the pause
            try:
                async with self._changing:
                    await self._grow(self._spec.actors, RESTART_TIMEOUT_S)
                break
            except (ClusterError, ConfigError) as error:
                log.warning("workers of group %s cannot start: %s", self._spec.group, error)
                await asyncio.sleep(WATCH_S)
        self._begin_to_watch()

    def _begin_to_watch(self) -> None:
        spawn(self._watch(), "fleet watch")
        if self._scaler is not None:
            spawn(self._scale_on_lag(), "fleet autoscale")

    # --- watching ---------------------------------------------------------------------------------

    async def _watch(self) -> None:
        while not self._stopped:
            await asyncio.sleep(WATCH_S)
            async with self._changing:
                for at, worker in enumerate(self._workers):
                    if (
                        await gateway.ping_handle(worker, PING_TIMEOUT_S) is Ping.MISSING
                        and self._workers[at] is worker  # a drain has not replaced it meanwhile
                    ):
                        log.warning("a worker of group %s is gone and made anew", self._spec.group)
                        self._made_anew += 1
                        self._workers[at] = self._create()

    async def _scale_on_lag(self) -> None:
        assert self._scaler is not None and self._spec.autoscale is not None
        every_s = self._spec.autoscale.every_s
        while not self._stopped:
            await asyncio.sleep(every_s)
            try:
                lag, queues = await asyncio.to_thread(self._measure)
                self._lag, self._measured_ms = int(lag), SYSTEM_CLOCK.monotonic_ms()
                places = await self._places()
            except RmqError as error:
                log.info("the lag of group %s is not known now: %s", self._spec.group, error)
                continue
            wanted = self._scaler.decide(
                len(self._workers), self._lag, queues, SYSTEM_CLOCK.monotonic_ms()
            )
            if places is not None and wanted > len(self._workers):
                wanted = max(len(self._workers), min(wanted, places))
            if wanted != len(self._workers) and not self._stopped:
                log.info(
                    "group %s has a lag of %d: %d workers become %d",
                    self._spec.group,
                    self._lag,
                    len(self._workers),
                    wanted,
                )
                try:
                    await self.scale(wanted, 60.0)
                except ClusterError as error:
                    log.warning("group %s stays as it is: %s", self._spec.group, error)

    async def _places(self) -> int | None:
        """How many workers the nodes have room for; None = no limit is known."""
        if self._spec.wait_for_nodes or not self._demand.each:
            return None
        return self._demand.places((await gateway.resources_beside())[0])

    def _measure(self) -> tuple[GroupLag, int]:
        """(lag, readable queues), in a thread."""
        if self._admin is None:
            self._admin = Admin(RayDiscovery(self._spec.cluster))
        admin = self._admin
        try:
            lag = GroupLag.of(admin.group_lag(self._spec.group))
        except GroupNotFound:
            lag = GroupLag(0, 0)
        queues = sum(
            row.read_queues
            for topic in self._spec.subscriptions
            for row in admin.route(topic).queues
            if row.permission & Permission.READ
        )
        return lag, queues


class GroupLag(int):
    """A number of messages, asked of the brokers just now. Consumers commit from time to time: what
    they have finished since is still in it.

    ``age_ms``: since the oldest commit of a queue that has a lag; 0 where none has, None where such
    a queue was not committed since its broker began.

    >>> GroupLag(12, 3400), GroupLag(12, 3400) + 1, f"{GroupLag(12, 3400)} to do"
    (GroupLag(12, age_ms=3400), 13, '12 to do')
    """

    age_ms: int | None

    def __new__(cls, messages: int, age_ms: int | None) -> GroupLag:
        """So many messages, of that age."""
        lag = super().__new__(cls, messages)
        lag.age_ms = age_ms
        return lag

    @classmethod
    def of(cls, rows: Iterable[Mapping[str, Any]]) -> GroupLag:
        """Of the rows of ``Admin.group_lag``."""
        behind = [row for row in rows if row["lag"]]
        ages = [row["committed_age_ms"] for row in behind]
        return cls(
            sum(row["lag"] for row in behind), None if None in ages else max(ages, default=0)
        )

    def __repr__(self) -> str:
        return f"GroupLag({int(self)}, age_ms={self.age_ms})"

    def __str__(self) -> str:
        return str(int(self))

    def __reduce__(self) -> tuple[type[GroupLag], tuple[int, int | None]]:
        return GroupLag, (int(self), self.age_ms)


class Workers:
    """Handle of a deployed group; picklable. As a context manager it drains and stops at the
    end.
    """

    def __init__(self, fleet: Any, group: str) -> None:
        self._fleet = fleet
        self.group = group

    def __repr__(self) -> str:
        return f"Workers({self.group!r})"

    def __len__(self) -> int:
        return int(self.status()["actors"])

    def __enter__(self) -> Workers:
        return self

    def __exit__(self, *_exception: object) -> None:
        self.stop()

    def status(self) -> dict[str, Any]:
        """``group``, ``actors`` (that run), ``target`` (that shall), ``made_anew`` (after a death),
        ``lag`` (messages, as last measured for scaling) and ``workers``: counters of each, or its
        error.
        """
        found: dict[str, Any] = gateway.call(self._fleet, "status")
        return found

    def lag(self) -> GroupLag:
        """Messages that the group has still to finish, by what its consumers have committed; a
        number with an ``age_ms``.
        """
        found: GroupLag = gateway.call(self._fleet, "lag")
        return found

    def scale(self, actors: int, timeout_s: float = 60.0) -> int:
        """Run this many workers; those that go finish what they have begun. Returns the number that
        runs.

        ``ConfigError`` for less than one (``stop`` ends all), ``ClusterError`` where the new ones
        cannot start; those that ran go on.
        """
        return int(
            gateway.call(
                self._fleet,
                "scale",
                check_actors(actors),
                timeout_s,
                timeout_s=2 * timeout_s + STOP_MARGIN_S,
            )
        )

    def ask(self, method: str, *arguments: Any) -> list[Any]:
        """Call a public method of every worker's handler object; the results in no particular
        order.
        """
        return list(gateway.call(self._fleet, "ask", method, *arguments))

    def stop(self, drain: bool = True, timeout_s: float = 60.0) -> bool:
        """End the group's workers. ``drain``: running handlers end and are committed first, nothing
        they had begun comes again; without it unfinished messages come to the group's next member.
        False when some handler still ran after ``timeout_s``. Twice does nothing. ``ClusterError``
        where what looks after them does not answer, and has not gone: they run on.
        """
        try:
            ended = bool(
                gateway.call(
                    self._fleet, "stop", drain, timeout_s, timeout_s=timeout_s + 2 * STOP_MARGIN_S
                )
            )
        except ClusterError as error:
            if not gateway.has_ended(self._fleet):
                raise
            log.info("the workers of %s had gone already: %s", self.group, error)
            return True
        gateway.kill_worker(self._fleet)
        return ended
