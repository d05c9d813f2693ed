"""Compressed bodies, requests and traces between our clients and Apache RocketMQ's unmodified Java
client, over our broker, in both directions.
"""

from __future__ import annotations

import json
import subprocess
import zlib
from typing import Any

import pytest

from rmq_ray.client.admin.admin import Admin
from rmq_ray.client.producer.producer import Producer
from rmq_ray.client.producer.replying import reply
from rmq_ray.client.push.push_consumer import PushConsumer
from rmq_ray.ports import ClusterAddress
from tests.interop.test_client_interop import ours
from tests.support.brokers.open_cluster import CLUSTER, SECRET
from tests.support.brokers.tiny_cluster import FixedDiscovery
from tests.support.clients.collecting import Collector
from tests.support.waiting import eventually
from tools import interop

BODIES = [b"a body that gets smaller " * (200 + n) for n in range(3)]
TIMEOUT_S = 180


def crc(body: bytes) -> int:
    """As Java's client computes it."""
    return zlib.crc32(body) & 0x7FFFFFFF


def answer(messages: list[Any], ctx: Any) -> None:
    for message in messages:
        reply(message, b"pong to " + message.body)


@pytest.fixture(scope="module")
def told(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What both sides got."""
    with ours(tmp_path_factory.mktemp("producing")) as name_server:
        discovery = FixedDiscovery(ClusterAddress(CLUSTER, (name_server,), SECRET))
        admin = Admin(discovery)
        for topic in ("Zipped", "ZippedByJava", "AskPython", "AskJava"):
            admin.create_topic(topic, queues=1)
        collector = Collector()
        reading = PushConsumer(
            "python-readers",
            listener=collector,
            subscriptions={"ZippedByJava": "*"},
            discovery=discovery,
            start_from="first",
        )
        serving = PushConsumer(
            "python-servers",
            listener=answer,
            subscriptions={"AskPython": "*"},
            discovery=discovery,
            start_from="first",
        )
        command = interop.command("ProducingCheck", name_server, len(BODIES), 2)
        with (
            reading,
            serving,
            Producer("python-askers", discovery=discovery, compression="zlib") as producer,
        ):
            java = subprocess.Popen(
                command,
                cwd=interop.TARGET,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
            )
            try:
                for body in BODIES:
                    producer.send("Zipped", body)
                replies = [
                    producer.request("AskJava", body, timeout=60.0).body
                    for body in (b"live", b"desserts")
                ]
                out, complaints = java.communicate(timeout=TIMEOUT_S)
            finally:
                java.kill()
            assert java.returncode == 0, f"{complaints[-3000:]}\n{out[-1000:]}"
            found = {
                "lines": [json.loads(line) for line in out.splitlines()],
                "replies": replies,
                "read": collector.wait_for(1, 10),
            }
        sent = next(line for line in found["lines"] if line["check"] == "sent")
        eventually(lambda: bool(admin.message_trace(sent["id"])), 10)
        found |= {"sent": sent, "trace": admin.message_trace(sent["id"])}
        admin.close()
        return found


def test_bodies_compressed_by_either_side_are_read_by_the_other(told: dict[str, Any]) -> None:
    read = [(line["length"], line["crc"]) for line in told["lines"] if line["check"] == "read"]
    assert sorted(read) == sorted((len(body), crc(body)) for body in BODIES)
    assert [(len(body), crc(body)) for body in told["read"]] == [
        (told["sent"]["length"], told["sent"]["crc"])
    ]


def test_requests_of_either_side_are_answered_by_the_other(told: dict[str, Any]) -> None:
    assert told["replies"] == [b"evil", b"stressed"]
    assert [line["body"] for line in told["lines"] if line["check"] == "reply"] == ["pong to ping"]
    assert not [line for line in told["lines"] if line["check"] == "error"]


def test_a_java_producers_trace_is_read_as_our_own(told: dict[str, Any]) -> None:
    (pub,) = told["trace"]
    expected = {
        "kind": "Pub",
        "group": "java-askers",
        "topic": "ZippedByJava",
        "tag": "tag",
        "keys": "java-key",
        "success": True,
        "message_type": 0,
    }
    assert {name: pub[name] for name in expected} == expected and pub["message_id"] == told["sent"][
        "id"
    ]
