"""CRCs of many bodies that lie in one buffer: what appending, reading and recovery spend most of
their time on.

Called by ``frame_check``, ``log_reader`` and ``log_scan``, which compare. Pure. Invariant: all ways
give the same values.
"""

from __future__ import annotations

import rmq_ray.arrays as np
from rmq_ray.arrays import Array
from rmq_ray.codec.record import CRC_MASK
from rmq_ray.model.checksum import crc32

_EQUAL_MAX = 512  # bytes; above, copying the bodies costs more than a view of each


def body_crcs(buffer: bytes | bytearray | memoryview, begins: Array, ends: Array) -> Array:
    """BODYCRC (store-format 2.1) of each of the bodies [begins, ends) as uint32; at least one body,
    all of them inside of the buffer.

    Short bodies of one length are cut out by one numpy call: 0.07 us instead of 0.13 us for 100
    bytes. Long ones of one length that lie at equal distances are rows of a matrix: 0.10 us instead
    of 0.14 us for 1 KB.
    """
    count = len(begins)
    lengths = ends - begins
    length = int(lengths[0])
    equal = length > 0 and bool((lengths == length).all())
    if equal and length <= _EQUAL_MAX:
        bodies = np.ndarray((len(buffer) - length + 1,), f"V{length}", buffer, 0, (1,))[
            begins
        ].tolist()
        return np.fromiter(map(crc32, bodies), np.uint32, count) & CRC_MASK
    step = int(begins[1] - begins[0]) if count > 1 else 0
    if equal and step >= length and bool((np.diff(begins) == step).all()):
        rows = np.ndarray((count, length), np.uint8, buffer, int(begins[0]), (step, 1))
        return np.array(list(map(crc32, rows)), np.uint32) & CRC_MASK
    view = memoryview(buffer)
    found = [
        crc32(view[begin:end]) for begin, end in zip(begins.tolist(), ends.tolist(), strict=True)
    ]
    return np.array(found, np.uint32) & CRC_MASK
