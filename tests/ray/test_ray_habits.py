"""What people who run Ray are used to: jobs, Ray Client, drivers in namespaces of their own, the
list of actors. One head with the dashboard serves all of it; every driver is a process of its own.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.support.outcomes import judging
from tests.support.pages import ROOT
from tests.support.programs import Program, free_port, machine_alone
from tests.support.waiting import eventually

DRIVER_S = 150
ENVIRONMENT = {
    "RAY_AUTH_MODE": "token",
    "RAY_AUTH_TOKEN": "a" * 32,
    "GRPC_ENABLE_FORK_SUPPORT": "0",  # else one connection of Ray Client in some is refused
}
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
import json, os, sys, time
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
with mq.pull_consumer("client", start_from="first") as consumer:
    consumer.assign(consumer.fetch_message_queues("by-client"))
    read = []
    while len(read) < 2:
        read += [message.body.decode() for message in consumer.poll(10, timeout=1.0)]
told["read"] = sorted(read)


def said(work):
    try:
        return repr(work())
    except rmq.RmqError as error:
        return f"{type(error).__name__}: {error}"




@ray.remote(num_cpus=0)
class Counter:
    def __init__(self):
        self.messages = 0

    def add(self, count):
        self.messages += count
        return self.messages


counter = Counter.remote()


@rmq.consumer("by-client", group="workers", start_from="first")
def count(message):
    ray.get(counter.add.remote(1))


workers = count.deploy(num_cpus=0)
while ray.get(counter.add.remote(0)) < 2:
    time.sleep(0.05)
told["drained"] = workers.stop()
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
NAMESPACES = """
import json, sys
import ray, rmq_ray as rmq
from ray.util.state import list_actors

told = {"mine": [], "sent": []}
for namespace in (None, "a-team"):
    ray.init(sys.argv[1], namespace=namespace, log_to_driver=False, logging_level="ERROR")
    told["mine"] += ray.util.list_named_actors()
    for name in ("default", "second"):
        with rmq.connect(name).producer() as producer:
            producer.send("teams", f"{name} by {namespace}".encode())
    if namespace:
        told["actors"] = [
            [actor.name, actor.class_name, actor.state, actor.ray_namespace]
            for actor in list_actors(address=sys.argv[1], filters=[("state", "=", "ALIVE")])
        ]
        told["bodies"] = {
            name: sorted(rmq.connect(name).admin.to_arrow("teams")["body"].to_pylist())
            for name in ("default", "second")
        }
    ray.shutdown()
told["bodies"] = {
    name: [body.decode() for body in bodies] for name, bodies in told["bodies"].items()
}
print("TOLD", json.dumps(told))
"""


@dataclass(frozen=True)
class Head:
    """``up``: what the command said that started it."""

    cli: Program
    directory: Path
    up: dict[str, Any]

    def told_by(self, program: str, *arguments: str) -> dict[str, Any]:
        """What a driver prints that runs beside the head."""
        return self.told([sys.executable, "-c", program, *arguments])

    def told(self, command: list[str]) -> dict[str, Any]:
        done = subprocess.run(
            command,
            env=self.cli.environment,
            cwd=self.directory,
            capture_output=True,
            text=True,
            timeout=DRIVER_S,
            check=False,
        )
        lines = [line for line in done.stdout.splitlines() if line.startswith("TOLD ")]
        assert done.returncode == 0 and len(lines) == 1, f"{done.stdout}{done.stderr}"
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
def job(head: Head) -> dict[str, Any]:
    """What a job told that is over: it brought this package along, and left a cluster "second"."""
    head.cli.ok("produce", "orders", "before the job")
    (head.directory / "job").mkdir()
    (head.directory / "job" / "main.py").write_text(JOB)
    return head.told(
        [
            str(Path(sys.executable).with_name("ray")),
            *("job", "submit", "--address", head.up["ray_dashboard"]),
            *("--working-dir", str(head.directory / "job")),
            *("--runtime-env-json", json.dumps({"py_modules": [str(ROOT / "rmq_ray")]})),
            *("--", "python", "main.py", str(head.directory / "second")),
        ]
    )


def test_a_job_sends_to_and_reads_from_brokers_that_outlive_it(
    head: Head, job: dict[str, Any]
) -> None:
    assert "py_modules_files" in job["module"]
    assert Path(job["python"]).parent == Path(sys.executable).parent
    assert job["sent"] == "SEND_OK"
    with judging():
        assert job["read"] == ["before the job", "of the job"]
    head.cli.ok("produce", "orders", "after the job")
    rows = head.cli.json("topic", "describe", "orders")
    with judging():
        assert sum(row["messages"] for row in rows) == 3
    assert "deletes after it" in job["refused"]


def test_a_broker_that_a_job_started_comes_back_when_the_job_is_over(
    head: Head, job: dict[str, Any]
) -> None:
    subprocess.run(["kill", "-9", str(job["pid"])], check=True)
    second = Program("--cluster", "second", environment=head.cli.environment)
    eventually(lambda: second.run("produce", "orders", "after the kill").returncode == 0)
    rows = second.json("topic", "describe", "orders")
    with judging():
        assert sum(row["messages"] for row in rows) >= 2


def test_a_driver_of_ray_client_sends_reads_and_is_told_what_it_cannot(head: Head) -> None:
    told = head.told_by(CLIENT, head.up["ray_client"])
    assert (told["state"], told["sent"], told["actor"]) == ("serving", "SEND_OK", "SEND_OK")
    with judging():
        assert told["read"] == ["from here", "from there"]
    assert told["drained"], "a handler may use what only this driver's session knows"
    assert told["nowhere"].startswith("ClusterError: no cluster 'nowhere' runs here (here run: d")
    assert told["start"].startswith("ConfigError: store_path 'stores' is relative")
    assert told["data"].startswith("ClusterError: Ray Data does not work in a driver of Ray Client")
    assert "SEND_OK" in told["forked"]
    assert told["left"].startswith("ClusterError: Ray is not initialised in this process")


def test_drivers_of_any_namespace_find_two_clusters_and_the_list_of_actors_names_their_parts(
    head: Head, job: dict[str, Any]
) -> None:
    told = head.told_by(NAMESPACES, head.up["ray_address"])
    assert told["mine"] == [], "the cluster's actors are in no driver's way"
    with judging():
        assert told["bodies"] == {
            name: [f"{name} by None", f"{name} by a-team"] for name in ("default", "second")
        }
    ours = [actor for actor in told["actors"] if actor[3] == "rmq_ray"]
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
