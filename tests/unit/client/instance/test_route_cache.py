"""Routes are looked up, compared, kept and dropped as RocketMQ's client does (protocol-behaviour 6,
7).
"""

from __future__ import annotations

import logging
import threading
from dataclasses import replace

import pytest

from rmq_ray.client.instance.route_cache import LOCK_TIMEOUT_MS, READ_ONLY_MS, RouteCache
from rmq_ray.clock import ManualClock
from rmq_ray.errors import ConnectFailed, NoRoute, TopicNotFound, TopicNotWritable
from rmq_ray.model.ids import Address, MessageQueue
from rmq_ray.model.topics import BrokerData, QueueData, TopicRoute


def route(
    *brokers: str, queues: int = 2, port: int = 10911, ids: tuple[int, ...] = (0,)
) -> TopicRoute:
    return TopicRoute(
        tuple(QueueData(name, queues, queues, 6) for name in brokers),
        tuple(
            BrokerData("c", name, {number: f"{name}.host:{port + number}" for number in ids})
            for name in brokers
        ),
    )


class NameServer:
    """What a cache may fetch: a table that tests change; ``down`` makes it unreachable."""

    def __init__(self, **routes: TopicRoute) -> None:
        self.routes = routes
        self.asked: list[str] = []
        self.down = False

    def __call__(self, topic: str, _until_ms: float = 0.0) -> TopicRoute | None:
        self.asked.append(topic)
        if self.down:
            raise ConnectFailed("no name server")
        return self.routes.get(topic)


@pytest.mark.seed("S0-026", "S3-027")
def test_a_topic_is_looked_up_once_and_then_known() -> None:
    server = NameServer(orders=route("b", "a"))
    cache = RouteCache(server)
    info = cache.find_publish("orders")
    assert [queue.broker_name for queue in info.queues] == ["a", "a", "b", "b"]
    assert cache.find_publish("orders") is info
    assert server.asked == ["orders"]


def test_an_unknown_topic_takes_the_templates_route_with_fewer_queues() -> None:
    server = NameServer(TBW102=route("a", queues=8))
    cache = RouteCache(server)
    assert cache.find_publish("new").queues == tuple(
        MessageQueue("new", "a", number) for number in range(4)
    )
    assert server.asked == ["new", "TBW102"]
    assert len(RouteCache(server).find_publish("new", 2).queues) == 2


@pytest.mark.seed("S3-045")
def test_without_route_and_template_the_topic_is_not_found() -> None:
    with pytest.raises(TopicNotFound, match="no route info of topic 'ghost'") as caught:
        RouteCache(NameServer()).find_publish("ghost")
    assert (caught.value.args[1], caught.value.code) == ("ghost", 10005)


def test_an_unknown_topic_is_told_with_those_that_look_alike_and_the_command_that_makes_it(
    caplog: pytest.LogCaptureFixture,
) -> None:
    alike = {"ordres": ["orders", "order"]}
    server = NameServer()
    cache = RouteCache(server, similar=lambda topic: alike.get(topic, []))
    with pytest.raises(NoRoute, match="did you mean 'orders' or 'order'?") as caught:
        cache.find_publish("ordres")
    assert "rmq-ray topic create ordres --queues 4" in str(caught.value) and not caplog.records
    server.routes["TBW102"] = route("a", queues=8)
    for _ in range(3):
        cache.find_publish("ordres")
    server.routes["ordres"] = route("a", queues=4)
    cache.refresh("ordres")
    server.routes["orders"] = route("a")
    cache.find_publish("orders")
    (line,) = caplog.records
    assert line.getMessage() == (
        "no name server knows topic 'ordres': it is created automatically with 4 queues on each "
        "broker that a message goes to; did you mean 'orders' or 'order'?"
    )


def test_unreachable_name_servers_are_another_error_than_a_missing_topic() -> None:
    server = NameServer(orders=route("a"))
    cache = RouteCache(server)
    cache.find_publish("orders")
    server.down = True
    with pytest.raises(ConnectFailed):
        cache.find_publish("other")
    cache.refresh_all({"orders"})
    assert cache.find_publish("orders").ok


def closed(found: TopicRoute, permission: int = 4) -> TopicRoute:
    return replace(
        found, queues=tuple(replace(data, permission=permission) for data in found.queues)
    )


def test_a_topic_that_its_own_permission_closes_is_told_from_one_without_a_broker() -> None:
    server = NameServer(
        orders=closed(route("a", "b", queues=3)), a=route("a"), b=route("b"), TBW102=route("a", "b")
    )
    with pytest.raises(
        TopicNotWritable,
        match=(
            r"permission 4 and 3 write queues on a, .* on b.*rmq-ray topic create orders "
            r"--queues 3 --perm 6"
        ),
    ) as caught:
        RouteCache(server).find_publish("orders")
    assert (caught.value.args[1], caught.value.code) == ("orders", 16)
    assert "TBW102" not in server.asked, "the topic exists"


def test_a_topic_without_queues_to_write_is_closed_as_well() -> None:
    server = NameServer(orders=route("a", queues=0), a=route("a"))
    with pytest.raises(TopicNotWritable, match="0 write queues on a"):
        RouteCache(server).find_publish("orders")


def test_a_topic_is_not_taken_for_closed_while_a_broker_of_its_may_take_messages_again() -> None:
    drained = NameServer(orders=closed(route("a", "b")), a=route("a"), b=closed(route("b")))
    away = NameServer(orders=closed(route("a")), a=route("a"), b=route("b"))
    without_master = NameServer(orders=closed(route("a", ids=(1,))), a=route("a"))
    foreign = NameServer(orders=closed(route("a")))
    for server in (drained, away, without_master, foreign):
        wanted, server.routes["orders"] = (
            server.routes["orders"],
            route("a", "b") if server is away else route("a"),
        )
        cache = RouteCache(server)
        cache.find_publish("orders")
        server.routes["orders"] = wanted
        cache.refresh("orders")
        with pytest.raises(NoRoute):
            cache.find_publish("orders")
        assert cache.is_between_masters("orders")


def test_who_took_a_topics_messages_before_is_named_while_nobody_does() -> None:
    server = NameServer(orders=route("a", "b"), a=route("a"), b=route("b"))
    cache = RouteCache(server)
    cache.find_publish("orders")
    server.routes["orders"] = closed(route("a"))
    cache.refresh("orders")
    with pytest.raises(
        NoRoute,
        match=(
            "for writing now, a, b did before: start what is away, end a drain, or give the "
            "topic permission 6"
        ),
    ) as caught:
        cache.find_publish("orders")
    assert caught.type is NoRoute and "create it" not in str(caught.value)


def test_a_drain_that_ends_while_it_is_looked_into_leaves_the_topic_open() -> None:
    server = NameServer(orders=closed(route("a")), a=route("a"))

    def undrained(topic: str, until_ms: float) -> TopicRoute | None:
        found = server(topic, until_ms)
        if topic == "a":
            server.routes["orders"] = route("a")
        return found

    assert RouteCache(undrained).find_publish("orders").ok


def test_a_drain_that_begins_while_it_is_looked_into_is_no_closed_topic() -> None:
    server = NameServer(orders=closed(route("a")), a=route("a"))

    def drained(topic: str, until_ms: float) -> TopicRoute | None:
        found = server(topic, until_ms)
        if topic == "a":
            server.routes["orders"] = replace(route("a"), queues=())
        return found

    with pytest.raises(NoRoute):
        RouteCache(drained).find_publish("orders")


def test_a_closed_topic_whose_broker_is_drained_within_the_moment_is_waited_for() -> None:
    server = NameServer(orders=route("a"), a=route("a"))
    cache = RouteCache(server, clock=ManualClock())
    cache.find_publish("orders")
    server.routes["orders"] = closed(route("a"))
    cache.refresh("orders")
    with pytest.raises(TopicNotWritable):
        cache.find_publish("orders")
    server.routes["orders"] = replace(route("a"), queues=())
    cache.refresh("orders")
    with pytest.raises(NoRoute):
        cache.find_publish("orders")
    assert cache.is_between_masters("orders")


def test_a_closed_topic_is_found_open_again_a_moment_later() -> None:
    server = NameServer(orders=closed(route("a")), a=route("a"))
    clock = ManualClock()
    cache = RouteCache(server, clock=clock)
    for _ in range(3):
        with pytest.raises(TopicNotWritable):
            cache.find_publish("orders")
    assert server.asked == ["orders", "a", "orders"], "sends that fail in a row ask once in a while"
    server.routes["orders"] = route("a")
    clock.advance_ms(READ_ONLY_MS)
    assert cache.find_publish("orders").ok
    server.routes.update(orders=closed(route("a")), a=closed(route("a")))
    cache.refresh("orders")
    with pytest.raises(NoRoute):
        cache.find_publish("orders")


@pytest.mark.seed("S0-029", "S0-030", "S0-031", "S0-032")
def test_only_a_different_route_is_a_change_and_a_change_reaches_every_table() -> None:
    changes: list[str] = []
    server = NameServer(orders=route("a", "b"))
    cache = RouteCache(server, changes.append)
    assert cache.refresh("orders") and changes == ["orders"]
    server.routes["orders"] = TopicRoute(
        server.routes["orders"].queues[::-1], server.routes["orders"].brokers[::-1]
    )
    assert not cache.refresh("orders") and changes == ["orders"]
    server.routes["orders"] = route("a", "b", queues=3, port=20911)
    assert cache.refresh("orders") and changes == ["orders", "orders"]
    assert len(cache.find_publish("orders").queues) == len(cache.subscribe("orders")) == 6
    assert cache.broker_address("a") == Address("a.host", 20911)


def test_a_topic_that_vanished_keeps_its_last_route() -> None:
    server = NameServer(orders=route("a"))
    cache = RouteCache(server)
    cache.refresh("orders")
    del server.routes["orders"]
    assert not cache.refresh("orders")
    assert cache.find_publish("orders").ok and cache.route("orders") is not None


@pytest.mark.seed("S3-021")
def test_addresses_that_no_route_names_are_dropped() -> None:
    server = NameServer(orders=route("a", "b"), bills=route("b"))
    cache = RouteCache(server)
    cache.refresh("orders")
    cache.refresh("bills")
    assert cache.drop_offline() == []
    server.routes["orders"] = route("b")
    cache.refresh("orders")
    assert cache.drop_offline() == [Address("a.host", 10911)]
    assert cache.broker_address("a") is None and cache.all_addresses(masters_only=True) == [
        Address("b.host", 10911)
    ]


def test_reading_may_fall_back_to_other_ids_but_writing_never_does() -> None:
    cache = RouteCache(NameServer(orders=route("a", ids=(0, 2))))
    cache.refresh("orders")
    assert cache.subscribe_address("a") == (0, Address("a.host", 10911))
    assert cache.subscribe_address("a", 1) == (2, Address("a.host", 10913))
    assert cache.subscribe_address("a", 5) == (0, Address("a.host", 10911))
    assert cache.subscribe_address("a", 5, only_this=True) is None
    assert cache.broker_address("a", 1) is None and cache.subscribe_address("ghost") is None
    assert cache.all_addresses(masters_only=False) == [
        Address("a.host", 10911),
        Address("a.host", 10913),
    ]


@pytest.mark.seed("S0-027")
def test_who_cannot_get_the_lock_gives_up_without_fetching(monkeypatch: pytest.MonkeyPatch) -> None:
    assert LOCK_TIMEOUT_MS == 3_000
    monkeypatch.setattr("rmq_ray.client.instance.route_cache.LOCK_TIMEOUT_MS", 20)
    inside, leave = threading.Event(), threading.Event()

    def slow(topic: str, _until_ms: float) -> TopicRoute | None:
        inside.set()
        leave.wait(5)
        return route("a")

    cache = RouteCache(slow)
    holder = threading.Thread(target=lambda: cache.refresh("orders"), daemon=True)
    holder.start()
    assert inside.wait(5)
    assert cache.refresh("bills") is False
    leave.set()
    holder.join(5)
    assert cache.route("orders") is not None and cache.route("bills") is None


def test_a_master_that_another_one_took_the_place_of_is_told_once() -> None:
    server = NameServer(orders=route("a", ids=(0, 1)), invoices=route("a", ids=(0, 1)))
    replaced: list[Address] = []
    cache = RouteCache(server, on_replaced=replaced.append)
    cache.refresh("orders")
    server.routes["orders"] = TopicRoute(
        server.routes["orders"].queues, (BrokerData("c", "a", {1: "a.host:10912"}),)
    )
    cache.refresh("orders")
    assert not replaced, "away, not replaced: it may come back there"
    server.routes["orders"] = route("a", ids=(0, 1))
    cache.refresh("orders")
    server.routes["orders"] = TopicRoute(
        server.routes["orders"].queues,
        (BrokerData("c", "a", {0: "a.host:10912", 1: "a.host:10911"}),),
    )
    cache.refresh("orders")
    cache.refresh("orders")
    assert replaced == [Address("a.host", 10911)]


def test_a_topic_is_found_whose_broker_has_copies() -> None:
    cache = RouteCache(NameServer(orders=route("a", ids=(0, 1)), alone=route("b", port=20000)))
    cache.refresh("orders")
    cache.refresh("alone")
    assert (
        cache.topic_of_copies(Address("a.host", 10911))
        == cache.topic_of_copies(Address("a.host", 10912))
        == "orders"
    )
    assert (
        cache.topic_of_copies(Address("b.host", 20000)) is None
        and cache.topic_of_copies(Address("c.host", 1)) is None
    )


def test_an_outage_of_name_servers_is_logged_once_and_so_is_its_end(
    caplog: pytest.LogCaptureFixture,
) -> None:
    server = NameServer(orders=route("a"), paid=route("a"))
    cache = RouteCache(server)
    cache.find_publish("orders")
    with caplog.at_level(logging.WARNING, logger="rmq_ray.client.routes"):
        for server.down in (True, True, True, False, False, True):
            cache.refresh_all({"orders", "paid"})
    assert [message.partition(" refreshed")[0] for message in caplog.messages] == [
        "route of orders not",
        "route of orders",
        "route of orders not",
    ]
    assert cache.publish("orders") is not None
