"""A batch is one frame unless it is too long, and holds only what may travel together (store-format
10).
"""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

from rmq_ray.client.outgoing.send_batches import batch_of, split_batch
from rmq_ray.config import ProducerConfig
from rmq_ray.errors import ClientError, MessageIllegal, MessageTooLarge
from rmq_ray.model.ids import MessageQueue
from rmq_ray.model.message import Message

CONFIG = ProducerConfig(batch_bytes_max=1000)


@pytest.mark.seed("S3-078")
def test_a_batch_below_the_limit_is_one_frame() -> None:
    topic, frames = split_batch(
        [Message("T", b"%d" % n, tag="a" if n else None, flag=n) for n in range(3)], CONFIG
    )
    assert topic == "T"
    assert frames == [([b"0", b"1", b"2"], ["", "TAGS\x01a\x02", "TAGS\x01a\x02"], [0, 1, 2])]


def test_a_longer_batch_is_cut_by_bytes_and_keeps_its_order() -> None:
    messages = [Message("T", b"%03d" % n * 100) for n in range(10)]
    _, frames = split_batch(messages, CONFIG)
    assert [len(bodies) for bodies, _, _ in frames] == [2] * 5
    assert [body for bodies, _, _ in frames for body in bodies] == [
        message.body for message in messages
    ]


def test_a_message_longer_than_a_frame_should_be_travels_alone() -> None:
    _, frames = split_batch(
        [Message("T", b"x"), Message("T", b"y" * 5000), Message("T", b"z")], CONFIG
    )
    assert [len(bodies) for bodies, _, _ in frames] == [1, 1, 1]


@pytest.mark.parametrize(
    "odd",
    [
        Message("other", b"x"),
        Message("T", b"x", delay_level=3),
        Message("T", b"x", wait_store_ok=False),
        Message("T", b""),
    ],
)
def test_what_may_not_travel_together_is_refused(odd: Message) -> None:
    with pytest.raises(MessageIllegal):
        split_batch([Message("T", b"x"), odd], CONFIG)


def test_empty_batches_and_long_bodies_are_refused() -> None:
    with pytest.raises(ClientError, match="empty"):
        split_batch([], CONFIG)
    with pytest.raises(MessageTooLarge):
        split_batch([Message("T", b"x" * 11)], CONFIG.but(body_bytes_max=10))


QUEUE = MessageQueue("T", "broker-a", 1)


@pytest.mark.parametrize("queue", [None, QUEUE])
def test_a_batch_is_messages_or_a_topic_with_bodies(queue: MessageQueue | None) -> None:
    messages = [Message("T", b"x"), Message("T", b"y", tag="paid")]
    assert batch_of(messages, None, queue) == (messages, queue)
    assert batch_of("T", [b"x", messages[1]], queue) == (messages, queue)
    assert batch_of("T", iter((b"x", messages[1])), queue) == (messages, queue)
    assert batch_of(messages, queue, None) == (messages, queue)


@pytest.mark.parametrize(
    ("messages", "bodies", "said"),
    [
        ("T", None, r"call send_batch\(topic, \[body, \.\.\.\]\)"),
        ("T", b"xy", r"call send_batch\(topic, \[body, \.\.\.\]\)"),
        ("T", 7, r"call send_batch\(topic, \[body, \.\.\.\]\)"),
        ("T", {b"x": 1}, r"call send_batch\(topic, \[body, \.\.\.\]\)"),
        ("T", [], "the batch is empty"),
        ("T", [b"x", "y"], "must be bytes, not str"),
        ("T", [Message("other", b"x")], "a batch has one topic, not 'T' and 'other'"),
        ([Message("T", b"x")], [b"y"], "no bodies beside it"),
        ([b"x", b"y"], None, r"not b'x'; call send_batch\(topic, \[body, \.\.\.\]\)"),
        (b"x", None, r"not 120; call send_batch\(topic, \[body, \.\.\.\]\)"),
        (7, None, r"not 7; call send_batch\(topic, \[body, \.\.\.\]\)"),
    ],
)
def test_a_batch_of_another_form_is_told_the_right_ones(
    messages: Any, bodies: Any, said: str
) -> None:
    with pytest.raises((ClientError, MessageIllegal), match=said):
        split_batch(batch_of(messages, bodies, None)[0], CONFIG)


def columns(bodies: Any, *labels: Any) -> list[tuple[list[bytes], list[str], list[int] | None]]:
    batch, _ = batch_of("T", bodies, None, (*labels, None, None, None)[:3])
    topic, frames = split_batch(batch, CONFIG)
    assert topic == "T"
    return frames


def test_bodies_with_columns_say_what_messages_would_say() -> None:
    messages = [
        Message("T", b"x", "paid", ["k1"], {"region": "eu"}),
        Message("T", b"y", None, ["k2", "k3"], {"region": "eu"}),
        Message("T", b"z", "open", (), {"region": "eu"}),
    ]
    assert (
        columns(
            [b"x", b"y", b"z"], ["paid", None, "open"], ["k1", ["k2", "k3"], None], {"region": "eu"}
        )
        == split_batch(messages, CONFIG)[1]
    )
    assert columns([b"x", b"y"], "paid") == [([b"x", b"y"], ["TAGS\x01paid\x02"] * 2, None)]
    assert columns([b"x", b"y"], "") == columns([b"x", b"y"])


def test_an_arrow_array_is_a_column() -> None:
    bodies, tags = pa.array([b"x", b"y"]), pa.array(["paid", None])
    assert columns(bodies, tags) == columns([b"x", b"y"], ["paid", None])
    assert columns(pa.chunked_array([[b"x"], [b"y"]])) == columns([b"x", b"y"])


def test_bodies_are_cut_into_frames_as_messages_are() -> None:
    bodies = [bytes(300)] * 50
    config = CONFIG.but(batch_bytes_max=4_096)
    batch, _ = batch_of("T", bodies, None)
    frames = split_batch(batch, config)[1]
    assert frames == split_batch([Message("T", body) for body in bodies], config)[1]
    assert len(frames) > 2 and sum(len(frame[0]) for frame in frames) == 50


@pytest.mark.parametrize(
    ("bodies", "labels", "said"),
    [
        ([b"x", b"y"], (["paid"],), "tags of send_batch has 1 values.* each of the 2 bodies"),
        ([b"x", b"y"], (None, 7), "keys of send_batch is no list, 7"),
        ([b"x"], (None, None, [{}, {}]), "properties of send_batch has 2 values"),
        ([b"x"], ([7],), "tag"),
        ([b"x", b"y"], ("a\x01b",), "tag|TAGS"),
        ([b"x", Message("T", b"y")], ("paid",), "go with bodies, and among these are messages"),
        ([b"x", bytes(11)], (), "11 bytes|greater|at most"),
    ],
)
def test_columns_that_do_not_fit_are_told(bodies: Any, labels: Any, said: str) -> None:
    with pytest.raises((ClientError, MessageIllegal, MessageTooLarge), match=said):
        batch, _ = batch_of("T", bodies, None, (*labels, None, None, None)[:3])
        split_batch(batch, CONFIG.but(body_bytes_max=10))


def test_messages_have_their_own_labels() -> None:
    with pytest.raises(ClientError, match="are set in each Message"):
        batch_of([Message("T", b"x")], None, None, ("paid", None, None))
