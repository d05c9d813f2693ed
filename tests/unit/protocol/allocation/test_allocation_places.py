"""Strategies by place and by hash: RocketMQ's vectors, that no queue is left over, that few queues
move, and what bad settings are told.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rmq_ray.client.consumer.consumer_options import push_settings
from rmq_ray.errors import ClientError, ConfigError
from rmq_ray.model.ids import MessageQueue
from rmq_ray.protocol.allocation.strategies import (
    AllocationStrategy,
    Averagely,
    AveragelyByCircle,
    ByConfig,
    ByMachineRoom,
    ConsistentHash,
    MachineRoomNearby,
    OnlyHosts,
    RoomTable,
    as_strategy,
    register,
    strategy_named,
)

EIGHT = [
    MessageQueue("TopicTest", broker, i) for broker in ("broker-a", "broker-b") for i in range(4)
]
THREE = ["192.168.0.6@15956", "192.168.0.7@15957", "192.168.0.8@15958"]
ROOMS = [MessageQueue("t", f"{room}@b", i) for room in ("east", "north", "west") for i in range(4)]
IN_ROOMS = RoomTable({"10.0.0.1": "east", "10.0.0.2": "east", "10.0.0.3": "west"})
CLIENTS = ["10.0.0.1@1", "10.0.0.2@1", "10.0.0.3@1"]


def division(
    strategy: AllocationStrategy, queues: Sequence[MessageQueue], ids: Sequence[str]
) -> dict[str, list[MessageQueue]]:
    return {client: strategy.allocate("g", client, queues, ids) for client in ids}


def short(queues: Sequence[MessageQueue]) -> str:
    return " ".join(f"{queue.broker_name[-1]}{queue.queue_id}" for queue in queues)


# --- consistent hash ------------------------------------------------------------------------------


def test_consistent_hash_divides_as_rocketmq_does() -> None:
    assert [short(share) for share in division(ConsistentHash(), EIGHT, THREE).values()] == [
        "a3 b2",
        "a2 b0 b1",
        "a0 a1 b3",
    ]


@given(n=st.integers(1, 80), k=st.integers(1, 20), points=st.integers(1, 30))
def test_on_the_ring_every_queue_has_one_owner(n: int, k: int, points: int) -> None:
    queues = [MessageQueue("t", f"b{i % 3}", i // 3) for i in range(n)]
    found = division(ConsistentHash(points), sorted(queues), [f"c{i}" for i in range(k)])
    assert sorted(queue for share in found.values() for queue in share) == sorted(queues)


@given(k=st.integers(2, 20), gone=st.integers(0, 19))
def test_a_consumer_that_leaves_the_ring_moves_nothing_but_its_own_queues(
    k: int, gone: int
) -> None:
    ids = [f"10.0.0.{i}@{i}" for i in range(k)]
    left = [client for client in ids if client != ids[gone % k]]
    before, after = division(ConsistentHash(), EIGHT, ids), division(ConsistentHash(), EIGHT, left)
    for client in left:
        assert set(before[client]) <= set(after[client])


def test_more_points_make_shares_more_even() -> None:
    queues = [MessageQueue("t", "b", i) for i in range(1_000)]
    ids = [f"10.0.0.{i}@1" for i in range(10)]
    few, many = (
        max(map(len, division(ConsistentHash(points), queues, ids).values()))
        for points in (10, 1_000)
    )
    assert 100 <= many < few


def test_a_ring_without_points_is_refused() -> None:
    for points in (0, -1, 10_001):
        with pytest.raises(ConfigError, match="virtual_nodes must be 1 to 10000"):
            ConsistentHash(points)


# --- by configuration -----------------------------------------------------------------------------


@pytest.mark.seed("S4-158")
def test_by_config_a_consumer_has_exactly_the_queues_that_are_written_down_in_that_order() -> None:
    mine = [EIGHT[5], EIGHT[0]]
    assert ByConfig(mine).allocate("g", THREE[0], EIGHT, THREE) == mine
    assert ByConfig(mine).allocate("g", THREE[0], EIGHT, THREE[:1]) == mine, "whoever else is there"


def test_by_config_leaves_out_what_the_topic_does_not_have_and_divides_the_retry_topic() -> None:
    strategy = ByConfig([EIGHT[0], MessageQueue("other", "broker-a", 0)])
    assert strategy.allocate("g", THREE[0], EIGHT, THREE) == [EIGHT[0]]
    retry = [MessageQueue("%RETRY%g", "broker-a", i) for i in range(2)]
    assert division(strategy, retry, THREE) == division(Averagely(), retry, THREE)


# --- machine rooms --------------------------------------------------------------------------------


@pytest.mark.seed("S4-159")
def test_by_machine_room_gives_the_queues_of_the_given_rooms_in_equal_shares() -> None:
    found = division(ByMachineRoom(["east", "west"]), ROOMS, THREE)
    near = [queue for queue in ROOMS if not queue.broker_name.startswith("north")]
    assert list(found.values()) == [
        [near[0], near[1], near[6]],
        [near[2], near[3], near[7]],
        [near[4], near[5]],
    ]


def test_a_broker_whose_name_holds_no_room_is_nobodys_room() -> None:
    queues = [
        MessageQueue("t", name, 0) for name in ("east", "east@", "east@a@b", "east@a", "east@b@@")
    ]
    assert ByMachineRoom(["east"]).allocate("g", "c", queues, ["c"]) == queues[3:]


def test_nearby_divides_each_room_among_its_own_and_an_empty_room_among_all() -> None:
    found = division(MachineRoomNearby(Averagely(), IN_ROOMS), ROOMS, CLIENTS)
    east, north, west = ROOMS[:4], ROOMS[4:8], ROOMS[8:]
    assert found == {
        CLIENTS[0]: east[:2] + north[:2],
        CLIENTS[1]: east[2:] + north[2:3],
        CLIENTS[2]: west + north[3:],
    }


def test_a_room_that_nobody_knows_stops_the_division() -> None:
    strategy = MachineRoomNearby(Averagely(), IN_ROOMS)
    with pytest.raises(ClientError, match="machine room of 10.0.0.9@1 is not known"):
        strategy.allocate("g", CLIENTS[0], ROOMS, [*CLIENTS, "10.0.0.9@1"])
    with pytest.raises(ClientError, match="machine room of MessageQueue"):
        strategy.allocate("g", CLIENTS[0], EIGHT, CLIENTS)
    assert strategy.allocate("g", "10.0.0.9@1", EIGHT, CLIENTS) == [], (
        "one that is not listed yet is not asked"
    )


@given(
    rooms=st.lists(st.sampled_from("abcd"), min_size=1, max_size=20),
    homes=st.lists(st.sampled_from("abcd"), min_size=1, max_size=12),
    circle=st.booleans(),
)
def test_with_rooms_every_queue_has_one_owner_whichever_rooms_are_empty(
    rooms: list[str], homes: list[str], circle: bool
) -> None:
    queues = sorted(MessageQueue("t", f"{room}@x", i) for i, room in enumerate(rooms))
    hosts = {f"h{i:02}": home for i, home in enumerate(homes)}
    strategy = MachineRoomNearby(AveragelyByCircle() if circle else Averagely(), RoomTable(hosts))
    found = division(strategy, queues, [f"{host}@1" for host in hosts])
    assert sorted(queue for share in found.values() for queue in share) == queues


# --- some hosts only ------------------------------------------------------------------------------


@pytest.mark.seed("S0-089")
def test_while_none_of_the_hosts_lives_the_queues_wait_or_are_everybodys_as_asked() -> None:
    waiting, shared = (
        OnlyHosts(Averagely(), {"192.168.0.99"}, else_all) for else_all in (False, True)
    )
    assert division(waiting, EIGHT, THREE) == dict.fromkeys(THREE, [])
    assert division(shared, EIGHT, THREE) == division(Averagely(), EIGHT, THREE)


@given(k=st.integers(1, 10), hosts=st.sets(st.integers(0, 9), min_size=1))
def test_with_else_all_no_queue_is_ever_without_an_owner(k: int, hosts: set[int]) -> None:
    strategy = OnlyHosts(Averagely(), [f"h{host}" for host in hosts], else_all=True)
    found = division(strategy, EIGHT, [f"h{i}@1" for i in range(k)])
    assert sorted(queue for share in found.values() for queue in share) == EIGHT


# --- names and bad settings -----------------------------------------------------------------------


@pytest.mark.seed("S4-154")
def test_rocketmqs_strategies_exist_under_their_names() -> None:
    assert [strategy_named(name).name for name in ("avg", "AVG_BY_CIRCLE", "consistent_hash")] == [
        "AVG",
        "AVG_BY_CIRCLE",
        "CONSISTENT_HASH",
    ]
    assert ByConfig([]).name == "CONFIG" and ByMachineRoom(["r"]).name == "MACHINE_ROOM"
    assert (
        MachineRoomNearby(ConsistentHash(), IN_ROOMS).name == "MACHINE_ROOM_NEARBY-CONSISTENT_HASH"
    )


@pytest.mark.parametrize("name", ["config", "machine_room", "MACHINE_ROOM_NEARBY", "only_hosts"])
def test_a_name_that_means_nothing_without_settings_says_what_to_give(name: str) -> None:
    with pytest.raises(ConfigError, match=r"needs settings; give an object: allocate=\w+\("):
        strategy_named(name)


def test_an_unknown_name_lists_the_known_ones() -> None:
    with pytest.raises(
        ConfigError,
        match=(
            r"'fair'; known are avg, avg_by_circle, consistent_hash.*; as objects ByConfig, "
            r"ByMachineRoom, MachineRoomNearby"
        ),
    ):
        push_settings("g", None, {"allocate": "fair"})


@pytest.mark.parametrize(
    "value", [None, 5, Averagely, object(), type("Nameless", (), {"allocate": print})()]
)
def test_what_is_no_strategy_is_refused_as_an_option_and_by_register(value: Any) -> None:
    for call in (lambda: push_settings("g", None, {"allocate": value}), lambda: register(value)):
        with pytest.raises(ConfigError, match="is no allocation strategy"):
            call()
    assert as_strategy(Averagely()) == Averagely()


def test_settings_that_would_leave_queues_without_owner_or_are_no_list_are_refused() -> None:
    for make in (
        lambda: ByMachineRoom("east"),
        lambda: ByMachineRoom([]),
        lambda: OnlyHosts(Averagely(), "10.0.0.1"),
        lambda: OnlyHosts(Averagely(), []),
        lambda: OnlyHosts("avg", ["10.0.0.1"]),  # type: ignore[arg-type]
        lambda: MachineRoomNearby(Averagely, IN_ROOMS),  # type: ignore[arg-type]
        lambda: MachineRoomNearby(Averagely(), {"10.0.0.1": "east"}),  # type: ignore[arg-type]
        lambda: ByConfig(["queue-0"]),  # type: ignore[list-item]
    ):
        with pytest.raises(ConfigError):
            make()


def test_every_strategy_makes_the_same_checks() -> None:
    for strategy in (
        ConsistentHash(),
        ByConfig([]),
        ByMachineRoom(["r"]),
        MachineRoomNearby(Averagely(), IN_ROOMS),
        OnlyHosts(Averagely(), {"h"}),
    ):
        for client, queues, ids in (("", EIGHT, THREE), ("c", [], THREE), ("c", EIGHT, [])):
            with pytest.raises(ClientError):
                strategy.allocate("g", client, queues, ids)
        if not isinstance(strategy, ByConfig):
            assert strategy.allocate("g", "10.9.9.9@1", EIGHT, THREE) == []
