"""A node of Ray goes while others send, workers bill and the topic is a table in an object store:
it is drained, it ends, and another one has its disk next.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import boto3
import ray
from click.testing import CliRunner
from moto.server import ThreadedMotoServer
from ray.cluster_utils import Cluster

import rmq_ray as rmq
from rmq_ray.actors import gateway, names
from rmq_ray.cli.main import main as commands
from tests.support.brokers.failing_over import Numbered
from tests.support.outcomes import judging
from tests.support.pages import ROOT
from tests.support.waiting import eventually

DISKS = {"broker-a": "disk_a", "broker-a/1": "disk=b"}
STORE = {"AWS_ACCESS_KEY_ID": "key", "AWS_SECRET_ACCESS_KEY": "secret"}
STORE |= {"AWS_EC2_METADATA_DISABLED": "true"}
"""What the nodes' environment has of the object store."""
REPEATS_MAX = 200
"""What the workers had in their hands while queues changed their broker."""


def main(directory: Path) -> dict[str, Any]:
    """In a process of its own, with a Ray of its own: a master on the node that goes, its slave on
    the head, and a worker on either.
    """
    location = bucket()
    head = {"num_cpus": 1, "include_dashboard": False, "labels": {"disk": "b"}}
    head |= {"no_monitor": True, "include_log_monitor": False}
    nodes = Cluster(initialize_head=True, head_node_args=head)
    going = nodes.add_node(num_cpus=1, resources={"disk_a": 1})
    ray.init(address=nodes.address, log_to_driver=False, logging_level="ERROR")
    mq = rmq.start(
        replicas=1,
        resources=DISKS,
        store_path=str(directory / "stores"),
        store_settings={"segment_bytes": 4 << 20},
    )
    topic, billed = "orders", directory / "billed"
    mq.admin.create_topic(topic, queues=2)

    def bill(messages: list[rmq.MessageExt]) -> None:
        with billed.open("ab") as file:
            file.write(b"".join(bytes(message.body) + b"\n" for message in messages))

    mq.tables.create(topic, location)
    first = archivist(mq, topic)
    app = rmq.consumer(topic, group="billing", batch_size=32, start_from="first")(bill)
    workers = app.deploy(2, num_cpus=1)
    found: dict[str, Any] = {"held": [ray.cluster_resources(), ray.available_resources()]}
    (raylet,) = going.all_processes["raylet"]
    found["beside"] = f"PPid:\t{raylet.process.pid}\n" in Path(f"/proc/{first}/status").read_text()
    with Numbered(mq, topic) as sender:
        words = ["--address", nodes.address, "--format", "json", "node", "drain", going.node_id]
        done = CliRunner().invoke(commands, words)
        found |= {"code": done.exit_code, "drained": done.stdout, "said": done.stderr}
        sender.goes_on()
        found["away"] = [row["state"] for row in mq.replicas()]
        nodes.remove_node(going)
        eventually(lambda: going.node_id not in {node.id for node in gateway.nodes()}, every_s=0.25)
        eventually(lambda: archivist(mq, topic) not in (0, first), every_s=0.25)
        found["flushed"] = sum(of_broker_a(mq.tables.flush(topic)).values())
        nodes.add_node(num_cpus=1, resources={"disk_a": 1})
        eventually(lambda: all(row["in_sync"] for row in mq.replicas()), 60, every_s=0.25)
        sender.goes_on()
        eventually(
            lambda: all("error" not in its for its in workers.status()["workers"]), 60, every_s=0.25
        )
        found["outage_s"] = sender.outage_s()
    acknowledged = {b"%d" % number for number in sender.acknowledged}
    eventually(lambda: acknowledged <= set(billed.read_bytes().split()), 60)
    repeats = Counter(billed.read_bytes().split())
    stored = set(mq.admin.to_arrow(topic)["body"].to_pylist())
    mq.tables.flush(topic)
    found |= {
        "table": [row["equal"] for row in mq.tables.verify(topic)],
        "lost": len(acknowledged - stored),
        "failed": [str(error) for error in sender.failed],
        "repeats": repeats.total() - len(repeats),
    }
    return found


def bucket() -> str:
    """A location in an object store of this process."""
    server = ThreadedMotoServer("127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    where = {"endpoint_url": f"http://{host}:{port}", "region_name": "us-east-1"}
    boto3.client("s3", **where).create_bucket(Bucket="lake")
    options = f"scheme=http&endpoint_override={host}:{port}&region=us-east-1"
    return f"s3://lake/orders?{options}"


def archivist(mq: rmq.Cluster, topic: str) -> int:
    """Its process; 0 while it begins anew."""
    try:
        return int(gateway.call(gateway.find(names.archivist(mq.name, topic)), "pid"))
    except rmq.ClusterError:
        return 0


def of_broker_a(offsets: Any) -> dict[int, int]:
    return dict(offsets["broker-a"])


def test_a_node_is_drained_under_load_and_another_one_takes_its_place(tmp_path: Path) -> None:
    ended = subprocess.run(
        [sys.executable, __file__, str(tmp_path)],
        cwd=tmp_path,
        env=os.environ | STORE | {"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=170,
        check=False,
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr
    found = json.loads(ended.stdout.splitlines()[-1])
    print("sends stood still", round(found["outage_s"], 2), "s; came again:", found["repeats"])
    everything, free = found["held"]
    assert free["disk_a"] < everything["disk_a"], "brokers hold some of their node"
    assert free["memory"] < everything["memory"], "by a label, too"
    assert found["beside"], "the archivist begins where the first broker is"
    assert found["code"] == 0, found["said"]
    states = {row["part"]: row["state"] for row in json.loads(found["drained"])}
    assert states == {
        "workers of billing": "1 moved",
        "broker-a": "stopped, replica 1 is master",
    }
    assert found["away"] == ["away", "serving"]
    with judging():
        assert found["lost"] == 0
        assert found["table"] == [True, True]
    assert found["flushed"] > 0, "by an archivist on the node that was left"
    assert not found["failed"] and found["repeats"] <= REPEATS_MAX


if __name__ == "__main__":
    print(json.dumps(main(Path(sys.argv[1]))))
