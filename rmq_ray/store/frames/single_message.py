"""The single-message path: a message that the broker encodes itself, and RocketMQ's batch body
(store-format 2, 10).

    batch body, per message:  i32 size | i32 magic 0 | i32 crc 0 | i32 flag | i32 body length, body
    | i16 length, properties

Decides: bytes and facts of such records; strips the frame's mark, which is void in a copy, and sets
one of its own on request. Does not decide: topics, permissions, transformations (delay, retry, half
messages): those are the broker's. Called by: message store. Pure.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import NamedTuple

from rmq_ray.codec.record import PROPERTIES_BYTES_MAX, Record, encode_record, host_lengths
from rmq_ray.codec.record_batch import (
    FRAME_RECORDS_MAX,
    MARK_OFFSET_AT,
    CheckedFrame,
    frame_crc,
    pack_mark,
    strip_mark,
)
from rmq_ray.codec.record_properties import PropertyFacts, stored_facts
from rmq_ray.errors import MessageIllegal, MessageTooLarge
from rmq_ray.model.ids import FrameId
from rmq_ray.model.topics import CODED_TOPICS, TIMER_TOPIC, is_storable
from rmq_ray.store.frames.frame_check import patch_frame

_ITEM = struct.Struct(">iiiii")
_I16 = struct.Struct(">h")
_ITEM_BYTES_MIN = _ITEM.size + _I16.size
_TWO = struct.Struct(">qq")
_I64 = struct.Struct(">q")


class StoredMessage(NamedTuple):
    """One message to store, every field as the log will hold it. ``properties``: the encoded
    string. ``born_host``: (address, port). ``facts``: of the properties, where they are known.
    """

    topic: str
    queue_id: int
    body: bytes
    properties: str = ""
    flag: int = 0
    sys_flag: int = 0
    born_ms: int = 0
    born_host: tuple[str, int] = ("0.0.0.0", 0)
    reconsume_times: int = 0
    prepared_offset: int = 0
    facts: PropertyFacts | None = None


@dataclass(slots=True)
class EncodedMessages:
    """Records ready to be patched: their bytes, what dispatch needs, delay level or due time as
    written (topics of delayed messages only). ``hosts``: (born, store) of many records, which are
    patched together.
    """

    records: bytearray
    frame: CheckedFrame
    delay: str | None
    sys_flag: int
    born_len: int
    hosts: tuple[bytes, bytes] | None = None


def encode_message(
    message: StoredMessage,
    store_host: tuple[str, int],
    body_bytes_max: int,
    frame_id: FrameId | None = None,
) -> EncodedMessages:
    """One record, marked when it has a frame id. ``MessageTooLarge`` or ``MessageIllegal`` (topic,
    queue id, properties).
    """
    if len(message.body) > body_bytes_max:
        raise MessageTooLarge(
            f"body of {len(message.body)} bytes; {body_bytes_max} are allowed (body_bytes_max)",
            len(message.body),
            body_bytes_max,
        )
    check_queue(message.topic, message.queue_id)
    properties = strip_mark(message.properties)
    if frame_id is not None:
        mark = pack_mark(frame_id, 1).decode("ascii")
        properties = f"{mark}\x02{properties}" if properties else mark
    record = Record(
        message.topic,
        message.queue_id,
        message.body,
        properties,
        message.flag,
        0,
        0,
        message.sys_flag,
        message.born_ms,
        message.born_host,
        0,
        store_host,
        message.reconsume_times,
        message.prepared_offset,
    )
    encoded_properties = _encode_properties(properties)
    data = bytearray(encode_record(record))
    facts = stored_facts(encoded_properties)
    frame = _frame(message.topic, message.queue_id, [len(data)], [facts])
    if frame_id is not None:
        frame.frame_id, frame.crc = frame_id, frame_crc(bytes(data[:4]), bytes(data[8:12]))
        frame.mark_at = len(data) - len(encoded_properties) + MARK_OFFSET_AT
    born_len = host_lengths(int.from_bytes(data[36:40], "big"))[0]
    delay = facts.delay if message.topic in CODED_TOPICS else None
    return EncodedMessages(data, frame, delay, message.sys_flag, born_len)


def encode_batch(
    batch: StoredMessage, store_host: tuple[str, int], body_bytes_max: int
) -> EncodedMessages:
    """RocketMQ's batch: ``batch.body`` holds the messages, ``batch.properties`` are added to each
    of them.

    Raises ``MessageIllegal`` for a body that is not in form, ``MessageTooLarge`` when it is larger
    than one message may be.
    """
    if len(batch.body) > body_bytes_max:
        raise MessageTooLarge(
            f"batch of {len(batch.body)} bytes; {body_bytes_max} are allowed (body_bytes_max)",
            len(batch.body),
            body_bytes_max,
        )
    check_queue(batch.topic, batch.queue_id)
    parts: list[bytes] = []
    facts: list[PropertyFacts] = []
    for flag, body, text in split_batch(batch.body):
        properties = _join(strip_mark(text), strip_mark(batch.properties))
        encoded_properties = _encode_properties(properties)
        record = Record(
            batch.topic,
            batch.queue_id,
            body,
            properties,
            flag,
            0,
            0,
            batch.sys_flag,
            batch.born_ms,
            batch.born_host,
            0,
            store_host,
            batch.reconsume_times,
            0,
        )
        parts.append(encode_record(record))
        facts.append(stored_facts(encoded_properties))
    if not parts:
        raise MessageIllegal("the batch holds no message")
    frame = _frame(batch.topic, batch.queue_id, [len(part) for part in parts], facts)
    if batch.topic == TIMER_TOPIC:  # never sent by clients: tools write many waiting messages so
        frame.tag_codes = [int(fact.delay or 0) for fact in facts]
    born_len = host_lengths(int.from_bytes(parts[0][36:40], "big"))[0]
    return EncodedMessages(bytearray(b"".join(parts)), frame, None, batch.sys_flag, born_len)


def split_batch(body: bytes) -> list[tuple[int, bytes, str]]:
    """(flag, body, properties) of every message in a batch body. ``MessageIllegal`` when lengths do
    not add up.
    """
    found: list[tuple[int, bytes, str]] = []
    at = 0
    while at < len(body):  # ends: at rises by a size of at least 22
        if at + _ITEM_BYTES_MIN > len(body) or len(found) >= FRAME_RECORDS_MAX:
            raise MessageIllegal(
                f"message {len(found)} of the batch does not fit what is left of its body"
            )
        size, _, _, flag, body_len = _ITEM.unpack_from(body, at)
        text_at = at + _ITEM_BYTES_MIN + body_len
        if (
            body_len < 0
            or size < _ITEM_BYTES_MIN + body_len
            or at + size > len(body)
            or _I16.unpack_from(body, text_at - 2)[0] != at + size - text_at
        ):
            raise MessageIllegal(
                f"message {len(found)} of the batch: its lengths do not add up to {size} bytes"
            )
        found.append(
            (
                flag,
                body[at + _ITEM.size : text_at - 2],
                body[text_at : at + size].decode("utf-8", "replace"),
            )
        )
        at += size
    return found


def patch_messages(
    encoded: EncodedMessages, queue_offset: int, log_offset: int, store_ms: int
) -> None:
    """Fill in offsets and store time."""
    data = encoded.records
    if encoded.hosts is not None:
        patch_frame(data, encoded.frame, (queue_offset, log_offset), store_ms, encoded.hosts)
        return
    for row, start in enumerate(encoded.frame.starts):
        _TWO.pack_into(data, start + 20, queue_offset + row, log_offset + start)
        _I64.pack_into(data, start + 48 + encoded.born_len, store_ms)
    if encoded.frame.mark_at >= 0:
        data[encoded.frame.mark_at : encoded.frame.mark_at + 16] = b"%016x" % log_offset


def check_queue(topic: str, queue_id: int) -> None:
    """``MessageIllegal`` for a topic or queue that no directory can be made for."""
    if not is_storable(topic, queue_id):
        raise MessageIllegal(
            f"topic {topic!r} queue {queue_id} cannot be stored: topics match "
            f"^[%|a-zA-Z0-9_-]{{1,127}}$, queue ids are 0 to 65535",
            topic,
        )


def _encode_properties(properties: str) -> bytes:
    encoded = properties.encode()
    if len(encoded) > PROPERTIES_BYTES_MAX:
        raise MessageIllegal(
            f"properties of {len(encoded)} bytes; {PROPERTIES_BYTES_MAX} fit, shorten keys "
            f"or user properties"
        )
    if b"\0" in encoded:
        raise MessageIllegal(
            "the properties hold a zero character; recovery takes that for a torn write"
        )
    return encoded


def _frame(topic: str, queue_id: int, sizes: list[int], facts: list[PropertyFacts]) -> CheckedFrame:
    starts = [0] * len(sizes)
    for row in range(1, len(sizes)):
        starts[row] = starts[row - 1] + sizes[row - 1]
    keys = [
        (row, key)
        for row, fact in enumerate(facts)
        for key in ((fact.unique, *fact.keys) if fact.unique else fact.keys)
    ]
    return CheckedFrame(
        topic,
        queue_id,
        len(sizes),
        starts[-1] + sizes[-1],
        sizes,
        starts,
        [fact.tag_code for fact in facts],
        keys=keys,
    )


def _join(own: str, common: str) -> str:
    if not own or not common:
        return own or common
    return f"{own}{common}" if own.endswith("\x02") else f"{own}\x02{common}"
