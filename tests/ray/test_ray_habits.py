"""What people who run Ray are used to: jobs, Ray Client, drivers in namespaces of their own, the
list of actors. One head with the dashboard serves all of it; every driver is a process of its own.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.request import Request, urlopen

import pytest

from tests.support.outcomes import judging
from tests.support.pages import ROOT
from tests.support.programs import Program, free_port, machine_alone
from tests.support.waiting import eventually

pytestmark = pytest.mark.calm  # Ray gives a client half a minute to connect
DRIVER_S = 150
ENVIRONMENT = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": "a" * 32}
TOPOLOGY = """\
[defaults]
auto_create_topics = true
[defaults.store]
segment_bytes = 1048576
[[brokers]]
name = "broker-a"
store = { path = "stores/broker-a" }
"""
JOB = """
import json, sys
import ray, rmq_ray as rmq

ray.init()
told = {"module": rmq.__file__, "python": sys.executable}
with rmq.PullConsumer("jobs", start_from="first") as consumer, rmq.Producer() as producer:
    told["sent"] = producer.send("orders", b"of the job").status.name
    consumer.assign(consumer.fetch_message_queues("orders"))
    read = []
    while len(read) < 2:
        read += [message.body.decode() for message in consumer.poll(10, timeout=1.0)]
told["read"] = sorted(read)
try:
    rmq.start("lost", store_path="stores")
except rmq.ConfigError as error:
    told["refused"] = str(error)
settings = {"store_settings": {"segment_bytes": 1 << 20}}
second = rmq.start("second", store_path=sys.argv[1], **settings)
with second.producer() as producer:
    producer.send("orders", b"of the job")
told["pid"] = second.status()["broker-a/0"]["pid"]
print("TOLD", json.dumps(told))
"""
CLIENT = """
import json, os, sys
import ray

ray.init(sys.argv[1], logging_level="ERROR")
import rmq_ray as rmq

told = {}
mq = rmq.connect("default")
told["state"] = mq.status()["controller"]
with mq.producer() as producer:
    told["sent"] = producer.send("by-client", b"from here").status.name
actor = rmq.ProducerActor.options(num_cpus=0).remote("actors")
told["actor"] = ray.get(actor.send.remote("by-client", b"from there")).status.name
mq.admin.create_topic("passed-on", queues=1)


@rmq.consumer("by-client", group="workers", start_from="first")
def pass_on(message):
    ray.get(actor.send.remote("passed-on", message.body))


workers = pass_on.deploy(num_cpus=0)
with mq.pull_consumer("client", start_from="first") as consumer:
    consumer.assign(consumer.fetch_message_queues("passed-on"))
    read = set()
    while len(read) < 2:
        read |= {message.body.decode() for message in consumer.poll(10, timeout=1.0)}
told["read"] = sorted(read)
told["drained"] = workers.stop()


def said(work):
    try:
        return repr(work())
    except rmq.RmqError as error:
        return f"{type(error).__name__}: {error}"


told["nowhere"] = said(lambda: rmq.connect("nowhere"))
from rmq_ray import data

told["data"] = said(lambda: data.read_topic("by-client"))
told["start"] = said(lambda: rmq.start("mine", store_path="stores"))
reading, writing = os.pipe()
if os.fork() == 0:
    os.write(writing, said(lambda: rmq.Producer().send("by-client", b"forked").status).encode())
    os._exit(0)
told["forked"] = os.read(reading, 65_536).decode()
ray.shutdown()
told["left"] = said(mq.status)
print("TOLD", json.dumps(told))
"""
A_TEAM = """
import json, sys
import ray, rmq_ray as rmq
from ray.util.state import list_actors

ray.init(sys.argv[1], namespace="a-team", log_to_driver=False, logging_level="ERROR")
told = {"mine": ray.util.list_named_actors(), "bodies": {}}
for name in ("default", "second"):
    mq = rmq.connect(name)
    with mq.producer() as producer:
        producer.send("teams", name.encode())
    bodies = mq.admin.to_arrow("teams")["body"].to_pylist()
    told["bodies"][name] = [body.decode() for body in bodies]
told["actors"] = [
    [actor.name, actor.class_name, actor.state, actor.ray_namespace]
    for actor in list_actors(address=sys.argv[1], filters=[("state", "=", "ALIVE")])
]
print("TOLD", json.dumps(told))
"""


@dataclass(frozen=True)
class Head:
    """``up``: what the command said that started it."""

    cli: Program
    directory: Path
    up: dict[str, Any]

    def start(self, *command: str) -> subprocess.Popen[str]:
        """A driver beside the head, or who submits one."""
        return subprocess.Popen(
            [sys.executable, *command],
            env=self.cli.environment,
            cwd=self.directory,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )


def told(driver: subprocess.Popen[str]) -> dict[str, Any]:
    """What it prints, at its end."""
    try:
        out, err = driver.communicate(timeout=DRIVER_S)
    finally:
        driver.kill()
    lines = [line for line in out.splitlines() if line.startswith("TOLD ")]
    assert driver.returncode == 0 and len(lines) == 1, f"{out}{err}"
    found: dict[str, Any] = json.loads(lines[0].removeprefix("TOLD "))
    return found


@pytest.fixture(scope="module")
def head() -> Iterator[Head]:
    """With the cluster "default", which ``rmq-ray up`` started with it."""
    with machine_alone("ray", **ENVIRONMENT) as (cli, directory):
        (directory / "rmq.toml").write_text(TOPOLOGY)
        file = str(directory / "rmq.toml")
        port = str(free_port())
        up = cli.json("up", "--ray-port", port, "--ray-dashboard", "--config", file)
        yield Head(cli, directory, up)


@pytest.fixture(scope="module")
def drivers(head: Head) -> dict[str, dict[str, Any]]:
    """What a job told, which brought this package along and left a cluster "second", and a driver
    of Ray Client behind it.
    """
    head.cli.ok("produce", "orders", "before the job")
    (head.directory / "job").mkdir()
    (head.directory / "job" / "main.py").write_text(JOB)
    job = head.start(
        str(Path(sys.executable).with_name("ray")),
        *("job", "submit", "--address", head.up["ray_dashboard"]),
        *("--working-dir", str(head.directory / "job")),
        *("--runtime-env-json", json.dumps({"py_modules": [str(ROOT / "rmq_ray")]})),
        *("--", "python", "main.py", str(head.directory / "second")),
    )
    return {"job": told(job), "client": told(head.start("-c", CLIENT, head.up["ray_client"]))}


def test_a_job_sends_to_and_reads_from_brokers_that_outlive_it(
    head: Head, drivers: dict[str, dict[str, Any]]
) -> None:
    job = drivers["job"]
    assert "py_modules_files" in job["module"]
    assert Path(job["python"]).parent == Path(sys.executable).parent
    assert job["sent"] == "SEND_OK"
    with judging():
        assert job["read"] == ["before the job", "of the job"]
    _, rows = head.cli.session("produce orders 'after the job'", "topic describe orders")
    with judging():
        assert sum(row["messages"] for row in rows) == 3
    assert "deletes after it" in job["refused"]


def test_a_broker_that_a_job_started_comes_back_when_the_job_is_over(
    head: Head, drivers: dict[str, dict[str, Any]]
) -> None:
    second = Program("--cluster", "second", environment=head.cli.environment)

    def counted() -> list[Any]:
        with suppress(AssertionError):
            return second.session("produce orders 'after the kill'", "topic describe orders")
        return []

    subprocess.run(["kill", "-9", str(drivers["job"]["pid"])], check=True)
    _, rows = eventually(counted)
    with judging():
        assert sum(row["messages"] for row in rows) >= 2


def test_a_driver_of_ray_client_sends_reads_and_is_told_what_it_cannot(
    drivers: dict[str, dict[str, Any]],
) -> None:
    client = drivers["client"]
    assert (client["state"], client["sent"], client["actor"]) == ("serving", "SEND_OK", "SEND_OK")
    with judging():
        assert client["read"] == ["from here", "from there"], "by a handler with a driver's handle"
    assert client["drained"]
    assert client["nowhere"].startswith("ClusterError: no cluster 'nowhere' runs here (here run: d")
    assert client["start"].startswith("ConfigError: store_path 'stores' is relative")
    assert client["data"].startswith("ClusterError: Ray Data does not work in a driver of Ray Clie")
    assert "SEND_OK" in client["forked"]
    assert client["left"].startswith("ClusterError: Ray is not initialised in this process")


def actors_shown(asking: Request) -> dict[str, str]:
    """Name -> state; nothing while it does not answer."""
    with suppress(OSError), urlopen(asking, timeout=10) as got:
        rows = json.load(got)["data"]["result"]["result"]
        return {row["name"]: row["state"] for row in rows}
    return {}


def test_the_dashboard_that_up_starts_shows_the_parts_by_their_names(head: Head) -> None:
    names = ("default/controller", "default/name-server-0", "default/broker-a/0")
    bearer = {"Authorization": f"Bearer {ENVIRONMENT['RAY_AUTH_TOKEN']}"}
    asking = Request(f"{head.up['ray_dashboard']}/api/v0/actors", headers=bearer)
    eventually(lambda: {actors_shown(asking).get(name) for name in names} == {"ALIVE"})


def test_a_driver_in_a_namespace_finds_two_clusters_and_the_list_of_actors_names_their_parts(
    head: Head, drivers: dict[str, dict[str, Any]]
) -> None:
    found = told(head.start("-c", A_TEAM, head.up["ray_address"]))
    assert found["mine"] == [], "the cluster's actors are in no driver's way"
    with judging():
        assert found["bodies"] == {name: [name] for name in ("default", "second")}
    ours = [actor for actor in found["actors"] if actor[3] == "rmq_ray"]
    assert sorted(ours) == sorted(
        [f"{cluster}/{name}", kind, "ALIVE", "rmq_ray"]
        for cluster in ("default", "second")
        for name, kind in (
            ("controller", "ControllerShell"),
            ("name-server-0", "NameServerShell"),
            ("broker-a/0", "BrokerShell"),
            ("broker-a/hold", "HoldShell"),
        )
    )
