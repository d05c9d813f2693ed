"""A controller that starts again while something is away: a real ledger, played actors, no Ray."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from rmq_ray.actors import gateway, names
from rmq_ray.actors.control import controller as module
from rmq_ray.actors.control import elections
from rmq_ray.actors.control.controller import ControllerShell
from rmq_ray.actors.control.plan import StartOptions, make_plan
from rmq_ray.actors.gateway import Ping
from rmq_ray.errors import ClusterError
from rmq_ray.model.replica_roles import ReplicaReport, Role
from tests.conformance.test_elections import after
from tests.support.waiting import eventually_async


class Actors:
    """Everything runs but what is ``away``; a handle is the actor's name."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, away: set[str]) -> None:
        self.away = away
        self.created: list[str] = []
        self.pinged: set[str] = set()
        self.reports = {
            n: ReplicaReport(n, Role.SLAVE, f"host:{n}", f"store-{n}", 0, 0, 0, True, 0)
            for n in range(2)
        }
        for name in ("call_async", "create_in_thread", "find_again", "ping_handle", "dead_nodes"):
            monkeypatch.setattr(gateway, name, getattr(self, name))
        monkeypatch.setattr(gateway, "my_handle", lambda: "controller")
        monkeypatch.setattr(module, "PING_INTERVAL_S", 0.02)
        monkeypatch.setattr(module, "AGAIN_S", 0.02, raising=False)
        monkeypatch.setattr(module, "MEMBER_START_S", 0.05)
        monkeypatch.setattr(elections, "ATTEND_S", 0.02)

    async def create_in_thread(
        self, _shell: type, name: str, _arguments: tuple[Any, ...], *, resource: str | None = None
    ) -> Any:
        self.created.append(name)
        return name

    async def find_again(self, name: str) -> Any:
        return name

    async def ping_handle(self, handle: str, _timeout_s: float) -> Ping:
        self.pinged.add(handle)
        return Ping.ANSWERED

    async def dead_nodes(self) -> frozenset[str]:
        return frozenset()

    async def call_async(
        self, handle: str, method: str, *arguments: Any, timeout_s: float = 30.0
    ) -> Any:
        await asyncio.sleep(0)
        if handle in self.away:
            raise ClusterError(f"{handle} is away")
        if method in ("attend", "fence"):
            replica = int(handle.endswith("1"))
            self.reports[replica] = after(self.reports[replica], arguments[0])
            return self.reports[replica]
        return {"serving": f"{handle}:1", "node": "node", "registered": True}[method]


@pytest.mark.parametrize("restarted", [False, True])
def test_only_a_first_start_fails_for_good_and_a_later_one_elects_while_a_name_server_is_away(
    restarted: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = make_plan(
        "c",
        StartOptions(
            brokers=1,
            name_servers=1,
            replicas=1,
            store_path=str(tmp_path),
            flush="async",
            foreign="closed",
        ),
        host="127.0.0.1",
        ports=(0, 0),
        secret=b"s",
    )
    monkeypatch.setattr(module, "is_restart", lambda: restarted)
    actors = Actors(monkeypatch, {names.name_server("c", 0)})

    async def story() -> None:
        shell = ControllerShell(replace(plan, identities={}))
        if not restarted:
            await eventually_async(lambda: shell._state.value == "failed")
            assert shell._elections.masters() == frozenset()
        else:
            await eventually_async(
                lambda: shell._elections.masters() == {"broker-a"} and len(actors.pinged) >= 3
            )
            await eventually_async(lambda: shell._error is not None)
            assert shell._state.value == "starting"
            assert not [name for name in actors.created if "broker" in name], (
                "nobody is created without the name servers' addresses"
            )
            actors.away = set()
            await eventually_async(lambda: shell._state.value == "serving")
            assert shell._error is None
            assert len({name for name in actors.created if "broker" in name}) >= 2
        shell._state = module.ClusterState.STOPPING
        await shell._elections.close()

    asyncio.run(story())
