"""The demo as a newcomer starts it, on a part of its rows: brokers, a kill, consumers and Spark,
and nothing lost.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.outcomes import judging

ROOT = Path(__file__).resolve().parents[2]
ROWS = 20_000


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    """In a process group and an environment of its own; nothing of the demo may outlive it."""
    environment = {
        name: value
        for name, value in os.environ.items()
        if name not in ("RAY_ADDRESS", "JAVA_HOME")
    }
    command = [sys.executable, "-m", "examples.flights", *arguments]
    return subprocess.run(
        command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=300, check=False
    )


def test_the_demo_loses_nothing_though_its_broker_is_killed() -> None:
    done = run("--rows", str(ROWS))
    said = done.stdout
    wrong = re.findall(r"[\d,]+ lost or wrong|[1-9]\d* differences", said)
    with judging():
        assert not wrong, f"{wrong}\n{said}"
    assert done.returncode == 0, f"{said}\n{done.stderr}"
    assert re.search(r"broker-a \(process \d+\) killed with signal 9 after 1[0-6],000 rows", said)
    assert re.search(rf"sent and acknowledged: {ROWS:,} of {ROWS:,} rows", said)
    assert re.search(rf"as a table: +{ROWS:,} rows became Parquet .*: 0 differences", said)
    assert re.search(rf"consumed by the group: {ROWS:,} rows", said) and re.search(
        rf"read by Spark: +{ROWS:,} rows", said
    )
    assert "consumers 0, Spark 0 differences" in said
    assert said.rstrip().splitlines()[-1].strip() == "0 lost"
    assert "Traceback" not in said + done.stderr


@pytest.mark.parametrize("arguments", [("--rows", "0"), ("--rows", "many"), ("--colour",)])
def test_wrong_arguments_are_refused_with_the_usage(arguments: tuple[str, ...]) -> None:
    done = run(*arguments)
    assert done.returncode == 2 and "usage: python -m examples.flights" in done.stderr
