"""Arguments that every bulk way takes, reading and writing, whoever offers it: Spark, Ray Data.

Decides: what they may be. ``error``: the type that the caller's users expect. Pure.
"""

from __future__ import annotations

from collections.abc import Sequence

from rmq_ray.errors import RmqError
from rmq_ray.model.arrow import COLUMNS

TIMEOUT_S_MIN, TIMEOUT_S_MAX = 0.001, 3_600


def checked_columns(columns: Sequence[str] | None, error: type[RmqError]) -> list[str]:
    """The columns as asked for, all for None; ``error`` for none, unknown ones and repeats."""
    if columns is None:
        return list(COLUMNS)
    if isinstance(columns, str) or not columns or len(set(columns)) < len(columns):
        raise error(
            f"columns must be a list of different names, not {columns!r:.200}; a topic has "
            f"{', '.join(COLUMNS)}",
            repr(columns)[:200],
        )
    for name in columns:
        if name not in COLUMNS:
            raise error(f"unknown column {name!r:.80}; a topic has {', '.join(COLUMNS)}", name)
    return list(columns)


def topic_or_pattern(
    topic: str | Sequence[str] | None, pattern: str | None, error: type[RmqError]
) -> str | Sequence[str]:
    """The one of the two that is given."""
    name = topic if pattern is None else pattern
    if name is None or (topic is not None and pattern is not None):
        raise error(
            "give either topic= (one name or several) or pattern= (a regular expression)",
            repr(topic)[:200],
        )
    return name


def frame_timeout_ms(timeout: float, error: type[RmqError]) -> int:
    """``timeout`` of a frame in s, in ms."""
    if not TIMEOUT_S_MIN <= timeout <= TIMEOUT_S_MAX:
        raise error(
            f"timeout must be a millisecond to an hour, in seconds, not {timeout!r:.80}", timeout
        )
    return int(timeout * 1000)
