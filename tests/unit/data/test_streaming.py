"""Batches without an end, over a consumer that is played: what a refused commit means for the loop."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

from rmq_ray.data import streaming
from rmq_ray.errors import CommitFailed


class Batch:
    """One message of a queue."""

    def __init__(self, number: int) -> None:
        self.next_offsets = {"queue": number + 1}
        self.number = number

    def __len__(self) -> int:
        return 1

    def to_arrow(self, columns: Any) -> Any:
        return pa.table({"body": [self.number]})


class Consumer:
    """Refuses the first commit, as when another member of the group has taken the queue over."""

    def __init__(self, *_: Any, **__: Any) -> None:
        self.number = 0
        self.commits: list[dict[str, int]] = []
        played.append(self)

    def __enter__(self) -> Consumer:
        return self

    def __exit__(self, *_: object) -> None: ...

    def subscribe(self, topic: str, tags: Any) -> None: ...

    def poll(self, count: int, timeout: float) -> Batch:
        self.number += 1
        return Batch(self.number)

    def commit(self, offsets: dict[str, int]) -> None:
        self.commits.append(offsets)
        if len(self.commits) == 1:
            raise CommitFailed("1 of 1 offsets were not taken; commit again", "queue")


played: list[Consumer] = []


def test_a_commit_that_is_refused_does_not_end_the_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(streaming, "PullConsumer", Consumer)
    batches = streaming.iter_batches("orders", group="train", batch_size=1)
    assert [next(batches)["body"].to_pylist() for _ in range(3)] == [[1], [2], [3]]
    assert played[-1].commits == [{"queue": 2}, {"queue": 3}]
    batches.close()  # type: ignore[attr-defined]
