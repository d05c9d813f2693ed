"""Delay levels: how long each level waits, where a delayed message is parked, and when it is due
(protocol-behaviour 19).

Decides: the level a message gets, its place in the schedule topic, its delivery time, the property
changes both ways. Does not decide: when to look, how to store. Callers: the broker's send path,
send-back and the delay service.

A delayed message lies in ``SCHEDULE_TOPIC_XXXX``, queue ``level - 1``; its tags code in the consume
queue is the delivery time in ms. REAL_TOPIC and REAL_QID keep its target. Invariant: a message is
never due before ``store time + delay of its level``.
"""

from __future__ import annotations

from dataclasses import dataclass

from rmq_ray.errors import ConfigError
from rmq_ray.model.message import DELAY, REAL_QUEUE_ID, REAL_TOPIC, WAIT
from rmq_ray.model.topics import HALF_TOPIC, SCHEDULE_TOPIC

UNIT_MS = {"s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}


@dataclass(frozen=True, slots=True)
class DelayLevels:
    """The table of delays; ``delays_ms[level - 1]``, levels count from 1.

    >>> DelayLevels.parse("1s 5s 10s 30s 1m").delay_ms(5)
    60000
    """

    delays_ms: tuple[int, ...]

    @classmethod
    def parse(cls, text: str) -> DelayLevels:
        """From ``messageDelayLevel`` (blank-separated numbers with unit s, m, h or d). Raises
        ``ConfigError``.
        """
        delays = []
        for part in text.split():
            unit = UNIT_MS.get(part[-1])
            if unit is None or not part[:-1].isdigit():
                raise ConfigError(
                    f"delay level {part!r} is not a number with unit s, m, h or d", part
                )
            delays.append(int(part[:-1]) * unit)
        if not delays:
            raise ConfigError("delay_levels must name at least one level", text)
        return cls(tuple(delays))

    @property
    def highest(self) -> int:
        """The number of levels."""
        return len(self.delays_ms)

    def clamp(self, level: int) -> int:
        """The level that is used: above the highest counts as the highest, below 1 as none (0)."""
        return max(0, min(level, self.highest))

    def delay_ms(self, level: int) -> int:
        """Milliseconds that ``level`` (1-based) waits."""
        return self.delays_ms[level - 1]

    def deliver_at_ms(self, level: int, store_ms: int) -> int:
        """Delivery time of a record stored at ``store_ms``: what its consume queue entry carries as
        tags code.
        """
        return store_ms + self.delays_ms[level - 1]

    def due_ms(self, level: int, deliver_at_ms: int, now_ms: int) -> int:
        """When to deliver, seen from ``now_ms``: a delivery time further ahead than the level
        allows (clock set back, levels changed) is due now.
        """
        return deliver_at_ms if deliver_at_ms <= now_ms + self.delays_ms[level - 1] else now_ms


def queue_of_level(level: int) -> int:
    """Queue id in the schedule topic."""
    return level - 1


def requested_level(properties: dict[str, str]) -> int:
    """The DELAY property as a number; 0 when absent or not a number."""
    text = properties.get(DELAY, "")
    return int(text) if text.lstrip("-").isdigit() else 0


def park(
    topic: str, queue_id: int, level: int, properties: dict[str, str]
) -> tuple[str, int, dict[str, str]]:
    """(topic, queue id, properties) under which a message of clamped ``level`` >= 1 is stored; its
    target goes into the properties.
    """
    return (
        SCHEDULE_TOPIC,
        queue_of_level(level),
        {**properties, DELAY: str(level), REAL_TOPIC: topic, REAL_QUEUE_ID: str(queue_id)},
    )


def release(properties: dict[str, str]) -> tuple[str, int, dict[str, str]] | None:
    """The opposite of ``park`` for a message that is due; ``None`` when it names no lawful target
    (missing, or the half topic).

    DELAY and WAIT go, everything else stays, REAL_TOPIC and REAL_QID too, as Apache RocketMQ leaves
    them.
    """
    kept = {name: value for name, value in properties.items() if name not in (DELAY, WAIT)}
    topic, queue = kept.get(REAL_TOPIC, ""), kept.get(REAL_QUEUE_ID, "")
    if not topic or topic in (HALF_TOPIC, SCHEDULE_TOPIC) or not queue.isdigit():
        return None
    return topic, int(queue), kept
