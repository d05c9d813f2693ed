"""An archivist brings every visible row into the table once, whatever dies or fails on the way."""

from __future__ import annotations

import gc
import json
import random
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from rmq_ray.errors import (
    CommitRefused,
    CommitterReplaced,
    OffsetOutOfRange,
    RmqError,
    TableError,
    TableStorageError,
)
from rmq_ray.model.arrow import SCHEMA
from rmq_ray.table.archivist import Archivist
from rmq_ray.table.data_files import FileWriter
from rmq_ray.table.manifest import ManifestTable
from rmq_ray.table.rules import Change, Ranges, TableState
from rmq_ray.table.storage import Storage
from tests.support.tables.table_rig import (
    START_MS,
    TOPIC,
    Faults,
    Killed,
    MemoryTopic,
    archivist_at,
    expected_rows,
    glob_rows,
    rows_of,
    spec_at,
)

LEFT = "broker-a-0001-00000000000000000009-e1-g000001-dead.parquet"
OWN = (
    f"day=2023-11-14/{LEFT}",
    f"_rejected/day=2023-11-14/{LEFT}",
    f"_rmq/staging/day=2023-11-14+{LEFT}",
    "_rmq/staging/_rmq+offsets.json",
)
FOREIGN = (
    "report.parquet",
    "other/part-0.parquet",
    "day=2023-11-14/left.parquet",
    "_rejected/day=2023-11-14/left.parquet",
    f"other/day=2023-11-14/{LEFT}",  # another table's, in a folder below this one
    "_rmq/notes.parquet",
    "_rmq/commits/notes.txt",
    "_rmq/commits/.000001-w-000000000001.json.crc",
    "_rmq/generations/notes.txt",
    "_rmq/staging/notes.txt",
)


def filled(rows: int = 40, queues: int = 2) -> MemoryTopic:
    topic = MemoryTopic(queues)
    for n in range(rows):
        topic.send(n % queues, b"%d" % n)
    return topic


def committed_rows(folder: Path) -> list[tuple[int, int, bytes]]:
    """What the newest manifest names."""
    files = json.loads((folder / "_rmq/offsets.json").read_text())["files"]
    return rows_of([folder / row[0] for row in files if not row[8]])


def put(folder: Path, *names: str) -> list[Path]:
    """Files that no commit names."""
    paths = [folder / name for name in names]
    for path in paths:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"kept")
    return paths


def test_a_turn_brings_what_is_visible_into_the_table_and_says_how_far_it_is(
    tmp_path: Path,
) -> None:
    topic = filled()
    archivist = archivist_at(spec_at(tmp_path), topic, "w")
    assert archivist.turn(force=True)
    assert glob_rows(tmp_path) == committed_rows(tmp_path) == expected_rows(topic)
    said = json.loads((tmp_path / "_rmq/offsets.json").read_text())
    assert said["offsets"] == {"orders": {"broker-a": {"0": 20, "1": 20}}}
    assert said["rows"] == 40 and archivist.lag.messages == 0
    assert topic.held == {queue: 20 for queue in topic.queues}
    assert not archivist.turn(force=True), "nothing new"


def test_rows_lie_in_a_folder_for_each_day_of_storing_also_when_the_clock_jumps(
    tmp_path: Path,
) -> None:
    topic = MemoryTopic(1)
    day = 86_400_000
    for n, at in enumerate((0, day - 1, day, 0, day)):  # the fourth: a clock that was set back
        topic.send(0, b"%d" % n, START_MS + at)
    archivist_at(spec_at(tmp_path), topic, "w").turn(force=True)
    found = {
        folder.name: [body for _, _, body in rows_of(sorted(folder.iterdir()))]
        for folder in tmp_path.glob("day=*")
    }
    assert list(found.values()) == [[b"0", b"1", b"3"], [b"2", b"4"]] or list(
        reversed(found.values())
    ) == [[b"0", b"1", b"3"], [b"2", b"4"]]
    assert glob_rows(tmp_path) == expected_rows(topic)


def test_nothing_is_committed_before_it_is_due(tmp_path: Path) -> None:
    topic = filled(4)
    archivist = archivist_at(spec_at(tmp_path, max_lag_s=60), topic, "w")
    clock = archivist._clock
    assert not archivist.turn() and archivist.lag.messages == 4
    clock.advance_ms(47_000)
    assert not archivist.turn() and archivist.lag.ms == 47_000
    clock.advance_ms(1_000)
    assert archivist.turn() and archivist.lag.messages == 0


def test_a_clock_that_is_set_back_or_forward_delays_no_commit(tmp_path: Path) -> None:
    topic = MemoryTopic(1)
    archivist = archivist_at(spec_at(tmp_path, max_lag_s=60), topic, "w")
    for jump_ms in (-30 * 86_400_000, 30 * 86_400_000, -3_600_000):
        topic.send(0, b"x", archivist._clock.now_ms())
        archivist.turn(force=True)
        topic.send(0, b"y", archivist._clock.now_ms())
        archivist._clock.jump_ms(jump_ms)
        archivist.turn()
        archivist._clock.advance_ms(50_000)
        archivist.turn()
        assert archivist.lag.messages == 0, f"the clock was moved by {jump_ms} ms"
    assert glob_rows(tmp_path) == expected_rows(topic)


def test_a_table_whose_files_were_deleted_begins_anew_with_what_the_log_has(
    tmp_path: Path,
) -> None:
    topic = filled()
    archivist = archivist_at(spec_at(tmp_path / "t"), topic, "w")
    archivist.turn(force=True)
    shutil.rmtree(tmp_path / "t")
    topic.send(0, b"more")
    with pytest.raises(CommitterReplaced, match="were deleted"):
        archivist.turn(force=True)
    assert archivist_at(spec_at(tmp_path / "t"), topic, "x").turn(force=True)
    assert committed_rows(tmp_path / "t") == expected_rows(topic)


def test_what_retention_took_first_is_a_gap_that_the_table_tells(tmp_path: Path) -> None:
    topic = filled()
    archivist = archivist_at(spec_at(tmp_path), topic, "w")
    archivist.turn(force=True)
    for n in range(10):
        topic.send(0, b"later %d" % n)
    topic.lows[topic.queues[0]] = 25
    assert archivist.turn(), "a gap is told at once"
    (gap,) = archivist_at(spec_at(tmp_path), topic, "x").opened().gaps
    assert (gap.first, gap.next, gap.reason) == (20, 25, "retention")
    lost = {(0, offset) for offset in range(20, 25)}
    assert glob_rows(tmp_path) == [row for row in expected_rows(topic) if row[:2] not in lost]


def test_a_log_that_was_cut_is_read_again_from_the_cut_and_that_is_told(tmp_path: Path) -> None:
    topic = filled()
    archivist = archivist_at(spec_at(tmp_path), topic, "w")
    archivist.turn(force=True)
    queue = topic.queues[1]
    topic.rows[queue][18:] = [(b"other", START_MS)]
    topic.epoch, topic.cuts = 2, {queue: 18}
    assert archivist.turn(force=True)
    (gap,) = archivist.opened().gaps
    assert (gap.first, gap.next, gap.reason) == (18, 20, "cut")
    assert (1, 18, b"other") in glob_rows(tmp_path) and archivist.opened().offsets[queue] == 19
    assert not archivist.turn(force=True), "it is not seen twice"


@pytest.mark.parametrize("block", range(5))
def test_every_row_is_there_once_after_failures_and_deaths_at_every_step(
    tmp_path: Path, block: int
) -> None:
    for seed in range(block * 10, block * 10 + 10):
        folder = tmp_path / str(seed)
        wanted = history(seed, folder)
        assert committed_rows(folder) == wanted, f"history({seed}, folder)"
        assert glob_rows(folder) == wanted, f"leftovers after history({seed}, folder)"


def history(seed: int, folder: Path) -> list[tuple[int, int, bytes]]:
    """What the table must have in the end."""
    chance, topic, faults = random.Random(seed), MemoryTopic(2), Faults()
    old: list[Archivist] = []
    folder.mkdir()
    spec = spec_at(folder)
    archivist, starts = archivist_at(spec, topic, "w0", faults), 0
    for _ in range(12):
        for _ in range(chance.randrange(20)):
            topic.send(chance.randrange(2), b"%d" % chance.randrange(1000))
        if chance.random() < 0.7:
            faults.arm(chance)
        alive = turned(archivist)
        faults.at = -1
        if not alive or chance.random() < 0.2:
            if alive:
                old.append(archivist)  # it does not know that it was replaced
            starts += 1
            archivist = archivist_at(spec, topic, f"w{starts}", faults)
        if old and chance.random() < 0.5:
            zombie = chance.choice(old)
            if not turned(zombie):
                old.remove(zombie)
    while not turned(archivist):  # ends: no faults, and nobody beside it
        archivist = archivist_at(spec, topic, "last", faults)
    archivist.turn(force=True)
    archivist.sweep()
    return expected_rows(topic)


def turned(archivist: Archivist) -> bool:
    """Whether its process still runs after a turn."""
    try:
        archivist.turn(force=True)
    except (Killed, CommitterReplaced):
        return False
    except RmqError:
        pass
    return True


def test_an_older_committer_gives_up_and_changes_nothing(tmp_path: Path) -> None:
    topic = filled()
    spec = spec_at(tmp_path)
    old, new = (archivist_at(spec, topic, name) for name in ("old", "new"))
    old.turn(force=True)
    new.turn(force=True)
    topic.send(0, b"more")
    with pytest.raises(CommitterReplaced):
        old.turn(force=True)
    new.turn(force=True)
    new.sweep()
    assert glob_rows(tmp_path) == committed_rows(tmp_path) == expected_rows(topic)


@pytest.mark.parametrize("late", [False, True], ids=["before", "within"])
def test_an_older_committer_sweeps_nothing_of_a_newer_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, late: bool
) -> None:
    """Also where it looked just before the newer one began."""
    topic = filled()
    spec = spec_at(tmp_path)
    old, new = (archivist_at(spec, topic, name) for name in ("old", "new"))
    old.turn(force=True)
    topic.send(0, b"more")
    new.turn(force=True)
    if late:
        monkeypatch.setattr(ManifestTable, "_check_newest", lambda _table: set())
        assert old.sweep() == 0
    else:
        with pytest.raises(CommitterReplaced):
            old.sweep()
    assert glob_rows(tmp_path) == committed_rows(tmp_path) == expected_rows(topic)


def test_a_manifest_of_an_older_committer_that_comes_late_does_not_count(tmp_path: Path) -> None:
    topic = filled()
    spec = spec_at(tmp_path)
    old = archivist_at(spec, topic, "old")
    old.turn(force=True)
    late = sorted((tmp_path / "_rmq/commits").iterdir())[-1]
    text = late.read_text()
    late.unlink()
    new = archivist_at(spec, topic, "new")
    new.turn(force=True)
    late.write_text(text)
    state = ManifestTable(Storage(str(tmp_path)), "orders").load()
    assert state.version.rpartition("/")[2].startswith("000002-new")
    new.sweep()
    assert glob_rows(tmp_path) == expected_rows(topic)


def test_a_place_that_cannot_be_written_to_is_told_and_caught_up_with(tmp_path: Path) -> None:
    topic, faults = filled(), Faults()
    archivist = archivist_at(spec_at(tmp_path), topic, "w", faults)
    archivist.opened()
    faults.at = 0
    with pytest.raises(TableStorageError):
        archivist.turn(force=True)
    assert archivist.turn(force=True)
    assert glob_rows(tmp_path) == expected_rows(topic)


def test_a_topic_that_was_made_anew_is_told_and_nothing_of_it_is_mixed_in(tmp_path: Path) -> None:
    archivist_at(spec_at(tmp_path), filled(), "w").turn(force=True)
    anew = filled(4)
    with pytest.raises(TableError, match="made anew"):
        archivist_at(spec_at(tmp_path), anew, "x").turn(force=True)
    assert glob_rows(tmp_path) == expected_rows(filled())


def test_a_start_and_a_sweep_leave_files_of_others_and_take_what_no_commit_names(
    tmp_path: Path,
) -> None:
    others, own = put(tmp_path, *FOREIGN), put(tmp_path, *OWN)
    topic = filled()
    archivist_at(spec_at(tmp_path), topic, "w").turn(force=True)
    assert all(path.read_bytes() == b"kept" for path in others)
    assert not any(path.exists() for path in own)
    for number in range(12):  # more starts than manifests and generations are kept
        archivist = archivist_at(spec_at(tmp_path), topic, f"x{number}")
        archivist.turn(force=True)
    assert archivist.sweep() == 0
    assert all(path.read_bytes() == b"kept" for path in others)
    assert committed_rows(tmp_path) == expected_rows(topic)


def test_a_drop_takes_the_tables_files_alone_and_tells_how_many_others_stay(
    tmp_path: Path,
) -> None:
    spec = spec_at(tmp_path)
    archivist = archivist_at(spec, filled(), "w")
    archivist.turn(force=True)
    others = put(tmp_path, *FOREIGN)
    assert archivist._target.drop() == len(others)
    assert {path for path in tmp_path.rglob("*") if path.is_file()} == set(others)


def test_what_a_drop_that_failed_leaves_is_known_as_the_tables(tmp_path: Path) -> None:
    faults = Faults()
    archivist = archivist_at(spec_at(tmp_path), filled(), "w", faults)
    archivist.turn(force=True)
    ManifestTable(Storage(str(tmp_path)), TOPIC).storage.write_whole(
        "_rmq/table.json", json.dumps({"topic": TOPIC}).encode()
    )
    for steps in range(1, 100):
        faults.at = steps
        try:
            archivist._target.drop()
        except TableStorageError:
            ManifestTable(Storage(str(tmp_path)), TOPIC).check_location()
        else:
            break
    assert not [path for path in tmp_path.rglob("*") if path.is_file()]


def test_a_table_is_made_in_an_empty_folder_or_its_own_and_nowhere_else(tmp_path: Path) -> None:
    def check(folder: Path) -> None:
        ManifestTable(Storage(str(folder)), TOPIC).check_location()

    folder = tmp_path / "t"
    check(folder)
    (about, rows, _) = put(folder, "_rmq/table.json", OWN[0], OWN[-1])
    for text in ("", "[]", "{}", '{"topic": "another"}', None):
        about.unlink() if text is None else about.write_text(text)
        with pytest.raises(TableError, match="like day=2023-11-14/.* give .* of its own"):
            check(folder)  # rows that were copied here without what says whose they are
    about.write_text(json.dumps({"topic": TOPIC}))  # of a creation that failed
    check(folder)
    assert rows.read_bytes() == b"kept"
    (other,) = put(folder, "year/month/rows.parquet")
    with pytest.raises(TableError, match="like year/month/rows.parquet: give .* of its own"):
        check(folder)
    other.unlink()
    archivist_at(spec_at(folder), filled(), "w").turn(force=True)
    put(folder, "year/month/rows.parquet")
    check(folder)  # its own table is gone on with
    with pytest.raises(TableError, match="like t/"):
        check(tmp_path)


def test_files_are_closed_at_their_size(tmp_path: Path) -> None:
    topic = MemoryTopic(1)
    chance = random.Random(7)
    for _ in range(140):
        topic.send(0, chance.randbytes(1_000_000))
    spec = spec_at(tmp_path, file_bytes=32 << 20)
    archivist_at(spec, topic, "w").turn(force=True)
    files = sorted(tmp_path.glob("day=*/*.parquet"))
    assert 2 <= len(files) <= 5 and glob_rows(tmp_path) == expected_rows(topic)


# --- attempts that failed -------------------------------------------------------------------------


def test_files_of_an_attempt_that_failed_are_not_those_of_the_next_one(tmp_path: Path) -> None:
    """Whoever keeps its error keeps its open files, and Python closes them when that goes."""
    topic = filled()
    archivist = archivist_at(spec_at(tmp_path), topic, "w")
    read = topic.read

    def broken(ranges: Ranges) -> Iterator[Any]:
        yield next(read(ranges))
        raise OffsetOutOfRange("the log was cut", 7, 0, 5)

    topic.read = broken  # type: ignore[method-assign]
    with pytest.raises(OffsetOutOfRange) as failed:
        archivist.turn(force=True)
    topic.read = read  # type: ignore[method-assign]
    assert archivist.turn(force=True)
    assert failed.value.__traceback__ is not None
    del failed
    gc.collect()
    assert glob_rows(tmp_path) == committed_rows(tmp_path) == expected_rows(topic)
    assert not list((tmp_path / "_rmq/staging").iterdir()), "it took away what it had begun"


def test_a_log_that_is_cut_between_the_look_and_the_read_is_read_once(tmp_path: Path) -> None:
    topic = filled(20, queues=1)
    archivist = archivist_at(spec_at(tmp_path), topic, "w")
    archivist.turn(force=True)
    for n in range(5):
        topic.send(0, b"old %d" % n)
    read = topic.read

    def cut(ranges: Ranges) -> Iterator[Any]:
        topic.epoch, topic.cuts = 2, {topic.queues[0]: 15}
        topic.rows[topic.queues[0]][15:] = [(b"new %d" % n, START_MS) for n in range(10)]
        yield from read(ranges)

    topic.read = cut  # type: ignore[method-assign]
    with pytest.raises(TableError, match="was cut while it was read"):
        archivist.turn(force=True)
    topic.read = read  # type: ignore[method-assign]
    archivist.turn(force=True)
    offsets = [offset for _, offset, body in committed_rows(tmp_path) if body.startswith(b"new")]
    assert offsets == list(range(15, 25))
    assert archivist.state is not None and [gap.first for gap in archivist.state.gaps] == [15]


def test_upkeep_that_another_engine_came_before_does_not_stop_the_rows(tmp_path: Path) -> None:
    topic = filled()
    archivist = archivist_at(spec_at(tmp_path), topic, "w")
    archivist.turn(force=True)
    target, commit = archivist._target, archivist._target.commit

    def refusing(expected: TableState, change: Change) -> TableState:
        if change.removed:
            raise CommitRefused("files were replaced meanwhile", TOPIC)
        return commit(expected, change)

    target.commit = refusing  # type: ignore[method-assign]
    with pytest.raises(CommitRefused):
        archivist.replace_files(archivist.files, archivist.files)
    topic.send(0, b"more")
    assert archivist.turn(force=True) and committed_rows(tmp_path) == expected_rows(topic)


def test_a_file_of_a_log_that_was_cut_covers_all_that_was_merged_into_it(tmp_path: Path) -> None:
    topic = filled(10, queues=1)
    queue = topic.queues[0]
    writer = FileWriter(Storage(str(tmp_path)), "", SCHEMA, 1 << 20, "000001-w")
    for epoch, low, high in ((1, 0, 10), (2, 4, 6)):
        writer.write(queue, epoch, topic._batch(queue, low, high), high)
    assert [(one.first, one.next, one.rows) for one in writer.close()] == [(0, 10, 12)]
