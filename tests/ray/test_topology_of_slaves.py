"""A topology file with a slave on real Ray: it is started, shown and promoted, and its disk may be
lost for good.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import ray
from click.testing import CliRunner

import rmq_ray as rmq
from rmq_ray.cli.main import main
from rmq_ray.cluster import plan, start_from
from rmq_ray.errors import ConfigError, StoreMissing
from tests.support.waiting import eventually

FILE = """\
cluster = "topo-slaves"
[defaults]
replication = "sync"
[defaults.store]
segment_bytes = 1048576
[[brokers]]
name = "broker-a"
allow_same_node = true
store = { path = "a" }
[[brokers.replicas]]
store = { path = "a-1" }
"""


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    found = tmp_path_factory.mktemp("slaves") / "rmq.toml"
    found.write_text(FILE)
    return found


@pytest.fixture(scope="module")
def cluster(file: Path) -> Iterator[rmq.Cluster]:
    started = start_from(file)
    yield started
    started.stop()


def rows(cluster: rmq.Cluster) -> dict[int, dict[str, Any]]:
    return {row["replica"]: row for row in cluster.replicas()}


def in_sync(cluster: rmq.Cluster) -> bool:
    return all(row["in_sync"] and row["lag_bytes"] == 0 for row in rows(cluster).values())


def test_master_and_slave_are_started_known_and_shown(file: Path, cluster: rmq.Cluster) -> None:
    eventually(lambda: in_sync(cluster), 30)
    found = rows(cluster)
    assert [(row["id"], row["role"]) for row in found.values()] == [
        (0, "master"),
        (1, "slave"),
    ] and not cluster.weak_brokers()
    eventually(
        lambda: (
            cluster.addresses["broker-a"] == {row["id"]: row["address"] for row in found.values()}
        ),
        10,
    )
    status = cluster.status()
    assert json.loads((file.parent / "rmq.stores.json").read_text()) == {
        "broker-a": status["broker-a/0"]["identity"],
        "broker-a/1": status["broker-a/1"]["identity"],
    }
    assert (file.parent / "rmq.controller").is_dir() and not plan(file).changes
    cluster.admin.create_topic("orders", queues=4)
    with rmq.Producer(cluster=cluster.name) as producer:
        assert producer.send("orders", b"on both").status is rmq.SendStatus.SEND_OK


def test_another_copy_is_made_master_by_a_command(cluster: rmq.Cluster) -> None:
    eventually(lambda: in_sync(cluster), 30)
    before = next(number for number, row in rows(cluster).items() if row["role"] == "master")
    arguments = ["--cluster", cluster.name, "--format", "json", "broker"]
    done = CliRunner().invoke(
        main, [*arguments, "promote", "broker-a", "--replica", str(1 - before)]
    )
    assert done.exit_code == 0, done.output
    listed = {
        row["replica"]: row
        for row in json.loads(CliRunner().invoke(main, [*arguments, "list"]).stdout)
    }
    assert listed[1 - before]["role"] == "master" and listed[1 - before]["id"] == 0
    with pytest.raises(ConfigError, match="there is no broker 'broker-z' here: there are broker-a"):
        cluster.promote("broker-z")
    with pytest.raises(ConfigError, match="broker-a has the replicas 0, 1, not 7"):
        cluster.promote("broker-a", 7)


def test_a_script_that_attaches_leaves_what_is_stopped_and_up_starts_it(
    file: Path, cluster: rmq.Cluster
) -> None:
    eventually(lambda: in_sync(cluster), 30)
    slave = next(number for number, row in rows(cluster).items() if row["role"] == "slave")
    for up in (("--config", str(file)), ()):
        cluster.stop_broker("broker-a", slave, force=True)
        begin = time.monotonic()
        start_from(file, timeout_s=20)
        rmq.start(cluster.name)
        assert time.monotonic() - begin < 10 and rows(cluster)[slave]["state"] == "stopped"
        done = CliRunner().invoke(
            main,
            [
                "--address",
                ray.get_runtime_context().gcs_address,
                "--cluster",
                cluster.name,
                "up",
                *up,
            ],
        )
        assert done.exit_code == 0, done.output
        assert rows(cluster)[slave]["state"] == "serving"
        eventually(lambda: in_sync(cluster), 30)


def test_a_slave_whose_disk_is_lost_begins_anew_once_people_say_so(
    file: Path, cluster: rmq.Cluster
) -> None:
    eventually(lambda: in_sync(cluster), 30)
    (slave,) = [row for row in rows(cluster).values() if row["role"] == "slave"]
    actor = f"broker-a/{slave['replica']}"
    status = cluster.status()[actor]
    shutil.rmtree(file.parent / ("a-1" if slave["replica"] else "a"))
    os.kill(status["pid"], signal.SIGKILL)
    eventually(lambda: "StoreMissing" in str(rows(cluster)[slave["replica"]]["error"]), 90)
    assert list(cluster.weak_brokers()) == ["broker-a"]
    with pytest.raises(StoreMissing):
        start_from(file)
    known = json.loads((file.parent / "rmq.stores.json").read_text())
    key = actor.removesuffix("/0")
    (file.parent / "rmq.stores.json").write_text(
        json.dumps({name: identity for name, identity in known.items() if name != key})
    )
    start_from(file)
    eventually(lambda: in_sync(cluster), 30)
    after = json.loads((file.parent / "rmq.stores.json").read_text())
    assert (
        after[key] != known[key]
        and cluster.status()[actor]["identity"] == after[key]
        and not cluster.weak_brokers()
    )
