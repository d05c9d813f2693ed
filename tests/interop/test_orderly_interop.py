"""Apache RocketMQ's unmodified Java client consumes in order from our broker as from its own: same
order, retries, dead letter, progress.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.support.outcomes import judging
from tools import interop

ROOT = Path(__file__).resolve().parents[2]
LIVE_S = 200
CHECK_TIMEOUT_S = 150

Lines = list[dict[str, Any]]


@pytest.fixture(scope="module")
def told(tmp_path_factory: pytest.TempPathFactory) -> tuple[Lines, Lines]:
    """(ours, theirs): what the client told of each side; both run beside one another."""
    directory = tmp_path_factory.mktemp("orderly")
    with (
        ours(directory / "ours") as our_name_server,
        interop.started(
            "PeerServer", directory / "theirs", "ASYNC_FLUSH", flags=interop.SMALL_STORE
        ) as server,
    ):
        assert server.stdout is not None
        running = [_client(our_name_server, "dead"), _client(server.stdout.readline().strip())]
        mine, other = [_told(process) for process in running]
    return mine, other


@contextmanager
def ours(directory: Path) -> Iterator[str]:
    """Our name server and broker in a process of their own, open to foreign clients; yields the
    name server's address.
    """
    command = [
        sys.executable,
        "-m",
        "tests.support.brokers.open_cluster",
        str(directory),
        "async",
        str(LIVE_S),
    ]
    process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        yield process.stdout.readline().strip()
    finally:
        process.kill()
        process.communicate(timeout=30)


def _client(name_server: str, *more: str) -> subprocess.Popen[str]:
    assert name_server, "the side did not start"
    return subprocess.Popen(
        interop.command("OrderlyCheck", name_server, *more),
        cwd=interop.TARGET,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def _told(process: subprocess.Popen[str]) -> Lines:
    try:
        out, complaints = process.communicate(timeout=CHECK_TIMEOUT_S)
    finally:
        process.kill()
    assert process.returncode == 0, f"{complaints[-3000:]}\n{out[-1000:]}"
    return [json.loads(line) for line in out.splitlines()]


def test_the_java_client_consumes_in_order_alike_from_both_sides(told: tuple[Lines, Lines]) -> None:
    mine, other = told
    assert [line for line in mine if line["check"] != "dead"] == other
    assert len(other) == 10


def test_each_queue_comes_in_order_with_its_failures_and_the_dead_letter_holds_nothing_up(
    told: tuple[Lines, Lines],
) -> None:
    got = {
        (line["who"], line["queue"]): line["got"] for line in told[0] if line["check"] == "queue"
    }
    plain = "0/0 1/0 2/0 2/1 3/0 4/0 5/0 6/0 7/0"
    assert all(line["all"] for line in told[0] if line["check"] == "all")
    with judging():
        assert got["first", 0] == got["first", 2] == plain
        assert got["first", 1] == plain.replace("5/0", "5/0 5/1")
        assert {got["second", queue] for queue in range(3)} == {
            "8/0 9/0 10/0 11/0 12/0 13/0 14/0 15/0"
        }, "the next consumer goes on where the first one stopped"
    assert {"check": "committed", "offsets": "{0=8, 1=8, 2=8}"} in told[0]
    (dead,) = [line for line in told[0] if line["check"] == "dead"]
    assert dead["came"] == 1 and dead["bodies"].startswith("5/")
    assert told[0][-1] == {"check": "progress", "diff": 0}
