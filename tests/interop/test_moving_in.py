"""A store of Apache RocketMQ is taken over with its topics, groups, offsets, index and delayed
messages, by the commands of the page, and given back; and a cluster is moved broker by broker.

The application is RocketMQ's Java client (``Moving``), which never changes.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import ray

import rmq_ray as rmq
from tests.interop.test_client_interop import ROOT, ours
from tests.support.outcomes import judging
from tests.support.pages import block
from tools import interop

PAGE = "docs/coming-from-rocketmq.md"
TIMEOUT_S = 120
FIRST = {f"first-{number}" for number in range(20, 40)}
"""What the group had not consumed when the store was taken over."""


@contextmanager
def theirs(directory: Path, *more: str) -> Iterator[str]:
    """Apache's name server and broker, ended as their scripts end them; yields the address."""
    with interop.started("PeerServer", directory, "ASYNC_FLUSH", *more) as server:
        assert server.stdout is not None
        yield server.stdout.readline().strip()
        server.send_signal(signal.SIGTERM)
        server.wait(60)


def moving(*words: str, patience_ms: int = 3_000) -> list[dict[str, Any]]:
    """What the application tells."""
    flags = (*interop.SHORT_LIVED, f"-Dmoving.patience={patience_ms}")
    done = subprocess.run(
        interop.command("Moving", *words, flags=flags),
        cwd=interop.TARGET,
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
    )
    assert done.returncode == 0, f"{done.stderr[-3000:]}\n{done.stdout[-1000:]}"
    return [json.loads(line) for line in done.stdout.splitlines()]


def one(lines: list[dict[str, Any]], kind: str) -> dict[str, Any]:
    return next(line for line in lines if line["kind"] == kind)


def bodies(lines: list[dict[str, Any]]) -> set[str]:
    return set(one(lines, "consumed")["bodies"].split())


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    """Gone afterwards: files of the default sizes are large."""
    yield tmp_path
    shutil.rmtree(tmp_path, ignore_errors=True)


def shell(folder: Path, heading: str, address: str) -> str:
    """Runs the commands under a heading of the page in ``folder``, against the Ray at
    ``address``, with free ports; returns what they printed.
    """
    text = block(PAGE, heading, language="sh")
    text = text.replace("/opt/rocketmq", str(folder / "theirs"))
    text = text.replace("--name-server-port 9876 --broker-port 10911", "")
    text = text.replace("rmq-ray ", f"{sys.executable} -m rmq_ray --address {address} ")
    done = subprocess.run(
        ["bash", "-e", "-c", text],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    assert done.returncode == 0, f"{done.stdout}{done.stderr}"
    return done.stdout


def test_a_store_is_taken_over_by_the_commands_of_the_page_and_given_back(folder: Path) -> None:
    with theirs(folder / "theirs") as name_server:
        moving("fill", name_server, "broker-a")
    ray.init(address="local", num_cpus=4, include_dashboard=False, log_to_driver=False)
    try:
        address = ray.get_runtime_context().gcs_address
        printed = shell(folder, "In one step", address)
        lag = re.findall(r"^orders +broker-a +\d +1[01] +5 ", printed, re.MULTILINE)
        assert len(lag) == 4, printed
        (server,) = rmq.connect("DefaultCluster").addresses["name_servers"]
        told = moving("go", server, "broker-a", "ours", patience_ms=40_000)
        assert one(told, "kept") == {"kind": "kept", "queues": 4, "retries": 5, "found": 1}
        with judging():
            assert bodies(told) == FIRST | {"later"}
        shell(folder, "Back again", address)
    finally:
        ray.shutdown()
    with theirs(folder / "theirs") as name_server:
        told = moving("go", name_server, "broker-a", "theirs")
    assert one(told, "kept") == {"kind": "kept", "queues": 4, "retries": 5, "found": 1}
    assert bodies(told) == {f"ours-{number}" for number in range(4)}


def test_clients_move_from_broker_to_broker_while_both_serve(folder: Path) -> None:
    with (
        ours(folder / "ours") as our_server,
        theirs(folder / "theirs", "apache-a", our_server) as their_server,
    ):
        moving("fill", their_server, "apache-a")
        told = moving("roll", our_server, "apache-a", "broker-a")
    sent = {line["label"]: line["brokers"] for line in told if line["kind"] == "sent"}
    assert sent == {"both": "apache-a,broker-a", "second": "broker-a"}
    new = {f"{label}-{number}" for label in sent for number in range(8)}
    assert bodies(told) - {"later"} == FIRST | new
    assert one(told, "left")["messages"] == 0 and one(told, "left")["wiped"] > 0
