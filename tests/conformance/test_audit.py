"""What brokers and name servers note of refusals and changes, as whoever reads their files sees
it.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from rmq_ray.client.admin.admin import Admin
from rmq_ray.clock import SYSTEM_CLOCK
from rmq_ray.config import RemotingLimits
from rmq_ray.errors import HandshakeFailed, RemotingError, RmqError
from rmq_ray.model.ids import Address
from rmq_ray.remoting.connection import Connection
from rmq_ray.remoting.handshake import Credentials
from rmq_ray.remoting.wire.codes import RequestCode
from rmq_ray.remoting.wire.frame import Command
from rmq_ray.server.security.audit_log import AuditQuestion
from tests.support.brokers.live_cluster import CLUSTER, LiveCluster
from tests.support.waiting import eventually


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[LiveCluster]:
    with LiveCluster(tmp_path) as found:
        yield found


def written(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def test_changes_by_tools_are_lines_of_the_broker_that_made_them(
    cluster: LiveCluster, tmp_path: Path
) -> None:
    with closing(Admin(cluster)) as admin:
        admin.create_topic("orders", queues=3)
        admin.delete_topic("orders")
        with pytest.raises(RmqError):
            admin.create_topic("TBW102", queues=3)
    log = cluster.store_path() / "rmq_ray" / "audit.log"
    eventually(lambda: len(written(log)) >= 2)
    made, deleted = (line for line in written(log)[:2])
    assert made["event"] == deleted["event"] == "changed"
    assert made["request"] == "UPDATE_AND_CREATE_TOPIC" and made["resources"] == ["topic:orders"]
    assert made["new"]["writeQueueNums"] == "3" and made["party"] == "broker broker-a"
    assert deleted["request"] == "DELETE_TOPIC_IN_BROKER" and deleted["address"].startswith("127.")
    there = written(tmp_path / "ns" / "audit.log")
    assert [line["request"] for line in there] in ([], ["DELETE_TOPIC_IN_NAMESRV"])


def test_a_change_that_is_refused_is_a_line_with_the_reason(cluster: LiveCluster) -> None:
    broker = Address.parse(cluster.brokers[0].status()["address"])
    connection = Connection(broker, _credentials(cluster), RemotingLimits(), SYSTEM_CLOCK)
    asked = Command(
        RequestCode.UPDATE_AND_CREATE_TOPIC,
        fields={"topic": "a/b", "readQueueNums": "1", "writeQueueNums": "1", "perm": "6"},
    )
    assert connection.request(asked, 5_000).code != 0
    connection.close()
    (line,) = cluster.brokers[0].audit.newest(AuditQuestion())
    assert line["event"] == "failed" and line["resources"] == ["topic:a/b"] and line["reason"]


def test_who_may_not_come_in_is_a_refusal_and_nothing_else(cluster: LiveCluster) -> None:
    broker = Address.parse(cluster.brokers[0].status()["address"])
    with pytest.raises(HandshakeFailed):
        Connection(
            broker, Credentials(CLUSTER, "broker", b"guessed"), RemotingLimits(), SYSTEM_CLOCK
        )
    stranger = Connection(broker, None, RemotingLimits(), SYSTEM_CLOCK)
    with pytest.raises(RemotingError):
        stranger.request(Command(RequestCode.GET_BROKER_CONFIG), 5_000)
    found = cluster.brokers[0].audit.newest(AuditQuestion(refused=True))
    assert [line["event"] for line in found] == ["refused", "refused"]
    assert "wrong secret" in found[0]["reason"] and "closed to foreign" in found[1]["reason"]
    assert b"guessed".decode() not in json.dumps(found)
    assert cluster.brokers[0].status()["audit"]["refused"] == 2


def _credentials(cluster: LiveCluster) -> Credentials:
    return Credentials(CLUSTER, "broker", cluster.lookup().secret)
