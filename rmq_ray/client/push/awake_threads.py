"""How many consuming threads are awake for a slow listener: all, or two where these are as good.

    two ──slow──> four ─> ... ─> all ──a rest──> two for a moment ──as many calls end?─┬─ yes: two
                                  ^                                                   └─ no: all
                                  └── a fifth more calls end? ── all for a moment <──a rest── two

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
REST_MIN, REST_MAX, REST_OF_TWO_MAX = 8, 128, 64  # rates


class AwakeThreads:
    """Of a listener since it is slow. ``count``: how many; ``suffice``: two, and all ended no more
    calls when that was tried last.
    """

    def __init__(self) -> None:
        self.count, self.suffice = QUICK_THREADS, False
        self._trying = self._settling = False
        self._rate = self._calls = self._ms = 0.0
        self._rest = self._rests = REST_MIN

    def looked(self, calls: int, went_ms: float, most: int, waiting: bool, long: bool) -> None:
        """Told at each look: so many ``calls`` have ended since the last one, of ``most`` threads.
        ``waiting``: something waits for a thread, or else no rate means anything; ``long``: calls
        last about as long as from one look to the next, or longer, which needs no trial.
        """
        if long:
            self.suffice = self._trying = self._settling = False
            self._calls = self._ms = 0.0
        if self._settling:  # some of them began when there were others
            self._settling = False
        elif self.count < most and not self.suffice and not self._trying:
            self.count = min(2 * self.count, most)
        elif waiting and not long:
            self._calls += calls
            self._ms += went_ms
            if self._ms >= MEASURED_MS and self._calls >= MEASURED_CALLS * self.count:
                self._measured(self._calls / self._ms, most)
                self._calls = self._ms = 0.0

    def _measured(self, rate: float, most: int) -> None:
        if self._trying:
            self._trying = False
            if rate < self._rate * (AS_MANY if self.count == QUICK_THREADS else MORE):
                self._rests = min(2 * self._rests, REST_MAX)
                self._other(most)
            else:
                self._rests = REST_MIN
            self.suffice = self.count == QUICK_THREADS
            # all for a moment cost less than two for a moment where all are of use
            self._rest = min(self._rests, REST_OF_TWO_MAX) if self.suffice else self._rests
        else:
            self._rate = rate
            self._rest -= 1
            if self._rest <= 0 and most > QUICK_THREADS:
                self._trying = True
                self._other(most)

    def _other(self, most: int) -> None:
        self.count = most if self.count == QUICK_THREADS else QUICK_THREADS
        self.suffice, self._settling = False, True
