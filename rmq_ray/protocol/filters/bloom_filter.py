"""The bloom filter of SQL92 subscriptions: which bits of a message's bit map belong to a group and
topic (protocol-behaviour 21.1; store-format 4, 12).

    k = 3 bits of m = 112 for an error rate of 20 % with 32 expected subscriptions; bit i = |h1 + i
    * h2| mod m, h1 and h2 the halves of the first 64 bits of MurmurHash3 (x64, 128) over
    "group#topic" in UTF-8

Decides: bits, byte for byte as RocketMQ's, whose consumerFilter.json and bit maps are read here and
the other way round. Pure.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache

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
