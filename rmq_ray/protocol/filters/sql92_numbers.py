"""SQL92 filters: how property values become numbers, exactly as Java reads them (protocol-behaviour
21.2).

Decides: which texts are an Integer, a Long, a Double, and how Doubles are ordered. Property values
come as UTF-8 bytes, cut out of the property string. A text that is no such number makes the whole
message one that does not match: ``NotComparable``. Called by: ``sql92_compiler``. Pure.
"""

from __future__ import annotations

import math
import re
from enum import Enum

INT_MIN, INT_MAX = -(1 << 31), (1 << 31) - 1
LONG_MIN, LONG_MAX = -(1 << 63), (1 << 63) - 1
_DIGITS = re.compile(r"([+-]?)(0*+)(\d{0,19}+)")
_DOUBLE = re.compile(
    r"[\x00-\x20]*+(?P<sign>[+-]?)(?:(?P<nan>NaN)|(?P<infinity>Infinity)|"
    r"(?P<decimal>(?:[0-9]++(?:\.[0-9]*+)?|\.[0-9]++)(?:[eE][+-]?[0-9]++)?)[fFdD]?"
    r"|(?P<hex>0[xX](?:[0-9a-fA-F]++\.?|"
    r"[0-9a-fA-F]*+\.[0-9a-fA-F]++)[pP][+-]?[0-9]++)[fFdD]?)[\x00-\x20]*+"
)
"""Nothing in it is tried twice: a value of 32 KB costs time in proportion."""


class NotComparable(ValueError):
    """Evaluation fails: the message does not match, whatever the rest of the expression says."""


class Number(Enum):
    """Java's type of a number in an expression; it rules how texts are converted."""

    INT = "Integer"
    LONG = "Long"
    DOUBLE = "Double"


def to_int(value: bytes) -> int:
    """``Integer.valueOf``: an optional sign and digits, 32 bits.

    >>> to_int(b"+5"), to_int(b"-2147483648")
    (5, -2147483648)
    """
    if len(value) < 10 and value.isdigit():
        return int(value)
    found = _whole(value)
    if not INT_MIN <= found <= INT_MAX:
        raise NotComparable(f"{found} is no Integer")
    return found


def to_long(value: bytes) -> int:
    """``Long.valueOf``: the same with 64 bits."""
    if len(value) < 19 and value.isdigit():
        return int(value)
    found = _whole(value)
    if not LONG_MIN <= found <= LONG_MAX:
        raise NotComparable(f"{found} is no Long")
    return found


def to_double(value: bytes) -> float:
    """``Double.valueOf``: blanks around, exponents, a suffix d or f, hexadecimal, NaN and Infinity
    are allowed.

    >>> to_double(b" 5e-1f "), to_double(b"0x1.8p1")
    (0.5, 3.0)
    """
    if len(value) < 15 and value.isdigit():
        return float(value)
    match = _DOUBLE.fullmatch(value.decode("utf-8", "replace"))
    if match is None:
        raise NotComparable(f"{value[:40]!r} is no Double")
    sign = -1.0 if match["sign"] == "-" else 1.0
    if match["nan"]:
        return math.nan
    if match["infinity"]:
        return sign * math.inf
    if match["decimal"]:
        return sign * float(match["decimal"])
    try:
        return sign * float.fromhex(match["hex"])
    except OverflowError:
        return sign * math.inf


def to_double_beside_constant(value: bytes) -> float:
    """The same, NaN as infinity: Java orders NaN behind everything, which for comparisons with a
    finite constant is the same.
    """
    found = to_double(value)
    return math.inf if found != found else found  # noqa: PLR0124 - only NaN differs from itself


def order_doubles(left: float, right: float) -> int:
    """``Double.compareTo``: -1, 0 or 1; NaN is equal to itself and above everything, -0.0 lies
    below 0.0.

    >>> order_doubles(math.nan, math.inf), order_doubles(-0.0, 0.0)
    (1, -1)
    """
    if left < right:
        return -1
    if left > right:
        return 1
    left_key = (math.isnan(left), math.copysign(1.0, left) if left == 0 else 0.0)
    right_key = (math.isnan(right), math.copysign(1.0, right) if right == 0 else 0.0)
    return (left_key > right_key) - (left_key < right_key)


def is_true(value: bytes) -> bool:
    """``Boolean.valueOf``: "true" in any case."""
    return value.lower() == b"true"


def _whole(value: bytes) -> int:
    match = _DIGITS.fullmatch(value.decode("utf-8", "replace"))
    if (
        match is None or not (match[2] or match[3]) or max(match[3], default="") > "\uffff"
    ):  # Java's digits are 16-bit characters
        raise NotComparable(f"{value[:40]!r} is no whole number")
    found = int(match[3] or "0")
    return -found if match[1] == "-" else found
