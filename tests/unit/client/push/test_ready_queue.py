"""The queue of the consuming threads: who is woken, and that nobody sleeps while something
waits.
"""

from __future__ import annotations

import contextlib
import threading
from queue import Empty
from typing import Any

import pytest

from rmq_ray.client.push.consuming_threads import ReadyQueue


class Steps:
    """Threads that take one item each time they are told to, and say what they got."""

    def __init__(self, queue: ReadyQueue[int], count: int) -> None:
        self.taken: dict[int, list[int]] = {number: [] for number in range(count)}
        self._go = [threading.Semaphore(0) for _ in range(count)]
        self._told = threading.Semaphore(0)
        for number in range(count):
            threading.Thread(target=self._run, args=(queue, number), daemon=True).start()

    def park(self, queue: ReadyQueue[int], number: int) -> None:
        """Let a thread wait for an item; it waits on return."""
        before = len(queue._asleep)
        self._go[number].release()
        for _ in range(100_000_000):
            if len(queue._asleep) > before:
                return
        raise AssertionError(f"thread {number} does not sleep")

    def told(self) -> None:
        """Some thread has said what it got."""
        assert self._told.acquire(timeout=5)

    def _run(self, queue: ReadyQueue[int], number: int) -> None:
        while self._go[number].acquire(timeout=10):
            with contextlib.suppress(Empty):  # the test is over
                self.taken[number].append(queue.get(5))
            self._told.release()


def test_items_come_in_their_order_and_none_is_an_exception() -> None:
    queue: ReadyQueue[int] = ReadyQueue()
    queue.put(1)
    queue.put_all([2, 3])
    assert not queue.empty()
    assert [queue.get(0), queue.get_nowait(), queue.get(1)] == [1, 2, 3]
    assert queue.empty()
    with pytest.raises(Empty):
        queue.get_nowait()
    with pytest.raises(Empty):
        queue.get(0.001)
    assert not queue._asleep, "whoever gave up does not sleep any more"


def test_a_lone_item_wakes_the_thread_that_fell_asleep_last_and_no_other() -> None:
    queue: ReadyQueue[int] = ReadyQueue()
    steps = Steps(queue, 3)
    for number in range(3):
        steps.park(queue, number)
    for item in range(4):
        queue.put(item)
        steps.told()
        assert len(queue._asleep) == 2
        steps.park(queue, 2)
    assert steps.taken == {0: [], 1: [], 2: [0, 1, 2, 3]}


def test_more_threads_than_the_limit_stay_asleep_until_it_is_raised() -> None:
    held: list[bool] = []
    queue: ReadyQueue[int] = ReadyQueue(lambda: held.append(True))
    queue.limit, queue.threads = 1, 3
    steps = Steps(queue, 3)
    for number in range(3):
        steps.park(queue, number)
    queue.put_all([1, 2, 3])
    steps.told()
    assert len(queue._asleep) == 2 and held and not queue.empty()
    queue.wake()
    assert len(queue._asleep) == 2 and steps.taken[2] == [1]
    queue.limit = 3
    queue.wake()
    steps.told()
    steps.told()
    assert sorted(steps.taken[0] + steps.taken[1]) == [2, 3]


def test_who_is_one_too_many_sleeps_although_items_wait_and_the_last_one_awake_does_not() -> None:
    queue: ReadyQueue[int] = ReadyQueue()
    queue.limit, queue.threads = 1, 2
    queue.put_all([1, 2])
    steps = Steps(queue, 1)
    steps.park(queue, 0)
    assert queue.get(5) == 1, "one sleeps: this thread is the one that is awake"
    assert len(queue._asleep) == 1 and not queue.empty()
    assert queue.get(5) == 2


def test_a_page_of_items_wakes_as_many_threads_as_it_needs() -> None:
    queue: ReadyQueue[int] = ReadyQueue()
    steps = Steps(queue, 4)
    for number in range(4):
        steps.park(queue, number)
    queue.put_all([7, 8, 9])
    for _ in range(3):
        steps.told()
    assert sorted(item for items in steps.taken.values() for item in items) == [7, 8, 9]
    assert steps.taken[0] == [] and len(queue._asleep) == 1


def test_whoever_falls_asleep_looks_once_more() -> None:
    class Late(list[Any]):
        """An item is put between the look at the items and the sleep, by somebody who sees nobody
        asleep.
        """

        def append(self, sleeper: Any) -> None:
            queue._items.append(5)
            super().append(sleeper)

    queue: ReadyQueue[int] = ReadyQueue()
    queue._asleep = Late()
    got: list[int] = []
    taker = threading.Thread(target=lambda: got.append(queue.get(30)), daemon=True)
    taker.start()
    taker.join(5)
    assert got == [5]


def test_a_wake_up_that_crosses_the_end_of_the_wait_is_not_left_behind() -> None:
    class Crossing(list[Any]):
        """The sleeper gives up at the moment when somebody takes it off the list."""

        def remove(self, sleeper: Any) -> None:
            queue._items.append(6)
            queue._wake()
            super().remove(sleeper)

    queue: ReadyQueue[int] = ReadyQueue()
    queue._asleep = Crossing()
    assert queue.get(0.001) == 6
    assert queue._mine.sleeper is not None and queue._mine.sleeper.locked(), (
        "the next sleep is not ended by that wake-up"
    )
    assert not queue._waking


def test_an_item_that_somebody_else_takes_first_does_not_end_the_wait() -> None:
    class Stolen(list[Any]):
        """What this sleeper sees before it sleeps is gone when it looks again; then another item
        comes, which stays.
        """

        def remove(self, sleeper: Any) -> None:
            super().remove(sleeper)
            if seen == [1]:
                seen.append(queue._items.popleft())
                threading.Timer(0.01, queue.put, (2,)).start()

    class Late(Stolen):
        def append(self, sleeper: Any) -> None:
            super().append(sleeper)
            if not seen:
                seen.append(1)
                queue._items.append(1)

    seen: list[int] = []
    queue: ReadyQueue[int] = ReadyQueue()
    queue._asleep = Late()
    assert queue.get(5) == 2


def test_many_threads_take_everything_once() -> None:
    queue: ReadyQueue[int] = ReadyQueue()
    takers, putters, each = 8, 4, 2_000
    taken: list[list[int]] = [[] for _ in range(takers)]

    def take(mine: list[int]) -> None:
        while (item := queue.get(10)) >= 0:
            mine.append(item)

    def put(number: int) -> None:
        for item in range(number * each, (number + 1) * each, 4):
            queue.put(item)
            queue.put_all(range(item + 1, item + 4))

    threads = [threading.Thread(target=take, args=(mine,), daemon=True) for mine in taken]
    sources = [
        threading.Thread(target=put, args=(number,), daemon=True) for number in range(putters)
    ]
    for thread in threads + sources:
        thread.start()
    for source in sources:
        source.join(20)
    for _ in threads:
        queue.put(-1)
    for thread in threads:
        thread.join(20)
        assert not thread.is_alive()
    assert sorted(item for mine in taken for item in mine) == list(range(putters * each))
    for mine in taken:
        for number in range(putters):
            of_one = [item for item in mine if number * each <= item < (number + 1) * each]
            assert of_one == sorted(of_one)


def test_a_wake_up_that_is_said_after_its_thread_has_given_up_keeps_nobody_asleep() -> None:
    """As a thread that puts, off its core between taking the sleeper and saying so."""
    ready: ReadyQueue[int] = ReadyQueue()
    ready._waking = True
    with pytest.raises(Empty):
        ready.get(0.001)
    assert not ready._waking, "else no put would wake anyone any more"
