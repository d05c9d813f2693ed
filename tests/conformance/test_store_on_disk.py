"""The store on a real disk, with its threads, and beside other processes (promises F1; store-format
6, 8).
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from rmq_ray.clock import SYSTEM_CLOCK
from rmq_ray.codec.record import decode_record
from rmq_ray.config import FlushMode, StoreConfig
from rmq_ray.errors import StoreFailed, StoreForeign, StoreFull, StoreInUse, StoreMissing
from rmq_ray.files import FileSystem
from rmq_ray.store.front.message_store import MessageStore, StoreState
from tests.support.brokers.store_rig import BORN, HOST, make_frame

ROOT = Path(__file__).resolve().parents[2]
SEGMENT = 1 << 20


class Life:
    """One store on disk; ``wait_durable`` waits for the flush thread."""

    def __init__(self, path: Path, **changes: object) -> None:
        settings: dict[str, object] = {
            "segment_bytes": SEGMENT,
            "consume_queue_entries": 1000,
            "index_slots": 1000,
            "index_items": 5000,
            "checkpoint_interval_ms": 50,
        }
        self.config = StoreConfig(path=str(path), **(settings | changes))  # type: ignore[arg-type]
        self.store = MessageStore(
            self.config, SYSTEM_CLOCK, broker_name="broker-a", store_host=HOST
        )
        self.store.open(True)
        self.report = self.store.recover()
        self.moved = threading.Condition()
        self.durable = 0
        self.store.start(self.on_durable)

    def on_durable(self, position: int) -> None:
        with self.moved:
            self.durable = position
            self.moved.notify_all()

    def send(self, bodies: list[bytes], sequence: int, queue_id: int = 0) -> int:
        records, sizes = make_frame(bodies, sequence=sequence, queue_id=queue_id)
        return self.store.append_frame(records, sizes, BORN).end_log_offset

    def wait_durable(self, position: int) -> None:
        with self.moved:
            assert self.moved.wait_for(
                lambda: self.durable >= position or self.store.state is StoreState.FAILED, 10
            )
        self.store.dispatch_durable()

    def bodies(self, queue_id: int = 0) -> list[bytes]:
        offset, high = self.store.bounds("TopicTest", queue_id)
        found: list[bytes] = []
        while offset < high:
            result = self.store.get_messages("TopicTest", queue_id, offset, 1000, 1 << 20, None)
            data, at = b"".join(result.parts), 0
            for size in result.sizes.tolist():
                found.append(decode_record(data, at).body)
                at += size
            offset = result.next_offset
        return found


@pytest.fixture
def path(tmp_path: Path) -> Iterator[Path]:
    yield tmp_path / "store"


@pytest.mark.parametrize("mode", list(FlushMode))
def test_frames_survive_stop_and_start_over_several_segments(path: Path, mode: FlushMode) -> None:
    life = Life(path, flush=mode)
    sent: list[bytes] = []
    position = 0
    for number in range(60):
        bodies = [b"%d-%d" % (number, row) * 200 for row in range(40)]
        position = life.send(bodies, number)
        sent += bodies
    if mode is FlushMode.SYNC_FLUSH:
        life.wait_durable(position)
    assert life.store.end_offset > 2 * SEGMENT and life.bodies() == sent
    life.store.shutdown()
    assert not (path / "abort").exists()
    assert all(file.stat().st_size == SEGMENT for file in (path / "commitlog").iterdir())
    after = Life(path, flush=mode)
    assert after.report.clean and after.report.records == 0 and after.bodies() == sent
    after.store.shutdown()


@pytest.mark.seed("S3-093")
def test_under_sync_flush_the_thread_tells_what_is_durable(path: Path) -> None:
    life = Life(path, flush=FlushMode.SYNC_FLUSH)
    for number in range(20):
        position = life.send([b"x"], number)
        life.wait_durable(position)
        assert life.store.bounds("TopicTest", 0) == (0, number + 1)
    life.store.shutdown()


@pytest.mark.parametrize(
    "due",
    [
        {"checkpoint_bytes": 100_000, "checkpoint_interval_ms": 3_600_000},
        {"checkpoint_interval_ms": 50},
    ],
    ids=["bytes", "time"],
)
def test_the_checkpoint_thread_shortens_the_next_recovery(path: Path, due: dict[str, int]) -> None:
    life = Life(path, **due)
    position = life.send([b"x" * 1000] * 300, 0)
    checkpoint = path / "rmq_ray" / "checkpoint"
    reached = threading.Event()
    for _ in range(200):
        if life.store._checkpointer is not None and life.store._checkpointer.position == position:
            reached.set()
            break
        reached.wait(0.05)
    assert reached.is_set() and checkpoint.exists()
    life.store._lock_file.release()
    after = Life(path)
    assert (after.report.clean, after.report.begin, after.report.records) == (False, position, 0)
    after.store.shutdown()


CHILD = """
import sys
from pathlib import Path
sys.path.insert(0, {root!r})
from rmq_ray.config import FlushMode
from tests.conformance.test_store_on_disk import Life
life = Life(Path({path!r}), flush=FlushMode({mode!r}))
print("ready", flush=True)
for number in range(100000):
    position = life.send([b"%d-%d" % (number, row) for row in range(1 + number % 50)], number)
    if {mode!r} == "sync":
        life.wait_durable(position)
    print(number, flush=True)
"""


@pytest.mark.parametrize("mode", ["async", "sync"])
def test_what_a_killed_process_acknowledged_is_there(path: Path, mode: str) -> None:
    child = subprocess.Popen(
        [sys.executable, "-c", CHILD.format(root=str(ROOT), path=str(path), mode=mode)],
        stdout=subprocess.PIPE,
        text=True,
    )
    assert child.stdout is not None and child.stdout.readline() == "ready\n"
    with pytest.raises(StoreInUse):
        Life(path)
    acknowledged = -1
    for line in child.stdout:
        acknowledged = int(line)
        if acknowledged >= 60:
            break
    os.kill(child.pid, signal.SIGKILL)
    child.wait(10)
    rest = child.stdout.read().split("\n")
    child.stdout.close()
    acknowledged = max([acknowledged, *(int(line) for line in rest[:-1])])
    after = Life(path, flush=FlushMode(mode))
    assert not after.report.clean
    expected = [
        b"%d-%d" % (number, row)
        for number in range(acknowledged + 2)
        for row in range(1 + number % 50)
    ]
    found = after.bodies()
    assert found == expected[: len(found)]
    whole = {
        sum(1 + number % 50 for number in range(count))
        for count in (acknowledged + 1, acknowledged + 2)
    }
    assert len(found) in whole, "every acknowledged frame, and the next one wholly or not at all"
    after.store.shutdown()


def test_both_locks_are_held_against_other_processes(path: Path) -> None:
    life = Life(path)
    code = (
        f"import fcntl; f = open({str(path / 'lock')!r}, 'r+b'); fcntl.lockf(f, fcntl.LOCK_EX | "
        f"fcntl.LOCK_NB, 1)"
    )
    java_like = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=30, check=False
    )
    assert "BlockingIOError" in java_like.stderr
    ours = (
        f"import fcntl, os; fcntl.flock(os.open({str(path)!r}, os.O_RDONLY), fcntl.LOCK_EX | "
        f"fcntl.LOCK_NB)"
    )
    assert (
        "BlockingIOError"
        in subprocess.run(
            [sys.executable, "-c", ours], capture_output=True, text=True, timeout=30, check=False
        ).stderr
    )
    assert (path / "lock").read_bytes() == b"lock"
    life.store.shutdown()
    for code_now in (code, ours):
        assert (
            subprocess.run(
                [sys.executable, "-c", code_now], capture_output=True, timeout=30, check=False
            ).returncode
            == 0
        )


def test_the_segment_ahead_is_preallocated_in_full(path: Path) -> None:
    life = Life(path)
    life.send([b"x"], 0)
    log = path / "commitlog"
    ahead = log / f"{SEGMENT:020d}"
    waiting = threading.Event()
    for _ in range(200):
        if ahead.exists():
            break
        waiting.wait(0.05)
    assert ahead.stat().st_size == SEGMENT and ahead.stat().st_blocks * 512 >= SEGMENT
    life.store.shutdown()


def test_the_real_file_system_types_its_errors(tmp_path: Path) -> None:
    files = FileSystem()
    with pytest.raises(StoreMissing):
        files.open(str(tmp_path / "none"))
    with pytest.raises(StoreMissing):
        files.read_whole(str(tmp_path / "none"))
    file = files.open(str(tmp_path / "full"), create=True)
    with pytest.raises(StoreFull, match="free space"):
        files.open("/dev/full").pwrite(b"x", 0)
    file.close()
    with pytest.raises(StoreFailed):
        file.pread(1, 0)
    directory = str(tmp_path / "a" / "b")
    files.make_dirs(directory)
    files.write_whole(f"{directory}/c", b"one")
    files.write_whole(f"{directory}/c", b"two")
    assert files.read_whole(f"{directory}/c") == b"two" and files.list_dir(directory) == ["c"]
    files.unlink(f"{directory}/c")
    files.unlink(f"{directory}/c")
    files.remove_dir(directory)
    assert files.list_dir(directory) == [] and 0 < files.disk_space(str(tmp_path)).used_ratio < 1


def test_a_store_of_another_broker_is_refused_on_disk(path: Path) -> None:
    Life(path).store.shutdown()
    other = MessageStore(
        StoreConfig(str(path), segment_bytes=SEGMENT),
        SYSTEM_CLOCK,
        broker_name="broker-b",
        store_host=HOST,
    )
    with pytest.raises(StoreForeign):
        other.open(True)
    again = Life(path)
    again.store.shutdown()
