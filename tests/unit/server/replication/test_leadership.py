"""A replica's leadership without a broker: which assignment counts, when its seat is moved, what it
reports.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from rmq_ray.clock import ManualClock
from rmq_ray.errors import StoreFailed
from rmq_ray.model.replica_roles import Assignment, ReplicaReport, Role
from rmq_ray.protocol.election.replication import LEASE_MS
from rmq_ray.server.replication.leadership import NO_ID, Leadership
from tests.support.waiting import loop_turns

ADDRESSES = {number: f"10.0.0.{number}:10911" for number in range(3)}


class PaperTransition:
    """Notes what leadership does to the broker; ``block`` holds the next reopening, ``slow`` the
    end of polls.
    """

    def __init__(self, end: int = 0, newest_epoch: int = 0) -> None:
        self.done: list[tuple[object, ...]] = []
        self.end, self.newest_epoch = end, newest_epoch
        self.fails: list[StoreFailed] = []
        self.block: asyncio.Event | None = None
        self.slow: asyncio.Event | None = None

    def facts(self) -> ReplicaReport | None:
        return ReplicaReport(
            1,
            Role.SLAVE,
            ADDRESSES[1],
            "store",
            self.newest_epoch,
            self.end,
            self.end,
            True,
            0,
            newest_epoch=self.newest_epoch,
        )

    def fault(self) -> str:
        return ""

    def depose(self) -> None:
        self.done.append(("depose",))

    async def reopen(self, broker_id: int, epoch: int | None) -> None:
        if self.block is not None:
            await self.block.wait()
        if self.fails:
            raise self.fails.pop()
        self.done.append(("reopen", broker_id, epoch))
        self.newest_epoch = max(self.newest_epoch, epoch or 0)

    async def follow(self, broker_id: int, address: str, epoch: int) -> None:
        self.done.append(("follow", broker_id, address, epoch))

    async def rest(self) -> None:
        if self.slow is not None:
            await self.slow.wait()
        self.done.append(("rest",))

    def approve(self, members: tuple[int, ...]) -> None:
        self.done.append(("approve", members))


def told(
    epoch: int, master: int | None, members: tuple[int, ...] = (0, 1), version: int = 1
) -> Assignment:
    return Assignment(
        "broker-a", epoch, master, None if master is None else ADDRESSES[master], members, version
    )


def play(
    story: Callable[[Leadership, PaperTransition, ManualClock], Awaitable[None]],
    transition: PaperTransition | None = None,
) -> None:
    async def run() -> None:
        leadership, clock, made = (
            Leadership(1, lambda _epoch, _wanted: None),
            ManualClock(),
            transition or PaperTransition(),
        )
        leadership.begin(made, clock, pytest.fail)
        await loop_turns(20)
        await story(leadership, made, clock)
        await leadership.end()

    asyncio.run(run())


def test_it_follows_whoever_the_newest_assignment_names_and_repeats_change_nothing() -> None:
    async def story(
        leadership: Leadership, transition: PaperTransition, _clock: ManualClock
    ) -> None:
        for _ in range(3):
            leadership.attend(told(1, 0))
            await loop_turns(20)
        assert transition.done == [("follow", 1, ADDRESSES[0], 1)]
        leadership.attend(told(1, 0, version=4))
        leadership.attend(told(1, 0, version=2))
        await loop_turns(20)
        assert len(transition.done) == 1 and leadership.assignment == told(1, 0, version=4)
        leadership.attend(told(2, 2))
        await loop_turns(20)
        leadership.attend(told(1, 0, version=9))
        await loop_turns(20)
        assert transition.done[1:] == [("follow", 2, ADDRESSES[2], 2)]

    play(story)


def test_it_is_promoted_once_an_epoch_and_hears_of_its_set() -> None:
    async def story(
        leadership: Leadership, transition: PaperTransition, _clock: ManualClock
    ) -> None:
        assert leadership.attend(told(1, 1)).role is Role.SLAVE
        await loop_turns(20)
        assert (
            transition.done == [("rest",), ("reopen", 0, 1)]
            and leadership.leads(1)
            and not leadership.leads(2)
        )
        report = leadership.report()
        assert (report.role, report.master_epoch) == (Role.MASTER, 1)
        leadership.attend(told(1, 1, (1,), version=2))
        leadership.attend(told(1, 1, (1,), version=2))
        assert transition.done[2:] == [("approve", (1,))]

    play(story)


def test_an_epoch_that_its_log_has_already_makes_it_no_master() -> None:
    async def story(
        leadership: Leadership, transition: PaperTransition, _clock: ManualClock
    ) -> None:
        leadership.attend(told(3, 1))
        await loop_turns(20)
        assert transition.done == [] and leadership.report().role is Role.SLAVE
        leadership.attend(told(4, 1))
        await loop_turns(20)
        assert transition.done[-1] == ("reopen", 0, 4)

    play(story, PaperTransition(end=100, newest_epoch=3))


def test_a_later_epoch_ends_the_epoch_at_once_and_a_follower_is_opened() -> None:
    async def story(
        leadership: Leadership, transition: PaperTransition, _clock: ManualClock
    ) -> None:
        leadership.attend(told(1, 1))
        await loop_turns(20)
        transition.done.clear()
        assert leadership.attend(told(2, 0)).role is Role.WAITING
        assert transition.done == [("depose",)] and not leadership.leads(1), (
            "before anything is awaited"
        )
        await loop_turns(20)
        assert (
            transition.done
            == [("depose",), ("reopen", NO_ID, None), ("follow", 1, ADDRESSES[0], 2)]
            and leadership.report().role is Role.SLAVE
        )

    play(story)


def test_a_fence_stops_a_follower_before_it_returns_and_lower_epochs_count_no_more() -> None:
    async def story(
        leadership: Leadership, transition: PaperTransition, clock: ManualClock
    ) -> None:
        leadership.attend(told(1, 0))
        await loop_turns(20)
        leadership.promise()
        clock.advance_ms(500)
        report = await leadership.fence(2)
        assert (
            transition.done[-1] == ("rest",)
            and report.role is Role.SLAVE
            and report.promise_ms == LEASE_MS - 500
        )
        leadership.attend(told(1, 1, version=8))
        await loop_turns(20)
        assert transition.done[-1] == ("rest",), "an old assignment"
        leadership.attend(told(2, 0))
        await loop_turns(20)
        await leadership.fence(2)
        assert transition.done[-1] == ("follow", 1, ADDRESSES[0], 2), (
            "a fence of the epoch that is followed is only a question"
        )

    play(story)


def test_a_fence_that_comes_while_it_is_promoted_ends_the_epoch_as_it_begins() -> None:
    async def story(
        leadership: Leadership, transition: PaperTransition, _clock: ManualClock
    ) -> None:
        transition.block = asyncio.Event()
        leadership.attend(told(1, 1))
        await loop_turns(20)
        assert leadership.report().role is Role.WAITING
        await leadership.fence(2)
        transition.block.set()
        await loop_turns(20)
        assert (
            not leadership.leads(1)
            and transition.done[-1] == ("reopen", NO_ID, None)
            and leadership.report().role is Role.SLAVE
        )

    play(story)


def test_a_master_whose_store_fails_or_never_opens_becomes_a_follower() -> None:
    async def story(
        leadership: Leadership, transition: PaperTransition, _clock: ManualClock
    ) -> None:
        leadership.attend(told(1, 1))
        await loop_turns(20)
        leadership.store_lost()
        await loop_turns(20)
        assert (
            transition.done[-1] == ("reopen", NO_ID, None)
            and leadership.report().role is Role.SLAVE
        )
        transition.fails.append(StoreFailed("no disk"))
        leadership.attend(told(2, 1))
        await loop_turns(20)
        report = leadership.report()
        assert report.role is Role.WAITING and "no disk" in report.error

    play(story)


def test_sends_are_held_for_a_while_and_only_under_the_epoch_that_is_meant() -> None:
    async def story(
        leadership: Leadership, _transition: PaperTransition, clock: ManualClock
    ) -> None:
        leadership.attend(told(1, 1))
        await loop_turns(20)
        leadership.hold_sends(2, 1_000)
        assert not leadership.holds
        leadership.hold_sends(1, 1_000)
        assert leadership.holds
        clock.advance_ms(1_001)
        assert not leadership.holds

    play(story)


def test_a_process_that_may_have_polled_in_the_life_before_promises_not_to_be_promoted() -> None:
    async def story(
        leadership: Leadership, _transition: PaperTransition, clock: ManualClock
    ) -> None:
        assert leadership.report().promise_ms == LEASE_MS
        clock.advance_ms(LEASE_MS)
        assert leadership.report().promise_ms == 0

    play(story, PaperTransition(end=10))
    play(story, PaperTransition(newest_epoch=2))


def test_a_second_fence_reports_only_when_the_polls_that_the_first_stops_have_stopped() -> None:
    async def story(
        leadership: Leadership, transition: PaperTransition, _clock: ManualClock
    ) -> None:
        leadership.attend(told(1, 0))
        await loop_turns(20)
        transition.slow = asyncio.Event()
        fences = [asyncio.create_task(leadership.fence(epoch)) for epoch in (2, 2, 3)]
        await loop_turns(20)
        assert not [fence for fence in fences if fence.done()]
        transition.slow.set()
        await asyncio.gather(*fences)

    play(story)
