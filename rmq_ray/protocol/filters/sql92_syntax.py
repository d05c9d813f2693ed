"""SQL92 filters: the parts of a parsed expression.

Decides nothing; ``sql92_parser`` makes them, ``sql92_compiler`` turns them into something that
runs. Frozen values; ``depth`` is the longest way down to a leaf, ``at`` the position of the part's
first character.
"""

from __future__ import annotations

from dataclasses import dataclass

from rmq_ray.protocol.filters.sql92_numbers import Number


@dataclass(frozen=True, slots=True)
class Property:
    """A message's property, a text or absent."""

    name: str
    at: int
    depth: int = 1


@dataclass(frozen=True, slots=True)
class Text:
    """A text in quotes."""

    value: str
    at: int
    depth: int = 1


@dataclass(frozen=True, slots=True)
class Constant:
    """A number. ``literal``: not the result of a minus sign, which RocketMQ does not count as a
    constant.
    """

    number: Number
    value: int | float
    at: int
    literal: bool = True
    depth: int = 1


@dataclass(frozen=True, slots=True)
class Truth:
    """TRUE, FALSE or NULL (None)."""

    value: bool | None
    at: int
    depth: int = 1


@dataclass(frozen=True, slots=True)
class Negative:
    """A minus sign before something that is no number: unknown, once the inner part was
    evaluated.
    """

    inner: Node
    at: int
    depth: int


@dataclass(frozen=True, slots=True)
class Cast:
    """A property where a condition is wanted: false when it is there, unknown when it is absent."""

    inner: Property
    at: int
    depth: int


@dataclass(frozen=True, slots=True)
class Not:
    """NOT, three-valued."""

    inner: Condition
    at: int
    depth: int


@dataclass(frozen=True, slots=True)
class And:
    """All of two or more, from left to right."""

    parts: tuple[Condition, ...]
    at: int
    depth: int


@dataclass(frozen=True, slots=True)
class Or:
    """Any of two or more, from left to right."""

    parts: tuple[Condition, ...]
    at: int
    depth: int


@dataclass(frozen=True, slots=True)
class Comparison:
    """``operator``: ``=``, ``<``, ``<=``, ``>`` or ``>=``; other spellings are made of these and
    ``Not``.
    """

    operator: str
    left: Node
    right: Node
    at: int
    depth: int


@dataclass(frozen=True, slots=True)
class Member:
    """``left IN (values)``."""

    left: Property
    values: frozenset[str]
    negated: bool
    at: int
    depth: int = 2


Condition = Truth | Cast | Not | And | Or | Comparison | Member
Node = Property | Text | Constant | Negative | Condition
CONDITIONS = (Truth, Cast, Not, And, Or, Comparison, Member)
