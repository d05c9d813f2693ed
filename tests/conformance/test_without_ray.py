"""The client in a process that has neither Ray nor pyarrow, nor anything else of an extra."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

import rmq_ray as rmq
from tests.support.brokers.live_cluster import CLUSTER, ROOT, SECRET, LiveCluster

PROGRAM = """
import json, sys
from rmq_ray.extras import EXTRAS

for package in EXTRAS:
    sys.modules[package] = None  # to import it is an error

import rmq_ray as rmq

where = {"name_servers": sys.argv[1], "secret": bytes.fromhex(sys.argv[2])}
mq = rmq.connect(sys.argv[3], **where)
mq.admin.create_topic("orders", queues=2)
with mq.producer() as producer:
    producer.send("orders", b"first")
    producer.send_batch("orders", [b"more"] * 101)
with mq.simple_consumer("orders", "workers") as consumer:
    (message,) = consumer.receive(1, wait=20)
    message.ack()
with mq.pull_consumer("readers", start_from="first") as reader:
    reader.subscribe("orders")
    read = 0
    while read < 102:
        read += len(reader.poll())
said = {}
doors = {
    "connect": lambda: rmq.connect("live"),
    "producer": lambda: rmq.Producer().send("orders", b"x"),
    "start": lambda: rmq.start(),
    "queue": lambda: mq.queue("jobs"),
    "actor": lambda: rmq.ProducerActor,
    "data": lambda: __import__("rmq_ray.data"),
    "spark": lambda: __import__("rmq_ray.spark"),
    "serve": lambda: __import__("rmq_ray.serve"),
    "to_arrow": lambda: mq.admin.to_arrow("orders"),
    "columns": lambda: mq.push_consumer(
        "g", listener=print, subscriptions={"orders": "*"}, batch="arrow"
    ),
}
for door, go in doors.items():
    try:
        go()
    except rmq.ExtraMissing as error:
        said[door] = error.args[2]
print(json.dumps({"taken": message.body.decode(), "read": read, "said": said}))
"""


def test_sends_consumes_and_names_the_extra_of_all_else(tmp_path: Path) -> None:
    with LiveCluster(tmp_path) as cluster:
        (server,) = cluster.lookup().name_servers
        done = subprocess.run(
            [sys.executable, "-c", PROGRAM, server, SECRET.hex(), CLUSTER],
            cwd=ROOT,
            env=os.environ | {"TMPDIR": str(tmp_path)},  # no command has met a cluster there
            capture_output=True,
            text=True,
            timeout=100,
            check=False,
        )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["taken"] in ("first", "more") and found["read"] == 102
    ray = dict.fromkeys(("connect", "producer", "start", "queue", "actor"), "ray")
    arrow = dict.fromkeys(("to_arrow", "columns"), "arrow")
    parts = {name: name for name in ("data", "spark", "serve")}
    assert found["said"] == ray | arrow | parts


def test_a_wrong_address_is_told_at_once(tmp_path: Path) -> None:
    with socket.socket() as nobody:
        nobody.bind(("127.0.0.1", 0))
        port = nobody.getsockname()[1]
        with pytest.raises(rmq.RemotingError, match=f"cannot connect to 127.0.0.1:{port}"):
            rmq.connect(name_servers=f"127.0.0.1:{port}")
    with LiveCluster(tmp_path) as cluster:
        (server,) = cluster.lookup().name_servers
        with pytest.raises(rmq.RemotingError, match="wrong secret"):
            rmq.connect(CLUSTER, name_servers=server, secret=b"another")
        with pytest.raises(rmq.RemotingError, match="cluster"):
            rmq.connect("another", name_servers=server, secret=SECRET)


@pytest.mark.parametrize(
    "wrong",
    [{"name_servers": "nonsense"}, {"name_servers": ""}, {"secret": b"x"}, {"tls": rmq.Tls("ca")}],
)
def test_addresses_that_are_none_are_refused(wrong: dict[str, object]) -> None:
    with pytest.raises(rmq.ConfigError, match="host:port"):
        rmq.connect(**wrong)  # type: ignore[call-overload]
