"""A way to do a row's work with one system, and what is measured of it, in the client's process."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from benchmarks.report import percentiles
from benchmarks.scene import Crew

BATCH, SENDERS, EVERY_MS = 1_000, 64, 5
PAGE = 4_096
"""Messages of one call that consumes in batches."""
WARM_UP = 50
"""Messages of a round whose times do not count."""
PATIENCE_S = 120.0
PAGES = 3 * PAGE
"""The least that takes several pages."""
TICK_MS, LATE_MS, TICKS, TRIES = 1.0, 10.0, 400, 3
"""How often a sender with a rate sends, how late the outcome of one in a hundred may be, of how
many ticks that is judged, and how often: four ticks in which the machine does something else are
one in a hundred already.
"""

Measured = dict[str, float]
"""``rate`` (messages a second) or ``p50`` and ``p99`` (ms); ``cpu_us`` of this process
a message.
"""


@dataclass(frozen=True)
class Way:
    """``rows``: whose work it does. ``how``: the call, and the settings that are not the default
    ones. ``messages`` of a round at full length. ``counts``: the goal is judged by it.
    """

    rows: tuple[str, ...]
    how: str
    messages: int
    measure: Callable[[int], Measured]
    counts: bool = True
    multiple: int = 1
    """``messages`` are cut to one of it: whole batches."""


def rate(send: Callable[[int], float]) -> Callable[[int], Measured]:
    """Of ``send(messages)``, which returns messages a second."""

    def measure(messages: int) -> Measured:
        cpu = time.process_time()
        found = send(messages)
        return {"rate": found, "cpu_us": (time.process_time() - cpu) / messages * 1e6}

    return measure


def whole(send: Callable[[int], object]) -> Callable[[int], Measured]:
    """Of ``send(messages)``, from its call to its return."""

    def timed(messages: int) -> float:
        begin = time.perf_counter()
        send(messages)
        return messages / (time.perf_counter() - begin)

    return rate(timed)


def times(send: Callable[[int], list[float]]) -> Callable[[int], Measured]:
    """Of ``send(messages)``, which returns milliseconds of each message behind ``WARM_UP``."""

    def measure(messages: int) -> Measured:
        cpu = time.process_time()
        found = send(messages)
        used = (time.process_time() - cpu) / (messages + WARM_UP)
        p50, p99 = percentiles(found, 50, 99)
        return {"p50": p50, "p99": p99, "cpu_us": used * 1e6}

    return measure


def one_by_one(send: Callable[[bytes], object]) -> Callable[[int], Measured]:
    """Milliseconds of each of the calls."""
    body = b"x" * 100

    def timed(messages: int) -> list[float]:
        found = []
        for _ in range(WARM_UP + messages):
            begin = time.perf_counter()
            send(body)
            found.append((time.perf_counter() - begin) * 1e3)
        return found[WARM_UP:]

    return times(timed)


def of_threads(send: Callable[[bytes], object]) -> Callable[[int], Measured]:
    """``SENDERS`` threads, each waits for the outcome of its message before it sends the next."""
    body = b"x" * 100

    def sent(messages: int) -> None:
        def work(_number: int) -> None:
            for _ in range(messages // SENDERS):
                send(body)

        Crew(SENDERS, work).join()

    return whole(sent)


def ticks(count: int, every_ms: float) -> Iterator[float]:
    """Moments so far apart, each when it has come."""
    due = time.perf_counter()
    for _ in range(count):
        due += every_ms / 1e3
        time.sleep(max(0.0, due - time.perf_counter()))
        yield due


def highest(offered: Callable[[int, int], list[float]]) -> Callable[[int], Measured]:
    """Most messages a second of which 99 in 100 have their outcome in time. ``offered(ticks,
    each)``: ``each`` messages a tick; returns the milliseconds of each, from when it was due.
    """

    def measure(count: int) -> Measured:
        begin, sent = time.process_time(), 0

        def holds(each: int) -> bool:
            nonlocal sent
            for _ in range(TRIES):
                sent += count * each
                outcomes = offered(count, each)
                if len(outcomes) != count * each:
                    raise RuntimeError(f"{len(outcomes)} of {count * each} outcomes were told")
                (p99,) = percentiles(outcomes, 99)
                if p99 <= LATE_MS:
                    return True
            return False

        low, high = 0, 1
        while holds(high):
            low, high = high, 2 * high
        while high - low > max(1, low // 10):
            middle = (low + high) // 2
            low, high = (middle, high) if holds(middle) else (low, middle)
        used = time.process_time() - begin
        return {"rate": low * 1e3 / TICK_MS, "cpu_us": used / sent * 1e6}

    return measure


def bodies(size: int) -> list[bytes]:
    """Of one batch: random bytes, each its own object."""
    return [os.urandom(size) for _ in range(BATCH)]


class Arrivals:
    """Times from send to arrival; the sender paces itself by ``due``."""

    def __init__(self, messages: int) -> None:
        self._wanted = WARM_UP + messages
        self._times: list[float] = []

    def came(self, body: bytes) -> bool:
        """One is here; whether it was the last."""
        self._times.append((time.perf_counter_ns() - int.from_bytes(body[:8], "big")) / 1e6)
        return len(self._times) >= self._wanted

    def stamped(self) -> bytes:
        """A body that says when it was sent."""
        return time.perf_counter_ns().to_bytes(8, "big") + b"x" * 92

    def taken(self) -> list[float]:
        """Milliseconds, behind those that warm up. ``RuntimeError`` where some did not come."""
        if len(self._times) < self._wanted:
            raise RuntimeError(f"only {len(self._times)} of {self._wanted} messages came")
        return self._times[WARM_UP:]


def paced(arrivals: Arrivals, messages: int, send: Callable[[bytes], object]) -> None:
    """A message each ``EVERY_MS``, at set times."""
    for _ in ticks(WARM_UP + messages, EVERY_MS):
        send(arrivals.stamped())
