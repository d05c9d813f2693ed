"""From bare hosts to a running cluster, and through the loss of one or the head: `ray up`, `rmq-ray
up`, producers, consumers, bulk reads, Spark, a power cut, a slave that takes over, `ray up` again.
All the while the topic is a table in an object store on the desk.

broker-a has a copy on each host, broker-b only one: the disk of db2.

Three hosts and the desk of whoever works with them are namespaces with sshd (tools/hosts.py). The
launcher file is the one at the top level; only addresses, user and key are put in, and what would
install Python packages or end Ray processes is left out.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.support.outcomes import judging
from tests.support.waiting import eventually
from tools import hosts as machines

ROOT = Path(__file__).resolve().parents[2]
LAKE = ROOT / "tests" / "e2e" / "three_hosts_lake.py"
ADDRESSES = {"head": "10.77.0.1", "db1": "10.77.0.2", "db2": "10.77.0.3"}
pytestmark = pytest.mark.calm  # Ray gives a host half a minute to start
MESSAGES = 1_000
RMQ_TOML = """\
cluster = "hosts"
[defaults.store]
flush = "sync"
segment_bytes = 4194304
[[name_servers]]
resource = "store_head"
directory = "/mnt/disk/name-server"
[controller]
store = "/mnt/disk/controller"
[[brokers]]
name = "broker-a"
resource = "store_db1"
replication = "sync"
store = { path = "/mnt/disk/store" }
[[brokers.replicas]]
resource = "store_db2"
store = { path = "/mnt/disk/replica" }
[[brokers.replicas]]
resource = "store_head"
store = { path = "/mnt/disk/replica" }
[[brokers]]
name = "broker-b"
resource = "store_db2"
store = { path = "/mnt/disk/store" }
"""
KEYS = {
    "AWS_ACCESS_KEY_ID": "key",
    "AWS_SECRET_ACCESS_KEY": "secret",
    "AWS_EC2_METADATA_DISABLED": "true",
}
ENVIRONMENT = KEYS | {
    "PATH": f"{Path(sys.prefix) / 'bin'}:/usr/sbin:/usr/bin:/sbin:/bin",
    "PYTHONPATH": str(ROOT),
    "RAY_AUTH_MODE": "token",
    "RAY_UP_enable_autoscaler_v2": "0",
    "RAY_USAGE_STATS_ENABLED": "0",
}


def launcher() -> str:
    config = yaml.safe_load((ROOT / "cluster.yaml").read_text())
    config["provider"] |= {
        "head_ip": ADDRESSES["head"],
        "worker_ips": [ADDRESSES["db1"], ADDRESSES["db2"]],
    }
    config["auth"] = {"ssh_user": "root", "ssh_private_key": "/mnt/home/.ssh/id_ed25519"}
    config["setup_commands"] = [
        command
        for command in config["setup_commands"]
        if "pip" not in command and "venv ~" not in command
    ]
    del config["file_mounts"]["~/rmq-ray-dist"]  # the wheel that is not installed
    for part in ("head_start_ray_commands", "worker_start_ray_commands"):
        config[part] = [command for command in config[part] if not command.endswith("ray stop")]
        assert len(config[part]) == 1
        config[part] = [
            config[part][0].replace("ray start ", "ray start --num-cpus=1 ")
        ]  # few idle workers: three hosts share this machine
    return str(yaml.safe_dump(config))


@pytest.fixture(scope="module")
def hosts() -> Iterator[machines.Hosts]:
    """Not below pytest's directory: Ray's sockets need short names."""
    try:
        machines.check()
    except machines.HostsMissing as missing:
        if os.environ.get("RMQ_RAY_HOSTS_REQUIRED"):
            raise
        pytest.skip(str(missing))
    directory = Path(tempfile.mkdtemp(prefix="rmq-hosts-"))
    with machines.Hosts(directory, ADDRESSES, keep=[ROOT, Path(sys.prefix)]) as made:
        for name in made.addresses:
            home = directory / name / "home"
            (home / "rmq-ray-venv").symlink_to(sys.prefix)
            known = {"PYTHONPATH": str(ROOT), **KEYS}
            lines = [f"export {name}={value}\n" for name, value in known.items()]
            (home / ".profile").write_text("".join(lines))
        (directory / "desk" / "cluster.yaml").write_text(launcher())
        (directory / "head" / "home" / "rmq.toml").write_text(RMQ_TOML)
        serve = f"setsid {sys.executable} {LAKE} serve >/mnt/lake.log 2>&1 &"
        made.run("desk", ["sh", "-c", serve], env=ENVIRONMENT)
        yield made
    shutil.rmtree(directory)


def ray_up(hosts: machines.Hosts, *options: str) -> None:
    hosts.run(
        "desk",
        ["ray", "up", "-y", "--no-config-cache", *options, "/mnt/cluster.yaml"],
        env=ENVIRONMENT,
        timeout_s=120,
    )


def rmq_ray(hosts: machines.Hosts, *arguments: str, check: bool = True) -> str:
    return hosts.run(
        "head",
        [sys.executable, "-m", "rmq_ray", "--format", "json", *arguments],
        env=ENVIRONMENT,
        timeout_s=180,
        check=check,
    )


def rmq_up(hosts: machines.Hosts) -> dict[str, Any]:
    return dict(json.loads(rmq_ray(hosts, "up", "--config", "/mnt/home/rmq.toml", "--wait", "90")))


def copies(hosts: machines.Hosts, broker: str) -> list[dict[str, Any]]:
    """Its copies by number, as `broker list` shows them."""
    return [
        row
        for row in json.loads(rmq_ray(hosts, "--cluster", "hosts", "broker", "list"))
        if row["broker"] == broker
    ]


def job(hosts: machines.Hosts, *arguments: str) -> dict[str, Any]:
    hosts.run(
        "head",
        [sys.executable, str(ROOT / "tests" / "e2e" / "three_hosts_job.py"), *arguments],
        env=ENVIRONMENT,
        timeout_s=240,
    )
    return dict(json.loads((hosts.directory / "head" / "answer.json").read_text()))


def lake(hosts: machines.Hosts) -> dict[str, Any]:
    """The table as the desk reads it."""
    return dict(json.loads(hosts.run("desk", [sys.executable, str(LAKE), "read"], env=ENVIRONMENT)))


def archivists(hosts: machines.Hosts) -> list[str]:
    """The hosts that one runs on."""

    def title(pid: int) -> str:
        with suppress(OSError):  # it ended
            return Path(f"/proc/{pid}/cmdline").read_text()
        return ""

    return [
        name for name in ADDRESSES if any("ArchivistShell" in title(p) for p in hosts.pids(name))
    ]


@judging()
def check_table(hosts: machines.Hosts, verified: list[Any], sent: list[int]) -> None:
    """Every message is there; a batch that was sent again is there as often as in the log."""
    found = lake(hosts)
    assert found["numbers"] == sent
    assert verified == [found["rows"], True] and found["places"] == found["rows"]


@pytest.fixture(scope="module")
def sent() -> list[int]:
    """The numbers of the messages that are stored; each test sends what comes next."""
    return []


@pytest.fixture(scope="module")
def started(hosts: machines.Hosts, sent: list[int]) -> dict[str, Any]:
    """What `rmq-ray up` says on bare hosts; messages 0 to 999 are stored then."""
    hosts.run("desk", ["ray", "get-auth-token", "--generate"], env=ENVIRONMENT)
    ray_up(hosts)
    said = rmq_up(hosts)
    rmq_ray(
        hosts, "--cluster", "hosts", "topic", "create", "orders", "--queues", "4"
    )  # on both brokers; a first send would make it on one
    eventually((hosts.directory / "desk" / "lake.ready").exists)
    assert job(hosts, "create_table", f"produce:0:{MESSAGES}") == {
        "stored": MESSAGES,
        "brokers": ["broker-a", "broker-b"],
    }
    sent += range(MESSAGES)
    return said


def more(sent: list[int]) -> str:
    """The job that sends as many again."""
    first = len(sent)
    sent += range(first, first + MESSAGES)
    return f"produce:{first}:{len(sent)}"


@pytest.mark.slow
def test_ray_up_and_rmq_up_bring_masters_and_slaves_to_their_hosts_and_disks(
    hosts: machines.Hosts, started: dict[str, Any]
) -> None:
    assert started["state"] == "started"
    places = {
        name: {number: address.partition(":")[0] for number, address in started[name].items()}
        for name in ("broker-a", "broker-b")
    }
    assert places == {
        "broker-a": {"0": ADDRESSES["db1"], "1": ADDRESSES["db2"], "2": ADDRESSES["head"]},
        "broker-b": {"0": ADDRESSES["db2"]},
    }
    stores = {
        "broker-a": "db1/disk/store",
        "broker-a/1": "db2/disk/replica",
        "broker-a/2": "head/disk/replica",
        "broker-b": "db2/disk/store",
    }
    identities = {
        actor: json.loads((hosts.directory / path / "rmq_ray" / "identity").read_text())
        for actor, path in stores.items()
    }
    assert {actor: identity["broker_name"] for actor, identity in identities.items()} == {
        actor: actor.partition("/")[0] for actor in stores
    }
    assert json.loads((hosts.directory / "head" / "home" / "rmq.stores.json").read_text()) == {
        a: i["identity"] for a, i in identities.items()
    }


@pytest.mark.slow
def test_a_master_whose_host_loses_its_power_is_replaced_and_follows_when_it_is_back(
    hosts: machines.Hosts, started: dict[str, Any], sent: list[int]
) -> None:
    found = job(hosts, "plan", "scan:db1:db2")
    assert found["copies"] == {"broker-a": 3, "broker-b": 1}
    with judging():
        assert found["rows"] == MESSAGES
        assert found["scans"] == {host: [MESSAGES, MESSAGES] for host in ("db1", "db2")}
    processes = hosts.pids("db1")
    assert archivists(hosts) == ["db1"], "beside the first broker"
    hosts.cut_power("db1")
    assert processes and not any(Path(f"/proc/{pid}").exists() for pid in processes)
    after = job(hosts, more(sent), "scan:db2")
    assert after["stored"] == MESSAGES
    with judging():
        assert after["scans"] == {"db2": [MESSAGES, MESSAGES]}, (
            "the dead master's splits are read at a slave"
        )
    elected = eventually(
        lambda: next(
            (row for row in copies(hosts, "broker-a")[1:] if row["role"] == "master"), None
        ),
        30,
    )
    assert elected["epoch"] > 1
    hosts.boot("db1")
    ray_up(hosts, "--no-restart")
    again = rmq_up(hosts)
    assert (
        again["state"] == "was running"
        and again["broker-a"]["0"] == elected["address"]
        and len(again["broker-a"]) == 3
    )
    eventually(
        lambda: all(
            part["state"] == "serving"
            for part in json.loads(rmq_ray(hosts, "--cluster", "hosts", "health", check=False))
        ),
        60,
    )
    eventually(lambda: copies(hosts, "broker-a")[0]["in_sync"])
    back = copies(hosts, "broker-a")[0]
    assert (back["role"], back["in_sync"], back["address"]) == (
        "slave",
        True,
        started["broker-a"]["0"],
    )
    whole = job(hosts, more(sent), f"consume:{len(sent)}", "table")
    assert archivists(hosts) in (["head"], ["db2"])
    check_table(hosts, whole["table"], sent)
    counted = job(hosts, "spark")["spark"][1]
    with judging():
        assert whole["numbers"] == sent and counted == len(sent)


@pytest.mark.slow
def test_a_head_that_lost_its_power_comes_back_with_every_message(
    hosts: machines.Hosts, started: dict[str, Any], sent: list[int]
) -> None:
    hosts.cut_power("head")
    hosts.boot("head")
    ray_up(hosts)
    again = rmq_up(hosts)
    assert (again["state"], again["name_servers"], len(again["broker-a"])) == (
        "was running",
        started["name_servers"],
        3,
    )
    after = job(hosts, more(sent), f"consume:{len(sent)}", "table")
    assert after["stored"] == MESSAGES
    with judging():
        assert after["numbers"] == sent
    check_table(hosts, after["table"], sent)
