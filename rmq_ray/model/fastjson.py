"""The JSON dialect of RocketMQ's config files and bodies (remoting 2, store-format 12).

Differs from standard JSON in keys: integer keys are unquoted, ``{0:335}``, and a key may be an object,
``{{"brokerName":"b","queueId":0,"topic":"T"}:5}``. Written compact, keys in alphabetical order, null members omitted.

Decides nothing. Invariants: ``loads(dumps(x)) == x`` for the values below; ``loads`` takes standard JSON as well; depth and
length are bounded; every fault is a ``ValueError`` with its position.

Values: dict, list, str, int, float, bool, None. Integer keys come back as int; object keys as a tuple of (name, value)
pairs sorted by name, and are written from such tuples.
"""

from __future__ import annotations

import json
import re
from json.decoder import scanstring
from json.encoder import encode_basestring
from typing import Any

DEPTH_MAX = 64
LENGTH_MAX = 64 << 20
_SPACE = re.compile(r"[ \t\n\r]*")
_NUMBER = re.compile(r"-?(?:0|[1-9]\d*)(\.\d+)?([eE][+-]?\d+)?")
_WORDS = {"true": True, "false": False, "null": None}
ObjectKey = tuple[tuple[str, Any], ...]


def dumps(value: Any) -> str:
    """Compact text; integer keys unquoted, object keys as objects, None members of objects omitted."""
    if isinstance(value, dict):
        members = [(key, item) for key, item in value.items() if item is not None]
        if all(isinstance(key, str) for key, _ in members):
            members.sort(key=lambda member: str(member[0]))
        elif all(isinstance(key, int) for key, _ in members):
            members.sort(key=lambda member: int(member[0]))
        return "{" + ",".join(f"{_key(key)}:{dumps(item)}" for key, item in members) + "}"
    if isinstance(value, list | tuple | set | frozenset):
        return "[" + ",".join(dumps(item) for item in value) + "]"
    if isinstance(value, str):
        return encode_basestring(value)
    if value is None or isinstance(value, bool | int | float):
        return json.dumps(value)
    raise TypeError(f"{type(value).__name__} has no JSON form")


def loads(text: str | bytes) -> Any:
    """Parse; ``ValueError`` with the position for anything that is not one value in this dialect."""
    if isinstance(text, bytes | bytearray | memoryview):
        text = str(text, "utf-8")
    if len(text) > LENGTH_MAX:
        raise ValueError(f"JSON text of {len(text)} characters exceeds {LENGTH_MAX}")
    try:
        value, at = _value(text, _skip(text, 0), 0)
    except IndexError:
        raise ValueError(f"JSON text ends too early, at {len(text)}") from None
    if _skip(text, at) != len(text):
        raise ValueError(f"unexpected text after the JSON value at {at}")
    return value


def _key(key: Any) -> str:
    if isinstance(key, str):
        return encode_basestring(key)
    if isinstance(key, bool):
        raise TypeError("a boolean is no JSON key")
    if isinstance(key, int):
        return str(key)
    if isinstance(key, tuple):
        return dumps(dict(key))
    raise TypeError(f"{type(key).__name__} is no JSON key")


def _skip(text: str, at: int) -> int:
    found = _SPACE.match(text, at)
    assert found is not None
    return found.end()


def _value(text: str, at: int, depth: int) -> tuple[Any, int]:
    if depth > DEPTH_MAX:
        raise ValueError(f"JSON nested deeper than {DEPTH_MAX} at {at}")
    first = text[at]
    if first == '"':
        return scanstring(text, at + 1, True)
    if first == "{":
        return _object(text, at + 1, depth)
    if first == "[":
        return _array(text, at + 1, depth)
    return _scalar(text, at)


def _scalar(text: str, at: int) -> tuple[Any, int]:
    for word, value in _WORDS.items():
        if text.startswith(word, at):
            return value, at + len(word)
    found = _NUMBER.match(text, at)
    if found is None:
        raise ValueError(f"unexpected {text[at]!r} at {at}")
    if found[1] or found[2]:
        return float(found[0]), found.end()
    if len(found[0]) > 40:
        raise ValueError(f"number of {len(found[0])} digits at {at}")
    return int(found[0]), found.end()


def _object(text: str, at: int, depth: int) -> tuple[dict[Any, Any], int]:
    found: dict[Any, Any] = {}
    at = _skip(text, at)
    if text[at] == "}":
        return found, at + 1
    while True:  # ends: every round consumes at least one character or raises
        key, at = _value(text, at, depth + 1)
        at = _expect(text, _skip(text, at), ":")
        value, at = _value(text, at, depth + 1)
        found[_as_key(key, at)] = value
        at = _skip(text, at)
        if text[at] == "}":
            return found, at + 1
        at = _expect(text, at, ",")


def _array(text: str, at: int, depth: int) -> tuple[list[Any], int]:
    found: list[Any] = []
    at = _skip(text, at)
    if text[at] == "]":
        return found, at + 1
    while True:  # ends: every round consumes at least one character or raises
        value, at = _value(text, at, depth + 1)
        found.append(value)
        at = _skip(text, at)
        if text[at] == "]":
            return found, at + 1
        at = _expect(text, at, ",")


def _expect(text: str, at: int, wanted: str) -> int:
    if text[at] != wanted:
        raise ValueError(f"expected {wanted!r} at {at}, found {text[at]!r}")
    return _skip(text, at + 1)


def _as_key(key: Any, at: int) -> Any:
    if isinstance(key, dict):
        try:
            pairs = tuple(sorted(key.items()))
            hash(pairs)
        except TypeError:
            raise ValueError(f"an object key before {at} holds values that cannot be a key") from None
        return pairs
    if isinstance(key, str) or (isinstance(key, int) and not isinstance(key, bool)):
        return key
    raise ValueError(f"a key before {at} must be a string, an integer or an object")
