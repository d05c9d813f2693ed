"""How values read on a page: numbers, bytes, times. Unknown is a word, never 0."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

UNKNOWN = "unknown"
_UNITS = ("B", "KiB", "MiB", "GiB", "TiB")
SECOND_MS, MINUTE_MS, HOUR_MS, DAY_MS = 1_000, 60_000, 3_600_000, 86_400_000


def number(value: Any) -> str:
    """
    >>> number(1234567), number(None), number(2.5)
    ('1,234,567', 'unknown', '2.5')
    """
    if value is None:
        return UNKNOWN
    return f"{value:,.1f}" if isinstance(value, float) else f"{value:,}"


def size(value: Any) -> str:
    """
    >>> size(1536), size(None), size(3)
    ('1.5 KiB', 'unknown', '3 B')
    """
    if value is None:
        return UNKNOWN
    left, unit = float(value), 0
    while left >= 1024 and unit < len(_UNITS) - 1:  # ends: unit rises
        left, unit = left / 1024, unit + 1
    return f"{left:.1f} {_UNITS[unit]}" if unit else f"{int(left)} B"


def span(ms: Any) -> str:
    """A length of time.

    >>> span(850), span(65_000), span(90_000_000), span(None)
    ('850 ms', '1 min 5 s', '1 d 1 h', 'unknown')
    """
    if ms is None:
        return UNKNOWN
    ms = int(ms)
    if ms < SECOND_MS:
        return f"{ms} ms"
    for unit_ms, unit, next_ms, smaller in (
        (DAY_MS, "d", HOUR_MS, "h"),
        (HOUR_MS, "h", MINUTE_MS, "min"),
        (MINUTE_MS, "min", SECOND_MS, "s"),
    ):
        if ms >= unit_ms:
            rest = ms % unit_ms // next_ms
            return f"{ms // unit_ms} {unit}" + (f" {rest} {smaller}" if rest else "")
    return f"{ms // SECOND_MS} s"


def moment(ms: Any) -> str:
    """A point in time, UTC.

    >>> moment(0), moment(None)
    ('1970-01-01 00:00:00', 'unknown')
    """
    if ms is None:
        return UNKNOWN
    return datetime.fromtimestamp(ms / 1000, UTC).strftime("%Y-%m-%d %H:%M:%S")


def instant(ms: Any) -> str:
    """A point in time to the millisecond, UTC.

    >>> instant(1), instant(None)
    ('1970-01-01 00:00:00.001', 'unknown')
    """
    return UNKNOWN if ms is None else f"{moment(ms)}.{int(ms) % 1000:03d}"


def ratio(value: Any) -> str:
    """
    >>> ratio(0.254), ratio(None)
    ('25 %', 'unknown')
    """
    return UNKNOWN if value is None else f"{value * 100:.0f} %"


def may(permission: int) -> str:
    """
    >>> may(6), may(4), may(0)
    ('read, write', 'read', 'nothing')
    """
    words = [word for bit, word in ((4, "read"), (2, "write")) if permission & bit]
    return ", ".join(words) or "nothing"


FILTERS: dict[str, Callable[[Any], str]] = {
    "number": number,
    "size": size,
    "span": span,
    "moment": moment,
    "instant": instant,
    "ratio": ratio,
    "may": may,
}
