"""Ray itself is upgraded: a cluster of the oldest Ray that is promised is stopped, one of this Ray
starts on the same disks, and a client without Ray, which is an account, waits and goes on.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

import rmq_ray as rmq
from tests.support.outcomes import judging
from tests.support.pages import ROOT
from tests.support.waiting import eventually
from tools import window

CLIENT = """
import sys, threading, time
sys.modules["ray"] = None  # to import it is an error
import rmq_ray as rmq

server, key, secret = sys.argv[1:]
where = {"name_servers": server, "access_key": key, "secret_key": secret}
ended = threading.Event()
threading.Thread(target=lambda: (sys.stdin.read(), ended.set()), daemon=True).start()
number = 0
with rmq.Producer("web", **where) as producer:
    while not ended.wait(0.02):
        try:
            producer.send("orders", b"%d" % number, timeout=10)
        except rmq.RmqError as error:
            print(type(error).__name__, file=sys.stderr, flush=True)
            continue
        print(number, time.time(), flush=True)
        number += 1
"""


class Commands:
    """`rmq-ray` of one Python and its Ray, on a machine of its own as far as Ray can tell."""

    def __init__(self, python: Path | str, directory: Path) -> None:
        self._python = str(python)
        self._environment = {
            name: value for name, value in os.environ.items() if not name.startswith("RAY_")
        } | {"RAY_TMPDIR": str(directory), "TMPDIR": str(directory), "PYTHONPATH": str(ROOT)}

    def __call__(self, *words: str) -> Any:
        done = subprocess.run(
            [self._python, "-m", "rmq_ray", "--format", "json", *words],
            env=self._environment,
            capture_output=True,
            text=True,
            timeout=240,
            check=False,
        )
        assert done.returncode == 0, f"{words}: {done.stdout}{done.stderr}"
        return json.loads(done.stdout) if done.stdout.strip() else None


def free_ports(count: int) -> list[str]:
    """Above those of Ray's workers, below those that the system gives away."""
    found: list[str] = []
    for port in range(20_001, 32_000, 97):
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)):
                found.append(str(port))
        if len(found) == count:
            return found
    raise AssertionError("no free ports")


@pytest.fixture
def directory(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Short: Ray's sockets lie below it."""
    made = Path(os.environ.get("RAY_TMPDIR", "/tmp")) / f"new-ray-{os.getpid()}"
    made.mkdir()
    yield made
    subprocess.run(["rm", "-rf", str(made)], check=True, timeout=60)


def found_by(server: str, key: str, secret: str) -> set[int]:
    """The bodies that an account finds in the topic."""
    mq = rmq.connect(name_servers=server, access_key=key, secret_key=secret)
    found: set[int] = set()
    with closing(mq.admin), mq.pull_consumer("check", start_from="first") as reader:
        reader.subscribe("orders")
        eventually(reader.assignment)
        while bodies := [int(message.body) for message in reader.poll(timeout=5)]:
            found.update(bodies)
    return found


def test_a_cluster_moves_from_the_oldest_ray_to_this_one_while_a_client_waits(
    directory: Path,
) -> None:
    version, _, ray = window.WINDOW[0].partition("/")
    python = window.environment(version, ray)
    if python is None:
        pytest.skip(f"Python {version} is not here")
    old, new = Commands(python, directory), Commands(sys.executable, directory)
    ray_port, server, broker = free_ports(3)
    up = ("up", "--ray-port", ray_port, "--store", str(directory / "stores"), "--foreign", "acl")
    up += ("--name-server-port", server, "--broker-port", broker)
    client = None
    try:
        assert old(*up)["state"] == "started"
        old("topic", "create", "orders", "--queues", "2")
        may_consume = ("--default-group", "SUB")
        keys = old("acl", "user", "add", "web-shop", "--default-topic", "PUB|SUB", *may_consume)
        where = (f"127.0.0.1:{server}", "web-shop", keys["secret_key"])
        with (directory / "sent").open("w") as out, (directory / "errors").open("w") as errors:
            client = subprocess.Popen(
                [sys.executable, "-c", CLIENT, *where],
                cwd=ROOT,
                stdin=subprocess.PIPE,
                stdout=out,
                stderr=errors,
            )

        def sent() -> list[int]:
            return [int(line.split()[0]) for line in (directory / "sent").read_text().splitlines()]

        eventually(lambda: len(sent()) >= 50)
        assert old("down")["ray"] == "stopped"
        before = len(sent())
        assert new(*up)["state"] == "started"
        eventually(lambda: len(sent()) >= before + 50)
        assert client.stdin is not None
        client.stdin.close()
        assert client.wait(60) == 0, (directory / "errors").read_text()
        with judging():
            assert found_by(*where) >= set(sent())
        lines = (directory / "sent").read_text().splitlines()
        times = [float(line.split()[1]) for line in lines]
        pause = max(after - before for before, after in pairwise(times))
        print(f"the longest pause of the client: {pause:.1f} s")
    finally:
        if client is not None:
            client.kill()
            client.wait(30)
        new("down")
