"""A store written here opens in Apache RocketMQ's own store, and the other way round: every
message, bound, look-up and key query agrees.

Segments of 64 KiB, consume queue files of 64 entries and index files of 400 items roll many times
in each test. What a killed process had acknowledged must be there on both sides.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from rmq_ray.errors import StoreInUse
from tests.support.outcomes import judging
from tests.support.stores.interop_store import (
    GEOMETRY,
    INDEX_ITEMS,
    QUEUE_ENTRIES,
    SEGMENT_BYTES,
    Dump,
    copy_of,
    differences,
    dump_ours,
    dump_theirs,
    open_ours,
)
from tools import interop

ROOT = Path(__file__).resolve().parents[2]
FRAMES = 200
MESSAGES = 1_500
WRITE_TIMEOUT_S = 120


@pytest.fixture
def store(tmp_path: Path) -> Path:
    return tmp_path / "store"


def ours(
    path: Path,
    *,
    seed: int = 1,
    begin: str = "create",
    kill_after: int | None = None,
    flush: str = "async",
) -> list[dict[str, Any]]:
    """Lets our writer write; returns its acknowledgements. ``kill_after``: SIGKILL after so many,
    in the middle of its work.
    """
    command = [
        sys.executable,
        "-m",
        "tests.support.stores.store_writer",
        str(path),
        flush,
        str(FRAMES),
        str(seed),
        begin,
        "hang" if kill_after else "clean",
    ]
    return _acknowledged(command, ROOT, kill_after)


def theirs(
    path: Path, *, seed: int = 1, kill_after: int | None = None, flush: str = "ASYNC_FLUSH"
) -> list[dict[str, Any]]:
    """The same with Apache RocketMQ's store."""
    command = interop.command(
        "StoreWriter", path, GEOMETRY, flush, MESSAGES, seed, "hang" if kill_after else "clean"
    )
    return _acknowledged(command, ROOT, kill_after)


def _acknowledged(command: list[str], cwd: Path, kill_after: int | None) -> list[dict[str, Any]]:
    process = subprocess.Popen(
        command, cwd=cwd, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    try:
        if kill_after is None:
            out, complaints = process.communicate(timeout=WRITE_TIMEOUT_S)
            assert process.returncode == 0, complaints[-4000:]
            return [line for line in map(json.loads, out.splitlines()) if line["kind"] == "ack"]
        found = []
        for line in _lines(process):
            if line["kind"] == "ack":
                found.append(line)
            if len(found) == kill_after:
                break
        assert len(found) == kill_after, process.stderr.read()[-4000:] if process.stderr else ""
        return found
    finally:
        process.kill()
        process.communicate(timeout=30)


def _lines(process: subprocess.Popen[str]) -> Iterator[dict[str, Any]]:
    assert process.stdout is not None
    for text in process.stdout:
        if text.startswith("{") and text.endswith("}\n"):
            yield json.loads(text)


def both(path: Path) -> tuple[Dump, Dump]:
    """(ours, theirs): the same directory, opened by both sides on copies of their own."""
    other = dump_theirs(copy_of(path, "theirs"))
    opened = open_ours(copy_of(path, "ours"), create=True)  # also a store that we never had
    try:
        mine = dump_ours(opened, other.message_keys(), other.times)
    finally:
        opened.shutdown()
    return mine, other


def check_rolled(path: Path, dump: Dump) -> None:
    """The test says something about rolled files only if files rolled."""
    assert dump.log[1] > 3 * SEGMENT_BYTES
    assert len(list((path / "commitlog").iterdir())) > 3
    assert len(dump.keys) > INDEX_ITEMS
    assert max(high for _, high in dump.bounds.values()) > QUEUE_ENTRIES


@judging()
def check_acknowledged(acknowledgements: list[dict[str, Any]], dump: Dump) -> None:
    """Each acknowledged frame or message lies where the acknowledgement said."""
    for line in acknowledgements:
        if "topic" not in line:
            continue
        for number in range(line["count"]):
            message = dump.messages.get((line["topic"], line["queue"], line["offset"] + number))
            assert message is not None, line
            assert number or message["log"] == line["log"], line


@pytest.mark.seed("S3-089", "S3-090", "S3-091", "S3-107", "S4-092")
def test_apache_rocketmq_reads_what_we_wrote(store: Path) -> None:
    acknowledgements = ours(store)
    mine, other = both(store)
    with judging():
        assert len(mine.messages) == sum(line["count"] for line in acknowledgements) > 3_000
    check_acknowledged(acknowledgements, other)
    assert differences(mine, other) == []
    check_rolled(store, other)


@pytest.mark.parametrize("flush", ["async", "sync"])
def test_apache_rocketmq_reads_what_we_wrote_until_we_were_killed(store: Path, flush: str) -> None:
    acknowledgements = ours(store, kill_after=FRAMES, flush=flush)
    mine, other = both(store)
    check_acknowledged(acknowledgements, mine)
    check_acknowledged(acknowledgements, other)
    assert differences(mine, other) == []
    check_rolled(store, other)


def test_we_read_what_apache_rocketmq_wrote(store: Path) -> None:
    acknowledgements = theirs(store)
    mine, other = both(store)
    assert differences(mine, other) == []
    assert len(acknowledgements) == MESSAGES
    assert len(mine.messages) > MESSAGES
    check_rolled(store, other)


@pytest.mark.parametrize("flush", ["ASYNC_FLUSH", "SYNC_FLUSH"])
def test_we_read_what_apache_rocketmq_wrote_until_it_was_killed(store: Path, flush: str) -> None:
    store, acknowledgements = theirs_killed(store, flush, MESSAGES * 3 // 4)
    mine, other = both(store)
    queued = mine.log_offsets()
    unqueued = [line["log"] for line in acknowledgements if line["log"] not in queued]
    with judging():  # half messages
        assert len(unqueued) == sum(
            number % 41 == 40 and number % 11 != 10 for number in range(len(acknowledgements))
        )
    assert differences(mine, other) == []
    check_rolled(store, other)


def theirs_killed(store: Path, flush: str, kill_after: int) -> tuple[Path, list[dict[str, Any]]]:
    """A store that Apache RocketMQ left when it was killed. One that it was making a file in at
    that moment it refuses itself: then again.
    """
    for attempt in range(5):
        path = store.with_name(f"{store.name}{attempt}")
        acknowledgements = theirs(path, seed=attempt, kill_after=kill_after, flush=flush)
        if _files_are_whole(path):
            return path, acknowledgements
    pytest.fail("killed five times while it was making a file")


def test_both_sides_take_turns_on_one_store(store: Path) -> None:
    first = ours(store, seed=1)
    theirs(store, seed=2)
    third = ours(store, seed=3, begin="append")
    _turn(store)
    fifth = ours(store, seed=5, begin="append", kill_after=FRAMES // 2)
    mine, other = both(store)
    for acknowledgements in (first, third, fifth):
        check_acknowledged(acknowledgements, mine)
    with judging():
        for (_, _, offset), message in mine.messages.items():
            assert message["own_offset"] == offset
    assert differences(mine, other) == []


def _files_are_whole(path: Path) -> bool:
    log, queues = (path / "commitlog").iterdir(), (path / "consumequeue").glob("*/*/*")
    return all(file.stat().st_size == SEGMENT_BYTES for file in log) and all(
        file.stat().st_size == QUEUE_ENTRIES * 20 for file in queues
    )


def _turn(store: Path) -> None:
    """Apache RocketMQ appends to the store and is killed; on a copy first, see
    ``theirs_killed``.
    """
    for attempt in range(5):
        copied = copy_of(store, f"turn{attempt}")
        theirs(copied, seed=4, kill_after=MESSAGES // 2)
        if _files_are_whole(copied):
            shutil.rmtree(store)
            copied.rename(store)
            return
    pytest.fail("killed five times while it was making a file")


def test_a_store_that_we_hold_is_refused_by_apache_rocketmq(store: Path) -> None:
    ours(store)
    held = open_ours(store)
    try:
        with pytest.raises(RuntimeError, match="Lock failed"):
            interop.run("StoreReader", store, GEOMETRY)
    finally:
        held.shutdown()


def test_a_store_that_apache_rocketmq_holds_is_refused_here(store: Path) -> None:
    with interop.started(
        "StoreWriter", store, GEOMETRY, "ASYNC_FLUSH", 20, 1, "hang", flags=interop.SHORT_LIVED
    ) as process:
        assert any(line["kind"] == "ready" for line in _until_ready(process))
        with pytest.raises(StoreInUse):
            open_ours(store)


def _until_ready(process: subprocess.Popen[str]) -> Iterator[dict[str, Any]]:
    for line in _lines(process):
        yield line
        if line["kind"] == "ready":
            return
