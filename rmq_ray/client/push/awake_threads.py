"""How many consuming threads are awake for a slow listener: all, or two where these are as good.

    two ──slow──> four ─> ... ─> all ──a rest──> two for a moment ──as many calls end?─┬─ yes: two
                                  ^                                                   └─ no: all
                                  └── a fifth more calls end? ── all for a moment <──a rest── two

Decides that by trying. Calls that wait for a network end sooner beside one another; those that wait
for one another, for the interpreter or a lock, do not, and take as long: time does not tell them
apart. Pure. Invariant: what was no use is tried ever less often.
"""

from __future__ import annotations

QUICK_THREADS = 2  # awake while calls are quick
# a rate is of so much time and so many calls of each thread: of fewer one late end would decide
MEASURED_MS, MEASURED_CALLS = 20.0, 3
MORE, AS_MANY = 1.2, 0.95
REST_MIN, REST_MAX = 8, 128  # rates


class AwakeThreads:
    """Of a listener since it is slow. ``suffice``: two are, since all ended no more calls."""

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
        # where all are tried they may wait long for one another
        long = long and not (self._trying and self.count > QUICK_THREADS)
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
            no_use = rate < self._rate * (AS_MANY if self.count == QUICK_THREADS else MORE)
            self._rest = self._rests = min(2 * self._rests, REST_MAX) if no_use else REST_MIN
            other, self._trying = no_use, False
        else:
            self._rate, self._rest = rate, self._rest - 1
            other = self._trying = self._rest <= 0 and most > QUICK_THREADS
        if other:
            self.count = most if self.count == QUICK_THREADS else QUICK_THREADS
            self._settling = True
        self.suffice = self.count == QUICK_THREADS < most and not self._trying
