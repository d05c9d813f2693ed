"""Reads and writes JSON as fastjson 1.2.69 does, which RocketMQ uses on the wire and in its
configuration files (remoting 2).

    {0:"127.0.0.1:10911"}                                       integer keys stand without quotes
    {{"brokerName":"b","queueId":0,"topic":"T"}:5}              a key may be an object
    {"a":1}   not   {"a":1,"b":null}                            members without a value are left out

In Python an integer key is an ``int``, an object key the sorted ``tuple`` of its ``(name, value)``
pairs. Decides the dialect only; what the members mean is decided by ``remoting.wire.bodies`` and
``codec.config_files``. Invariants: ``loads`` never evaluates, never recurses deeper than
``DEPTH_MAX``, and raises ``ValueError`` for everything it does not accept; ``loads(dumps(x)) == x``
for values without ``None`` members.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from math import isfinite
from operator import itemgetter
from typing import Any

DEPTH_MAX = 64
"""Nested objects and lists; RocketMQ's deepest body has 8."""
TEXT_MAX = 64 << 20
"""Characters; a frame has 16 MiB, a topic file of a million topics 200 bytes each would be
refused.
"""

_INTEGER_DIGITS_MAX = 40
_PLAIN_KEYS = json.JSONDecoder()
_SPECIAL = re.compile('["\\\\\x00-\x1f\x7f-\x9f\u2028\u2029]')
_SHORT = {'"': '\\"', "\\": "\\\\", "\b": "\\b", "\t": "\\t", "\n": "\\n", "\f": "\\f", "\r": "\\r"}
_TOKEN = re.compile(
    r"[ "
    r'\t\r\n]*(?:(?P<mark>[{}\[\],:])|"(?P<text>[^"\\\x00-\x1f]*)"|'
    r'(?P<escaped>"(?:[^"\\\x00-\x1f]|\\(?:["\\/bfnrt]|u[0-9a-fA-F]{4}))*")'
    r"|(?P<number>-?(?:0|[1-9][0-9]*)(?P<fraction>\.[0-9]+)?(?P<exponent>[eE][+-]?[0-9]+)?)|"
    r"(?P<word>true|false|null))"
)
_BLANKS = " \t\r\n"
_WORDS = {"true": True, "false": False, "null": None}


def dumps(value: Any, pretty: bool = False) -> str:
    """Members sorted by name, integer keys bare, ``None`` members left out, no blanks; non-ASCII
    text as it is.

    ``pretty`` writes tabs and line breaks as RocketMQ's configuration files have them.
    ``ValueError`` for values JSON has no form for and for more than ``DEPTH_MAX`` levels.

    >>> dumps({"b": {1: 2}, "a": None})
    '{"b":{1:2}}'
    """
    parts: list[str] = []
    _write(value, parts, 0, pretty)
    return "".join(parts)


def loads(text: str | bytes | bytearray | memoryview) -> Any:
    """The value of one JSON text (bytes are UTF-8); ``ValueError`` when it is not one in this
    dialect.

    >>> loads('{"t":{0:5},"m":{{"q":1,"a":"x"}:7}}')
    {'t': {0: 5}, 'm': {(('a', 'x'), ('q', 1)): 7}}
    """
    if not isinstance(text, str):
        text = str(text, "utf-8")
    if len(text) > TEXT_MAX:
        raise ValueError(f"JSON text of {len(text)} characters; at most {TEXT_MAX} are read")
    try:  # the C reader knows all but bare and object keys, and is 30 times as fast
        value = json.loads(text, parse_constant=_refuse, parse_float=_finite)
    except RecursionError:
        raise ValueError(f"JSON nested deeper than {DEPTH_MAX} levels") from None
    except ValueError:
        return _JsonReader(text).whole()
    if text.count("{") + text.count("[") > DEPTH_MAX:
        _check_depth(value)
    return value


def quote(text: str) -> str:
    """A JSON string with fastjson's escapes (upper case digits, also for U+007F to U+009F, U+2028
    and U+2029).
    """
    return f'"{_SPECIAL.sub(_escape, text)}"'


def _escape(found: re.Match[str]) -> str:
    char = found[0]
    return _SHORT.get(char) or f"\\u{ord(char):04X}"


def _refuse(word: str) -> Any:
    raise ValueError(f"{word} is no JSON value")


def _finite(digits: str) -> float:
    found = float(digits)
    return found if isfinite(found) else _refuse(digits)


def _write(value: Any, parts: list[str], depth: int, pretty: bool) -> None:
    if depth > DEPTH_MAX:
        raise ValueError(f"value nested deeper than {DEPTH_MAX} levels")
    if isinstance(value, str):
        parts.append(quote(value))
    elif value is None:
        parts.append("null")
    elif isinstance(value, bool):
        parts.append("true" if value else "false")
    elif isinstance(value, int):
        parts.append(str(int(value)))
    elif isinstance(value, float):
        parts.append(repr(value) if isfinite(value) else _refuse(repr(value)))
    elif isinstance(value, list | tuple | set | frozenset):
        _write_list(
            sorted(value) if isinstance(value, set | frozenset) else value, parts, depth, pretty
        )
    elif isinstance(value, dict | Mapping):  # to ask an abstract class takes ten times as long
        _write_map(value, parts, depth, pretty)
    else:
        raise ValueError(f"{type(value).__name__} has no form in JSON")


def _write_map(value: Mapping[Any, Any], parts: list[str], depth: int, pretty: bool) -> None:
    members = [(key, member) for key, member in value.items() if member is not None]
    named = all(isinstance(key, str) for key, _ in members)
    members.sort(key=itemgetter(0) if named else lambda item: _order(item[0]))
    parts.append("{")
    for index, (key, member) in enumerate(members):
        if index:
            parts.append(",")
        if isinstance(key, str):
            if pretty:  # fastjson breaks lines before named members only: {0:335,1:335 newline }
                parts.append("\n" + "\t" * (depth + 1))
            parts.append(quote(key))
        else:
            _write_key(key, parts, depth, pretty)
        parts.append(":")
        _write(member, parts, depth + 1, pretty)
    if pretty and members:
        parts.append("\n" + "\t" * depth)
    parts.append("}")


def _order(key: Any) -> tuple[Any, ...]:
    """Keys of one kind by value; kinds, which no table of RocketMQ mixes, one after the other."""
    if isinstance(key, str):
        return "text", key
    if isinstance(key, int) and not isinstance(key, bool):
        return "integer", key
    if isinstance(key, tuple) and all(
        isinstance(pair, tuple) and len(pair) == 2 and isinstance(pair[0], str) for pair in key
    ):
        return "object", *[
            (name, type(value).__name__, value) for name, value in key if value is not None
        ]
    raise ValueError(
        f"{key!r} cannot be a key: text, an integer, or a tuple of (name, value) pairs can"
    )


def _write_key(
    key: int | tuple[tuple[str, Any], ...], parts: list[str], depth: int, pretty: bool
) -> None:
    if isinstance(key, int):
        parts.append(str(int(key)))
    else:
        _write_map(dict(key), parts, depth + 1, pretty)


def _write_list(values: Any, parts: list[str], depth: int, pretty: bool) -> None:
    parts.append("[")
    for index, value in enumerate(values):
        if index:
            parts.append(",")
        if pretty:
            parts.append("\n" + "\t" * (depth + 1))
        _write(value, parts, depth + 1, pretty)
    if pretty and values:
        parts.append("\n" + "\t" * depth)
    parts.append("]")


def _check_depth(value: Any) -> None:
    level: list[Any] = [value]
    for _ in range(DEPTH_MAX + 1):
        level = [
            inner
            for outer in level
            if isinstance(outer, dict | list)
            for inner in (outer.values() if isinstance(outer, dict) else outer)
        ]
        if not level:
            return
    raise ValueError(f"JSON nested deeper than {DEPTH_MAX} levels")


class _JsonReader:
    """Recursive descent over tokens; ``at`` is the position after the last token read."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.at = 0

    def whole(self) -> Any:
        value = self.value(self.token(), 0)
        if self.text[self.at :].strip(_BLANKS):
            raise self.bad("something follows the value")
        return value

    def token(self) -> re.Match[str]:
        found = _TOKEN.match(self.text, self.at)
        if found is None:
            raise self.bad("no JSON")
        self.at = found.end()
        return found

    def value(self, token: re.Match[str], depth: int) -> Any:
        if depth > DEPTH_MAX:
            raise self.bad(f"nested deeper than {DEPTH_MAX} levels")
        kind, what = token.lastgroup, token[0].strip(_BLANKS)
        if token["text"] is not None:
            return token["text"]
        if kind == "escaped":
            return _PLAIN_KEYS.decode(token["escaped"])
        if kind == "word":
            return _WORDS[token["word"]]
        if token["number"] is not None:
            return self.number(token)
        if what == "{":
            return self.members(depth)
        if what == "[":
            return self.elements(depth)
        raise self.bad(f"{what!r} where a value belongs")

    def number(self, token: re.Match[str]) -> int | float:
        digits = token["number"]
        if token["fraction"] or token["exponent"]:
            return _finite(digits)
        if len(digits) > _INTEGER_DIGITS_MAX:
            raise self.bad(f"an integer of {len(digits)} digits")
        return int(digits)

    def members(self, depth: int) -> dict[Any, Any]:
        found: dict[Any, Any] = {}
        token = self.token()
        if token["mark"] == "}":
            return found
        while True:
            key = self.key(token, depth)
            if self.token()["mark"] != ":":
                raise self.bad("no ':' after a key")
            found[key] = self.value(self.token(), depth + 1)
            if self.ends("}"):
                return found
            token = self.token()

    def elements(self, depth: int) -> list[Any]:
        found: list[Any] = []
        token = self.token()
        if token["mark"] == "]":
            return found
        while True:
            found.append(self.value(token, depth + 1))
            if self.ends("]"):
                return found
            token = self.token()

    def ends(self, mark: str) -> bool:
        found = self.token()["mark"]
        if found not in (mark, ","):
            raise self.bad(f"neither ',' nor {mark!r}")
        return found == mark

    def key(self, token: re.Match[str], depth: int) -> Any:
        value = self.value(token, depth + 1)
        if isinstance(value, str) or (isinstance(value, int) and not isinstance(value, bool)):
            return value
        if (
            isinstance(value, dict)
            and not any(isinstance(part, dict | list) for part in value.values())
            and all(isinstance(name, str) for name in value)
        ):
            return tuple(sorted(value.items()))
        raise self.bad("a key that is neither text, an integer nor a flat object")

    def bad(self, what: str) -> ValueError:
        return ValueError(f"not fastjson: {what} at character {self.at}")
