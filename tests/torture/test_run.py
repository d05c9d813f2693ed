"""A short run of every promise under fire; ``make torture`` runs longer ones."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.outcomes import Violation
from tests.torture.disk import ROOT_DIRECTORY
from tests.torture.run import why_not

SECONDS = 20
RUN_S = 600


@pytest.mark.skipif(why_not() is not None, reason=f"not here: {why_not()}")
@pytest.mark.skipif(os.getuid() != 0, reason="a mount namespace of its own needs root")
@pytest.mark.timeout(RUN_S + 20)
@pytest.mark.parametrize("mode", ["both"])
def test_kills_hangs_and_losses_of_power_break_no_promise(mode: str, tmp_path: Path) -> None:
    arguments = ["--seconds", str(SECONDS), "--mode", mode, "--directory", str(tmp_path)]
    run = subprocess.run(
        [sys.executable, "-m", "tests.torture", *arguments],
        cwd=ROOT_DIRECTORY,
        capture_output=True,
        text=True,
        timeout=RUN_S,
    )
    told = run.stdout.strip().rpartition("\n")[2]
    if not told.endswith(" 0 violations"):
        raise Violation(run.stdout[-6_000:] + run.stderr[-3_000:])
    acknowledged, faults = (int(word.replace(",", "")) for word in told.split()[0:3:2])
    assert acknowledged > 1_000 and faults > 2
