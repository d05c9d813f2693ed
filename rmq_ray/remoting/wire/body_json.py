"""What every JSON body shares: parsing an object, writing one, and one error for everything that
has another shape.

Called by the modules of bodies. Invariant: a function marked ``shaped`` raises
``BodyInvalid`` and nothing else for any bytes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import wraps
from typing import Any, ParamSpec, TypeVar

from rmq_ray.errors import RemotingError
from rmq_ray.model import fastjson

P = ParamSpec("P")
T = TypeVar("T")


class BodyInvalid(RemotingError):
    """A body is no JSON, or not of the shape that its code has."""


def parse(body: Any) -> dict[Any, Any]:
    """The object in a body; an empty body is an empty object."""
    text = b"".join(body) if isinstance(body, tuple) else body
    if not len(text):
        return {}
    try:
        found = fastjson.loads(text)
    except ValueError as error:
        raise BodyInvalid(f"the body is no JSON: {error}") from None
    if not isinstance(found, dict):
        raise BodyInvalid(f"the body must be a JSON object, not {type(found).__name__}")
    return found


def write(value: Any) -> bytes:
    """A body in the dialect."""
    return fastjson.dumps(value).encode()


def shaped(decode: Callable[P, T]) -> Callable[P, T]:
    """Make every complaint about a value's kind a ``BodyInvalid``."""

    @wraps(decode)
    def checked(*args: P.args, **kwargs: P.kwargs) -> T:
        try:
            return decode(*args, **kwargs)
        except (ValueError, TypeError, KeyError, AttributeError, OverflowError) as error:
            raise BodyInvalid(
                f"the body has another shape than {decode.__name__.removeprefix('decode_')}: "
                f"{error!r}"
            ) from None

    return checked


def text_of(found: Mapping[str, Any], name: str) -> str:
    """A member that must be text."""
    value = found.get(name)
    if not isinstance(value, str) or not value:
        raise BodyInvalid(f"the member {name!r} is missing or no text: {value!r}", name)
    return value


def objects_of(found: Mapping[str, Any], name: str) -> list[dict[str, Any]]:
    """A member that must be a list of objects; missing = empty."""
    items = found.get(name) or []
    if not isinstance(items, list) or not all(isinstance(item, dict) for item in items):
        raise BodyInvalid(f"the member {name!r} must be a list of objects", name)
    return items


def enum_of(kind: Any, name: Any, default: Any) -> Any:
    """A member of an enum by its exact name; None = the default."""
    if name is None:
        return default
    try:
        return kind[name]
    except KeyError:
        raise BodyInvalid(
            f"{name!r} is no {kind.__name__}: {', '.join(kind.__members__)}", str(name)
        ) from None
