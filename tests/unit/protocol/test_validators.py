"""What may be sent, and which names are legal (protocol-behaviour 5, 8)."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from enum import Enum
from types import MappingProxyType
from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rmq_ray.errors import ClientError, MessageIllegal, MessageTooLarge, TopicNotWritable
from rmq_ray.model.message import RESERVED_PROPERTIES, decode_properties
from rmq_ray.model.topics import FORBIDDEN_SEND_TOPICS, retry_topic
from rmq_ray.protocol import validators
from rmq_ray.protocol.validators import (
    GROUP_CHARS_MAX,
    USER_PROPERTIES_BYTES_MAX,
    check_body,
    check_delay_level,
    check_flags,
    check_group,
    check_new_topic,
    check_send_topic,
    check_topic,
    check_wait,
    property_text,
)


@pytest.mark.parametrize("topic", ["orders", "%RETRY%g", "a|b_c-9", "x" * 127])
def test_legal_topics_pass(topic: str) -> None:
    assert check_topic(topic) is None


@pytest.mark.parametrize("topic", ["", " ", "a b", "a.b", "a/b", "x" * 128, "ä", "a\n", "a@b"])
def test_illegal_topics_are_named_with_the_remedy(topic: str) -> None:
    with pytest.raises(ClientError, match="blank|are allowed|rename it"):
        check_topic(topic)


@pytest.mark.parametrize("wrong", [None, 5, b"orders", ["orders"], {"orders": 1}])
def test_names_that_are_no_strings_are_told(wrong: Any) -> None:
    for check in (check_topic, check_group, check_send_topic, check_new_topic):
        with pytest.raises(ClientError, match="must be a string, not"):
            check(wrong)


def test_more_names_than_are_remembered_are_checked_alike(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(validators, "_REMEMBERED_MAX", 3)
    for name in [f"orders-{n}" for n in range(10)] * 2:
        check_send_topic(name)
        with pytest.raises(ClientError):
            check_send_topic(f"{name} ")
    assert len(validators._send_topics) <= 3


class Paid(str, Enum):  # noqa: UP042 - a StrEnum formats as its value, this one does not
    YES = "yes"


class Level(int, Enum):
    THREE = 3


@pytest.mark.parametrize(
    "flag",
    [
        "1",
        None,
        1.5,
        1 << 31,
        1 << 32,
        -(1 << 31) - 1,
        np.int64(1 << 31),
        np.float64(1),
        pd.NA,
        np.array([1, 2]),
    ],
)
def test_a_flag_is_a_number_of_32_bits(flag: Any) -> None:
    with pytest.raises(MessageIllegal, match="flag is"):
        check_flags([0, flag])
    check_flags([0, -(1 << 31), (1 << 31) - 1])


def test_flags_of_other_kinds_become_plain_numbers() -> None:
    flags = check_flags([5, np.int64(5), np.uint8(7), Level.THREE, True, np.int32(-1)])
    assert flags == [5, 5, 7, 3, 1, -1] and {type(flag) for flag in flags} == {int}


def test_whether_to_wait_becomes_a_plain_bool() -> None:
    for yes, no in (
        (True, False),
        (1, 0),
        (np.bool_(True), np.bool_(False)),
        (np.int64(1), np.int64(0)),
    ):
        assert check_wait(yes) is True and check_wait(no) is False
    for wrong in (None, "no", 1.0, pd.NA, np.array([True])):
        with pytest.raises(MessageIllegal, match="wait_store_ok is"):
            check_wait(wrong)


@pytest.mark.parametrize("topic", sorted(FORBIDDEN_SEND_TOPICS))
def test_the_systems_topics_cannot_be_sent_to(topic: str) -> None:
    with pytest.raises(TopicNotWritable, match="belongs to the system"):
        check_send_topic(topic)
    with pytest.raises(ClientError, match="choose another name"):
        check_new_topic(topic)


@pytest.mark.seed("S3-009")
@pytest.mark.parametrize("group", ["", "DEFAULT_PRODUCER", "DEFAULT_CONSUMER", "g" * 121, "a b"])
def test_groups_must_be_named_and_not_be_the_default(group: str) -> None:
    with pytest.raises(ClientError):
        check_group(group)


def test_the_retry_topic_of_the_longest_group_is_a_legal_topic() -> None:
    group = "g" * GROUP_CHARS_MAX
    check_group(group)
    assert check_topic(retry_topic(group)) is None


def test_bodies_are_bytes_of_at_least_one_and_at_most_the_limit() -> None:
    assert check_body(bytearray(b"ab"), 2) == b"ab"
    for body in (None, "text", 7):
        with pytest.raises(MessageIllegal, match="must be bytes"):
            check_body(body, 10)
    with pytest.raises(MessageIllegal, match="empty"):
        check_body(b"", 10)
    with pytest.raises(MessageTooLarge) as caught:
        check_body(b"abc", 2)
    assert caught.value.args[1:] == (3, 2)


@pytest.mark.parametrize("name", sorted(RESERVED_PROPERTIES))
def test_reserved_properties_are_refused(name: str) -> None:
    with pytest.raises(MessageIllegal, match="reserved"):
        property_text(None, (), {name: "x"})


@pytest.mark.parametrize(
    ("tag", "keys", "properties"),
    [
        ("a\x01b", (), {}),
        ("a\x02", (), {}),
        (None, ["a\x01"], {}),
        (None, (), {"a\x02": "b"}),
        (None, (), {"a": "b\x01"}),
        (" ", (), {}),
        (None, ["a b"], {}),
        (None, [""], {}),
        (None, (), {"": "x"}),
        (None, (), {"a": ""}),
        (None, (), {"a": 5}),
        (7, (), {}),
        ("\ud800", (), {}),
    ],
)
def test_separators_blanks_and_other_types_are_refused(
    tag: str, keys: list[str], properties: dict[str, str]
) -> None:
    with pytest.raises(MessageIllegal):
        property_text(tag, keys, properties)


def test_empty_labels_are_none_and_keys_may_come_in_any_collection() -> None:
    for tag, keys, properties in itertools.product(
        (None, ""), (None, "", (), [], np.array([])), (None, {})
    ):
        assert property_text(tag, keys, properties) == ""  # type: ignore[arg-type]
    for keys in (("a", "b"), np.array(["a", "b"]), iter("ab"), "a b"):
        assert property_text("paid", keys, None) == "KEYS\x01a b\x02TAGS\x01paid\x02"  # type: ignore[arg-type]


@pytest.mark.parametrize("wrong", [0, False, b"", (), set(), np.array([1, 2]), np.array(["a"])])
def test_what_is_false_but_no_label_is_refused_with_its_name(wrong: Any) -> None:
    with pytest.raises(MessageIllegal, match="the tag must be a string"):
        property_text(wrong, (), None)
    with pytest.raises(MessageIllegal, match="properties must be a mapping"):
        property_text(None, (), wrong)
    with pytest.raises(MessageIllegal, match="keys must be strings"):
        property_text(None, [wrong], None)
    with pytest.raises(MessageIllegal, match="keys must be strings"):
        property_text(None, b"", None)  # type: ignore[arg-type]


def test_an_error_of_the_senders_own_keys_reaches_the_sender() -> None:
    def keys() -> Iterator[str]:
        yield "o-1"
        raise ValueError("no more rows")

    with pytest.raises(ValueError, match="no more rows"):
        property_text("paid", keys(), {"region": "eu"})  # type: ignore[arg-type]


@pytest.mark.parametrize("wrong", [pd.NA, np.array(["a", "b"]), pd.Series(["a", "b"])])
@pytest.mark.parametrize(
    "before", [("paid", {"region": "eu"}), (None, {"region": "us"}), ("paid", None)]
)
def test_what_refuses_to_be_compared_is_refused_whatever_was_sent_before(
    wrong: Any, before: tuple[str | None, dict[str, str] | None]
) -> None:
    for tag, keys, properties in (
        (wrong, ["o-1"], before[1]),
        (before[0], ["o-1"], {"region": wrong}),
        (None, (), {"region": wrong}),
        (before[0], ["o-1"], wrong),
    ):
        for _ in range(2):
            property_text(before[0], ["o-1"], before[1])
        with pytest.raises(
            MessageIllegal, match="must be a string|must be strings|must be a mapping"
        ):
            property_text(tag, keys, properties)


def test_members_of_an_enum_of_strings_count_as_their_values() -> None:
    wanted = "KEYS\x01yes\x02TAGS\x01yes\x02yes\x01yes\x02"
    for keys in (Paid.YES, [Paid.YES], (Paid.YES,)):
        for _ in range(2):
            text = property_text(Paid.YES, keys, {Paid.YES: Paid.YES})
            assert text == wanted and type(text) is str


def test_properties_that_change_while_they_are_judged_are_remembered_as_they_were_judged() -> None:
    class Meddling(str):
        __slots__ = ()

        def __bool__(self) -> bool:
            properties["region"] = "us"  # as another thread would
            return True

    properties: dict[str, str] = {"region": "eu", "shop": Meddling("7")}
    for _ in range(2):
        property_text(None, (), properties)
    assert (
        property_text(None, ["o-1"], {"region": "us", "shop": "7"})
        == "KEYS\x01o-1\x02region\x01us\x02shop\x017\x02"
    )
    assert property_text(None, (), {"region": "eu", "shop": "7"}) == "region\x01eu\x02shop\x017\x02"
    assert property_text(None, (), MappingProxyType({"region": "eu"})) == "region\x01eu\x02"


def test_properties_fit_a_record_with_its_mark_and_key() -> None:
    longest = "v" * (USER_PROPERTIES_BYTES_MAX - len("n\x01\x02"))
    assert len(property_text(None, (), {"n": longest})) == USER_PROPERTIES_BYTES_MAX
    with pytest.raises(MessageTooLarge, match="shorten"):
        property_text(None, (), {"n": longest + "v"})
    with pytest.raises(MessageTooLarge):
        property_text(None, (), {"n": "ä" * (USER_PROPERTIES_BYTES_MAX // 2 + 1)})


NAMES = st.text(
    st.characters(exclude_characters="\x01\x02", exclude_categories=("Cs",)), min_size=1, max_size=8
).filter(lambda name: name not in RESERVED_PROPERTIES)


@given(
    st.one_of(st.none(), NAMES.filter(lambda tag: tag.strip())),
    st.lists(NAMES.filter(lambda key: " " not in key), max_size=3),
    st.dictionaries(NAMES, NAMES, max_size=4),
)
def test_what_is_written_reads_back_the_same(
    tag: str | None, keys: list[str], properties: dict[str, str]
) -> None:
    text = property_text(tag, keys, properties)
    wanted = (
        dict(properties)
        | ({"TAGS": tag} if tag else {})
        | ({"KEYS": " ".join(keys)} if keys else {})
    )
    assert decode_properties(text) == wanted
    assert not text or text.endswith("\x02")


def test_delay_levels_end_at_eighteen() -> None:
    assert check_delay_level(18) is None
    for level in (-1, 19, 1.5, "3", True):
        with pytest.raises(MessageIllegal, match="0 .none. to 18"):
            check_delay_level(level)  # type: ignore[arg-type]


WORDS = st.one_of(st.none(), st.text("ab\x01\x02 é", max_size=3), st.just(5))


@settings(deadline=None, max_examples=300)
@given(
    WORDS,
    st.lists(WORDS, max_size=2),
    st.dictionaries(st.sampled_from(["region", "KEYS", "", "a\x01", "é"]), WORDS, max_size=2),
)
def test_the_quick_way_says_what_every_rule_one_after_the_other_says(
    tag: Any, keys: Any, properties: Any
) -> None:
    def outcome(way: Callable[[Any, Any, Any], str]) -> object:
        try:
            return way(tag, keys, properties)
        except (MessageIllegal, MessageTooLarge) as error:
            return type(error), error.args

    for _ in range(2):  # the second time from memory
        assert outcome(property_text) == outcome(validators._judged_text)


def test_properties_that_changed_since_the_last_message_are_not_taken_from_memory() -> None:
    properties = {"region": "eu"}
    assert property_text(None, (), properties) == "region\x01eu\x02"
    properties["region"] = "us"
    assert property_text(None, (), properties) == "region\x01us\x02"
    properties["region"] = ""
    with pytest.raises(MessageIllegal, match="must not be empty"):
        property_text(None, (), properties)


def test_labels_like_the_last_ones_are_written_and_judged_like_new_ones() -> None:
    properties = {"region": "eu"}
    for key in ("o-1", "o-2", "ö-3"):
        assert (
            property_text("paid", [key], properties)
            == f"KEYS\x01{key}\x02TAGS\x01paid\x02region\x01eu\x02"
        )
    for bad in ("o 1", "o\x011", "o\x021"):
        with pytest.raises(MessageIllegal):
            property_text("paid", [bad], properties)
    with pytest.raises(MessageTooLarge):
        property_text("paid", ["k" * 40_000], properties)
    assert property_text(None, ["o-1"], properties) == "KEYS\x01o-1\x02region\x01eu\x02"
    assert property_text("paid", (), properties) == "TAGS\x01paid\x02region\x01eu\x02"
    properties["region"] = "us"
    assert (
        property_text("paid", ["o-1"], properties)
        == "KEYS\x01o-1\x02TAGS\x01paid\x02region\x01us\x02"
    )
