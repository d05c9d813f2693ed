"""ConsumerTable and ProducerTable: who is in a group, who is told that it changed."""

from __future__ import annotations

import pytest

from rmq_ray.model.groups import (
    ConsumeFromWhere,
    ConsumerData,
    ConsumeType,
    MessageModel,
    Subscription,
)
from rmq_ray.server.groups.membership import Client, ConsumerTable, ProducerTable


def data(
    *subscriptions: Subscription,
    group: str = "billing",
    model: MessageModel = MessageModel.CLUSTERING,
) -> ConsumerData:
    return ConsumerData(
        group,
        ConsumeType.CONSUME_PASSIVELY,
        model,
        ConsumeFromWhere.CONSUME_FROM_LAST_OFFSET,
        subscriptions,
    )


def orders(version: int = 1, expression: str = "*") -> Subscription:
    return Subscription("orders", expression, version=version)


def beat(
    table: ConsumerTable,
    connection: str,
    *subscriptions: Subscription,
    now_ms: int = 0,
    notify: bool = True,
):
    return table.register(
        data(*(subscriptions or (orders(),))), connection, Client(f"{connection}@1", now_ms), notify
    )


@pytest.mark.seed("S1-005", "S1-006", "S1-007", "S1-008")
def test_a_heartbeat_puts_client_and_subscriptions_into_the_table_of_allocation() -> None:
    table = ConsumerTable()
    beat(table, "a")
    beat(table, "b")
    group = table.find("billing")
    assert group is not None
    assert list(group.channels) == ["a", "b"]
    assert (group.consume_type, group.model) == (
        ConsumeType.CONSUME_PASSIVELY,
        MessageModel.CLUSTERING,
    )
    assert table.client_ids("billing") == ["a@1", "b@1"]
    assert table.subscription("billing", "orders") == orders()


@pytest.mark.seed("S4-151")
def test_the_broker_lists_each_client_id_once_and_nothing_for_an_empty_group() -> None:
    table = ConsumerTable()
    table.register(data(orders()), "old connection", Client("c@1", 0))
    table.register(data(orders()), "new connection", Client("c@1", 0))
    assert table.client_ids("billing") == ["c@1"]
    assert table.connection_of("billing", "c@1") == "new connection"
    assert table.connection_of("billing", "nobody") is None
    assert table.client_ids("nobody") == []


@pytest.mark.seed("S3-132")
def test_a_new_consumer_is_told_to_all_members_at_once_and_only_once() -> None:
    table = ConsumerTable()
    assert beat(table, "a").notify == ("a",)
    change = beat(table, "b")
    assert change.changed and change.notify == ("a", "b")
    assert beat(table, "b", now_ms=30_000).notify == ()


def test_a_group_that_wants_no_notices_changes_silently() -> None:
    table = ConsumerTable()
    change = beat(table, "a", notify=False)
    assert change.changed and change.notify == ()


def test_new_topics_are_added_absent_ones_removed_and_both_are_told() -> None:
    table = ConsumerTable()
    beat(table, "a", orders(), Subscription("refunds", version=1))
    assert beat(table, "a", orders()).notify == ("a",)
    assert table.subscription("billing", "refunds") is None
    assert beat(table, "a", orders(), Subscription("%RETRY%billing", version=1)).notify == ("a",)
    assert table.groups_of_topic("%RETRY%billing") == ["billing"]
    assert table.groups_of_topic("refunds") == []


def test_one_topic_in_exchange_for_another_counts_as_a_change() -> None:
    table = ConsumerTable()
    beat(table, "a", orders())
    assert beat(table, "a", Subscription("refunds", version=1)).changed


def test_a_higher_version_of_a_subscription_replaces_the_older_and_a_lower_is_ignored() -> None:
    table = ConsumerTable()
    beat(table, "a", orders(5, "paid"))
    assert not beat(table, "a", orders(6, "refund")).changed
    assert table.subscription("billing", "orders") == orders(6, "refund")
    beat(table, "a", orders(4, "paid"))
    beat(table, "a", orders(6, "paid"))
    assert table.subscription("billing", "orders") == orders(6, "refund")


def test_the_newest_heartbeat_says_how_the_group_consumes() -> None:
    table = ConsumerTable()
    beat(table, "a")
    table.register(data(orders(), model=MessageModel.BROADCASTING), "b", Client("b@1", 0))
    group = table.find("billing")
    assert group is not None and group.model is MessageModel.BROADCASTING


@pytest.mark.seed("S3-131")
def test_a_closed_connection_leaves_all_its_groups_and_the_others_are_told_before_any_timer() -> (
    None
):
    table = ConsumerTable()
    for group in ("billing", "audit"):
        for connection in ("a", "b"):
            table.register(data(orders(), group=group), connection, Client(f"{connection}@1", 0))
    table.register(data(orders(), group="lonely"), "b", Client("b@1", 0))
    changes = {change.group: change for change in table.closed("b")}
    assert changes["billing"].notify == changes["audit"].notify == ("a",)
    assert changes["lonely"].removed and changes["lonely"].notify == ()
    assert table.groups() == ["audit", "billing"]
    assert table.closed("b") == []


def test_unregistering_tells_those_that_stay_and_the_last_one_takes_the_group_along() -> None:
    table = ConsumerTable()
    beat(table, "a")
    beat(table, "b")
    assert not table.unregister("billing", "stranger").changed
    assert not table.unregister("unknown", "a").changed
    assert table.unregister("billing", "a").notify == ("b",)
    assert table.unregister("billing", "b").removed
    assert "billing" not in table


def test_a_member_is_removed_after_120_silent_seconds_and_its_connection_closed() -> None:
    table = ConsumerTable()
    beat(table, "a", now_ms=0)
    beat(table, "b", now_ms=0)
    beat(table, "b", now_ms=60_000)
    assert table.expire(120_000).connections == ()
    expired = table.expire(120_001)
    assert expired.connections == ("a",)
    assert [change.notify for change in expired.changes] == [("b",)]
    assert table.client_ids("billing") == ["b@1"]
    assert table.expire(180_001).changes[0].removed


@pytest.mark.seed("S0-012")
def test_the_check_back_goes_to_any_live_producer_of_the_group_in_turn() -> None:
    table = ProducerTable()
    for connection in ("a", "b", "c"):
        assert table.register("web", connection, Client(f"{connection}@1", 0))
    assert [table.next_connection("web") for _ in range(4)] == ["a", "b", "c", "a"]
    assert {
        table.next_connection("web", lambda connection: connection != "b") for _ in range(6)
    } == {"a", "c"}
    assert table.next_connection("web", lambda _connection: False) is None
    assert table.next_connection("nobody") is None


def test_the_check_back_passes_over_who_announces_that_it_has_no_checker() -> None:
    table = ProducerTable()
    for connection in ("a", "b"):
        table.register("web", connection, Client(connection, 0), connection == "a")
    table.register("shop", "a", Client("a", 0))
    assert [table.next_connection("web") for _ in range(3)] == ["b", "b", "b"]
    assert table.next_connection("shop") == "a" and set(table.channels("web")) == {"a", "b"}
    table.register("web", "a", Client("a", 1_000))
    assert {table.next_connection("web") for _ in range(2)} == {"a", "b"}
    table.register("web", "a", Client("a", 2_000), True)
    table.closed("a")
    table.register("web", "a", Client("a", 3_000))
    assert {table.next_connection("web") for _ in range(2)} == {"a", "b"}


def test_producers_leave_by_unregistering_by_closing_and_by_silence() -> None:
    table = ProducerTable()
    for connection in ("a", "b", "c"):
        table.register("web", connection, Client(connection, 0))
    table.register("CLIENT_INNER_PRODUCER", "b", Client("b", 0))
    assert table.unregister("web", "a")
    assert not table.unregister("web", "a")
    assert table.closed("b") == ["web", "CLIENT_INNER_PRODUCER"]
    assert not table.register("web", "c", Client("c", 1_000))
    assert table.expire(121_000) == []
    assert table.expire(121_001) == ["c"]
    assert table.groups() == {}
