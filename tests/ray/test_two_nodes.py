"""A Ray cluster of two nodes that demands a token: brokers on either, clients on either."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

from tests.support.outcomes import judging
from tests.support.pages import ROOT

PROGRAM = """
import json, sys
import ray
from ray.cluster_utils import Cluster
import rmq_ray as rmq

head = {"num_cpus": 2, "include_dashboard": False, "resources": {"disk_a": 1}}
head |= {"no_monitor": True, "include_log_monitor": False}
nodes = Cluster(initialize_head=True, head_node_args=head)
nodes.add_node(num_cpus=2, resources={"disk_b": 1})
ray.init(address=nodes.address, log_to_driver=False, logging_level="ERROR")
disks = {"broker-a": "disk_a", "broker-b": "disk_b"}
settings = {"store_path": sys.argv[1], "store_settings": {"segment_bytes": 4 << 20}}
mq = rmq.start(brokers=2, resources=disks, **settings)
mq.admin.create_topic("orders", queues=2)


@ray.remote(num_cpus=0)
def send(number):
    with rmq.Producer() as producer:
        sent = [producer.send("orders", b"%d" % n) for n in range(number, number + 8)]
    return ray.get_runtime_context().get_node_id(), [s.queue.broker_name for s in sent]


where = {"disk_a": 0, "disk_b": 8}
told = [send.options(resources={disk: 0.01}).remote(n) for disk, n in where.items()]
found = ray.get(told)
bodies = mq.admin.to_arrow("orders")["body"].to_pylist()
mq.stop()
print(json.dumps({
    "nodes": len({node for node, _ in found}),
    "brokers": sorted({broker for _, brokers in found for broker in brokers}),
    "bodies": sorted(int(body) for body in bodies),
}))
"""


def test_two_nodes_and_a_token_serve_what_was_sent_on_either(tmp_path: Path) -> None:
    token = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": "a" * 32}
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(tmp_path / "stores")],
        cwd=tmp_path,
        env=os.environ | token | {"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=170,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    assert (found["nodes"], found["brokers"]) == (2, ["broker-a", "broker-b"])
    with judging():
        assert found["bodies"] == list(range(16))
