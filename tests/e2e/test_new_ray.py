"""Ray itself is upgraded: a cluster of the oldest Ray that is promised is stopped, one of this Ray
starts on the same disks, and a client without Ray, which is an account, waits and goes on.
"""

from __future__ import annotations

import subprocess
import sys
from contextlib import closing
from itertools import pairwise
from pathlib import Path

import pytest

import rmq_ray as rmq
from tests.support.outcomes import judging
from tests.support.pages import ROOT
from tests.support.programs import Program, free_port, machine_alone
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


def test_a_cluster_moves_from_the_oldest_ray_to_this_one_while_a_client_waits() -> None:
    version, _, ray = window.WINDOW[0].partition("/")
    python = window.environment(version, ray)
    if python is None:
        pytest.skip(f"Python {version} is not here")
    with machine_alone("new-ray") as (new, directory):
        old = Program(environment=new.environment, python=python)
        sent, found = moved(old, new, directory)
    with judging():
        assert found >= {int(line.split()[0]) for line in sent}
    times = [float(line.split()[1]) for line in sent]
    pause = max(after - before for before, after in pairwise(times))
    print(f"the longest pause of the client: {pause:.1f} s")


def moved(old: Program, new: Program, directory: Path) -> tuple[list[str], set[int]]:
    """What the client says that it sent, and the bodies that are stored in the end."""
    server, broker = str(free_port()), str(free_port())
    up = ["up", "--ray-port", str(free_port()), "--store", str(directory / "stores")]
    up += ["--foreign", "acl", "--name-server-port", server, "--broker-port", broker]
    assert old.json(*up)["state"] == "started"
    old.ok("topic", "create", "orders", "--queues", "2")
    may_consume = ("--default-group", "SUB")
    keys = old.json("acl", "user", "add", "web-shop", "--default-topic", "PUB|SUB", *may_consume)
    where = (f"127.0.0.1:{server}", "web-shop", keys["secret_key"])
    out, errors = directory / "sent", directory / "errors"
    with out.open("w") as stdout, errors.open("w") as stderr:
        client = subprocess.Popen(
            [sys.executable, "-c", CLIENT, *where],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=stdout,
            stderr=stderr,
        )

    def sent() -> list[str]:
        return out.read_text().splitlines()

    try:
        eventually(lambda: len(sent()) >= 50)
        assert old.json("down")["ray"] == "stopped"
        before = len(sent())
        assert new.json(*up)["state"] == "started"
        eventually(lambda: len(sent()) >= before + 50)
        client.communicate(timeout=60)
        assert client.returncode == 0, errors.read_text()
        return sent(), found_by(*where)
    finally:
        client.kill()
        client.wait(30)
