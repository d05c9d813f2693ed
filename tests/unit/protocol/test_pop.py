"""PopTable: leases, receipts, deadlines and the commit offset of popped queues; random histories
against a model of single messages.
"""

from __future__ import annotations

from dataclasses import dataclass

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, invariant, rule

from rmq_ray.protocol.pop import (
    DEADLINES_MIN,
    FINISHED_MAX,
    Event,
    EventKind,
    Key,
    PopQueue,
    PopTable,
    bits,
    grant_event,
    mask_bytes,
)

KEY: Key = ("workers", "jobs", 0)


def popped(*grants: tuple[int, int], deadline_ms: int = 1_000) -> tuple[PopTable, PopQueue]:
    """A table with one queue from offset 0 and leases (id, count), back to back."""
    table = PopTable()
    table.apply((EventKind.RESET, *KEY, 0))
    for lease_id, count in grants:
        first = table.queues[KEY].next_offset
        table.apply(
            grant_event(KEY, lease_id, deadline_ms, -1, range(first, first + count), first + count)
        )
    return table, table.queues[KEY]


def ack(table: PopTable, lease_id: int, mask: int) -> None:
    table.apply((EventKind.ACK, *KEY, lease_id, mask_bytes(mask)))


def change(table: PopTable, lease_id: int, mask: int, deadline_ms: int, rejected: int = 0) -> None:
    table.apply((EventKind.CHANGE, *KEY, lease_id, mask_bytes(mask), deadline_ms, rejected))


def test_the_commit_offset_stops_at_the_first_message_that_is_out() -> None:
    table, queue = popped((1, 3), (2, 2))
    ack(table, 2, 0b11)
    ack(table, 1, 0b110)
    assert (queue.commit_offset, queue.next_offset, queue.in_flight) == (0, 5, 1)
    ack(table, 1, 0b001)
    assert (queue.commit_offset, queue.in_flight, queue.idle) == (5, 0, True)


def test_a_repeated_acknowledgement_is_no_fault_even_when_its_lease_is_over() -> None:
    table, queue = popped((1, 2))
    ack(table, 1, 0b01)
    assert queue.stale(1, 0b01) == 0 == queue.openable(1, 0b01)
    ack(table, 1, 0b11)
    assert queue.lease(1) is None
    assert queue.stale(1, 0b11) == 0


def test_a_receipt_is_stale_once_its_message_was_given_to_the_retry_topic() -> None:
    table, queue = popped((1, 2))
    assert [one.offset for one in table.expired(1_000, 1)] == [0]
    assert queue.stale(1, 0b11) == 0b01
    ack(table, 1, 0b11)
    assert queue.commit_offset == 0, "its copy is not on the disk yet"
    table.apply((EventKind.MOVED, *KEY, 1, mask_bytes(0b01)))
    assert queue.commit_offset == 2
    assert queue.stale(1, 0b11) == 0b01, "known for a while after the lease is over"


def test_a_receipt_that_nobody_issued_is_stale() -> None:
    _, queue = popped((1, 2))
    assert queue.stale(9, 0b11) == 0b11
    assert queue.stale(1, 0b111) == 0b100


def test_a_message_may_be_acknowledged_after_its_deadline_as_long_as_nobody_else_gets_it() -> None:
    table, queue = popped((1, 1), deadline_ms=10)
    assert queue.stale(1, 1) == 0
    ack(table, 1, 1)
    assert table.expired(1_000, 10) == []


def test_extended_messages_expire_at_their_own_time_and_the_others_at_the_leases() -> None:
    table, _ = popped((1, 3), deadline_ms=1_000)
    change(table, 1, 0b010, 5_000)
    assert [one.offset for one in table.expired(1_000, 10)] == [0, 2]
    assert table.expired(4_999, 10) == []
    assert [one.offset for one in table.expired(5_000, 10)] == [1]


def test_a_whole_lease_is_extended_at_once() -> None:
    table, queue = popped((1, 2), deadline_ms=1_000)
    change(table, 1, 0b01, 3_000)
    change(table, 1, 0b11, 9_000)
    lease = queue.lease(1)
    assert lease is not None and (lease.deadline_ms, lease.own_deadlines) == (9_000, {})
    assert table.expired(8_999, 10) == []
    assert len(table.expired(9_000, 10)) == 2


def test_a_rejected_message_is_told_apart_until_it_is_put_off_again() -> None:
    table, _ = popped((1, 2))
    change(table, 1, 0b11, 0, rejected=1)
    change(table, 1, 0b01, 0, rejected=0)
    assert [one.rejected for one in table.expired(0, 10)] == [False, True]


def test_no_more_expire_than_asked_and_the_others_with_the_next_call() -> None:
    table, _ = popped((1, 5), (2, 5))
    found = [one.offset for _ in range(4) for one in table.expired(1_000, 3)]
    assert found == list(range(10))


def test_a_message_that_could_not_be_copied_is_open_again_and_due_later() -> None:
    table, queue = popped((1, 1))
    table.expired(1_000, 1)
    table.not_moved(KEY, 1, 1, again_ms=1_200)
    assert queue.stale(1, 1) == 0
    assert table.expired(1_199, 1) == []
    assert [one.offset for one in table.expired(1_200, 1)] == [0]


def test_offsets_that_the_filter_left_out_do_not_hold_the_commit_back() -> None:
    table = PopTable()
    table.apply((EventKind.RESET, *KEY, 0))
    table.apply(grant_event(KEY, 1, 1_000, -1, [3, 7, 8], 20))
    queue = table.queues[KEY]
    assert queue.commit_offset == 3
    ack(table, 1, 0b011)
    assert queue.commit_offset == 8
    ack(table, 1, 0b100)
    assert queue.commit_offset == 20


def test_an_attempt_finds_its_lease_until_something_becomes_of_it() -> None:
    table, queue = popped()
    table.apply(grant_event(KEY, 1, 1_000, -1, range(2), 2, attempt=9))
    found = queue.taken_by(9)
    assert found is not None and found.id == 1
    assert queue.taken_by(8) is None and queue.taken_by(0) is None
    ack(table, 1, 0b01)
    assert queue.taken_by(9) is None


def test_a_reset_voids_what_is_out() -> None:
    table, queue = popped((1, 5))
    table.apply((EventKind.RESET, *KEY, 2))
    assert (queue.next_offset, queue.in_flight, queue.stale(1, 1)) == (2, 0, 1)
    assert table.expired(1_000, 10) == []


def test_what_lay_behind_a_cut_of_the_log_is_not_waited_for() -> None:
    _, queue = popped((1, 4), (2, 4))
    queue.cut(3)
    assert (queue.next_offset, queue.in_flight, queue.commit_offset) == (3, 3, 0)
    assert queue.lease(2) is None


def test_a_lease_across_a_cut_of_the_log_ends_there_in_a_snapshot_too() -> None:
    table, queue = popped((1, 4))
    queue.cut(2)
    again = PopTable()
    for event in table.snapshot():
        again.apply(event)
    assert state(again) == state(table)
    assert again.queues[KEY].next_offset == 2 and again.queues[KEY].in_flight == 2


def test_memory_is_bounded_by_what_is_out() -> None:
    table, queue = popped()
    for number in range(3 * FINISHED_MAX):
        table.apply(grant_event(KEY, number, 5_000, -1, range(number, number + 1), number + 1))
        ack(table, number, 1)
    assert len(list(queue.leases())) == 0
    assert len(list(queue.finished())) == FINISHED_MAX
    assert len(table._deadlines) <= DEADLINES_MIN + 1


@pytest.mark.parametrize(
    "event",
    [
        (),
        (99, *KEY, 1),
        (EventKind.ACK, *KEY, 1, b"\x01"),
        (EventKind.GRANT, *KEY, 1, 0, -1, 0, 0, 0, 0),
        (EventKind.GRANT, *KEY, 1, 0, -1, [1], 2, 9, 0),
        (EventKind.RESET, *KEY),
        (EventKind.RESET, "g", "t", "x", 1),
        (EventKind.GRANT, *KEY, 1, 0, -1, 5, 2, 6, 0),
    ],
)
def test_an_event_that_no_table_writes_is_refused(event: Event) -> None:
    table = PopTable()
    if event[:1] == (EventKind.GRANT,):
        table.apply((EventKind.RESET, *KEY, 0))
    with pytest.raises(ValueError, match="no event"):
        table.apply(event)


@dataclass
class Modelled:
    """One message that was granted: ``done`` ends it; ``moving`` bars its receipt."""

    lease: int
    index: int
    deadline_ms: int
    done: bool = False
    moving: bool = False
    moved: bool = False


class Histories(RuleBasedStateMachine):
    """The table against a plain map of messages. Each event is replayed into a second table;
    snapshots are, too.
    """

    leases: Bundle[int] = Bundle("leases")

    def __init__(self) -> None:
        super().__init__()
        self.table, self.copy = PopTable(), PopTable()
        self.messages: dict[int, Modelled] = {}
        self.now_ms, self.last = 0, 0
        self.apply((EventKind.RESET, *KEY, 0))

    def apply(self, event: Event) -> None:
        self.table.apply(event)
        self.copy.apply(tuple(event))

    @property
    def queue(self) -> PopQueue:
        return self.table.queues[KEY]

    def of(self, lease: int, mask: int) -> list[Modelled]:
        return [m for m in self.messages.values() if m.lease == lease and mask >> m.index & 1]

    @rule(
        target=leases,
        gaps=st.lists(st.integers(1, 3), min_size=1, max_size=6),
        tail=st.integers(0, 2),
        invisible=st.integers(1, 20),
    )
    def grant(self, gaps: list[int], tail: int, invisible: int) -> int:
        self.last += 1
        offsets, at = [], self.queue.next_offset - 1
        for gap in gaps:
            at += gap
            offsets.append(at)
        self.apply(grant_event(KEY, self.last, self.now_ms + invisible, -1, offsets, at + 1 + tail))
        for index, offset in enumerate(offsets):
            self.messages[offset] = Modelled(self.last, index, self.now_ms + invisible)
        return self.last

    @rule(lease=leases, mask=st.integers(0, 63))
    def acknowledge(self, lease: int, mask: int) -> None:
        expected = sum(1 << m.index for m in self.of(lease, mask) if m.moving or m.moved)
        known = sum(1 << m.index for m in self.of(lease, -1))
        assert self.queue.stale(lease, mask) & known == expected
        done = self.queue.openable(lease, mask)
        if done:
            self.apply((EventKind.ACK, *KEY, lease, mask_bytes(done)))
        for m in self.of(lease, mask):
            m.done = m.done or not m.moving

    @rule(lease=leases, mask=st.integers(0, 63), delay=st.integers(0, 20))
    def put_off(self, lease: int, mask: int, delay: int) -> None:
        touched = [m for m in self.of(lease, mask) if not m.done and not m.moving]
        assert self.queue.openable(lease, mask) == sum(1 << m.index for m in touched)
        if touched:
            self.apply(
                (
                    EventKind.CHANGE,
                    *KEY,
                    lease,
                    mask_bytes(self.queue.openable(lease, mask)),
                    self.now_ms + delay,
                    0,
                )
            )
        for m in touched:
            m.deadline_ms = self.now_ms + delay

    @rule(passed=st.integers(0, 15), limit=st.integers(1, 5), durable=st.booleans())
    def time_passes(self, passed: int, limit: int, durable: bool) -> None:
        self.now_ms += passed
        due = {
            offset
            for offset, m in self.messages.items()
            if not m.done and not m.moving and m.deadline_ms <= self.now_ms
        }
        found = self.table.expired(self.now_ms, limit)
        assert {one.offset for one in found} <= due
        assert len(found) == min(limit, len(due))
        for one in found:
            self.messages[one.offset].moving = True
        if durable:
            self.finish()

    @rule()
    def finish(self) -> None:
        """All copies are durable."""
        for m in [m for m in self.messages.values() if m.moving]:
            self.apply((EventKind.MOVED, *KEY, m.lease, mask_bytes(1 << m.index)))
            m.moving, m.moved, m.done = False, True, True

    @rule()
    def restart(self) -> None:
        """A table made of the snapshot goes on; copies that were not durable are made again."""
        fresh = PopTable()
        for event in list(self.table.snapshot()):
            fresh.apply(event)
        assert state(fresh) == state(self.table)
        self.table = fresh
        for m in self.messages.values():
            m.moving = False

    @invariant()
    def commit_is_the_first_message_that_is_not_done(self) -> None:
        waiting = [offset for offset, m in self.messages.items() if not m.done]
        assert self.queue.commit_offset == min(waiting, default=self.queue.next_offset)
        assert self.queue.in_flight == len(waiting)

    @invariant()
    def the_replayed_table_says_the_same(self) -> None:
        assert state(self.copy) == state(self.table)


def state(table: PopTable) -> object:
    """What counts of a table; what is moving counts as open."""
    queue = table.queues[KEY]
    leases = [
        (
            lease.id,
            tuple(lease.offsets),
            lease.open,
            lease.moved,
            [lease.deadline_of(i) for i in bits(lease.open)],
        )
        for lease in queue.leases()
    ]
    return queue.commit_offset, queue.next_offset, queue.in_flight, leases


TestHistories = Histories.TestCase
TestHistories.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
