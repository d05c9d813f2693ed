"""How commands print: tables for people, JSON for programs, errors on stderr with exit code 1."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import click

FORMATS = ("table", "json")


def rows(found: Sequence[Mapping[str, Any]], columns: Sequence[str], style: str) -> None:
    """Print rows; every row has every column."""
    if style == "json":
        click.echo(json.dumps([{column: plain(row.get(column)) for column in columns} for row in found], indent=1))
        return
    cells = [[text(row.get(column)) for column in columns] for row in found]
    widths = [max([len(column), *(len(line[i]) for line in cells)]) for i, column in enumerate(columns)]
    click.echo("  ".join(column.ljust(width) for column, width in zip(columns, widths, strict=True)).rstrip())
    for line in cells:
        click.echo("  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip())


def record(found: Mapping[str, Any], style: str) -> None:
    """Print one thing, a line each of its members."""
    if style == "json":
        click.echo(json.dumps(plain(found), indent=1))
        return
    width = max((len(str(key)) for key in found), default=0)
    for key, value in found.items():
        click.echo(f"{str(key).ljust(width)}  {text(value)}")


def plain(value: Any) -> Any:
    """What JSON can carry: bytes as text, keys as strings."""
    if isinstance(value, bytes):
        return value.decode("utf-8", "replace")
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [plain(item) for item in value]
    return value if isinstance(value, str | int | float | bool | None) else str(value)


def text(value: Any) -> str:
    """One cell."""
    if value is None:
        return "-"
    if isinstance(value, bytes):
        return value.decode("utf-8", "replace")
    if isinstance(value, Mapping):
        return ", ".join(f"{key}={text(item)}" for key, item in value.items()) or "-"
    if isinstance(value, list | tuple | set | frozenset):
        return ", ".join(text(item) for item in value) or "-"
    return str(value)
