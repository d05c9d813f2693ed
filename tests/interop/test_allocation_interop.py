"""Thousands of random groups and topics are divided alike by our strategies and by Apache RocketMQ
4.9.7's own classes.

One Java program gets all cases as lines (``Allocations``) and answers with indices; exceptions must
meet exceptions.
"""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import pytest

from rmq_ray.errors import ClientError
from rmq_ray.model.ids import MessageQueue
from rmq_ray.protocol.allocation.strategies import (
    AllocationStrategy,
    Averagely,
    AveragelyByCircle,
    ByConfig,
    ByMachineRoom,
    ConsistentHash,
    MachineRoomNearby,
    RoomTable,
)
from tools import interop

CASES = 4_000
SEED = 20_497
ROOM_NAMES = ("east", "north", "west", "süd")
BROKERS = (
    "broker-a",
    "broker-b",
    "b10",
    "b9",
    *(f"{room}@{n}" for room in ROOM_NAMES for n in "ab"),
    "east@",
    "east@a@b",
    "west@a@",
)


@dataclass(frozen=True)
class Case:
    """One question to both sides."""

    name: str
    client_id: str
    queues: tuple[MessageQueue, ...]
    client_ids: tuple[str, ...]
    settings: str
    strategy: AllocationStrategy

    def line(self) -> str:
        queues = ",".join(
            f"{queue.topic}/{queue.broker_name}/{queue.queue_id}" for queue in self.queues
        )
        return "\t".join(
            (self.name, self.client_id, queues, ",".join(self.client_ids), self.settings)
        )

    def answer(self) -> str:
        try:
            found = self.strategy.allocate("g", self.client_id, self.queues, self.client_ids)
        except ClientError:
            return "!IllegalArgumentException"
        return ",".join(str(self.queues.index(queue)) for queue in found)


def cases() -> list[Case]:
    return [_case(random.Random(f"{SEED}-{number}")) for number in range(CASES)]


def _case(chance: random.Random) -> Case:
    nearby = chance.random() < 0.4
    brokers = (
        [f"{room}@{n}" for room in ROOM_NAMES for n in "ab"]
        if nearby and chance.random() < 0.9
        else list(BROKERS)
    )
    chosen = chance.sample(brokers, chance.randint(1, len(brokers)))
    queues = tuple(
        sorted(
            MessageQueue("TopicTest", broker, n)
            for broker in chosen
            for n in range(chance.randint(1, 16))
        )
    )
    hosts = [f"192.168.{chance.randrange(4)}.{n}" for n in range(chance.randint(1, 24))]
    ids = tuple(sorted(f"{host}@{chance.randint(1, 99_999)}" for host in hosts))
    own = chance.choice(ids) if chance.random() < 0.95 else chance.choice(["192.168.9.9@1", ""])
    if chance.random() < 0.03:
        queues = ()
    elif chance.random() < 0.03:
        ids = ()
    name, settings, strategy = _nearby(chance, hosts) if nearby else _other(chance, queues)
    return Case(name, own, queues, ids, settings, strategy)


def _nearby(chance: random.Random, hosts: list[str]) -> tuple[str, str, AllocationStrategy]:
    known = hosts if chance.random() < 0.95 else hosts[1:]
    table = {host: chance.choice(ROOM_NAMES) for host in known}
    inner = chance.choice([Averagely(), AveragelyByCircle()])
    settings = ",".join(f"{host}={room}" for host, room in table.items())
    return f"NEARBY-{inner.name}", settings, MachineRoomNearby(inner, FirstPart(table))


def _other(
    chance: random.Random, queues: tuple[MessageQueue, ...]
) -> tuple[str, str, AllocationStrategy]:
    kind = chance.choice(["AVG", "AVG_BY_CIRCLE", "CONSISTENT_HASH", "CONFIG", "MACHINE_ROOM"])
    if kind == "CONSISTENT_HASH":
        points = chance.choice([1, 3, 10, 10, 50])
        return kind, str(points), ConsistentHash(points)
    if kind == "MACHINE_ROOM":
        rooms = chance.sample(ROOM_NAMES, chance.randint(1, 4))
        return kind, ",".join(rooms), ByMachineRoom(rooms)
    if kind == "CONFIG":
        mine = chance.sample(range(len(queues)), chance.randint(0, len(queues)))
        return kind, ",".join(map(str, mine)), ByConfig(queues[n] for n in mine)
    return kind, "", Averagely() if kind == "AVG" else AveragelyByCircle()


class FirstPart(RoomTable):
    """What the Java side's resolver does: everything before the first ``@`` is a broker's room."""

    def broker_room(self, queue: MessageQueue) -> str:
        return queue.broker_name.partition("@")[0] if "@" in queue.broker_name else ""


@pytest.fixture(scope="module")
def asked() -> list[Case]:
    return cases()


@pytest.fixture(scope="module")
def theirs(asked: list[Case], tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    path: Path = tmp_path_factory.mktemp("allocations") / "cases"
    path.write_text("".join(f"{case.line()}\n" for case in asked), encoding="utf-8")
    return interop.run("Allocations", path).splitlines()


def test_every_case_is_divided_alike(asked: list[Case], theirs: list[str]) -> None:
    assert len(theirs) == CASES
    wrong = [
        (case, case.answer(), answer)
        for case, answer in zip(asked, theirs, strict=True)
        if case.answer() != answer and not _config_without_check(case)
    ]
    assert not wrong, f"{len(wrong)} differ, the first: {wrong[0]}"


def test_the_cases_meet_every_strategy_empty_answers_and_refusals(
    asked: list[Case], theirs: list[str]
) -> None:
    assert (
        min(Counter(case.name for case in asked).values()) > CASES / 20
        and len({case.name for case in asked}) == 7
    )
    told = Counter(
        "refused" if answer.startswith("!") else "none" if not answer else "some"
        for answer in theirs
    )
    assert min(told[kind] for kind in ("refused", "none", "some")) > 50, told


def _config_without_check(case: Case) -> bool:
    """RocketMQ's CONFIG looks at nothing; ours refuses empty lists as all others do."""
    return case.name == "CONFIG" and not (case.client_id and case.queues and case.client_ids)
