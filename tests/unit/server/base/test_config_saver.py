"""Tables are saved again after whatever kept them from it."""

from __future__ import annotations

import pytest

from rmq_ray.errors import BrokerBusy, StoreFailed
from rmq_ray.server.base.config_saver import ConfigSaver
from tests.support.brokers.broker_bench import ManualOffload


class Table:
    """What is saved, and what fails on the way."""

    def __init__(self) -> None:
        self.value, self.saved = 0, list[int]()
        self.snapshot_fails: Exception | None = None
        self.write_fails: Exception | None = None

    def snapshot(self) -> int:
        error, self.snapshot_fails = self.snapshot_fails, None
        if error is not None:
            raise error
        return self.value

    def write(self, value: int) -> None:
        error, self.write_fails = self.write_fails, None
        if error is not None:
            raise error
        self.saved.append(value)


def test_who_waits_is_told_when_it_is_on_disk() -> None:
    table, told = Table(), list[object]()
    saver = ConfigSaver("t.json", table.snapshot, table.write, ManualOffload())
    saver.save(told.append)
    assert (table.saved, told) == ([0], [None])


def test_a_snapshot_that_fails_is_its_callers_and_the_next_save_tells_all_who_wait() -> None:
    table, told = Table(), list[object]()
    saver = ConfigSaver("t.json", table.snapshot, table.write, ManualOffload())
    table.snapshot_fails = MemoryError()
    with pytest.raises(MemoryError):
        saver.save(told.append)
    saver.save(told.append)
    assert (table.saved, told) == ([0], [None, None])


@pytest.mark.parametrize("error", [StoreFailed("EIO"), MemoryError()])
def test_a_write_that_fails_is_told_and_the_next_is_made(error: Exception) -> None:
    table, told = Table(), list[object]()
    saver = ConfigSaver("t.json", table.snapshot, table.write, ManualOffload())
    table.write_fails = error
    saver.save(told.append)
    assert (told, saver.failures) == ([error], 1)
    saver.save(told.append)
    assert (table.saved, told) == ([0], [error, None])


@pytest.mark.parametrize("error", [BrokerBusy("full"), MemoryError()])
def test_an_offload_that_takes_nothing_is_told_and_asked_again(error: Exception) -> None:
    table, told = Table(), list[object]()
    offload = ManualOffload()
    saver = ConfigSaver("t.json", table.snapshot, table.write, offload)
    submit = offload.submit

    def refuses(*_work: object) -> None:
        raise error

    offload.submit = refuses  # type: ignore[method-assign,assignment]
    saver.save(told.append)
    assert told == [error]
    offload.submit = submit  # type: ignore[method-assign]
    saver.save(told.append)
    assert (table.saved, told) == ([0], [error, None])
