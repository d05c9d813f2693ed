"""A slave asks for its broken stretches at the begin of a session: one that the master does not
give keeps it from nothing. The store is a real one.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from typing import cast

import pytest

from rmq_ray.clock import ManualClock
from rmq_ray.errors import ConnectionLost, LogDiverged, RequestTimeout, RmqError
from rmq_ray.remoting.async_connection import AsyncConnection
from rmq_ray.remoting.wire.codes import ResponseCode
from rmq_ray.remoting.wire.frame import Command
from rmq_ray.remoting.wire.replicas import LogPiece, Replicate, pack_piece, unpack_replicate
from rmq_ray.server.base.offload import ThreadOffload
from rmq_ray.server.slave.replica_stream import SESSION_MS, Repair
from rmq_ray.store.replication.follower_store import FollowerStore, Lineage
from rmq_ray.store.replication.log_source import read_log
from tests.support.brokers.store_rig import HOST, StoreRig, small_config
from tests.support.faults.crash_fs import CrashFileSystem

COUNT = 6
Answer = Callable[[Replicate, Command], Command]


class Master:
    """Answers polls as ``answer`` says, by default with its log; ``asked``: the polls, in order."""

    def __init__(self) -> None:
        self.rig = StoreRig(config=small_config())
        self.places = [
            self.rig.send([b"%d" % number * 90], sequence=number).base_log_offset
            for number in range(COUNT)
        ]
        self.rig.settle()
        self.places.append(self.rig.store.end_offset)
        self.asked: list[Replicate] = []
        self.answer: Answer = self.log
        self.clock = ManualClock()

    def log(self, asked: Replicate, command: Command) -> Command:
        end, epoch = self.rig.store.end_offset, self.rig.store.epoch
        data = read_log(self.rig.store.readable(), asked.offset, asked.bytes_max)
        return command.answer(
            body=pack_piece(LogPiece(asked.offset, end, end, epoch, [], memoryview(data)))
        )

    async def request(self, command: Command, _timeout_ms: float) -> Command:
        self.asked.append(unpack_replicate(command.body))
        return self.answer(self.asked[-1], command)

    def slave(self) -> FollowerStore:
        """A copy that lists every record but the last two as broken; the first bytes of each really
        are.
        """
        store = FollowerStore(
            small_config(),
            ManualClock(),
            broker_name="broker-a",
            store_host=HOST,
            files=CrashFileSystem(),
        )
        store.open(True)
        store.recover()
        store.start(lambda _position: None, threads=False)
        store.follow(
            Lineage(
                self.rig.store.identity, self.rig.store.epochs, 0, self.rig.config.segment_bytes
            )
        )
        store.append_raw(0, read_log(self.rig.store.readable(), 0, 1 << 16))
        store.advance(store.end_offset)
        store.flush()
        for begin, end in list(zip(self.places, self.places[1:], strict=False))[:-2]:
            segment = store.opened.chain.find(begin)
            assert segment is not None
            segment.write(b"\xff" * 8, begin)
            store.opened.quarantine.add(begin, end - begin, "its magic is wrong")
        return store

    def sessions(
        self, store: FollowerStore, count: int = 1, begin: int = 0
    ) -> tuple[int, list[str]]:
        """(how many were mended, what ended a session)."""
        errors: list[str] = []

        async def run() -> int:
            thread = ThreadOffload("repair", lambda error: errors.append(str(error)), 1)
            repair = Repair(thread, lambda: None, self.clock)
            try:
                for _ in range(count):
                    try:
                        await repair.run(cast("AsyncConnection", self), store, begin)
                    except RmqError as error:
                        errors.append(type(error).__name__)
            finally:
                await asyncio.to_thread(thread.close)
            return repair.mended

        return asyncio.run(run()), errors

    @property
    def offsets(self) -> list[int]:
        return [asked.offset for asked in self.asked]


@pytest.fixture
def master() -> Iterator[Master]:
    yield Master()


def refusing(code: int) -> Answer:
    return lambda _asked, command: command.answer(code, remark="no")


def raising(error: Exception) -> Answer:
    def answer(_asked: Replicate, _command: Command) -> Command:
        raise error

    return answer


def test_all_are_mended_and_the_master_suspects_nothing(master: Master) -> None:
    """Where a stretch begins may be wrong at the slave: a master that looked there would put a
    sound record into quarantine.
    """
    store = master.slave()
    assert master.sessions(store, 2) == (COUNT - 2, []) and not store.broken_stretches()
    assert master.offsets == master.places[: COUNT - 2] and {
        asked.suspect for asked in master.asked
    } == {-1}


def test_what_the_master_has_removed_is_not_asked_for(master: Master) -> None:
    assert master.sessions(master.slave(), begin=master.places[2]) == (2, [])
    assert master.offsets == master.places[2:4]


@pytest.mark.parametrize("code", [ResponseCode.LOG_DIVERGED, ResponseCode.SYSTEM_ERROR])
def test_a_refused_stretch_ends_no_session_and_is_not_asked_for_again(
    master: Master, code: int
) -> None:
    store, first = master.slave(), master.places[0]
    master.answer = lambda asked, command: (
        refusing(code) if asked.offset == first else master.log
    )(asked, command)
    assert master.sessions(store, 3) == (COUNT - 3, [])
    assert master.offsets.count(first) == 1 and [
        offset for offset, _ in store.broken_stretches()
    ] == [first]


def test_an_answer_that_is_late_ends_no_session(master: Master) -> None:
    master.answer = raising(RequestTimeout("no answer"))
    assert master.sessions(master.slave(), 2) == (0, []) and master.offsets == master.places[:2], (
        "one in a session, each once"
    )


def test_what_was_not_answered_is_asked_again_when_all_others_were(master: Master) -> None:
    store, late = master.slave(), raising(RequestTimeout("no answer"))
    broken = COUNT - 2
    master.answer = lambda asked, command: (late if len(master.asked) <= broken else master.log)(
        asked, command
    )
    assert master.sessions(store, broken + 1) == (broken, []) and not store.broken_stretches()
    assert master.offsets == master.places[:broken] * 2


def test_a_busy_master_is_asked_again_in_the_next_session(master: Master) -> None:
    master.answer = refusing(ResponseCode.SYSTEM_BUSY)
    assert master.sessions(master.slave(), 2) == (0, []) and master.offsets == master.places[:1] * 2


def test_a_lost_connection_and_a_replaced_master_end_the_session(master: Master) -> None:
    store = master.slave()
    for answer, name in (
        (raising(ConnectionLost("gone")), ConnectionLost),
        (refusing(ResponseCode.MASTER_FENCED), LogDiverged),
    ):
        master.answer = answer
        assert master.sessions(store) == (0, [name.__name__])


def test_bytes_that_are_no_records_there_either_are_asked_for_once(master: Master) -> None:
    store, segment = master.slave(), master.rig.store.opened.chain.find(0)
    assert segment is not None
    segment.write(b"\xff" * 8, 0)
    assert master.sessions(store, 3) == (COUNT - 3, []) and master.offsets.count(0) == 1


def test_a_session_spends_little_time_on_it(master: Master) -> None:
    def slow(asked: Replicate, command: Command) -> Command:
        master.clock.advance_ms(SESSION_MS / 2 + 1)
        return master.log(asked, command)

    master.answer = slow
    store = master.slave()
    assert master.sessions(store) == (2, []) and len(store.broken_stretches()) == COUNT - 4
