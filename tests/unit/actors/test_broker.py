"""What a replica's actor proposes: never more than its broker knows; and whether a broker's actor
says that it serves.
"""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from rmq_ray.actors import broker as module
from rmq_ray.actors.broker import BrokerShell, ReplicaShell
from rmq_ray.config import BrokerConfig, StoreConfig
from rmq_ray.errors import StoreNotReady
from rmq_ray.model.replica_roles import Assignment, ReplicaReport
from rmq_ray.server.replication.leadership import Leadership
from tests.support.waiting import loop_turns


class Paper:
    """In place of a broker that is master alone."""

    def __init__(self, leadership: Leadership) -> None:
        self.leadership = leadership

    async def attend(self, assignment: Assignment) -> ReplicaReport:
        return self.leadership.attend(assignment)


def test_a_proposal_has_the_version_that_the_broker_took_and_none_of_an_assignment_that_it_ignored(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked: list[tuple[Any, ...]] = []

    async def call(_controller: object, *arguments: Any, timeout_s: float) -> None:
        asked.append(arguments)

    def begun(
        shell: Any,
        _config: object,
        _secret: object,
        _may_create: object,
        _identity: object,
        leadership: Leadership,
    ) -> None:
        shell._broker, shell._error = Paper(leadership), None

    monkeypatch.setattr(module, "call_async", call)
    monkeypatch.setattr(BrokerShell, "__init__", begun)

    async def story() -> None:
        shell = ReplicaShell(BrokerConfig(StoreConfig("/nowhere"), broker_name="b"), b"", True)
        await shell.attend(Assignment("b", 3, 0, "host:0", (0, 1), 2), "controller")
        await shell.attend(Assignment("b", 2, 0, "host:0", (0,), 9), "controller")  # late
        shell._leadership.propose(3, (0,))
        await loop_turns(20)
        shell._leadership.propose(2, (0, 1))  # of an epoch that is over
        await loop_turns(20)

    asyncio.run(story())
    assert asked == [("propose", "b", 0, 3, 2, (0,))]


class Stopping:
    """In place of a broker that serves until it is stopped."""

    address, stopped = "host:1", False

    async def stop(self) -> None:
        self.stopped = True


def test_an_actor_whose_broker_was_stopped_does_not_say_that_it_serves() -> None:
    shell: Any = BrokerShell.__new__(BrokerShell)
    shell._broker, shell._error, shell._started = Stopping(), None, True
    shell._actor = "broker-a"

    async def story() -> None:
        assert await shell.serving() == "host:1"
        await shell.stop()
        with pytest.raises(StoreNotReady, match="broker-a was stopped"):
            await shell.serving()

    asyncio.run(story())
