"""Ray's control plane (GCS) is killed with -9 and stays away: sends and pulls between living actors
go on, a master that dies then is replaced, and afterwards everything is found again.

A head of their own, started as docs/operations.md says, with its tables in rocksdb: it outlives two
deaths of its control plane. ``RMQ_RAY_CONTROL_PLANE_DOWN_S`` sets how long the first one is away
(4 s here; 30 s end the same).
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.support.outcomes import judging
from tests.support.programs import free_port
from tests.support.waiting import eventually

ROOT = Path(__file__).resolve().parents[2]
DOWN_S = float(os.environ.get("RMQ_RAY_CONTROL_PLANE_DOWN_S", "4"))
PAUSE_MS_MAX = 2_500
"""Of sends and of deliveries, whatever else this machine does; they are 20 ms apart."""


@dataclass
class Plane:
    """A head that the test started; ``gcs``: its control plane."""

    address: str
    directory: Path
    environment: dict[str, str]
    gcs: int
    again: subprocess.Popen[bytes] | None = None

    def kill(self) -> list[str]:
        """Kill the control plane; returns the command that it was started with."""
        command = Path(f"/proc/{self.gcs}/cmdline").read_bytes().decode().split("\0")[:-1]
        os.kill(self.gcs, signal.SIGKILL)
        return command

    def start_again(self, command: list[str]) -> None:
        """As whoever watches over a host's services does."""
        self.reap()
        self.again = subprocess.Popen(
            command,
            env=self.environment,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        self.gcs = self.again.pid

    def reap(self) -> None:
        """The end of a control plane that was started again."""
        if self.again is not None:
            self.again.kill()
            self.again.wait(10)


def processes_of(directory: Path) -> list[int]:
    """Processes that name this directory in their command line or environment (Ray's server for
    clients does in the latter alone), and their children: Ray's agents name it nowhere.
    """
    found, parents = set(), {}
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit() or int(entry.name) == os.getpid():
            continue
        with contextlib.suppress(OSError):
            parents[int(entry.name)] = int(
                (entry / "stat").read_text().rpartition(")")[2].split()[1]
            )
            said = (entry / "cmdline").read_bytes() + (entry / "environ").read_bytes()
            if str(directory).encode() in said:
                found.add(int(entry.name))
    return [pid for pid, parent in parents.items() if pid in found or parent in found]


@pytest.fixture(scope="module")
def plane() -> Iterator[Plane]:
    directory = Path(tempfile.mkdtemp(prefix="gcs-"))
    port = free_port()
    storage = {
        "RAY_gcs_storage": "rocksdb",
        "RAY_gcs_storage_path": str(directory / "gcs"),
        "RAY_worker_niceness": "0",
        "RAY_AUTH_MODE": "disabled",
    }
    environment = (
        {
            name: value
            for name, value in os.environ.items()
            if name not in ("RAY_ADDRESS", "RAY_TMPDIR")
        }
        | storage
        | {"PYTHONPATH": str(ROOT)}
    )
    ray = str(Path(sys.executable).with_name("ray"))
    command = [
        ray,
        "start",
        "--head",
        f"--port={port}",
        f"--temp-dir={directory / 'r'}",
        "--num-cpus=2",
    ]
    try:
        subprocess.run(
            [*command, "--include-dashboard=false"],
            env=environment,
            check=True,
            capture_output=True,
            timeout=120,
            start_new_session=True,
        )
        (gcs,) = [
            pid
            for pid in processes_of(directory)
            if b"gcs_server" in Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")[0]
        ]
        made = Plane(f"127.0.0.1:{port}", directory, environment, gcs)
        yield made
        made.reap()
    finally:
        for _ in range(3):  # the first to go may start others
            for pid in processes_of(directory):
                try:
                    os.kill(pid, signal.SIGKILL)
                except ProcessLookupError:
                    continue
            time.sleep(0.2)
        shutil.rmtree(directory, ignore_errors=True)


class Job:
    """The driver of control_plane_job.py."""

    def __init__(self, plane: Plane, what: str) -> None:
        command = [
            sys.executable,
            str(ROOT / "tests" / "e2e" / "control_plane_job.py"),
            plane.address,
            str(plane.directory / what),
            what,
        ]
        self.process = subprocess.Popen(
            command, env=plane.environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        self.pids = self._line()

    def ask(self, word: str) -> dict[str, Any]:
        assert self.process.stdin is not None
        self.process.stdin.write(f"{word}\n")
        self.process.stdin.flush()
        return self._line()

    def _line(self) -> dict[str, Any]:
        assert self.process.stdout is not None
        while True:
            line = self.process.stdout.readline()
            assert line, f"the job ended with {self.process.wait(10)}"
            if line.startswith("{"):  # Ray prints of its own
                return dict(json.loads(line))


@pytest.mark.slow
def test_sends_and_pulls_go_on_without_the_control_plane_and_everything_is_found_again(
    plane: Plane,
) -> None:
    job = Job(plane, "brokers")
    before = job.ask("mark")
    command = plane.kill()
    os.kill(job.pids["broker-b/0"], signal.SIGKILL)
    time.sleep(DOWN_S)
    during = job.ask("mark")
    assert (
        during["sent"] - before["sent"] > 5 * DOWN_S
        and during["received"] - before["received"] > 5 * DOWN_S
    )
    assert not during["errors"] and max(during["gap_ms"].values()) < PAUSE_MS_MAX, during
    plane.start_again(command)
    late = job.ask("late")
    assert late["back_s"] is not None, "a broker that was killed meanwhile comes back"
    print(
        f"control plane away for {DOWN_S:.0f} s: longest pauses {during['gap_ms']} ms; the "
        f"killed broker back after {late['back_s']} s"
    )
    look = [
        sys.executable,
        "-m",
        "rmq_ray",
        "--address",
        plane.address,
        "--cluster",
        "brokers",
        "--format",
        "json",
        "health",
    ]
    parts = json.loads(
        subprocess.run(
            look, env=plane.environment, check=True, capture_output=True, text=True, timeout=60
        ).stdout
    )
    assert {part["state"] for part in parts} == {"serving"}
    after = job.ask("mark")
    assert not after["errors"] and max(after["gap_ms"].values()) < PAUSE_MS_MAX, after
    ended = job.ask("end")
    with judging():
        assert ended == {"missing": [], "twice": 0}
    job.process.communicate(timeout=60)


def master_when(
    job: Job, check: Callable[[dict[str, Any]], bool], timeout_s: float
) -> dict[str, Any]:
    """What the controller says, once it is so."""
    found: dict[str, Any] = {}

    def so() -> bool:
        found.update(job.ask("master"))
        return check(found)

    eventually(so, timeout_s, every_s=0.2)
    return found


@pytest.mark.slow
def test_a_master_that_dies_while_the_control_plane_is_dead_is_replaced_and_follows_when_it_is_back(
    plane: Plane,
) -> None:
    """Controller and replicas call one another without it; only Ray's restart of the old master
    waits for it.
    """
    job = Job(plane, "copies")
    before = master_when(
        job, lambda found: found["serving"] and found["sync_state_set"] == [0, 1, 2], 120
    )
    assert before["master"] == 0
    command = plane.kill()
    os.kill(job.pids["broker-a/0"], signal.SIGKILL)
    after = master_when(job, lambda found: found["serving"] and found["master"] != 0, 120)
    assert after["master_epoch"] > before["master_epoch"]
    marks = [job.ask("mark")]

    def goes_on() -> bool:
        marks.append(job.ask("mark"))
        return all(marks[-1][what] > marks[0][what] + 20 for what in ("sent", "received"))

    eventually(goes_on, every_s=0.2)
    still = {
        what: max(mark["gap_ms"][what] for mark in marks) / 1000 for what in ("send", "receive")
    }
    print(
        f"control plane dead, master killed: sends stood still for {still['send']:.2f} s, "
        f"deliveries {still['receive']:.2f} s"
    )
    assert not any(mark["errors"] for mark in marks)
    # who serves: the first that was elected may have been slow to take over, and replaced as well
    settled = master_when(job, lambda found: found["serving"] and found["master"] != 0, 120)
    plane.start_again(command)
    whole = master_when(
        job, lambda found: found["serving"] and found["sync_state_set"] == [0, 1, 2], 120
    )
    assert (whole["master"], whole["master_epoch"]) == (
        settled["master"],
        settled["master_epoch"],
    ), f"nobody else is elected because the control plane is back; {after} was first"
    ended = job.ask("end")
    with judging():
        assert ended == {"missing": [], "twice": 0}
    job.process.communicate(timeout=60)
