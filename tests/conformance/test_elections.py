"""The controller's side of elections beside replicas that are played: a real ledger, real calls in
one loop, no Ray.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from rmq_ray.actors.control import elections
from rmq_ray.actors.control.elections import Election, Elections
from rmq_ray.actors.control.plan import ClusterPlan, StartOptions, make_plan
from rmq_ray.clock import SYSTEM_CLOCK
from rmq_ray.errors import ClusterError, ConfigError, PromotionRefused, StoreFailed
from rmq_ray.files import FileSystem
from rmq_ray.model.replica_roles import Assignment, ReplicaReport, Role, Standing
from rmq_ray.protocol.election.promotion import Rules
from rmq_ray.store.tables.ledger import Entry, Ledger
from tests.support.faults.stopwatch import within
from tests.support.waiting import eventually_async

RULES = Rules("b", 2, synchronous=False, failover_after_ms=60_000)
HASTY = replace(RULES, failover_after_ms=1_500)
"""For tests that wait until a master was silent for long enough."""


class Stage:
    """Two replicas that do at once what they are told, and the ledger of their controller."""

    def __init__(self, root: Path, rules: Rules) -> None:
        self.rules = rules
        self.ledger = Ledger(str(root / "ledger"), "default", FileSystem())
        self.ledger.open()
        self.reports = {
            n: ReplicaReport(n, Role.SLAVE, f"host:{n}", f"store-{n}", 0, 0, 0, True, 0)
            for n in range(2)
        }
        self.silent: set[int] = set()
        self.asked: Counter[int] = Counter()
        self.told: list[tuple[int, str, object]] = []
        self.holds: list[tuple[int, int]] = []
        self.disk_fails = False
        self.fails_late = False
        self.pause: asyncio.Event | None = None
        self.election = self.controller()

    def controller(self) -> Election:
        return Election(self.rules, self.ledger.read("b"), self.write, self.ask, SYSTEM_CLOCK)

    async def write(self, name: str, entry: Entry) -> None:
        if self.disk_fails:
            raise StoreFailed("the disk fails", name)
        if self.pause is not None:
            await self.pause.wait()
        self.ledger.write(name, entry)
        if self.fails_late:
            raise StoreFailed("the disk fails behind the rename", name)

    async def ask(
        self, replica: int, method: str, arguments: tuple[Any, ...], timeout_s: float
    ) -> Any:
        await asyncio.sleep(0)
        self.asked[replica] += 1
        if replica in self.silent:
            raise ClusterError("no answer")
        if method == "node":
            return f"node-{replica}"
        if method == "hold_sends":
            self.holds.append(arguments)
            return self.reports[replica]
        told = arguments[0]
        self.check_written(told)
        self.told.append((replica, method, told))
        self.reports[replica] = after(self.reports[replica], told)
        return self.reports[replica]

    def check_written(self, told: object) -> None:
        """Nobody is told what is not on the disk."""
        standing = self.ledger.read("b").standing
        if isinstance(told, Assignment) and told.master_epoch:
            assert standing is not None
            assert not told.newer_than(standing.assignment)
        elif isinstance(told, int):
            assert standing is not None
            assert standing.assignment.master_epoch >= told

    def leads(self, replica: int) -> Callable[[], bool]:
        return lambda: self.election.serving_master == replica


def after(report: ReplicaReport, told: object) -> ReplicaReport:
    """What a replica says once it has done what it was told."""
    if isinstance(told, int):
        return replace(report, role=Role.SLAVE, master_epoch=0)
    assert isinstance(told, Assignment)
    if told.master == report.replica:
        return replace(
            report,
            role=Role.MASTER,
            master_epoch=told.master_epoch,
            log_epoch=told.master_epoch,
            newest_epoch=told.master_epoch,
        )
    return replace(
        report,
        role=Role.SLAVE,
        master_epoch=0,
        log_epoch=told.master_epoch,
        newest_epoch=told.master_epoch,
    )


def played(root: Path, scene: Callable[[Stage], Awaitable[None]], rules: Rules = RULES) -> Stage:
    """Run a scene with the election's tasks."""
    stage = Stage(root, rules)

    async def run() -> None:
        tasks = [asyncio.create_task(work) for work in stage.election.tasks()]
        try:
            await scene(stage)
            assert not [task for task in tasks if task.done()]
        finally:
            stage.election.over = True
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    asyncio.run(run())
    stage.ledger.close()
    return stage


def test_the_first_epoch_is_on_the_disk_before_anybody_hears_of_it(tmp_path: Path) -> None:
    async def scene(stage: Stage) -> None:
        await eventually_async(stage.leads(0))
        entry = stage.ledger.read("b")
        assert entry.standing is not None
        assert entry.standing.assignment == Assignment("b", 1, 0, "host:0", (0, 1), 1)
        assert entry.stores == {0: "store-0", 1: "store-1"}

    told = played(tmp_path, scene).told
    assert [what for _, what, _ in told].count("fence") >= 2


def test_while_the_ledger_cannot_be_written_nobody_is_told_anything(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(elections, "LEDGER_PAUSE_S", 0.02)

    async def scene(stage: Stage) -> None:
        stage.disk_fails = True
        await eventually_async(
            lambda: "ledger cannot be written" in str(stage.election.status()["why"])
        )
        assert all(what == "attend" and told.master_epoch == 0 for _, what, told in stage.told)  # type: ignore[attr-defined]
        stage.disk_fails = False
        await eventually_async(stage.leads(0))
        assert stage.election.status()["why"] == ""

    assert played(tmp_path, scene).told


def test_a_replica_with_another_store_counts_for_nothing(tmp_path: Path) -> None:
    async def scene(stage: Stage) -> None:
        await eventually_async(stage.leads(0))
        stage.reports[1] = replace(stage.reports[1], store="another")
        await eventually_async(lambda: "another" in str(stage.election.status()["why"]))
        rules = stage.election.rules
        # what it said before does not count any more
        await eventually_async(lambda: not rules._heard(1, SYSTEM_CLOCK.monotonic_ms()))
        stage.silent = {0}
        await eventually_async(lambda: "no other replica" in rules.why)
        assert rules.standing is not None and rules.standing.assignment.master_epoch == 1

    assert played(tmp_path, scene, HASTY)


def test_a_silent_master_is_replaced_and_follows_when_it_is_heard_again(tmp_path: Path) -> None:
    async def scene(stage: Stage) -> None:
        await eventually_async(stage.leads(0))
        stage.silent = {0}
        await eventually_async(stage.leads(1))
        stage.silent = set()
        await eventually_async(lambda: stage.reports[0].role is Role.SLAVE)
        await eventually_async(stage.leads(1))
        standing = stage.election.rules.standing
        assert standing is not None and standing.assignment.master_epoch == 2

    assert played(tmp_path, scene, HASTY)


def test_who_ceases_to_answer_is_asked_more_often_for_a_while(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A process that Ray starts again is heard of as soon as it answers."""
    monkeypatch.setattr(elections, "HURRY_MS", 1_000)

    async def asked_within(stage: Stage, seconds: float) -> int:
        before = stage.asked[1]
        await asyncio.sleep(seconds)
        return stage.asked[1] - before

    async def scene(stage: Stage) -> None:
        await eventually_async(stage.leads(0))
        stage.silent = {1}
        assert await asked_within(stage, 0.9) >= 6
        await asyncio.sleep(0.6)
        assert await asked_within(stage, 0.9) <= 4, "it is not only slow to start"

    assert played(tmp_path, scene)


def test_a_master_on_a_dead_node_is_replaced_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(elections, "ATTEND_S", 0.05)

    async def scene(stage: Stage) -> None:
        await eventually_async(stage.leads(0))
        stage.silent = {0}
        stage.election.nodes_died({"node-0"})
        # not after ``failover_after_ms``
        await within(5.0, eventually_async(stage.leads(1), timeout_s=20.0))

    assert played(tmp_path, scene)


def test_a_controller_that_starts_again_leaves_a_serving_master_alone(tmp_path: Path) -> None:
    async def scene(stage: Stage) -> None:
        await eventually_async(stage.leads(0))
        again = stage.controller()
        assert again.serving_master is None
        tasks = [asyncio.create_task(work) for work in again.tasks()]
        await eventually_async(lambda: again.serving_master == 0)
        again.over = True
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        entry = stage.ledger.read("b")
        assert entry.standing is not None
        assert entry.standing.assignment.master_epoch == 1

    assert played(tmp_path, scene)


def test_a_proposal_is_answered_when_it_is_on_the_disk_and_refused_when_it_is_old(
    tmp_path: Path,
) -> None:
    async def scene(stage: Stage) -> None:
        await eventually_async(stage.leads(0))
        told = await stage.election.propose(0, 1, 1, (0,))
        assert told == Assignment("b", 1, 0, "host:0", (0,), 2)
        stage.check_written(told)
        assert await stage.election.propose(0, 1, 1, (0, 1)) is None
        assert await stage.election.propose(1, 1, 2, (0, 1)) is None

    assert played(tmp_path, scene)


def test_by_hand_the_heir_first_gets_all_that_the_master_has(tmp_path: Path) -> None:
    async def scene(stage: Stage) -> None:
        await eventually_async(stage.leads(0))
        stage.reports[0] = replace(stage.reports[0], end=500)
        promotion = asyncio.create_task(stage.election.promote(None, False))
        await eventually_async(lambda: stage.holds)
        assert not promotion.done()
        stage.reports[1] = replace(stage.reports[1], end=500)
        told = await promotion
        assert (told["master"], told["master_epoch"]) == (1, 2)

    assert played(tmp_path, scene).holds[0] == (1, elections.HOLD_MS)


def test_by_hand_an_heir_that_does_not_catch_up_is_refused_and_sends_go_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(elections, "DRAIN_MS", 100)

    async def scene(stage: Stage) -> None:
        await eventually_async(stage.leads(0))
        stage.reports[0] = replace(stage.reports[0], end=500)
        with pytest.raises(PromotionRefused, match="still lacks 500 bytes"):
            await stage.election.promote(1, False)
        assert stage.election.serving_master == 0

    assert played(tmp_path, scene).holds[-1] == (1, 0)


def test_two_promotions_at_once_are_refused(tmp_path: Path) -> None:
    async def scene(stage: Stage) -> None:
        await eventually_async(stage.leads(0))
        first = asyncio.create_task(stage.election.promote(1, False))
        await asyncio.sleep(0)
        with pytest.raises(PromotionRefused, match="under way"):
            await stage.election.promote(1, False)
        assert (await first)["master"] == 1

    assert played(tmp_path, scene)


def test_by_hand_the_heir_is_master_though_another_set_is_being_written(tmp_path: Path) -> None:
    async def scene(stage: Stage) -> None:
        await eventually_async(stage.leads(0))
        stage.pause = asyncio.Event()
        wish = asyncio.create_task(stage.election.propose(0, 1, 1, (0, 1)))
        await asyncio.sleep(0.02)
        promotion = asyncio.create_task(stage.election.promote(1, False))
        await eventually_async(lambda: stage.election.rules.ordered)
        stage.pause.set()
        assert (await promotion)["master"] == 1
        await wish

    assert played(tmp_path, scene)


def test_by_hand_whoever_was_drained_for_nothing_takes_sends_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(elections, "PROMOTE_MS", 100)

    async def scene(stage: Stage) -> None:
        await eventually_async(stage.leads(0))
        stage.pause = asyncio.Event()
        with pytest.raises(PromotionRefused, match="does not serve"):
            await stage.election.promote(1, False)
        stage.pause.set()

    assert played(tmp_path, scene).holds == [(1, elections.HOLD_MS), (1, 0)]


def test_who_gives_a_promotion_up_leaves_no_sends_held(tmp_path: Path) -> None:
    async def scene(stage: Stage) -> None:
        await eventually_async(stage.leads(0))
        stage.reports[0] = replace(stage.reports[0], end=500)
        promotion = asyncio.create_task(stage.election.promote(1, False))
        await eventually_async(lambda: bool(stage.holds))
        promotion.cancel()
        with pytest.raises(asyncio.CancelledError):
            await promotion

    assert played(tmp_path, scene).holds == [(1, elections.HOLD_MS), (1, 0)]


def test_what_the_disk_may_have_is_completed_before_anything_else_is_decided(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(elections, "LEDGER_PAUSE_S", 0.02)

    async def scene(stage: Stage) -> None:
        await eventually_async(stage.leads(0))
        stage.fails_late, stage.silent = True, {0}
        await eventually_async(lambda: "behind the rename" in str(stage.election.status()["why"]))
        stage.silent = set()
        stage.told.clear()
        await eventually_async(
            lambda: sum(replica == 0 for replica, _, _ in stage.told) > 1
        )  # no need for an election any more
        stage.fails_late = False
        await eventually_async(
            lambda: stage.leads(0)() and stage.election.status()["master_epoch"] == 2
        )
        told = await stage.election.propose(0, 2, 1, (0,))
        assert told is not None
        stage.check_written(told)

    assert played(tmp_path, scene, HASTY)


def test_the_store_of_a_member_of_the_set_is_not_given_up(tmp_path: Path) -> None:
    async def scene(stage: Stage) -> None:
        await eventually_async(stage.leads(0))
        assert not stage.election.others_have_everything(1)
        await stage.election.propose(0, 1, 1, (0,))
        assert stage.election.others_have_everything(1)
        assert not stage.election.others_have_everything(0)

    assert played(tmp_path, scene)


def planned(root: Path, replicas: int = 1) -> ClusterPlan:
    asked = StartOptions(1, 1, root, "async", "closed", replicas=replicas)
    return make_plan("default", asked, host="127.0.0.1", ports=(0, 0), secret=b"s")


async def nobody_answers(*_call: object) -> None:
    raise ClusterError("no answer")


def test_elections_that_are_closed_twice_have_given_their_ledger_back(tmp_path: Path) -> None:
    async def scene() -> None:
        first = Elections(planned(tmp_path), nobody_answers)
        await first.open(all_start=True)
        await first.close()
        await first.close()
        second = Elections(planned(tmp_path), nobody_answers)
        await second.open(all_start=True)
        await second.close()
        assert second.of("broker-a").is_new

    asyncio.run(scene())


def has_led(root: Path, master: int, members: tuple[int, ...], cluster: str = "default") -> Ledger:
    """The ledger of a cluster that was stopped."""
    ledger = Ledger(str(root / "controller"), cluster, FileSystem())
    ledger.open()
    told = Assignment("broker-a", 5, master, f"host:{master}", members, 1)
    ledger.write("broker-a", Entry(Standing(told, master), {2: "store-2"}))
    ledger.close()
    return ledger


def members_after_a_start(root: Path, replicas: int) -> dict[str, object]:
    """Broker name -> its sync state set, once the controller took over the ledger."""

    async def scene() -> dict[str, object]:
        found = Elections(planned(root, replicas), nobody_answers)
        try:
            await found.open(all_start=True)
            return {name: status["sync_state_set"] for name, status in found.status().items()}
        finally:
            await found.close()

    return asyncio.run(scene())


def test_that_a_slave_was_removed_is_on_the_disk_before_anybody_is_attended(tmp_path: Path) -> None:
    ledger = has_led(tmp_path, 0, (0, 1, 2))
    assert members_after_a_start(tmp_path, 1) == {"broker-a": [0, 1]}
    left = Assignment("broker-a", 5, 0, "host:0", (0, 1), 2)
    assert ledger.read("broker-a") == Entry(Standing(left, 0), {2: "store-2"})


def test_who_was_master_is_forgotten_before_a_broker_runs_without_slaves(tmp_path: Path) -> None:
    ledger = has_led(tmp_path, 1, (0, 1))
    assert members_after_a_start(tmp_path, 0) == {}
    assert ledger.read("broker-a") == Entry()
    assert members_after_a_start(tmp_path, 1) == {"broker-a": []}


def test_a_copy_that_is_not_in_sync_does_not_run_alone_and_nothing_is_forgotten(
    tmp_path: Path,
) -> None:
    ledger = has_led(tmp_path, 1, (1,))
    with pytest.raises(ConfigError, match=r"replicas \[1\] were removed"):
        members_after_a_start(tmp_path, 0)
    assert ledger.read("broker-a").standing is not None


def test_a_broker_without_slaves_leaves_the_ledger_of_another_cluster_alone(tmp_path: Path) -> None:
    ledger = has_led(tmp_path, 1, (0, 1), "another")
    assert members_after_a_start(tmp_path, 0) == {}
    assert ledger.read("broker-a").standing is not None


def test_without_slaves_nothing_is_made_where_no_ledger_was(tmp_path: Path) -> None:
    assert members_after_a_start(tmp_path, 0) == {}
    assert not list(tmp_path.iterdir())
