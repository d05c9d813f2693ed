"""RouteTable: what registrations, silences and orders do to routes."""

from __future__ import annotations

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from rmq_ray.errors import MasterReplaced
from rmq_ray.model.topics import BrokerData, DataVersion, QueueData, TopicConfig
from rmq_ray.protocol.routing.route_table import Registration, RouteTable

V1, V2 = DataVersion(1, 100), DataVersion(2, 200)


def registration(
    name="broker-a", broker_id=0, address="h1:1", *, version=V1, topics=("orders",), **more
) -> Registration:
    table = None if topics is None else {topic: TopicConfig(topic, 4, 4) for topic in topics}
    return Registration(
        more.pop("cluster", "C"), name, broker_id, address, f"{address}-ha", version, table, **more
    )


def register(table: RouteTable, *args, connection: str | None = None, now_ms: int = 0, **more):
    r = registration(*args, **more)
    return table.register(r, connection or f"connection of {r.address}", now_ms)


@pytest.mark.seed("S0-009", "S0-025", "S0-033", "S0-034")
def test_the_route_of_a_topic_names_its_queues_per_broker_and_the_brokers_addresses() -> None:
    table = RouteTable()
    register(table, "broker-b", address="h2:1")
    register(table, "broker-a", address="h1:1")
    register(table, "broker-a", 1, "h3:1", topics=None)
    route = table.route("orders")
    assert route is not None
    assert route.queues == (QueueData("broker-a", 4, 4, 6), QueueData("broker-b", 4, 4, 6))
    assert route.brokers == (
        BrokerData("C", "broker-a", {0: "h1:1", 1: "h3:1"}),
        BrokerData("C", "broker-b", {0: "h2:1"}),
    )
    assert route.order_conf is None
    assert table.route("unknown") is None


@pytest.mark.seed("S0-043", "S0-044")
def test_the_default_topic_on_two_brokers_comes_sorted_with_8_queues_each_and_permission_7() -> (
    None
):
    table = RouteTable()
    for name in ("broker-b", "broker-a"):
        table.register(
            Registration(
                "C", name, 0, f"{name}:1", topics={"TBW102": TopicConfig("TBW102", 8, 8, 7)}
            ),
            name,
            0,
        )
    route = table.route("TBW102")
    assert route is not None
    assert route.queues == (QueueData("broker-a", 8, 8, 7), QueueData("broker-b", 8, 8, 7))


@pytest.mark.seed("S0-010")
def test_two_name_servers_know_only_what_was_registered_with_each() -> None:
    first, second = RouteTable(), RouteTable()
    register(first)
    assert first.route("orders") is not None
    assert second.route("orders") is None


def test_topics_are_taken_with_a_new_data_version_only_and_missing_ones_are_not_deleted() -> None:
    table = RouteTable()
    assert register(table, version=V1, topics=("orders",)).first
    assert not register(table, version=V1, topics=("orders", "ignored")).first
    assert table.topics() == ["orders"]
    register(table, version=V2, topics=("refunds",))
    assert table.topics() == ["orders", "refunds"]


def test_a_new_data_version_replaces_the_settings_of_a_topic() -> None:
    table = RouteTable()
    register(table)
    table.register(
        Registration(
            "C",
            "broker-a",
            0,
            "h1:1",
            version=V2,
            topics={"orders": TopicConfig("orders", 8, 2, 4, sys_flag=1)},
        ),
        "c",
        0,
    )
    route = table.route("orders")
    assert route is not None and route.queues == (QueueData("broker-a", 8, 2, 4, 1),)


def test_topics_of_slaves_are_ignored_and_their_answer_names_the_master() -> None:
    table = RouteTable()
    lonely = register(table, "broker-a", 1, "h2:1", topics=("orders",))
    assert lonely.master_address is None and table.topics() == []
    assert register(table, "broker-a", 0, "h1:1").master_address is None
    answer = register(table, "broker-a", 1, "h2:1", version=V2, topics=("ignored",))
    assert (answer.master_address, answer.master_ha_address) == ("h1:1", "h1:1-ha")
    assert table.topics() == ["orders"]


def test_a_slave_promoted_to_master_leaves_its_old_id() -> None:
    table = RouteTable()
    register(table, "broker-a", 0, "h1:1")
    register(table, "broker-a", 1, "h2:1")
    table.connection_closed("connection of h1:1")
    assert register(table, "broker-a", 0, "h2:1", topics=("orders", "new")).first
    assert table.brokers() == {"broker-a": BrokerData("C", "broker-a", {0: "h2:1"})}
    assert table.topics() == ["new", "orders"]


def test_an_address_that_comes_back_under_another_name_or_cluster_leaves_the_old_one() -> None:
    table = RouteTable()
    register(table, "broker-a", address="h1:1")
    register(table, "broker-z", address="h1:1", topics=("refunds",))
    assert table.brokers() == {"broker-z": BrokerData("C", "broker-z", {0: "h1:1"})}
    assert table.topics() == ["refunds"]
    register(table, "broker-z", address="h1:1", cluster="D")
    assert table.clusters() == {"D": ("broker-z",)}
    assert table.brokers()["broker-z"].cluster == "D"


def test_a_restarted_master_with_another_address_replaces_the_old_one() -> None:
    table = RouteTable()
    register(table, address="h1:1")
    register(table, address="h1:2")
    assert [removed.address for removed in table.connection_closed("connection of h1:1")] == [
        "h1:1"
    ]
    assert not table.unregister("broker-a", 0, "h1:1")
    assert table.brokers()["broker-a"].addresses == {0: "h1:2"}


def test_the_old_connection_of_a_broker_that_registered_again_closes_without_effect() -> None:
    table = RouteTable()
    register(table, connection="old")
    register(table, connection="new")
    assert table.connection_closed("old") == []
    assert table.route("orders") is not None


@pytest.mark.seed("S3-134")
def test_a_broker_leaves_after_120_silent_seconds_or_at_once_with_its_connection() -> None:
    table = RouteTable()
    register(table, "broker-a", address="h1:1", now_ms=0)
    register(table, "broker-b", address="h2:1", now_ms=0)
    assert table.expire(120_000) == []
    register(table, "broker-b", address="h2:1", now_ms=120_000)
    assert [(removed.address, removed.connection) for removed in table.expire(120_001)] == [
        ("h1:1", "connection of h1:1")
    ]
    assert list(table.brokers()) == ["broker-b"]
    assert [removed.address for removed in table.connection_closed("connection of h2:1")] == [
        "h2:1"
    ]
    assert (table.topics(), table.brokers(), table.clusters()) == ([], {}, {})


@pytest.mark.seed("S3-136")
def test_a_dead_slave_takes_nothing_along_and_a_dead_master_leaves_routes_to_its_slave() -> None:
    table = RouteTable()
    register(table, "broker-a", 0, "h1:1")
    register(table, "broker-a", 1, "h2:1")
    table.connection_closed("connection of h2:1")
    route = table.route("orders")
    assert route is not None and route.brokers[0].addresses == {0: "h1:1"}
    register(table, "broker-a", 1, "h2:1")
    table.connection_closed("connection of h1:1")
    route = table.route("orders")
    assert (
        route is not None and route.brokers[0].addresses == {1: "h2:1"} and len(route.queues) == 1
    )
    table.connection_closed("connection of h2:1")
    assert table.route("orders") is None and table.topics() == []


def test_unregistering_removes_the_address_and_with_the_last_one_its_topics() -> None:
    table = RouteTable()
    register(table, "broker-a", 0, "h1:1")
    register(table, "broker-a", 1, "h2:1")
    assert table.unregister("broker-a", 0, "h1:1")
    assert table.data_version("h1:1") is None
    assert table.topics() == ["orders"]
    assert not table.unregister("broker-a", 1, "somebody:else")
    assert not table.unregister("unknown", 0, "h1:1")
    assert table.unregister("broker-a", 1, "h2:1")
    assert (table.topics(), table.clusters()) == ([], {})


def test_asking_for_the_data_version_keeps_a_broker_alive_only_if_nothing_changed() -> None:
    table = RouteTable()
    register(table, now_ms=0)
    assert not table.refresh("h1:1", V1, now_ms=100_000)
    assert table.refresh("h1:1", V2, now_ms=200_000)
    assert table.refresh("unknown:1", V1, now_ms=0)
    assert table.data_version("h1:1") == V1
    assert table.expire(220_000) == []
    assert len(table.expire(220_001)) == 1


def test_wiping_the_write_permission_stops_writes_to_one_broker_until_it_is_added_again() -> None:
    table = RouteTable()
    register(table, "broker-a", address="h1:1", topics=("orders", "refunds"))
    register(table, "broker-b", address="h2:1")
    assert table.wipe_write_permission("broker-a") == 2
    assert table.wipe_write_permission("unknown") == 0
    route = table.route("orders")
    assert route is not None and [queues.permission for queues in route.queues] == [4, 6]
    assert table.add_write_permission("broker-a") == 2
    route = table.route("orders")
    assert route is not None and [queues.permission for queues in route.queues] == [6, 6]


def test_a_topic_is_deleted_everywhere_or_on_the_brokers_of_one_cluster() -> None:
    table = RouteTable()
    register(table, "broker-a", address="h1:1", topics=("orders", "refunds"))
    register(table, "broker-b", address="h2:1", cluster="D")
    table.delete_topic("orders", "nowhere")
    table.delete_topic("orders", "C")
    route = table.route("orders")
    assert route is not None and [queues.broker_name for queues in route.queues] == ["broker-b"]
    table.delete_topic("orders", "D")
    assert table.topics() == ["refunds"]
    table.delete_topic("refunds")
    table.delete_topic("refunds")
    assert table.topics() == []


def test_topic_lists_by_cluster_system_and_unit() -> None:
    table = RouteTable()
    register(table, "broker-a", address="h1:1", topics=("orders", "%RETRY%billing"))
    units = {
        name: TopicConfig(name, sys_flag=flag)
        for name, flag in (("unit", 1), ("sub", 2), ("both", 3))
    }
    table.register(Registration("D", "broker-b", 0, "h2:1", topics=units), "c", 0)
    assert table.topics_of_cluster("C") == ["%RETRY%billing", "orders"]
    assert table.topics_of_cluster("nowhere") == []
    assert {"C", "D", "broker-a", "broker-b", "TBW102", "SCHEDULE_TOPIC_XXXX"} <= set(
        table.system_topics()
    )
    assert table.any_address() == "h1:1"
    assert RouteTable().any_address() is None
    assert table.unit_topics(1) == ["both", "unit"]
    assert table.unit_topics(2) == ["both", "sub"]
    assert table.unit_topics(2, 1) == ["sub"]


class RouteTableModel(RuleBasedStateMachine):
    """Against a plain list of who lives: addresses, names, clusters and topics stay consistent in
    any order of events.
    """

    NAMES = ["broker-a", "broker-b"]
    ADDRESSES = ["h:1", "h:2", "h:3"]
    TOPICS = ["t", "u"]

    def __init__(self) -> None:
        super().__init__()
        self.table = RouteTable()
        self.places: dict[tuple[str, int], str] = {}
        self.heard: dict[str, tuple[int, int]] = {}  # address -> (time, connection)
        self.versions: dict[str, DataVersion] = {}
        self.topics: dict[str, set[str]] = {name: set() for name in self.NAMES}
        self.now_ms = 0
        self.connections = 0

    def remove(self, addresses: list[str]) -> None:
        for address in addresses:
            self.heard.pop(address)
            self.versions.pop(address)
        self.places = {
            place: address for place, address in self.places.items() if address not in addresses
        }
        self.drop_empty()

    def drop_empty(self) -> None:
        for name in self.NAMES:
            if not any(place[0] == name for place in self.places):
                self.topics[name] = set()

    @rule(
        name=st.sampled_from(NAMES),
        broker_id=st.integers(0, 1),
        address=st.sampled_from(ADDRESSES),
        counter=st.integers(0, 2),
        topics=st.sets(st.sampled_from(TOPICS)),
    )
    def register(self, name, broker_id, address, counter, topics) -> None:
        self.connections += 1
        version = DataVersion(counter, 0)
        moved = [
            place
            for place, stands in self.places.items()
            if stands == address and place != (name, broker_id)
        ]
        for place in moved:
            del self.places[place]
        first = (name, broker_id) not in self.places
        self.places[name, broker_id] = address
        self.drop_empty()
        if broker_id == 0 and (first or moved or self.versions.get(address) != version):
            self.topics[name] |= topics
        self.heard[address] = (self.now_ms, self.connections)
        self.versions[address] = version
        configs = {topic: TopicConfig(topic) for topic in topics}
        answer = self.table.register(
            Registration("C", name, broker_id, address, version=version, topics=configs),
            self.connections,
            self.now_ms,
        )
        assert answer.first == first
        assert answer.master_address == (self.places.get((name, 0)) if broker_id else None)

    @rule(
        name=st.sampled_from(NAMES), broker_id=st.integers(0, 1), address=st.sampled_from(ADDRESSES)
    )
    def unregister(self, name, broker_id, address) -> None:
        stands = self.places.get((name, broker_id)) == address
        assert self.table.unregister(name, broker_id, address) == stands
        if address in self.heard and (stands or address not in self.places.values()):
            self.remove([address])

    @rule(step=st.integers(1, 90_000))
    def time_passes(self, step) -> None:
        self.now_ms += step
        silent = [
            address
            for address, (at, _connection) in self.heard.items()
            if at + 120_000 < self.now_ms
        ]
        assert sorted(removed.address for removed in self.table.expire(self.now_ms)) == sorted(
            silent
        )
        self.remove(silent)

    @rule(data=st.data())
    def connection_closes(self, data) -> None:
        connection = data.draw(st.integers(0, self.connections))
        gone = [address for address, (_at, newest) in self.heard.items() if newest == connection]
        assert [removed.address for removed in self.table.connection_closed(connection)] == gone
        self.remove(gone)

    @invariant()
    def addresses_stand_where_they_registered_last(self) -> None:
        stands = {
            (name, broker_id): address
            for name, broker in self.table.brokers().items()
            for broker_id, address in broker.addresses.items()
        }
        assert stands == self.places
        names = tuple(sorted({name for name, _id in self.places}))
        assert self.table.clusters() == ({"C": names} if names else {})

    @invariant()
    def routes_show_what_masters_registered(self) -> None:
        for topic in self.TOPICS:
            names = sorted(name for name in self.NAMES if topic in self.topics[name])
            route = self.table.route(topic)
            assert (route is None) == (not names)
            if route is not None:
                assert (
                    [queues.broker_name for queues in route.queues]
                    == [broker.broker_name for broker in route.brokers]
                    == names
                )


def test_a_master_of_a_lower_epoch_is_refused_and_changes_nothing() -> None:
    table = RouteTable()
    register(table, address="old:1", epoch=1)
    register(table, broker_id=1, address="new:1", topics=None)
    assert (
        register(table, address="new:1", epoch=2, version=V2, topics=("orders", "payments")).first
        is False
    )
    before = table.brokers()
    assert before["broker-a"].addresses == {0: "new:1"} and table.route("payments") is not None
    with pytest.raises(MasterReplaced, match="epoch 1"):
        register(table, address="old:1", epoch=1, topics=("orders",), version=DataVersion(3, 300))
    assert table.brokers() == before
    register(table, broker_id=1, address="old:1", epoch=1, topics=None)
    assert table.brokers()["broker-a"].addresses == {0: "new:1", 1: "old:1"}, (
        "as a slave it may come"
    )


def test_the_epoch_of_a_broker_name_outlives_its_addresses() -> None:
    table = RouteTable()
    register(table, address="h1:1", epoch=5)
    assert table.unregister("broker-a", 0, "h1:1") and table.route("orders") is None
    with pytest.raises(MasterReplaced):
        register(table, address="h1:1", epoch=4)
    register(table, "broker-b", address="h2:1", epoch=1)
    register(table, address="apache:1")
    assert table.brokers()["broker-a"].addresses == {0: "apache:1"}
    register(table, address="h1:1", epoch=5)
    assert table.brokers()["broker-a"].addresses == {0: "h1:1"}


TestRouteTableModel = RouteTableModel.TestCase
TestRouteTableModel.settings = settings(max_examples=80, stateful_step_count=40, deadline=None)
