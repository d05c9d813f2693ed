"""What a run of records is to its queue, by queue offsets alone: pure.

    0 1 2 | 3 4 ...    goes on
    0 1 2 | 4 5 ...    a gap: record 3 was broken, or names another place
    0 1 2 | 9 | 3 4    a stray: the record with 9 names a place that is not its own
    0 1 2 | 0 1 ...    anew: the topic was deleted and made again
    0 1 2 | 9          open: what follows decides

No CRC covers a record's topic, its queue and its offset in it; that the offsets of a queue rise by
one from record to record is what tells that one of them is wrong. Decides what a run is. Does not
decide what becomes of it (``redispatch``). A run: records of one queue, in log order, whose offsets
rise by one.
"""

from __future__ import annotations

from enum import Enum

from rmq_ray.store.queue.consume_queue import GAP_MAX

FIRST_OFFSET_MAX = 1 << 50
"""Beyond it no queue begins: a bit of the offset is wrong."""
LONE_GAP_MAX = 1_000
"""Records that may be missing before the last run of a log, where nothing tells why."""


class Run(Enum):
    """See the module."""

    GOES_ON = "goes on"
    GAP = "behind a gap"
    ANEW = "anew"
    STRAY = "stray"
    OPEN = "open"


def judge_run(
    expected: int, first: int, following: int | None, *, explained: bool, is_last: bool
) -> Run:
    """``expected``: the offset that the queue gives next; ``first``: that of the run's first
    record, none of which the queue has; ``following``: that of the queue's next run, None where it
    was not seen. ``explained``: bytes before it are known to be broken; ``is_last``: nothing more
    is waited for.
    """
    missing = first - expected
    if not missing:
        return Run.GOES_ON
    if following is None and not is_last:
        return Run.OPEN
    if missing < 0:
        is_stray = first != 0 or (following is not None and following >= expected)
        return Run.STRAY if is_stray else Run.ANEW
    if following is not None:
        is_stray = expected <= following <= first
    else:
        is_stray = not explained and missing > LONE_GAP_MAX
    return Run.STRAY if is_stray or missing > GAP_MAX else Run.GAP


def judge_first_run(first: int, count: int, following: int | None, *, is_last: bool) -> Run:
    """The same of a queue that has nothing yet: it begins with any offset, since what came before
    may have left the log. ``count``: the run's records.
    """
    if not 0 <= first < FIRST_OFFSET_MAX:
        return Run.STRAY
    if first == 0 or count > 1 or (following is None and is_last):
        return Run.GOES_ON
    if following is None:
        return Run.OPEN
    return Run.STRAY if following <= first else Run.GOES_ON
