"""What producers and consumers of one client share: heartbeats, brokers' requests, routes, name
servers.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from rmq_ray.client.instance.client_instance import ClientInstance
from rmq_ray.client.producer.producer import Producer
from rmq_ray.clock import ManualClock
from rmq_ray.errors import ClientError, ConnectFailed
from rmq_ray.model.groups import (
    ConsumeFromWhere,
    ConsumerData,
    ConsumeType,
    MessageModel,
    Subscription,
)
from rmq_ray.model.ids import Address
from rmq_ray.model.topics import BrokerData, QueueData, TopicRoute
from rmq_ray.ports import ClusterAddress
from rmq_ray.remoting.wire.codes import RequestCode
from rmq_ray.remoting.wire.frame import FLAG_ONEWAY, Command
from tests.support.brokers.tiny_cluster import SECRET, TinyBroker, TinyCluster
from tests.support.waiting import eventually


class PlainConsumer:
    """Remembers what its instance asks of it."""

    def __init__(self, group: str = "readers") -> None:
        self.group = group
        self.changed: list[str] = []
        self.rebalanced = 0
        self.persisted = 0
        self.requests: list[int] = []

    def consumer_data(self) -> ConsumerData:
        return ConsumerData(
            self.group,
            ConsumeType.CONSUME_PASSIVELY,
            MessageModel.CLUSTERING,
            ConsumeFromWhere.CONSUME_FROM_LAST_OFFSET,
            (Subscription("orders", version=7),),
        )

    def subscribed_topics(self) -> list[str]:
        return ["orders"]

    def route_changed(self, topic: str) -> None:
        self.changed.append(topic)

    def rebalance_now(self) -> None:
        self.rebalanced += 1

    def persist_offsets(self) -> None:
        self.persisted += 1
        raise ConnectFailed("on purpose")

    def handle_request(self, command: Command, address: Address) -> Command | None:
        self.requests.append(command.code)
        return command.answer(0, remark=self.group)


@pytest.fixture
def cluster() -> Iterator[TinyCluster]:
    with TinyCluster(topics={"orders": 4}) as running:
        yield running


@pytest.fixture
def instance(cluster: TinyCluster) -> Iterator[ClientInstance]:
    made = ClientInstance.get_or_create(cluster)
    made.start()
    yield made
    made.release()


@pytest.mark.seed("S1-005")
def test_a_heartbeat_names_the_client_its_groups_and_subscriptions(
    cluster: TinyCluster, instance: ClientInstance
) -> None:
    consumer = PlainConsumer()
    instance.register_consumer(consumer)
    instance.routes.refresh("orders")
    instance.heartbeat(wait_s=10.0)
    told = cluster.broker.heartbeats[-1]
    assert told.client_id == instance.client_id and told.producer_groups == ()
    assert told.consumers == (consumer.consumer_data(),)
    instance.unregister_consumer("readers")
    assert cluster.broker.unregistered == [
        {"clientID": instance.client_id, "consumerGroup": "readers"}
    ]


@pytest.fixture
def timed(
    cluster: TinyCluster, monkeypatch: pytest.MonkeyPatch
) -> Iterator[tuple[ClientInstance, ManualClock]]:
    """A client whose timers run when the test lets them, at the time that it says."""
    clock = ManualClock()
    made = ClientInstance.get_or_create(cluster, clock=clock)
    monkeypatch.setattr(made.timers, "start", lambda: None)
    made.start()
    yield made, clock
    made.release()


@pytest.mark.seed("S3-021")
def test_every_30_s_a_client_drops_brokers_that_no_route_names_and_tells_the_others_that_it_lives(
    timed: tuple[ClientInstance, ManualClock],
) -> None:
    instance, clock = timed
    with TinyCluster(brokers=2, topics={"orders": 1}) as pair:
        instance.link._discovery = pair
        instance.link.look_up()
        consumer = PlainConsumer()
        instance.register_consumer(consumer)
        instance.routes.refresh("orders")
        instance.timers.run_due()
        instance.heartbeat(wait_s=10.0)
        gone, stays = pair.brokers
        connection = instance.link._brokers
        assert connection is not None and set(connection._slots) == {gone.address, stays.address}
        told = len(stays.heartbeats)
        pair.routes["orders"] = TopicRoute(
            (QueueData(stays.name, 1, 1, 6),),
            (BrokerData("tiny", stays.name, {0: str(stays.address)}),),
        )
        clock.advance_ms(30_000)
        # the route is asked for in this turn, too, maybe after the heartbeat
        instance.timers.run_due()
        clock.advance_ms(30_000)
        instance.timers.run_due()
        assert instance.broker_address(gone.name) is None and set(connection._slots) == {
            stays.address
        }
        assert len(stays.heartbeats) == told + 2 and len(gone.heartbeats) <= told + 1
        instance.unregister_consumer("readers")


@pytest.mark.seed("S3-019")
def test_every_2_minutes_a_client_looks_its_name_servers_up_again(
    cluster: TinyCluster, timed: tuple[ClientInstance, ManualClock]
) -> None:
    instance, clock = timed
    with TinyCluster(topics={"orders": 3}) as moved:
        instance.link._discovery = moved
        clock.advance_ms(119_999)
        instance.timers.run_due()
        assert (
            instance.link.name_server_addresses == (cluster.name_servers[0].address,)
            and moved.lookups == 0
        )
        clock.advance_ms(1)
        instance.timers.run_due()
        assert (
            instance.link.name_server_addresses == (moved.name_servers[0].address,)
            and moved.lookups == 1
        )
        assert len(instance.routes.find_publish("orders").queues) == 3, "the new one is asked"


@pytest.mark.seed("S3-020", "S3-022")
def test_routes_are_asked_for_every_30_s_and_offsets_handed_over_every_5(
    cluster: TinyCluster, timed: tuple[ClientInstance, ManualClock]
) -> None:
    instance, clock = timed
    consumer = PlainConsumer()
    instance.register_consumer(consumer)
    asked = cluster.name_servers[0].asked
    turns = (
        (9, 0, 0),
        (10, 1, 0),
        (9_999, 1, 0),
        (10_000, 1, 1),
        (14_999, 1, 1),
        (15_000, 1, 2),
        (20_000, 1, 3),
        (25_000, 1, 4),
        (30_000, 1, 5),
        (30_010, 2, 5),
    )
    for at_ms, routes, offsets in turns:
        clock.advance_ms(at_ms - clock.monotonic_ms())
        instance.timers.run_due()
        assert (asked.count("orders"), consumer.persisted) == (routes, offsets), at_ms
    instance.unregister_consumer("readers")


def test_a_consumer_group_is_taken_once_in_a_client(instance: ClientInstance) -> None:
    instance.register_consumer(PlainConsumer())
    with pytest.raises(ClientError, match="has been created before"):
        instance.register_consumer(PlainConsumer())
    assert instance.consumer("readers") is not None and instance.consumer("others") is None
    instance.unregister_consumer("readers")


def test_slaves_hear_of_consumers_but_not_of_clients_that_only_produce(
    cluster: TinyCluster, instance: ClientInstance
) -> None:
    slave = TinyBroker("broker-a")
    cluster.start(slave)
    try:
        addresses = {0: str(cluster.broker.address), 1: str(slave.address)}
        for (
            topic,
            route,
        ) in cluster.routes.items():  # every one that is asked for tells who the brokers are
            cluster.routes[topic] = TopicRoute(
                route.queues, (BrokerData("tiny", "broker-a", addresses),)
            )
        with Producer("web", discovery=cluster, client_id=instance.client_id) as producer:
            producer.send("orders", b"x")
            instance.heartbeat(wait_s=10.0)
            assert cluster.broker.heartbeats and not slave.heartbeats
            instance.register_consumer(PlainConsumer())
            instance.heartbeat(wait_s=10.0)
            assert slave.heartbeats[-1].consumers and slave.heartbeats[-1].producer_groups == (
                "web",
            )
            instance.unregister_consumer("readers")
    finally:
        cluster.stop(slave)


def test_a_broker_that_hangs_does_not_keep_the_others_from_hearing(
    cluster: TinyCluster, instance: ClientInstance
) -> None:
    consumer = PlainConsumer()
    instance.register_consumer(consumer)
    instance.routes.refresh("orders")
    cluster.stop(cluster.broker)
    instance.heartbeat(wait_s=10.0)
    cluster.start(cluster.broker)
    instance.heartbeat(wait_s=10.0)
    assert cluster.broker.heartbeats[-1].consumers[0].group == "readers"
    instance.unregister_consumer("readers")


def test_a_changed_group_is_balanced_again_at_once(
    cluster: TinyCluster, instance: ClientInstance
) -> None:
    consumer = PlainConsumer()
    instance.register_consumer(consumer)
    instance.routes.refresh("orders")
    instance.heartbeat(wait_s=10.0)
    cluster.push(
        cluster.broker,
        Command(
            RequestCode.NOTIFY_CONSUMER_IDS_CHANGED,
            flag=FLAG_ONEWAY,
            fields={"consumerGroup": "readers"},
        ),
    )
    assert eventually(lambda: consumer.rebalanced == 1)
    instance.unregister_consumer("readers")


def test_requests_of_a_broker_reach_the_consumer_of_their_group(
    cluster: TinyCluster, instance: ClientInstance
) -> None:
    consumer = PlainConsumer()
    instance.register_consumer(consumer)
    for code, field in (
        (RequestCode.GET_CONSUMER_RUNNING_INFO, "consumerGroup"),
        (RequestCode.RESET_CONSUMER_CLIENT_OFFSET, "group"),
    ):
        answer = instance._on_request(
            Command(code, fields={field: "readers"}), cluster.broker.address
        )
        assert answer is not None and answer.remark == "readers"
    assert consumer.requests == [307, 220]
    instance.unregister_consumer("readers")


def test_offsets_that_cannot_be_handed_over_stop_nothing(instance: ClientInstance) -> None:
    one, two = PlainConsumer("one"), PlainConsumer("two")
    instance.register_consumer(one)
    instance.register_consumer(two)
    instance._persist()
    assert (one.persisted, two.persisted) == (1, 1)
    instance.unregister_consumer("one")
    instance.unregister_consumer("two")


@pytest.mark.seed("S0-060")
def test_the_refresh_covers_all_topics_and_tells_who_is_subscribed(
    cluster: TinyCluster, instance: ClientInstance
) -> None:
    consumer = PlainConsumer()
    instance.register_consumer(consumer)
    with Producer("web", discovery=cluster, client_id=instance.client_id) as producer:
        producer.send("bills", b"x")
        instance._refresh_routes()
        assert set(instance.routes.topics()) == {"orders", "bills", "TBW102"}
        # the instance's own refresh may have found it, and tells it behind the new route
        eventually(lambda: consumer.changed == ["orders"])
        cluster.add_topic("orders", 6)
        instance._refresh_routes()
        eventually(lambda: consumer.changed == ["orders", "orders"])
        assert len(instance.routes.subscribe("orders")) == 6
        assert (
            instance.broker_for_topic("orders")
            == cluster.broker.address
            == instance.broker_address("broker-a")
        )
    instance.unregister_consumer("readers")


def test_when_every_name_server_fails_the_discovery_is_asked_for_others(
    cluster: TinyCluster,
) -> None:
    class Moving:
        servers = ("127.0.0.1:1",)

        def lookup(self) -> ClusterAddress:
            return ClusterAddress("tiny", self.servers, SECRET)

    moving = Moving()
    instance = ClientInstance.get_or_create(moving)
    instance.start()
    try:
        with pytest.raises(ConnectFailed):
            instance.routes.find_publish("orders")
        moving.servers = cluster.lookup().name_servers
        instance.link._looked_ms = float("-inf")  # as if a second had passed
        assert instance.routes.find_publish("orders").ok
    finally:
        instance.release()
