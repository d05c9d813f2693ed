"""When a message is to be delivered: ``delay_level``, ``delay`` and ``deliver_at`` of a send call.

Decides: what may be given, and which property carries it. A delay travels as a length, so that the
broker's clock alone decides when it is over. Called by both producers. Does not decide limits of
time: the broker's ``timer_max_delay_hours``.
"""

from __future__ import annotations

from datetime import datetime, timedelta
from operator import index

from rmq_ray.errors import ClientError
from rmq_ray.model.message import TIMER_DELAY_MS, TIMER_DELIVER_MS

When = int | str
"""A delay level, 0 = at once; or the property of an exact time as it goes on the wire."""
_MS = timedelta(milliseconds=1)


def when(delay_level: int, delay: object, deliver_at: object) -> When:
    """What the three arguments ask for; at most one may be given. ``ClientError``.

    >>> when(3, None, None), when(0, timedelta(seconds=1.5), None)
    (3, 'TIMER_DELAY_MS\\x011500\\x02')
    """
    if delay_level.__class__ is not int:
        delay_level = _level(delay_level)
    if delay is None and deliver_at is None:
        return delay_level
    if (delay is not None) + (deliver_at is not None) + (delay_level != 0) > 1:
        raise ClientError(
            "delay_level, delay and deliver_at each choose the delivery time; give one of them"
        )
    if delay is not None:
        return f"{TIMER_DELAY_MS}\x01{_delay_ms(delay)}\x02"
    if not isinstance(deliver_at, datetime):
        raise ClientError(
            f"deliver_at is {deliver_at!r}; give a datetime (one without time zone is local time)",
            repr(deliver_at),
        )
    try:
        return f"{TIMER_DELIVER_MS}\x01{max(1, -int(-deliver_at.timestamp() * 1000 // 1))}\x02"
    except (OverflowError, ValueError, OSError) as error:  # local times at the ends of the calendar
        raise ClientError(
            f"deliver_at is {deliver_at!r}, which is no point in time here ({error}); give "
            f"one with a time zone",
            repr(deliver_at),
        ) from None


def _level(delay_level: object) -> int:
    """A plain number, which is written as one: that of an Enum's member or of another library, but
    no bool.
    """
    try:
        if not isinstance(delay_level, bool):
            return index(delay_level)  # type: ignore[arg-type]
    except TypeError:
        pass
    raise ClientError(
        f"delay_level is {delay_level!r}; give a whole number, 0 (none) to 18", repr(delay_level)
    )


def _delay_ms(delay: object) -> int:
    """Rounded up to whole milliseconds: never early."""
    if not isinstance(delay, timedelta) or delay < timedelta(0):
        raise ClientError(f"delay is {delay!r}; give a timedelta that is not negative", repr(delay))
    whole, rest = divmod(delay, _MS)
    return whole + bool(rest)
