"""Moments as milliseconds since 1970, the unit of all store times: the one conversion for every
call that takes a ``datetime``.

Exact: a ``float`` of seconds is off by a millisecond now and then, and a search from there would
find the message before.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MS = timedelta(milliseconds=1)


def moment_ms(moment: datetime) -> int:
    """The millisecond in which ``moment`` lies; one without a time zone is local time.

    >>> moment_ms(datetime(2001, 9, 9, 1, 46, 40, 1_999, tzinfo=UTC))
    1000000000001

    Raises ``OverflowError`` or ``ValueError`` for local times at the ends of the calendar.
    """
    return (moment.astimezone(UTC) - _EPOCH) // _MS
