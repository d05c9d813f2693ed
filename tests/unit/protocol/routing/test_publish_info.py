"""Routes become queue lists in RocketMQ's order and with its exceptions (protocol-behaviour 7)."""

from __future__ import annotations

import pytest

from rmq_ray.model.ids import MessageQueue
from rmq_ray.model.topics import BrokerData, QueueData, TopicRoute
from rmq_ray.protocol.routing.route_queues import (
    PublishInfo,
    default_route,
    normalized,
    publish_info,
    subscribe_queues,
)


def two_brokers(permission: int = 7) -> TopicRoute:
    """The seed documents' example: TBW102 on two brokers, told in the wrong order."""
    return TopicRoute(
        (QueueData("broker-b", 8, 8, permission), QueueData("broker-a", 8, 8, permission)),
        (
            BrokerData("c", "broker-a", {0: "10.0.0.1:10911"}),
            BrokerData("c", "broker-b", {0: "10.0.0.2:10911"}),
        ),
    )


@pytest.mark.seed("S0-038", "S0-041", "S0-043", "S0-044", "S0-047")
def test_a_topic_on_two_brokers_has_the_queues_of_the_first_name_first() -> None:
    queues = publish_info("TBW102", two_brokers()).queues
    assert len(queues) == 16
    assert [queue.broker_name for queue in queues] == ["broker-a"] * 8 + ["broker-b"] * 8


@pytest.mark.seed("S0-036", "S0-042", "S0-045", "S0-046")
def test_every_queue_is_named_by_topic_broker_and_id() -> None:
    info = publish_info("TBW102", two_brokers())
    assert [queue.queue_id for queue in info.queues] == [*range(8), *range(8)]
    assert info.queues[9] == MessageQueue("TBW102", "broker-b", 1)
    assert not info.ordered and info.brokers == ("broker-a", "broker-b")
    assert sorted(info.queues[::-1]) == list(info.queues)


@pytest.mark.seed("S0-039")
def test_a_broker_that_forbids_writing_is_left_out_of_publishing_only() -> None:
    route = TopicRoute(
        (QueueData("a", 2, 2, 4), QueueData("b", 2, 2, 6)),
        two_brokers().brokers
        + (BrokerData("c", "a", {0: "h:1"}), BrokerData("c", "b", {0: "h:2"})),
    )
    assert publish_info("T", route).brokers == ("b",)
    assert {queue.broker_name for queue in subscribe_queues("T", route)} == {"a", "b"}


@pytest.mark.seed("S0-040")
def test_without_broker_data_or_without_a_master_nothing_is_written_but_a_slave_is_read() -> None:
    route = TopicRoute(
        (QueueData("a", 2, 2, 6), QueueData("b", 2, 2, 6)), (BrokerData("c", "a", {1: "h:1"}),)
    )
    assert publish_info("T", route).queues == ()
    assert not publish_info("T", route).ok
    assert len(subscribe_queues("T", route)) == 4


@pytest.mark.seed("S0-037")
def test_an_order_configuration_replaces_the_queue_data() -> None:
    info = publish_info(
        "T", TopicRoute((QueueData("a", 9, 9, 6),), (), "broker-b:2;broker-a:1;;broken;x:y")
    )
    assert info.ordered
    assert info.queues == (
        MessageQueue("T", "broker-b", 0),
        MessageQueue("T", "broker-b", 1),
        MessageQueue("T", "broker-a", 0),
    )


@pytest.mark.seed("S0-035")
def test_fresh_publish_info_is_not_ordered_and_has_no_queue_and_no_route() -> None:
    fresh = PublishInfo("T")
    assert (fresh.ordered, fresh.queues, fresh.brokers, fresh.ok) == (False, (), (), False)


def test_the_template_route_is_cut_to_the_asked_number_of_queues() -> None:
    cut = default_route(two_brokers(), 4)
    assert {(data.read_queues, data.write_queues) for data in cut.queues} == {(4, 4)}
    assert {data.write_queues for data in default_route(two_brokers(), 20).queues} == {8}


@pytest.mark.seed("S0-034")
def test_routes_that_say_the_same_in_another_order_are_equal_once_normalized() -> None:
    route = two_brokers()
    turned = TopicRoute(route.queues[::-1], route.brokers[::-1], route.order_conf)
    assert turned != route
    assert normalized(turned) == normalized(route)
