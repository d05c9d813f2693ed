"""One record as people read it: a row of plain values for tables and JSON.

Decides: which properties are columns of their own, that a body is shown as it was sent (unpacked),
that the frame's mark is hidden. Called by: inspection, administration. Pure.
"""

from __future__ import annotations

from typing import Any

from rmq_ray.codec.compression import decompress
from rmq_ray.codec.record import Record
from rmq_ray.errors import BodyUnreadable
from rmq_ray.model.message import FRAME, KEYS, TAGS, UNIQUE_KEY, SysFlag, decode_properties

BODY_BYTES_MAX = 256 << 20  # what a compressed body may grow to


def record_row(record: Record) -> dict[str, Any]:
    """log_offset, size, topic, queue, queue_offset, message_id, tag, keys (list), properties
    (dict), body (bytes; None if it cannot be unpacked), store_ms, born_ms, reconsume_times, flag.
    """
    properties = decode_properties(record.properties)
    properties.pop(FRAME, None)
    message_id, keys, tag = (
        properties.pop(UNIQUE_KEY, None),
        properties.pop(KEYS, ""),
        properties.pop(TAGS, None),
    )
    body: bytes | None = record.body
    if record.sys_flag & SysFlag.COMPRESSED:
        try:
            body = decompress(record.body, record.sys_flag, BODY_BYTES_MAX)
        except BodyUnreadable:
            body = None
    return {
        "log_offset": record.log_offset,
        "size": record.size,
        "topic": record.topic,
        "queue": record.queue_id,
        "queue_offset": record.queue_offset,
        "message_id": message_id,
        "tag": tag,
        "keys": keys.split(),
        "properties": properties,
        "body": body,
        "store_ms": record.store_ms,
        "born_ms": record.born_ms,
        "reconsume_times": record.reconsume_times,
        "flag": record.flag,
    }
