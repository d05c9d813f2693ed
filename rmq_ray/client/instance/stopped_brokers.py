"""Which brokers were stopped on purpose: what a wait for one of them need not wait for.

Decides when the control plane is asked: while somebody waits, once a second at most, in a thread of
its own. Does not decide who waits, or for which brokers.

Invariants: only what was asked within the last second counts, so that a broker that is started
again is waited for; where the control plane does not answer, or there is none, nobody knows, and
waits go on.
"""

from __future__ import annotations

import threading
from collections.abc import Collection, Mapping

from rmq_ray.clock import Clock
from rmq_ray.errors import RmqError
from rmq_ray.ports import Discovery, ExplainsAbsence

COUNTS_MS = 1_000.0
"""For how long an answer counts; it is not asked for more often."""


class StoppedBrokers:
    """Of one client instance. Thread-safe."""

    def __init__(self, discovery: Discovery, clock: Clock, name: str) -> None:
        self._discovery = discovery if isinstance(discovery, ExplainsAbsence) else None
        self._clock = clock
        self._name = name
        self._lock = threading.Lock()
        self._asked_ms = float("-inf")
        self._told: Mapping[str, bool] = {}
        self._answered = threading.Event()
        self._answered.set()

    def why(self, names: Collection[str]) -> str | None:
        """Why none of these brokers can be there, as far as is known by now: see ``why_stopped``.
        Never waits; what is not known yet is asked for.
        """
        self._look()
        with self._lock:
            return why_stopped(self._counting(), names) if names else None

    def why_some(self, until_ms: float) -> str | None:
        """The same of all that are stopped, whichever they are; None where none is. Waits for the
        answer for a second at most, and until then (monotonic).
        """
        self._look()
        left_ms = min(COUNTS_MS, until_ms - self._clock.monotonic_ms())
        self._answered.wait(max(0.0, left_ms) / 1000)
        with self._lock:
            return why_some_stopped(self._counting())

    def _counting(self) -> Mapping[str, bool]:
        """Under the lock."""
        is_new = self._clock.monotonic_ms() - self._asked_ms <= COUNTS_MS
        return self._told if is_new and self._answered.is_set() else {}

    def _look(self) -> None:
        discovery, now = self._discovery, self._clock.monotonic_ms()
        if discovery is None:
            return
        with self._lock:
            if not self._answered.is_set() or now - self._asked_ms < COUNTS_MS:
                return
            self._asked_ms = now
            self._answered.clear()
        threading.Thread(
            target=self._ask, args=(discovery,), name=f"rmq-stopped-{self._name}", daemon=True
        ).start()

    def _ask(self, discovery: ExplainsAbsence) -> None:
        told: Mapping[str, bool] = {}
        try:
            told = discovery.stopped_brokers()
        except RmqError:  # who waits goes on as if nobody could be asked
            pass
        finally:
            with self._lock:
                self._told = told
                self._answered.set()


def why_stopped(stopped: Mapping[str, bool], names: Collection[str]) -> str | None:
    """That all of these brokers were stopped on purpose, with the command that helps; None where
    that is not so, or not known.

    >>> why_stopped({"broker-a": True, "broker-b": False}, ["broker-a"])
    'broker-a stopped: start it with `rmq-ray broker start broker-a`'
    >>> why_stopped({"broker-a": True, "broker-b": False}, ["broker-a", "broker-b"])
    """
    if not names or not all(stopped.get(name) for name in names):
        return None
    found = sorted(names)
    commands = ", ".join(f"`rmq-ray broker start {name}`" for name in found)
    return f"{', '.join(found)} stopped: start it with {commands}"


def why_some_stopped(stopped: Mapping[str, bool]) -> str | None:
    """The same of those that are stopped, whichever they are; None where none is."""
    return why_stopped(stopped, [name for name, is_stopped in stopped.items() if is_stopped])
