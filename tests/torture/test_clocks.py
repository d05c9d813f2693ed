"""The clock of one process jumps, and that of nobody else."""

from __future__ import annotations

import subprocess
import sys
import time
from contextlib import closing
from pathlib import Path

from tests.torture.clocks import Clocks

ASKED = (
    "import sys, time\nfor _ in sys.stdin: print(time.time_ns(), time.monotonic_ns(), flush=True)"
)
NEAR_S = 30


def test_a_wall_clock_jumps_and_comes_back_and_monotonic_time_goes_on(tmp_path: Path) -> None:
    with closing(Clocks(tmp_path)) as clocks:
        jumping, other = (
            subprocess.Popen(
                [sys.executable, "-c", ASKED],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
            )
            for _ in range(2)
        )
        with jumping, other:
            assert ahead_s(jumping) == (0, 0)
            for seconds in (3_600, -3_600):
                with clocks.ahead(jumping.pid, seconds):
                    assert ahead_s(jumping) == (seconds, 0)
                    assert ahead_s(other) == (0, 0)
                assert ahead_s(jumping) == (0, 0)
            for process in (jumping, other):
                assert process.stdin is not None
                process.stdin.close()


def ahead_s(process: subprocess.Popen[str]) -> tuple[int, int]:
    """Of this process's clocks, wall and monotonic, in steps of half a minute."""
    assert process.stdin is not None and process.stdout is not None
    process.stdin.write("\n")
    process.stdin.flush()
    wall, monotonic = map(int, process.stdout.readline().split())
    return rounded(wall - time.time_ns()), rounded(monotonic - time.monotonic_ns())


def rounded(ahead_ns: int) -> int:
    return round(ahead_ns / 1e9 / NEAR_S) * NEAR_S
