"""SQL92 filters, third step: a tree becomes a function over the property string of a message
(protocol-behaviour 21.2).

    property string (UTF-8)      name 0x01 value 0x02 name 0x01 value ...

Decides: what each part yields for a message: True, False or None (unknown), in RocketMQ's order of
evaluation: from left to right, AND and OR stop as soon as they are sure. A value that cannot be
converted raises ``NotComparable``: then the message does not match. Does not decide caching
(``filter_sql92``). Pure. Properties are looked up in the bytes: no dictionary is built.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from enum import Enum
from typing import Any

from rmq_ray.protocol.filters.sql92_numbers import (
    NotComparable,
    Number,
    is_true,
    order_doubles,
    to_double,
    to_double_beside_constant,
    to_int,
    to_long,
)
from rmq_ray.protocol.filters.sql92_syntax import (
    And,
    Cast,
    Comparison,
    Condition,
    Constant,
    Member,
    Negative,
    Node,
    Not,
    Or,
    Property,
    Text,
    Truth,
)

Reader = Callable[[bytes], bytes | None]
Evaluator = Callable[[bytes], bool | None]
Compare = Callable[[Any, Any], bool]

_OPERATORS: dict[str, Compare] = {
    "=": operator.eq,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}
_MIRRORED = {"=": "=", "<": ">", "<=": ">=", ">": "<", ">=": "<="}
_CONVERTERS: dict[Number, Callable[[bytes], Any]] = {
    Number.INT: to_int,
    Number.LONG: to_long,
    Number.DOUBLE: to_double_beside_constant,
}


class _Type(Enum):
    """What a part yields; known before any message is seen."""

    TEXT = "text"
    NUMBER = "number"
    TRUTH = "truth"
    NOTHING = "nothing"  # always unknown


def compile_condition(node: Condition) -> Evaluator:
    """The function of a whole condition: property string -> True, False or None. It may raise
    ``NotComparable``.
    """
    match node:
        case Truth(value=value):
            return lambda _raw: value
        case Cast(inner=inner):
            read = property_reader(inner.name)
            return lambda raw: None if read(raw) is None else False
        case Not(inner=inner):
            return _not(compile_condition(inner))
        case And(parts=parts):
            return _all([compile_condition(part) for part in parts])
        case Or(parts=parts):
            return _any([compile_condition(part) for part in parts])
        case Member(left=left, values=values, negated=negated):
            return _member(
                property_reader(left.name),
                frozenset(value.encode("utf-8", "surrogatepass") for value in values),
                negated,
            )
        case Comparison():
            return _comparison(node)


def property_reader(name: str) -> Reader:
    """Cuts the value of one property out of a property string; None when it is absent. The last one
    counts where a name is repeated.

    >>> property_reader("b")(b"a\\x01xb\\x02b\\x01y\\x02c\\x01z")
    b'y'
    """
    first = name.encode() + b"\x01"
    later = b"\x02" + first
    first_length, later_length = len(first), len(later)

    def read(raw: bytes) -> bytes | None:
        at = raw.rfind(later)
        if at >= 0:
            at += later_length
        elif raw[:first_length] == first:
            at = first_length
        else:
            return None
        end = raw.find(2, at)
        return (raw[at:end] if end >= 0 else raw[at:]) or None

    return read


# --- three-valued logic ---------------------------------------------------------------------------


def _not(inner: Evaluator) -> Evaluator:
    def evaluate(raw: bytes) -> bool | None:
        found = inner(raw)
        return None if found is None else not found

    return evaluate


def _all(parts: list[Evaluator]) -> Evaluator:
    def evaluate(raw: bytes) -> bool | None:
        verdict: bool | None = True
        for part in parts:
            found = part(raw)
            if found is False:
                return False
            if found is None:
                verdict = None
        return verdict

    return evaluate


def _any(parts: list[Evaluator]) -> Evaluator:
    def evaluate(raw: bytes) -> bool | None:
        verdict: bool | None = False
        for part in parts:
            found = part(raw)
            if found:
                return True
            if found is None:
                verdict = None
        return verdict

    return evaluate


def _member(read: Reader, values: frozenset[bytes], negated: bool) -> Evaluator:
    def evaluate(raw: bytes) -> bool | None:
        value = read(raw)
        return None if value is None else (value in values) is not negated

    return evaluate


# --- comparisons ----------------------------------------------------------------------------------


def _comparison(node: Comparison) -> Evaluator:
    """The frequent forms by themselves, all others by ``_general``."""
    left, right = node.left, node.right
    if isinstance(left, Property) and isinstance(right, Constant):
        return _property_number(left, _OPERATORS[node.operator], right, None)
    if isinstance(left, Constant) and isinstance(right, Property):
        return _property_number(
            right,
            _OPERATORS[_MIRRORED[node.operator]],
            left,
            False if node.operator == "=" else None,
        )
    if isinstance(left, Property) and isinstance(right, Text):
        return _property_text(left, right, None)
    if isinstance(left, Text) and isinstance(right, Property):
        return _property_text(right, left, False)
    if isinstance(right, Truth) and right.value is None:
        value = _value(left)
        return lambda raw: value(raw) is None
    return _general(node)


def _property_number(
    name: Property, compare: Compare, constant: Constant, absent: bool | None
) -> Evaluator:
    read, convert, wanted = property_reader(name.name), _CONVERTERS[constant.number], constant.value

    def evaluate(raw: bytes) -> bool | None:
        value = read(raw)
        return absent if value is None else compare(convert(value), wanted)

    return evaluate


def _property_text(name: Property, text: Text, absent: bool | None) -> Evaluator:
    read, wanted = property_reader(name.name), text.value.encode("utf-8", "surrogatepass")

    def evaluate(raw: bytes) -> bool | None:
        value = read(raw)
        return absent if value is None else value == wanted

    return evaluate


def _general(node: Comparison) -> Evaluator:
    left, right = _value(node.left), _value(node.right)
    compare = _compare_of(node)
    is_equality = node.operator == "="

    def evaluate(raw: bytes) -> bool | None:
        lv = left(raw)
        if lv is None and not is_equality:
            return None
        rv = right(raw)
        if lv is None or rv is None:
            return (
                (rv is None)
                if is_equality and lv is None and rv is None
                else (False if is_equality and lv is not None else None)
            )
        return compare(lv, rv)

    return evaluate


def _value(node: Node) -> Callable[[bytes], Any]:
    match node:
        case Property(name=name):
            return property_reader(name)
        case Text(value=text):
            encoded = text.encode("utf-8", "surrogatepass")
            return lambda _raw: encoded
        case Constant(value=value):
            return lambda _raw: value
        case Negative(inner=inner):
            inside = _value(inner)
            return lambda raw: None if inside(raw) is None else None
        case _:
            return compile_condition(node)


def _type_of(node: Node) -> _Type:
    if isinstance(node, Property | Text):
        return _Type.TEXT
    if isinstance(node, Constant):
        return _Type.NUMBER
    return _Type.NOTHING if isinstance(node, Negative) else _Type.TRUTH


def _compare_of(node: Comparison) -> Compare:
    """How two values that are both there are compared, by their types."""
    left, right = node.left, node.right
    types = (_type_of(left), _type_of(right))
    wanted = _OPERATORS[node.operator]
    if types == (_Type.TEXT, _Type.TEXT):
        return (
            operator.eq
            if node.operator == "="
            else lambda lv, rv: wanted(order_doubles(to_double(lv), to_double(rv)), 0)
        )
    if types == (_Type.TRUTH, _Type.TRUTH):
        return operator.is_
    if types == (_Type.TEXT, _Type.TRUTH):
        return lambda lv, rv: is_true(lv) is rv
    if types == (_Type.TRUTH, _Type.TEXT):
        return _refuse_truth_before_text
    if isinstance(left, Constant) and isinstance(right, Constant):
        as_double = Number.DOUBLE in (left.number, right.number)
        return (lambda lv, rv: wanted(float(lv), float(rv))) if as_double else wanted
    if isinstance(left, Constant) and types[1] is _Type.TEXT:
        convert_right = _CONVERTERS[left.number]
        return lambda lv, rv: wanted(lv, convert_right(rv))
    if isinstance(right, Constant) and types[0] is _Type.TEXT:
        convert_left = _CONVERTERS[right.number]
        return lambda lv, rv: wanted(convert_left(lv), rv)
    return lambda _lv, _rv: False  # numbers beside conditions, and what never has a value


def _refuse_truth_before_text(_left: bool, _right: bytes) -> bool:
    raise NotComparable("a condition on the left of = cannot be compared with a text")
