"""Which rows are left of a worker's windows, and what a saved state may be."""

from __future__ import annotations

import json

import pytest

from rmq_ray.data.train_windows import (
    TrainState,
    Window,
    advanced,
    hand_out_order,
    merged,
)
from rmq_ray.errors import ClientError
from rmq_ray.model.ids import MessageQueue

QUEUES = [MessageQueue("t", "b", number) for number in range(3)]
WINDOWS = {QUEUES[0]: Window(5, 25), QUEUES[1]: Window(0, 7), QUEUES[2]: Window(3, 3)}


def state(rank: int, workers: int, windows: dict[MessageQueue, Window]) -> TrainState:
    return TrainState("t", "c", 7, windows, {"b": 1}, {QUEUES[0]: 30}, (rank, workers))


def places(windows: dict[MessageQueue, Window], seed: int | None = 7) -> list[tuple[int, int]]:
    queues = sorted(windows)
    numbers, offsets = hand_out_order(queues, windows, seed)
    return [
        (queues[number].queue_id, int(offset))
        for number, offset in zip(numbers, offsets, strict=True)
    ]


def test_every_place_comes_once_shuffled_by_the_seed() -> None:
    found = places(WINDOWS)
    assert sorted(found) == sorted([(0, n) for n in range(5, 25)] + [(1, n) for n in range(7)])
    assert found == places(WINDOWS) != places(WINDOWS, 8)
    assert [n for q, n in places(WINDOWS, None) if q == 0] == list(range(5, 25))
    assert [n for q, n in found if q == 0] != list(range(5, 25))


@pytest.mark.parametrize("cut", [0, 1, 9, 26, 27])
def test_what_is_left_behind_any_place_is_the_rest_in_its_order(cut: int) -> None:
    queues = sorted(WINDOWS)
    numbers, _ = hand_out_order(queues, WINDOWS, 7)
    left = advanced(queues, WINDOWS, numbers[:cut])
    assert places(left) == places(WINDOWS)[cut:]
    apart = [places({queue: at}) for queue, at in left.items()]
    assert sorted(place for part in apart for place in part) == sorted(places(WINDOWS)[cut:]), (
        "whoever has the queues"
    )


def test_a_state_survives_json_and_those_of_all_workers_are_one() -> None:
    first = state(0, 2, {QUEUES[0]: Window(5, 25, 3)})
    second = state(1, 2, {QUEUES[1]: Window(0, 7, 7)})
    read = [TrainState.from_dict(json.dumps(one.to_dict())) for one in (second, first)]
    assert merged(read).windows == {QUEUES[0]: Window(5, 25, 3), QUEUES[1]: Window(0, 7, 7)}
    assert merged(read).end == {QUEUES[0]: 30} and read[1] == first
    assert Window(5, 25, 3).safe == 5 and Window(0, 7, 7).safe == 7


def test_states_that_do_not_belong_together_and_what_is_none_are_refused() -> None:
    with pytest.raises(ClientError, match="2 workers are needed"):
        merged([state(0, 2, {})])
    with pytest.raises(ClientError, match="several runs"):
        merged([state(0, 2, {}), state(1, 3, {})])
    for wrong in (
        "{",
        "{}",
        {"format": 9},
        {**state(0, 1, {}).to_dict(), "queues": {"b": {"0": [3]}}},
    ):
        with pytest.raises(ClientError, match="no state of a train source"):
            TrainState.from_dict(wrong)
    with pytest.raises(ClientError, match="no window"):
        Window(3, 5, 4)
