"""What dispatch needs of property strings: tag codes and keys, many records at a time, without
parsing what repeats.

Decides: which properties a pre-encoded frame may carry (``frame_facts``), what is read from records
that are in the log already (``stored_facts``, which refuses nothing). Does not decide: record
structure, hashing of index keys. Called by: ``frame_check`` and ``log_scan``. Pure but for two
bounded caches of parsed strings.

Our producers end a property string with ``UNIQ_KEY 0x01`` and 32 characters. What stands before
that (the head) is mostly empty or the same in many records; it is parsed once. Strings without that
ending are parsed whole.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import NamedTuple

import numpy as np

from rmq_ray.arrays import Array
from rmq_ray.codec.alike_properties import ROWS_MIN, alike_facts
from rmq_ray.codec.label_columns import read_labels
from rmq_ray.codec.record import texts_at
from rmq_ray.codec.record_batch import (
    UNIQUE_KEY_CHARS,
    UNIQUE_KEY_PREFIX,
    UNIQUE_TAIL_BYTES,
    KeyHashes,
)
from rmq_ray.errors import MessageIllegal
from rmq_ray.model.hashing import java_hash, tags_code
from rmq_ray.model.message import (
    DELAY,
    KEYS,
    PREENCODED_PROPERTIES,
    RESERVED_PROPERTIES,
    TAGS,
    TIMER_OUT_MS,
    UNIQUE_KEY,
    decode_properties,
)
from rmq_ray.model.message import FRAME as MARK

_SHARED_MIN = 64  # records that must share a head before it is worth a numpy call
_SHARED_HEADS_MAX = 16
_LAYOUT_MIN = 256  # the same for a layout
_REFUSED = (RESERVED_PROPERTIES - PREENCODED_PROPERTIES) | {MARK}
_TAIL = np.dtype([("name", ">u8"), ("one", "u1"), ("key", f"V{UNIQUE_KEY_CHARS}")])
_UNIQUE_PART = b"\x02" + UNIQUE_KEY_PREFIX
_TAIL_NAME = int.from_bytes(UNIQUE_KEY_PREFIX[:8], "big")


class PropertyFacts(NamedTuple):
    """Of one property string: the tag's code, the unique key, the business keys, the due time or
    else the delay level as written.
    """

    tag_code: int = 0
    unique: str | None = None
    keys: tuple[str, ...] = ()
    delay: str | None = None


_NOTHING = PropertyFacts()


@dataclass(slots=True)
class ManyFacts:
    """Of many: see ``CheckedFrame`` for the fields (``hashed`` is its ``hashed_keys``). ``delays``:
    (record, level as written) where there is one.
    """

    tag_codes: Array
    unique: Array | None
    unique_rows: Array | None
    keys: list[tuple[int, str]]
    delays: list[tuple[int, str]]
    hashed: list[KeyHashes] = field(default_factory=list)


@lru_cache(maxsize=8192)
def frame_facts(text: bytes) -> PropertyFacts:
    """Of a string that a client sent in a frame. ``MessageIllegal`` for malformed parts and
    reserved names that need the other path.
    """
    try:
        decoded = text.decode()
    except UnicodeDecodeError as error:
        raise MessageIllegal("the properties are not UTF-8") from error
    if "\0" in decoded:
        raise MessageIllegal(
            "the properties hold a zero character; recovery takes that for a torn write"
        )
    if decoded:
        for part in decoded.removesuffix("\x02").split("\x02"):
            name, separator, value = part.partition("\x01")
            if not name or not separator or not value:
                raise MessageIllegal(f"property {part[:64]!r} is not name 0x01 value")
            if name in _REFUSED:
                raise MessageIllegal(
                    f"the reserved property {name} may not come in a frame; send this "
                    f"message by itself"
                )
    return _facts(decoded)


def split_facts(text: bytes) -> tuple[str | None, PropertyFacts]:
    """(unique key, facts of the rest) of one string that a client sent; raises as ``frame_facts``,
    which sees the part that repeats only.
    """
    if (
        text[-UNIQUE_TAIL_BYTES:-UNIQUE_KEY_CHARS] == UNIQUE_KEY_PREFIX
        and (key := text[-UNIQUE_KEY_CHARS:]).isalnum()
    ):
        if len(text) == UNIQUE_TAIL_BYTES:
            return key.decode("ascii"), _NOTHING
        if text[-UNIQUE_TAIL_BYTES - 1] == 2:
            return key.decode("ascii"), frame_facts(text[: -UNIQUE_TAIL_BYTES - 1])
    facts = frame_facts(text)
    return facts.unique, facts


def stored_parts(text: bytes) -> tuple[str | None, PropertyFacts]:
    """``split_facts`` of a string that the broker stores: nothing is refused,
    ``PropertyFacts.unique`` is of no account.
    """
    if (
        text[-UNIQUE_TAIL_BYTES - 1 : -UNIQUE_KEY_CHARS] == _UNIQUE_PART
        and (key := text[-UNIQUE_KEY_CHARS:]).isalnum()
    ):
        return key.decode("ascii"), stored_facts(text[: -UNIQUE_TAIL_BYTES - 1])
    facts = stored_facts(text)
    return facts.unique, facts


@lru_cache(maxsize=8192)
def stored_facts(text: bytes) -> PropertyFacts:
    """Of a string in the log: parts that make no sense are skipped."""
    return _facts(text.decode("utf-8", "replace"))


def plain_facts(text: bytes) -> PropertyFacts:
    """``stored_facts`` of a string that hardly comes again, because a unique key is in it."""
    return _facts(text.decode("utf-8", "replace"))


def _facts(text: str) -> PropertyFacts:
    return facts_of(decode_properties(text))


def facts_of(properties: Mapping[str, str]) -> PropertyFacts:
    """The same of properties that were read already."""
    text = properties.get(KEYS)
    return PropertyFacts(
        tags_code(properties.get(TAGS)),
        properties.get(UNIQUE_KEY),
        () if text is None else tuple([key for key in text.split(" ") if key]),
        properties.get(TIMER_OUT_MS) or properties.get(DELAY),
    )


def collect_facts(
    view: memoryview, begins: Array, ends: Array, facts_of: Callable[[bytes], PropertyFacts]
) -> ManyFacts:
    """Facts of the property strings at bytes [begins, ends) of ``view`` (int64 arrays of one
    length, at least one).
    """
    data = np.frombuffer(view, np.uint8)
    has, unique = _unique_tails(data, begins, ends)
    heads_end = np.where(has, np.maximum(ends - UNIQUE_TAIL_BYTES - 1, begins), ends)
    lengths = heads_end - begins
    count = len(begins)
    all_unique = bool(has.all())
    rows = None if all_unique else np.flatnonzero(has)
    found = ManyFacts(
        np.zeros(count, np.int64), unique if all_unique else unique[has], rows, [], []
    )
    same = _same_head(data, begins, lengths) if all_unique else None
    if same is not None:
        facts = facts_of(same)
        found.tag_codes.fill(facts.tag_code)
        found.hashed = [same_key(np.arange(count), key) for key in facts.keys]
        if facts.delay is not None:
            found.delays = [(row, facts.delay) for row in range(count)]
        return found
    rest = np.flatnonzero((lengths > 0) | ~has)
    if count >= _SHARED_MIN:
        rest = _take_layouts(view, found, rest, (begins, heads_end, has))
        rest = _take_shared(view, data, found, rest, (begins, heads_end, has), facts_of)
        rest = _take_alike(view, found, rest, (begins, heads_end, has))
    for row, begin, end in zip(
        rest.tolist(), begins[rest].tolist(), heads_end[rest].tolist(), strict=True
    ):
        _take_one(found, row, facts_of(bytes(view[begin:end])))
    return found


def same_key(rows: Array, key: str) -> KeyHashes:
    """The same business key for all these records."""
    units = len(key) if key.isascii() else len(key.encode("utf-16-be", "surrogatepass")) // 2
    return KeyHashes(
        rows, np.full(len(rows), java_hash(key) & 0xFFFFFFFF, np.uint32), np.full(len(rows), units)
    )


def _take_one(found: ManyFacts, row: int, facts: PropertyFacts) -> None:
    if facts.tag_code:
        found.tag_codes[row] = facts.tag_code
    if facts.unique is not None:
        found.keys.append((row, facts.unique))
    if facts.keys:
        found.keys += [(row, key) for key in facts.keys]
    if facts.delay is not None:
        found.delays.append((row, facts.delay))


def _take_layouts(
    view: memoryview, found: ManyFacts, rest: Array, where: tuple[Array, Array, Array]
) -> Array:
    """Heads of one layout, length by length; returns the rows that remain."""
    begins, ends, has = where
    plain = rest[has[rest]]
    lengths = ends[plain] - begins[plain] + 1  # with the 0x02 behind each
    left = np.zeros(len(begins), np.bool_)
    left[rest] = True
    for length in np.flatnonzero(np.bincount(lengths) >= _LAYOUT_MIN).tolist():
        rows = plain[lengths == length]
        texts = (
            np.ndarray((len(view) - length + 1,), f"V{length}", view, 0, (1,))[begins[rows]]
            .view(np.uint8)
            .reshape(len(rows), length)
        )
        labels = read_labels(texts)
        if labels is None:
            break  # the other lengths are hardly better
        if labels.tag_codes is not None:
            found.tag_codes[rows] = labels.tag_codes
        found.hashed += labels.keys_of(rows)
        left[rows] = False
    return np.flatnonzero(left)


def _take_shared(
    view: memoryview,
    data: Array,
    found: ManyFacts,
    rest: Array,
    where: tuple[Array, Array, Array],
    facts_of: Callable[[bytes], PropertyFacts],
) -> Array:
    """Heads that many records share, without a loop over those records; returns the rows that
    remain.
    """
    begins, ends, has = where
    for _ in range(_SHARED_HEADS_MAX):
        if len(rest) < _SHARED_MIN:
            break
        row = int(rest[len(rest) // 2])
        begin, end = int(begins[row]), int(ends[row])
        same = rest[(ends[rest] - begins[rest] == end - begin) & has[rest]]
        head = bytes(view[begin:end])
        heads = (
            np.ndarray((len(data) - len(head) + 1, len(head)), np.uint8, data, 0, (1, 1))[
                begins[same]
            ]
            if head
            else np.empty((len(same), 0), np.uint8)
        )
        same = same[(heads == np.frombuffer(head, np.uint8)).all(axis=1)]
        if len(same) < _SHARED_MIN:
            break
        facts = facts_of(head)
        found.tag_codes[same] = facts.tag_code
        found.hashed += [same_key(same, key) for key in facts.keys]
        found.delays += (
            [(member, facts.delay) for member in same.tolist()] if facts.delay is not None else []
        )
        rest = np.setdiff1d(rest, same, assume_unique=True)
    return rest


def _take_alike(
    view: memoryview, found: ManyFacts, rest: Array, where: tuple[Array, Array, Array]
) -> Array:
    """Heads that differ in values only; returns the rows that remain."""
    begins, ends, has = where
    plain = rest[has[rest]]
    if len(plain) < ROWS_MIN:
        return rest
    left = np.zeros(len(begins), np.bool_)
    left[rest] = True
    for alike in alike_facts(view, begins[plain], ends[plain]):
        rows = plain[alike.rows]
        left[rows] = False
        if alike.tag_codes is not None:
            found.tag_codes[rows] = alike.tag_codes
        if alike.keys is not None:
            found.hashed.append(alike.keys._replace(rows=plain[alike.keys.rows]))
    return np.flatnonzero(left)


def _unique_tails(data: Array, begins: Array, ends: Array) -> tuple[Array, Array]:
    """(which strings end with a unique key of 32 visible characters, those keys as uint8[n,
    32]).
    """
    count = len(begins)
    if len(data) < UNIQUE_TAIL_BYTES:
        return np.zeros(count, np.bool_), np.zeros((count, UNIQUE_KEY_CHARS), np.uint8)
    lengths = ends - begins
    at = np.where(lengths >= UNIQUE_TAIL_BYTES, ends - UNIQUE_TAIL_BYTES, 0)
    tails = np.ndarray(
        (len(data) - UNIQUE_TAIL_BYTES + 1,), f"V{UNIQUE_TAIL_BYTES}", data, 0, (1,)
    )[at].view(_TAIL)
    has: Array = (
        (lengths >= UNIQUE_TAIL_BYTES) & (tails["name"] == _TAIL_NAME) & (tails["one"] == 1)
    )
    has &= (lengths == UNIQUE_TAIL_BYTES) | (
        (lengths > UNIQUE_TAIL_BYTES + 1) & (data[at - 1] == 2)
    )
    keys = np.ascontiguousarray(tails["key"]).view(np.uint8).reshape(count, UNIQUE_KEY_CHARS)
    if keys.min() <= 0x20 or keys.max() >= 0x7F:
        has &= (keys > 0x20).all(axis=1) & (keys < 0x7F).all(axis=1)
    return has, keys


def _same_head(data: Array, begins: Array, lengths: Array) -> bytes | None:
    """The head that all strings share, None when they differ."""
    length = int(lengths[0])
    if not (lengths == length).all():
        return None
    if length == 0:
        return b""
    heads = texts_at(data, begins, length)
    first = heads[:length]
    return first if heads == first * len(begins) else None
