"""When to shoot an actor: a pure rule. Ray restarts processes that die; it never notices one that
hangs (SIGSTOP, a stuck loop).

A ping has three outcomes: answered, unavailable (Ray knows that the process is gone and restarts
it: nothing to do), and silence. Three silences in a row earn a kill; afterwards the actor has a
grace period to come back.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

MISSES_MAX = 3
GRACE_MS = 15_000


class Ping(Enum):
    """Outcome of one ping."""

    ANSWERED = "answered"
    UNAVAILABLE = "unavailable"
    SILENT = "silent"
    MISSING = "missing"


class Action(Enum):
    """What the supervisor does about a member."""

    NONE = "none"
    KILL = "kill"
    CREATE = "create"


@dataclass(slots=True)
class Watch:
    """One member's history."""

    misses: int = 0
    grace_until_ms: float = 0.0
    kills: int = 0
    creations: int = 0

    def observe(self, ping: Ping, now_ms: float) -> Action:
        """Take one outcome and say what to do now.

        >>> watch = Watch()
        >>> [watch.observe(Ping.SILENT, second * 1000).value for second in (1, 2, 3, 4)]
        ['none', 'none', 'kill', 'none']
        """
        if ping is Ping.ANSWERED or ping is Ping.UNAVAILABLE:
            self.misses = 0
            return Action.NONE
        if now_ms < self.grace_until_ms:
            return Action.NONE
        if ping is Ping.MISSING:
            self.grace_until_ms = now_ms + GRACE_MS
            self.creations += 1
            return Action.CREATE
        self.misses += 1
        if self.misses < MISSES_MAX:
            return Action.NONE
        self.misses = 0
        self.grace_until_ms = now_ms + GRACE_MS
        self.kills += 1
        return Action.KILL
