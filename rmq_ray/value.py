"""What names, messages, answers and settings are made of: ``msgspec.Struct``, which costs a
fortieth of a dataclass to define, and less to make. A program that sends one message defines fifty.

Decides that ``dataclasses.replace``, ``fields`` and ``asdict`` take a value as they take a
dataclass: their description of it is made when they ask. Knows nothing of what values mean.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from types import SimpleNamespace
from typing import Any, ClassVar

from msgspec import NODEFAULT, Struct

_OWN_REPR = SimpleNamespace(repr=False)


class _DataclassFields:
    def __get__(self, _value: object, kind: type[Struct]) -> dict[str, Any]:
        return _fields_of(kind)


class Value(Struct, frozen=True):
    """Equal to another one of its class with equal fields; never changed."""

    __dataclass_fields__: ClassVar[dict[str, Any]] = _DataclassFields()  # type: ignore[assignment]
    __dataclass_params__: ClassVar[Any] = _OWN_REPR
    __secret__: ClassVar[tuple[str, ...]] = ()
    """Fields that are shown to nobody."""

    def __repr__(self) -> str:
        """As it would be made, without what is secret."""
        told = ", ".join(f"{name}={value!r}" for name, value in self.__rich_repr__())
        return f"{type(self).__name__}({told})"

    def __rich_repr__(self) -> Iterator[tuple[str, Any]]:  # type: ignore[override]
        """The same for those who print locals beside a traceback."""
        names = (name for name in self.__struct_fields__ if name not in self.__secret__)
        return ((name, getattr(self, name)) for name in names)


class Draft(Struct):
    """The same, but it may be changed by who has it."""

    __dataclass_fields__: ClassVar[dict[str, Any]] = _DataclassFields()  # type: ignore[assignment]
    __dataclass_params__: ClassVar[Any] = _OWN_REPR


@cache
def _fields_of(kind: type[Struct]) -> dict[str, Any]:
    from dataclasses import MISSING, field, make_dataclass  # asked for by few programs

    types: dict[str, str] = {}
    for base in reversed(kind.__mro__):
        types |= getattr(base, "__annotations__", {})
    names, defaults = kind.__struct_fields__, kind.__struct_defaults__
    known = dict(zip(names[len(names) - len(defaults) :], defaults, strict=True))
    secret: tuple[str, ...] = getattr(kind, "__secret__", ())
    described = []
    for name in names:
        default = known.get(name, NODEFAULT)
        factory = getattr(default, "factory", None)
        described.append(
            (
                name,
                types[name],
                field(
                    default=MISSING if default is NODEFAULT or factory else default,
                    default_factory=factory or MISSING,
                    repr=name not in secret,
                ),
            )
        )
    made: Any = make_dataclass(kind.__name__, described)
    return dict(made.__dataclass_fields__)
