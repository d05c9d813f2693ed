"""Both checkpoint files: Apache RocketMQ's to the byte, ours whole or not believed.

``tests/golden/store/checkpoint`` was written by Apache RocketMQ 4.9.7's StoreCheckpoint class.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from rmq_ray.errors import StoreFailed
from rmq_ray.files import FileSystem
from rmq_ray.store.recovery.checkpoint import (
    RecoveryPoint,
    StoreCheckpoint,
    decode_recovery_point,
    encode_recovery_point,
    load_recovery_point,
    load_store_checkpoint,
    save_recovery_point,
    save_store_checkpoint,
)
from tests.support.faults.crash_fs import CrashFileSystem, keep_none

GOLDEN = Path(__file__).parents[3] / "golden" / "store" / "checkpoint"
TIMES = StoreCheckpoint(1_700_000_000_000, 1_700_000_000_123, 1_699_999_999_000)
OURS = RecoveryPoint(
    log_position=1 << 40,
    log_ms=1_700_000_000_000,
    queues={("TopicTest", 0): 17, ("%RETRY%g", 65_535): 1 << 40},
    index={
        "name": "20231114221320000",
        "header": [1, 2, 3, 4, 5, 6],
        "slots_count": 1,
        "index_ms": 0,
    },
    deduplication=[[b"\x00" * 16, 5, [1, 2]]],
    boot_id="boot-1",
    synced=True,
    identity="ab" * 16,
)


def test_rocketmqs_checkpoint_is_the_one_that_apache_rocketmq_writes(tmp_path: Path) -> None:
    save_store_checkpoint(FileSystem(), str(tmp_path / "checkpoint"), TIMES)
    assert (tmp_path / "checkpoint").read_bytes() == GOLDEN.read_bytes()
    assert load_store_checkpoint(FileSystem(), str(GOLDEN)) == TIMES


def test_a_recovery_trusts_three_seconds_less_than_was_noted() -> None:
    assert TIMES.trusted_ms == 1_700_000_000_000 - 3_000
    assert StoreCheckpoint(2_000, 9_000, 9_000).trusted_ms == 0


def test_a_missing_or_short_checkpoint_counts_as_zeros(tmp_path: Path) -> None:
    path = str(tmp_path / "checkpoint")
    assert load_store_checkpoint(FileSystem(), path) == StoreCheckpoint()
    (tmp_path / "checkpoint").write_bytes((5).to_bytes(8))
    assert load_store_checkpoint(FileSystem(), path) == StoreCheckpoint(5, 0, 0)
    save_store_checkpoint(FileSystem(), path, TIMES)
    assert (tmp_path / "checkpoint").stat().st_size == 4096


def test_our_checkpoint_reads_back_as_it_was_written(tmp_path: Path) -> None:
    path = str(tmp_path / "checkpoint")
    assert load_recovery_point(FileSystem(), path) is None
    save_recovery_point(FileSystem(), path, OURS)
    found = load_recovery_point(FileSystem(), path)
    assert found is not None
    assert (found.log_position, found.log_ms, found.queues, found.index, found.deduplication) == (
        OURS.log_position,
        OURS.log_ms,
        OURS.queues,
        OURS.index,
        OURS.deduplication,
    )
    assert (found.boot_id, found.synced, found.identity) == ("boot-1", True, "ab" * 16)


def test_a_checkpoint_with_any_byte_changed_or_missing_counts_as_none() -> None:
    data = encode_recovery_point(OURS)
    assert decode_recovery_point(data) is not None
    for at in range(len(data)):
        damaged = bytearray(data)
        damaged[at] ^= 0x10
        assert decode_recovery_point(bytes(damaged)) is None
        assert decode_recovery_point(data[:at]) is None
    assert decode_recovery_point(data + b"x") is None


@pytest.mark.parametrize("action", ["pwrite", "datasync", "rename", "sync_dir"])
def test_a_save_that_fails_anywhere_leaves_the_old_checkpoint(action: str) -> None:
    disk = CrashFileSystem()
    disk.make_dirs("/s")
    save_recovery_point(disk, "/s/checkpoint", RecoveryPoint(7))
    disk.fail_next(action, "/s")
    with pytest.raises(StoreFailed):
        save_recovery_point(disk, "/s/checkpoint", RecoveryPoint(8))
    found = load_recovery_point(disk.survivor(keep_none, "boot-2"), "/s/checkpoint")
    assert found is not None and found.log_position == 7
