"""Frames as producers make them: bodies and property strings become records back to back, ready to
be patched by the broker.

Decides the order of the bytes, one record after the other, for few messages; ``keyed_encoder``
makes the same bytes of many by columns. Names, limits of users' values and unique keys are decided
elsewhere. Invariants: pure; what the broker fills in (queue offset, log offset, store time, hosts)
is zero; each property string must end with UNIQ_KEY where the producer wants fast checks.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from itertools import repeat

import rmq_ray.arrays as np
from rmq_ray.arrays import Array
from rmq_ray.codec.record import (
    CRC_MASK,
    HEADER,
    MAGIC,
    OVERHEAD_BYTES,
    PROPERTIES_BYTES_MAX,
    TOPIC_BYTES_MAX,
)
from rmq_ray.codec.record_batch import FRAME_RECORDS_MAX, pack_mark
from rmq_ray.errors import MessageIllegal
from rmq_ray.model.checksum import crc32
from rmq_ray.model.ids import FrameId

_NO_HOST = bytes(8)


def encode_frame(
    topic: str,
    queue_id: int,
    bodies: Sequence[bytes],
    properties: Sequence[str],
    born_ms: int,
    frame_id: FrameId | None,
    sys_flags: int | Sequence[int] = 0,
    flags: Sequence[int] | None = None,
) -> tuple[bytes, Array]:
    """(records back to back, their sizes as big-endian int32).

    ``properties``: per record, without the frame's mark, UNIQ_KEY last. ``sys_flags``: one value or
    one per record (compression bits). ``flags``: users' flags. Raises ``MessageIllegal`` when
    something does not fit its field.
    """
    count = len(bodies)
    topic_bytes = topic.encode()
    if not 0 < count <= FRAME_RECORDS_MAX or count != len(properties):
        raise MessageIllegal(
            f"a frame has 1 to {FRAME_RECORDS_MAX} records and as many property strings, not "
            f"{count} and {len(properties)}"
        )
    if not 0 < len(topic_bytes) <= TOPIC_BYTES_MAX:
        raise MessageIllegal(f"topic of {len(topic_bytes)} bytes; 1 to {TOPIC_BYTES_MAX} fit")
    first = [properties[0].encode()]
    if frame_id is not None:
        mark = pack_mark(frame_id, count)
        first = [mark + b"\x02" + first[0] if first[0] else mark]
    encoded = first + [text.encode() for text in properties[1:]]
    each_sys_flag = repeat(sys_flags) if isinstance(sys_flags, int) else sys_flags
    parts, sizes = _encode_each(
        topic_bytes, queue_id, bodies, encoded, born_ms, each_sys_flag, flags or repeat(0)
    )
    return b"".join(parts), np.array(sizes, ">i4")


def encode_single(
    topic: str,
    queue_id: int,
    body: bytes,
    properties: str,
    born_ms: int,
    frame_id: FrameId,
    flag: int = 0,
) -> bytes:
    """A frame of one record, as ``encode_frame`` makes it; no numpy, because this is what a single
    send costs.
    """
    topic_part = _topic_part(topic)
    text = pack_mark(frame_id, 1) + b"\x02" + properties.encode()
    body_len, text_len = len(body), len(text)
    if text_len > PROPERTIES_BYTES_MAX:
        raise MessageIllegal(
            f"properties of {text_len} bytes in record 0; {PROPERTIES_BYTES_MAX} fit, "
            f"shorten keys or user properties"
        )
    total = OVERHEAD_BYTES - 1 + len(topic_part) + body_len + text_len
    head = HEADER.pack(
        total,
        MAGIC,
        crc32(body) & CRC_MASK,
        queue_id,
        flag,
        0,
        0,
        0,
        born_ms,
        _NO_HOST,
        0,
        _NO_HOST,
        0,
        0,
        body_len,
    )
    return b"".join((head, body, topic_part, text_len.to_bytes(2, "big"), text))


@lru_cache(maxsize=4096)
def _topic_part(topic: str) -> bytes:
    """TOPICLEN and the topic."""
    encoded = topic.encode()
    if not 0 < len(encoded) <= TOPIC_BYTES_MAX:
        raise MessageIllegal(f"topic of {len(encoded)} bytes; 1 to {TOPIC_BYTES_MAX} fit")
    return bytes((len(encoded),)) + encoded


def _encode_each(
    topic: bytes,
    queue_id: int,
    bodies: Sequence[bytes],
    properties: Sequence[bytes],
    born_ms: int,
    sys_flags: object,
    flags: object,
) -> tuple[list[bytes], list[int]]:
    parts: list[bytes] = []
    sizes: list[int] = []
    add, pack = parts.append, HEADER.pack
    topic_part = bytes((len(topic),)) + topic
    fixed = OVERHEAD_BYTES + len(topic)
    rows = zip(bodies, properties, sys_flags, flags)  # type: ignore[call-overload]  # noqa: B905
    for body, text, sys_flag, flag in rows:  # flags may be endless
        body_len, text_len = len(body), len(text)
        if text_len > PROPERTIES_BYTES_MAX:
            raise MessageIllegal(
                f"properties of {text_len} bytes in record {len(sizes)}; "
                f"{PROPERTIES_BYTES_MAX} fit, shorten keys or user properties"
            )
        total = fixed + body_len + text_len
        add(
            pack(
                total,
                MAGIC,
                crc32(body) & CRC_MASK,
                queue_id,
                flag,
                0,
                0,
                sys_flag,
                born_ms,
                _NO_HOST,
                0,
                _NO_HOST,
                0,
                0,
                body_len,
            )
        )
        add(body)
        add(topic_part)
        add(text_len.to_bytes(2, "big"))
        add(text)
        sizes.append(total)
    return parts, sizes
