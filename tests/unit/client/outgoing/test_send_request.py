"""What a send call makes of a ``Message``, or of a topic with its parts."""

from __future__ import annotations

from collections.abc import Callable
from types import MappingProxyType
from typing import Any

import numpy as np
import pandas as pd
import pytest

from rmq_ray.client.outgoing.send_batches import split_batch
from rmq_ray.client.outgoing.send_request import NO_LABELS, checked_request
from rmq_ray.config import ProducerConfig
from rmq_ray.errors import ClientError, MessageIllegal
from rmq_ray.model.message import Message

MESSAGE = Message("orders", b"x", "paid", ["o-1"])


def one(message: Message) -> tuple[str, int]:
    made = checked_request(message, None, NO_LABELS, 0, 10)
    return made.text, made.flag


def of_batch(message: Message) -> tuple[str, int]:
    ((_, texts, flags),) = split_batch([Message("orders", b"x"), message], ProducerConfig())[1]
    return texts[1], flags[1] if flags else 0


WAYS = pytest.mark.parametrize("way", [one, of_batch])
Way = Callable[[Message], tuple[str, int]]


FORM = r"call send\(topic, body, tag=\.\.\., keys=\[\.\.\.\]\)"


@pytest.mark.parametrize(
    ("topic", "body", "wrong", "said"),
    [
        (b"x", None, ClientError, "the topic must be a string, not b'x'; " + FORM),
        (b"orders", b"x", ClientError, "the topic must be a string, not b'orders'; " + FORM),
        (None, b"x", ClientError, "the topic must be a string, not None; " + FORM),
        ("orders", None, MessageIllegal, "the body is missing; " + FORM),
        (
            "orders",
            "x",
            MessageIllegal,
            r"not str; encode it, for instance body.encode\(\); " + FORM,
        ),
        ("orders", 5, MessageIllegal, r"json\.dumps\(body\)\.encode\(\); " + FORM),
        ("orders", {"a": 1}, MessageIllegal, r"json\.dumps\(body\)\.encode\(\); " + FORM),
        ("orders", object(), MessageIllegal, "not object; encode it first; " + FORM),
    ],
)
def test_a_call_with_wrong_arguments_is_told_its_right_form(
    topic: Any, body: Any, wrong: type[Exception], said: str
) -> None:
    with pytest.raises(wrong, match=said):
        checked_request(topic, body, NO_LABELS, 0, 10)


@pytest.mark.parametrize(
    "keys",
    [None, (), [], "", frozenset(), set(), {}.keys(), np.array([]), pd.Series([], dtype=object)],
)
@pytest.mark.parametrize("properties", [None, {}, MappingProxyType({})])
def test_empty_collections_beside_a_message_name_nothing(keys: Any, properties: Any) -> None:
    assert (
        checked_request(MESSAGE, None, (None, keys, properties), 0, 10).text
        == "KEYS\x01o-1\x02TAGS\x01paid\x02"
    )
    assert (
        checked_request("orders", b"x", ("paid", keys, properties), 0, 10).text
        == "TAGS\x01paid\x02"
    )


@pytest.mark.parametrize(
    "keys", ["a", ["a"], {"a"}, np.array(["a"]), np.array(7), iter(()), 0, False, pd.NA]
)
@pytest.mark.parametrize("properties", [None, MappingProxyType({"a": "b"})])
def test_labels_beside_a_message_are_refused(keys: Any, properties: Any) -> None:
    with pytest.raises(ClientError, match="not both"):
        checked_request(MESSAGE, None, (None, keys, properties), 0, 10)


@WAYS
@pytest.mark.parametrize("keys", [iter(["a", "b"]), (key for key in "ab"), map(str, (1, 2))])
def test_a_messages_keys_that_can_be_read_only_once_are_refused_each_time(
    way: Way, keys: Any
) -> None:
    message = Message("orders", b"x", keys=keys)
    for _ in range(2):
        with pytest.raises(MessageIllegal, match="read only once; give a list"):
            way(message)


@WAYS
def test_other_collections_of_keys_may_be_sent_again(way: Way) -> None:
    for keys in ({"a": 1, "b": 2}.keys(), np.array(["a", "b"]), pd.Series(["a", "b"])):
        message = Message("orders", b"x", keys=keys)  # type: ignore[arg-type]
        assert [way(message)[0] for _ in range(2)] == ["KEYS\x01a b\x02"] * 2


@WAYS
def test_numbers_and_truth_values_of_numpy_are_taken_as_pythons(way: Way) -> None:
    flags = [
        way(Message("orders", b"x", flag=flag, wait_store_ok=np.bool_(True)))[1]
        for flag in (np.int64(5), 5)
    ]  # type: ignore[arg-type]
    assert flags == [5, 5] and {type(flag) for flag in flags} == {int}
    made = checked_request(
        Message("orders", b"x", wait_store_ok=np.bool_(False)), None, NO_LABELS, 0, 10
    )  # type: ignore[arg-type]
    assert made.special and made.text == "WAIT\x01false\x02"


@WAYS
@pytest.mark.parametrize(
    "wrong",
    [
        {"tag": pd.NA},
        {"keys": pd.NA},
        {"keys": [pd.NA]},
        {"properties": {"a": pd.NA}},
        {"properties": pd.NA},
        {"flag": pd.NA},
        {"delay_level": pd.NA},
        {"wait_store_ok": pd.NA},
        {"topic": pd.NA},
    ],
)
def test_a_missing_value_of_pandas_is_a_typed_error_wherever_it_stands(
    way: Way, wrong: dict[str, Any]
) -> None:
    with pytest.raises(ClientError if {"delay_level", "topic"} & set(wrong) else MessageIllegal):
        way(Message(**{"topic": "orders", "body": b"x", "keys": ["o-1"]} | wrong))
