"""HoldTable: which held pulls wake, and when."""

from __future__ import annotations

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from rmq_ray.errors import TooManyRequests
from rmq_ray.protocol.hold_table import HEAP_SLACK, HoldTable

ORDERS_0 = ("orders", 0)
ORDERS_1 = ("orders", 1)
PAID, REFUND = 2598919, 77


@pytest.mark.seed("S4-138")
def test_a_pull_that_found_nothing_is_parked_under_its_queue_until_a_message_arrives() -> None:
    table = HoldTable()
    assert table.park(1, ORDERS_0, 10, 15_000, None, max_offset=10) == []
    assert table.arrived(ORDERS_1, 11, None) == []
    assert table.arrived(("other", 0), 11, None) == []
    assert table.arrived(ORDERS_0, 11, None) == [1]
    assert len(table) == 0


def test_a_pull_whose_queue_grew_between_its_look_and_its_parking_wakes_at_once() -> None:
    table = HoldTable()
    assert table.park(1, ORDERS_0, 10, 15_000, None, max_offset=11) == [1]
    assert len(table) == 0


def test_a_pull_behind_what_an_arrival_told_wakes_at_once_even_if_parked_later() -> None:
    table = HoldTable()
    table.park(1, ORDERS_0, 20, 15_000, None, max_offset=20)
    table.park(2, ORDERS_0, 20, 15_000, frozenset({REFUND}), max_offset=20)
    assert table.arrived(ORDERS_0, 21, [PAID]) == [1]
    assert table.park(3, ORDERS_0, 20, 15_000, None) == [3]
    assert table.park(4, ORDERS_0, 21, 15_000, None) == []


@pytest.mark.seed("S4-141", "S4-144")
def test_only_pulls_that_want_one_of_the_tags_wake_and_the_others_are_put_back() -> None:
    table = HoldTable()
    table.park(1, ORDERS_0, 10, 15_000, frozenset({PAID}), max_offset=10)
    table.park(2, ORDERS_0, 10, 15_000, frozenset({REFUND}), max_offset=10)
    table.park(3, ORDERS_0, 10, 15_000, frozenset({REFUND, PAID}), max_offset=10)
    assert table.arrived(ORDERS_0, 12, [0, PAID]) == [1, 3]
    assert table.arrived(ORDERS_0, 13, [0]) == []
    assert len(table) == 1
    assert table.arrived(ORDERS_0, 14, [REFUND]) == [2]


@pytest.mark.seed("S4-142")
def test_an_arrival_whose_tags_are_unknown_wakes_every_pull_that_is_behind() -> None:
    table = HoldTable()
    table.park(1, ORDERS_0, 10, 15_000, frozenset({PAID}), max_offset=10)
    table.park(2, ORDERS_0, 12, 15_000, None, max_offset=10)
    assert table.arrived(ORDERS_0, 11, None) == [1]
    assert table.arrived(ORDERS_0, 12, None) == []
    assert table.arrived(ORDERS_0, 13, None) == [2]


@pytest.mark.seed("S4-131", "S4-143")
def test_a_pull_wakes_at_its_deadline_and_not_before() -> None:
    table = HoldTable()
    table.park(1, ORDERS_0, 10, 20_000, None, max_offset=10)
    table.park(2, ORDERS_1, 10, 15_000, None, max_offset=10)
    assert table.next_deadline_ms() == 15_000
    assert table.expired(14_999) == []
    assert table.expired(15_000) == [2]
    assert table.next_deadline_ms() == 20_000
    assert table.expired(60_000) == [1]
    assert table.next_deadline_ms() is None


@pytest.mark.seed("S4-130", "S4-140")
def test_the_scan_wakes_every_pull_behind_its_queues_greatest_offset_whatever_its_tags() -> None:
    table = HoldTable()
    table.park(1, ORDERS_0, 10, 15_000, frozenset({PAID}), max_offset=10)
    table.park(2, ORDERS_1, 10, 15_000, None, max_offset=10)
    table.arrived(ORDERS_0, 11, [REFUND])
    assert table.scan([(ORDERS_0, 11), (ORDERS_1, 10), (("gone", 3), 5)]) == [1]
    assert len(table) == 1


def test_a_topic_that_was_deleted_and_made_again_does_not_wake_pulls_for_ever() -> None:
    table = HoldTable()
    table.park(1, ORDERS_0, 100, 15_000, None, max_offset=100)
    assert table.park(2, ORDERS_0, 0, 15_000, None, max_offset=0) == []
    assert table.park(3, ORDERS_0, 0, 15_000, None) == []


def test_a_forgotten_pull_never_wakes() -> None:
    table = HoldTable()
    table.park(1, ORDERS_0, 10, 15_000, None, max_offset=10)
    assert table.forget(1)
    assert not table.forget(1)
    assert table.arrived(ORDERS_0, 11, None) == []
    assert table.expired(99_999) == []


def test_a_token_parked_anew_keeps_only_its_newest_place_and_deadline() -> None:
    table = HoldTable()
    table.park(1, ORDERS_0, 10, 1_000, None, max_offset=10)
    table.park(1, ORDERS_1, 10, 2_000, None, max_offset=10)
    assert table.arrived(ORDERS_0, 11, None) == []
    assert table.expired(1_000) == []
    assert table.expired(2_000) == [1]


def test_beyond_the_limit_a_pull_is_refused_and_the_parked_ones_stay() -> None:
    table = HoldTable(parked_max=2)
    table.park(1, ORDERS_0, 10, 15_000, None, max_offset=10)
    table.park(2, ORDERS_0, 10, 15_000, None, max_offset=10)
    with pytest.raises(TooManyRequests, match="limit is 2"):
        table.park(3, ORDERS_1, 10, 15_000, None, max_offset=10)
    assert table.park(2, ORDERS_1, 10, 15_000, None, max_offset=10) == []
    assert table.arrived(ORDERS_0, 11, None) == [1]


def test_nothing_is_kept_about_queues_without_parked_pulls_nor_about_deadlines_of_woken_ones() -> (
    None
):
    table = HoldTable()
    for n in range(10_000):
        table.park(n, ("t", n), 0, 15_000 + n, None, max_offset=0)
        assert table.arrived(("t", n), 1, None) == [n]
    assert table.queue_count == 0
    assert len(table._deadlines) <= HEAP_SLACK


class HoldTableModel(RuleBasedStateMachine):
    """Against logs of tag codes: what must be awake is awake, and whatever wakes has a reason."""

    QUEUES = [("t", 0), ("t", 1)]
    CODES = [1, 2, 3]

    def __init__(self) -> None:
        super().__init__()
        self.table = HoldTable()
        self.logs: dict[tuple[str, int], list[int]] = {queue: [] for queue in self.QUEUES}
        self.parked: dict[int, tuple[tuple[str, int], int, float, frozenset[int] | None]] = {}
        self.now_ms = 0.0
        self.next_token = 0

    def wants(self, token: int, codes: list[int] | None) -> bool:
        wanted = self.parked[token][3]
        return codes is None or wanted is None or any(code in wanted for code in codes)

    def wake(self, tokens: list[int]) -> None:
        assert len(set(tokens)) == len(tokens)
        for token in tokens:
            del self.parked[token]

    @rule(
        queue=st.sampled_from(QUEUES),
        back=st.integers(0, 2),
        wait=st.integers(0, 30),
        codes=st.none() | st.frozensets(st.sampled_from(CODES)),
        tell=st.booleans(),
    )
    def park(self, queue, back, wait, codes, tell) -> None:
        log = self.logs[queue]
        heard_here = any(place[0] == queue for place in self.parked.values())
        from_offset = max(0, len(log) - back)
        token, self.next_token = self.next_token, self.next_token + 1
        tell = (
            tell or not heard_here
        )  # without parked pulls on the queue only the broker's word says where it ends
        woken = self.table.park(
            token, queue, from_offset, self.now_ms + wait, codes, len(log) if tell else None
        )
        assert woken == ([token] if from_offset < len(log) else [])
        if not woken:
            self.parked[token] = (queue, from_offset, self.now_ms + wait, codes)

    @rule(
        queue=st.sampled_from(QUEUES),
        codes=st.lists(st.sampled_from(CODES), min_size=1, max_size=3),
        known=st.booleans(),
    )
    def arrive(self, queue, codes, known) -> None:
        self.logs[queue] += codes
        end = len(self.logs[queue])
        must = {
            token
            for token, place in self.parked.items()
            if place[0] == queue and place[1] < end and self.wants(token, codes if known else None)
        }
        woken = self.table.arrived(queue, end, codes if known else None)
        assert set(woken) == must
        self.wake(woken)

    @rule()
    def scan(self) -> None:
        must = {
            token for token, place in self.parked.items() if place[1] < len(self.logs[place[0]])
        }
        woken = self.table.scan([(queue, len(log)) for queue, log in self.logs.items()])
        assert set(woken) == must
        self.wake(woken)

    @rule(step=st.integers(0, 20))
    def time_passes(self, step) -> None:
        self.now_ms += step
        must = {token for token, place in self.parked.items() if place[2] <= self.now_ms}
        woken = self.table.expired(self.now_ms)
        assert set(woken) == must
        self.wake(woken)

    @rule(data=st.data())
    def connection_closes(self, data) -> None:
        if self.parked:
            token = data.draw(st.sampled_from(sorted(self.parked)))
            assert self.table.forget(token)
            del self.parked[token]

    @invariant()
    def nobody_sleeps_who_has_something_to_read(self) -> None:
        for queue, from_offset, _deadline, codes in self.parked.values():
            skipped = self.logs[queue][from_offset:]
            assert codes is not None or not skipped
            assert codes is None or codes.isdisjoint(skipped)

    @invariant()
    def memory_is_bounded(self) -> None:
        assert len(self.table) == len(self.parked)
        assert self.table.queue_count == len({place[0] for place in self.parked.values()})
        assert self.table.next_deadline_ms() == min(
            (place[2] for place in self.parked.values()), default=None
        )


TestHoldTableModel = HoldTableModel.TestCase
TestHoldTableModel.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
