"""From a list of messages to frames: the checks of a batch, and where it is cut (store-format 10).

Decides what may travel together: messages of one topic without delay, WAIT=false or system topics.
Cuts by bytes only, so that a batch below ``batch_bytes_max`` is one frame. Pure; called by
``Producer.send_batch``.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from rmq_ray.client.outgoing.send_request import NO_LABELS, outgoing
from rmq_ray.codec.record_batch import FRAME_RECORDS_MAX
from rmq_ray.config import ProducerConfig
from rmq_ray.errors import ClientError, MessageIllegal
from rmq_ray.model.message import Message
from rmq_ray.protocol.validators import (
    NO_KEYS,
    PLAIN_KEYS,
    check_body,
    check_flags,
    check_repeatable,
    check_send_topic,
    check_wait,
    property_text,
)

RECORD_OVERHEAD = 140  # header, lengths and UNIQ_KEY of a record, rounded up

FrameParts = tuple[list[bytes], list[str], list[int] | None]
"""Bodies, property texts, users' flags (None when all are 0)."""


def split_batch(
    messages: Iterable[Message], config: ProducerConfig
) -> tuple[str, list[FrameParts]]:
    """(topic, frames in order). Raises what the validators raise, and ``MessageIllegal`` for what a
    batch may not hold.
    """
    if not isinstance(messages, list):
        messages = _listed(messages)
    try:
        return _split(messages, config)
    except (
        AttributeError,
        TypeError,
        ValueError,
    ):  # the last two: pandas.NA and arrays, which refuse to be compared
        for message in messages:
            if not isinstance(message, Message):
                raise ClientError(
                    f"a batch consists of rmq_ray.Message objects, not {message!r:.80}"
                ) from None
            outgoing(message, None, NO_LABELS, 0, config.body_bytes_max)
        raise


def _listed(messages: Iterable[Message]) -> list[Message]:
    try:
        return list(messages)
    except (TypeError, RuntimeError):  # the second one: buffers of several dimensions
        raise ClientError(
            f"a batch is a list of rmq_ray.Message objects, not {messages!r:.80}"
        ) from None


def _split(messages: Sequence[Message], config: ProducerConfig) -> tuple[str, list[FrameParts]]:
    if not messages:
        raise ClientError("the batch is empty; give at least one message")
    topic = messages[0].topic
    check_send_topic(topic)
    plain = _plain_bodies(messages, topic, config)
    if plain is not None:
        return topic, [(plain, [""] * len(plain), None)]
    body_bytes_max = config.body_bytes_max
    bodies: list[bytes] = []
    texts: list[str] = []
    for message in messages:
        if message.topic != topic or _is_timed(message) or not message.wait_store_ok:
            raise _unfit(message, topic)
        body = message.body
        if body.__class__ is not bytes or not 0 < len(body) <= body_bytes_max:
            body = check_body(body, body_bytes_max)
        bodies.append(body)
        tag, keys, properties = message.tag, message.keys, message.properties
        if keys.__class__ not in PLAIN_KEYS:
            check_repeatable(keys)
        texts.append(
            ""
            if tag is None and keys is NO_KEYS and properties.__class__ is dict and not properties
            else property_text(tag, keys, properties)
        )
    flags = check_flags(message.flag for message in messages)
    for message in messages:
        if message.wait_store_ok is not True:
            check_wait(message.wait_store_ok)
    return topic, _cut(bodies, texts, flags if any(flags) else None, config.batch_bytes_max)


def _plain_bodies(
    messages: Sequence[Message], topic: str, config: ProducerConfig
) -> list[bytes] | None:
    """The bodies of a batch that needs no look at each message: one frame, nothing but sound
    bodies. None = look.
    """
    bodies = [
        message.body
        for message in messages
        if message.topic == topic
        and (
            message.delay_level == 0 and message.delay is None and message.deliver_at is None
        )  # _is_timed: a call costs as much as all the rest
        and (message.wait_store_ok is True and not message.flag)
        and (
            message.tag is None
            and message.keys is NO_KEYS
            and message.properties.__class__ is dict
            and not message.properties
        )
    ]
    count = len(bodies)
    if count != len(messages) or count > FRAME_RECORDS_MAX or set(map(type, bodies)) != {bytes}:
        return None
    lengths = list(map(len, bodies))
    fits = (
        min(lengths) > 0
        and max(lengths) <= config.body_bytes_max
        and sum(lengths) + RECORD_OVERHEAD * count <= config.batch_bytes_max
    )
    return bodies if fits else None


def _cut(
    bodies: list[bytes], texts: list[str], flags: list[int] | None, bytes_max: int
) -> list[FrameParts]:
    sizes = [
        len(body) + len(text) + RECORD_OVERHEAD for body, text in zip(bodies, texts, strict=True)
    ]
    if len(bodies) <= FRAME_RECORDS_MAX and sum(sizes) <= bytes_max:
        return [(bodies, texts, flags)]
    frames: list[FrameParts] = []
    begin, filled = 0, 0
    for index, size in enumerate(sizes):
        if index > begin and (filled + size > bytes_max or index - begin >= FRAME_RECORDS_MAX):
            frames.append((bodies[begin:index], texts[begin:index], flags and flags[begin:index]))
            begin, filled = index, 0
        filled += size
    frames.append((bodies[begin:], texts[begin:], flags and flags[begin:]))
    return frames


def _unfit(message: Message, topic: str) -> MessageIllegal:
    if message.topic != topic:
        return MessageIllegal(
            f"a batch has one topic, not {topic!r} and {message.topic!r}; send a batch per topic"
        )
    what = (
        f"delay_level={message.delay_level}, delay={message.delay}, "
        f"deliver_at={message.deliver_at} or wait_store_ok={message.wait_store_ok}"
    )
    return MessageIllegal(f"a batch holds no message with {what}; send it with send()")


def _is_timed(message: Message) -> bool:
    return message.delay_level != 0 or message.delay is not None or message.deliver_at is not None
