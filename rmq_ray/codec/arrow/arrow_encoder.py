"""The producer's side of a frame whose messages are Arrow columns: what ``frame_encoder`` makes,
without an object per message.

    heads   88 bytes each   one numpy matrix         \\
    bodies  the column's own buffer                    >  pyarrow puts them together row by row, in
                                                          one pass over the bytes
    ends    topic, mark (first row), text, UNIQ_KEY   /

Decides nothing that ``frame_encoder`` does not; the bytes are the same. Called by
``client.sending.arrow_sending``. Pure. Only the CRC of a body needs a call of its own, on a view of
the column.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from rmq_ray.arrays import Array
from rmq_ray.codec.body_crcs import body_crcs
from rmq_ray.codec.key_range import KeyRange
from rmq_ray.codec.keyed_encoder import NO_HOST
from rmq_ray.codec.record import HEADER, HEADER_BYTES, MAGIC, OVERHEAD_BYTES, record_header
from rmq_ray.codec.record_batch import (
    UNIQUE_KEY_CHARS,
    UNIQUE_KEY_PREFIX,
    UNIQUE_TAIL_BYTES,
    pack_mark,
)
from rmq_ray.model.ids import FrameId


def encode_arrow(
    topic: str,
    queue_id: int,
    bodies: pa.BinaryArray,
    texts: pa.BinaryArray | None,
    keys: KeyRange,
    born_ms: int,
    frame_id: FrameId,
) -> tuple[memoryview, Array]:
    """(records back to back, their sizes as big-endian int32).

    ``bodies``: 1 to 65,536 binary values without nulls; ``texts``: as many property strings, each
    empty or ended by 0x02, None = all empty. The caller has checked all limits.
    """
    count = len(bodies)
    topic_bytes = topic.encode()
    mark = pack_mark(frame_id, count) + b"\x02"
    body_offsets = offsets_of(bodies)
    body_lengths = np.diff(body_offsets).astype(np.int64)
    text_lengths = np.full(count, UNIQUE_TAIL_BYTES, np.int64)
    if texts is not None:
        text_lengths += np.diff(offsets_of(texts))
    text_lengths[0] += len(mark)
    sizes = body_lengths + text_lengths + (OVERHEAD_BYTES + len(topic_bytes))
    heads = _heads(queue_id, born_ms, sizes, body_lengths)
    heads["crc"] = body_crcs(
        memoryview(bodies.buffers()[2]),
        body_offsets[:-1].astype(np.int64),
        body_offsets[1:].astype(np.int64),
    )
    topics = np.empty(count, np.dtype([("topic", f"V{len(topic_bytes) + 1}"), ("length", ">u2")]))
    topics["topic"], topics["length"] = (
        np.void(bytes((len(topic_bytes),)) + topic_bytes),
        text_lengths,
    )
    tails = np.empty((count, UNIQUE_TAIL_BYTES), np.uint8)
    tails[:, :-UNIQUE_KEY_CHARS] = np.frombuffer(UNIQUE_KEY_PREFIX, np.uint8)
    tails[:, -UNIQUE_KEY_CHARS:] = keys.matrix()
    first = np.zeros(count + 1, np.int32)
    first[1:] = len(mark)
    marks = _binary(first, np.frombuffer(mark, np.uint8))
    parts = [
        _fixed(heads, HEADER_BYTES),
        bodies,
        _fixed(topics, topics.itemsize),
        marks,
        *([] if texts is None else [texts]),
        _fixed(tails, UNIQUE_TAIL_BYTES),
    ]
    joined = pc.binary_join_element_wise(*parts, b"")
    offsets = offsets_of(joined)
    return memoryview(joined.buffers()[2])[int(offsets[0]) : int(offsets[-1])], sizes.astype(">i4")


def offsets_of(values: pa.BinaryArray) -> Array:
    """int32[n+1]: where each value begins in the array's data buffer, and where the last one
    ends.
    """
    offsets: Array = np.frombuffer(
        values.buffers()[1], np.int32, len(values) + 1, 4 * values.offset
    )
    return offsets


def _heads(queue_id: int, born_ms: int, sizes: Array, body_lengths: Array) -> Array:
    heads = np.empty(len(sizes), f"V{HEADER_BYTES}")
    heads[:] = np.void(
        HEADER.pack(0, MAGIC, 0, queue_id, 0, 0, 0, 0, born_ms, NO_HOST, 0, NO_HOST, 0, 0, 0)
    )
    fields = heads.view(record_header())
    fields["total"], fields["body_len"] = sizes, body_lengths
    return fields


def _fixed(rows: Array, width: int) -> Any:
    return _binary(
        np.arange(0, (len(rows) + 1) * width, width, dtype=np.int32), rows.view(np.uint8)
    )


def _binary(offsets: Array, data: Array) -> Any:
    return pa.Array.from_buffers(
        pa.binary(), len(offsets) - 1, [None, pa.py_buffer(offsets), pa.py_buffer(data)]
    )
