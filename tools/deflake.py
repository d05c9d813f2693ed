"""Runs a test many times, half of them beside busy loops, and says how often it was red.

    make deflake T=tests/ray/test_cluster.py::test_it N=20
    python -m tools.deflake tests/ray/test_cluster.py::test_it 20

What ``tools.new_tests`` does with new tests, too: this module is the one that repeats.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path

from tools import leftovers

ROOT = Path(__file__).resolve().parents[1]
PYTEST = (sys.executable, "-m", "pytest", "-q")
TIMES = 20
TIMES_MAX = 1_000
TURN_S = 1_800.0
"""A turn that takes longer is red."""
BUSY_LOOPS = 2
BUSY = "import os\nparent = os.getppid()\nwhile os.getppid() == parent: sum(range(1000))"
"""Ends when whoever started it is gone."""
NOTHING_RAN = (4, 5)  # pytest's exit codes: no such test, none selected
LINES = 3
NO_END = -1


@dataclass(frozen=True, slots=True)
class Turn:
    """One run of the tests. ``code``: pytest's exit code; ``said``: what it printed."""

    number: int
    is_loaded: bool
    seconds: float
    code: int
    said: str

    @property
    def is_green(self) -> bool:
        """Whether nothing failed."""
        return self.code == 0

    @property
    def failures(self) -> list[str]:
        """A line of each test that failed; where pytest named none, the last ones it printed."""
        named = re.findall(r"^(?:FAILED|ERROR) .*$", self.said, re.MULTILINE)
        return named or self.said.strip().splitlines()[-LINES:]

    def __str__(self) -> str:
        """A line without the number of all turns."""
        closing = (self.said.strip().splitlines() or ["pytest said nothing"])[-1]
        colour = "green" if self.is_green else "red"
        beside = ", beside busy loops" if self.is_loaded else ""
        return f"{self.number}: {colour}, {self.seconds:.1f} s{beside}: {closing}"


def repeat(tests: Sequence[str], times: int, command: Sequence[str] = PYTEST) -> Iterator[Turn]:
    """Runs the tests so many times, every second time beside busy loops; ends after the first turn
    in which pytest found nothing to run.
    """
    for number in range(1, times + 1):
        is_loaded = number % 2 == 0
        begun = time.monotonic()
        with busy_loops() if is_loaded else nullcontext():
            code, said = _run([*command, *tests])
        yield Turn(number, is_loaded, time.monotonic() - begun, code, said)
        if code in NOTHING_RAN:
            return


@contextmanager
def busy_loops(count: int = BUSY_LOOPS) -> Iterator[list[int]]:
    """Processes that leave no core idle, as long as the block lasts; yields their numbers."""
    loops: list[subprocess.Popen[bytes]] = []
    try:
        for _ in range(count):
            loops.append(subprocess.Popen([sys.executable, "-c", BUSY]))
        yield [loop.pid for loop in loops]
    finally:
        for loop in loops:
            loop.kill()
            loop.wait(10)


def _run(command: Sequence[str], timeout_s: float = TURN_S) -> tuple[int, str]:
    """The exit code and what was printed."""
    try:
        done = subprocess.run(
            command,
            cwd=ROOT,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            timeout=timeout_s,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return NO_END, f"no end within {timeout_s:.0f} s"
    return done.returncode, done.stdout


def summary(turns: Sequence[Turn]) -> list[str]:
    """The closing lines: how many were red, and what failed in each of them."""
    red = [turn for turn in turns if not turn.is_green]
    loaded = sum(turn.is_loaded for turn in red)
    lines = [f"turn {turn.number}: {line}" for turn in red for line in turn.failures]
    return [
        *lines,
        f"{len(turns)} turns: {len(turns) - len(red)} green, {len(red)} red, {loaded} of these "
        f"beside busy loops",
    ]


def main(arguments: Sequence[str]) -> int:
    """Command line; exit code 1 when a turn was red."""
    parser = argparse.ArgumentParser(description="run a test many times")
    parser.add_argument("test", help="a node id of pytest, e.g. tests/unit/test_docs.py::test_x")
    parser.add_argument("times", nargs="?", type=int, default=TIMES)
    asked = parser.parse_args(arguments)
    if not 1 <= asked.times <= TIMES_MAX or not asked.test:
        parser.error(f"name a test, and how often it runs: 1 to {TIMES_MAX} times")
    turns = []
    with leftovers.own_directory(gib=1, kept="kept-deflake") as here:
        for turn in repeat([asked.test], asked.times):
            print(turn, flush=True)
            turns.append(turn)
        here.green = all(turn.is_green for turn in turns)
    print("\n".join(summary(turns)))
    return 0 if here.green else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
