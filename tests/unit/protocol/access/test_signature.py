"""Signatures: what Apache RocketMQ's client hook writes, and what is taken for it."""

from __future__ import annotations

import pytest

from rmq_ray.protocol.access import signature
from rmq_ray.protocol.access.signature import KNOWN_CHARS_MAX, matches, sign

KEY, SECRET = "rocketmq2", "12345678"
HEART_BEAT = b'{"clientID":"c"}'
PULL = {
    "consumerGroup": "gé",
    "topic": "t1",
    "queueId": "3",
    "queueOffset": "42",
    "maxMsgNums": "32",
    "sysFlag": "2",
    "commitOffset": "0",
    "suspendTimeoutMillis": "15000",
    "subscription": "*",
    "subVersion": "7",
    "expressionType": "TAG",
    "AccessKey": KEY,
}


@pytest.mark.parametrize(
    ("fields", "body", "signature"),
    [
        ({"AccessKey": KEY}, HEART_BEAT, "k2HZWaUfKDf7M878RUEUQN9j6kE="),
        ({"AccessKey": KEY, "SecurityToken": "tok"}, HEART_BEAT, "gU+Ed9N8L/2er5NpbahENdOz8EY="),
        (PULL, b"", "AL+k4V5ceE8XatoXljN1KYJw5TQ="),
    ],
)
def test_signatures_are_those_of_rocketmq_acl(
    fields: dict[str, str], body: bytes, signature: str
) -> None:
    assert sign(fields, body, SECRET) == signature
    assert sign({**fields, "Signature": "anything"}, body, SECRET) == signature
    assert sign(dict(reversed(fields.items())), (body[:3], memoryview(body[3:])), SECRET) == (
        signature
    )
    assert matches({**fields, "Signature": signature}, body, SECRET, signature)


@pytest.mark.parametrize(
    ("fields", "body", "secret"),
    [
        ({**PULL, "topic": "t2"}, b"", SECRET),
        ({**PULL, "more": "1"}, b"", SECRET),
        (PULL, b"x", SECRET),
        (PULL, b"", "87654321"),
    ],
)
def test_another_request_or_secret_has_another_signature(
    fields: dict[str, str], body: bytes, secret: str
) -> None:
    assert not matches(fields, body, secret, sign(PULL, b"", SECRET))


@pytest.mark.parametrize("wrong", ["", "=", "é", "\ud800", "A" * 100])
def test_what_is_no_signature_does_not_match(wrong: str) -> None:
    assert not matches(PULL, b"", SECRET, wrong)


def test_names_are_ordered_as_java_orders_them() -> None:
    """A character beyond the first plane comes before U+FFFF, by its UTF-16 units."""
    assert sign({"\uffff": "b", "\U0001f600": "a"}, b"", SECRET) == sign({"x": "ab"}, b"", SECRET)
    assert sign({"a": "2", "Z": "1"}, b"", SECRET) == sign({"x": "12"}, b"", SECRET)
    assert sign({"x": "\ud800"}, b"", SECRET) == sign({"x": "?"}, b"", SECRET)


def test_a_query_by_unique_key_may_be_signed_with_and_without_its_mark() -> None:
    """Clients up to 4.9.3 do not sign it, later ones do."""
    query = {"AccessKey": KEY, "topic": "t", "key": "k", "_UNIQUE_KEY_QUERY": "true"}
    plain = {name: text for name, text in query.items() if name != "_UNIQUE_KEY_QUERY"}
    assert matches(query, b"", SECRET, sign(query, b"", SECRET))
    assert matches(query, b"", SECRET, sign(plain, b"", SECRET))
    assert not matches({**query, "key": "l"}, b"", SECRET, sign(plain, b"", SECRET))
    assert not matches({**query, "x": "y"}, b"", SECRET, sign(plain, b"", SECRET))


def test_a_request_without_fields_can_be_signed() -> None:
    assert matches(None, b"b", SECRET, sign({}, b"b", SECRET))


def test_names_of_any_length_are_ordered_and_long_ones_not_remembered() -> None:
    long, known = {"z" * KNOWN_CHARS_MAX: "2", "a": "1"}, signature._known_order.cache_info
    assert sign({"x": "12"}, b"", SECRET)
    before = known()
    assert sign(long, b"", SECRET) == sign({"x": "12"}, b"", SECRET)
    assert (known().hits, known().currsize) == (before.hits + 1, before.currsize)
