"""Runs every test in lanes, once more alone what failed of the heavy ones, and says how it went.

    python -m tools.suite [arguments of pytest]

    light    unit, conformance, sim, golden    without Ray or JVM; three at a time, since many wait;
                                               a failure is final
    interop  beside Apache RocketMQ            two at a time
    spark    Spark                             two at a time
    ray      everything else                   one after another, with the machine for itself

What fails in a heavy lane runs once more, alone, when all lanes are done. Red twice is red. Red and
then green is flaky: it is named on a line of its own and in ``build/flaky.jsonl``. Red all the
same: a test whose checker of promises spoke (``tests.support.outcomes.Violation``), and more than
``FLAKY_MAX`` flaky ones. docs/testing.md says who mends them.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
BUILD = ROOT / "build" / "suite"
FLAKY = ROOT / "build" / "flaky.jsonl"
FLAKY_MAX = 3
AGAIN_MAX = 12
"""More failures than this are no accident: nothing runs again."""
NO_TESTS = 5  # pytest's exit code


@dataclass(frozen=True, slots=True)
class Lane:
    """``paths``: of tests; empty: all folders that no other lane has."""

    name: str
    folders: tuple[str, ...]
    workers: int = 1
    heavy: bool = True


LANES = (
    Lane("light", ("unit", "conformance", "sim", "golden"), 3, heavy=False),
    Lane("interop", ("interop",), 2),
    Lane("spark", ("spark",), 2),
    Lane("ray", ("ray", "e2e", "torture")),
)


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
        """Whether main may move here."""
        return not self.red and not self.complaints


def main(arguments: list[str]) -> int:
    """The exit code: 0 when everything is green."""
    known = {folder for lane in LANES for folder in lane.folders}
    strange = {path.parent.name for path in (ROOT / "tests").glob("*/test_*.py")} - known
    if strange:
        print(f"no lane runs tests/{', tests/'.join(sorted(strange))}: name it in tools/suite.py")
        return 1
    runs = {}
    for lane in LANES:
        where = [f"tests/{folder}" for folder in lane.folders]
        runs[lane.name] = run(lane.name, where, lane.workers, arguments)
    again = to_run_again(runs)
    second = run("again", again, 1, []) if again else None
    verdict = judge(runs, second)
    tell(runs, second, verdict)
    return 0 if verdict.green else 1


def run(name: str, tests: list[str], workers: int, arguments: list[str]) -> Run:
    """One call of pytest; its output goes where ours goes."""
    told = BUILD / f"{name}.jsonl"
    BUILD.mkdir(parents=True, exist_ok=True)
    told.unlink(missing_ok=True)
    command = [sys.executable, "-m", "pytest", "-p", "tests.support.outcomes", *tests, *arguments]
    if workers > 1:
        command += ["-n", str(workers), "--dist", "loadfile"]
    print(f"== {name}", flush=True)
    begun = time.monotonic()
    environment = os.environ | {"RMQ_RAY_OUTCOMES": str(told)}
    code = subprocess.run(command, cwd=ROOT, env=environment, check=False).returncode
    lines = told.read_text("utf-8").splitlines() if told.exists() else []
    return read(lines, code, time.monotonic() - begun)


def read(lines: list[str], code: int, seconds: float) -> Run:
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
    """What failed in heavy lanes, unless that is too much for an accident."""
    heavy = [runs[lane.name] for lane in LANES if lane.heavy and lane.name in runs]
    tests = [test for lane in heavy for test in lane.failed if test not in lane.judged]
    return tests if len(tests) <= AGAIN_MAX else []


def judge(runs: dict[str, Run], second: Run | None) -> Verdict:
    """``second``: of ``to_run_again``."""
    again = set(to_run_again(runs)) if second is not None else set()
    failed = {test: why for lane in runs.values() for test, why in lane.failed.items()}
    twice = second.failed if second is not None else {}
    passed = again - twice.keys() if second is not None and not second.broken else set()
    flaky = {test: why for test, why in failed.items() if test in passed}
    red = {test: why for test, why in failed.items() if test not in passed}
    complaints = [f"pytest failed in lane {name}" for name, lane in runs.items() if lane.broken]
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
    lanes = dict(runs) if second is None else {**runs, "again": second}
    print("seconds:", ", ".join(f"{name} {lane.seconds:.0f}" for name, lane in lanes.items()))
    outcomes: Counter[str] = sum((lane.outcomes for lane in runs.values()), Counter())
    passed = outcomes["passed"] + len(verdict.flaky)
    print(f"flaky: {len(verdict.flaky)}")
    print(f"{passed} passed, {len(verdict.red)} failed, {outcomes['skipped']} skipped")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
