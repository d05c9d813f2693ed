"""Batches without an end, over a consumer that is played: when what is committed, what is left out,
who reads which queue.
"""

from __future__ import annotations

import json
from typing import Any

import pyarrow as pa
import pytest

from rmq_ray.data import streaming
from rmq_ray.errors import ClientError, CommitFailed
from rmq_ray.model.ids import MessageQueue

QUEUES = [
    MessageQueue("orders", broker, number)
    for broker in ("broker-a", "broker-b")
    for number in (0, 1)
]


class Batch:
    """One message of the first queue; ``number`` is its offset and its body. None: nothing came."""

    def __init__(self, number: int | None) -> None:
        self.next_offsets = {} if number is None else {QUEUES[0]: number + 1}
        self.number = number

    def __len__(self) -> int:
        return int(self.number is not None)

    def to_arrow(self, columns: Any) -> Any:
        row = {
            "body": [self.number],
            "broker": ["broker-a"],
            "queue_id": [0],
            "queue_offset": [self.number],
        }
        return pa.table(row).select(columns or ["body"])


class Consumer:
    """Has ``rows`` messages. Refuses the first commits, as when another member of the group has
    taken the queue over.
    """

    rows, refusals, breaks_at = 5, 0, -1

    def __init__(self, *_: Any, **__: Any) -> None:
        self.number = 0
        self.commits: list[dict[Any, int]] = []
        self.asked: list[Any] = []
        self.closed = False
        played.append(self)

    def __enter__(self) -> Consumer:
        return self

    def __exit__(self, *_: object) -> None:
        self.closed = True

    def fetch_message_queues(self, topic: str) -> list[MessageQueue]:
        return QUEUES[::-1]

    def subscribe(self, topic: str, tags: Any) -> None:
        self.asked.append(topic)

    def _full_name(self, topic: str) -> str:
        return topic

    def assign(self, queues: list[MessageQueue], tags: Any) -> None:
        self.asked.append(queues)

    def seek(self, queue: MessageQueue, offset: int) -> None:
        self.asked.append((queue, offset))

    def position(self, queue: MessageQueue) -> int:
        return dict(self.asked[1:]).get(queue, 11)

    def poll(self, count: int, timeout: float) -> Batch:
        if self.number == self.breaks_at:
            raise ConnectionError("the broker is gone")
        if self.number == self.rows:
            return Batch(None)
        self.number += 1
        return Batch(self.number - 1)

    def commit(self, offsets: dict[Any, int]) -> None:
        assert not self.closed
        self.commits.append(dict(offsets))
        if len(self.commits) <= self.refusals:
            raise CommitFailed("1 of 1 offsets were not taken; commit again", "queue")


played: list[Any] = []


@pytest.fixture(autouse=True)
def consumer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(streaming, "PullConsumer", Consumer)
    monkeypatch.setattr(streaming, "queues_to_share", lambda *_: QUEUES)
    played.clear()


def begin(**settings: Any) -> Any:
    return streaming.iter_batches(
        "orders",
        **{"group": "train", "batch_size": 1, "idle_s": 0.03, "columns": ["body"], **settings},
    )


def bodies(tables: Any) -> list[int]:
    return [row for table in tables for row in table["body"].to_pylist()]


def test_a_table_is_committed_when_the_next_one_is_asked_for_and_the_last_one_at_the_end() -> None:
    batches = begin()
    assert bodies([next(batches)]) == [0] and not played[-1].commits
    assert bodies(batches) == [1, 2, 3, 4]
    assert [commit[QUEUES[0]] for commit in played[-1].commits] == [1, 2, 3, 4, 5] and played[
        -1
    ].closed


def test_a_commit_that_is_refused_does_not_end_the_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Consumer, "refusals", 1)
    batches = begin()
    assert bodies(next(batches) for _ in range(3)) == [0, 1, 2]
    assert played[-1].commits == [{QUEUES[0]: 1}, {QUEUES[0]: 2}]


def test_a_loop_that_is_left_and_dropped_leaves_the_group() -> None:
    for _table in begin():
        break
    assert played[-1].closed and not played[-1].commits
    with begin() as batches:
        next(batches)
        assert not played[-1].closed
    assert played[-1].closed


def test_by_hand_nothing_is_committed_until_it_is_said_also_behind_the_end_of_the_loop() -> None:
    batches = begin(commit="manual")
    next(batches)
    next(batches)
    assert not played[-1].commits and batches.position == '{"orders":{"broker-a":{"0":2}}}'
    batches.commit()
    batches.commit()
    assert played[-1].commits == [{QUEUES[0]: 2}]
    assert bodies(batches) == [2, 3, 4] and len(played[-1].commits) == 1
    batches.commit()
    assert played[-1].commits[-1] == {QUEUES[0]: 5}
    played[-1].rows = 6
    assert bodies(batches) == [5], "the loop may be entered again"
    batches.close()
    assert played[-1].closed


def test_rows_that_an_error_kept_from_the_loop_are_not_behind_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(Consumer, "breaks_at", 3)
    batches = begin(commit="manual", batch_size=2)
    assert bodies([next(batches)]) == [0, 1]
    with pytest.raises(ConnectionError):
        next(batches)
    assert batches.position == '{"orders":{"broker-a":{"0":2}}}'


def test_rows_before_a_position_are_left_out_and_the_greatest_one_of_several_counts() -> None:
    batches = begin(
        after=[
            '{"orders":{"broker-a":{"0":2}}}',
            {"orders": {"broker-a": {"0": 3}, "broker-b": {"1": 7}}},
        ]
    )
    assert bodies(batches) == [3, 4]
    assert batches.position == '{"orders":{"broker-a":{"0":5},"broker-b":{"1":7}}}'


def test_a_position_never_goes_back_behind_the_one_it_began_with() -> None:
    batches = begin(after='{"orders":{"broker-a":{"0":9}}}')
    assert bodies(batches) == []
    assert batches.position == '{"orders":{"broker-a":{"0":9}}}', (
        "five rows before it came, and were left out"
    )


def test_shards_divide_the_queues_among_workers_and_begin_at_their_positions() -> None:
    found = []
    for rank in range(2):
        batches = begin(shard=(rank, 2), after='{"orders":{"broker-a":{"0":2,"1":4}}}')
        next(batches)
        assert json.loads(batches.position)["orders"]["broker-b"] == {str(rank): 11}, (
            "queues of which nothing has come have their place, too"
        )
        queues, *seeks = played[-1].asked
        found += queues
        assert seeks == [(QUEUES[rank], (2, 4)[rank])]
    assert sorted(found) == QUEUES
    with pytest.raises(
        ClientError, match="5 workers cannot share the 4 queues of 'orders': give it more queues"
    ):
        next(begin(shard=(0, 5)))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"batch_size": 0}, "batch_size must be at least 1"),
        ({"commit": "auto"}, "commit must be 'next' or 'manual', not 'auto'"),
        ({"shard": (2, 2)}, "0 <= rank < workers"),
        ({"after": "latest"}, "what .position was"),
        ({"after": '{"orders":{"broker-a":{"0":-1}}}'}, "what .position was"),
        ({"after": "{"}, "no JSON"),
        ({"columns": ["colour"]}, "unknown column 'colour'"),
        ({"group": "bad group"}, "bad group"),
    ],
)
def test_wrong_settings_are_told_before_anything_is_asked(
    settings: dict[str, Any], message: str
) -> None:
    with pytest.raises(ClientError, match=message):
        begin(**settings)
    assert not played
