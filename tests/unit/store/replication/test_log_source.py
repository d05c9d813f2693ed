"""What a master hands out: pieces that end where a frame begins, whatever lies in the bodies."""

from __future__ import annotations

import pytest

from rmq_ray.clock import ManualClock
from rmq_ray.codec.record import MAGIC
from rmq_ray.codec.record_batch import MARK_PREFIX
from rmq_ray.store.replication.follower_store import FollowerStore
from rmq_ray.store.replication.log_source import read_log, whole_frames
from tests.support.brokers.store_rig import HOST, StoreRig, small_config
from tests.support.faults.crash_fs import CrashFileSystem

SEGMENT = {"segment_bytes": 1 << 22}


def pieces(rig: StoreRig, count: int) -> list[tuple[int, bytes]]:
    """What a slave gets that asks for ``count`` bytes at a time: (log offset, bytes)."""
    found, at = [], 0
    while at < rig.store.end_offset:
        data = read_log(rig.store.readable(), at, count)
        if at + len(data) < rig.store.end_offset:
            data = data[: whole_frames(data, at)]
        found.append((at, data))
        at += len(data)
    return found


MAGIC_BYTES = MAGIC.to_bytes(4, "big")


@pytest.mark.parametrize(
    "body", [b"x" * 900, MAGIC_BYTES + b"x" * 900, b"x" * 900 + MARK_PREFIX + bytes(72)]
)
@pytest.mark.parametrize("records", [1, 7])
def test_a_piece_ends_where_a_frame_begins_so_that_nothing_is_left_over(
    body: bytes, records: int
) -> None:
    rig = StoreRig(config=small_config(**SEGMENT))
    begins = set()
    for number in range(30):
        begins.add(rig.store.end_offset)
        rig.send([body] * records, sequence=number)
        rig.settle()
    found = pieces(rig, 12_000)
    assert len(found) > 2 and {at for at, _ in found} <= begins
    slave = FollowerStore(
        small_config(**SEGMENT),
        ManualClock(),
        broker_name="broker-a",
        store_host=HOST,
        files=CrashFileSystem(),
    )
    for at, data in found:
        assert slave.check(at, data).taken == len(data)


@pytest.mark.parametrize("body", [MAGIC_BYTES * 200, MARK_PREFIX * 80])
def test_bodies_full_of_beginnings_cost_a_slave_nothing_but_time(body: bytes) -> None:
    rig = StoreRig(config=small_config(**SEGMENT))
    for number in range(20):
        rig.send([body] * 5, sequence=number)
        rig.settle()
    found = pieces(rig, 12_000)
    assert b"".join(data for _, data in found) == read_log(rig.store.readable(), 0, 1 << 22)


def test_a_frame_that_is_longer_than_the_piece_is_handed_out_in_parts() -> None:
    rig = StoreRig(config=small_config(**SEGMENT))
    rig.send([b"x" * 1_000] * 30, sequence=1)
    rig.settle()
    found = pieces(rig, 5_000)
    assert len(found) > 5 and b"".join(data for _, data in found) == read_log(
        rig.store.readable(), 0, 1 << 20
    )


def test_bytes_without_any_record_are_handed_out_as_they_are() -> None:
    assert (
        whole_frames(bytes(9_000), 0) == 9_000
        and whole_frames(b"", 0) == 0
        and whole_frames(MARK_PREFIX, 0) == len(MARK_PREFIX)
    )
