"""Whether a crowd of threads gets a home core (``remoting.home_core``), and which: as is faster.

    Phase    KEEP ──0.4 s, each time twice as long, 3.2 s at most──> BASE: as it is ──100 ms──> SETTLE: another way ──50 ms──> TRIAL ──100 ms──> KEEP

    ways     at home <──in turn──> at home on another core, or not at home

A crowd beside the core that serves the disk's interrupts, or beside another busy program, is slower
than one on another core. And on a machine with more work than cores a crowd that keeps to one core
gets less of it than one that is spread over all. So both are tried in turn: the crowd moves where
that gives a fifth more, it leaves home where that gives a fifth more twice, and comes back where
that is not slower (threads gather slowly, and a broker beside them has to go elsewhere: a short
trial shows less than there is). Called by ``sharing``.
"""

from __future__ import annotations

from enum import Enum

from rmq_ray.remoting.home_core import HomeCore

KEEP_MS_MIN = 400.0
KEEP_MS_MAX = 3_200.0
SETTLE_MS = 50.0
TRIAL_MS = 100.0
"""2,000 messages of a crowd or more; after half of that the threads have not gathered yet, and the
gain does not show.
"""
GAIN_MIN = 1.2
WINS_MIN = 2
"""Trials in a row, for leaving home: a disk that stalls, or another program's burst, must not
decide.
"""
COUNT_MIN = 200
"""Messages of a phase: few slow frames say nothing."""


class Phase(Enum):
    """See the drawing."""

    KEEP = 1
    BASE = 2
    SETTLE = 3
    TRIAL = 4


TRIED = (Phase.SETTLE, Phase.TRIAL)


class Trials:
    """Which way is faster. Not thread-safe; begins at home."""

    def __init__(self, home: HomeCore) -> None:
        self._home = home
        self._moves = False
        """The trial is another core."""
        self._left: int | None = None
        self._phase = (
            Phase.TRIAL
        )  # over at once, and undecided: the first messages of a crowd are no measure
        self._at_home = True
        self._keep_ms = KEEP_MS_MIN / 2
        self._wins = 0
        self._base_rate = 0.0
        self._count = 0
        self._begun_ms = self._ends_ms = 0.0

    def count(self, messages: int) -> None:
        """So many were sent."""
        self._count += messages

    def at_home(self, now_ms: float) -> bool:
        """Whether the threads of a group that opens now have a home core."""
        if now_ms >= self._ends_ms:
            self._turn(now_ms)
        at_home = self._at_home is not (self._phase in TRIED and not self._moves)
        if not at_home:
            self._home.leave()
        return at_home

    def _turn(self, now_ms: float) -> None:
        rate = self._count / (now_ms - self._begun_ms) if now_ms > self._begun_ms else 0.0
        paused = now_ms - self._ends_ms > TRIAL_MS
        doubtful = paused or self._count < COUNT_MIN
        lasts_ms = TRIAL_MS
        if self._phase is Phase.KEEP:
            self._phase = Phase.BASE
        elif self._phase is Phase.BASE and not doubtful:
            self._base_rate = rate
            self._phase, lasts_ms = Phase.SETTLE, SETTLE_MS
            if self._moves:
                self._left = self._home.move(now_ms)
        elif self._phase is Phase.SETTLE and not paused:
            self._phase = Phase.TRIAL
        else:
            lasts_ms = self._decide(
                rate / self._base_rate if self._phase is Phase.TRIAL and not doubtful else 0.0,
                now_ms,
            )
            self._phase = Phase.KEEP
        self._count, self._begun_ms, self._ends_ms = 0, now_ms, now_ms + lasts_ms

    def _decide(self, gain: float, now_ms: float) -> float:
        """After a trial (gain 0.0: nothing is known): how long the way that is better now is
        kept.
        """
        better = gain > (GAIN_MIN if self._at_home else 1.0)
        if self._phase in TRIED and self._moves:
            if not better:
                self._home.move_back(self._left, now_ms)
        else:
            self._wins = self._wins + 1 if better else 0
            if self._wins == (WINS_MIN if self._at_home else 1):
                self._at_home, self._wins = not self._at_home, 0
        self._moves = self._at_home and not self._moves
        self._keep_ms = KEEP_MS_MIN if better else min(2 * self._keep_ms, KEEP_MS_MAX)
        return self._keep_ms
