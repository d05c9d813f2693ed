"""What sends of one producer share."""

from __future__ import annotations

import pytest

from rmq_ray.client.sending import Turns


@pytest.mark.seed("S0-035", "S0-055", "S3-065")
def test_each_topic_has_a_counter_of_its_own_that_starts_anywhere_and_only_counts_on() -> None:
    turns = Turns()
    first, other = turns.of("orders")(), turns.of("bills")()
    assert [turns.of("orders")() for _ in range(3)] == [first + 1, first + 2, first + 3]
    assert turns.of("bills")() == other + 1
    assert len({Turns().of("orders")() for _ in range(10)}) > 5
