"""What a stream remembers: which batch runs again after a restart at each step. The directory is a
dictionary here.
"""

from __future__ import annotations

import json
from typing import Any

import pytest

from rmq_ray.client.scan.stream_checkpoint import KEPT, Checkpoint
from rmq_ray.errors import ClientError, SparkError
from rmq_ray.model.ids import MessageQueue
from rmq_ray.protocol.scan.stream_offsets import StreamPosition

QUEUE = MessageQueue("orders", "broker-a", 0)


class InMemory:
    """What ``Directory`` does, in memory."""

    def __init__(self) -> None:
        self.files: dict[str, str] = {}

    def read(self, name: str) -> str | None:
        return self.files.get(name)

    def write(self, name: str, text: str) -> None:
        if name in self.files:
            raise SparkError(f"{name} exists already")
        self.files[name] = text

    def numbers(self, folder: str) -> list[int]:
        return sorted(
            int(name.partition("/")[2]) for name in self.files if name.startswith(f"{folder}/")
        )

    def delete(self, name: str) -> None:
        self.files.pop(name, None)


def at(offset: int) -> StreamPosition:
    return StreamPosition({QUEUE: offset})


def opened(directory: Any, topics: tuple[str, ...] = ("orders",), begin: int = 0) -> Checkpoint:
    return Checkpoint(directory, topics, lambda: at(begin), error=SparkError)


def test_a_stream_begins_where_it_began_the_first_time() -> None:
    directory = InMemory()
    first = opened(directory, begin=5)
    again = opened(directory, begin=99)
    assert (
        again.position == first.position == at(5)
        and again.id == first.id
        and again.pending() is None
    )


def test_a_planned_batch_comes_again_until_it_is_done() -> None:
    directory = InMemory()
    planned = opened(directory).plan(at(10))
    for _ in range(2):
        found = opened(directory).pending()
        assert (
            found == planned
            and found is not None
            and (found.number, found.before, found.end) == (0, at(0), at(10))
        )
    opened(directory).done(planned)
    later = opened(directory)
    assert later.pending() is None and later.position == at(10) and later.plan(at(12)).number == 1


def test_two_drivers_on_one_directory_are_told() -> None:
    directory = InMemory()
    one, other = opened(directory), opened(directory)
    one.plan(at(3))
    with pytest.raises(SparkError, match="exists already"):
        other.plan(at(4))


def test_old_batches_are_forgotten() -> None:
    directory = InMemory()
    checkpoint = opened(directory)
    for number in range(KEPT + 20):
        checkpoint.done(checkpoint.plan(at(number + 1)))
    assert len(directory.numbers("plans")) == len(directory.numbers("done")) == KEPT
    assert opened(directory).position == at(KEPT + 20)


def test_directories_of_other_streams_and_broken_ones_are_refused() -> None:
    directory = InMemory()
    checkpoint = opened(directory)
    with pytest.raises(SparkError, match="belongs to a stream of orders, not of refunds"):
        opened(directory, ("refunds",))
    checkpoint.done(checkpoint.plan(at(1)))
    del directory.files["plans/0000000000"]
    with pytest.raises(SparkError, match="no plan of batch 0"):
        opened(directory)
    directory.files["plans/0000000000"] = "half a fi"
    with pytest.raises(ClientError, match="cannot be read"):
        opened(directory)
    directory.files["stream.json"] = json.dumps(
        {"format": 9, "topics": ["orders"], "id": "x", "begin": {"offsets": {}}}
    )
    with pytest.raises(SparkError, match="has format 9"):
        opened(directory)
    directory.files["stream.json"] = "{"
    with pytest.raises(SparkError, match=r"stream\.json cannot be read"):
        opened(directory)
