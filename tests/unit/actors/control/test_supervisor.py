"""What the controller does about a member that does not answer, and that it does nothing where
Ray's control plane cannot say.
"""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import pytest

from rmq_ray.actors import gateway, placement
from rmq_ray.actors.broker import ReplicaShell
from rmq_ray.actors.control.apply_changes import place_of_controller
from rmq_ray.actors.control.plan import StartOptions, make_plan
from rmq_ray.actors.control.supervisor import ActorSpec, Supervisor, name_servers_of, others_of
from rmq_ray.actors.gateway import Ping
from rmq_ray.actors.name_server import NameServerShell
from rmq_ray.errors import ClusterError
from tests.support.waiting import loop_turns

MEMBER = ActorSpec(
    "c/broker-a/0", ReplicaShell, ("config", b"secret", True, None), None, "broker-a"
)


class Ray:
    """What the gateway would ask; ``found``: what a look-up says."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, ping: Ping, found: Any) -> None:
        self.created: list[tuple[Any, ...]] = []
        self.killed: list[Any] = []
        self.pinged: list[Any] = []

        async def create(
            shell: type, name: str, arguments: tuple[Any, ...], *, resource: str | None = None
        ) -> Any:
            self.created.append(arguments)
            return f"handle {len(self.created)}"

        async def answer(handle: Any, timeout_s: float) -> Ping:
            self.pinged.append(handle)
            return ping

        async def look(name: str) -> Any:
            if isinstance(found, Exception):
                raise found
            return found

        monkeypatch.setattr(gateway, "create_in_thread", create)
        monkeypatch.setattr(gateway, "ping_handle", answer)
        monkeypatch.setattr(gateway, "find_again", look)
        monkeypatch.setattr(gateway, "kill_handle", self.killed.append)


def look_after(rounds: int, made: ActorSpec = MEMBER) -> None:
    async def run() -> None:
        supervisor = Supervisor()
        await supervisor.create(made)
        for _ in range(rounds):
            for member in supervisor.all():
                await supervisor.look_after(member)

    asyncio.run(run())


def test_a_member_that_is_gone_is_created_again_on_its_store_only(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    ray = Ray(monkeypatch, Ping.MISSING, None)
    look_after(2)
    assert [arguments[2] for arguments in ray.created] == [True, False]


def test_an_actor_that_is_new_may_be_silent_for_long_and_one_with_a_store_may_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    ray = Ray(monkeypatch, Ping.SILENT, None)
    look_after(5)
    assert ray.killed == [], "started again by Ray it would make no store"
    look_after(5, MEMBER.again)
    assert ray.killed == ["handle 2"]


def test_an_actor_that_somebody_else_made_under_the_name_is_taken(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    ray = Ray(monkeypatch, Ping.MISSING, "another handle")
    look_after(2)
    assert len(ray.created) == 1
    assert ray.pinged == ["handle 1", "another handle"]


def test_while_the_control_plane_cannot_say_nobody_is_created_or_killed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    ray = Ray(monkeypatch, Ping.MISSING, ClusterError("no answer"))
    look_after(10)
    assert (len(ray.created), ray.killed) == (1, [])


def test_a_member_that_hangs_is_killed_by_its_handle(monkeypatch: pytest.MonkeyPatch) -> None:
    ray = Ray(monkeypatch, Ping.SILENT, None)
    look_after(4, MEMBER.again)
    assert ray.killed == ["handle 1"]


def test_replicas_have_stores_of_their_own_and_only_the_first_a_hold_service() -> None:
    plan = make_plan(
        "c",
        StartOptions(
            brokers=1,
            name_servers=1,
            store_path="/x",
            flush="async",
            foreign="closed",
            replicas=1,
        ),
        host="127.0.0.1",
        ports=(0, 0),
        secret=b"s" * 32,
    )
    found = others_of(plan, {"broker-a/1": "known"}, may_create_stores=True)
    assert [member.name for member in found] == [
        "c/broker-a/hold",
        "c/broker-a/0",
        "c/broker-a/1",
    ]
    brokers = [member for member in found if member.key]
    assert [member.shell for member in brokers] == [ReplicaShell, ReplicaShell]
    assert [(member.arguments[2], member.arguments[3]) for member in brokers] == [
        (True, None),
        (False, "known"),
    ]


def test_a_name_server_that_is_created_again_looks_for_its_own_port() -> None:
    first = ActorSpec("c/name-server-0", NameServerShell, ("config", b"secret"), None)
    assert first.again.arguments == ("config", b"secret", True)
    assert first.again.again.arguments == first.again.arguments


def test_an_actor_that_is_forgotten_while_it_is_pinged_is_left_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    ray = Ray(monkeypatch, Ping.SILENT, "its handle")
    supervisor = Supervisor()

    async def ping(handle: Any, timeout_s: float) -> Ping:
        supervisor.forget("c/table/orders")
        return Ping.SILENT

    async def run() -> None:
        await supervisor.attach(ActorSpec("c/table/orders", object, (), None))
        (member,) = supervisor.supervised()
        for _ in range(3):
            await supervisor.look_after(member)

    monkeypatch.setattr(gateway, "ping_handle", ping)
    asyncio.run(run())
    assert not ray.killed and not ray.created and list(supervisor.supervised()) == []


def test_nobody_is_created_once_the_cluster_is_stopped(monkeypatch: pytest.MonkeyPatch) -> None:
    ray = Ray(monkeypatch, Ping.MISSING, None)
    supervisor = Supervisor()

    async def ping(handle: Any, timeout_s: float) -> Ping:
        await supervisor.close()
        return Ping.MISSING

    async def run() -> None:
        await supervisor.create(MEMBER)
        monkeypatch.setattr(gateway, "ping_handle", ping)
        for _ in range(2):
            await supervisor.look_after(MEMBER)
        with pytest.raises(ClusterError, match="is stopped"):
            await supervisor.create(MEMBER)

    asyncio.run(run())
    assert len(ray.created) == 1


def test_who_is_being_created_while_the_cluster_is_stopped_is_ended_before_that_is_over(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    ended: list[Any] = []
    monkeypatch.setattr(gateway, "kill_worker", ended.append)

    async def run() -> None:
        supervisor, begun, go = Supervisor(), asyncio.Event(), asyncio.Event()

        async def create(*_: Any, **__: Any) -> Any:
            begun.set()
            await go.wait()
            return "late"

        monkeypatch.setattr(gateway, "create_in_thread", create)
        making = asyncio.create_task(supervisor.create(MEMBER))
        await begun.wait()
        closing = asyncio.create_task(supervisor.close())
        await loop_turns(3)
        assert not closing.done()
        go.set()
        await closing
        assert ended == ["late"] and list(supervisor.all()) == []
        await making

    asyncio.run(run())


def test_what_has_no_place_of_its_own_lives_on_the_head_which_is_never_idle() -> None:
    asked = StartOptions(1, 2, "/x", "async", "closed", resources={"name-server-1": "disk"})
    plan = make_plan("c", asked, host="", ports=(0, 0), secret=b"s" * 32)
    assert [server.resource for server in name_servers_of(plan)] == [placement.HEAD, "disk"]
    assert place_of_controller(plan) == placement.HEAD
    placed = replace(plan, resources={"controller": "disk"})
    assert place_of_controller(placed) == "disk"
