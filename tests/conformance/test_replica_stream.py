"""A slave that is far behind takes three pieces of the log at once; here with pieces so short that
a test has hundreds of them.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from rmq_ray.client.producer.producer import Producer
from rmq_ray.errors import StoreFull
from rmq_ray.model.message import Message
from rmq_ray.remoting import async_connection
from rmq_ray.server.slave import replica_stream
from rmq_ray.store.replication.follower_check import Broken, CheckedPiece
from rmq_ray.store.replication.follower_store import FollowerStore
from tests.conformance.test_replication import same_log
from tests.support.brokers.replicated import ReplicatedCluster
from tests.support.waiting import eventually


@pytest.fixture
def behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ReplicatedCluster]:
    """A master with a few thousand messages in frames of some lengths, and a slave whose disk is
    empty.
    """
    monkeypatch.setattr(replica_stream, "LONG_BYTES", 1)
    monkeypatch.setattr(async_connection, "LENT_BYTES_MIN", 1)
    cluster = ReplicatedCluster(tmp_path, broker={"replica_bytes": 4096})
    with cluster:
        cluster.stop_slave()
        shutil.rmtree(cluster.slave_path())
        with Producer("p", discovery=cluster) as producer:
            for number in range(60):
                producer.send_batch(
                    [
                        Message("orders", b"%d-%d" % (number, row) * 10, keys=f"k{row}")
                        for row in range(number % 9 * 10 + 1)
                    ]
                )
        yield cluster


def test_every_byte_comes_and_becomes_visible_in_order(
    behind: ReplicatedCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    beside: list[int] = []
    take = FollowerStore.take

    def noting(store: FollowerStore, piece: CheckedPiece) -> int:
        beside.append(piece.begin)
        return take(store, piece)

    monkeypatch.setattr(FollowerStore, "take", noting)
    behind.start_slave()
    behind.caught_up()
    assert same_log(behind) and behind.slave_store().queues() == behind.store().queues()
    assert behind.slave_store().query("orders", "k7", 5, 0, 1 << 60)
    assert len(beside) > 20 and beside == sorted(beside) and behind.replica()["sessions"] == 1


def test_a_piece_that_cannot_be_written_ends_the_session_and_nothing_behind_it_is_taken(
    behind: ReplicatedCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    taken: list[int] = []
    take = FollowerStore.take

    def failing(store: FollowerStore, piece: CheckedPiece) -> int:
        if len(taken) == 5:
            taken.append(-1)
            raise StoreFull("the disk is full for a moment", "here")
        count = take(store, piece)
        taken.append(piece.begin)
        return count

    monkeypatch.setattr(FollowerStore, "take", failing)
    behind.start_slave()
    eventually(lambda: -1 in taken)
    behind.caught_up()
    places = [begin for begin in taken if begin >= 0]
    assert (
        places == sorted(places)
        and same_log(behind)
        and behind.slave_store().queues() == behind.store().queues()
    )
    assert behind.replica()["sessions"] >= 1


def test_bytes_that_spoil_on_the_way_are_asked_for_again(
    behind: ReplicatedCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    spoilt: list[int] = []
    check = FollowerStore.check

    def spoiling(
        store: FollowerStore, log_offset: int, data: bytes, broken: Broken = ()
    ) -> CheckedPiece:
        if log_offset > 20_000 and len(spoilt) < 2 and len(data) > 200:
            spoilt.append(log_offset)
            changed = bytearray(data)
            changed[95] ^= 255  # of the first body
            data = bytes(changed)
        return check(store, log_offset, data, broken)

    monkeypatch.setattr(FollowerStore, "check", spoiling)
    behind.start_slave()
    behind.caught_up()
    assert (
        len(spoilt) == 2
        and same_log(behind)
        and behind.slave_store().queues() == behind.store().queues()
    )
