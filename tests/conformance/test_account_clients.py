"""Our clients as accounts: they come in by the key that they prove, are known to servers as that
account, and what they are refused is a typed error that says who refused what.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from rmq_ray.actors.clients.async_producers import AsyncProducer
from rmq_ray.actors.clients.consumers import PullConsumer, PushConsumer, SimpleConsumer
from rmq_ray.actors.clients.producers import Producer
from rmq_ray.actors.discovery import discovery_for
from rmq_ray.client.admin.admin import Admin
from rmq_ray.client.scan.scan_plan import open_reader, plan_scan
from rmq_ray.errors import HandshakeFailed, NotAuthorized, RouteNotAuthorized, SendError
from rmq_ray.ports import Peer
from rmq_ray.protocol.access.accounts import Account
from rmq_ray.protocol.access.decision import Action
from rmq_ray.remoting.request_table import Handler, Row
from rmq_ray.remoting.wire.frame import Command
from tests.support.brokers.live_cluster import CLUSTER, LiveCluster
from tests.support.clients.collecting import Collector
from tests.support.waiting import eventually

SECRETS = {"web-shop": "the secret of shops", "billing": "the secret of bills"}

pytestmark = pytest.mark.timeout(120)


class Doors:
    """A live cluster that knows these accounts. ``denied``: what which account may not;
    ``seen``: who asked its servers.
    """

    def __init__(self, cluster: LiveCluster) -> None:
        keys = {name: Account(name, text).handshake_key(CLUSTER) for name, text in SECRETS.items()}
        self.denied: set[tuple[str, Action]] = set()
        self.seen: set[tuple[str, bool]] = set()
        self._cluster = cluster
        core, names = cluster.brokers[0]._core, cluster.name_server
        assert core is not None and names is not None
        cluster.brokers[0]._listener.account_key = names._listener.account_key = keys.get
        for requests in (core.dispatch.requests, names.server._requests):
            for code, (row, handler) in requests.items():
                requests[code] = (row, self._guarded(row, handler))

    def of(self, account: str, **changed: Any) -> dict[str, Any]:
        """What its clients are given."""
        servers = self._cluster.lookup().name_servers
        keys = {"access_key": account, "secret_key": SECRETS.get(account, "no secret at all")}
        return {"cluster": CLUSTER, "name_servers": servers, **keys, **changed}

    def _guarded(self, row: Row, handler: Handler) -> Handler:
        def run(command: Command, peer: Peer) -> Command | None:
            self.seen.add((peer.account, peer.member))
            if (peer.account, row.action) in self.denied:
                raise NotAuthorized(
                    f"the account {peer.account} may not {row.action.value} on topic orders; an "
                    f"administrator can grant it (rmq-ray acl grant)"
                )
            return handler(command, peer)

        return run


@pytest.fixture
def doors(tmp_path: Path) -> Iterator[Doors]:
    with LiveCluster(tmp_path) as cluster:
        yield Doors(cluster)


def test_every_kind_of_client_is_its_account_and_no_member(doors: Doors) -> None:
    where = doors.of("web-shop")

    async def send() -> None:
        async with AsyncProducer(**where, send_timeout_ms=20_000) as producer:
            await producer.send("orders", b"of a loop")

    with Producer(**where, send_timeout_ms=20_000) as producer:
        producer.send_batch("orders", [b"of a thread"] * 3)
    asyncio.run(send())
    with PullConsumer("pull", **where) as reader:
        assert reader.watermark_offsets(reader.fetch_message_queues("orders")[0])
    collector = Collector()
    with PushConsumer(
        "push", listener=collector, subscriptions={"orders": "*"}, start_from="first", **where
    ):
        collector.wait_for(4)
    with SimpleConsumer("orders", "pop", start_from="first", **where) as worker:
        worker.receive(1, wait=0.1)
    keys = where["access_key"], where["secret_key"]
    discovery = discovery_for(CLUSTER, where["name_servers"], b"", None, *keys)
    with plan_scan(discovery, "orders", "earliest", "latest", 1) as plan:
        assert plan.rows == 4
        open_reader(plan).close()
    admin = Admin(discovery)
    assert admin.topic_stats("orders")
    admin.close()
    assert {who for who in doors.seen if who[0]} == {("web-shop", False)}
    assert doors.seen <= {("web-shop", False), ("", True)}


def test_a_refused_send_is_a_send_error_and_a_not_authorized_that_names_the_right(
    doors: Doors,
) -> None:
    with (
        Producer(**doors.of("web-shop"), send_timeout_ms=20_000) as ours,
        Producer("others", **doors.of("billing"), send_timeout_ms=20_000) as others,
    ):
        ours.send("orders", b"1")
        doors.denied.add(("web-shop", Action.PUB))
        for kind in (SendError, NotAuthorized):
            with pytest.raises(kind, match="account web-shop may not PUB on topic orders"):
                ours.send("orders", b"2")
        with pytest.raises(NotAuthorized, match="acl grant"):
            ours.send_async("orders", b"3").result(20)
        assert others.send("orders", b"4")
        doors.denied.clear()
        assert ours.send("orders", b"5"), "a right that came back needs no new client"


def test_a_topic_whose_route_is_refused_fails_at_once_and_typed(doors: Doors) -> None:
    where = doors.of("web-shop")
    doors.denied.add(("web-shop", Action.ANY))
    told = "name server refused the route of 'wages': the account web-shop may not"
    for kind in (SendError, NotAuthorized):
        with (
            Producer(**where, send_timeout_ms=60_000) as producer,
            pytest.raises(kind, match=told) as caught,
        ):
            producer.send("wages", b"x")
        assert isinstance(caught.value.__cause__, RouteNotAuthorized)
    with (
        PullConsumer("g", **where) as reader,
        pytest.raises(NotAuthorized, match=told),
    ):
        reader.fetch_message_queues("wages")


def test_a_consumer_that_lost_its_right_says_so_and_others_and_later_messages_go_on(
    doors: Doors, caplog: pytest.LogCaptureFixture
) -> None:
    mine, theirs = Collector(), Collector()
    wanted: dict[str, Any] = {"subscriptions": {"orders": "*"}, "start_from": "first"}
    with (
        caplog.at_level(logging.WARNING, "rmq_ray"),
        Producer("members", **doors.of("billing"), send_timeout_ms=20_000) as producer,
        PushConsumer("shop", listener=mine, **wanted, **doors.of("web-shop")),
        PushConsumer("bills", listener=theirs, **wanted, **doors.of("billing")),
    ):
        producer.send("orders", b"before")
        mine.wait_for(1)
        doors.denied.add(("web-shop", Action.SUB))
        producer.send("orders", b"meanwhile")
        theirs.wait_for(2)
        refused = "refused: NotAuthorized: the account web-shop may not SUB on topic orders"
        eventually(lambda: refused in caplog.text)
        doors.denied.clear()
        eventually(lambda: b"meanwhile" in mine.bodies)
    assert "the secret of" not in caplog.text


def test_a_group_that_is_not_let_in_says_so_and_is_once_it_may(
    doors: Doors, caplog: pytest.LogCaptureFixture
) -> None:
    doors.denied.add(("web-shop", Action.SUB))
    collector = Collector()
    with (
        caplog.at_level(logging.WARNING, "rmq_ray"),
        Producer("members", **doors.of("billing"), send_timeout_ms=20_000) as producer,
    ):
        producer.send("orders", b"waits")
        with PushConsumer(
            "shop",
            listener=collector,
            subscriptions={"orders": "*"},
            start_from="first",
            **doors.of("web-shop"),
        ) as consumer:
            why = eventually(lambda: consumer.stats()["refused"])
            assert "account web-shop may not SUB" in why
            eventually(lambda: why in caplog.text)
            doors.denied.clear()
            collector.wait_for(1)
            eventually(lambda: consumer.stats()["refused"] == "")


def test_a_bulk_read_that_is_refused_is_typed_when_it_is_planned_and_when_it_runs(
    doors: Doors,
) -> None:
    where = doors.of("web-shop")
    keys = where["access_key"], where["secret_key"]
    discovery = discovery_for(CLUSTER, where["name_servers"], b"", None, *keys)
    with Producer(**doors.of("billing"), send_timeout_ms=20_000) as producer:
        producer.send("orders", b"1")
    with plan_scan(discovery, "orders", "earliest", "latest", 1) as plan:
        doors.denied |= {("web-shop", Action.SUB), ("web-shop", Action.ANY)}
        split = replace(plan.splits[0], host_id="elsewhere")
        reader = open_reader(plan)
        with pytest.raises(NotAuthorized, match="account web-shop may not SUB"):
            list(reader.read(split, 1 << 16))
        reader.close()
    with pytest.raises(NotAuthorized, match="account web-shop may not"):
        plan_scan(discovery, "orders", "earliest", "latest", 1)


def test_administration_that_is_refused_is_typed(doors: Doors) -> None:
    where = doors.of("web-shop")
    doors.denied.add(("web-shop", Action.ADMIN))
    keys = where["access_key"], where["secret_key"]
    admin = Admin(discovery_for(CLUSTER, where["name_servers"], b"", None, *keys))
    try:
        with pytest.raises(NotAuthorized, match="account web-shop may not"):
            admin.create_topic("made", queues=1)
    finally:
        admin.close()


@pytest.mark.parametrize("changed", [{"secret_key": "another secret"}, {"access_key": "web-shed"}])
def test_keys_that_no_account_has_are_told_as_such(doors: Doors, changed: dict[str, str]) -> None:
    where = doors.of("web-shop", **changed)
    told = f"no account '{where['access_key']}' with this secret"
    began = time.monotonic()
    with (
        Producer(**where, send_timeout_ms=100_000) as producer,
        pytest.raises(NotAuthorized, match=told) as caught,
    ):
        producer.send("orders", b"x")
    with PullConsumer("g", **where) as reader, pytest.raises(HandshakeFailed, match=told):
        reader.fetch_message_queues("orders")

    async def sent() -> None:
        async with AsyncProducer(**where, send_timeout_ms=100_000) as sender:
            await sender.send("orders", b"x")

    with pytest.raises(NotAuthorized, match=told):
        asyncio.run(sent())
    assert time.monotonic() - began < 50, "none of them waits for what cannot come"
    assert where["secret_key"] not in repr(caught.value)
    keys = where["access_key"], where["secret_key"]
    admin = Admin(discovery_for(CLUSTER, where["name_servers"], b"", None, *keys))
    try:
        with pytest.raises(HandshakeFailed, match=told):
            admin.topics()
    finally:
        admin.close()
