"""Runs every test in lanes, once more alone what failed of the heavy ones, and says how it went.

    python -m tools.suite [arguments of pytest]

    phase   lane      what                              how
    light   live      conformance                       four at a time | without Ray or JVM; a
            unit      sim, golden, unit                 two at a time  | failure ends the run
    heavy   ray       Ray                               two at a time
            torture   clusters under faults
            interop   beside Apache RocketMQ            two at a time
            spark     Spark
            whole     e2e: whole clusters
    calm    jobs      ray, marked calm: needs a core    beside each other
            hosts     e2e, marked calm                  to itself
    alone   alone     marked alone: a clock judges      nothing else runs on the machine
    again   again     what failed in a heavy lane       the same

A phase follows the one before it. The lanes of a phase run at the same time in tracks (``PHASES``),
those of a track one after the other. What a lane prints is in ``build/suite`` and, when the lane is
done, on the output.

Red twice is red. Red and then green is flaky: it is named on a line of its own and in
``build/flaky.jsonl``. Red all the same: a test whose checker of promises spoke
(``tests.support.outcomes.Violation``), and more than ``FLAKY_MAX`` flaky ones. docs/testing.md says
who mends them.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass, field
from pathlib import Path

from tools import leftovers, new_tests

ROOT = Path(__file__).resolve().parents[1]
BUILD = ROOT / "build" / "suite"
FLAKY = ROOT / "build" / "flaky.jsonl"
FLAKY_MAX = 3
AGAIN_MAX = 12
"""More failures than this are no accident: nothing runs again."""
NO_TESTS = 5  # pytest's exit code
PREPARING = (sys.executable, "-m", "tools.transfer_queue")
"""Makes an environment for tests of the lane jobs, in minutes where it is downloaded: it goes on
beside the lanes before that one, and who needs the environment waits for its end.
"""
TOLD_EVERY_S = 60


@dataclass(frozen=True, slots=True)
class Lane:
    """``workers``: processes that run its tests; ``marked``: which of its folders are its own."""

    name: str
    folders: tuple[str, ...]
    workers: int = 1
    marked: str = "not calm and not alone"


Track = tuple[Lane, ...]
LIGHT: tuple[Track, ...] = (
    (Lane("live", ("conformance",), 4),),
    (Lane("unit", ("sim", "golden", "unit"), 2),),
)
HEAVY: tuple[Track, ...] = (
    (Lane("ray", ("ray",), 2), Lane("torture", ("torture",))),
    (Lane("interop", ("interop",), 2), Lane("spark", ("spark",)), Lane("whole", ("e2e",))),
)
CALM: tuple[Track, ...] = (
    (Lane("jobs", ("ray",), marked="calm"),),
    (Lane("hosts", ("e2e",), marked="calm"),),
)
ALONE: tuple[Track, ...] = ((Lane("alone", ("conformance", "ray", "interop"), marked="alone"),),)
PHASES = (LIGHT, HEAVY, CALM, ALONE)
LANES = [lane for phase in PHASES for track in phase for lane in track]
LIGHT_FOLDERS = {folder for track in LIGHT for lane in track for folder in lane.folders}
AGAIN = Lane("again", ())


@dataclass(slots=True)
class Run:
    """How the tests of one call of pytest went; ``broken``: pytest itself failed."""

    seconds: float
    broken: bool
    outcomes: Counter[str] = field(default_factory=Counter)
    failed: dict[str, str] = field(default_factory=dict)
    judged: set[str] = field(default_factory=set)


@dataclass(slots=True)
class Verdict:
    """Of all lanes. ``red``: tests that failed for good; ``flaky``: red, then green."""

    red: dict[str, str]
    flaky: dict[str, str]
    complaints: list[str]

    @property
    def green(self) -> bool:
        """Whether everything that ran may be trusted."""
        return not self.red and not self.complaints


def main(arguments: Sequence[str]) -> int:
    """The exit code: 0 when everything is green."""
    known = {folder for lane in LANES for folder in lane.folders}
    strange = {path.parent.name for path in (ROOT / "tests").glob("*/test_*.py")} - known
    if strange:
        print(f"no lane runs tests/{', tests/'.join(sorted(strange))}: name it in tools/suite.py")
        return 1
    with leftovers.own_directory() as here, nullcontext() if arguments else preparing():
        runs = run_phase(LIGHT, arguments)
        second = None
        if not any(found.failed or found.broken for found in runs.values()):
            for phase in PHASES[1:]:
                runs |= run_phase(phase, arguments)
            again = to_run_again(runs)
            second = run(AGAIN, again) if again else None
        verdict = judge(runs, second)
        if verdict.green:
            verdict.complaints += new_tests.under_load(os.environ.get("RMQ_RAY_NEW_SINCE", ""))
        tell(runs, second, verdict)
        here.green = verdict.green
    return 0 if verdict.green else 1


@contextmanager
def preparing(command: Sequence[str] = PREPARING) -> Iterator[None]:
    """A program goes on beside the block with what nobody else computes; it ends with the block at
    the latest. Where it fails, the tests that need what it makes say why.
    """
    BUILD.mkdir(parents=True, exist_ok=True)
    with (BUILD / "preparing.log").open("wb") as output:
        program = subprocess.Popen(
            ["nice", "-n", "19", *command],
            cwd=ROOT,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    try:
        yield
    finally:
        with suppress(ProcessLookupError):
            os.killpg(program.pid, signal.SIGKILL)
        program.wait()


def run_phase(phase: Sequence[Track], arguments: Sequence[str]) -> dict[str, Run]:
    """All its tracks at the same time; says now and then how far they are. None begins a lane when
    the run is ended from outside.
    """
    ended = threading.Event()

    def run_track(track: Track) -> dict[str, Run]:
        return {lane.name: run_lane(lane, arguments) for lane in track if not ended.is_set()}

    with ThreadPoolExecutor(len(phase)) as threads:
        tracks = [threads.submit(run_track, track) for track in phase]
        try:
            while wait(tracks, TOLD_EVERY_S).not_done:
                done = {lane.name: len(outcomes(lane)) for track in phase for lane in track}
                told = ", ".join(f"{name} {count}" for name, count in done.items())
                print(f"{time.strftime('%T')} tests done: {told}", flush=True)
        finally:
            ended.set()
    return {name: found for track in tracks for name, found in track.result().items()}


def run_lane(lane: Lane, arguments: Sequence[str]) -> Run:
    """Its part of its folders."""
    folders = [f"tests/{folder}" for folder in lane.folders]
    return run(lane, [*folders, "-m", lane.marked, *arguments])


def run(lane: Lane, arguments: Sequence[str]) -> Run:
    """One call of pytest; what it printed is printed when it has ended."""
    BUILD.mkdir(parents=True, exist_ok=True)
    told, printed = BUILD / f"{lane.name}.jsonl", BUILD / f"{lane.name}.log"
    told.unlink(missing_ok=True)
    command = [sys.executable, "-m", "pytest", "-p", "tests.support.outcomes"]
    command += [*leftovers.basetemp(lane.name), *arguments]
    if lane.workers > 1:
        # file by file in the order of the folders: what waits begins first, so that no worker is
        # left alone with it
        command += ["-n", str(lane.workers), "--dist", "loadfile", "--no-loadscope-reorder"]
    begun = time.monotonic()
    with printed.open("wb") as output:
        code = subprocess.run(
            command,
            cwd=ROOT,
            env=os.environ | {"RMQ_RAY_OUTCOMES": str(told)},
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            check=False,
        ).returncode
    found = read(outcomes(lane), code, time.monotonic() - begun)
    text = printed.read_text("utf-8", "replace")
    print(f"== {lane.name}, {found.seconds:.0f} s\n{text}", flush=True)
    return found


def outcomes(lane: Lane) -> list[str]:
    """What ``tests.support.outcomes`` has written of a lane so far."""
    told = BUILD / f"{lane.name}.jsonl"
    return told.read_text("utf-8").splitlines() if told.exists() else []


def read(lines: Sequence[str], code: int, seconds: float) -> Run:
    """``code``: pytest's exit code."""
    found = Run(seconds, broken=False)
    for line in lines:
        told = json.loads(line)
        test = told["test"]
        if told["outcome"] != "failed":
            found.outcomes[told["outcome"]] += 1
        elif test not in found.failed:
            found.outcomes["failed"] += 1
            found.failed[test] = told["why"]
        if told["judged"]:
            found.judged.add(test)
    found.broken = code not in (0, NO_TESTS) and not (code == 1 and found.failed)
    return found


def to_run_again(runs: dict[str, Run]) -> list[str]:
    """What failed of the heavy tests, unless that is too much for an accident."""
    tests = [
        test
        for found in runs.values()
        for test in found.failed
        if test not in found.judged and test.split("/")[1] not in LIGHT_FOLDERS
    ]
    return tests if len(tests) <= AGAIN_MAX else []


def judge(runs: dict[str, Run], second: Run | None) -> Verdict:
    """``second``: of ``to_run_again``."""
    failed = {test: why for found in runs.values() for test, why in found.failed.items()}
    passed: set[str] = set()
    if second is not None and not second.broken:
        passed = set(to_run_again(runs)) - second.failed.keys()
    flaky = {test: why for test, why in failed.items() if test in passed}
    red = {test: why for test, why in failed.items() if test not in passed}
    complaints = [f"pytest failed in lane {name}" for name, found in runs.items() if found.broken]
    if second is not None and second.broken:
        complaints.append("pytest failed in the second pass")
    if len(flaky) > FLAKY_MAX:
        complaints.append(f"{len(flaky)} tests are flaky, more than {FLAKY_MAX}")
    return Verdict(red, flaky, complaints)


def tell(runs: dict[str, Run], second: Run | None, verdict: Verdict) -> None:
    """The closing lines, and the file of flaky tests."""
    for test, why in verdict.red.items():
        print(f"FAILED {test} - {why}")
    for test, why in verdict.flaky.items():
        print(f"FLAKY {test} - {why}")
    if verdict.flaky:
        with FLAKY.open("a", encoding="utf-8") as file:
            for test, why in verdict.flaky.items():
                file.write(json.dumps({"test": test, "why": why}) + "\n")
    for complaint in verdict.complaints:
        print(f"RED {complaint}")
    lanes = dict(runs) if second is None else {**runs, AGAIN.name: second}
    print("seconds:", ", ".join(f"{name} {found.seconds:.0f}" for name, found in lanes.items()))
    counted: Counter[str] = sum((found.outcomes for found in runs.values()), Counter())
    passed = counted["passed"] + len(verdict.flaky)
    print(f"flaky: {len(verdict.flaky)}")
    print(f"{passed} passed, {len(verdict.red)} failed, {counted['skipped']} skipped")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
