"""Bodies of messages as people read them: JSON, msgpack, text, or bytes in hex.

Decides what a body seems to be, and how much of it is shown: a cut is said. Pure.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

import msgpack

AUTO, TEXT, JSON, MSGPACK, HEX = "auto", "text", "json", "msgpack", "hex"
FORMS = (AUTO, JSON, MSGPACK, TEXT, HEX)
CHARS_MAX = 100_000
HEX_BYTES_MAX = 4_096
PARSED_BYTES_MAX = 1 << 20
"""Longer bodies are shown as text or hex."""
LINE_BYTES = 16


@dataclass(frozen=True, slots=True)
class Shown:
    """``form``: what it was taken for; ``cut``: not all of it is there."""

    form: str
    text: str
    cut: bool = False


def shown(body: bytes | None, form: str = AUTO) -> Shown:
    """A form that a body has not is shown as the next that it has.

    >>> shown(b'{"a":1}').text
    '{\\n  "a": 1\\n}'
    >>> shown(b"a b"), shown(b"\\x81\\xa1a\\x01").form, shown(b"\\xff\\x00").form
    (Shown(form='text', text='a b', cut=False), 'msgpack', 'hex')
    """
    if body is None:
        return Shown(HEX, "the body cannot be unpacked")
    small = len(body) <= PARSED_BYTES_MAX
    told: str | None
    if small and form in (AUTO, JSON) and (told := _json(body)) is not None:
        return _cut(JSON, told)
    if small and form == MSGPACK and (told := _msgpack(body)) is not None:
        return _cut(MSGPACK, told)
    if form in (AUTO, TEXT) and (told := _text(body, strict=form == AUTO)) is not None:
        return _cut(TEXT, told)
    if small and form == AUTO and (told := _msgpack(body, plain=False)) is not None:
        return _cut(MSGPACK, told)
    return Shown(HEX, hex_dump(body[:HEX_BYTES_MAX]), len(body) > HEX_BYTES_MAX)


def preview(body: bytes | None, chars: int = 120) -> str:
    """The beginning of it, on one line.

    >>> preview(b"a\\nb"), preview(b"\\xff\\x01")
    ('a b', 'ff 01')
    """
    if body is None:
        return "the body cannot be unpacked"
    head = body[: 4 * chars]
    text = _text(head, strict=True, cut=len(head) < len(body))
    if text is None and len(body) <= PARSED_BYTES_MAX:
        found = _msgpack(body, plain=False)
        text = None if found is None else " ".join(found.split())
    if text is None:
        text = body[: chars // 3].hex(" ")
    text = " ".join(text.split())
    return text[: chars - 1] + "…" if len(text) > chars else text


def hex_dump(data: bytes) -> str:
    """
    >>> hex_dump(b"ab")
    '00000000  61 62                                             ab'
    """
    lines = []
    for at in range(0, len(data), LINE_BYTES):
        part = data[at : at + LINE_BYTES]
        signs = "".join(chr(one) if 32 <= one < 127 else "." for one in part)
        lines.append(f"{at:08x}  {part.hex(' '):<48}  {signs}")
    return "\n".join(lines)


def _cut(form: str, text: str) -> Shown:
    return Shown(form, text[:CHARS_MAX], len(text) > CHARS_MAX)


def _json(body: bytes) -> str | None:
    if not body.lstrip()[:1] or body.lstrip()[:1] not in b'{["':
        return None
    try:
        return json.dumps(json.loads(body), indent=2, ensure_ascii=False)
    except (ValueError, RecursionError):
        return None


def _text(body: bytes, *, strict: bool, cut: bool = False) -> str | None:
    """None for what is no text, unless it shall be. ``cut``: its last character may be a part."""
    if not strict:
        return body.decode("utf-8", "replace")
    try:
        text = body.decode()
    except UnicodeDecodeError as error:
        if not cut or error.start < len(body) - 3:
            return None
        text = body[: error.start].decode()
    return text if all(sign.isprintable() or sign in "\r\n\t" for sign in text) else None


def _msgpack(body: bytes, *, plain: bool = True) -> str | None:
    """``plain``: a number or a text alone counts, too: any byte below 128 is one."""
    try:
        found: Any = msgpack.unpackb(body, strict_map_key=False, timestamp=3)
        if not plain and not isinstance(found, dict | list):
            return None
        return json.dumps(_told(found), indent=2, ensure_ascii=False)
    except (ValueError, TypeError, RecursionError, msgpack.UnpackException):
        return None


def _told(value: Any) -> Any:
    """As JSON can carry it."""
    if isinstance(value, bytes):
        return f"0x{value.hex()}"
    if isinstance(value, dict):
        return {str(_told(name)): _told(item) for name, item in value.items()}
    if isinstance(value, list):
        return [_told(item) for item in value]
    plain = value is None or isinstance(value, str | int | float)
    return value if plain else str(value)
