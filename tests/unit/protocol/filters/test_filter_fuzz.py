"""Any text as an SQL filter, any bytes as properties: a verdict or a typed error, never anything
else.
"""

from __future__ import annotations

import contextlib

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rmq_ray.errors import SubscriptionInvalid
from rmq_ray.protocol.filters.sql92_compiler import compile_condition
from rmq_ray.protocol.filters.sql92_numbers import NotComparable
from rmq_ray.protocol.filters.sql92_parser import parse

WORDS = st.sampled_from(
    "a b TAGS region 5 0 -1 1.5 1E400 0x1F 9223372036854775808 'x' 'it''s' ' TRUE FALSE NULL IS "
    "NOT AND OR IN BETWEEN LIKE CONTAINS STARTSWITH ENDSWITH ( ) , = <> < <= > >= + - * / % -- "
    "/* */ ٥ \u0000 \ud800".split(" ")
)
TEXTS = st.one_of(
    st.text(max_size=80),
    st.lists(WORDS, max_size=30).map(" ".join),
    st.lists(WORDS, max_size=12).map("".join),
)
PIECES = st.sampled_from(
    [b"a", b"b", b"TAGS", b"region", b"\x01", b"\x02", b"5", b"-1", b"1e9", b"true", b"\xff", b""]
)
PROPERTIES = st.one_of(st.binary(max_size=60), st.lists(PIECES, max_size=20).map(b"".join))


@settings(max_examples=600)
@given(TEXTS, PROPERTIES)
def test_any_text_is_a_filter_or_a_typed_error_and_any_properties_get_a_verdict(
    text: str, properties: bytes
) -> None:
    with contextlib.suppress(SubscriptionInvalid):
        evaluate = compile_condition(parse(text))
        with contextlib.suppress(NotComparable):
            assert evaluate(properties) in (True, False, None)


@pytest.mark.parametrize("opening", ["(", "NOT ", "NOT(", "-", "a = (", "a IN ("])
@pytest.mark.parametrize("count", [10, 900, 5_000])
def test_what_is_nested_without_end_is_a_typed_error(opening: str, count: int) -> None:
    with pytest.raises(SubscriptionInvalid):
        parse(opening * count)
    closing = ")" * count if "(" in opening else ""
    with contextlib.suppress(SubscriptionInvalid):
        compile_condition(parse(opening * count + "a = 1" + closing))(b"a\x011")
