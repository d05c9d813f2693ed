"""Records back to back, as they come from the log, a pull or a scan, as one Arrow batch (columns:
``model.arrow``).

Decides: how columns are cut out of the bytes. Does not decide which records: they were checked by
who read them (topic, lengths, CRC). Called by: Spark, Ray Data, consumers with batch="arrow". Pure:
no I/O.

Invariants: a column that was not asked for is not decoded; no Python object per record, except for
compressed bodies; the batch holds copies, so the buffer may be reused.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from functools import cached_property, lru_cache
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from rmq_ray.arrays import Array
from rmq_ray.codec.arrow.arrow_properties import PropertyColumns, property_columns, spans
from rmq_ray.codec.compression import decompress
from rmq_ray.codec.record_batch import UNIQUE_TAIL_BYTES
from rmq_ray.codec.record_layout import RecordLayout
from rmq_ray.errors import BodyUnreadable, ClientError
from rmq_ray.model.arrow import COLUMNS, SCHEMA, TIME
from rmq_ray.model.message import SysFlag

logger = logging.getLogger("rmq_ray.store")

BODY_BYTES_MAX = 256 << 20  # what a compressed body may grow to
BATCH_BYTES_MAX = (1 << 31) - 1  # offsets of Arrow's binary columns have 32 bits
_HEX = np.frombuffer("".join(f"{n:02X}" for n in range(256)).encode(), np.uint16)


def to_batch(
    topic: str,
    broker: str,
    records: bytes | bytearray | memoryview,
    sizes: Any,
    columns: Sequence[str] | None = None,
) -> Any:
    """``pyarrow.RecordBatch`` of valid records of one topic of one broker.

    ``sizes``: integers, one a record. ``columns``: which and in what order; None = all.
    ``ClientError`` for unknown names.
    """
    names = COLUMNS if columns is None else tuple(columns)
    for name in names:
        if name not in COLUMNS:
            raise ClientError(
                f"there is no column {name!r}; columns are {', '.join(COLUMNS)}", name
            )
    schema = _schema(names)
    lengths = np.asarray(sizes).astype(np.int64)
    if not len(lengths):
        return pa.RecordBatch.from_arrays(
            [pa.array([], field.type) for field in schema], schema=schema
        )
    if len(records) > BATCH_BYTES_MAX:
        raise ClientError(
            f"{len(records)} bytes are too many for one Arrow batch; read in chunks of at "
            f"most {BATCH_BYTES_MAX} bytes"
        )
    source = _Records(topic, broker, records, lengths)
    return pa.RecordBatch.from_arrays([_COLUMNS[name](source) for name in names], schema=schema)


@lru_cache(maxsize=64)
def _schema(names: tuple[str, ...]) -> Any:
    return pa.schema([SCHEMA.field(name) for name in names])


class _Records(RecordLayout):
    """The records of one batch."""

    def __init__(
        self, topic: str, broker: str, records: bytes | bytearray | memoryview, sizes: Array
    ) -> None:
        super().__init__(records, sizes)
        self.topic, self.broker = topic, broker

    @cached_property
    def properties(self) -> PropertyColumns:
        """Of the property strings without the unique keys at their ends."""
        has, _ = self.unique_keys
        ends = np.where(
            has, np.maximum(self.ends - UNIQUE_TAIL_BYTES - 1, self.text_begins), self.ends
        )
        return property_columns(spans(self.buffer, self.text_begins, ends))


def _message_ids(source: _Records) -> Any:
    has, keys = source.unique_keys
    own = _fixed_text(keys)
    if has.all():
        return own
    tail = own if has.any() else pa.nulls(source.count, pa.string())
    return pc.coalesce(
        pc.if_else(pa.array(has), tail, pa.scalar(None, pa.string())),
        source.properties.unique,
        _offset_ids(source),
    )


def _offset_ids(source: _Records) -> Any:
    """Store host and log offset as upper-case hex: what RocketMQ calls offsetMsgId."""
    host_at = source.after_born + 64
    raw = np.concatenate(
        (source.bytes_at(host_at, 8), source.bytes_at(source.starts + 28, 8)), axis=1
    )
    ids = _fixed_text(_HEX[raw].view(np.uint8))
    if not source.has_v6:
        return ids
    long = {
        row: _long_id(source, row)
        for row in np.flatnonzero(source.sys_flags & SysFlag.STORE_HOST_V6).tolist()
    }
    return pa.array([long.get(row, text) for row, text in enumerate(ids.to_pylist())], pa.string())


def _long_id(source: _Records, row: int) -> str:
    begin, start = int(source.after_born[row]) + 64, int(source.starts[row])
    return (
        (source.data[begin : begin + 20].tobytes() + source.data[start + 28 : start + 36].tobytes())
        .hex()
        .upper()
    )


def _fixed_text(characters: Array) -> Any:
    """string[n] from ASCII characters, uint8[n, width]."""
    count, width = characters.shape
    offsets = np.arange(0, (count + 1) * width, width, dtype=np.int32)
    return pa.StringArray.from_buffers(
        count, pa.py_buffer(offsets), pa.py_buffer(np.ascontiguousarray(characters))
    )


def _bodies(source: _Records) -> Any:
    stored = spans(source.buffer, source.body_begins, source.body_ends)
    compressed = np.flatnonzero(source.sys_flags & SysFlag.COMPRESSED)
    if not len(compressed):
        return stored
    flags = source.sys_flags[compressed].tolist()
    packed = stored.take(pa.array(compressed)).to_pylist()
    opened = pa.array(
        [_opened(body, flag) for body, flag in zip(packed, flags, strict=True)], pa.binary()
    )
    rows = np.arange(source.count)
    rows[compressed] = source.count + np.arange(len(compressed))
    return pa.concat_arrays([stored, opened]).take(pa.array(rows))


def _opened(body: bytes, sys_flag: int) -> bytes | None:
    """A compressed body as it was sent; None, and a warning, when it cannot be read."""
    try:
        return decompress(body, sys_flag, BODY_BYTES_MAX)
    except BodyUnreadable as error:
        logger.warning("%s; it is null in the batch", error)
        return None


def _times(milliseconds: Array) -> Any:
    micros = milliseconds.astype(np.int64) * 1000
    return pa.Array.from_buffers(TIME, len(micros), [None, pa.py_buffer(micros)])


_COLUMNS: dict[str, Callable[[_Records], Any]] = {
    "topic": lambda source: pa.repeat(source.topic, source.count),
    "broker": lambda source: pa.repeat(source.broker, source.count),
    "queue_id": lambda source: pa.array(source.field(">i4", source.starts + 12).astype(np.int32)),
    "queue_offset": lambda source: pa.array(
        source.field(">i8", source.starts + 20).astype(np.int64)
    ),
    "message_id": _message_ids,
    "keys": lambda source: source.properties.keys,
    "tag": lambda source: source.properties.tag,
    "properties": lambda source: source.properties.properties,
    "body": _bodies,
    "born_ts": lambda source: _times(source.field(">i8", source.starts + 40)),
    "store_ts": lambda source: _times(source.field(">i8", source.after_born + 56)),
    "reconsume_times": lambda source: pa.array(
        source.field(">i4", source.after_store + 72).astype(np.int32)
    ),
}
