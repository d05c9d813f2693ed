"""A master that finds a broken record asks its slaves for it, and readers wait no longer than that
takes. The stores are real ones; the slaves are what they answer.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import pytest

from rmq_ray.clock import ManualClock
from rmq_ray.codec.record import decode_record
from rmq_ray.errors import RecordAwaited
from rmq_ray.protocol.election.replication import Follower
from rmq_ray.server.base.offload import Offload
from rmq_ray.server.base.store_keeper import StoreKeeper
from rmq_ray.server.replication.mender import ASK_MS, SILENT_MS, Mender
from rmq_ray.store.replication.log_source import read_log
from rmq_ray.store.replication.mending import PIECE_BYTES
from tests.support.brokers.store_rig import StoreRig, small_config

COUNT = 6
WANTED = [b"%d" % number * 90 for number in range(COUNT)]


class AtOnce:
    """An offload without threads."""

    def submit(self, work: Callable[[], Any], done: Callable[[Any], None]) -> None:
        done(work())

    def post(self, call: Callable[[], None]) -> None:
        call()


class Keeper:
    def __init__(self, store: object) -> None:
        self.store = store


class Rig:
    """A master's store with ``COUNT`` messages in queue 0, and its mender."""

    def __init__(self, slaves: int = 2, count: int = COUNT) -> None:
        self.rig = StoreRig(config=small_config())
        self.places = [
            self.rig.send([b"%d" % number * 90], sequence=number).base_log_offset
            for number in range(count)
        ]
        self.rig.settle()
        self.end = self.rig.store.end_offset
        self.copy = read_log(self.rig.store.readable(), 0, 1 << 20)
        self.clock = ManualClock()
        self.followers = [
            Follower(number + 1, f"slave:{number}", self.end, in_sync=True)
            for number in range(slaves)
        ]
        self.asked: list[tuple[int, int]] = []
        self.mender = Mender(
            cast("StoreKeeper", Keeper(self.rig.store)),
            self.clock,
            cast("Offload", AtOnce()),
            lambda: self.followers,
            self._ask,
        )
        self.mender.serving(self.rig.store)

    def _ask(self, broker_id: int) -> None:
        asked = self.mender.tell(broker_id)
        assert asked is not None and self.mender.tell(broker_id) is None
        self.asked.append((broker_id, asked.log_offset))

    def rot(self, number: int) -> None:
        segment = self.rig.store.opened.chain.find(self.places[number])
        assert segment is not None
        segment.write(b"\xff" * 4, self.places[number] + 120)

    def join(self) -> None:
        for follower in self.followers:
            self.mender.joined(follower.broker_id)

    def read(self) -> list[bytes]:
        """What one read from the beginning gets."""
        found = self.rig.store.get_messages("TopicTest", 0, 0, 100, 1 << 20, None)
        data, at, bodies = b"".join(bytes(part) for part in found.parts), 0, []
        for size in found.sizes.tolist():
            bodies.append(decode_record(data, at).body)
            at += size
        return bodies

    def give(self, broker_id: int, *, sound: bool = True) -> None:
        """The slave answers what it was asked for last."""
        asked = self.mender.asked
        assert asked is not None
        data = self.copy[asked.log_offset : asked.log_offset + asked.size] if sound else b""
        self.mender.given(broker_id, asked.log_offset, data)


def test_a_read_ends_in_front_of_a_record_that_a_slave_is_asked_for_and_then_gets_it() -> None:
    rig = Rig()
    rig.join()
    rig.rot(2)
    assert rig.read() == WANTED[:2] and rig.asked == [(1, rig.places[2])]
    assert rig.read() == WANTED[:2], "the slave has not answered"
    rig.give(1)
    assert rig.read() == WANTED and rig.mender.mended == 1
    assert rig.rig.store.status()["quarantined"] == 0 and rig.mender.asked is None


def test_a_read_that_begins_with_it_is_told_to_come_again() -> None:
    rig = Rig()
    rig.join()
    rig.rot(0)
    with pytest.raises(RecordAwaited):
        rig.read()
    rig.give(1)
    assert rig.read() == WANTED


def test_where_no_slave_has_it_whole_each_is_asked_once_and_the_record_is_skipped() -> None:
    rig = Rig()
    rig.join()
    rig.rot(2)
    rig.read()
    rig.give(1, sound=False)
    assert rig.read() == WANTED[:2]
    rig.give(2, sound=False)
    assert rig.read() == [*WANTED[:2], *WANTED[3:]]
    assert rig.asked == [(1, rig.places[2]), (2, rig.places[2])]
    rig.join()
    assert rig.read() == WANTED[:2], "a slave that joins anew is asked again"


def test_readers_wait_for_a_silent_slave_once_and_not_for_each_record() -> None:
    rig = Rig(slaves=1)
    rig.join()
    for number in (1, 3, 5):
        rig.rot(number)
    assert rig.read() == WANTED[:1]
    rig.clock.advance_ms(ASK_MS)
    rig.mender.tick(rig.clock.monotonic_ms())
    assert rig.read() == [WANTED[0], WANTED[2], WANTED[4]] and len(rig.asked) == 1


def test_a_slave_that_was_silent_once_is_asked_again_while_it_goes_on_following() -> None:
    rig = Rig(slaves=1)
    rig.join()
    rig.rot(1)
    rig.read()
    rig.clock.advance_ms(ASK_MS)
    rig.mender.tick(rig.clock.monotonic_ms())
    assert len(rig.read()) == COUNT - 1
    rig.clock.advance_ms(SILENT_MS - 1)
    rig.mender.tick(rig.clock.monotonic_ms())
    assert len(rig.asked) == 1
    rig.clock.advance_ms(1)
    rig.mender.tick(rig.clock.monotonic_ms())
    assert len(rig.asked) == 2
    rig.give(1)
    assert rig.read() == WANTED


def test_a_slave_that_was_silent_and_is_gone_is_not_asked() -> None:
    rig = Rig(slaves=1)
    rig.join()
    rig.rot(1)
    rig.read()
    rig.clock.advance_ms(ASK_MS)
    rig.mender.tick(rig.clock.monotonic_ms())
    rig.followers[0].connected = False
    rig.clock.advance_ms(SILENT_MS)
    rig.mender.tick(rig.clock.monotonic_ms())
    assert len(rig.asked) == 1


def test_without_slaves_and_without_those_that_reach_so_far_nobody_waits() -> None:
    rig = Rig()
    rig.rot(2)
    assert len(rig.read()) == COUNT - 1, "nobody has joined"
    for follower in rig.followers:
        follower.written = rig.places[2]
    rig.join()
    assert len(rig.read()) == COUNT - 1 and not rig.asked


def test_a_slave_that_leaves_is_waited_for_no_longer_and_what_is_listed_waits_for_the_next() -> (
    None
):
    rig = Rig(slaves=1)
    rig.join()
    rig.rot(2)
    rig.read()
    rig.followers[0].connected = False
    rig.mender.left(1)
    assert len(rig.read()) == COUNT - 1
    rig.followers[0].connected = True
    rig.join()
    rig.give(1)
    assert rig.read() == WANTED


def test_bytes_for_another_place_of_another_slave_or_with_a_fault_change_nothing() -> None:
    rig = Rig()
    rig.join()
    rig.rot(2)
    rig.read()
    sound = rig.copy[rig.places[2] : rig.places[3]]
    rig.mender.given(2, rig.places[2], sound)
    rig.mender.given(1, rig.places[3], sound)
    assert rig.read() == WANTED[:2] and rig.mender.mended == 0
    rig.mender.given(1, rig.places[2], sound[:120] + b"!" + sound[121:])
    assert rig.asked[-1] == (2, rig.places[2]), "no whole record: the next slave is asked"


def test_a_stretch_over_the_end_of_a_segment_is_mended_piece_by_piece() -> None:
    rig = Rig(slaves=1, count=300)
    segment_bytes = rig.rig.config.segment_bytes
    begin = max(place for place in rig.places if place < segment_bytes - 2_000)
    end = min(place for place in rig.places if place > segment_bytes + 2_000)
    copy = read_log(rig.rig.store.readable(), 0, 1 << 20)
    rest = read_log(rig.rig.store.readable(), segment_bytes, 1 << 20)
    rig.copy = copy.ljust(segment_bytes, b"\0") + rest
    for at in (begin + 200, segment_bytes + 200):
        segment = rig.rig.store.opened.chain.find(at)
        assert segment is not None
        segment.write(b"\xff" * 4, at)
    rig.rig.store.opened.quarantine.add(begin, end - begin, "a start found no record here")
    rig.join()
    assert [place for _, place in rig.asked] == [begin]
    rig.give(1)
    assert [place for _, place in rig.asked] == [begin, segment_bytes]
    rig.give(1)
    assert rig.mender.mended == 1 and rig.rig.store.status()["quarantined"] == 0
    assert len(rig.read()) == 100 and end - begin < PIECE_BYTES


def test_a_blank_entry_waits_while_stretches_of_the_log_are_asked_for() -> None:
    """What a start found broken has no entry: it is not known which record it is."""
    rig = Rig(slaves=1)
    rig.rot(2)
    store = rig.rig.store
    store.opened.quarantine.add(rig.places[2], rig.places[3] - rig.places[2], "bad CRC")
    queue = store.opened.queues.find("TopicTest", 0)
    assert queue is not None
    queue._file(0).pwrite(b"\0\0\0\0\0\0\0\0\x7f\xff\xff\xff\0\0\0\0\0\0\0\0", 2 * 20)
    assert len(rig.read()) == COUNT - 1, "the blank entry is passed where nobody can be asked"
    rig.join()
    assert rig.read() == WANTED[:2]
    rig.give(1)
    assert rig.read() == WANTED
