"""Inspection of a store's files: a sound store has no faults, every kind of damage is found and
named, nothing is changed.
"""

from __future__ import annotations

import hashlib
import shutil
from pathlib import Path

import pytest

from rmq_ray.codec.store_files import ENTRY, ENTRY_BYTES
from rmq_ray.errors import StoreInUse, StoreMissing
from rmq_ray.files import FileSystem
from rmq_ray.store.fsck import inspect
from rmq_ray.store.queue.index_file import HEADER_BYTES, ITEM, ITEM_BYTES, SLOT_BYTES
from rmq_ray.store.recovery.checkpoint import (
    StoreCheckpoint,
    load_recovery_point,
    save_recovery_point,
    save_store_checkpoint,
)
from tests.support.brokers.store_rig import delete_topic
from tests.support.stores import small_store
from tests.support.stores.small_store import (
    INDEX_SLOTS,
    SEGMENT_BYTES,
    Filler,
    flip,
    log_at,
    overwrite,
)


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("inspect") / "sound"
    small_store.fill(path)
    return path


@pytest.fixture
def store(sound: Path, tmp_path: Path) -> Path:
    """A copy that a test may damage."""
    return Path(shutil.copytree(sound, tmp_path / "store"))


def faults(store: Path) -> list[str]:
    report = inspect.verify(str(store))
    assert report.fault_count >= len(report.faults)
    return report.faults


def expect_fault(store: Path, *words: str) -> None:
    found = faults(store)
    assert any(all(word in fault for word in words) for fault in found), found


def orders(store: Path) -> list[dict]:
    return inspect.dump(str(store), "orders", 0, 10_000)


# --- a sound store --------------------------------------------------------------------------------


def test_a_sound_store_has_no_faults_and_its_parts_add_up(sound: Path) -> None:
    report = inspect.verify(str(sound))
    assert report.faults == []
    assert (report.broker, report.clean, report.epoch) == ("broker-a", True, 1) and len(
        report.identity
    ) == 32
    prepared = 10
    assert report.records == report.queue_entries + prepared == 665
    assert (report.frames, report.queues, report.unqueued, report.quarantined) == (31, 5, 0, 0)
    assert report.unindexed == 0 and report.index_items > 1_000 and report.index_files > 2
    assert report.segments >= 3 and report.segment_bytes == SEGMENT_BYTES
    row = report.as_row()
    assert row["bytes"] == report.end - report.begin and row["faults"] == 0


def test_inspection_changes_no_file(store: Path) -> None:
    def state() -> dict[str, tuple[str, int]]:
        files = [path for path in sorted(store.rglob("*")) if path.is_file()]
        return {
            str(path): (hashlib.sha256(path.read_bytes()).hexdigest(), path.stat().st_mtime_ns)
            for path in files
            if path.name != "lock"
        }

    before = state()
    inspect.verify(str(store))
    inspect.dump(str(store))
    assert state() == before


def test_a_store_without_lock_file_or_our_directory_can_be_verified(store: Path) -> None:
    shutil.rmtree(store / "rmq_ray")
    (store / "lock").unlink()
    report = inspect.verify(str(store))
    assert (report.faults, report.identity, report.broker) == ([], "", "")
    assert not (store / "lock").exists()


def test_a_running_brokers_store_is_refused_and_can_be_opened_afterwards(store: Path) -> None:
    running = small_store.opened(store)
    with pytest.raises(StoreInUse, match="rmq-ray down"):
        inspect.verify(str(store))
    assert len(inspect.dump(str(store), limit=3)) == 3
    running.shutdown()
    assert faults(store) == []
    small_store.opened(store).shutdown()


def test_a_killed_brokers_store_has_no_faults(store: Path, tmp_path: Path) -> None:
    # no thread renames a file while it is copied
    running = small_store.opened(store, preallocate=False, checkpoint_interval_ms=3_600_000)
    Filler(running, seed=2).frame("orders", 0, 100)
    copy = Path(shutil.copytree(store, tmp_path / "killed"))
    running.shutdown()
    report = inspect.verify(str(copy))
    assert (report.clean, report.faults, report.records) == (False, [], 765)


def test_segments_that_retention_removed_are_no_fault(store: Path) -> None:
    (store / "commitlog" / f"{0:020d}").unlink()
    report = inspect.verify(str(store))
    assert (report.begin, report.faults) == (SEGMENT_BYTES, [])
    assert report.queue_entries < 655


def test_records_of_a_deleted_topic_are_counted_and_one_made_anew_goes_on_behind_them(
    store: Path,
) -> None:
    running = small_store.opened(store)
    delete_topic(running, "orders")
    delete_topic(running, "refunds")
    Filler(running, seed=3).frame("orders", 0, 3)
    running.shutdown()
    report = inspect.verify(str(store))
    assert report.faults == []
    assert report.unqueued > 10 + 200
    assert (store / "consumequeue" / "orders" / "0").is_dir() and not (
        store / "consumequeue" / "refunds"
    ).exists()


def test_a_place_that_is_no_store_says_where_the_stores_are(sound: Path, tmp_path: Path) -> None:
    with pytest.raises(StoreMissing, match=str(sound)):
        inspect.verify(str(sound.parent))
    with pytest.raises(StoreMissing, match="one broker's store"):
        inspect.dump(str(tmp_path))


# --- the log --------------------------------------------------------------------------------------


def test_a_flipped_bit_in_a_body_is_named_by_its_log_offset(store: Path) -> None:
    row = orders(store)[50]
    file, position = log_at(store, row["log_offset"])
    flip(file, position + 88 + 7)
    (fault,) = faults(store)
    assert (
        f"log offset {row['log_offset']}: {row['size']} bytes are no record" in fault
        and "CRC" in fault
    )


@pytest.mark.parametrize(
    ("at", "what"),
    [
        (0, "TOTALSIZE"),
        (3, "TOTALSIZE"),
        (4, "magic"),
        (9, "CRC"),
        (15, "queue id"),
        (20, "queue offset"),
        (27, "queue offset"),
        (30, "own offset"),
        (87, "body length"),
    ],
)
def test_a_flipped_bit_in_a_field_that_means_something_is_found(
    store: Path, at: int, what: str
) -> None:
    row = orders(store)[60]
    file, position = log_at(store, row["log_offset"])
    flip(file, position + at)
    assert faults(store), what


@pytest.mark.parametrize("back", [209, 201, 194])
def test_a_flipped_bit_in_topic_or_tag_is_found(store: Path, back: int) -> None:
    """Counted from the record's end: topic, property length, a key."""
    row = next(row for row in orders(store) if row["tag"] == "paid" and row["size"] > 260)
    file, position = log_at(store, row["log_offset"])
    text = file.read_bytes()[position : position + row["size"]]
    at = {
        209: text.index(b"orders"),
        201: text.index(b"orders") + 7,
        194: text.index(b"TAGS\x01paid") + 5,
    }[back]
    flip(file, position + at)
    assert faults(store)


def test_what_a_broker_has_put_into_quarantine_is_counted_and_no_fault(store: Path) -> None:
    row = orders(store)[50]
    file, position = log_at(store, row["log_offset"])
    flip(file, position + 100)
    (store / "rmq_ray" / "quarantine").write_text(
        f"{row['log_offset']} {row['size']} the body's CRC differs\n"
    )
    report = inspect.verify(str(store))
    assert (report.faults, report.quarantined) == ([], 1)


def test_a_torn_tail_is_named_with_its_size(store: Path) -> None:
    end = inspect.verify(str(store)).end
    file, position = log_at(store, end)
    first, offset = log_at(store, 0)
    overwrite(file, position, first.read_bytes()[offset : offset + 150])
    expect_fault(store, f"log offset {end}", "150 bytes behind the log's end", "torn tail")


def test_a_frame_that_ends_too_early_is_named(store: Path) -> None:
    end = inspect.verify(str(store)).end
    last = orders(store)[-1]
    file, position = log_at(store, last["log_offset"])
    overwrite(file, position, bytes(end - last["log_offset"]))
    expect_fault(store, "a frame of 5 records has only 4")
    expect_fault(
        store,
        "consume queue orders/1",
        f"points to log offset {last['log_offset']}, behind the log's end",
    )
    expect_fault(store, "records were lost")


def test_zeros_amid_the_log_are_named(store: Path) -> None:
    row = orders(store)[100]
    file, position = log_at(store, row["log_offset"])
    overwrite(file, position, bytes(row["size"]))
    expect_fault(store, f"log offset {row['log_offset']}", "zeros where records were")


def test_a_missing_and_a_short_segment_are_named(store: Path) -> None:
    (store / "commitlog" / f"{SEGMENT_BYTES:020d}").unlink()
    expect_fault(store, f"{2 * SEGMENT_BYTES:020d}", "one before it is missing")
    with (store / "commitlog" / f"{0:020d}").open("r+b") as file:
        file.truncate(40_000)
    expect_fault(store, f"{0:020d} has 40000 bytes")


def test_a_foreign_file_in_the_log_is_named(store: Path) -> None:
    (store / "commitlog" / "notes.txt").write_text("x")
    expect_fault(store, "notes.txt is no segment")


# --- consume queues -------------------------------------------------------------------------------


def entry_at(store: Path, offset: int) -> tuple[Path, int]:
    files = sorted((store / "consumequeue" / "orders" / "0").iterdir())
    return files[offset // 64], offset % 64 * ENTRY_BYTES


@pytest.mark.parametrize(
    "change", [(1, 0, 0), (0, 4, 0), (0, 0, 9)], ids=["offset", "size", "tags code"]
)
def test_an_entry_that_lies_is_named_with_both_versions(
    store: Path, change: tuple[int, int, int]
) -> None:
    file, position = entry_at(store, 70)
    truth = ENTRY.unpack_from(file.read_bytes(), position)
    lie = tuple(value + more for value, more in zip(truth, change, strict=True))
    overwrite(file, position, ENTRY.pack(*lie))
    (fault,) = faults(store)
    assert "consume queue orders/0 entry 70" in fault and str(lie) in fault and str(truth) in fault


def test_entries_that_the_log_has_records_for_are_missed(store: Path) -> None:
    last = max(row["queue_offset"] for row in orders(store) if row["queue"] == 0)
    file, position = entry_at(store, last)
    overwrite(file, position, bytes(ENTRY_BYTES))
    expect_fault(store, f"orders/0 has no entries {last} to {last}")
    expect_fault(store, "the checkpoint knows")


def test_an_entry_without_a_record_is_named(store: Path) -> None:
    last = max(row["queue_offset"] for row in orders(store) if row["queue"] == 0)
    file, position = entry_at(store, last + 1)
    overwrite(file, position, ENTRY.pack(1234, 100, 0))
    expect_fault(
        store, f"entry {last + 1} points to log offset 1234, where no record of this queue begins"
    )


def test_a_queue_that_is_gone_or_of_another_size_is_named(store: Path) -> None:
    shutil.rmtree(store / "consumequeue" / "refunds")
    expect_fault(store, "consume queue refunds/0 is missing, the log has 10 of its records")
    file, _ = entry_at(store, 0)
    with file.open("r+b") as target:
        target.truncate(100)
    expect_fault(store, "consume queue orders/0 cannot be read", "100 bytes")


# --- the index ------------------------------------------------------------------------------------


def first_index(store: Path) -> Path:
    return sorted((store / "index").iterdir())[0]


def test_an_item_with_another_hash_or_offset_is_named(store: Path) -> None:
    file = first_index(store)
    at = HEADER_BYTES + INDEX_SLOTS * SLOT_BYTES + 5 * ITEM_BYTES
    key_hash, log_offset, seconds, previous = ITEM.unpack_from(file.read_bytes(), at)
    overwrite(file, at, ITEM.pack(key_hash + INDEX_SLOTS, log_offset, seconds, previous))
    expect_fault(
        store, "item 5", f"log offset {log_offset}", "no record there has a key with its hash"
    )
    overwrite(file, at, ITEM.pack(key_hash, log_offset + 1, seconds, previous))
    expect_fault(store, "item 5", f"log offset {log_offset + 1}")


def test_a_chain_that_lost_items_is_named(store: Path) -> None:
    file = first_index(store)
    slots = file.read_bytes()[HEADER_BYTES : HEADER_BYTES + INDEX_SLOTS * SLOT_BYTES]
    used = next(at for at in range(0, len(slots), SLOT_BYTES) if any(slots[at : at + SLOT_BYTES]))
    overwrite(file, HEADER_BYTES + used, bytes(SLOT_BYTES))
    expect_fault(store, file.name, "items cannot be found")


def test_an_index_of_another_shape_is_recognised_or_named(tmp_path: Path) -> None:
    running = small_store.opened(tmp_path / "s", create=True, index_slots=500, index_items=1_000)
    Filler(running).frame("orders", 0, 50)
    running.shutdown()
    report = inspect.verify(str(tmp_path / "s"))
    assert (report.faults, report.index_items) == ([], 150)
    odd = small_store.opened(tmp_path / "odd", create=True, index_slots=777, index_items=1_000)
    Filler(odd).frame("orders", 0, 50)
    odd.shutdown()
    expect_fault(tmp_path / "odd", "fit no number of slots")
    assert inspect.verify(str(tmp_path / "odd"), index_slots=777).faults == []


# --- checkpoints and the rest ---------------------------------------------------------------------


def test_checkpoints_that_do_not_belong_to_the_log_are_named(store: Path) -> None:
    files, ours = FileSystem(), str(store / "rmq_ray" / "checkpoint")
    sound = load_recovery_point(files, ours)
    assert sound is not None
    save_recovery_point(files, ours, type(sound)(sound.log_position + 1_000_000, identity="f" * 32))
    expect_fault(store, "belongs to store ffff")
    expect_fault(store, "records were lost")
    save_recovery_point(
        files, ours, type(sound)(sound.log_position, identity=sound.identity, last_record=(0, 1))
    )
    expect_fault(store, "not the one that it remembers")
    (store / "rmq_ray" / "checkpoint").write_bytes(b"RMQCKPT1 and then nonsense")
    expect_fault(store, "checkpoint is damaged")
    save_store_checkpoint(files, str(store / "checkpoint"), StoreCheckpoint(1 << 50, 0, 0))
    expect_fault(store, "the time of the log", "not that of a record")


def test_a_damaged_identity_and_epochs_are_named(store: Path) -> None:
    (store / "rmq_ray" / "identity").write_text("{}")
    (store / "rmq_ray" / "epochs").write_text("1 0\n2 99999999\n")
    expect_fault(store, "is not an identity")
    expect_fault(store, "epoch 2 begins behind the log's end")


# --- dump -----------------------------------------------------------------------------------------


def test_dump_shows_records_in_log_order_with_their_columns(sound: Path) -> None:
    rows = inspect.dump(str(sound), limit=10_000)
    assert len(rows) == 665
    assert [row["log_offset"] for row in rows] == sorted(row["log_offset"] for row in rows)
    first = rows[0]
    assert (first["topic"], first["queue"], first["queue_offset"], first["tag"], first["keys"]) == (
        "orders",
        0,
        0,
        "refund",
        ["o-1", "all"],
    )
    assert (
        first["properties"] == {"region": "eu"}
        and first["message_id"] == f"{1:032X}"
        and len(first["body"]) == 120
    )


def test_dump_takes_one_topic_from_a_place_and_stops_at_the_limit(sound: Path) -> None:
    refunds = inspect.dump(str(sound), "refunds", 0, 4)
    assert [row["queue_offset"] for row in refunds] == [0, 1, 2, 3]
    amid = inspect.dump(str(sound), None, refunds[1]["log_offset"] + 1, 1)
    assert amid[0]["log_offset"] == refunds[1]["log_offset"] + refunds[1]["size"]
    assert inspect.dump(str(sound), None, 1 << 40) == []
    assert inspect.dump(str(sound), "no-such-topic") == []


def test_dump_unpacks_bodies_and_steps_over_broken_bytes(store: Path) -> None:
    assert any(row["body"] == b"zipped " * 20 for row in orders(store))
    before = inspect.dump(str(store), limit=10_000)
    file, position = log_at(store, before[7]["log_offset"])
    overwrite(file, position, b"\xff" * before[7]["size"])
    assert inspect.dump(str(store), limit=10_000) == before[:7] + before[8:]
