"""How many consumers a group should have: a pure rule on its lag (no source upstream: RocketMQ
leaves scaling to its users).

Decides the next number of consumers from the lag, the number now and what was seen before. Does not
measure the lag, nor start anything. Called by ``actors.workers.fleet`` every few seconds with its
clock's ``now_ms``.

    lag > lag_per_actor x actors, seen for up_after_ms
        ──> as many as the lag asks for, at most twice as many
    the lag would do with fewer, seen for down_after_ms ─> one fewer
    else ────────────────────────────────────────────────> as many as now

Invariants: always within ``actors_min`` and ``actors_max``, and never more than there are queues (a
consumer without a queue is idle), unless ``actors_min`` says so. Growing is quick and shrinking
slow: each change costs the group a rebalance.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

from rmq_ray.errors import ConfigError

ACTORS_LIMIT = 10_000


@dataclass(frozen=True, slots=True)
class Autoscale:
    """The settings of ``deploy(autoscale=...)``; a mapping with these keys will do as well.

    ``actors_min``, ``actors_max``: bounds, 0 < min <= max. ``lag_per_actor``: messages of backlog
    that one consumer may have. ``up_after_s``, ``down_after_s``: for how long the lag must say so
    before the number changes. ``every_s``: seconds between two looks.
    """

    actors_min: int = 1
    actors_max: int = 8
    lag_per_actor: int = 10_000
    up_after_s: float = 2.0
    down_after_s: float = 30.0
    every_s: float = 1.0

    def __post_init__(self) -> None:
        if not 1 <= self.actors_min <= self.actors_max <= ACTORS_LIMIT:
            raise ConfigError(
                f"autoscale needs 1 <= actors_min <= actors_max <= {ACTORS_LIMIT}, not "
                f"{self.actors_min} and {self.actors_max}",
                self.actors_min,
            )
        if self.lag_per_actor < 1:
            raise ConfigError(
                f"autoscale: lag_per_actor must be at least 1 message, not {self.lag_per_actor}",
                self.lag_per_actor,
            )
        if min(self.up_after_s, self.down_after_s) < 0 or not 0.05 <= self.every_s <= 3_600:
            raise ConfigError(
                "autoscale: up_after_s and down_after_s must be 0 or more, every_s 0.05 to "
                "3600 seconds",
                self.every_s,
            )

    @classmethod
    def of(cls, value: Autoscale | Mapping[str, Any]) -> Autoscale:
        """The value itself, or one made of a mapping. ``ConfigError`` for unknown keys.

        >>> Autoscale.of({"actors_max": 4}).actors_max
        4
        """
        if isinstance(value, Autoscale):
            return value
        if not isinstance(value, Mapping):
            raise ConfigError(
                f"autoscale must be rmq.Autoscale(...) or a mapping of its fields, not "
                f"{value!r:.80}",
                repr(value)[:80],
            )
        known = {field.name for field in fields(cls)}
        unknown = sorted(set(value) - known)
        if unknown:
            raise ConfigError(
                f"autoscale does not know {unknown[0]!r}; known are {', '.join(sorted(known))}",
                unknown[0],
            )
        return cls(**value)


class Scaler:
    """The rule with its memory."""

    def __init__(self, settings: Autoscale) -> None:
        self._settings = settings
        self._above_since_ms: float | None = None
        self._below_since_ms: float | None = None

    def decide(self, actors: int, lag: int, queues: int, now_ms: float) -> int:
        """The number of consumers from now on. ``queues``: readable queues of the topics, 0 =
        unknown.
        """
        s = self._settings
        most = s.actors_max if queues <= 0 else max(s.actors_min, min(s.actors_max, queues))
        if not s.actors_min <= actors <= most:
            return min(max(actors, s.actors_min), most)
        wanted = min(max(-(-lag // s.lag_per_actor), s.actors_min), most)
        self._above_since_ms = _since(self._above_since_ms, wanted > actors, now_ms)
        self._below_since_ms = _since(self._below_since_ms, wanted < actors, now_ms)
        if (
            self._above_since_ms is not None
            and now_ms - self._above_since_ms >= s.up_after_s * 1000
        ):
            self._above_since_ms = None
            return min(wanted, 2 * actors)
        if (
            self._below_since_ms is not None
            and now_ms - self._below_since_ms >= s.down_after_s * 1000
        ):
            self._below_since_ms = now_ms  # the next one goes after another pause of this length
            return actors - 1
        return actors


def _since(since_ms: float | None, holds: bool, now_ms: float) -> float | None:
    if not holds:
        return None
    return now_ms if since_ms is None else since_ms


def check_actors(actors: object) -> int:
    """The number itself. ``ConfigError`` for anything but 1 to ``ACTORS_LIMIT``."""
    if isinstance(actors, bool) or not isinstance(actors, int) or not 1 <= actors <= ACTORS_LIMIT:
        raise ConfigError(
            f"the number of actors must be 1 to {ACTORS_LIMIT}, not {actors!r}", repr(actors)[:80]
        )
    return actors
