"""Pulls that wait because their group or account was handed out as much as its limit allows.

Decides when they go on: at the broker's next tick after their time. Does not decide who waits
(``protocol.rate_limit``). Loop only; at most as many as parked pulls.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Hashable

from rmq_ray.clock import Clock
from rmq_ray.errors import TooManyRequests
from rmq_ray.ports import Peer


class DelayedPulls:
    """Of one broker. ``waiting_max``: more are refused."""

    def __init__(self, clock: Clock, waiting_max: int) -> None:
        self._clock = clock
        self._waiting_max = waiting_max
        self._due: list[tuple[float, int, Callable[[], None], Peer | None, Hashable]] = []
        self._keys: set[Hashable] = set()
        self._number = 0

    def __len__(self) -> int:
        return len(self._due)

    def add(
        self,
        wait_ms: float,
        run: Callable[[], None],
        peer: Peer | None = None,
        key: Hashable = None,
    ) -> None:
        """Call ``run`` after that time, unless ``peer`` is gone by then. ``key``: nothing where one
        waits under it already. ``TooManyRequests`` at the limit.
        """
        if key is not None and key in self._keys:
            return
        if len(self._due) >= self._waiting_max:
            raise TooManyRequests(f"{self._waiting_max} pulls wait for their limits already")
        if key is not None:
            self._keys.add(key)
        self._number += 1
        due_ms = self._clock.monotonic_ms() + wait_ms
        heapq.heappush(self._due, (due_ms, self._number, run, peer, key))

    def tick(self) -> None:
        """Time has passed. What is added meanwhile waits for the next tick."""
        now_ms, ready = self._clock.monotonic_ms(), []
        while self._due and self._due[0][0] <= now_ms:
            ready.append(heapq.heappop(self._due))
        for _, _, run, peer, key in ready:
            self._keys.discard(key)
            if peer is None or not peer.closed:
                run()
