"""Bodies of POP_RECORDS and SETTLE_POPPED: taking messages for a time, and saying what became of
them.

    POP_RECORDS    request  msgpack [group, topic, max count, max bytes, invisible ms, wait ms, 1 =
                            begin with the first message, retries max,
                            expression type, expression, attempt, 1 = the answer to this attempt
                            got lost, 2 = nobody waits for it any more]; count 0: only wait until
                            there is something; a group that is new begins, and the answer's field
                            "skipped" tells what it does not read, where that is something; one
                            with a field "untaken" does not wait, and the answer's field of that
                            name tells how many messages nobody has taken
                   answer   head length i32 | head | sizes, all leases' | records, back to back
                   head     msgpack [[topic, queue id, lease id, deadline ms, min offset, max
                            offset, count, bytes], ...]
    SETTLE_POPPED  request  msgpack [group, [[topic, queue id, lease id, action, mask, delay ms],
                            ...]]
                   answer   msgpack [mask of stale receipts, ...], one for each

A mask is bytes, little-endian: bit ``i`` is the lease's record ``i``. Actions: 0 acknowledge, 1
come again in ``delay ms``, 2 to the dead letters. Where a field says that what comes again failed
(``FailedTry``), what has no try left goes to the dead letters at once instead.

Decides the layout and its limits. Called by simple consumers and the broker's handlers. Invariants:
pure; records are not copied; ``unpack_*`` raises ``MalformedFrame`` and nothing else.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from enum import IntEnum
from operator import attrgetter
from struct import Struct
from typing import Any, NamedTuple

import msgpack
import numpy as np

from rmq_ray.errors import MalformedFrame
from rmq_ray.remoting.wire.frame import Body, Buffer
from rmq_ray.remoting.wire.records import RECORDS_MAX, Sizes

SETTLEMENTS_MAX = 4_096
"""Leases of one SETTLE_POPPED."""
LEASES_MAX = 1_024
"""Leases of one answer to POP_RECORDS."""
INVISIBLE_MS_MIN, INVISIBLE_MS_MAX = 10, 12 * 3_600_000
"""RocketMQ 5's upper limit (protocol-behaviour 26); ours below."""
_LENGTH = Struct(">i")
_MASK_BYTES_MAX = RECORDS_MAX // 8
LOST, WITHDRAWN = 1, 2
"""What became of an attempt, of which a pop speaks ``again``."""
_INT_MAX = 1 << 63
SKIPPED_FIELD = "skipped"
"""Of the answer to a pop of 0 messages: how many a group that is new does not read."""
UNTAKEN_FIELD = "untaken"
"""Of a pop of 0 messages that only counts, and of its answer: how many messages nobody has taken,
whatever their tags.
"""


class Settle(IntEnum):
    """What is to become of popped messages."""

    ACK = 0
    CHANGE = 1
    REJECT = 2


@dataclass(frozen=True, slots=True)
class PopRecords:
    """A pop. ``count_max`` 0: nothing is taken, the answer comes when there is something.
    ``retries_max`` -1 = the group's.

    ``attempt``: a number that nobody else uses, 0 = none; with ``again`` set, what this attempt
    took before is handed out once more; ``WITHDRAWN``: it waits no more, what it took comes again
    at once, and nothing is taken.
    """

    group: str
    topic: str
    count_max: int
    bytes_max: int
    invisible_ms: int
    wait_ms: int = 0
    from_first: int = 1
    retries_max: int = -1
    expression_type: str = "TAG"
    expression: str = "*"
    attempt: int = 0
    again: int = 0


_values_of = attrgetter(*(field.name for field in fields(PopRecords)))


class LeaseHead(NamedTuple):
    """One lease of an answer: so many ``records`` of ``size`` bytes in all."""

    topic: str
    queue_id: int
    lease_id: int
    deadline_ms: int
    min_offset: int
    max_offset: int
    records: int
    size: int


class LeasedRecords(NamedTuple):
    """A lease and its records, a view of the answer's frame."""

    head: LeaseHead
    sizes: Sizes
    records: memoryview


class Settlement(NamedTuple):
    """What is to become of some messages of one lease."""

    topic: str
    queue_id: int
    lease_id: int
    action: int
    mask: bytes
    delay_ms: int = 0


def pack_pop(pop: PopRecords) -> bytes:
    """Request body of POP_RECORDS."""
    packed: bytes = msgpack.packb(_values_of(pop))
    return packed


def unpack_pop(body: Body) -> PopRecords:
    """Reads what ``pack_pop`` wrote; types and signs are checked."""
    values = _checked(
        _list(body), (str, str, int, int, int, int, int, int, str, str, int, int), "a pop"
    )
    return PopRecords(*values)


def pack_popped(
    leases: Sequence[LeaseHead], sizes: Sequence[Any], parts: Sequence[Buffer]
) -> tuple[Buffer, ...]:
    """Answer body of POP_RECORDS. ``sizes``: an array for each lease; ``parts``: the records of
    all, back to back.
    """
    head: bytes = msgpack.packb([list(lease) for lease in leases])
    lengths = np.concatenate(sizes).astype(">i4").tobytes()
    return (_LENGTH.pack(len(head)) + head + lengths, *parts)


def unpack_popped(body: Body) -> list[LeasedRecords]:
    """Reads what ``pack_popped`` wrote."""
    view = _view(body)
    if len(view) < _LENGTH.size:
        raise MalformedFrame(f"answer to a pop of {len(view)} bytes")
    (length,) = _LENGTH.unpack_from(view)
    if not 0 < length <= len(view) - _LENGTH.size:
        raise MalformedFrame(f"answer to a pop of {len(view)} bytes with a head of {length}")
    rows = _list(bytes(view[_LENGTH.size : _LENGTH.size + length]))
    if len(rows) > LEASES_MAX:
        raise MalformedFrame(f"answer to a pop with {len(rows)} leases; {LEASES_MAX} may be in it")
    heads = [
        LeaseHead(*_checked(row, (str, int, int, int, int, int, int, int), "a lease"))
        for row in rows
    ]
    count = sum(head.records for head in heads)
    at, start = _LENGTH.size + length, _LENGTH.size + length + 4 * count
    if (
        not 0 < count <= RECORDS_MAX
        or min(head.records for head in heads) <= 0
        or start + sum(head.size for head in heads) != len(view)
    ):
        raise MalformedFrame(f"answer to a pop: {count} records do not fit its {len(view)} bytes")
    sizes: Sizes = np.frombuffer(view, np.dtype(">i4"), count, at)
    found, first = [], 0
    for head in heads:
        found.append(
            LeasedRecords(
                head, sizes[first : first + head.records], view[start : start + head.size]
            )
        )
        first, start = first + head.records, start + head.size
    return found


def pack_settle(group: str, settlements: Sequence[Settlement]) -> bytes:
    """Request body of SETTLE_POPPED."""
    packed: bytes = msgpack.packb([group, [list(one) for one in settlements]])
    return packed


def unpack_settle(body: Body) -> tuple[str, list[Settlement]]:
    """Reads what ``pack_settle`` wrote; types, signs, actions and lengths are checked."""
    group, rows = _checked(_list(body), (str, list), "a settlement")
    if not 0 < len(rows) <= SETTLEMENTS_MAX:
        raise MalformedFrame(
            f"{len(rows)} leases in one request; 1 to {SETTLEMENTS_MAX} may be in it"
        )
    found = [
        Settlement(*_checked(row, (str, int, int, int, bytes, int), "a settlement")) for row in rows
    ]
    for one in found:
        if (
            one.action > max(Settle)
            or len(one.mask) > _MASK_BYTES_MAX
            or one.delay_ms > INVISIBLE_MS_MAX
        ):
            raise MalformedFrame(
                f"action {one.action}, mask of {len(one.mask)} bytes, delay {one.delay_ms} "
                f"ms: out of range"
            )
    return group, found


def pack_stale(masks: Sequence[bytes]) -> bytes:
    """Answer body of SETTLE_POPPED."""
    packed: bytes = msgpack.packb(list(masks))
    return packed


def unpack_stale(body: Body, count: int) -> list[bytes]:
    """Reads what ``pack_stale`` wrote for ``count`` settlements."""
    return _checked(_list(body), (bytes,) * count, "an answer to a settlement")


def _view(body: Body) -> memoryview:
    return memoryview(b"".join(body) if isinstance(body, tuple) else body)


def _list(body: Body) -> list[Any]:
    try:
        values = msgpack.unpackb(_view(body), max_map_len=0, max_ext_len=0)
    except (ValueError, msgpack.exceptions.UnpackException) as error:
        raise MalformedFrame(f"body is not msgpack: {error}") from None
    if not isinstance(values, list):
        raise MalformedFrame(f"body is {type(values).__name__}, not a list")
    return values


def _checked(values: Any, types: tuple[type, ...], what: str) -> list[Any]:
    """A list of values of these types; integers are from 0 on, -1 stands for 'none'."""
    if not isinstance(values, list) or len(values) != len(types):
        raise MalformedFrame(f"{what} is no list of {len(types)} values")
    for value, wanted in zip(values, types, strict=True):
        if type(value) is not wanted or (type(value) is int and not -1 <= value < _INT_MAX):
            raise MalformedFrame(
                f"{what} has {value!r:.40} where {wanted.__name__} from 0 on is due"
            )
    return values
