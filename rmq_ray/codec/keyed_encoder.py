"""The producer's side of a frame for many messages: what ``frame_encoder`` makes, with columns
instead of a loop.

    row i of one matrix  end of record i-1 (topic, property text, UNIQ_KEY)  |  head of record i
    the frame            row 0, body 0, row 1, body 1, ... row n             one join, each body is
                                                                             copied once

Where property texts differ, a record's end is two rows with the text between them. Decides nothing
that ``frame_encoder`` does not; both give the same bytes. Called by ``client.sending.batching``.
Pure.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import rmq_ray.arrays as np
from rmq_ray.arrays import MANY, Array
from rmq_ray.codec.frame_encoder import encode_frame
from rmq_ray.codec.key_range import KeyRange
from rmq_ray.codec.record import (
    CRC_MASK,
    HEADER,
    HEADER_BYTES,
    MAGIC,
    OVERHEAD_BYTES,
    PROPERTIES_BYTES_MAX,
    TOPIC_BYTES_MAX,
    record_header,
)
from rmq_ray.codec.record_batch import (
    FRAME_RECORDS_MAX,
    UNIQUE_KEY_CHARS,
    UNIQUE_KEY_PREFIX,
    UNIQUE_TAIL_BYTES,
    pack_mark,
)
from rmq_ray.errors import MessageIllegal
from rmq_ray.model.checksum import crc32
from rmq_ray.model.ids import FrameId

NO_HOST = bytes(8)
_UNSET_KEY = bytes(UNIQUE_KEY_CHARS)


class RecordFlags(NamedTuple):
    """The flags of a frame's records: users' (None = all 0), and SYSFLAG (one value or one per
    record: compression bits).
    """

    users: Sequence[int] | None = None
    system: int | Sequence[int] = 0


NO_FLAGS = RecordFlags()


def encode_keyed(
    topic: str,
    queue_id: int,
    bodies: Sequence[bytes],
    texts: Sequence[str],
    keys: KeyRange,
    born_ms: int,
    frame_id: FrameId,
    flags: RecordFlags = NO_FLAGS,
) -> tuple[bytes, Array]:
    """(records back to back, their sizes as big-endian int32).

    ``texts``: what precedes UNIQ_KEY in each property string, empty or ended by 0x02; ``keys``: as
    many. The rest as for ``encode_frame``, which words the refusals (``MessageIllegal``).
    """
    count = len(bodies)
    topic_bytes = topic.encode()
    if (
        not MANY <= count <= FRAME_RECORDS_MAX
        or not count == len(texts) == len(keys)
        or not 0 < len(topic_bytes) <= TOPIC_BYTES_MAX
    ):
        properties = [f"{text}UNIQ_KEY\x01{key}" for text, key in zip(texts, keys, strict=True)]
        return encode_frame(
            topic, queue_id, bodies, properties, born_ms, frame_id, flags.system, flags.users
        )
    mark = pack_mark(frame_id, count) + b"\x02"
    topic_part = bytes((len(topic_bytes),)) + topic_bytes
    body_lengths = np.fromiter(map(len, bodies), np.int64, count)
    fields = {
        "sys_flag": flags.system,
        "flag": 0 if flags.users is None else flags.users,
        "crc": np.fromiter(map(crc32, bodies), np.uint32, count) & CRC_MASK,
    }
    common = HEADER.pack(0, MAGIC, 0, queue_id, 0, 0, 0, 0, born_ms, NO_HOST, 0, NO_HOST, 0, 0, 0)
    if texts.count(texts[0]) == count:
        parts, sizes = _same_texts(
            bodies, texts[0].encode(), keys, topic_part, mark, common, body_lengths, fields
        )
    else:
        parts, sizes = _own_texts(
            bodies, texts, keys, topic_part, mark, common, body_lengths, fields
        )
    return b"".join(parts), sizes


def _same_texts(
    bodies: Sequence[bytes],
    text: bytes,
    keys: KeyRange,
    topic_part: bytes,
    mark: bytes,
    common: bytes,
    body_lengths: Array,
    fields: dict[str, Any],
) -> tuple[list[bytes], Array]:
    count, text_length = len(bodies), len(text) + UNIQUE_TAIL_BYTES
    _check_length(text_length + len(mark), 0)
    end = topic_part + text_length.to_bytes(2, "big") + text + UNIQUE_KEY_PREFIX + _UNSET_KEY
    rows = _rows(end, common, count)
    rows["key"][1:] = keys.matrix()
    sizes = body_lengths + (OVERHEAD_BYTES - 1 + len(topic_part) + text_length)
    sizes[0] += len(mark)
    _fill(rows["head"][:-1], sizes, body_lengths, fields)
    pieces = _pieces(rows)
    parts: list[bytes] = [b""] * (2 * count + 1)
    parts[0::2], parts[1::2] = pieces, bodies
    at = len(topic_part)
    first = pieces[1]
    parts[2] = first[:at] + (text_length + len(mark)).to_bytes(2, "big") + mark + first[at + 2 :]
    _trim(parts, len(end))
    return parts, sizes.astype(">i4")


def _own_texts(
    bodies: Sequence[bytes],
    texts: Sequence[str],
    keys: KeyRange,
    topic_part: bytes,
    mark: bytes,
    common: bytes,
    body_lengths: Array,
    fields: dict[str, Any],
) -> tuple[list[bytes], Array]:
    count = len(bodies)
    encoded = [text.encode() for text in texts]
    encoded[0] = mark + encoded[0]
    text_lengths = np.fromiter(map(len, encoded), np.int64, count) + UNIQUE_TAIL_BYTES
    longest = int(text_lengths.argmax())
    _check_length(int(text_lengths[longest]), longest)
    rows = _rows(UNIQUE_KEY_PREFIX + _UNSET_KEY, common, count)
    rows["key"][1:] = keys.matrix()
    sizes = body_lengths + text_lengths + (OVERHEAD_BYTES - 1 + len(topic_part))
    _fill(rows["head"][:-1], sizes, body_lengths, fields)
    between = np.empty(count, np.dtype([("topic", f"V{len(topic_part)}"), ("length", ">u2")]))
    between["topic"] = np.void(topic_part)
    between["length"] = text_lengths
    parts: list[bytes] = [b""] * (4 * count + 1)
    parts[0::4], parts[1::4], parts[2::4], parts[3::4] = (
        _pieces(rows),
        bodies,
        _pieces(between),
        encoded,
    )
    _trim(parts, UNIQUE_TAIL_BYTES)
    return parts, sizes.astype(">i4")


def _rows(end: bytes, common: bytes, count: int) -> Array:
    """``count`` + 1 rows that begin with a record's end, which ends with its key, and end with the
    next one's head.
    """
    row = np.dtype(
        [
            ("end", f"V{len(end) - UNIQUE_KEY_CHARS}"),
            ("key", "u1", UNIQUE_KEY_CHARS),
            ("head", record_header()),
        ]
    )
    rows = np.empty(count + 1, f"V{row.itemsize}")
    rows[:] = np.void(end + common)
    return rows.view(row)


def _fill(heads: Array, sizes: Array, body_lengths: Array, fields: dict[str, Any]) -> None:
    heads["total"], heads["body_len"] = sizes, body_lengths
    for name, values in fields.items():
        heads[name] = values


def _pieces(rows: Array) -> list[bytes]:
    pieces: list[bytes] = rows.view(f"V{rows.dtype.itemsize}").tolist()
    return pieces


def _trim(parts: list[bytes], end_bytes: int) -> None:
    """The first row has no record before it, the last one none behind it."""
    parts[0], parts[-1] = parts[0][end_bytes:], parts[-1][:end_bytes]
    assert len(parts[0]) == HEADER_BYTES


def _check_length(text_length: int, record: int) -> None:
    if text_length > PROPERTIES_BYTES_MAX:
        raise MessageIllegal(
            f"properties of {text_length} bytes in record {record}; {PROPERTIES_BYTES_MAX} "
            f"fit, shorten keys or user properties"
        )
