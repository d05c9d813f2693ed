"""How many consuming threads are awake for a slow listener: as many as end the most calls.

    twice as many ──a fifth more calls end?──┬─ yes: so many, and twice as many again
                                             └─ no: as before; a rest, then half as many
    half as many ───as many calls end?───────┬─ yes: so many, and half as many again
                                             └─ no: as before; a rest, then twice as many

Decides that by trying. Calls that wait for a network end sooner beside one another; those that wait
for one another, for the interpreter or a lock, do not, and take as long: time does not tell them
apart. Pure. Invariant: what was no use is tried ever less often.
"""

from __future__ import annotations

QUICK_THREADS = 2
"""Awake while calls are quick."""
MEASURED_MS, MEASURED_CALLS = 20.0, 3
"""A rate is of so much time and so many calls of each thread: of fewer one that ends a little later
would decide.
"""
MORE, AS_MANY = 1.2, 0.95
REST_MIN, REST_MAX = 4, 32  # rates


class AwakeThreads:
    """Of a listener since it is slow. ``count``: how many; ``suffice``: two, and more would end no
    more calls.
    """

    def __init__(self) -> None:
        self.count, self.suffice = QUICK_THREADS, False
        self._more, self._before = True, 0  # 0: nothing is tried now
        self._rate = self._calls = self._ms = 0.0
        self._rest, self._rests, self._settling = 0, REST_MIN, False

    def looked(self, calls: int, went_ms: float, most: int) -> None:
        """Told at each look at which something waits for a thread, of which there are ``most``: so
        many ``calls`` have ended since the last one.
        """
        if self._settling:  # some of them began when there were others
            self._settling = False
            return
        self._calls += calls
        self._ms += went_ms
        if self._ms < MEASURED_MS or self._calls < MEASURED_CALLS * self.count:
            return
        rate, before = self._calls / self._ms, self._before
        self._calls = self._ms = self._before = 0
        if before and rate < self._rate * (MORE if self.count > before else AS_MANY):
            wanted, self._rests = before, min(2 * self._rests, REST_MAX)
        else:
            self._rate, self._rests = rate, REST_MIN if before else self._rests
            self._rest = max(0, self._rest - 1)
            if self._rest:
                return
            wanted = min(most, 2 * self.count) if self._more else self.count // 2
            wanted = max(QUICK_THREADS, wanted)
            self._before = self.count if wanted != self.count else 0
        if not self._before:
            self._rest, self._more = self._rests, not self._more
        self._settling = wanted != self.count
        self.count, self.suffice = wanted, wanted == QUICK_THREADS and not self._before
