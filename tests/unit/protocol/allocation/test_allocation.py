"""Allocation: the seeds' numeric examples, the golden vectors, and that every queue has exactly one
owner.
"""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rmq_ray.errors import ClientError, ConfigError
from rmq_ray.model.ids import MessageQueue
from rmq_ray.protocol.allocation.strategies import (
    Averagely,
    AveragelyByCircle,
    OnlyHosts,
    register,
    strategy_named,
)

NINE = [MessageQueue("TopicTest", f"broker_{name}", i) for name in "abc" for i in range(3)]
FOUR = ["192.168.0.6@15956", "192.168.0.7@15957", "192.168.0.8@15958", "192.168.0.9@15959"]
EIGHT = [MessageQueue("T", f"b{broker}", i) for broker in (1, 2) for i in range(4)]
THREE = ["C1", "C2", "C3"]


def names(queues: Sequence[MessageQueue]) -> list[str]:
    return [f"{queue.broker_name}_q{queue.queue_id}" for queue in queues]


def shares(strategy: Averagely | AveragelyByCircle, n: int, k: int) -> list[list[int]]:
    queues = [MessageQueue("t", "b", i) for i in range(n)]
    ids = [f"c{i:02}" for i in range(k)]
    return [
        [queue.queue_id for queue in strategy.allocate("g", client, queues, ids)] for client in ids
    ]


@pytest.mark.seed("S0-078", "S0-079", "S0-080", "S0-081", "S0-082")
def test_avg_gives_the_first_two_of_four_consumers_three_and_two_of_nine_queues() -> None:
    assert (
        names(sorted(NINE[4:] + NINE[:4]))
        == [f"broker_{name}_q{i}" for name in "abc" for i in range(3)]
        and len(FOUR) == 4
    )
    assert names(Averagely().allocate("g", FOUR[0], NINE, FOUR)) == [
        "broker_a_q0",
        "broker_a_q1",
        "broker_a_q2",
    ]
    assert names(Averagely().allocate("g", FOUR[1], NINE, FOUR)) == ["broker_b_q0", "broker_b_q1"]


@pytest.mark.seed("S0-083", "S0-084", "S0-023")
def test_avg_gives_the_last_two_of_four_consumers_two_queues_that_cross_brokers() -> None:
    assert names(Averagely().allocate("g", FOUR[2], NINE, FOUR)) == ["broker_b_q2", "broker_c_q0"]
    assert names(Averagely().allocate("g", FOUR[3], NINE, FOUR)) == ["broker_c_q1", "broker_c_q2"]


@pytest.mark.seed("S4-011", "S4-012", "S4-013", "S4-014", "S4-155")
def test_avg_divides_eight_queues_of_two_brokers_among_three_consumers() -> None:
    found = [names(Averagely().allocate("g", client, EIGHT, THREE)) for client in THREE]
    assert found == [["b1_q0", "b1_q1", "b1_q2"], ["b1_q3", "b2_q0", "b2_q1"], ["b2_q2", "b2_q3"]]


@pytest.mark.seed("S4-010", "S4-015", "S4-016", "S4-017", "S4-156")
def test_avg_by_circle_deals_eight_queues_out_in_turn() -> None:
    found = [names(AveragelyByCircle().allocate("g", client, EIGHT, THREE)) for client in THREE]
    assert found == [["b1_q0", "b1_q3", "b2_q2"], ["b1_q1", "b2_q0", "b2_q3"], ["b1_q2", "b2_q1"]]


@pytest.mark.seed("S0-073", "S0-074", "S0-075", "S3-129")
def test_avg_gives_one_more_to_the_first_remainder_consumers_and_shifts_the_others() -> None:
    assert shares(Averagely(), 16, 5) == [
        [0, 1, 2, 3],
        [4, 5, 6],
        [7, 8, 9],
        [10, 11, 12],
        [13, 14, 15],
    ]
    assert shares(Averagely(), 7, 3) == [[0, 1, 2], [3, 4], [5, 6]]


@pytest.mark.seed("S0-076", "S3-130", "S4-161")
def test_more_consumers_than_queues_leaves_the_last_ones_idle() -> None:
    assert shares(Averagely(), 4, 6) == [[0], [1], [2], [3], [], []]
    assert shares(AveragelyByCircle(), 4, 6) == [[0], [1], [2], [3], [], []]


def test_avg_by_circle_matches_the_golden_vectors() -> None:
    assert shares(AveragelyByCircle(), 9, 4) == [[0, 4, 8], [1, 5], [2, 6], [3, 7]]
    assert shares(AveragelyByCircle(), 16, 5) == [
        [0, 5, 10, 15],
        [1, 6, 11],
        [2, 7, 12],
        [3, 8, 13],
        [4, 9, 14],
    ]


@pytest.mark.seed("S4-018")
def test_circle_is_fairer_than_avg_when_one_broker_holds_clearly_more_messages() -> None:
    load = {queue: 1000 if queue.broker_name == "b1" else 1 for queue in EIGHT}

    def worst(strategy: Averagely | AveragelyByCircle) -> int:
        return max(
            sum(load[queue] for queue in strategy.allocate("g", client, EIGHT, THREE))
            for client in THREE
        )

    assert worst(AveragelyByCircle()) < worst(Averagely())


@pytest.mark.seed("S3-127")
def test_an_empty_client_id_queue_list_or_consumer_list_is_refused() -> None:
    for client, queues, ids in (("", NINE, FOUR), ("c", [], FOUR), ("c", NINE, [])):
        for strategy in (Averagely(), AveragelyByCircle()):
            with pytest.raises(ClientError):
                strategy.allocate("g", client, queues, ids)


@pytest.mark.seed("S3-128")
def test_a_consumer_that_is_not_listed_gets_nothing() -> None:
    assert Averagely().allocate("g", "192.168.0.1@1", NINE, FOUR) == []
    assert AveragelyByCircle().allocate("g", "192.168.0.1@1", NINE, FOUR) == []


@pytest.mark.seed("S0-077", "S3-126", "S4-153", "S4-160")
def test_strategies_are_found_by_name_and_a_custom_one_can_be_added() -> None:
    class Everything:
        name = "EVERYTHING-FOR-TESTS"

        def allocate(
            self,
            group: str,
            client_id: str,
            queues: Sequence[MessageQueue],
            client_ids: Sequence[str],
        ) -> list[MessageQueue]:
            return list(queues)

    assert isinstance(strategy_named("avg"), Averagely)
    assert strategy_named("AVG_BY_CIRCLE").name == "AVG_BY_CIRCLE"
    with pytest.raises(ConfigError, match="everything"):
        strategy_named("everything-for-tests")
    register(Everything())
    assert strategy_named("everything-for-tests").allocate("g", "c", NINE, FOUR) == NINE


@pytest.mark.seed("S0-086", "S0-087", "S0-088")
def test_only_hosts_gives_a_test_machine_all_queues_and_the_others_none() -> None:
    only = OnlyHosts(Averagely(), frozenset({"192.168.0.6"}))
    assert [only.allocate("g", client, NINE, FOUR) for client in FOUR] == [NINE, [], [], []]


@pytest.mark.seed("S0-089")
def test_only_hosts_filters_the_consumers_before_dividing_so_that_no_queue_is_left_over() -> None:
    only = OnlyHosts(Averagely(), frozenset({"192.168.0.7", "192.168.0.9"}))
    owned = [queue for client in FOUR for queue in only.allocate("g", client, NINE, FOUR)]
    assert sorted(owned) == NINE


@pytest.mark.seed("S0-085", "S1-051", "S4-005")
@given(n=st.integers(1, 60), k=st.integers(1, 40), circle=st.booleans())
def test_every_queue_is_owned_by_exactly_one_consumer_and_shares_differ_by_one_at_most(
    n: int, k: int, circle: bool
) -> None:
    found = shares(AveragelyByCircle() if circle else Averagely(), n, k)
    assert sorted(queue for share in found for queue in share) == list(range(n))
    assert max(map(len, found)) - min(map(len, found)) <= 1
