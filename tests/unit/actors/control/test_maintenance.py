"""What is stopped on purpose stays stopped, what is started again is tried until it is there, and
nobody stops the copy that the others need.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from dataclasses import dataclass, field, replace
from typing import Any, cast

import pytest

from rmq_ray.actors import gateway, names, placement
from rmq_ray.actors.control import controller, maintenance
from rmq_ray.actors.control.controller import ControllerShell
from rmq_ray.actors.control.elections import Elections
from rmq_ray.actors.control.maintenance import ReplicaMaintenance
from rmq_ray.actors.control.plan import ClusterPlan, StartOptions, make_plan
from rmq_ray.actors.control.supervisor import ActorSpec, Supervisor, others_of
from rmq_ray.actors.gateway import Ping
from rmq_ray.clock import SYSTEM_CLOCK, ManualClock
from rmq_ray.errors import ClusterError, PromotionRefused, RmqError, StoreMissing, StoreNotReady
from tests.support.waiting import loop_turns

BROKER = "broker-a"


@dataclass
class Actors:
    """What runs in Ray. ``refused``: cannot be created now; ``kept``: does not go when it is
    killed; ``slow``: set while a creation waits for it; ``unmounted``: its disk is away now;
    ``failed``: it was when the actor began; ``nodes``: where each runs; ``living``: Ray's nodes;
    ``hangs``: set when its stop comes to an end; ``closed``: was stopped and not removed;
    ``silent``: does not say where it runs; ``recovering``: does not serve yet.
    """

    alive: set[str] = field(default_factory=set)
    refused: set[str] = field(default_factory=set)
    kept: set[str] = field(default_factory=set)
    slow: dict[str, asyncio.Event] = field(default_factory=dict)
    told: list[tuple[str, str]] = field(default_factory=list)
    unmounted: set[str] = field(default_factory=set)
    failed: set[str] = field(default_factory=set)
    nodes: dict[str, str] = field(default_factory=dict)
    living: list[placement.Node] = field(default_factory=list)
    hangs: dict[str, asyncio.Event] = field(default_factory=dict)
    closed: set[str] = field(default_factory=set)
    silent: set[str] = field(default_factory=set)
    recovering: set[str] = field(default_factory=set)

    async def nodes_beside(self) -> list[placement.Node]:
        return self.living

    async def create_in_thread(
        self, shell: type, name: str, arguments: tuple[Any, ...], *, resource: str | None = None
    ) -> str:
        if name in self.slow:
            await self.slow[name].wait()
        if name in self.refused:
            raise ClusterError(f"Ray's control plane does not answer: {name}", name)
        if name not in self.alive:
            self.failed = self.failed - {name} | ({name} & self.unmounted)
        self.alive.add(name)
        return name

    async def find_again(self, name: str) -> str | None:
        return name if name in self.alive else None

    async def call_async(
        self, handle: str, method: str, *_arguments: Any, timeout_s: float = 0.0
    ) -> Any:
        if handle not in self.alive:
            raise ClusterError(f"actor {handle} died", handle)
        self.told.append((handle, method))
        if method == "node":
            if handle in self.silent:
                raise ClusterError(f"{handle} did not answer node", handle)
            return self.nodes.get(handle, "elsewhere")
        if method == "stop" and handle in self.hangs:
            await self.hangs[handle].wait()
        if method == "serving" and handle in self.recovering:
            return None
        if method == "serving" and handle in self.closed:
            raise StoreNotReady(f"{handle} was stopped")
        if method == "serving" and handle in self.failed:
            raise StoreMissing(f"no store of {handle}: mount its disk", handle)
        return {"serving": f"address of {handle}", "status": {"identity": "i"}}.get(method)

    async def ping_handle(self, handle: str, timeout_s: float) -> Ping:
        return Ping.ANSWERED if handle in self.alive else Ping.MISSING

    def kill(self, name: str, *, for_good: bool = True) -> bool:
        if name not in self.kept:
            self.alive.discard(name)
            self.closed.discard(name)
        return True


@pytest.fixture
def actors(monkeypatch: pytest.MonkeyPatch) -> Actors:
    found = Actors()
    ours = ("create_in_thread", "find_again", "call_async", "ping_handle", "kill", "nodes_beside")
    for name in ours:
        monkeypatch.setattr(gateway, name, getattr(found, name))
    monkeypatch.setattr(gateway, "kill_worker", found.kill)
    return found


@dataclass
class Election:
    """What the controller decided last."""

    serving_master: int | None
    sync_state_set: tuple[int, ...] = (0, 1, 2)
    promotions: int = 0
    seen: dict[int, str] = field(default_factory=dict)
    heir_is_slow: bool = False

    def in_sync_without(self, replica: int) -> tuple[int, ...] | None:
        if self.serving_master is None or replica not in self.sync_state_set:
            return None
        return tuple(number for number in self.sync_state_set if number != replica)

    async def promote(self, _replica: int | None, _force: bool) -> None:
        self.promotions += 1
        if self.heir_is_slow:
            await asyncio.Event().wait()
        self.serving_master = next(
            number for number in self.sync_state_set if number != self.serving_master
        )


class Decided:
    """Elections of one broker."""

    def __init__(self, election: Election) -> None:
        self._election = election

    def of(self, _broker_name: str) -> Election:
        return self._election

    def node_of(self, _broker_name: str, replica: int) -> str | None:
        return self._election.seen.get(replica)


def trio(replication: str = "sync", replicas: int = 2) -> ClusterPlan:
    return make_plan(
        "c",
        StartOptions(
            brokers=1,
            name_servers=1,
            store_path="/x",
            flush="async",
            foreign="closed",
            replicas=replicas,
            replication=replication,
        ),
        host="127.0.0.1",
        ports=(0, 0),
        secret=b"s" * 32,
    )


async def built(
    election: Election, plan: ClusterPlan | None = None
) -> tuple[Supervisor, ReplicaMaintenance]:
    supervisor = Supervisor()
    for member in others_of(plan or trio(), {}, may_create_stores=True):
        await supervisor.create(member)
    return supervisor, service_of(supervisor, election, plan)


def service_of(
    supervisor: Supervisor, election: Election, plan: ClusterPlan | None = None
) -> ReplicaMaintenance:
    return ReplicaMaintenance(plan or trio(), supervisor, cast(Elections, Decided(election)), dict)


def run(work: Coroutine[Any, Any, None]) -> None:
    asyncio.run(asyncio.wait_for(work, 10))


def copy(replica: int) -> str:
    return names.broker("c", BROKER, replica)


async def supervised(supervisor: Supervisor) -> None:
    for member in supervisor.supervised():
        await supervisor.look_after(member)


def test_a_start_that_fails_once_is_tried_again_and_until_then_the_copy_is_stopped(
    actors: Actors,
) -> None:
    async def work() -> None:
        supervisor, service = await built(Election(0))
        await service.stop(BROKER, 1, False)
        actors.refused.add(copy(1))
        with pytest.raises(ClusterError, match="control plane"):
            await service.start(BROKER, 1)
        assert supervisor.histories()[copy(1)]["stopped"]
        actors.refused.clear()
        assert await service.start(BROKER, 1) == {
            "was": "stopped",
            "address": f"address of {copy(1)}",
        }
        assert not supervisor.histories()[copy(1)]["stopped"]
        actors.kill(copy(1))
        await supervised(supervisor)
        assert copy(1) in actors.alive

    run(work())


def test_a_start_looks_again_for_the_store_of_a_copy_whose_disk_was_away(actors: Actors) -> None:
    async def work() -> None:
        actors.unmounted.add(copy(0))
        supervisor, service = await built(Election(1))
        with pytest.raises(StoreMissing, match="mount its disk"):
            await service.start(BROKER, 0)
        actors.unmounted.clear()
        assert await service.start(BROKER, 0) == {
            "was": "failed",
            "address": f"address of {copy(0)}",
        }
        assert not supervisor.histories()[copy(0)]["stopped"]
        actors.told.clear()
        assert (await service.start(BROKER, 0))["was"] == "running"
        assert (copy(0), "stop") not in actors.told

    run(work())


def test_while_there_is_no_master_a_copy_is_stopped_with_force_only(actors: Actors) -> None:
    async def work() -> None:
        for replication in ("sync", "async"):
            _, service = await built(Election(None), trio(replication))
            with pytest.raises(
                PromotionRefused,
                match=r"nobody takes sends of broker-a now.*broker list.*with force",
            ):
                await service.stop(BROKER, 1, False)
            assert copy(1) in actors.alive
            assert (await service.stop(BROKER, 1, True))["was"] == "running"
            assert copy(1) not in actors.alive

    run(work())


def test_a_copy_that_is_stopped_counts_for_none_although_it_is_in_the_set_still(
    actors: Actors,
) -> None:
    async def work() -> None:
        _, service = await built(Election(0))
        assert (await service.stop(BROKER, 0, False))["master"] == 1
        for replica in (1, 2):
            with pytest.raises(
                PromotionRefused, match="1 copies of broker-a are in sync, 2 are needed"
            ):
                await service.stop(BROKER, replica, False)
        await service.start(BROKER, 0)
        await service.stop(BROKER, 2, False)

    run(work())


def test_a_stop_that_ray_did_not_carry_out_is_carried_out_by_the_next_one(
    actors: Actors, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rmq_ray.actors.control.supervisor.GONE_MS", 60)

    async def work() -> None:
        supervisor, service = await built(Election(1))
        hold = names.hold_service("c", BROKER)
        actors.kept.add(copy(0))
        for _ in range(2):
            with pytest.raises(ClusterError, match="still there: try again"):
                await service.stop(BROKER, 0, False)
            assert {copy(0), hold} <= actors.alive
        actors.kept.clear()
        assert (await service.stop(BROKER, 0, False))["was"] == "stopped"
        assert (
            not {copy(0), hold} & actors.alive
            and (copy(0), "stop") in actors.told
            and (hold, "stop") in actors.told
        )
        await supervised(supervisor)
        assert not {copy(0), hold} & actors.alive

    run(work())


def test_of_many_that_are_started_one_that_fails_keeps_no_other_and_all_that_fail_are_told(
    actors: Actors,
) -> None:
    async def work() -> None:
        supervisor, service = await built(Election(0))
        for replica in range(3):
            await service.stop(BROKER, replica, True)
        actors.refused |= {copy(0), copy(1)}
        with pytest.raises(
            ClusterError,
            match=r"2 of 3 stopped copies do not start: .*c/broker-a/0: .*c/broker-a/1: ",
        ):
            await service.start_all()
        assert copy(2) in actors.alive and [
            member.name for member in supervisor.all_stopped() if member.key
        ] == [copy(0), copy(1)]
        actors.refused = {copy(1)}
        with pytest.raises(RmqError, match="control plane does not answer: c/broker-a/1"):
            await service.start_all()
        actors.refused.clear()
        assert await service.start_all() == [copy(1)] and not supervisor.all_stopped()

    run(work())


def test_a_copy_that_the_supervisor_creates_while_it_is_stopped_is_gone_when_the_stop_returns(
    actors: Actors,
) -> None:
    async def work() -> None:
        supervisor, service = await built(Election(0))
        actors.kill(copy(1))
        actors.slow[copy(1)] = asyncio.Event()
        creating = asyncio.create_task(supervised(supervisor))
        await loop_turns()
        stopping = asyncio.create_task(service.stop(BROKER, 1, False))
        await loop_turns(5)
        assert not stopping.done()
        actors.slow[copy(1)].set()
        await stopping
        await creating
        assert copy(1) not in actors.alive and supervisor.histories()[copy(1)]["stopped"]
        await supervised(supervisor)
        assert copy(1) not in actors.alive
        assert (await service.start(BROKER, 1))["was"] == "stopped"

    run(work())


def test_a_copy_that_is_restarted_for_its_settings_counts_as_away_and_not_as_stopped(
    actors: Actors,
) -> None:
    async def work() -> None:
        supervisor, service = await built(Election(0))
        actors.slow[copy(1)] = asyncio.Event()
        restarting = asyncio.create_task(service.restart(BROKER, 1, False))
        await loop_turns(10)
        assert copy(1) not in actors.alive
        history = supervisor.histories()[copy(1)]
        assert (history["stopped"], history["restarting"]) == (0, 1)
        await supervised(supervisor)
        assert copy(1) not in actors.alive, "the supervisor leaves it alone"
        actors.slow[copy(1)].set()
        assert (await restarting)["was"] == "running"
        history = supervisor.histories()[copy(1)]
        assert (history["stopped"], history["restarting"]) == (0, 0) and copy(1) in actors.alive
        await service.stop(BROKER, 1, True)
        assert await service.restart(BROKER, 1, False) == {"was": "stopped", "address": None}

    run(work())


def test_a_copy_that_does_not_come_back_from_its_restart_is_stopped(actors: Actors) -> None:
    async def work() -> None:
        supervisor, service = await built(Election(0))
        actors.refused = {copy(1)}
        with pytest.raises(ClusterError, match="control plane"):
            await service.restart(BROKER, 1, False)
        assert supervisor.histories()[copy(1)]["stopped"]
        actors.refused.clear()
        assert (await service.start(BROKER, 1))["was"] == "stopped" and copy(1) in actors.alive

    run(work())


def soon(ms: float = 5_000) -> float:
    return SYSTEM_CLOCK.monotonic_ms() + ms


def on(node: str, *resources: str) -> placement.Node:
    return placement.Node("10.0.0.1", frozenset(resources), id=node)


def row(replica: int, master: int | None, was: str = "running") -> dict[str, Any]:
    key = names.replica_key(BROKER, replica)
    return {"copy": key, "was": was, "master": master, "error": None}


def test_the_copies_of_a_node_leave_it_a_master_hands_over_and_a_second_call_finds_them_stopped(
    actors: Actors,
) -> None:
    async def work() -> None:
        election = Election(0)
        supervisor, service = await built(election)
        actors.nodes = {copy(0): "old", copy(1): "other", copy(2): "other"}
        assert await service.leave_node("old", soon()) == [row(0, 1)]
        assert copy(0) not in actors.alive and election.promotions == 1
        assert {copy(1), copy(2)} <= actors.alive
        history = supervisor.histories()[copy(0)]
        assert (history["stopped"], history["left"]) == (0, 1), "clients wait for it"
        assert await service.leave_node("old", soon()) == [row(0, 1, "stopped")]
        assert await service.leave_node("nobody's", soon()) == []

    run(work())


def test_of_a_node_that_goes_nothing_is_refused_and_yet_its_master_hands_over(
    actors: Actors,
) -> None:
    async def work() -> None:
        election = Election(0, (0, 1))
        _, service = await built(election, trio(replicas=1))
        with pytest.raises(PromotionRefused, match="1 copies of broker-a are in sync, 2 are"):
            await service.stop(BROKER, 0, False)
        actors.nodes = {copy(0): "old"}
        assert await service.leave_node("old", soon()) == [row(0, 1)]

    run(work())


def test_a_hand_over_that_takes_long_leaves_time_to_flush(
    actors: Actors, monkeypatch: pytest.MonkeyPatch
) -> None:
    waits, real = list[float](), asyncio.timeout

    def over_at_once(delay: float) -> asyncio.Timeout:
        waits.append(delay)
        return real(0)

    async def work() -> None:
        _, service = await built(Election(0, heir_is_slow=True))
        actors.nodes = {copy(0): "old"}
        monkeypatch.setattr(asyncio, "timeout", over_at_once)
        assert await service.leave_node("old", soon()) == [row(0, 0)]
        assert copy(0) not in actors.alive and (copy(0), "stop") in actors.told

    run(work())
    for_all_of_it, for_the_hand_over = waits
    assert for_the_hand_over <= for_all_of_it / 2 <= 2.5


def test_a_controller_that_has_just_started_again_finds_the_copies_of_a_node_before_it_says_none(
    actors: Actors,
) -> None:
    async def work() -> None:
        supervisor, plan = Supervisor(), trio()
        leaving = asyncio.create_task(service_of(supervisor, Election(1)).leave_node("old", soon()))
        await loop_turns(5)
        actors.nodes = dict.fromkeys(map(copy, range(3)), "other") | {copy(0): "old"}
        for member in others_of(plan, {}, may_create_stores=True):
            await supervisor.create(member)
        assert await leaving == [row(0, 1)] and copy(0) not in actors.alive

    run(work())


def test_a_copy_that_does_not_say_where_it_runs_is_where_it_was_seen_last_or_an_error(
    actors: Actors, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = ManualClock()
    monkeypatch.setattr(maintenance, "SYSTEM_CLOCK", clock)

    async def work() -> None:
        _, service = await built(Election(1, seen={0: "old", 1: "other"}))
        actors.silent = {copy(0), copy(1), copy(2)}
        leaving = asyncio.create_task(service.leave_node("old", 10_000.0))
        await loop_turns(10)
        assert not leaving.done()
        clock.advance_ms(5_000)
        unknown, left = await leaving
        assert (left, unknown["copy"]) == (row(0, 1), "broker-a/2")
        assert "not known: c/broker-a/2 did not answer" in unknown["error"]
        assert {copy(1), copy(2)} <= actors.alive and copy(0) not in actors.alive

    run(work())


def test_a_drain_that_finds_copies_in_work_for_all_its_time_does_nothing_then_and_later(
    actors: Actors,
) -> None:
    async def work() -> None:
        _, service = await built(Election(1))
        actors.nodes = dict.fromkeys(map(copy, range(3)), "old")
        actors.hangs[copy(2)] = asyncio.Event()
        stopping = asyncio.create_task(service.stop(BROKER, 2, False))
        await loop_turns(5)
        (told,) = await service.leave_node("old", soon(30))
        assert told["copy"] == "brokers" and "nothing was done" in told["error"]
        actors.hangs[copy(2)].set()
        await stopping
        await loop_turns(20)
        assert {copy(0), copy(1)} <= actors.alive

    run(work())


def test_a_drain_does_not_wait_until_a_copy_that_is_started_serves_and_till_then_it_is_not_counted(
    actors: Actors,
) -> None:
    async def work() -> None:
        _, service = await built(Election(1))
        actors.nodes = {copy(0): "old"}
        await service.stop(BROKER, 0, False)
        actors.recovering.add(copy(0))
        starting = asyncio.create_task(service.start(BROKER, 0))
        await loop_turns(10)
        with pytest.raises(PromotionRefused, match="1 copies of broker-a are in sync"):
            await service.stop(BROKER, 2, False)
        assert await service.leave_node("old", soon()) == [row(0, 1)]
        with pytest.raises(ClusterError, match="was stopped while it started"):
            await starting

    run(work())


def test_a_copy_that_left_starts_where_its_disk_is_next_once_its_node_is_gone(
    actors: Actors,
) -> None:
    async def work() -> None:
        plan = replace(trio(), resources={"broker-a": "disk"})
        supervisor, service = await built(Election(0), plan)
        actors.nodes, actors.living = {copy(0): "old"}, [on("old", "disk")]
        await service.leave_node("old", soon())
        await service.bring_back()
        assert copy(0) not in actors.alive, "Ray would start it on the old one again"
        actors.living = [on("head", "other")]
        await service.bring_back()
        assert copy(0) not in actors.alive and await service.start_all() == []
        actors.living = [on("head", "other"), on("new", "disk")]
        await service.bring_back()
        assert copy(0) in actors.alive and names.hold_service("c", BROKER) in actors.alive
        assert not supervisor.left and not supervisor.histories()[copy(0)]["left"]

    run(work())


def test_a_copy_whose_place_is_an_address_starts_when_a_node_has_that_again(actors: Actors) -> None:
    async def work() -> None:
        plan = replace(trio(), resources={"broker-a": "node:10.0.0.1"})
        _, service = await built(Election(0), plan)
        actors.nodes = {copy(0): "old"}
        await service.leave_node("old", soon())
        actors.living = [placement.Node("10.0.0.2", frozenset(), id="other")]
        await service.bring_back()
        assert copy(0) not in actors.alive
        actors.living.append(on("new"))
        await service.bring_back()
        assert copy(0) in actors.alive

    run(work())


def test_a_copy_that_left_is_started_by_hand_and_one_stopped_by_hand_stays_so(
    actors: Actors,
) -> None:
    async def work() -> None:
        supervisor, service = await built(Election(1))
        actors.nodes = {copy(0): "old", copy(2): "old"}
        await service.leave_node("old", soon())
        assert (await service.start(BROKER, 0))["was"] == "stopped"
        await service.stop(BROKER, 2, False)
        actors.living = [on("new")]
        await service.bring_back()
        assert copy(0) in actors.alive and copy(2) not in actors.alive
        assert supervisor.histories()[copy(2)]["stopped"]

    run(work())


async def leave_impatiently(service: ReplicaMaintenance) -> list[dict[str, Any]]:
    """All that leave the old node have as many turns of the loop as they need to stop, and no
    time.
    """
    real = asyncio.wait

    async def wait(stops: Any, *, timeout: float) -> Any:
        await loop_turns(20)
        return await real(stops, timeout=0)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(asyncio, "wait", wait)
        return await service.leave_node("old", soon())


async def pair(actors: Actors) -> tuple[Supervisor, ReplicaMaintenance, str, str]:
    """Two brokers without slaves on a node that goes, and the first one hangs in its stop."""
    plan = make_plan(
        "c",
        StartOptions(2, 1, "/x", "async", "closed"),
        host="127.0.0.1",
        ports=(0, 0),
        secret=b"s" * 32,
    )
    supervisor, service = await built(Election(None), plan)
    first, second = (names.broker("c", name, 0) for name in ("broker-a", "broker-b"))
    actors.nodes, actors.hangs = {first: "old", second: "old"}, {first: asyncio.Event()}
    return supervisor, service, first, second


def test_a_copy_whose_stop_takes_long_keeps_no_other_and_the_next_call_waits_for_the_same_stop(
    actors: Actors,
) -> None:
    async def work() -> None:
        _, service, first, second = await pair(actors)
        hung, done = await leave_impatiently(service)
        assert hung["error"] == "did not stop in time" and done["error"] is None
        assert first in actors.alive and second not in actors.alive
        again = asyncio.create_task(service.leave_node("old", soon()))
        await loop_turns(10)
        assert not again.done() and first in actors.alive, "a stop is not cut off"
        actors.hangs[first].set()
        found = {one["copy"]: one["error"] for one in await again}
        assert found == {"broker-a": None, "broker-b": None} and first not in actors.alive
        assert actors.told.count((first, "stop")) == 1

    run(work())


def test_a_stop_that_nobody_waits_for_any_more_removes_its_actor_and_a_start_waits_for_it(
    actors: Actors,
) -> None:
    async def work() -> None:
        supervisor, service, first, _ = await pair(actors)
        await leave_impatiently(service)
        starting = asyncio.create_task(service.start("broker-a", 0))
        await loop_turns(10)
        assert not starting.done(), "it would attach to the actor that closes"
        actors.hangs[first].set()
        assert (await starting)["was"] == "stopped" and first in actors.alive
        actors.hangs[first].clear()
        await leave_impatiently(service)
        actors.hangs[first].set()
        await loop_turns(20)
        assert first not in actors.alive and supervisor.histories()[first]["left"]

    run(work())


def test_a_controller_that_starts_again_leaves_a_copy_that_was_stopped_meanwhile(
    actors: Actors, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = trio("async", replicas=0)
    monkeypatch.setattr(controller, "is_restart", lambda: True)
    monkeypatch.setattr(controller, "be_urgent", lambda: None)

    def member(found: ActorSpec) -> str:
        return found.name

    async def work() -> None:
        actors.alive |= set(map(member, others_of(plan, {}, may_create_stores=False)))
        server = actors.slow[names.name_server("c", 0)] = asyncio.Event()
        shell = ControllerShell(plan)
        await loop_turns(10)
        await shell.stop_copy(BROKER, 0, False)
        server.set()
        while (await shell.state())[0] != "serving":
            await loop_turns()
        assert copy(0) not in actors.alive and (await shell.members())[copy(0)]["stopped"]
        assert await shell.start_copies() == [copy(0)] and copy(0) in actors.alive

    run(work())


def test_a_controller_that_starts_again_makes_a_closed_broker_anew_that_was_left_behind(
    actors: Actors, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = trio("async", replicas=0)
    monkeypatch.setattr(controller, "is_restart", lambda: True)
    monkeypatch.setattr(controller, "be_urgent", lambda: None)

    async def work() -> None:
        actors.alive |= {member.name for member in others_of(plan, {}, may_create_stores=False)}
        actors.closed.add(copy(0))
        shell = ControllerShell(plan)
        while (await shell.state())[0] != "serving":
            await loop_turns()
        assert copy(0) in actors.alive - actors.closed

    run(work())
