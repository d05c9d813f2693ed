"""Java's string hash: what the consume queue stores of a tag, and what a subscription's codes are compared with (store-format 3).

One implementation, because three parties must agree to the bit: the broker that writes the code, the broker that filters by
it, and Apache RocketMQ's clients that send it.
"""

from __future__ import annotations

from functools import lru_cache


def java_hash(text: str) -> int:
    """``String.hashCode``: signed 32 bits over UTF-16 code units.

    >>> java_hash("TagA"), java_hash("polygenelubricants"), java_hash("")
    (2598919, -2147483648, 0)
    """
    value = 0
    if text.isascii():
        for unit in text.encode("ascii"):
            value = (31 * value + unit) & 0xFFFFFFFF
    else:
        units = text.encode("utf-16-be", "surrogatepass")
        for high, low in zip(units[::2], units[1::2], strict=True):
            value = (31 * value + (high << 8 | low)) & 0xFFFFFFFF
    return value - (1 << 32) if value >= 1 << 31 else value


@lru_cache(maxsize=16_384)
def tags_code(tag: str | None) -> int:
    """A tag's code: its Java hash, 0 without a tag.

    >>> tags_code(None), tags_code("TagA")
    (0, 2598919)
    """
    return java_hash(tag) if tag else 0
