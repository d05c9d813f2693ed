"""Java's string hash: what the consume queue stores of a tag, and what a subscription's codes are
compared with (store-format 3).

One implementation, because three parties must agree to the bit: the broker that writes the code,
the broker that filters by it, and Apache RocketMQ's clients that send it.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from functools import lru_cache
from operator import mul

_POWERS = [
    31**n for n in range(63, -1, -1)
]  # a block of 64 units is one scalar product; sums stay small


def java_hash(text: str) -> int:
    """``String.hashCode``: signed 32 bits over UTF-16 code units.

    >>> java_hash("TagA"), java_hash("polygenelubricants"), java_hash("")
    (2598919, -2147483648, 0)
    """
    units: Sequence[int]
    if text.isascii():
        units = text.encode("ascii")
    else:
        packed = text.encode("utf-16-be", "surrogatepass")
        units = struct.unpack(f">{len(packed) // 2}H", packed)
    value = 0
    for at in range(0, len(units), len(_POWERS)):
        part = units[at : at + len(_POWERS)]
        value = (value * 31 ** len(part) + sum(map(mul, part, _POWERS[-len(part) :]))) & 0xFFFFFFFF
    return value - (1 << 32) if value >= 1 << 31 else value


@lru_cache(maxsize=16_384)
def tags_code(tag: str | None) -> int:
    """A tag's code: its Java hash, 0 without a tag.

    >>> tags_code(None), tags_code("TagA")
    (0, 2598919)
    """
    return java_hash(tag) if tag else 0
