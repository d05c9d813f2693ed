"""SQL92 filters: the grammar, the verdicts of the specification, positions of faults, limits,
Java's numbers.
"""

from __future__ import annotations

import math

import pytest

from rmq_ray.errors import SubscriptionInvalid
from rmq_ray.model.groups import SQL92, TAG
from rmq_ray.model.pulling import Sql
from rmq_ray.protocol.filters import filter_sql92
from rmq_ray.protocol.filters.filter_sql92 import FilterCache, compile_filter
from rmq_ray.protocol.filters.sql92_compiler import compile_condition
from rmq_ray.protocol.filters.sql92_numbers import (
    NotComparable,
    order_doubles,
    to_double,
    to_int,
    to_long,
)
from rmq_ray.protocol.filters.sql92_parser import DEPTH_MAX, PARTS_MAX, parse
from rmq_ray.protocol.filters.sql92_tokens import EXPRESSION_CHARS_MAX
from rmq_ray.protocol.filters.subscriptions import parse_subscription, sql

MESSAGE = b"a\x015\x02b\x01hz"


def verdict(expression: str, properties: bytes = MESSAGE) -> bool | None | str:
    """True, False, None (unknown) or "error"."""
    try:
        return compile_condition(parse(expression))(properties)
    except NotComparable:
        return "error"


def position(expression: str) -> int:
    with pytest.raises(SubscriptionInvalid) as caught:
        compile_filter(expression)
    return int(caught.value.args[2])


@pytest.mark.seed("S4-008", "S4-231")
@pytest.mark.parametrize(
    ("expression", "matches"),
    [
        ("a BETWEEN 0 AND 5", True),
        ("a > 5", False),
        ("a >= 5 AND b = 'hz'", True),
        ("c IS NULL", True),
        ("c <> 'x'", False),
        ("NOT (c = 'x')", False),
        ("b IN ('hz','bj')", True),
        ("b > 3", False),
        ("a = '5'", True),
        ("a = 5.0", True),
        ("a NOT IN ('6')", True),
    ],
)
def test_the_vectors_of_the_specification(expression: str, matches: bool) -> None:
    assert compile_filter(expression).matches(MESSAGE) is matches


@pytest.mark.parametrize(
    ("expression", "expected"),
    [
        ("c = 1", None),
        ("1 = c", False),
        ("c = d", True),
        ("a = c", False),
        ("c = a", None),
        ("c > 1", None),
        ("c IS NOT NULL", False),
        ("a IS NOT NULL", True),
        ("c > 1 AND a = '6'", False),
        ("c > 1 AND a = '5'", None),
        ("c > 1 OR a = '5'", True),
        ("c > 1 OR a = '6'", None),
        ("NOT (c > 1)", None),
        ("c IN ('x')", None),
        ("c NOT IN ('x')", None),
        ("c BETWEEN 1 AND 2", None),
        ("NULL", None),
        ("TRUE", True),
        ("a", False),
        ("c", None),
        ("NOT a", True),
        ("TRUE = TRUE", True),
        ("(a = '5') = (b = 'hz')", True),
        ("- b = 1", None),
        ("a = b", False),
        ("1 = 1", True),
        ("1 = 1.0", True),
        ("2147483648 = 1", False),
    ],
)
def test_absent_properties_make_comparisons_unknown(expression: str, expected: bool | None) -> None:
    assert verdict(expression) is expected


@pytest.mark.parametrize(
    ("expression", "value", "expected"),
    [
        ("v > 4", "5.5", "error"),
        ("v > 4.0", "5.5", True),
        ("v = 5", "05", True),
        ("v = 5", "+5", True),
        ("v = 5", " 5", "error"),
        ("v = 5.0", " 5f ", True),
        ("v < 5", "2147483648", "error"),
        ("v < 3000000000", "2147483648", True),
        ("v > 5000000000", "9223372036854775808", "error"),
        ("v = 5", "٥", True),
        ("v > 1.0", "NaN", True),
        ("v < 1.0", "NaN", False),
        ("v > 1.0", "Infinity", True),
        ("v = TRUE", "TrUe", True),
        ("TRUE = v", "true", "error"),
        ("v = 'it''s'", "it's", True),
        ("v > - 5", "-4", True),
        ("v BETWEEN -1.5 AND +1", "0", True),
        ("v NOT BETWEEN 5 AND 6", "7", True),
        ("5 < v", "6", True),
        ("v > w", "10", True),
        ("v = w", "9.0", False),
        ("v >= w", "x", "error"),
        ("v = 5", "5_0", "error"),
        ("v = 5.0", "0x1.4p2", True),
    ],
)
def test_texts_become_numbers_as_java_reads_them(
    expression: str, value: str, expected: bool | str
) -> None:
    assert verdict(expression, f"v\x01{value}\x02w\x019".encode()) == expected


def test_evaluation_goes_from_left_to_right_and_stops_when_it_is_sure() -> None:
    assert verdict("a = '6' AND b > 1") is False and verdict("b > 1 AND a = '6'") == "error"
    assert verdict("a = '5' OR b > 1") is True and verdict("b > 1 OR a = '5'") == "error"


def test_keywords_have_any_case_properties_have_theirs_and_comments_are_blanks() -> None:
    assert verdict("a between 0 And 5 -- why\n or /* no * reason **/ B iS nOt nUlL") is True
    assert verdict("A IS NULL AND tags IS NULL") is True and verdict("$x_1 IS NULL") is True
    assert verdict("a = --5\n '5'") is True, "a comment ends with its line"
    assert verdict("TAGS IS NOT NULL AND TAGS IN ('TagA','TagB')", b"TAGS\x01TagA") is True


def test_the_last_of_several_values_counts_and_a_name_within_a_name_does_not() -> None:
    assert verdict("a = '2'", b"a\x011\x02xa\x013\x02a\x014\x02a\x012\x02") is True
    assert (
        verdict("a IS NULL", b"xa\x013\x02ab\x014") is True
        and verdict("a IS NULL", b"a\x01\x02b\x011") is True
    )


@pytest.mark.parametrize(
    ("expression", "at"),
    [
        ("", 0),
        ("  ", 2),
        ("a = ", 4),
        ("a > 'x'", 4),
        ("a = NULL", 4),
        ("NULL = a", 0),
        ("TRUE = 1", 7),
        ("a BETWEEN 5 AND 1", 10),
        ("a BETWEEN 1 OR 2", 12),
        ("a = 0.0", 4),
        ("a = 1e999", 4),
        ("a = 9223372036854775808", 4),
        ("a = 05", 5),
        ("a = 0x1F", 5),
        ("a = 5LL", 6),
        ("a-b = 1", 1),
        ("a.b = 1", 1),
        ("a IN (1)", 6),
        ("a IN ()", 6),
        ("a IN ('x' 'y')", 10),
        ("5 IN ('x')", 0),
        ("a = 'x", 4),
        ('a = "x"', 4),
        ("a != 1", 2),
        ("a == 1", 3),
        ("(a = 1", 6),
        ("a = 1)", 5),
        ("a = 1 b = 2", 6),
        ("5", 0),
        ("'x' AND a", 0),
        ("NOT 5", 4),
        ("a IS 5", 5),
        ("a NOT 5", 6),
        ("a > b > c", 0),
        ("a > TRUE", 4),
        ("a = 1 AND\n OR b", 11),
        ("/* a", 0),
        ("a = 1 AND ?", 10),
        ("a CONTAINS 'x'", 2),
    ],
)
def test_a_malformed_expression_is_refused_with_the_position_of_the_fault(
    expression: str, at: int
) -> None:
    assert position(expression) == at


def test_the_message_has_a_caret_under_the_fault() -> None:
    with pytest.raises(SubscriptionInvalid) as caught:
        sql("region = 'eu' AND amount >> 100 AND " + "x = 1 AND " * 9 + "y = 2")
    first, shown, pointer = caught.value.message.split("\n")
    assert (
        "character 27" in first
        and shown[pointer.index("^")] == ">"
        and shown[pointer.index("^") - 1] == ">"
    )
    assert shown.endswith(" ...") and caught.value.args[2] == 26 and caught.value.code == 23


def test_length_parts_and_depth_are_limited() -> None:
    assert position("a" * (EXPRESSION_CHARS_MAX + 1)) == EXPRESSION_CHARS_MAX
    most = "a=1" + " OR a=1" * (PARTS_MAX // 4 - 1)
    assert (
        compile_filter(most + " ").matches(b"a\x011") and position(most + " OR a") == len(most) + 4
    )
    assert compile_filter("(" * (DEPTH_MAX - 1) + "a=1" + ")" * (DEPTH_MAX - 1)).matches(b"a\x011")
    assert position("(" * DEPTH_MAX + "a=1" + ")" * DEPTH_MAX) == DEPTH_MAX
    assert position("NOT " * DEPTH_MAX + "a") == 4 * DEPTH_MAX
    assert position("a" + " = b" * DEPTH_MAX) == 0, (
        "a chain of comparisons is as deep as it is long"
    )
    for expression in ("-" * 60 + "1 = a", "a" + " = b" * 60):
        assert verdict(expression, b"a\x011") in (True, False, None, "error")


def test_java_numbers() -> None:
    assert to_int(b"-2147483648") == -(1 << 31) and to_long(b"0000000000000000000000007") == 7
    for wrong in (b"", b"-", b"2147483648", b"1.0", b"1_0", b" 1", "\U0001d7d9".encode()):
        with pytest.raises(NotComparable):
            to_int(wrong)
    assert (
        math.isnan(to_double(b"-NaN"))
        and to_double(b"-Infinity") == -math.inf
        and to_double(b"1e999d") == math.inf
        and to_double(b"0x1p99999") == math.inf
    )
    for wrong in (b"", b".", b"e5", b"nan", b"inf", b"1e", b"0x1", b"1__0", b"1dd"):
        with pytest.raises(NotComparable):
            to_double(wrong)
    assert (
        order_doubles(math.nan, math.nan) == 0
        and order_doubles(0.0, -0.0) == 1
        and order_doubles(math.inf, math.nan) == -1
    )


# --- what is remembered ---


def test_verdicts_are_remembered_by_what_precedes_the_unique_key(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    counted = []
    monkeypatch.setattr(
        filter_sql92,
        "compile_condition",
        lambda _node: lambda raw: counted.append(raw) or b"\x01eu" in raw,
    )
    found = compile_filter("region = 'eu'")
    for key in range(5):
        assert found.matches(b"region\x01eu\x02UNIQ_KEY\x01%032d" % key) and not found.matches(
            b"region\x01us\x02UNIQ_KEY\x01%032d" % key
        )
    assert counted == [b"region\x01eu", b"region\x01us"]


def test_a_condition_on_the_unique_key_itself_sees_it() -> None:
    found = compile_filter(f"UNIQ_KEY = '{7:032d}'")
    assert [key for key in range(9) if found.matches(b"a\x011\x02UNIQ_KEY\x01%032d" % key)] == [7]


def test_the_mark_of_a_frame_is_no_property() -> None:
    marked = b"RMQ_FRAME\x01" + b"0" * 72
    assert compile_filter("RMQ_FRAME IS NULL AND a = 1").matches(marked + b"\x02a\x011")
    assert compile_filter("RMQ_FRAME IS NULL AND a IS NULL").matches(marked)


def test_the_memory_of_verdicts_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(filter_sql92, "VERDICTS_MAX", 10)
    found = compile_filter("a = 7")
    assert [at for at in range(100) if found.matches(b"a\x01%d" % at)] == [7] and len(
        found._verdicts
    ) <= 10
    assert found.matches(b"x\x01" + b"y" * 300 + b"\x02a\x017") and all(
        len(head) < 300 for head in found._verdicts
    )


def test_the_cache_of_expressions_remembers_refusals_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(filter_sql92, "FILTERS_MAX", 2)
    cache = FilterCache()
    first = cache.get("a = 1")
    assert cache.get("a = 1") is first
    for _ in range(2):
        with pytest.raises(SubscriptionInvalid):
            cache.get("a =")
    cache.get("a = 1")
    cache.get("b = 1")
    assert cache.get("a = 1") is first and len(cache._found) == 2


# --- subscriptions ---


def test_one_function_reads_both_kinds_of_expressions() -> None:
    assert (
        parse_subscription("t", "x || y", 3).tags == {"x", "y"}
        and parse_subscription("t", None).expression_type == TAG
    )
    found = parse_subscription("t", sql("a > 1"), 3)
    assert (found.expression, found.expression_type, found.version, found.tags, found.codes) == (
        "a > 1",
        SQL92,
        3,
        frozenset(),
        frozenset(),
    )
    for wrong in (Sql("a >"), 5, b"a > 1"):
        with pytest.raises(SubscriptionInvalid):
            parse_subscription("t", wrong)  # type: ignore[arg-type]
    with pytest.raises(SubscriptionInvalid):
        sql(5)  # type: ignore[arg-type]
