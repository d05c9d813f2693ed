"""Frames whose records are all alike: from the second one on equal in length and in every byte but
CRC, body, values of properties and unique key.

    first record | row 0 | row 1 | row 2 | ...     a matrix without a copy: its columns are
                   size    size    size             checked together

What ``_check_each`` would find for such a row it finds for all: two records are judged by it, the
others by being equal to the second; property strings that are not equal must be of one layout
(``label_columns``).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from rmq_ray.arrays import Array
from rmq_ray.codec.label_columns import Labels, read_labels
from rmq_ray.codec.record import CRC_MASK, HEADER_BYTES
from rmq_ray.codec.record_batch import UNIQUE_KEY_CHARS, UNIQUE_KEY_PREFIX, UNIQUE_TAIL_BYTES
from rmq_ray.model.checksum import crc32

_CRC_AT, _QUEUE_AT = 8, 12
_FEW = 3
_COPIED_MAX = 512  # bytes of a body; above, a row of a matrix costs less than a copy

Judge = Callable[[memoryview, int, int, int], tuple[int, int, bytes, int]]
"""(frame, start, size, number of the record) -> (BODYCRC, queue id, topic, start of the property
string); raises for a faulty record.
"""


class Uniform(NamedTuple):
    """``starts``: int64 of every record; ``crcs``: >u4 of every record; ``unique``: uint8[n - 1,
    32], keys of the records from the second on.

    ``texts``: begins of the first and the second property string. ``labels``: of the records from
    the second on, None = all have the second one's string.
    """

    queue_id: int
    topic: bytes
    texts: tuple[int, int]
    starts: Array
    crcs: Array
    unique: Array
    labels: Labels | None


def read_uniform(view: memoryview, sizes: Array, judge: Judge) -> Uniform | None:
    """None when the records are not of this kind. ``sizes``: int64. Raises what ``judge`` raises
    for the first two records.
    """
    count = len(sizes)
    if count < _FEW:
        return None
    first, size = int(sizes[0]), int(sizes[1])
    if not (sizes[1:] == size).all() or first <= 0 or first + size * (count - 1) != len(view):
        return None
    crc, queue_id, topic, first_text = judge(view, 0, first, 0)
    _, row_queue, row_topic, text_at = judge(view, first, size, 1)
    key_at = first + size - UNIQUE_KEY_CHARS
    if (queue_id, topic) != (row_queue, row_topic) or first + size - text_at < UNIQUE_TAIL_BYTES:
        return None
    body_at, body_end, prefix_at = (
        first + HEADER_BYTES,
        text_at - len(topic) - 3,
        key_at - len(UNIQUE_KEY_PREFIX),
    )
    rows = count - 1

    def column(begin: int, end: int) -> Array:
        return np.ndarray((rows,), f"V{end - begin}", view, begin, (size,))

    if view[prefix_at:key_at] != UNIQUE_KEY_PREFIX or (
        prefix_at > text_at and view[prefix_at - 1] != 2
    ):
        return None
    for begin, end in (
        (first, first + _CRC_AT),
        (first + _QUEUE_AT, body_at),
        (body_end, text_at),
        (prefix_at, key_at),
    ):
        if column(begin, end).tobytes() != bytes(view[begin:end]) * rows:
            return None
    labels = None
    heads = column(text_at, prefix_at).tobytes() if prefix_at > text_at else b""
    if heads != bytes(view[text_at:prefix_at]) * rows:
        labels = read_labels(np.frombuffer(heads, np.uint8).reshape(rows, prefix_at - text_at))
        if labels is None:
            return None
    unique = np.frombuffer(column(key_at, key_at + UNIQUE_KEY_CHARS).tobytes(), np.uint8).reshape(
        rows, UNIQUE_KEY_CHARS
    )
    if unique.min() <= 0x20 or unique.max() >= 0x7F:
        return None
    crcs = np.empty(count, ">u4")
    crcs[0], crcs[1:] = crc, np.ndarray((rows,), ">u4", view, first + _CRC_AT, (size,))
    if (_body_crcs(view, body_at, body_end, size, rows) != crcs[1:]).any():
        return None
    starts = np.arange(first - size, len(view), size)
    starts[0] = 0
    return Uniform(queue_id, topic, (first_text, text_at), starts, crcs, unique, labels)


def _body_crcs(view: memoryview, begin: int, end: int, size: int, rows: int) -> Array:
    length = end - begin
    if 0 < length <= _COPIED_MAX:
        bodies = np.ndarray((rows,), f"V{length}", view, begin, (size,)).tolist()
        return np.fromiter(map(crc32, bodies), np.uint32, rows) & CRC_MASK
    matrix = np.ndarray((rows, length), np.uint8, view, begin, (size, 1))
    return np.array(list(map(crc32, matrix)), np.uint32) & CRC_MASK
