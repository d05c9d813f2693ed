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


def test_a_change_tells_what_was_and_what_is(cluster: LiveCluster) -> None:
    def newest(request: str) -> list[dict[str, Any]]:
        return cluster.brokers[0].audit.newest(AuditQuestion(request=request))

    with closing(Admin(cluster)) as admin:
        admin.create_topic("orders", queues=3)
        admin.create_topic("orders", queues=5)
        admin.delete_topic("orders")
    first, second = newest("UPDATE_AND_CREATE_TOPIC")
    assert "old" not in first and first["new"]["writeQueueNums"] == "3"
    assert (second["old"]["writeQueueNums"], second["new"]["writeQueueNums"]) == ("3", "5")
    assert second["new"]["order"] == "false" and "topicName" not in second["new"]
    (deleted,) = newest("215")
    assert deleted["old"]["writeQueueNums"] == "5" and "new" not in deleted


def test_offsets_that_are_reset_and_groups_that_are_deleted_are_told(
    cluster: LiveCluster,
) -> None:
    broker = cluster.brokers[0]
    with closing(Admin(cluster)) as admin:
        admin.create_topic("orders", queues=2)
    core = broker._core  # noqa: SLF001
    assert core is not None
    core.tables.offsets.load({("orders", "g"): {0: 3, 1: 4}, ("other", "g"): {0: 9}})
    address = Address.parse(broker.status()["address"])
    with closing(
        Connection(address, _credentials(cluster), RemotingLimits(), SYSTEM_CLOCK)
    ) as ours:

        def ask(code: RequestCode, body: bytes = b"", **fields: str) -> int:
            return ours.request(Command(code, fields=fields, body=body), 5_000).code

        body = b'{"groupName": "g", "retryMaxTimes": 3}'
        assert ask(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, body) == 0
        reset = {"topic": "orders", "group": "g", "timestamp": "-1", "isForce": "true"}
        assert ask(RequestCode.INVOKE_BROKER_TO_RESET_OFFSET, **reset) == 206  # nobody is online
        clone = {"srcGroup": "g", "destGroup": "h", "topic": "orders"}
        assert ask(RequestCode.CLONE_GROUP_OFFSET, **clone) == 0
        core.tables.offsets.load({("orders", "g"): {0: 5}, ("orders", "h"): {0: 3}})
        assert ask(RequestCode.CLONE_GROUP_OFFSET, **clone) == 0
        assert ask(RequestCode.DELETE_SUBSCRIPTIONGROUP, groupName="g") == 0
    made, moved, cloned, again, deleted = broker.audit.newest(AuditQuestion())[-5:]
    assert "old" not in made and made["new"]["retryMaxTimes"] == "3"
    assert moved["old"] == {"orders:0": "3", "orders:1": "4"}
    assert moved["event"] == "failed" and moved["new"]["timestamp"] == "-1"
    assert "old" not in cloned and cloned["new"] == {"orders:0": "3", "orders:1": "4"}
    assert (again["old"], again["new"]) == ({"orders:0": "3"}, {"orders:0": "5"})
    assert deleted["old"]["retryMaxTimes"] == "3" and "new" not in deleted


def test_a_change_that_met_the_unexpected_has_its_line(
    cluster: LiveCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(_command: Command, _peer: Any) -> Command:
        raise ZeroDivisionError("of a handler")

    code = RequestCode.DELETE_TOPIC_IN_BROKER
    core = cluster.brokers[0]._core  # noqa: SLF001
    assert core is not None
    row, _handler = core.dispatch.requests[code]
    monkeypatch.setitem(core.dispatch.requests, code, (row, fails))
    broker = Address.parse(cluster.brokers[0].status()["address"])
    with closing(Connection(broker, _credentials(cluster), RemotingLimits(), SYSTEM_CLOCK)) as ours:
        assert ours.request(Command(code, fields={"topic": "orders"}), 5_000).code == 1
    (line,) = cluster.brokers[0].audit.newest(AuditQuestion())
    assert (line["event"], line["resources"]) == ("failed", ["topic:orders"])
    assert line["reason"] == "ZeroDivisionError: of a handler"


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


def test_a_name_server_counts_whom_it_turned_away(cluster: LiveCluster) -> None:
    assert cluster.name_server is not None
    address, server = Address.parse(cluster.lookup().name_servers[0]), cluster.name_server.server
    assert server.status()["refused_connections"] == 0
    with pytest.raises(HandshakeFailed):
        Connection(
            address, Credentials(CLUSTER, "name_server", b"guessed"), RemotingLimits(), SYSTEM_CLOCK
        )
    stranger = Connection(address, None, RemotingLimits(), SYSTEM_CLOCK)
    with pytest.raises(RemotingError):
        stranger.request(Command(RequestCode.GET_BROKER_CLUSTER_INFO), 5_000)
    assert server.status()["refused_connections"] == 2
    (told,) = [one for one in server.metrics() if one.name.endswith("refused_connections_total")]
    assert told.kind == "counter" and [sample.value for sample in told.samples] == [2.0]
    assert cluster.name_server.audit.status()["refused"] == 2


def _credentials(cluster: LiveCluster) -> Credentials:
    return Credentials(CLUSTER, "broker", cluster.lookup().secret)
