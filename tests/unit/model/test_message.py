"""What a send's result says."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from dataclasses import fields, replace
from typing import Any

import pytest

from rmq_ray.model.ids import MessageQueue, QueueOffset
from rmq_ray.model.message import (
    NO_PROPERTIES,
    Message,
    SendResult,
    SendStatus,
    decode_properties,
)


@pytest.mark.parametrize("status", SendStatus)
def test_a_status_below_ok_is_unknown_and_says_what_it_means(status: SendStatus) -> None:
    result = SendResult(status, "id", MessageQueue("T", "b", 0), QueueOffset(0))
    assert result.unknown is (status is not SendStatus.SEND_OK)
    assert ("may be lost" in status.meaning) is result.unknown


@pytest.mark.parametrize("ending", ["", "\x02"])
@pytest.mark.parametrize("text", ["TAGS\x01paid", "KEYS\x01a b\x02TAGS\x01paid"])
def test_both_endings_of_a_property_string_are_read(text: str, ending: str) -> None:
    assert decode_properties(text + ending)["TAGS"] == "paid" and decode_properties(
        text + ending
    ) == decode_properties(text)


def test_a_message_is_a_frozen_value_with_the_defaults_of_its_fields() -> None:
    message = Message("orders", b"x", keys=("a",), delay_level=3)
    assert message == Message("orders", b"x", None, ("a",), {}, 0, 3)
    assert {field.name: getattr(Message("t", b"x"), field.name) for field in fields(Message)} == {
        "topic": "t",
        "body": b"x",
        "tag": None,
        "keys": (),
        "properties": {},
        "flag": 0,
        "delay_level": 0,
        "wait_store_ok": True,
        "delay": None,
        "deliver_at": None,
    }
    with pytest.raises(AttributeError, match="immutable type: 'Message'"):
        message.tag = "paid"  # type: ignore[misc]
    with pytest.raises(TypeError, match="body"):
        Message("orders")  # type: ignore[call-arg]
    with pytest.raises(TypeError, match="tags"):
        Message("orders", b"x", tags="paid")  # type: ignore[call-arg]
    assert repr(message).startswith("Message(topic='orders', body=b'x', tag=None, keys=('a',)")


@pytest.mark.parametrize(
    "copied",
    [
        lambda message: pickle.loads(pickle.dumps(message)),
        lambda message: pickle.loads(pickle.dumps(message, 2)),
        copy.copy,
        copy.deepcopy,
        lambda message: replace(message, tag="paid"),
    ],
    ids=["pickle", "pickle 2", "copy", "deepcopy", "replace"],
)
@pytest.mark.parametrize("properties", [None, {"region": "eu"}])
def test_copies_of_a_message_are_messages_that_say_the_same(
    copied: Callable[[Message], Message], properties: dict[str, str] | None
) -> None:
    given = {} if properties is None else {"properties": properties}
    message = Message("orders", b"x", tag="paid", flag=7, **given)  # type: ignore[arg-type]
    found = copied(message)
    assert found == message and type(found) is Message
    assert (found.properties is NO_PROPERTIES) == (properties is None)


def test_the_properties_of_a_message_without_any_are_not_to_be_written_to() -> None:
    message: Any = Message("orders", b"x")
    for change in (
        lambda: message.properties.__setitem__("a", "b"),
        lambda: message.properties.update(a="b"),
        lambda: message.properties.setdefault("a", "b"),
    ):
        with pytest.raises(TypeError, match="give properties="):
            change()
    assert Message("orders", b"x").properties == {} and not message.properties
