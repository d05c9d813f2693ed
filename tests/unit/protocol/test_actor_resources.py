"""Whether a Ray cluster has room for actors, and how too little room is told."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rmq_ray.errors import TooFewResources
from rmq_ray.protocol.actor_resources import ActorResources

TWO_CPUS = ActorResources.of({"num_cpus": 2})
FOUR = [{"CPU": 4.0, "memory": 1e9, "node:10.0.0.1": 1.0}]


def test_what_no_cluster_of_this_size_could_run_is_refused_with_the_numbers() -> None:
    with pytest.raises(TooFewResources) as caught:
        TWO_CPUS.require_room(9, FOUR, {"CPU": 3.0}, "billing")
    assert str(caught.value.args[0]) == (
        "9 actors x CPU 2 = CPU 18 asked for; the Ray cluster has CPU 4 in total, CPU 3 free now, "
        "and each actor must fit on one node: room for 2. No actor was created: ask for at most 2 "
        "actors or less for each, or add nodes"
    )
    assert caught.value.args[1] == "billing" and not caught.value.retriable


def test_every_resource_is_told_also_one_that_no_node_has() -> None:
    asked = ActorResources.of(
        {"num_cpus": 1, "num_gpus": 0.5, "resources": {"disk": 1}, "runtime_env": None}
    )
    with pytest.raises(TooFewResources, match="CPU 2, GPU 1, disk 2 asked for.*GPU 0, disk 0 in"):
        asked.require_room(2, FOUR, {"CPU": 4.0}, "g")
    with pytest.raises(TooFewResources, match="room for 0. No actor was created: ask for less"):
        asked.require_room(1, FOUR, {"CPU": 4.0}, "g")


def test_an_actor_must_fit_on_one_node() -> None:
    threes, nodes = ActorResources({"CPU": 3}), [{"CPU": 4.0}, {"CPU": 4.0}]
    assert threes.places(nodes) == 2
    threes.require_room(2, nodes, {}, "g")
    with pytest.raises(TooFewResources, match="room for 2"):
        threes.require_room(3, [*nodes, {"CPU": 2.0}], {}, "g")


def test_what_is_in_use_now_is_waited_for_and_told() -> None:
    TWO_CPUS.require_room(2, FOUR, {}, "g")
    assert TWO_CPUS.shortage(2, FOUR, {"CPU": 4.0}) is None
    assert TWO_CPUS.shortage(1, FOUR, {"CPU": 2.0}) is None
    assert TWO_CPUS.shortage(2, FOUR, {"CPU": 3.0}) == (
        "2 actors x CPU 2 = CPU 4 asked for; free now are CPU 3 of CPU 4"
    )
    assert TWO_CPUS.shortage(1, FOUR, {}) == (
        "1 actor x CPU 2 = CPU 2 asked for; free now are CPU 0 of CPU 4"
    )


def test_actors_that_ask_for_nothing_always_fit() -> None:
    nothing = ActorResources.of({"num_cpus": 0, "num_gpus": 0, "resources": {}})
    assert nothing.places([]) is None and nothing.shortage(10_000, [], {}) is None
    nothing.require_room(10_000, [], {}, "g")


@given(
    st.integers(1, 10_000).map(lambda parts: parts / 10_000),
    st.lists(st.integers(0, 40_000).map(lambda parts: parts / 10_000), max_size=5),
)
def test_the_room_is_what_ray_counts_in_its_steps(each: float, nodes: list[float]) -> None:
    asked = ActorResources({"CPU": each})
    places = asked.places([{"CPU": node} for node in nodes])
    assert places == sum(round(node * 10_000) // round(each * 10_000) for node in nodes)
