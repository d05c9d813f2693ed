"""Tag expressions and Java's hash."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rmq_ray.errors import SubscriptionInvalid
from rmq_ray.model.hashing import java_hash, tags_code
from rmq_ray.protocol.filters.filter_tag import (
    TAGS_MAX,
    code_passes,
    parse_tags,
    tag_passes,
    tag_subscription,
)


@pytest.mark.parametrize("expression", ["*", "", "  ", " * ", None])
def test_star_blank_and_none_subscribe_to_everything(expression: str | None) -> None:
    subscription = tag_subscription("t", expression, 1)
    assert (subscription.expression, subscription.tags, subscription.codes) == (
        "*",
        frozenset(),
        frozenset(),
    )
    assert (
        tag_passes(subscription, None)
        and tag_passes(subscription, "any")
        and code_passes(subscription, 0)
    )


def test_parts_are_trimmed_and_empty_ones_skipped() -> None:
    subscription = tag_subscription("t", " TagA||TagB || ", 5)
    assert subscription.tags == {"TagA", "TagB"}
    assert subscription.codes == {2598919, 2598920}
    assert (subscription.version, subscription.expression_type) == (5, "TAG")


def test_an_expression_of_bars_only_and_one_with_too_many_tags_are_refused() -> None:
    for expression in ("||", " || || ", "||".join(f"t{i}" for i in range(TAGS_MAX + 1))):
        with pytest.raises(SubscriptionInvalid):
            parse_tags(expression)


def test_the_broker_compares_codes_and_the_client_strings_so_that_collisions_are_removed() -> None:
    subscription = tag_subscription("t", "Aa", 1)
    assert java_hash("Aa") == java_hash("BB")
    assert code_passes(subscription, java_hash("BB")) and not tag_passes(subscription, "BB")
    assert tag_passes(subscription, "Aa")


def test_an_unknown_code_passes_and_a_message_without_tag_does_not() -> None:
    subscription = tag_subscription("t", "a", 1)
    assert code_passes(subscription, None)
    assert not code_passes(subscription, 0)
    assert not tag_passes(subscription, None)


@given(st.text(max_size=200))
def test_java_hash_is_the_polynomial_over_utf16_units(text: str) -> None:
    packed = text.encode("utf-16-be", "surrogatepass")
    value = 0
    for at in range(0, len(packed), 2):
        value = (31 * value + int.from_bytes(packed[at : at + 2])) % (1 << 32)
    assert java_hash(text) == (value - (1 << 32) if value >= 1 << 31 else value)


def test_no_tag_has_code_zero() -> None:
    assert tags_code(None) == tags_code("") == 0
