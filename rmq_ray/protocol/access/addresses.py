"""White lists: which addresses a text of ``plain_acl.yml`` means.

    ""                                   none
    * | *.*.*.* | *:*:*:*:*:*:*:*        all
    192.168.0.7 | 1050:0:0:0:5:600:300c:1        this one; IPv6 may be short (1050::5)
    192.168.0.{7,8,9} | 10.1.1.1,10.1.1.2        each of them
    10.10.103.* | 192.168.0.1-20 | 10.1-5        ranges; what is left out behind them is *
    1050::5:600:300c:*  | 1050::5:600:300c:1-1f  the same, hexadecimal

Decides what is such a text and whether an address is meant. Callers: accounts, the global white
list. Pure. Invariants: a text that cannot be read raises ``ConfigError`` and admits nobody; no text
admits an address that it does not name.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache

from rmq_ray.errors import ConfigError

ADDRESS_CHARS_MAX = 4_096
"""Of one text; plenty for a list of a hundred addresses."""
_ALL = frozenset(("*", "*.*.*.*", "*:*:*:*:*:*:*:*"))
_OUTSIDE_BRACES = re.compile(r",(?![^{]*\})")
_DECIMAL, _HEXADECIMAL = re.compile(r"0|[1-9][0-9]{0,2}"), re.compile(r"[0-9a-fA-F]{1,4}")

Span = tuple[int, int]
Part = tuple[Span, ...]
"""Numbers that one part of an address may have, as spans with both ends."""


@dataclass(frozen=True, slots=True)
class WhiteList:
    """``patterns``: the four parts of an IPv4 or the eight of an IPv6 address, each."""

    everybody: bool = False
    patterns: tuple[tuple[Part, ...], ...] = ()

    def has(self, host: str) -> bool:
        """Whether this address, without its port, is meant. An IPv4 address in IPv6's clothes
        (``::ffff:10.0.0.1``) counts as itself.
        """
        if self.everybody or not self.patterns:
            return self.everybody
        try:
            address = ipaddress.ip_address(host.partition("%")[0])
        except ValueError:
            return False
        if isinstance(address, ipaddress.IPv6Address):
            address = address.ipv4_mapped or address
        packed, width = address.packed, 1 if address.version == 4 else 2
        parts = [
            int.from_bytes(packed[at : at + width], "big") for at in range(0, len(packed), width)
        ]
        return any(_fits(pattern, parts) for pattern in self.patterns)


@lru_cache(maxsize=1_024)
def white_list(text: str) -> WhiteList:
    """What a text means. ``ConfigError`` names what is wrong with it.

    >>> white_list("10.10.103.*").has("10.10.103.9"), white_list("").has("10.10.103.9")
    (True, False)
    """
    if len(text) > ADDRESS_CHARS_MAX:
        raise ConfigError(
            f"a white list of {len(text)} characters; at most {ADDRESS_CHARS_MAX} are read, "
            f"name a range"
        )
    text = text.strip()
    if not text:
        return WhiteList()
    if text in _ALL:
        return WhiteList(everybody=True)
    return WhiteList(False, tuple(_pattern(one.strip()) for one in _OUTSIDE_BRACES.split(text)))


def is_white(texts: Iterable[str], host: str) -> bool:
    """Whether one of the texts means this address."""
    return any(white_list(text).has(host) for text in texts)


def _fits(pattern: tuple[Part, ...], parts: list[int]) -> bool:
    return len(pattern) == len(parts) and all(
        any(low <= value <= high for low, high in part)
        for part, value in zip(pattern, parts, strict=True)
    )


def _pattern(text: str) -> tuple[Part, ...]:
    six = ":" in text
    texts, count = (_groups_of(text), 8) if six else (text.split("."), 4)
    parts = [_part(one.strip(), text, six) for one in texts]
    last = texts[-1].strip()
    if len(parts) < count and ("*" in last or "-" in last):
        parts += [((0, 0xFFFF if six else 255),)] * (count - len(parts))
    if len(parts) != count:
        raise _unreadable(text, f"it has {len(parts)} parts instead of {count}")
    return tuple(parts)


def _groups_of(text: str) -> list[str]:
    """The groups of an IPv6 pattern, with the zeros that ``::`` stands for."""
    if text.count("::") > 1 or ":::" in text:
        raise _unreadable(text, "'::' may stand once")
    head, short, tail = text.partition("::")
    if not short:
        return text.split(":")
    before, after = (side.split(":") if side else [] for side in (head, tail))
    return before + ["0"] * max(1, 8 - len(before) - len(after)) + after


def _part(part: str, text: str, six: bool) -> Part:
    if part == "*":
        return ((0, 0xFFFF if six else 255),)
    if part.startswith("{") and part.endswith("}"):
        return tuple(_span(one.strip(), text, six) for one in part[1:-1].split(","))
    return (_span(part, text, six),)


def _span(part: str, text: str, six: bool) -> Span:
    low, minus, high = part.partition("-")
    first = _number(low.strip(), text, six)
    last = _number(high.strip(), text, six) if minus else first
    if first > last:
        raise _unreadable(text, f"the range {part!r:.40} ends before it begins")
    return first, last


def _number(part: str, text: str, six: bool) -> int:
    shape, limit = (_HEXADECIMAL, 0xFFFF) if six else (_DECIMAL, 255)
    if shape.fullmatch(part) is None or int(part, 16 if six else 10) > limit:
        raise _unreadable(text, f"{part!r:.40} is no part of an address")
    return int(part, 16 if six else 10)


def _unreadable(text: str, why: str) -> ConfigError:
    return ConfigError(
        f"the white list {text!r:.120} cannot be read: {why}; write it like 10.10.103.*, "
        f"192.168.0.1-20, 10.0.0.{{1,2}}, 10.0.0.1,10.0.0.2 or *"
    )
