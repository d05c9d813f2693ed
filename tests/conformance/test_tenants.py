"""What one account must not do to another by detours: replies, checks of halves, records that are
named by their place, client ids.
"""

from __future__ import annotations

import queue
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest

from rmq_ray.client.producer.producer import Producer
from rmq_ray.clock import SYSTEM_CLOCK
from rmq_ray.config import RemotingLimits, TlsSettings
from rmq_ray.errors import RemotingError
from rmq_ray.model.topics import REPLY_SUFFIX
from rmq_ray.ports import Peer
from rmq_ray.protocol.access.accounts import Account, Right
from rmq_ray.protocol.access.rules import AccessRules
from rmq_ray.remoting.connection import Connection
from rmq_ray.remoting.wire.codes import RequestCode as Code
from rmq_ray.remoting.wire.frame import Command
from rmq_ray.server.admin.admin_handlers import _flat
from rmq_ray.server.groups.membership import Client, GroupMembership
from rmq_ray.server.transaction.transaction_asker import TransactionAsker
from tests.support.asked_requests import signed
from tests.support.brokers.live_cluster import CLUSTER, LiveCluster
from tests.support.waiting import eventually

SECRET = "the secret of all"
RULES = AccessRules(
    {
        one.access_key: one
        for one in (
            Account("eve-shop", SECRET),
            Account("web-shop", SECRET, topics={"orders": Right.PUB}),
            Account(
                "our-reader", SECRET, topics={"orders": Right.SUB}, groups={"reads": Right.SUB}
            ),
            Account("operator", SECRET, admin=True),
        )
    },
    version=1,
)
WAIT_MS, WAIT_S = 20_000, 20

pytestmark = pytest.mark.timeout(120)


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[LiveCluster]:
    with LiveCluster(tmp_path, rules=RULES) as running:
        with Producer("ours", discovery=running) as ours:
            ours.send("orders", b"secret")
        yield running


@pytest.fixture
def connection(cluster: LiveCluster) -> Iterator[Connection]:
    """As Apache RocketMQ's clients make it."""
    address = cluster.brokers[0].address
    assert address is not None
    made = Connection(address, None, RemotingLimits(), SYSTEM_CLOCK)
    yield made
    made.close()


def of(account: str, code: Code, fields: dict[str, str], body: bytes = b"") -> Command:
    return signed(Command(code, fields=fields, body=body), account, SECRET)


def reply(account: str, topic: str) -> Command:
    fields = {
        "producerGroup": "repliers",
        "topic": topic,
        "defaultTopic": "TBW102",
        "defaultTopicQueueNums": "4",
        "queueId": "0",
        "sysFlag": "0",
        "bornTimestamp": str(int(time.time() * 1000)),
        "flag": "0",
        "properties": "REPLY_TO_CLIENT\1nobody",
        "reconsumeTimes": "0",
    }
    return of(account, Code.SEND_REPLY_MESSAGE, fields, b"a reply")


def test_a_reply_is_no_way_into_topics(cluster: LiveCluster, connection: Connection) -> None:
    core = cluster.brokers[0]._core
    assert core is not None
    before, topics = cluster.store().end_offset, core.tables.topics.names()
    for topic in ("orders", "brand-new", "%DLQ%bills", f"evil{REPLY_SUFFIX}"):
        assert connection.request(reply("eve-shop", topic), WAIT_MS).code != 0
    assert cluster.store().end_offset == before and core.tables.topics.names() == topics
    answer = connection.request(reply("eve-shop", CLUSTER + REPLY_SUFFIX), WAIT_MS)
    assert "channel of <nobody> not found" in str(answer.remark), "whom it is for is not there"


def test_a_request_is_judged_as_who_signed_it_whatever_follows_on_its_connection(
    cluster: LiveCluster, connection: Connection
) -> None:
    view = {"offset": "0"}
    came: queue.SimpleQueue[Any] = queue.SimpleQueue()
    for _ in range(20):
        connection.request_async(of("eve-shop", Code.VIEW_MESSAGE_BY_ID, view), WAIT_MS, came.put)
        chief = connection.request(of("operator", Code.VIEW_MESSAGE_BY_ID, view), WAIT_MS)
        assert chief.code == 0 and b"secret" in chief.body_bytes()
        answer = came.get(timeout=WAIT_S)
        assert answer.code != 0 and b"secret" not in answer.body_bytes()


class Heard:
    """A connection as the broker's tables see it."""

    def __init__(self, account: str, member: bool = False) -> None:
        self.account, self.member, self.closed = account, member, False
        self.hung_up = True
        self.attributes: dict[str, Any] = {}


def as_peer(heard: Heard) -> Peer:
    return cast(Peer, heard)


def test_only_who_may_send_to_its_topic_is_asked_about_a_half() -> None:
    members = GroupMembership("broker-a", SYSTEM_CLOCK)
    eve, shop = Heard("eve-shop"), Heard("web-shop")
    asker = TransactionAsker(
        members, ("::1", 1), lambda peer, topic: (peer.account, topic) == ("web-shop", "orders")
    )
    members.producers.register("shops", as_peer(eve), Client("eve", 0))
    assert asker.find("shops", "orders") is None
    members.producers.register("shops", as_peer(shop), Client("shop", 0))
    assert {asker.find("shops", "orders") for _ in range(4)} == {as_peer(shop)}
    assert asker.find("shops", "payroll") is None


def test_a_broker_asks_as_its_accounts_may(cluster: LiveCluster) -> None:
    core = cluster.brokers[0]._core
    assert core is not None
    for account, member, may in (
        ("eve-shop", False, False),
        ("web-shop", False, True),
        ("operator", False, True),
        ("gone", False, False),
        ("", False, False),
        ("", True, True),
    ):
        assert core.dispatch.may_send(as_peer(Heard(account, member)), "orders") is may


def test_a_client_id_is_nobody_elses_while_its_connection_stands_and_none_is_left_behind() -> None:
    members = GroupMembership("broker-a", SYSTEM_CLOCK)
    shop, eve = Heard("web-shop"), Heard("eve-shop")
    members.introduce(as_peer(shop), "shop")
    members.introduce(as_peer(eve), "shop")
    assert members.channel("shop") is as_peer(shop)
    again = Heard("web-shop")
    members.introduce(as_peer(again), "shop")
    assert members.channel("shop") is as_peer(again), "a client's new connection"
    again.closed = True
    members.introduce(as_peer(eve), "shop")
    assert members.channel("shop") is as_peer(eve)
    for number in range(100):
        members.introduce(as_peer(eve), f"eve-{number}")
    assert members.channel("eve-98") is None and members.channel("eve-99") is as_peer(eve)
    members.forget(as_peer(eve))
    assert not [name for name in members._channels if name.startswith("eve")]


def test_settings_that_are_told_have_no_secret() -> None:
    told = dict(_flat(replace(TlsSettings(), key_password="hush"), "tls."))
    assert "tls.certificate" in told and "hush" not in told.values()


def test_a_client_id_has_an_end(connection: Connection) -> None:
    body = b'{"clientID":"%s","producerDataSet":[],"consumerDataSet":[]}'
    for length, code in ((1_024, 0), (1_025, 1)):
        beat = of("web-shop", Code.HEART_BEAT, {}, body % (b"x" * length))
        assert connection.request(beat, WAIT_MS).code == code


def parking_pull(account: str, end: int) -> Command:
    fields = {
        "consumerGroup": "reads",
        "topic": "orders",
        "queueId": "0",
        "queueOffset": str(end),
        "maxMsgNums": "32",
        "sysFlag": "6",
        "commitOffset": "0",
        "suspendTimeoutMillis": str(WAIT_MS),
        "subscription": "*",
        "subVersion": "0",
    }
    return of(account, Code.PULL_MESSAGE, fields)


@pytest.mark.parametrize("ending", ["gone", "without a right", "with another secret"])
def test_what_waits_for_an_account_ends_with_what_it_was(
    cluster: LiveCluster, connection: Connection, ending: str
) -> None:
    core = cluster.brokers[0]._core
    assert core is not None
    came: queue.SimpleQueue[Any] = queue.SimpleQueue()
    of_queue = {"topic": "orders", "queueId": "0"}
    told = connection.request(of("operator", Code.GET_MAX_OFFSET, of_queue), WAIT_MS)
    end = int((told.fields or {})["offset"])
    connection.request_async(parking_pull("our-reader", end), WAIT_MS, came.put)
    eventually(lambda: core.status()["parked_pulls"] == 1)
    reader = RULES.find("our-reader")
    assert reader is not None
    cluster.set_access_rules(
        {
            "gone": RULES.without("our-reader"),
            "without a right": RULES.with_account(replace(reader, groups={})),
            "with another secret": RULES.with_account(replace(reader, secret_key="another one")),
        }[ending]
    )
    assert isinstance(came.get(timeout=WAIT_S), RemotingError)
    eventually(lambda: core.status()["parked_pulls"] == 0)


def test_rights_that_grow_and_those_of_others_disturb_nobody(
    cluster: LiveCluster, connection: Connection
) -> None:
    of_reader = {"group": "reads", "topic": "orders"}
    assert connection.request(of("our-reader", Code.GET_CONSUMER_LIST_BY_GROUP, of_reader), WAIT_MS)
    reader = RULES.find("our-reader")
    assert reader is not None
    wider = replace(reader, topics={"orders": Right.PUB | Right.SUB})
    cluster.set_access_rules(RULES.with_account(wider).without("eve-shop"))
    assert connection.request(of("our-reader", Code.GET_CONSUMER_LIST_BY_GROUP, of_reader), WAIT_MS)
    assert RULES.narrowed(RULES.with_account(wider)) == frozenset()
    assert RULES.narrowed(RULES.without("eve-shop")) == {"eve-shop"}
