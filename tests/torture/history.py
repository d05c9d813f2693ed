"""What a torture run wrote down: calls and how they ended, deliveries, commits, faults, and what
every queue holds at the end. Values only; times in seconds of one monotonic clock.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from typing import NamedTuple

EVERY_BROKER = "*"
"""Whose fault one is that hits all of them."""


class Place(NamedTuple):
    """Where a message is: broker name, queue id, queue offset."""

    broker: str
    queue: int
    offset: int


class Ended(Enum):
    """How a call ended."""

    OK = "acknowledged"
    UNKNOWN = "unknown"
    FAILED = "definitely not stored"


class Fate(Enum):
    """What was decided of the half message that a send was."""

    NONE = "no transaction"
    COMMITTED = "its commit was acknowledged"
    ROLLED_BACK = "its rollback was acknowledged"
    OPEN = "nothing was acknowledged"


@dataclass(slots=True)
class Send:
    """One body. ``due``: not to be delivered before. ``place``: only where the answer told it."""

    topic: str
    body: str
    began: float
    ended: float
    outcome: Ended
    place: Place | None = None
    due: float = 0.0
    fate: Fate = Fate.NONE
    poison: bool = False


@dataclass(slots=True)
class Delivery:
    """To a listener. ``tries``: how often it had been delivered before, as the message says.
    ``place``: in the queue it came from, which is that of a retry topic for tries > 0.
    """

    group: str
    topic: str
    body: str
    at: float
    place: Place | None
    tries: int = 0


@dataclass(slots=True)
class Committed:
    """A group's offset of a queue as a broker told it."""

    group: str
    topic: str
    broker: str
    queue: int
    offset: int
    at: float


@dataclass(slots=True)
class Fault:
    """``broker``: a name, ``EVERY_BROKER`` or "". ``over``: sends are acknowledged again.
    ``may_lose``: what that broker acknowledged a little before (``checker.LOSS_WINDOW_S``); only
    where the mode allows it. ``may_move_back``: offsets of groups, too. ``flips``: so many bits of
    its log were flipped, each of which may cost a record. ``early``: its clock jumped.
    ``outage_s``: the longest time without an acknowledged send from when it began until the next
    one begins.
    """

    kind: str
    broker: str
    began: float
    ended: float = 0.0
    over: float = 0.0
    may_lose: bool = False
    may_move_back: bool = False
    flips: int = 0
    early: bool = False
    outage_s: float = 0.0


@dataclass
class History:
    """All of it. ``stored`` and ``dead``: what queues and dead-letter topics held when all was
    calm. ``groups``: group -> topics that it consumes. ``tries_max``: deliveries before a message
    is dead. ``ordered``: groups whose queues are consumed in order.
    """

    sends: list[Send] = field(default_factory=list)
    deliveries: list[Delivery] = field(default_factory=list)
    commits: list[Committed] = field(default_factory=list)
    faults: list[Fault] = field(default_factory=list)
    stored: dict[str, dict[Place, str]] = field(default_factory=dict)
    dead: dict[str, list[str]] = field(default_factory=dict)
    groups: dict[str, list[str]] = field(default_factory=dict)
    ordered: set[str] = field(default_factory=set)
    tries_max: int = 3
    waiting: dict[str, int] = field(default_factory=dict)
    """Group -> messages that its brokers still called lag at the end."""
