"""What dispatch needs of property strings: tag codes and keys, many records at a time, without
parsing what repeats.

Decides: which properties a pre-encoded frame may carry (``frame_facts``), what is read from records
that are in the log already (``stored_facts``, which refuses nothing). Does not decide: record
structure, hashing of index keys. Called by: ``frame_check`` and ``log_scan``. Pure but for two
bounded caches of parsed strings.

Our producers end a property string with ``UNIQ_KEY 0x01`` and 32 characters. What stands before
that (the head) is mostly empty or the same in many records; it is parsed once. Strings without that
ending are parsed whole.

Property strings that differ in their values only, read by columns: rows of one table, or
messages of one program.

    KEYS 0x01 o-17 0x02 TAGS 0x01 eu 0x02 region 0x01 r3 0x02  the names in their order are a row's
                                                               shape
    KEYS 0x01 o-18 0x02 TAGS 0x01 us 0x02 region 0x01 r5 0x02  one look at the names for all rows of
                                                               a shape

Decides which rows are so plain that no rule needs to look at them one by one: well formed, ASCII,
no reserved name but KEYS (one key) and TAGS. All others are left to ``record_properties``, which
judges. Called by it. Pure.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import NamedTuple

import numpy as np

from rmq_ray.codec.label_columns import read_labels
from rmq_ray.codec.record import tags_code, texts_at
from rmq_ray.codec.record_batch import (
    UNIQUE_KEY_CHARS,
    UNIQUE_KEY_PREFIX,
    UNIQUE_TAIL_BYTES,
    Array,
    KeyHashes,
    hash_texts_at,
)
from rmq_ray.errors import MessageIllegal
from rmq_ray.model.hashing import java_hash
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

ROWS_MIN = 64  # rows that must have one shape before it is worth numpy's calls
_SHAPES_MAX = 8
_LENGTHS_MAX = 32  # different lengths of strings; beyond, they are put together one by one
_UNUSUAL = RESERVED_PROPERTIES - {KEYS, TAGS}
_BLANK = 0x20


class Alike(NamedTuple):
    """Of rows of one shape. ``rows``: which they are. ``tag_codes``: None without tags;
    ``unique``, ``keys``: None without such a property, else of these rows.
    """

    rows: Array
    tag_codes: Array | None
    unique: KeyHashes | None
    keys: KeyHashes | None


def alike_facts(
    view: memoryview, begins: Array, ends: Array, unusual: frozenset[str] = _UNUSUAL
) -> Iterator[Alike]:
    """Shape by shape; strings that come in none, or hold a name that is ``unusual``, are for
    somebody else. The strings lie at bytes [begins, ends) of ``view``, a 0x02 behind each.
    """
    joined, order = _join(view, begins, ends)
    pairs = _Pairs.read(joined, (ends - begins)[order])
    if pairs is None:
        return
    rest = np.arange(len(order))
    for _ in range(_SHAPES_MAX):
        if len(rest) < ROWS_MIN:
            return
        names, same = pairs.shape_of(int(rest[len(rest) // 2]), rest)
        if len(same) < ROWS_MIN:
            return
        if len(set(names)) == len(names) and unusual.isdisjoint(names):
            found = pairs.facts(names, same, order)
            if found is not None:
                yield found
        left = np.ones(len(order), np.bool_)
        left[same] = False
        rest = rest[left[rest]]


def _join(view: memoryview, begins: Array, ends: Array) -> tuple[bytes, Array]:
    """(the strings back to back, each with the 0x02 behind it; which string is where). Those of one
    length are copied together.
    """
    lengths = ends - begins + 1
    kinds = np.flatnonzero(np.bincount(lengths))
    if len(kinds) > _LENGTHS_MAX:
        strings = [
            view[begin : end + 1] for begin, end in zip(begins.tolist(), ends.tolist(), strict=True)
        ]
        return b"".join(strings), np.arange(len(begins))
    parts, orders = [], []
    for length in kinds.tolist():
        rows = np.flatnonzero(lengths == length)
        orders.append(rows)
        parts.append(
            np.ndarray((len(view) - length + 1,), f"V{length}", view, 0, (1,))[
                begins[rows]
            ].tobytes()
        )
    return b"".join(parts), np.concatenate(orders)


class _Pairs:
    """All names and values of the strings: byte positions in ``data``. ``first``: the first pair of
    each string, ``counts``: how many it has.
    """

    def __init__(self, data: Array, begins: Array, ones: Array, twos: Array, counts: Array) -> None:
        self.data = data
        self.begins = begins
        self.ones = ones
        self.twos = twos
        self.counts = counts
        self.first = np.cumsum(counts) - counts

    @classmethod
    def read(cls, joined: bytes, lengths: Array) -> _Pairs | None:
        """None when a string is malformed, or holds other characters than ASCII, or a zero."""
        if not joined.isascii():
            return None
        data = np.frombuffer(joined, np.uint8)
        ones, twos = np.flatnonzero(data == 1), np.flatnonzero(data == 2)
        if len(ones) != len(twos) or not data.all():
            return None
        begins = np.empty_like(twos)
        begins[0], begins[1:] = 0, twos[:-1] + 1
        if not ((begins < ones) & (ones + 1 < twos)).all():
            return None
        return cls(
            data,
            begins,
            ones,
            twos,
            np.diff(np.searchsorted(twos, np.cumsum(lengths + 1) - 1), prepend=-1),
        )

    def shape_of(self, row: int, rest: Array) -> tuple[list[str], Array]:
        """(the names of ``row``, which of the rows ``rest`` have the same ones in the same
        order).
        """
        same = rest[self.counts[rest] == self.counts[row]]
        names = []
        for number in range(int(self.counts[row])):
            pair = int(self.first[row]) + number
            name = self.data[self.begins[pair] : self.ones[pair]]
            names.append(name.tobytes().decode())
            others = self.first[same] + number
            same = same[self.ones[others] - self.begins[others] == len(name)]
            at = self.begins[self.first[same] + number]
            found = np.ndarray(
                (len(self.data) - len(name) + 1,), f"V{len(name)}", self.data, 0, (1,)
            )[at]
            same = same[(found.view(np.uint8).reshape(len(same), len(name)) == name).all(axis=1)]
        return names, same

    def facts(self, names: list[str], rows: Array, order: Array) -> Alike | None:
        """Of rows that all have these names, by their place in ``order``; None when a value must be
        looked at.
        """
        codes, unique, keys = None, None, None
        if TAGS in names:
            codes = (
                hash_texts_at(self.data, *self._values(rows, names.index(TAGS)))
                .view(np.int32)
                .astype(np.int64)
            )
        if UNIQUE_KEY in names:
            begins, ends = self._values(rows, names.index(UNIQUE_KEY))
            unique = KeyHashes(order[rows], hash_texts_at(self.data, begins, ends), ends - begins)
        if KEYS in names:
            begins, ends = self._values(rows, names.index(KEYS))
            blanks = np.flatnonzero(self.data == _BLANK)
            if (
                len(blanks)
                and (np.searchsorted(blanks, begins) != np.searchsorted(blanks, ends)).any()
            ):  # several keys
                return None
            keys = KeyHashes(order[rows], hash_texts_at(self.data, begins, ends), ends - begins)
        return Alike(order[rows], codes, unique, keys)

    def _values(self, rows: Array, number: int) -> tuple[Array, Array]:
        pairs = self.first[rows] + number
        return self.ones[pairs] + 1, self.twos[pairs]


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
