"""Heartbeats, notices, member lists, connections: through a whole broker core."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from rmq_ray.model.groups import ConsumeType, Heartbeat
from rmq_ray.model.topics import GroupConfig, TopicConfig
from rmq_ray.remoting.wire import bodies, bodies_admin, body_json
from rmq_ray.remoting.wire.codes import RequestCode as Code
from rmq_ray.remoting.wire.codes import ResponseCode
from rmq_ray.remoting.wire.frame import FLAG_ONEWAY
from tests.support.brokers.broker_bench import Bench
from tests.support.faults.fake_peer import FakePeer


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    made = Bench(tmp_path).open()
    yield made
    made.close()


def notices(peer: FakePeer) -> list[str]:
    return [
        sent.fields["consumerGroup"]
        for sent in peer.take()
        if sent.code == Code.NOTIFY_CONSUMER_IDS_CHANGED
    ]


def member_list(bench: Bench, group: str = "billing") -> list[str] | None:
    answer = bench.ask(Code.GET_CONSUMER_LIST_BY_GROUP, {"consumerGroup": group})
    return bodies.decode_consumer_ids(answer.body) if answer.code == 0 else None


@pytest.mark.seed("S4-196", "S4-202")
def test_a_heartbeat_makes_the_group_and_its_retry_topic(bench: Bench) -> None:
    assert bench.heartbeat(FakePeer()).code == 0
    assert "billing" in bench.core.tables.groups
    assert bench.core.tables.topics.get("%RETRY%billing") == TopicConfig("%RETRY%billing", 1, 1, 6)
    config = (Path(bench.config.store.path) / "config" / "subscriptionGroup.json").read_text()
    assert '"billing"' in config


def test_the_notice_leaves_before_the_answer_and_to_all_members(bench: Bench) -> None:
    one, two = FakePeer(port=1), FakePeer(port=2)
    bench.heartbeat(one)
    first = one.take()
    assert [(sent.code, sent.flag, sent.fields) for sent in first] == [
        (40, FLAG_ONEWAY, {"consumerGroup": "billing"})
    ]
    bench.heartbeat(two)
    assert notices(one) == notices(two) == ["billing"]
    bench.heartbeat(two, version=7)
    assert notices(one) == notices(two) == [], "a newer version alone changes nothing"
    bench.heartbeat(two, topics=("orders", "clicks"), version=8)
    assert notices(one) == notices(two) == ["billing"]


@pytest.mark.seed("S4-200")
def test_groups_may_switch_notices_off(bench: Bench) -> None:
    bench.core.tables.groups.put(GroupConfig("billing", notify_ids_changed=False))
    peer = FakePeer()
    bench.heartbeat(peer)
    assert peer.sent == []


@pytest.mark.seed("S3-131")
def test_a_crashed_members_connection_tells_the_others_at_once(bench: Bench) -> None:
    one, two = FakePeer(port=1), FakePeer(port=2)
    bench.heartbeat(one, client_id="c1")
    bench.heartbeat(two, client_id="c2")
    notices(two)
    bench.core.closed(one)
    assert notices(two) == ["billing"] and member_list(bench) == ["c2"]


@pytest.mark.seed("S1-043")
def test_members_are_listed_and_an_empty_group_is_an_error(bench: Bench) -> None:
    assert member_list(bench) is None
    bench.heartbeat(FakePeer(port=1), client_id="c1")
    bench.heartbeat(FakePeer(port=2), client_id="c2")
    assert member_list(bench) == ["c1", "c2"]


def test_unregistering_leaves_the_group(bench: Bench) -> None:
    one, two = FakePeer(port=1), FakePeer(port=2)
    bench.heartbeat(one, client_id="c1")
    bench.heartbeat(two, client_id="c2")
    notices(two)
    answer = bench.ask(
        Code.UNREGISTER_CLIENT, {"clientID": "c1", "consumerGroup": "billing"}, peer=one
    )
    assert (
        answer.code == 0
        and answer.fields == {}
        and member_list(bench) == ["c2"]
        and notices(two) == ["billing"]
    )


def test_a_silent_connection_is_closed_after_two_minutes(bench: Bench) -> None:
    quiet, lively = FakePeer(port=1), FakePeer(port=2)
    bench.heartbeat(quiet, client_id="c1")
    bench.clock.advance_ms(100_000)
    bench.heartbeat(lively, client_id="c2")
    bench.clock.advance_ms(25_000)
    bench.core.tick()
    assert quiet.closed and not lively.closed and member_list(bench) == ["c2"]


def test_a_heartbeat_that_is_no_json_is_refused(bench: Bench) -> None:
    assert bench.ask(Code.HEART_BEAT, None, b"{").code == ResponseCode.SYSTEM_ERROR
    assert bench.ask(Code.HEART_BEAT, None, b"{}").code == ResponseCode.SYSTEM_ERROR


def test_producer_groups_are_known_with_their_connections(bench: Bench) -> None:
    peer = FakePeer()
    assert (
        bench.ask(Code.GET_PRODUCER_CONNECTION_LIST, {"producerGroup": "web"}).code
        == ResponseCode.SYSTEM_ERROR
    )
    bench.ask(Code.HEART_BEAT, None, bodies.encode_heartbeat(Heartbeat("p1", ("web",))), peer)
    found = bodies_admin.decode_connections(
        bench.ask(Code.GET_PRODUCER_CONNECTION_LIST, {"producerGroup": "web"}).body
    )
    assert [
        (client.client_id, client.address, client.language, client.version) for client in found
    ] == [("p1", "10.0.0.9:40001", "PYTHON", 407)]


def test_consumer_connections_show_how_the_group_consumes(bench: Bench) -> None:
    answer = bench.ask(Code.GET_CONSUMER_CONNECTION_LIST, {"consumerGroup": "billing"})
    assert answer.code == ResponseCode.CONSUMER_NOT_ONLINE
    bench.heartbeat(FakePeer(), expression="paid")
    found = body_json.parse(
        bench.ask(Code.GET_CONSUMER_CONNECTION_LIST, {"consumerGroup": "billing"}).body
    )
    assert (found["consumeType"], found["messageModel"], found["consumeFromWhere"]) == (
        ConsumeType.CONSUME_PASSIVELY.name,
        "CLUSTERING",
        "CONSUME_FROM_LAST_OFFSET",
    )
    assert found["subscriptionTable"]["orders"]["tagsSet"] == ["paid"]


def test_subscriptions_that_cannot_be_served_are_told_at_start(bench: Bench) -> None:
    for kind, expression, code in (
        ("TAG", "a > 5", 0),
        ("SQL92", "a > 5", 0),
        ("SQL92", "a >", 23),
    ):
        body = body_json.write(
            {
                "clientId": "c",
                "group": "g",
                "subscriptionData": {
                    "topic": "orders",
                    "expressionType": kind,
                    "subString": expression,
                },
            }
        )
        assert bench.ask(Code.CHECK_CLIENT_CONFIG, None, body).code == code


def test_a_connection_that_names_groups_without_end_is_refused_and_leaves_none_behind(
    bench: Bench,
) -> None:
    def beat(peer: FakePeer, *groups: str) -> str | None:
        body = bodies.encode_heartbeat(Heartbeat("c1", groups))
        answer = bench.ask(Code.HEART_BEAT, None, body, peer)
        return None if answer.code == 0 else answer.remark

    eve, shop = FakePeer(port=1), FakePeer(port=2)
    assert beat(shop, "shops") is None
    for first in range(0, 1_024, 256):
        assert beat(eve, *(f"p{n}" for n in range(first, first + 256))) is None
    assert beat(eve, "p0", "p1") is None, "the same ones again"
    for groups in (("another",), tuple(f"q{n}" for n in range(1_025))):
        assert "more than 1024 groups over one connection" in (beat(eve, *groups) or "")
    assert "more than 255 characters" in (beat(shop, "x" * 256) or "")
    producers = bench.core.members.producers
    assert len(producers.groups()) == 1_025
    bench.core.closed(eve)
    assert set(producers.groups()) == {"shops"} and not producers.groups_of(eve)
