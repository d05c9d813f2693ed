"""Positions of streams: their text, what a batch is, how a limit is shared."""

from __future__ import annotations

import random

import pytest

from rmq_ray.errors import ClientError
from rmq_ray.model.ids import MessageQueue
from rmq_ray.protocol.scan.derived_frames import SEQUENCES, DerivedFrames
from rmq_ray.protocol.scan.stream_offsets import StreamPosition, limited

A, B, C = (
    MessageQueue("orders", "broker-a", 0),
    MessageQueue("orders", "broker-b", 0),
    MessageQueue("refunds", "broker-a", 1),
)


def test_a_position_comes_back_from_its_text() -> None:
    position = StreamPosition({B: 7, A: 3}, {"broker-b": 2, "broker-a": 1}, {C: 5})
    assert StreamPosition.from_json(position.to_json()) == position
    assert (
        position.to_json()
        == StreamPosition({A: 3, B: 7}, {"broker-a": 1, "broker-b": 2}, {C: 5}).to_json()
    )


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        "{}",
        '{"offsets": 3}',
        '{"offsets": {"t": {"b": {"x": 1}}}}',
        '{"offsets": {}, "epochs": {"b": "x"}}',
        '{"offsets": {}, "epochs": []}',
    ],
)
def test_a_text_that_is_no_position_is_told_with_the_remedy(text: str) -> None:
    with pytest.raises(ClientError):
        StreamPosition.from_json(text)


def test_a_batch_lies_between_two_positions_and_starts_of_its_own_count_first() -> None:
    before = StreamPosition({A: 3, B: 7})
    end = StreamPosition({A: 5, B: 7, C: 9}, {}, {C: 2})
    assert end.ranges(before) == {A: (3, 5), C: (2, 9)}
    assert StreamPosition({A: 5}, {}, {A: 4}).ranges(before) == {A: (4, 5)}
    assert end.ranges(None) == {C: (2, 9)}


def test_limits_are_kept_exactly_and_every_queue_gets_its_share() -> None:
    chance = random.Random(4)
    for _ in range(300):
        queues = [MessageQueue("t", "b", number) for number in range(chance.randrange(1, 9))]
        start = {queue: chance.randrange(50) for queue in queues}
        end = {
            queue: low + chance.choice((0, 1, chance.randrange(1_000)))
            for queue, low in start.items()
        }
        rows_max, total = chance.randrange(1, 1_500), sum(end.values()) - sum(start.values())
        found = limited(start, end, rows_max)
        assert sum(found.values()) - sum(start.values()) == min(rows_max, total)
        for queue in queues:
            share = rows_max * (end[queue] - start[queue]) / max(total, 1)
            assert start[queue] <= found[queue] <= end[queue] and found[queue] - start[
                queue
            ] >= min(int(share), end[queue] - start[queue])
    assert limited({A: 4}, {A: 2}, None) == {A: 4}, "an end before the start moves nothing back"


def test_frame_ids_follow_from_names_and_differ_between_partitions_writes_and_blocks() -> None:
    frames = [
        DerivedFrames(write, partition, [A, B])
        for write in ("job/1", "job/11")
        for partition in (1, 11)
    ]
    ids = [each.place(number)[1] for each in frames for number in range(2 * SEQUENCES)]
    assert len(set(ids)) == len(ids) and {frame_id.sequence for frame_id in ids} == set(
        range(SEQUENCES)
    )
    assert ids[:4] == [DerivedFrames("job/1", 1, [A, B]).place(number)[1] for number in range(4)]
    assert [frames[0].place(number)[0] for number in range(3)] == [B, A, B]
