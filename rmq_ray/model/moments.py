"""Moments as milliseconds since 1970, the unit of all store times: the one conversion for every
call that takes a ``datetime``.

Exact: a ``float`` of seconds is off by a millisecond now and then, and a search from there would
find the message before.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from rmq_ray.errors import ClientError

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MS = timedelta(milliseconds=1)
_SECONDS = range(10**8, 10**11)
"""As seconds since 1970 the years 1973 to 5138; as milliseconds nothing behind 1973-03-03, when no
message was stored.
"""


def unless_seconds(moment: int) -> int:
    """``moment`` as it is, ms since 1970. ``ClientError`` for what must be meant as seconds: a
    search from there would find the first message of all, without a word.
    """
    if moment in _SECONDS:
        raise ClientError(
            f"{moment} as ms since 1970 lies in {_EPOCH.year + moment // 31_557_600_000}, so it is "
            f"seconds, perhaps; give ms (int(time.time() * 1000)) or a datetime",
            moment,
        )
    return moment


def moment_ms(moment: datetime) -> int:
    """The millisecond in which ``moment`` lies; one without a time zone is local time.

    >>> moment_ms(datetime(2001, 9, 9, 1, 46, 40, 1_999, tzinfo=UTC))
    1000000000001

    Raises ``OverflowError`` or ``ValueError`` for local times at the ends of the calendar.
    """
    return (moment.astimezone(UTC) - _EPOCH) // _MS
