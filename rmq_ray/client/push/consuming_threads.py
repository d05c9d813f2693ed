"""The threads that call listeners, whatever they are handed: batches (concurrent consumption) or
queues (ordered consumption).

Decides how many run, how they end, and how a listener's fault is told. Does not decide what is done
with an item: each kind of consumption says so in ``_handle``.

Invariant: a thread ends by ``stop`` or ``resize`` only; ``_handle`` must not raise.

A listener's fault is told in the log by a line each time, with the traceback now and then (see
``guard``):

    listener of group billing failed with ValueError: no amount: message 7F00... (keys o-1) of
    orders, queue 2 of broker-a, offset 17; 15 tries left
"""

from __future__ import annotations

import logging
import threading
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from functools import partial
from math import inf
from queue import Empty
from typing import Generic, TypeVar

from rmq_ray.client.consumer.consumer_parts import ConsumerParts
from rmq_ray.client.messages.listener import failure_of
from rmq_ray.client.messages.received import MessageExt
from rmq_ray.client.push.listener_breaker import ListenerBreaker
from rmq_ray.clock import seconds_to
from rmq_ray.errors import ConsumeError
from rmq_ray.guard import WHY_CHARS_MAX, Tracebacks
from rmq_ray.model.metrics import Histogram

IDLE_WAIT_S = 5.0
HAND_OVER_S = 5.0

PROCESS_MS = (1, 5, 10, 100, 1_000, 10_000, 60_000)
"""RocketMQ 5's buckets of ``rocketmq_process_time``."""
KEYS_CHARS_MAX = 128
RETRIES_SHOWN_MAX = 1_000_000  # more are as good as no end


T = TypeVar("T")


class ConsumingThreads(ABC, Generic[T]):
    """Daemon threads that take items off one queue. ``log``: where faults of listeners are told.
    ``held``: see ``ReadyQueue``. ``breaker``: lets them wait while most calls fail.
    """

    def __init__(
        self,
        parts: ConsumerParts,
        log: logging.Logger,
        held: Callable[[], None] = lambda: None,
        breaker: ListenerBreaker | None = None,
    ) -> None:
        self._parts = parts
        self._breaker = breaker
        self._waits_first = True
        """Whether each item has its turn behind an open breaker, not only what is called."""
        self._log = log
        self._ready: ReadyQueue[T | None] = ReadyQueue(held)
        self._threads: list[threading.Thread] = []
        self._size = 0
        self._stopping = False
        self._traces = Tracebacks()
        self.listener_faults = 0
        """How often the listener raised or returned something that means nothing."""
        self.times: dict[str, Histogram] = {}
        """Topic -> the listener's calls by their time, ms. Not locked: that of two that end at once
        one may not count does no harm.
        """

    def times_of(self, topic: str) -> Histogram:
        """Of the listener's calls for this topic."""
        return self.times.get(topic) or self.times.setdefault(topic, Histogram(PROCESS_MS))

    def start(self) -> None:
        """Start ``concurrency`` daemon threads."""
        self.resize(self._parts.config.concurrency)

    def resize(self, concurrency: int) -> None:
        """From now on so many threads; those that are too many end after what they are
        working on.
        """
        self._threads = [thread for thread in self._threads if thread.is_alive()]
        for number in range(self._size, concurrency):
            thread = threading.Thread(
                target=self._run, name=f"rmq-consume-{self._parts.group}-{number}", daemon=True
            )
            self._threads.append(thread)
            thread.start()
        for _ in range(concurrency, self._size):
            self._ready.put(None)
        self._size = self._ready.threads = concurrency

    def owns_current_thread(self) -> bool:
        """True in a consuming thread, which cannot wait for itself."""
        return threading.current_thread() in self._threads

    def halt(self) -> None:
        """Hand nothing more to the listener."""
        self._stopping = True
        if self._breaker is not None:
            self._breaker.close()

    @property
    def pauses(self) -> bool:
        """Whether threads wait, since most calls have failed."""
        return self._breaker is not None and self._breaker.open

    @property
    def waiting_for_keys(self) -> int:
        """Messages whose keys have as many calls as they may."""
        return 0

    def stop(self, timeout_ms: float) -> bool:
        """Let running listeners end and settle; False when some still run after ``timeout_ms``."""
        self.halt()
        self._ready.limit = inf
        for _ in self._threads:
            self._ready.put(None)
        deadline = self._parts.clock.monotonic_ms() + timeout_ms
        for thread in self._threads:
            thread.join(seconds_to(self._parts.clock, deadline))
        return not any(thread.is_alive() for thread in self._threads)

    @abstractmethod
    def _handle(self, item: T) -> None:
        """Work on one item, in a consuming thread."""

    @abstractmethod
    def _is_over(self, item: T) -> bool:
        """Whether nobody will be called with it: it need not wait for that."""

    def _run(self) -> None:
        while True:
            try:
                item = self._ready.get(timeout=IDLE_WAIT_S)
            except Empty:
                continue
            if item is None:
                return
            if self._waits_first:
                self._wait(item)
            self._handle(item)

    def _wait(self, item: T) -> None:
        """Behind an open breaker, or not at all."""
        if self._breaker is not None:
            self._breaker.wait(partial(self._is_over, item))

    def _report(
        self, messages: Sequence[MessageExt], fault: BaseException, retries_max: int
    ) -> None:
        """A fault of the listener with these messages, which are tried ``retries_max`` times."""
        self.listener_faults += 1
        level = logging.ERROR if isinstance(fault, ConsumeError) else logging.WARNING
        line = failure_line(self._parts.group, messages, fault, retries_max)
        self._log.log(level, "%s", line, exc_info=self._traces.wanted(fault))


class ReadyQueue(Generic[T]):
    """What waits for a consuming thread, and which sleeping thread gets it: the one that fell
    asleep last.

        put ──> [item item item]            get: the oldest item; none: asleep, on top of the others
            └─> asleep: [thread thread thread] ──top──> woken; it wakes the next one
                                                        while items are left

    For a lone item one thread wakes, mostly the same one again, whose stack and caches are warm.
    (``queue.SimpleQueue``, whose names these are, wakes a second one each time, which finds
    nothing, and takes turns through all of them.) Any thread puts and gets.

    ``limit``: so many are awake; the others sleep although items wait, and ``held()`` is told when
    that kept one asleep. ``threads``: how many there are. Both may change at any time.

    Invariants: an item is taken once, in the order of ``put``. No lost wake-up: whoever falls
    asleep is seen asleep first and then looks for items again; whoever puts, puts first and then
    looks for sleepers. Each of these is one atomic step of a deque or a list: there is no lock.
    Who is kept asleep leaves at least one awake, who looks for items before it sleeps.
    """

    def __init__(self, held: Callable[[], None] = lambda: None) -> None:
        self.limit: float = inf
        self.threads = 0
        self._held = held
        self._items: deque[T] = deque()
        self._asleep: list[threading.Lock] = []
        self._waking = False
        """A woken thread has not looked yet. It wakes the next one if there is more than it takes,
        so nobody else is woken for that.
        """
        self._mine = _Sleeper()

    def empty(self) -> bool:
        """Nothing waits at this moment."""
        return not self._items

    def wake(self) -> None:
        """Look at ``limit`` again."""
        if self._items and self._asleep and not self._waking:
            self._wake()

    def put(self, item: T) -> None:
        """Behind everything that waits."""
        self._items.append(item)
        self.wake()

    def put_all(self, items: Iterable[T]) -> None:
        """Behind everything that waits, in this order."""
        self._items.extend(items)
        self.wake()

    def put_first(self, items: Sequence[T]) -> None:
        """Before everything that waits, in this order."""
        self._items.extendleft(reversed(items))
        self.wake()

    def get(self, timeout: float) -> T:
        """The oldest item; ``queue.Empty`` when ``timeout`` seconds went by in which nobody woke
        this thread.
        """
        while True:  # ends: an item, or the time is over
            if self._awake <= self.limit:
                with suppress(Empty):
                    return self.get_nowait()
            if not self._sleep(timeout):
                raise Empty

    def get_nowait(self) -> T:
        """The oldest item; ``queue.Empty`` when there is none."""
        try:
            item = self._items.popleft()
        except IndexError:
            raise Empty from None
        self.wake()
        return item

    @property
    def _awake(self) -> int:
        return self.threads - len(self._asleep)

    def _wake(self) -> None:
        if self._awake >= self.limit:
            self._held()
            return
        try:
            sleeper = self._asleep.pop()
        except IndexError:
            # somebody else has just woken the last one: it looks, as does whoever falls asleep
            return
        self._waking = True
        sleeper.release()

    def _sleep(self, timeout: float) -> bool:
        """False when nobody woke this thread for ``timeout`` seconds and nothing waits."""
        me = self._mine.sleeper
        if me is None:
            me = self._mine.sleeper = threading.Lock()
            me.acquire()
        self._asleep.append(me)
        in_time = True
        wanted = self._items and self._awake < self.limit
        if self._items and not wanted:
            self._held()  # whoever woke this thread need not have seen that it is one too many
        if wanted or not (in_time := me.acquire(timeout=timeout)):
            try:
                self._asleep.remove(me)
                # for so long nobody wakes: it was said after the one to be woken had given up
                self._waking = self._waking and in_time
                return in_time or bool(self._items)
            except ValueError:  # somebody has it in hand and is about to release it
                if not me.acquire(timeout=HAND_OVER_S):
                    # never again: a late release must not wake another sleep
                    self._mine.sleeper = None
        self._waking = False
        return True


class _Sleeper(threading.local):
    sleeper: threading.Lock | None = None


def failure_line(
    group: str, messages: Sequence[MessageExt], fault: BaseException, retries_max: int
) -> str:
    """One line; of several messages it names the first."""
    why = " ".join(failure_of(fault)[:WHY_CHARS_MAX].split())
    head = f"listener of group {group} failed with {why}"
    if not messages:
        return head
    first = messages[0]
    keys = " ".join(first.keys)[:KEYS_CHARS_MAX]
    named = f"message {first.message_id}{f' (keys {keys})' if keys else ''}"
    more = f" and {len(messages) - 1} after it" if len(messages) > 1 else ""
    origin = f" (sent to {first.topic})" if first.topic != first.queue.topic else ""
    queue = f"{first.queue.topic}, queue {first.queue.queue_id} of {first.queue.broker_name}"
    place = f"{queue}{origin}, offset {first.queue_offset}"
    return f"{head}: {named}{more} of {place}; {_left(retries_max - first.reconsume_times)}"


def _left(tries: int) -> str:
    if tries > RETRIES_SHOWN_MAX:
        return "tried again without end"
    if tries <= 0:
        return "no try left: a dead letter"
    return f"{tries} {'try' if tries == 1 else 'tries'} left"
