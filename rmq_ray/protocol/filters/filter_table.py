"""The SQL92 filters of a broker's consumer groups: RocketMQ's ConsumerFilterManager
(protocol-behaviour 21.1; store-format 12).

    topic -> group -> FilterData  registered by heartbeats, marked dead when the group leaves or
                                  gives the topic up, forgotten 24 h later

Decides: which heartbeat replaces a filter (a higher version), from when on a filter has been live,
which are forgotten, the values of ``consumerFilter.json``. Does not decide where filters are
evaluated. Called by the broker's loop; times are wall clock milliseconds.

Invariants: every filter here compiles; at most ``FILTERS_MAX`` of them. ``dirty``: something
changed since it was last set to False.

The bloom filter of SQL92 subscriptions: which bits of a message's bit map belong to a group and
topic (protocol-behaviour 21.1; store-format 4, 12).

    k = 3 bits of m = 112 for an error rate of 20 % with 32 expected subscriptions; bit i = |h1 + i
    * h2| mod m, h1 and h2 the halves of the first 64 bits of MurmurHash3 (x64, 128) over
    "group#topic" in UTF-8

Decides: bits, byte for byte as RocketMQ's, whose consumerFilter.json and bit maps are read here and
the other way round. Pure.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from rmq_ray.errors import SubscriptionInvalid
from rmq_ray.model.groups import SQL92, Subscription
from rmq_ray.protocol.filters.filter_sql92 import SqlFilter, compile_filter

ERROR_PERCENT = 20
EXPECTED = 32
_MASK = (1 << 64) - 1
_C1, _C2 = 0x87C37B91114253D5, 0x4CF5AD432745937F


@dataclass(frozen=True, slots=True)
class BloomData:
    """``positions`` of one subscription in a map of ``bits`` bits."""

    positions: tuple[int, ...]
    bits: int


@dataclass(frozen=True, slots=True)
class BloomFilter:
    """``hashes`` (k) bits for each key, ``bits`` (m) in all, a multiple of 8."""

    hashes: int
    bits: int

    def data_of(self, group: str, topic: str) -> BloomData:
        """The bits of a group's filter on a topic."""
        return BloomData(self.positions(f"{group}#{topic}"), self.bits)

    def positions(self, key: str) -> tuple[int, ...]:
        """The k bits of a key; they may coincide."""
        hashed = murmur3_low64(key.encode())
        first, second = _signed32(hashed), _signed32(hashed >> 32)
        found = []
        for step in range(1, self.hashes + 1):
            combined = _signed32(first + step * second)
            found.append((combined if combined >= 0 else ~combined) % self.bits)
        return tuple(found)

    def bit_map(self, matching: list[BloomData]) -> bytes:
        """The bit map of a message that passes these filters. Bit i is bit ``i % 8`` of byte ``i //
        8``.
        """
        found = bytearray(self.bits // 8)
        for data in matching:
            for bit in data.positions:
                found[bit >> 3] |= 1 << (bit & 7)
        return bytes(found)


def is_hit(data: BloomData, bit_map: bytes) -> bool:
    """False: the message does not pass that filter. True: it may. A map of another size says
    nothing, so it hits.
    """
    if len(bit_map) * 8 != data.bits:
        return True
    return all(bit_map[bit >> 3] & (1 << (bit & 7)) for bit in data.positions)


def filter_for(error_percent: int = ERROR_PERCENT, expected: int = EXPECTED) -> BloomFilter:
    """The sizes for an error rate in percent with so many keys.

    >>> filter_for()
    BloomFilter(hashes=3, bits=112)
    """
    hashes = math.ceil(math.log(error_percent / 100) / math.log(0.5))
    bits = math.ceil(
        expected * (math.log(100 / error_percent) / math.log(2)) * (math.log(math.e) / math.log(2))
    )
    return BloomFilter(hashes, -(-bits // 8) * 8)


@lru_cache(maxsize=1024)
def murmur3_low64(data: bytes) -> int:
    """The first 64 bits (unsigned) of MurmurHash3 x64 128 with seed 0.

    >>> murmur3_low64(b"")
    0
    """
    h1 = h2 = 0
    whole = len(data) - len(data) % 16
    for at in range(0, whole, 16):
        h1 ^= _mix1(int.from_bytes(data[at : at + 8], "little"))
        h1 = (((_rotated(h1, 27) + h2) & _MASK) * 5 + 0x52DCE729) & _MASK
        h2 ^= _mix2(int.from_bytes(data[at + 8 : at + 16], "little"))
        h2 = (((_rotated(h2, 31) + h1) & _MASK) * 5 + 0x38495AB5) & _MASK
    tail = data[whole:]
    h2 ^= _mix2(int.from_bytes(tail[8:], "little"))
    h1 ^= _mix1(int.from_bytes(tail[:8], "little"))
    h1, h2 = h1 ^ len(data), h2 ^ len(data)
    h1 = (h1 + h2) & _MASK
    h2 = (h2 + h1) & _MASK
    return (_finished(h1) + _finished(h2)) & _MASK


def _mix1(block: int) -> int:
    return (_rotated((block * _C1) & _MASK, 31) * _C2) & _MASK


def _mix2(block: int) -> int:
    return (_rotated((block * _C2) & _MASK, 33) * _C1) & _MASK


def _finished(value: int) -> int:
    value = ((value ^ (value >> 33)) * 0xFF51AFD7ED558CCD) & _MASK
    value = ((value ^ (value >> 33)) * 0xC4CEB9FE1A85EC53) & _MASK
    return value ^ (value >> 33)


def _rotated(value: int, bits: int) -> int:
    return ((value << bits) | (value >> (64 - bits))) & _MASK


def _signed32(value: int) -> int:
    value &= 0xFFFFFFFF
    return value - (1 << 32) if value >> 31 else value


FILTERS_MAX = 10_000
KEPT_AFTER_DEATH_MS = 24 * 3_600_000  # filterDataCleanTimeSpan


@dataclass(slots=True)
class FilterData:
    """One group's filter on one topic. ``born_ms``: messages stored later have this filter's bit in
    their bit maps; ``dead_ms``: 0 = alive.
    """

    group: str
    topic: str
    compiled: SqlFilter
    bloom: BloomData
    born_ms: int
    client_version: int
    dead_ms: int = 0

    @property
    def expression(self) -> str:
        """As the consumer wrote it."""
        return self.compiled.expression

    def may_match(self, store_ms: int, bit_map: bytes) -> bool:
        """False when the bit map of a message that was stored while this filter lived rules it out.
        Dead filters are kept up as well.
        """
        return store_ms <= self.born_ms or is_hit(self.bloom, bit_map)


class FilterTable:
    """See the module."""

    def __init__(self) -> None:
        self._topics: dict[str, dict[str, FilterData]] = {}
        self._of_group: dict[str, set[str]] = {}
        self._bloom = filter_for()
        self._count = 0
        # of the messages that have bit maps; a filter is born after them, also by a clock that was
        # set back
        self._newest_ms = 0
        self.dirty = False

    def __len__(self) -> int:
        return self._count

    def find(self, topic: str, group: str) -> FilterData | None:
        """The filter, a dead one too."""
        return self._topics.get(topic, {}).get(group)

    def of_topic(self, topic: str) -> list[FilterData]:
        """All filters on a topic: what a message's bit map is made of."""
        return list(self._topics.get(topic, {}).values())

    def has_filters(self, topic: str) -> bool:
        """Whether any group filters the topic."""
        return topic in self._topics

    def bit_map(self, topic: str, properties: bytes, store_ms: int) -> bytes:
        """The bit map of a message with these properties that was stored at ``store_ms``."""
        self._newest_ms = max(self._newest_ms, store_ms)
        return self._bloom.bit_map(
            [data.bloom for data in self.of_topic(topic) if data.compiled.matches(properties)]
        )

    def register(self, group: str, subscriptions: Iterable[Subscription], now_ms: int) -> list[str]:
        """A heartbeat of the group: SQL filters are taken in, those it no longer names die. Returns
        what is wrong with those that are left out.
        """
        named = {
            subscription.topic: subscription
            for subscription in subscriptions
            if subscription.expression_type == SQL92
        }
        faults = [
            fault
            for fault in [self._put(group, subscription, now_ms) for subscription in named.values()]
            if fault
        ]
        for topic in self._of_group.get(group, set()) - named.keys():
            known = self._topics[topic][group]
            if not known.dead_ms:
                known.dead_ms, self.dirty = now_ms, True
        return faults

    def unregister(self, group: str, now_ms: int) -> None:
        """The group has no members left: its filters are dead from now on."""
        self.register(group, (), now_ms)

    def clean(self, now_ms: int) -> None:
        """Forget what has been dead for a day."""
        for topic in list(self._topics):
            groups = self._topics[topic]
            for group in [
                group
                for group, data in groups.items()
                if data.dead_ms and now_ms - data.dead_ms >= KEPT_AFTER_DEATH_MS
            ]:
                self._remove(topic, group)

    def encode(self) -> dict[str, Any]:
        """``filterDataByTopic`` of consumerFilter.json."""
        return {
            topic: {
                "groupFilterData": {group: _encode(data) for group, data in groups.items()},
                "topic": topic,
            }
            for topic, groups in self._topics.items()
        }

    def load(self, table: Mapping[str, Any], now_ms: int) -> list[str]:
        """Take in what the file said; all are dead until their groups come back. Returns what is
        wrong with entries that are left out.
        """
        faults = []
        for topic, value in table.items():
            for group, entry in value["groupFilterData"].items():
                try:
                    data = self._decode(str(topic), str(group), entry, now_ms)
                except (SubscriptionInvalid, LookupError, TypeError, ValueError) as error:
                    faults.append(
                        f"the filter of group {group} on {topic} in consumerFilter.json is "
                        f"left out: {error}"
                    )
                    continue
                self._insert(data)
        return faults

    def _put(self, group: str, subscription: Subscription, now_ms: int) -> str:
        """What is wrong with it, nothing where it was taken in."""
        known = self.find(subscription.topic, group)
        if known is not None and self._kept(known, subscription):
            return ""
        if known is None and self._count >= FILTERS_MAX:
            return (
                f"this broker has {FILTERS_MAX} SQL filters; the one of group {group} on "
                f"{subscription.topic} is not taken in"
            )
        try:
            compiled = compile_filter(subscription.expression)
        except SubscriptionInvalid as error:
            self._remove(subscription.topic, group)
            return f"the filter of group {group} on {subscription.topic} is refused: {error}"
        bloom, born_ms = (
            self._bloom.data_of(group, subscription.topic),
            max(now_ms, self._newest_ms),
        )
        data = FilterData(group, subscription.topic, compiled, bloom, born_ms, subscription.version)
        self._insert(data)
        return ""

    def _kept(self, known: FilterData, told: Subscription) -> bool:
        """True when the filter that is known stays; what the heartbeat says of its version and life
        is noted.
        """
        if told.version < known.client_version:
            return True
        if told.expression != known.expression:
            return told.version == known.client_version
        if told.version != known.client_version or known.dead_ms:
            known.client_version, known.dead_ms, self.dirty = told.version, 0, True
        return True

    def _insert(self, data: FilterData) -> None:
        groups = self._topics.setdefault(data.topic, {})
        self._count += data.group not in groups
        groups[data.group] = data
        self._of_group.setdefault(data.group, set()).add(data.topic)
        self.dirty = True

    def _remove(self, topic: str, group: str) -> None:
        groups = self._topics.get(topic, {})
        if groups.pop(group, None) is not None:
            self._count -= 1
            self.dirty = True
            if not groups:
                del self._topics[topic]
            self._of_group[group].discard(topic)
            if not self._of_group[group]:
                del self._of_group[group]

    def _decode(self, topic: str, group: str, entry: Mapping[str, Any], now_ms: int) -> FilterData:
        if entry.get("expressionType") != SQL92:
            raise ValueError(f"expression type {entry.get('expressionType')!r}")
        bloom, wanted = entry.get("bloomFilterData") or {}, self._bloom.data_of(group, topic)
        same = (tuple(bloom.get("bitPos") or ()), bloom.get("bitNum")) == (
            wanted.positions,
            wanted.bits,
        )
        born_ms = (
            int(entry["bornTime"]) if same else now_ms
        )  # other bits: what is in the bit maps says nothing about this filter
        dead_ms = int(entry.get("deadTime") or 0) or now_ms
        return FilterData(
            group,
            topic,
            compile_filter(entry["expression"]),
            wanted,
            born_ms,
            int(entry["clientVersion"]),
            dead_ms,
        )


def _encode(data: FilterData) -> dict[str, Any]:
    return {
        "bloomFilterData": {"bitNum": data.bloom.bits, "bitPos": list(data.bloom.positions)},
        "bornTime": data.born_ms,
        "clientVersion": data.client_version,
        "consumerGroup": data.group,
        "deadTime": data.dead_ms,
        "expression": data.expression,
        "expressionType": SQL92,
        "topic": data.topic,
    }
