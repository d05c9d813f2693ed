"""RocketMQ's batch body, all its messages at a time: the records that ``single_message`` makes of
them one by one.

    item     size | magic | crc | flag | body length | body |                properties length | own
    record   fixed part, 88 bytes                    | body | topic's part | properties length | own
             | 0x02 | the batch's properties

Decides nothing: where anything is doubtful it leaves the batch to ``encode_batch``, which judges
and words the refusals. Pure. Invariant, a test: records and facts are those of ``encode_batch``.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from rmq_ray.arrays import MANY, Array
from rmq_ray.codec.alike_properties import alike_facts
from rmq_ray.codec.body_crcs import body_crcs
from rmq_ray.codec.label_columns import hash_columns, holds_blanks, read_columns
from rmq_ray.codec.record import (
    HEADER,
    HEADER_BYTES,
    MAGIC,
    OVERHEAD_BYTES,
    PROPERTIES_BYTES_MAX,
    pack_host,
    record_header,
)
from rmq_ray.codec.record_batch import FRAME_RECORDS_MAX, MARK_PREFIX, CheckedFrame, KeyHashes
from rmq_ray.codec.record_properties import plain_facts
from rmq_ray.model.message import KEYS, TAGS, UNIQUE_KEY, SysFlag, decode_properties
from rmq_ray.model.topics import TIMER_TOPIC, is_storable
from rmq_ray.store.frames.single_message import EncodedMessages, StoredMessage

_ITEM = np.dtype(
    [("size", ">i4"), ("magic", ">i4"), ("crc", ">i4"), ("flag", ">i4"), ("body_len", ">i4")]
)
_ITEM_BYTES, _ITEM_BYTES_MIN = 20, 22
_V6_FLAGS = SysFlag.BORN_HOST_V6 | SysFlag.STORE_HOST_V6
_INDEXED = frozenset((KEYS, TAGS, UNIQUE_KEY))
_KEYS, _TAGS, _UNIQUE = KEYS.encode(), TAGS.encode(), UNIQUE_KEY.encode()
_SEPARATOR = 2


class _Items(NamedTuple):
    """Of each message, int64: where it begins in the body, how long its parts are, its flag.
    ``separated``: 1 where a 0x02 has to be put behind its own properties.
    """

    starts: Array
    flags: Array
    body_lens: Array
    text_lens: Array
    separated: Array

    @property
    def is_uniform(self) -> bool:
        """All are alike in their lengths and lie at equal distances."""
        return all(
            bool((lengths == lengths[0]).all())
            for lengths in (self.body_lens, self.text_lens, self.separated)
        )


def encode_batch_in_bulk(
    batch: StoredMessage, store_host: tuple[str, int], body_bytes_max: int
) -> EncodedMessages | None:
    """What ``encode_batch`` makes of it; None where that one is to judge."""
    body, common = batch.body, batch.properties.encode("utf-8", "replace")
    if (
        not MANY * _ITEM_BYTES_MIN <= len(body) <= body_bytes_max
        or not is_storable(batch.topic, batch.queue_id)
        or batch.topic == TIMER_TOPIC
        or not common
        or b"\0" in common
        or MARK_PREFIX in common
        or not _INDEXED.isdisjoint(decode_properties(batch.properties))
    ):
        return None
    hosts = _hosts(batch.born_host, store_host)
    items = _read_items(body)
    if (
        hosts is None
        or items is None
        or int(items.text_lens.max()) + 1 + len(common) > PROPERTIES_BYTES_MAX
    ):
        return None
    topic = batch.topic.encode()
    topic_part = bytes((len(topic),)) + topic
    sizes = (
        (OVERHEAD_BYTES + len(topic) + len(common))
        + items.body_lens
        + items.text_lens
        + items.separated
    )
    heads = _heads(batch, items, sizes)
    join = _join_uniform if items.is_uniform else _join_varied
    records = join(body, items, heads, topic_part, common)
    if records is None:
        return None
    ends = np.cumsum(sizes)
    frame = CheckedFrame(
        batch.topic, batch.queue_id, len(sizes), len(records), sizes, ends - sizes, None
    )
    _add_facts(frame, records, ends - len(common) - items.separated - items.text_lens, items)
    return EncodedMessages(records, frame, None, batch.sys_flag, 8, hosts)


def property_strings(body: bytes) -> bytes:
    """The property strings of a batch body, or more of it where that costs less or its lengths do
    not add up: what may be searched for a name.
    """
    items = _read_items(body) if len(body) >= MANY * _ITEM_BYTES_MIN else None
    if items is None:
        return body
    begins = items.starts + (_ITEM_BYTES_MIN + items.body_lens)
    if items.is_uniform:
        size = len(body) // len(begins)
        return np.frombuffer(body, np.uint8).reshape(-1, size)[:, int(begins[0]) :].tobytes()
    ends = begins + items.text_lens
    return b"\x02".join(
        [body[at:end] for at, end in zip(begins.tolist(), ends.tolist(), strict=True)]
    )


def _hosts(born: tuple[str, int], stored: tuple[str, int]) -> tuple[bytes, bytes] | None:
    """None when one of them is no IPv4 address."""
    try:
        hosts = pack_host(*born), pack_host(*stored)
    except ValueError:
        return None
    return hosts if len(hosts[0]) == len(hosts[1]) == 8 else None


def _read_items(body: bytes) -> _Items | None:
    """None when lengths do not add up."""
    starts = _starts(body)
    if starts is None or not MANY <= len(starts) <= FRAME_RECORDS_MAX:
        return None
    heads = np.ndarray((len(body) - _ITEM_BYTES + 1,), f"V{_ITEM_BYTES}", body, 0, (1,))[
        starts
    ].view(_ITEM)
    sizes, body_lens = heads["size"].astype(np.int64), heads["body_len"].astype(np.int64)
    text_lens = sizes - _ITEM_BYTES_MIN - body_lens
    if int(body_lens.min()) < 0 or int(text_lens.min()) < 0:
        return None
    told = np.ndarray((len(body) - 1,), ">i2", body, 0, (1,))[starts + (_ITEM_BYTES + body_lens)]
    if (told != text_lens).any():
        return None
    last = np.frombuffer(body, np.uint8)[starts + sizes - 1]
    separated = ((text_lens > 0) & (last != _SEPARATOR)).astype(np.int64)
    return _Items(starts, heads["flag"], body_lens, text_lens, separated)


def _starts(body: bytes) -> Array | None:
    """Where each message begins, as the sizes tell; None when they do not end with the body."""
    size = int.from_bytes(body[:4], "big")
    count, rest = divmod(len(body), max(size, _ITEM_BYTES_MIN))
    if (
        size >= _ITEM_BYTES_MIN
        and not rest
        and (np.ndarray((count,), ">i4", body, 0, (size,)) == size).all()
    ):
        return np.arange(0, len(body), size)
    starts, at, last, size_at = [], 0, len(body) - _ITEM_BYTES_MIN, int.from_bytes
    while at <= last:  # ends: at rises by a size of at least 22
        starts.append(at)
        size = size_at(body[at : at + 4], "big")
        if size < _ITEM_BYTES_MIN:
            return None
        at += size
    return np.array(starts) if at == len(body) else None


def _heads(batch: StoredMessage, items: _Items, sizes: Array) -> Array:
    """The fixed parts, without what ``patch_frame`` fills in."""
    heads = np.empty(len(sizes), record_header())
    heads[:] = np.frombuffer(
        HEADER.pack(
            *(0, MAGIC, 0, batch.queue_id, 0, 0, 0, batch.sys_flag & ~_V6_FLAGS),
            *(batch.born_ms, bytes(8), 0, bytes(8), batch.reconsume_times, 0, 0),
        ),
        record_header(),
    )
    begins = items.starts + _ITEM_BYTES
    heads["total"], heads["flag"], heads["body_len"] = sizes, items.flags, items.body_lens
    heads["crc"] = body_crcs(batch.body, begins, begins + items.body_lens)
    return heads


def _join_uniform(
    body: bytes, items: _Items, heads: Array, topic_part: bytes, common: bytes
) -> bytearray | None:
    """The records as the rows of a matrix; None when a property string is not sound."""
    count, size, body_len = len(heads), int(heads["total"][0]), int(items.body_lens[0])
    text_len, separated = int(items.text_lens[0]), int(items.separated[0])
    source = np.frombuffer(body, np.uint8).reshape(count, -1)
    texts = source[:, _ITEM_BYTES_MIN + body_len :]
    if not _are_sound(texts.tobytes()):
        return None
    tail = b"\x02" * separated + common
    middle = topic_part + (text_len + len(tail)).to_bytes(2, "big")
    records = bytearray(count * size)
    rows = np.frombuffer(records, np.uint8).reshape(count, size)
    at = 0
    for width, part in (
        (HEADER_BYTES, heads.view(np.uint8).reshape(count, HEADER_BYTES)),
        (body_len, source[:, _ITEM_BYTES : _ITEM_BYTES + body_len]),
        (len(middle), np.frombuffer(middle, np.uint8)),
        (text_len, texts),
        (len(tail), np.frombuffer(tail, np.uint8)),
    ):
        rows[:, at : at + width] = part
        at += width
    return records


def _join_varied(
    body: bytes, items: _Items, heads: Array, topic_part: bytes, common: bytes
) -> bytearray | None:
    """The records from their parts; None when a property string is not sound."""
    count = len(heads)
    begins = items.starts + _ITEM_BYTES
    text_ats = (begins + items.body_lens + 2).tolist()
    begins_list = begins.tolist()
    texts = [
        body[at : at + length]
        for at, length in zip(text_ats, items.text_lens.tolist(), strict=True)
    ]
    if not _are_sound(b"\x02".join(texts)):
        return None
    lengths = (items.text_lens + items.separated + len(common)).astype(">i2")
    tails = (common, b"\x02" + common)
    parts: list[bytes] = [topic_part] * (6 * count)
    parts[0::6] = heads.view(f"V{HEADER_BYTES}").tolist()
    parts[1::6] = [body[at : end - 2] for at, end in zip(begins_list, text_ats, strict=True)]
    parts[3::6] = lengths.view("V2").tolist()
    parts[4::6] = texts
    parts[5::6] = [tails[separated] for separated in items.separated.tolist()]
    return bytearray().join(parts)


def _are_sound(texts: bytes) -> bool:
    """Whether property strings are UTF-8 without a zero or a mark: nothing would be replaced,
    refused or stripped.
    """
    if b"\0" in texts or MARK_PREFIX in texts:
        return False
    if texts.isascii():
        return True
    try:
        texts.decode()
    except UnicodeDecodeError:
        return False
    return True


def _add_facts(frame: CheckedFrame, records: bytearray, begins: Array, items: _Items) -> None:
    """Tag codes and keys of the strings that begin at ``begins``."""
    view = memoryview(records)
    frame.tag_codes = np.zeros(frame.count, np.int64)
    lengths = items.text_lens + items.separated  # with the 0x02 behind each
    left = lengths > 0
    for length in np.flatnonzero(np.bincount(lengths) >= MANY).tolist():
        rows = np.flatnonzero(lengths == length)
        if length and _add_columns(frame, view, rows, begins[rows], length):
            left[rows] = False
    rest = np.flatnonzero(left)
    if len(rest) >= MANY:
        for alike in alike_facts(view, begins[rest], begins[rest] + lengths[rest] - 1, frozenset()):
            left[rest[alike.rows]] = False
            if alike.tag_codes is not None:
                frame.tag_codes[rest[alike.rows]] = alike.tag_codes
            for keys in (alike.unique, alike.keys):
                if keys is not None:
                    frame.hashed_keys.append(keys._replace(rows=rest[keys.rows]))
    rest = np.flatnonzero(left)
    for row, begin, length in zip(
        rest.tolist(), begins[rest].tolist(), lengths[rest].tolist(), strict=True
    ):
        facts = plain_facts(bytes(view[begin : begin + length]))
        frame.tag_codes[row] = facts.tag_code
        keys_of = (facts.unique, *facts.keys) if facts.unique else facts.keys
        frame.keys += [(row, key) for key in keys_of]


def _add_columns(
    frame: CheckedFrame, view: memoryview, rows: Array, begins: Array, length: int
) -> bool:
    """Of strings of one length; False when they are not of one layout."""
    texts = (
        np.ndarray((len(view) - length + 1,), f"V{length}", view, 0, (1,))[begins]
        .view(np.uint8)
        .reshape(len(rows), length)
    )
    names = read_columns(texts)
    if names is None or (_KEYS in names and holds_blanks(texts, *names[_KEYS])):
        return False
    if _TAGS in names:
        frame.tag_codes[rows] = hash_columns(texts, *names[_TAGS]).view(np.int32)
    for name in (_UNIQUE, _KEYS):
        if name in names:
            begin, end = names[name]
            frame.hashed_keys.append(
                KeyHashes(rows, hash_columns(texts, begin, end), np.full(len(rows), end - begin))
            )
    return True
