"""Access control over real connections: RocketMQ's signed requests, our own clients as accounts,
and nobody.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest

from rmq_ray.actors.access_keys import AccountProof
from rmq_ray.client.producer.producer import Producer
from rmq_ray.client.pull.pull_consumer import PullConsumer
from rmq_ray.clock import SYSTEM_CLOCK
from rmq_ray.config import RemotingLimits
from rmq_ray.errors import NotAuthorized, RmqError, SendError
from rmq_ray.model.ids import Address
from rmq_ray.ports import ClusterAddress
from rmq_ray.protocol.access.accounts import Account, Right
from rmq_ray.protocol.access.rules import AccessRules
from rmq_ray.remoting.connection import Connection
from rmq_ray.remoting.request_table import REQUESTS, Party
from rmq_ray.remoting.wire.codes import RequestCode as Code
from rmq_ray.remoting.wire.frame import Command
from rmq_ray.server.security.access_guard import APACHES_WORDS
from tests.support.asked_requests import signed
from tests.support.brokers.live_cluster import CLUSTER, LiveCluster
from tests.support.waiting import eventually

SECRET = "the secret of all"
BOTH = Right.PUB | Right.SUB
SHOP = Account("web-shop", SECRET, topics={"orders": Right.PUB})
BILLS = Account("billing", SECRET, topics={"orders": Right.SUB}, groups={"bills": Right.SUB})
CHIEF = Account("operator", SECRET, admin=True)
RULES = AccessRules({one.access_key: one for one in (SHOP, BILLS, CHIEF)}, version=1)
WAIT_MS = 20_000

pytestmark = pytest.mark.timeout(120)


class As:
    """The discovery of a client that is this account."""

    def __init__(self, cluster: LiveCluster, access_key: str) -> None:
        self._cluster = cluster
        self._proof = AccountProof.of(access_key, SECRET, CLUSTER)

    def lookup(self) -> ClusterAddress:
        return self._proof.at(self._cluster.lookup())


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[LiveCluster]:
    with LiveCluster(tmp_path, rules=RULES) as running:
        with Producer("chief", discovery=As(running, "operator"), send_timeout_ms=WAIT_MS) as one:
            one.send("orders", b"first")
        yield running


def broker_of(cluster: LiveCluster) -> Address:
    address = cluster.brokers[0].address
    assert address is not None
    return address


@pytest.fixture
def stranger(cluster: LiveCluster) -> Iterator[Connection]:
    """A connection as Apache RocketMQ's clients make it: without our handshake."""
    connection = Connection(broker_of(cluster), None, RemotingLimits(), SYSTEM_CLOCK)
    yield connection
    connection.close()


def sending(key: str, secret: str = SECRET, **changed: str) -> Command:
    """SEND_MESSAGE as their clients sign it."""
    fields = {
        "producerGroup": "java",
        "topic": "orders",
        "defaultTopic": "TBW102",
        "defaultTopicQueueNums": "4",
        "queueId": "0",
        "sysFlag": "0",
        "bornTimestamp": str(int(time.time() * 1000)),
        "flag": "0",
        "properties": "",
        "reconsumeTimes": "0",
        "unitMode": "false",
        "batch": "false",
    }
    made = signed(Command(Code.SEND_MESSAGE, fields=fields, body=b"body"), key, secret)
    return replace(made, fields={**(made.fields or {}), **changed})


def test_nobody_is_served_by_no_code_of_brokers_and_name_servers(
    cluster: LiveCluster, stranger: Connection
) -> None:
    servers = {
        Party.BROKER: stranger,
        Party.NAME_SERVER: Connection(
            Address.parse(cluster.lookup().name_servers[0]), None, RemotingLimits(), SYSTEM_CLOCK
        ),
    }
    asked = 0
    for row in REQUESTS:
        if row.served_by in servers:
            answer = servers[row.served_by].request(Command(row.code, fields={}), WAIT_MS)
            assert answer.code != 0, row.code
            assert "accessKey" in str(answer.remark) or "secret" in str(answer.remark), row.code
            asked += 1
    servers[Party.NAME_SERVER].close()
    assert asked > 60
    refused = cluster.brokers[0].audit.status()["refused"]
    assert refused > 30, "each refusal is noted"
    assert cluster.brokers[0].audit.status()["failed"] == 0, "each is noted once, and folded"
    assert cluster.brokers[0].status()["access"]["refused"] > 20
    told = {family.name: family for family in cluster.name_server.server.metrics()}  # type: ignore[union-attr]
    (series,) = told["rmq_ray_name_server_refused_requests_total"].samples
    assert series.labels["account"] == "" and series.value > 10


def test_a_signed_send_is_stored_and_a_wrong_one_is_not(
    cluster: LiveCluster, stranger: Connection
) -> None:
    stored = cluster.store().bounds("orders", 0)[1]
    for wrong in (
        sending("web-shop", "another secret"),
        sending("web-shop", topic="payroll"),
        sending("nobody-at-all"),
        sending("billing"),
    ):
        answer = stranger.request(wrong, WAIT_MS)
        assert answer.code == 1 and str(answer.remark).startswith(APACHES_WORDS)
    assert cluster.store().bounds("orders", 0)[1] == stored
    (family,) = [
        family
        for family in cluster.run(cluster.brokers[0].metrics())
        if family.name == "rmq_ray_refused_requests_total"
    ]
    found = {sample.labels["account"]: sample.value for sample in family.samples}
    assert found == {"": 3, "billing": 1}, "of who proved nothing, and of an account"
    assert stranger.request(sending("web-shop"), WAIT_MS).code == 0
    assert cluster.store().bounds("orders", 0)[1] == stored + 1


def test_a_right_that_is_taken_away_holds_from_the_next_request_on(
    cluster: LiveCluster, stranger: Connection
) -> None:
    assert stranger.request(sending("web-shop"), WAIT_MS).code == 0
    shop, chief = (
        Producer(name, discovery=As(cluster, name), send_timeout_ms=WAIT_MS)
        for name in ("web-shop", "operator")
    )
    with shop, chief:
        shop.send("orders", b"while it may")
        cluster.set_access_rules(RULES.with_account(Account("web-shop", SECRET)))
        with pytest.raises((NotAuthorized, SendError), match="web-shop may not PUB on topic orde"):
            shop.send("orders", b"any more")
        assert stranger.request(sending("web-shop"), WAIT_MS).code == 1
        chief.send("orders", b"others go on")


def test_an_account_reads_what_it_may_and_a_message_by_its_place_only_then(
    cluster: LiveCluster,
) -> None:
    with PullConsumer("bills", discovery=As(cluster, "billing")) as reader:
        queues = reader.fetch_message_queues("orders")
        found = [m for queue in queues for m in reader.pull(queue, "*", 0).messages]
        assert [bytes(message.body) for message in found] == [b"first"]
    with (
        PullConsumer("others", discovery=As(cluster, "billing")) as reader,
        pytest.raises(NotAuthorized, match="on group others"),
    ):
        reader.pull(queues[0], "*", 0)
    view = Command(Code.VIEW_MESSAGE_BY_ID, fields={"offset": str(found[0].log_offset)})
    for account, code in (("billing", 0), ("web-shop", 20004), ("operator", 0)):
        credentials = As(cluster, account).lookup()
        connection = connected(cluster, credentials)
        assert connection.request(view, WAIT_MS).code == code, account
        connection.close()


def connected(cluster: LiveCluster, where: ClusterAddress) -> Connection:
    from rmq_ray.remoting.handshake import Credentials

    return Connection(
        broker_of(cluster),
        Credentials(where.cluster, "broker", where.secret, where.access_key),
        RemotingLimits(),
        SYSTEM_CLOCK,
    )


def test_one_way_requests_without_a_right_are_dropped_and_noted(
    cluster: LiveCluster, stranger: Connection
) -> None:
    before = cluster.brokers[0].status()["access"]["refused"]
    stranger.oneway(sending("billing"))
    eventually(lambda: cluster.brokers[0].status()["access"]["refused"] == before + 1)
    assert stranger.request(sending("web-shop"), WAIT_MS).code == 0, "the connection goes on"


def test_without_rules_members_alone_are_served(tmp_path: Path) -> None:
    with LiveCluster(tmp_path, rules=AccessRules()) as cluster:
        with Producer("member", discovery=cluster, send_timeout_ms=WAIT_MS) as member:
            member.send("orders", b"of the cluster itself")
        with pytest.raises(RmqError):
            connected(cluster, As(cluster, "web-shop").lookup())


def test_an_account_cannot_fill_a_broker_with_topics_and_groups(tmp_path: Path) -> None:
    wide = Account("wide-shop", SECRET, default_topic=BOTH, default_group=Right.SUB)
    rules = AccessRules({one.access_key: one for one in (wide, CHIEF)}, version=1)
    limits = RemotingLimits(account_names_max=3)
    with LiveCluster(tmp_path, rules=rules, broker={"limits": limits}) as cluster:
        stranger = Connection(broker_of(cluster), None, RemotingLimits(), SYSTEM_CLOCK)
        with Producer("shop", discovery=As(cluster, "wide-shop"), send_timeout_ms=WAIT_MS) as shop:
            for topic in ("one", "two", "three", "one"):
                shop.send(topic, b"x")
            for send in (shop.send, shop.send_oneway):
                with suppress(SendError):
                    send("four", b"x")
            with pytest.raises(NotAuthorized, match="topic four is one too many"):
                shop.send("four", b"x")
            five = sending("", topic="five")
            answer = stranger.request(signed(five, "wide-shop", SECRET), WAIT_MS)
            assert answer.code == 1 and "topic five is one too many" in str(answer.remark)
            assert shop.send("two", b"x")
            core = cluster.brokers[0]._core
            assert core is not None
            assert {"four", "five"}.isdisjoint(core.tables.topics.names())
            with Producer(
                "chief", discovery=As(cluster, "operator"), send_timeout_ms=WAIT_MS
            ) as chief:
                chief.send("four", b"x")
            assert shop.send("four", b"x"), "it is there"
        stranger.close()
