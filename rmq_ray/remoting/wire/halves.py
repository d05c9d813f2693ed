"""Requests of our own producers about transactions: halves by the frame, ends by the list.

    SEND_HALVES       fields t: real topic, q: real queue, g: producer group, i: immunity in s (may
                      be missing) body as SEND_RECORDS, of records for queue 0 of the half topic
                      answer as SEND_RECORDS
    END_TRANSACTIONS  request  msgpack [producer group, [[queue offset of the half, log offset of
                               the half, 8 = commit | 12 = roll back], ...]]
                      answer   msgpack [[code, remark or nil], ...] in the same order

Decides the layout. Called by producers and the broker's handlers. Pure; ``unpack_*`` raise
``MalformedFrame`` and nothing else.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import msgpack

from rmq_ray.errors import MalformedFrame
from rmq_ray.remoting.wire.frame import Body

ENDS_MAX = 1_024
_I64_MAX = 1 << 63
_I32_MAX = 1 << 31


class HalvesHeader(NamedTuple):
    """Where the halves of a frame are to go when they are committed, and who is asked about
    them.
    """

    topic: str
    queue_id: int
    group: str
    immunity_s: int | None = None

    def to_fields(self) -> dict[str, str]:
        """As a request carries it."""
        fields = {"t": self.topic, "q": str(self.queue_id), "g": self.group}
        return fields if self.immunity_s is None else {**fields, "i": str(self.immunity_s)}


class End(NamedTuple):
    """One end. Offsets are those of the half; ``state``: a value of ``LocalTransactionState``."""

    half_offset: int
    log_offset: int
    state: int


def unpack_halves_header(fields: Mapping[str, str] | None) -> HalvesHeader:
    """Reads what ``to_fields`` wrote."""
    found = fields or {}
    queue_id, immunity = found.get("q", ""), found.get("i", "0")
    if (
        not _is_number(queue_id)
        or not _is_number(immunity)
        or not found.get("t")
        or not found.get("g")
    ):
        raise MalformedFrame(f"halves need t, q and g, and may have i: {found}")
    return HalvesHeader(
        found["t"], int(queue_id), found["g"], int(immunity) if "i" in found else None
    )


def pack_ends(group: str, ends: Sequence[End]) -> bytes:
    """Request body of END_TRANSACTIONS."""
    packed: bytes = msgpack.packb([group, ends])
    return packed


def unpack_ends(body: Body) -> tuple[str, list[End]]:
    """(producer group, ends)."""
    raw = _unpack(body)
    if (
        not isinstance(raw, list)
        or len(raw) != 2
        or not isinstance(raw[0], str)
        or not isinstance(raw[1], list)
        or not 0 < len(raw[1]) <= ENDS_MAX
    ):
        raise MalformedFrame(
            f"ends are [group, [1 to {ENDS_MAX} of [queue offset, log offset, state]]]"
        )
    return raw[0], [_end(row) for row in raw[1]]


def _end(row: object) -> End:
    if isinstance(row, list) and len(row) == 3:
        half_offset, log_offset, state = row
        if (
            type(half_offset) is type(log_offset) is type(state) is int
            and 0 <= half_offset < _I64_MAX
            and 0 <= log_offset < _I64_MAX
            and 0 <= state < _I64_MAX
        ):
            return End(half_offset, log_offset, state)
    raise MalformedFrame(f"an end is [queue offset, log offset, state], not {row!r:.80}")


def pack_end_answers(answers: Sequence[tuple[int, str | None]]) -> bytes:
    """Answer body of END_TRANSACTIONS: (code, remark) of each end."""
    packed: bytes = msgpack.packb(answers)
    return packed


def unpack_end_answers(body: Body, count: int) -> list[tuple[int, str | None]]:
    """Reads what ``pack_end_answers`` wrote, of ``count`` ends."""
    raw = _unpack(body)
    if not isinstance(raw, list) or len(raw) != count:
        raise MalformedFrame(f"no answers to {count} ends")
    for row in raw:
        if (
            not isinstance(row, list)
            or len(row) != 2
            or type(row[0]) is not int
            or not (row[1] is None or isinstance(row[1], str))
        ):
            raise MalformedFrame(f"the answer to an end is [code, remark], not {row!r:.80}")
    return [(row[0], row[1]) for row in raw]


def _unpack(body: Body) -> Any:
    try:
        return msgpack.unpackb(b"".join(body) if isinstance(body, tuple) else body)
    except (ValueError, msgpack.exceptions.UnpackException) as error:
        raise MalformedFrame(f"the body is not msgpack: {error}") from None


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdigit() and int(text) < _I32_MAX
