"""What every header class shares: from ext fields (text) to typed values and back (remoting 3).

A header class lists its fields; ``specification`` tells their wire names and parsers. Decides what
text is an integer or a boolean; the classes themselves are in ``headers``. Invariants: pure; a
field that is required and missing, or cannot be parsed, raises ``HeaderInvalid`` and nothing else;
unknown fields are ignored.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache
from typing import Any, Self

from msgspec import Struct

from rmq_ray.errors import RemotingError
from rmq_ray.model.ids import FrameId

Int32 = int
"""Marks a field that RocketMQ reads as a Java int; plain ``int`` fields are longs."""

Fields = Mapping[str, str] | None


class HeaderInvalid(RemotingError):
    """A required ext field is missing or has no sense (args[1] = its name)."""


def _boolean(text: str) -> bool:
    return text.lower() == "true"  # as Java's Boolean.parseBoolean


def _long(text: str) -> int:
    return _bounded(text, 1 << 63)


def _int(text: str) -> int:
    return _bounded(text, 1 << 31)


def _bounded(text: str, limit: int) -> int:
    if len(text) < 10 and text.isdecimal():
        return int(text)
    value = int(text) if len(text) <= 20 and "_" not in text else limit
    if not -limit <= value < limit:
        raise ValueError(f"{text[:40]!r} is no integer below {limit}")
    return value


def _frame_id(text: str) -> FrameId:
    if len(text) != 48:
        raise ValueError("a frame id has 48 hex digits")
    return FrameId(bytes.fromhex(text[:32]), int(text[32:], 16))


_PARSERS: dict[str, Callable[[str], Any]] = {
    "int": _long,
    "int | None": _long,
    "Int32": _int,
    "Int32 | None": _int,
    "str": str,
    "str | None": str,
    "bool": _boolean,
    "bool | None": _boolean,
    "FrameId | None": _frame_id,
}


def wire_names(**names: str) -> Callable[[str], str]:
    """What renames the fields of a header class: ``names`` gives the wire name where it is not the
    field's own in camel case.
    """
    return lambda field: names.get(field) or _camel(field)


def _camel(name: str) -> str:
    first, *rest = name.split("_")
    return first + "".join(part.capitalize() for part in rest)


class Header(Struct, frozen=True, rename=_camel):
    """What all headers share."""

    @classmethod
    def from_fields(cls, found: Fields) -> Self:
        """Parse; unknown fields are ignored."""
        source: Mapping[str, str] = found or {}
        values: dict[str, Any] = {}
        for name, wire, parse, required, default in specification(cls):
            text = source.get(wire)
            if text is None:
                if required:
                    raise HeaderInvalid(f"the field {wire!r} is missing in a {cls.__name__}", wire)
                values[name] = default
                continue
            try:
                values[name] = parse(text)
            except ValueError:
                raise HeaderInvalid(
                    f"the field {wire!r} of a {cls.__name__} cannot be {text[:100]!r}", wire
                ) from None
        return cls(**values)

    def to_fields(self) -> dict[str, str]:
        """Fields in alphabetical order, None omitted, booleans ``true`` and ``false``."""
        found: dict[str, str] = {}
        for name, wire, *_ in specification(type(self)):
            value = getattr(self, name)
            if value is not None:
                found[wire] = _text(value)
        return dict(sorted(found.items()))


@cache
def specification(
    kind: type[Header],
) -> tuple[tuple[str, str, Callable[[str], Any], bool, Any], ...]:
    """Of each field: its name, its wire name, its parser, whether it is required, its default."""
    names = kind.__struct_fields__
    defaults = dict(zip(reversed(names), reversed(kind.__struct_defaults__), strict=False))
    return tuple(
        (name, wire, _PARSERS[kind.__annotations__[name]], name not in defaults, defaults.get(name))
        for name, wire in zip(names, kind.__struct_encode_fields__, strict=True)
    )


def _text(value: Any) -> str:
    if type(value) is bool:
        return "true" if value else "false"
    if type(value) is FrameId:
        return f"{value.producer_id.hex()}{value.sequence:016x}"
    return str(value)
