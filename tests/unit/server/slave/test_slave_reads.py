"""Pulls that lead to slaves, and pulls at a slave: suggestion beyond 40 % of memory, offsets that
only the master can judge.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

from rmq_ray.config import ReplicationMode
from rmq_ray.model.topics import GroupConfig, TopicConfig
from rmq_ray.remoting.wire.codes import RequestCode as Code
from rmq_ray.remoting.wire.codes import ResponseCode
from rmq_ray.remoting.wire.frame import Command
from rmq_ray.remoting.wire.replicas import (
    FollowLog,
    Replicate,
    pack_follow,
    pack_replicate,
    unpack_lineage,
    unpack_piece,
)
from rmq_ray.server.slave.replica import FollowerParts, ReplicaTables
from rmq_ray.store.replication.follower_store import FollowerStore, Lineage
from tests.support.brokers.broker_bench import Bench, bodies_of, page_of
from tests.support.faults.fake_peer import FakePeer

COMMIT, SUSPEND, INLINE = 1, 2, 4
MEMORY_SHARE = 0.4


_open: list[Bench] = []


@pytest.fixture(autouse=True)
def closed(tmp_path: Path) -> Iterator[None]:
    """Stores are shut down after each test, before their directory goes."""
    yield
    while _open:
        _open.pop().close()


def filled(directory: Path, memory_bytes: int, **settings: object) -> Bench:
    """A master with 20 messages of 1 KiB, 1 a pull, and a memory of ``memory_bytes``."""
    bench = Bench(directory, **settings).open()
    _open.append(bench)
    for _ in range(20):
        bench.send(bodies_=[b"x" * 1_024])
    reader = bench.core.keeper.store.opened.reader  # type: ignore[union-attr]
    reader._memory_bytes = int(memory_bytes * MEMORY_SHARE)
    return bench


def suggested(bench: Bench, offset: int) -> int:
    code, page = bench.pull(offset=offset, count_max=1)
    assert code == 0 and page is not None
    return page.suggested_broker


@pytest.mark.seed("S3-137", "S3-138", "S3-139", "S3-140", "S4-103")
def test_a_reader_further_behind_than_40_percent_of_memory_is_sent_to_the_slave(
    tmp_path: Path,
) -> None:
    bench = filled(tmp_path, 20_000, slave_reads=True)
    store = bench.core.keeper.store
    assert store is not None
    behind = [store.end_offset - store.log_offset_of("orders", 0, offset) for offset in range(20)]
    assert [suggested(bench, offset) for offset in range(20)] == [
        int(distance > 8_000) for distance in behind
    ]
    assert 0 < sum(distance > 8_000 for distance in behind) < 20


@pytest.mark.seed("S3-141", "S3-142", "S3-143")
def test_the_setting_and_the_group_say_which_broker(tmp_path: Path) -> None:
    bench = filled(tmp_path / "off", 1_000)
    assert suggested(bench, 0) == 0, "slaves do not serve reads"
    bench = filled(tmp_path / "on", 20_000, slave_reads=True)
    bench.core.tables.groups.put(GroupConfig("billing", broker_id=3, broker_when_slow=2))
    assert (suggested(bench, 0), suggested(bench, 19)) == (2, 3)


def slave(directory: Path, master: Bench) -> Bench:
    """A slave that has everything the master shows, by the requests that a slave sends."""
    bench = Bench(directory, broker_id=1)
    bench.identity.broker_id = 1
    _open.append(bench.open())
    store = bench.core.keeper.store
    assert isinstance(store, FollowerStore)
    peer = FakePeer()
    answer = master.ask(
        Code.FOLLOW_LOG, None, pack_follow(FollowLog(1, "10.0.0.2:10911", "", 0, 0, 0)), peer
    )
    found = unpack_lineage(answer.body)
    store.follow(Lineage(found.log, found.epochs, found.begin, found.segment_bytes))
    piece = unpack_piece(poll(master, peer, store).body)
    store.append_raw(piece.offset, piece.data)
    store.advance(piece.confirmed)
    bench.core.tables.topics.put(TopicConfig("orders", 4, 4))
    return bench


def poll(master: Bench, peer: FakePeer, store: FollowerStore, **changes: int) -> Command:
    asked = {
        "epoch": store.epoch,
        "offset": store.end_offset,
        "bytes_max": 1 << 20,
        "written": store.end_offset,
        "flushed": 0,
        "confirmed": 0,
        "wait_ms": 0,
    }
    return master.ask(Code.REPLICATE, None, pack_replicate(Replicate(**(asked | changes))), peer)


@pytest.mark.seed("S4-112")
def test_a_slave_serves_pulls_and_keeps_no_offsets(tmp_path: Path) -> None:
    master = filled(tmp_path / "m", 1 << 30)
    bench = slave(tmp_path / "s", master)
    code, page = bench.pull(offset=5, count_max=2, flags=INLINE | COMMIT, commit_offset=5)
    assert code == 0 and bodies_of(page) == [b"x" * 1_024] * 2
    assert bench.core.tables.offsets.query("orders", "billing", 0) is None


class Direct:
    """A connection whose requests a master answers at once."""

    def __init__(self, master: Bench) -> None:
        self._master = master

    async def request(self, command: Command, _timeout_ms: int) -> Command:
        return self._master.ask(command.code, command.fields, command.body)


def test_a_slave_removes_what_its_master_deleted_once_that_is_on_disk(tmp_path: Path) -> None:
    master = filled(tmp_path / "m", 1 << 30)
    bench = slave(tmp_path / "s", master)
    store, core = bench.core.keeper.store, bench.core
    assert isinstance(store, FollowerStore)
    assert master.ask(Code.DELETE_TOPIC_IN_BROKER, {"topic": "orders"}).code == 0
    parts = FollowerParts(
        bench.identity,
        core.keeper,
        core.tables,
        lambda _delays: None,
        lambda _timer: None,
        lambda *_arrived: None,
        lambda *_confirmed: None,
    )
    bench.offload.held = True
    asyncio.run(ReplicaTables(parts).sync(Direct(master)))  # type: ignore[arg-type]
    assert store.bounds("orders", 0) == (20, 20) and "orders" in store.topics()
    bench.offload.run()
    assert store.bounds("orders", 0) == (20, 20) and "orders" not in store.topics()


@pytest.mark.seed("S4-105", "S3-147")
def test_a_reader_ahead_of_a_slave_waits_there_and_is_not_moved_back(tmp_path: Path) -> None:
    master = filled(tmp_path / "m", 1 << 30)
    bench = slave(tmp_path / "s", master)
    code, page = bench.pull(offset=25)
    assert (
        code == ResponseCode.PULL_NOT_FOUND
        and page is not None
        and (page.next_offset, page.suggested_broker) == (25, 0)
    )
    peer = FakePeer()
    assert bench.core.handle(bench.pull_command(offset=25, flags=INLINE | SUSPEND), peer) is None, (
        "held until the slave has it"
    )
    assert bench.ask(Code.UPDATE_CONSUMER_OFFSET, {}).code == ResponseCode.NO_PERMISSION, (
        "progress goes to the master"
    )
    code, page = bench.pull(offset=19, count_max=1)
    assert code == 0


def test_a_reader_whose_messages_a_slave_does_not_have_any_more_is_sent_to_the_master(
    tmp_path: Path,
) -> None:
    master = filled(tmp_path / "m", 1 << 30)
    bench = slave(tmp_path / "s", master)
    queue = bench.core.keeper.store.opened.queues.find("orders", 0)  # type: ignore[union-attr]
    assert queue is not None
    queue.set_min_log_offset(bench.core.keeper.store.log_offset_of("orders", 0, 10))  # type: ignore[union-attr]
    code, page = bench.pull(offset=3)
    assert (
        code == ResponseCode.PULL_NOT_FOUND
        and page is not None
        and (page.next_offset, page.suggested_broker) == (3, 0)
    )


def test_an_unproved_or_impossible_follower_is_refused(tmp_path: Path) -> None:
    master = filled(tmp_path / "m", 1 << 30)
    stranger = FakePeer()
    stranger.trusted = False
    assert (
        master.ask(
            Code.FOLLOW_LOG, None, pack_follow(FollowLog(1, "a:1", "", 0, 0, 0)), stranger
        ).code
        == ResponseCode.NO_PERMISSION
    )
    assert (
        master.ask(
            Code.REPLICATE, None, pack_replicate(Replicate(1, 0, 1, 0, 0, 0, 0)), FakePeer()
        ).code
        == ResponseCode.LOG_DIVERGED
    )
    assert (
        master.ask(
            Code.FOLLOW_LOG, None, pack_follow(FollowLog(0, "a:1", "", 0, 0, 0)), FakePeer()
        ).code
        == ResponseCode.NO_PERMISSION
    )
    first, second = FakePeer(), FakePeer()
    assert (
        master.ask(Code.FOLLOW_LOG, None, pack_follow(FollowLog(1, "a:1", "", 0, 0, 0)), first).code
        == 0
    )
    taken = master.ask(Code.FOLLOW_LOG, None, pack_follow(FollowLog(1, "b:1", "", 0, 0, 0)), second)
    assert taken.code == ResponseCode.NO_PERMISSION and "another id" in (taken.remark or "")
    for body in (b"", b"\xc1", b"\x90", b"\x96\x01\xa0\xa0\x00\x00\x00"):
        assert (
            master.ask(Code.FOLLOW_LOG, None, body, FakePeer()).code != 0
            and master.ask(Code.REPLICATE, None, body, first).code != 0
        )


def test_a_slave_of_a_later_epoch_fences_its_old_master(tmp_path: Path) -> None:
    master = filled(tmp_path / "m", 1 << 30)
    peer = FakePeer()
    assert (
        master.ask(Code.FOLLOW_LOG, None, pack_follow(FollowLog(1, "a:1", "", 0, 0, 0)), peer).code
        == 0
    )
    answer = master.ask(
        Code.REPLICATE, None, pack_replicate(Replicate(7, 0, 1 << 20, 0, 0, 0, 0)), peer
    )
    assert answer.code == ResponseCode.MASTER_FENCED and "replaced" in (answer.remark or "")


@pytest.mark.parametrize(
    ("log", "begin", "end", "crc"),
    [("0" * 32, 0, 100, 1), ("own", 0, 100, 1), ("own", 0, 1 << 40, 1)],
)
def test_a_log_that_is_no_prefix_does_not_join(
    tmp_path: Path, log: str, begin: int, end: int, crc: int
) -> None:
    master = filled(tmp_path / "m", 1 << 30)
    store = master.core.keeper.store
    assert store is not None
    asked = FollowLog(1, "a:1", store.identity if log == "own" else log, begin, end, crc)
    answer = master.ask(Code.FOLLOW_LOG, None, pack_follow(asked), FakePeer())
    assert answer.code == ResponseCode.LOG_DIVERGED and "empty directory" in (answer.remark or "")


def test_a_poll_is_held_until_there_are_bytes_and_ends_with_its_time(tmp_path: Path) -> None:
    master = filled(tmp_path / "m", 1 << 30)
    store, peer = master.core.keeper.store, FakePeer()
    assert store is not None
    master.ask(Code.FOLLOW_LOG, None, pack_follow(FollowLog(1, "a:1", "", 0, 0, 0)), peer)
    end = store.end_offset
    body = pack_replicate(Replicate(store.epoch, end, 1 << 20, end, end, end, 400))
    assert master.core.handle(master.command(Code.REPLICATE, None, body), peer) is None
    sent = len(peer.sent)
    master.send(bodies_=[b"new"])
    master.offload.drain()
    piece = unpack_piece(
        peer.sent[sent].body
        if not isinstance(peer.sent[sent].body, tuple)
        else b"".join(bytes(part) for part in peer.sent[sent].body)
    )
    assert piece.offset == end and b"new" in bytes(piece.data) and piece.end == store.end_offset
    end = store.end_offset
    master.core.handle(
        master.command(
            Code.REPLICATE,
            None,
            pack_replicate(Replicate(store.epoch, end, 1 << 20, end, end, end, 400)),
        ),
        peer,
    )
    sent = len(peer.sent)
    master.clock.advance_ms(401)
    master.core.tick()
    assert len(peer.sent) == sent + 1
    status = master.core.replication.status()
    assert status["slaves"][1]["lag_bytes"] == 0 and status["slaves"][1]["in_sync"]


def test_under_sync_master_a_repeat_of_what_is_confirmed_is_acknowledged_without_slaves(
    tmp_path: Path,
) -> None:
    bench = Bench(tmp_path, replication=ReplicationMode.SYNC_MASTER).open()
    _open.append(bench)
    body = bench.frame("orders")
    peer = FakePeer()
    assert bench.ask(Code.SEND_RECORDS, None, body, peer).code == ResponseCode.SLAVE_NOT_AVAILABLE
    assert (
        bench.ask(Code.SEND_RECORDS, None, body, peer).code == ResponseCode.SLAVE_NOT_AVAILABLE
    ), "not yet"
    follower = FakePeer()
    bench.ask(Code.FOLLOW_LOG, None, pack_follow(FollowLog(1, "a:1", "", 0, 0, 0)), follower)
    end = bench.core.keeper.store.end_offset  # type: ignore[union-attr]
    bench.ask(Code.REPLICATE, None, pack_replicate(Replicate(1, end, 0, end, 0, 0, 0)), follower)
    bench.core.closed(follower)
    assert bench.ask(Code.SEND_RECORDS, None, body, peer).code == 0
    assert page_of(bench.core.handle(bench.pull_command(), peer) or Command(0)) is not None
