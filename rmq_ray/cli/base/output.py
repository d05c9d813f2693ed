"""How commands print: tables for people, JSON for programs. Errors go to stderr; as JSON here, in
words elsewhere.

Invariant: with "json" every call prints one valid JSON text, whatever the values hold. A cell of a
table is one line of at most 100 characters.
"""

from __future__ import annotations

import base64
import json
import unicodedata
from collections.abc import Mapping, Sequence
from enum import Enum
from typing import Any

import click

FORMATS = ("table", "json")
CELL_CHARS_MAX = 100


def rows(found: Sequence[Mapping[str, Any]], columns: Sequence[str], style: str) -> None:
    """Print rows; a column that a row does not have is empty (JSON: null)."""
    if style == "json":
        click.echo(
            json.dumps(
                [{column: plain(row.get(column)) for column in columns} for row in found],
                indent=1,
                ensure_ascii=False,
            )
        )
        return
    cells = [[cell(row.get(column)) for column in columns] for row in found]
    widths = [
        max([_width(column), *(_width(line[i]) for line in cells)])
        for i, column in enumerate(columns)
    ]
    for line in [list(columns), *cells]:
        click.echo(
            "  ".join(
                value + " " * (width - _width(value))
                for value, width in zip(line, widths, strict=True)
            ).rstrip()
        )


def record(found: Mapping[str, Any], style: str) -> None:
    """Print one thing, a line each of its members."""
    if style == "json":
        click.echo(json.dumps(plain(found), indent=1, ensure_ascii=False))
        return
    width = max((_width(str(key)) for key in found), default=0)
    for key, value in found.items():
        click.echo(f"{str(key).ljust(width)}  {cell(value)}")


def error(kind: str, message: str) -> None:
    """Print what is wrong to stderr, an object on one line."""
    click.echo(json.dumps(plain({"type": kind, "message": message}), ensure_ascii=False), err=True)


def plain(value: Any) -> Any:
    """What JSON can carry: bytes as text, or as ``base64:...`` where they are not UTF-8; keys as
    strings; no NaN.

    >>> plain({"a": b"x", 1: b"\\xff", "b": {2}})
    {'a': 'x', '1': 'base64:/w==', 'b': [2]}
    """
    if isinstance(value, bytes | bytearray | memoryview):
        try:
            return bytes(value).decode()
        except UnicodeDecodeError:
            return "base64:" + base64.b64encode(value).decode()
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [plain(item) for item in value]
    if isinstance(value, Enum):
        return value.name
    if isinstance(value, float) and value - value != 0:
        return str(value)
    if isinstance(value, str):
        return value.encode("utf-8", "replace").decode()
    return value if isinstance(value, int | float | None) else str(value)


def text(value: Any) -> str:
    """A value as people read it."""
    if value is None:
        return "-"
    if isinstance(value, bytes | bytearray | memoryview):
        return bytes(value).decode("utf-8", "replace")
    if isinstance(value, Mapping):
        return ", ".join(f"{key}={text(item)}" for key, item in value.items()) or "-"
    if isinstance(value, list | tuple | set | frozenset):
        return ", ".join(text(item) for item in value) or "-"
    return value.name if isinstance(value, Enum) else str(value)


def cell(value: Any) -> str:
    """The same on one line: control characters escaped, long texts cut.

    >>> cell(b"two\\nlines"), len(cell("x" * 1000))
    ('two\\\\nlines', 100)
    """
    shown = "".join(
        c if c.isprintable() else c.encode("unicode_escape").decode()
        for c in text(value)[: CELL_CHARS_MAX + 1]
    )
    return shown if len(shown) <= CELL_CHARS_MAX else shown[: CELL_CHARS_MAX - 1] + "…"


def _width(shown: str) -> int:
    """Columns on a terminal: East Asian wide characters take two, combining ones none."""
    return sum(
        0 if unicodedata.combining(c) else 2 if unicodedata.east_asian_width(c) in "WF" else 1
        for c in shown
    )
