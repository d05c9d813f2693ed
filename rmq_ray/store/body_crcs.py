"""CRCs of many bodies that lie in one buffer: what appending, reading and recovery spend most of their time on.

Called by ``frame_check``, ``reading`` and ``log_scan``, which compare. Pure. Invariant: both ways give the same values.
"""

from __future__ import annotations

import numpy as np

from rmq_ray.model.checksum import crc32
from rmq_ray.store.record import CRC_MASK
from rmq_ray.store.record_batch import Array

_EQUAL_MAX = 512  # bytes; above, copying the bodies costs more than a view of each


def body_crcs(buffer: bytes | bytearray | memoryview, begins: Array, ends: Array) -> Array:
    """BODYCRC (store-format 2.1) of each of the bodies [begins, ends) as uint32; at least one body, all of them inside of the buffer.

    Short bodies of one length are cut out by one numpy call: 0.07 us instead of 0.13 us for 100 bytes.
    """
    count = len(begins)
    lengths = ends - begins
    length = int(lengths[0])
    if 0 < length <= _EQUAL_MAX and bool((lengths == length).all()):
        bodies = np.ndarray((len(buffer) - length + 1,), f"V{length}", buffer, 0, (1,))[begins].tolist()
        return np.fromiter(map(crc32, bodies), np.uint32, count) & CRC_MASK
    view = memoryview(buffer)
    found = [crc32(view[begin:end]) for begin, end in zip(begins.tolist(), ends.tolist(), strict=True)]
    return np.array(found, np.uint32) & CRC_MASK
