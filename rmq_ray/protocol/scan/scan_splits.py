"""From what was asked for to the splits of a bulk read: pure arithmetic on queue offsets.

Decides which offsets of each queue are read and how many rows a split has. Does not decide where
they are read (the caller fills in each broker's store). Invariant: the splits of a queue cover its
range once, in order, without gaps.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from rmq_ray.errors import ClientError, OffsetOutOfRange
from rmq_ray.model.ids import MessageQueue

ROWS_PER_SPLIT_MAX = 500_000

Position = str | Mapping[MessageQueue, int]
"""``"earliest"``, ``"latest"``, or a queue offset for each ``MessageQueue``."""
Ranges = dict[MessageQueue, tuple[int, int]]


def resolve(
    start: Position,
    end: Position,
    bounds: Mapping[MessageQueue, tuple[int, int]],
    fail_on_data_loss: bool = True,
) -> Ranges:
    """[start, end) of every queue that has something to read, in the order of queues.

    ``bounds``: minimum and maximum of each queue of the topic. Queues that a mapping does not name:
    start at their minimum, end at their maximum. ``fail_on_data_loss`` False: offsets that
    retention or a cut of the log has overtaken are moved to the nearest that is there. Raises
    ``OffsetOutOfRange`` for an offset outside of the bounds; ``ClientError`` for another word, a
    queue that the topic does not have, an offset that is no integer, and a start behind its end.

    >>> queue, empty = MessageQueue("t", "b", 0), MessageQueue("t", "b", 1)
    >>> resolve("earliest", {queue: 7}, {queue: (5, 12), empty: (0, 0)})
    {MessageQueue(topic='t', broker_name='b', queue_id=0): (5, 7)}
    """
    for position in (start, end):
        _check(position, bounds)
    ranges = {}
    for queue in sorted(bounds):
        low, high = bounds[queue]
        first, last = (
            _offset(start, queue, low, high, low, fail_on_data_loss),
            _offset(end, queue, low, high, high, fail_on_data_loss),
        )
        if first > last:
            raise ClientError(
                f"the read of {queue} would start at {first}, behind its end {last}; "
                f"exchange start and end",
                first,
                last,
            )
        if first < last:
            ranges[queue] = (first, last)
    return ranges


def rows_per_split(
    ranges: Mapping[MessageQueue, tuple[int, int]],
    splits_wanted: int,
    rows_max: int = ROWS_PER_SPLIT_MAX,
    rows_min: int = 1,
) -> int:
    """Rows a split should have so that about ``splits_wanted`` come out, each of ``rows_min`` (the
    last ones of a queue apart) to ``rows_max``.

    >>> rows_per_split({MessageQueue("t", "b", 0): (0, 100)}, 4)
    25
    """
    if splits_wanted < 1:
        raise ClientError(f"a read needs at least 1 split, not {splits_wanted}", splits_wanted)
    if not 1 <= rows_min <= rows_max:
        raise ClientError(
            f"a split needs 1 <= rows_min <= rows_max, not {rows_min} and {rows_max}",
            rows_min,
            rows_max,
        )
    rows = sum(end - start for start, end in ranges.values())
    return max(rows_min, min(rows_max, -(-rows // splits_wanted)))


def cut(
    ranges: Mapping[MessageQueue, tuple[int, int]], rows: int
) -> Iterator[tuple[MessageQueue, int, int]]:
    """(queue, start, end) of every split, queues in order.

    >>> list(cut({MessageQueue("t", "b", 0): (5, 12)}, 3))[-1][1:]
    (11, 12)
    """
    for queue in sorted(ranges):
        start, end = ranges[queue]
        for low in range(start, end, rows):
            yield queue, low, min(end, low + rows)


def bundled(
    sizes: Sequence[int], bundles: int, rows_max: int = ROWS_PER_SPLIT_MAX
) -> list[list[int]]:
    """Numbers of the splits of each task, neighbours together, so that about ``bundles`` come out:
    none has more than a quarter above its share of the rows, or than ``rows_max``, save single
    splits. Small queues, and what a queue leaves over behind its last split, need no tasks of their
    own.

    >>> bundled([100, 2, 100, 1, 50, 50], 3)
    [[0, 1], [2, 3], [4, 5]]
    """
    most = min(rows_max, -(-sum(sizes) * 5 // (4 * max(1, bundles))))
    found: list[list[int]] = []
    rows = most + 1  # the first one begins a bundle
    for number, size in enumerate(sizes):
        if rows + size > most:
            found.append([])
            rows = 0
        found[-1].append(number)
        rows += size
    return found


def _check(position: Position, bounds: Mapping[MessageQueue, tuple[int, int]]) -> None:
    if isinstance(position, str):
        if position not in ("earliest", "latest"):
            raise ClientError(
                f"position {position!r} must be 'earliest', 'latest' or a mapping of "
                f"MessageQueue to offset",
                position,
            )
        return
    for queue, offset in position.items():
        if queue not in bounds:
            raise ClientError(
                f"{queue} is no queue of this topic; it has "
                f"{', '.join(map(str, sorted(bounds))) or 'none'}",
                str(queue),
            )
        if isinstance(offset, bool) or not hasattr(offset, "__index__"):
            raise ClientError(
                f"the offset of {queue} must be an integer, not {offset!r}", repr(offset)
            )


def _offset(
    position: Position, queue: MessageQueue, low: int, high: int, default: int, strict: bool
) -> int:
    if isinstance(position, str):
        return low if position == "earliest" else high
    offset = int(position.get(queue, default))
    if strict and not low <= offset <= high:
        why = (
            "retention has removed what lay before"
            if offset < low
            else "there is no such message yet, or the log was cut"
        )
        raise OffsetOutOfRange(
            f"offset {offset} of {queue} lies outside of [{low}, {high}]: {why}; begin "
            f"there, or say fail_on_data_loss=False to go on with what is left",
            offset,
            low,
            high,
        )
    return min(max(low, offset), high)
