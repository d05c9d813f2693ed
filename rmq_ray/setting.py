"""What a group of settings is made of: each field with its default and all that is known of it.

    flush_interval_ms: int = within(500, 1, DAY_MS, "flushIntervalCommitLog", NEXT_START)
                                    │    └──┬───┘    └ Apache RocketMQ's name  └ when a change
                              default    limits                                  takes effect

Decides what a field's value may be, and refuses another one by the field's name. Whatever else
tells of settings (the pages, ``broker settings``, what may change while a broker runs) reads it
here. Does not decide what values go together: the groups do (``rmq_ray.config``).
"""

from __future__ import annotations

from collections.abc import Mapping
from numbers import Integral, Real
from typing import Any, ClassVar, Self, TypeVar, cast

from msgspec import StructMeta
from msgspec.structs import replace

from rmq_ray.errors import ConfigError
from rmq_ray.value import Value

T = TypeVar("T")
FIXED, AT_ONCE, NEXT_START = "", "at once", "next start"
"""When a change of a running broker's setting takes effect; fixed ones are not changed."""
_KINDS: dict[str, type] = {
    "int": Integral,
    "float": Real,
    "str": str,
    "bool": bool,
    "None": type(None),
}


class Known(Value, frozen=True):
    """Of a setting. ``low``, ``high``: limits of a number, both included. ``none``: a number beside
    them that means "no limit". ``choices``: the only values. ``apache``: its name in RocketMQ.
    """

    low: float | None = None
    high: float | None = None
    none: int | None = None
    choices: tuple[object, ...] = ()
    apache: str = ""
    changes: str = FIXED

    @property
    def limits(self) -> str:
        """For people; "" where any value of the kind is possible."""
        if self.choices:
            return f"one of {', '.join(map(repr, self.choices))}"
        if self.low is None:
            return ""
        text = f"{self.low} to {self.high}"
        return text if self.none is None else f"{self.none} or {text}"

    def allows(self, value: Any) -> bool:
        """Whether a value of the right kind may be set."""
        if self.choices:
            return value in self.choices
        if self.low is None or self.high is None or value is None:
            return True
        return bool(self.low <= value <= self.high or value == self.none)


def setting(
    default: T, apache: str = "", changes: str = FIXED, *, choices: tuple[object, ...] = ()
) -> T:
    """A field of which any value of its kind is possible, or one of ``choices``."""
    found = Known(apache=apache, changes=changes, choices=choices)
    return cast(T, _Field(default, found))


def within(
    default: T,
    low: float,
    high: float,
    apache: str = "",
    changes: str = FIXED,
    *,
    none: int | None = None,
) -> T:
    """A field with a number between two limits."""
    found = Known(low, high, none, apache=apache, changes=changes)
    return cast(T, _Field(default, found))


class _Field(Value, frozen=True):
    default: object
    known: Known


class _Groups(StructMeta):
    """Keeps what is known of the fields of a group beside their defaults."""

    def __new__(
        cls, name: str, bases: tuple[type, ...], namespace: dict[str, Any], **options: Any
    ) -> Any:
        told = {key: of for key, of in namespace.items() if isinstance(of, _Field)}
        namespace |= {key: of.default for key, of in told.items()}
        made: Any = super().__new__(cls, name, bases, namespace, **options)
        made.__known__ = {key: of.known for key, of in told.items()}
        return made


_NOTHING = Known()


def known(group: type[Group], name: str) -> Known:
    """What is known of a field of a group."""
    return group.__known__.get(name, _NOTHING)


def require(condition: bool, what: str, value: object) -> None:
    """``ConfigError`` unless the condition holds."""
    if not condition:
        raise ConfigError(f"{what}, not {value!r}", value)


class Group(Value, frozen=True, metaclass=_Groups):
    """A group of settings, which is built whole or not at all."""

    __known__: ClassVar[dict[str, Known]]
    """Of the fields that have limits, choices, or a name in RocketMQ."""

    @classmethod
    def from_mapping(cls, values: Mapping[str, Any]) -> Self:
        """The settings that a mapping names; ``ConfigError`` for an unknown one."""
        cls._require_known(values)
        return cls(**values)

    def but(self, **changes: Any) -> Self:
        """A copy with some fields changed; unknown names are errors."""
        self._require_known(changes)
        return replace(self, **changes)

    def __post_init__(self) -> None:
        """``ConfigError`` for a value of another kind than its field's, or beyond its limits."""
        for name in self.__struct_fields__:
            value, kinds = getattr(self, name), self.__annotations__[name].split(" | ")
            if not all(kind in _KINDS for kind in kinds):
                continue
            fits = any(isinstance(value, _KINDS[kind]) for kind in kinds) and (
                not isinstance(value, bool) or "bool" in kinds
            )
            require(fits, f"{name} must be {' or '.join(kinds)}", value)
            facts = known(type(self), name)
            require(facts.allows(value), f"{name} must be {facts.limits}", value)
        self._check_together()

    def _check_together(self) -> None:
        """``ConfigError`` for values that do not go together."""

    @classmethod
    def _require_known(cls, names: Mapping[str, Any]) -> None:
        possible = set(cls.__struct_fields__)
        for name in names:
            if name not in possible:
                raise ConfigError(
                    f"unknown setting {name!r} in {cls.__name__}; known are "
                    f"{', '.join(sorted(possible))}",
                    name,
                )
