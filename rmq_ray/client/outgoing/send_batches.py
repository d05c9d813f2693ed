"""What a call with many messages means: a batch in one form, and its frames (store-format 10).

Decides what may travel together: messages of one topic without delay, WAIT=false or system topics,
cut by bytes only, so that a batch below ``batch_bytes_max`` is one frame. Pure; raises what
``protocol.validators`` raises.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, cast

from rmq_ray.client.outgoing.send_payload import RECORD_OVERHEAD, FrameParts
from rmq_ray.client.outgoing.send_request import (
    BATCH_FORM,
    NO_COLUMNS,
    NO_LABELS,
    LabelColumns,
    checked_request,
)
from rmq_ray.codec.record_batch import FRAME_RECORDS_MAX
from rmq_ray.config import ProducerConfig
from rmq_ray.errors import ClientError, MessageIllegal
from rmq_ray.model.ids import MessageQueue
from rmq_ray.model.message import NO_PROPERTIES, Message
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
from rmq_ray.value import Value


class BodyColumns(Value, frozen=True):
    """A batch as columns: bodies of one topic, and each one's property text; no object for a
    message.
    """

    topic: str
    bodies: list[bytes]
    texts: list[str]


def batch_of(
    messages: Iterable[Message] | str,
    bodies: object,
    queue: MessageQueue | None,
    columns: LabelColumns = NO_COLUMNS,
) -> tuple[Iterable[Message] | BodyColumns, MessageQueue | None]:
    """The batch and the queue of a ``send_batch``: of messages, or of a topic with its bodies,
    among which may be messages. A queue may stand behind messages without its name.
    """
    if not isinstance(messages, str):
        if columns != NO_COLUMNS:
            raise ClientError(
                f"tags, keys and properties of messages are set in each Message; call {BATCH_FORM}"
            )
        if bodies is None:
            return messages, queue
        if queue is None and not isinstance(bodies, list | tuple):
            return messages, cast(MessageQueue, bodies)  # whoever sends looks whether it is one
        raise ClientError(
            f"a batch of messages has no bodies beside it, {bodies!r:.80}; call {BATCH_FORM}"
        )
    listed = _listed_bodies(messages, bodies)
    if not any(issubclass(kind, Message) for kind in set(map(type, listed))):
        return BodyColumns(messages, listed, _texts(len(listed), *columns)), queue
    if columns != NO_COLUMNS:
        raise ClientError(
            f"tags, keys and properties go with bodies, and among these are messages; call "
            f"{BATCH_FORM}"
        )
    batch = [one if isinstance(one, Message) else Message(messages, one) for one in listed]
    for message in batch:
        if message.topic != messages:
            raise _unfit(message, messages)
    return batch, queue


def _listed_bodies(topic: str, bodies: Any) -> list[Any]:
    """Of any iterable, and of an Arrow array."""
    if isinstance(bodies, str | bytes | bytearray | memoryview | Mapping):
        bodies = None
    found = _column_values(bodies)
    if found is None:
        raise ClientError(
            f"send_batch({topic!r:.80}, ...) takes a list of bodies, each of them bytes; call "
            f"{BATCH_FORM}"
        )
    return found


def _column_values(given: Any) -> list[Any] | None:
    """Of any iterable, and of an Arrow array; None of anything else."""
    try:
        return cast(list[Any], getattr(given, "to_pylist", lambda: list(given))())
    except (TypeError, RuntimeError):
        return None


def _texts(count: int, tags: object, keys: object, properties: object) -> list[str]:
    """The property text of each of ``count`` bodies."""
    if keys is None and properties is None and (tags is None or isinstance(tags, str)):
        return ["" if tags is None else property_text(tags, NO_KEYS, None)] * count
    rows = (
        _column("tags", tags, count, str),
        _column("keys", keys, count, str),
        _column("properties", properties, count, Mapping),
    )
    return [
        property_text(tag, NO_KEYS if own is None else [own] if isinstance(own, str) else own, more)
        for tag, own, more in zip(*rows, strict=True)
    ]


def _column(name: str, given: Any, count: int, one: type) -> Sequence[Any]:
    """One value for each of ``count`` bodies; ``one``: the type of a value that is for all."""
    if given is None or isinstance(given, one):
        return [given] * count
    found = _column_values(given)
    if found is None or len(found) != count:
        has = "is no list" if found is None else f"has {len(found)} values"
        raise ClientError(
            f"{name} of send_batch {has}, {given!r:.80}; give one value for all messages, or a "
            f"list with one for each of the {count} bodies"
        )
    return found


def split_batch(
    messages: Iterable[Message] | BodyColumns, config: ProducerConfig
) -> tuple[str, list[FrameParts]]:
    """(topic, frames in order). Raises what the validators raise, and ``MessageIllegal`` for what a
    batch may not hold.
    """
    if isinstance(messages, BodyColumns):
        return _split_columns(messages, config)
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
                    f"a batch without a topic consists of rmq_ray.Message objects, not "
                    f"{message!r:.80}; call {BATCH_FORM}"
                ) from None
            checked_request(message, None, NO_LABELS, 0, config.body_bytes_max)
        raise


def _split_columns(batch: BodyColumns, config: ProducerConfig) -> tuple[str, list[FrameParts]]:
    if not batch.bodies:
        raise ClientError("the batch is empty; give at least one body")
    check_send_topic(batch.topic)
    most, bodies = config.body_bytes_max, batch.bodies
    if (
        set(map(type, bodies)) != {bytes}
        or not 0 < min(map(len, bodies)) <= max(map(len, bodies)) <= most
    ):
        bodies = [check_body(body, most) for body in bodies]
    return batch.topic, _cut(bodies, batch.texts, None, config.batch_bytes_max)


def _listed(messages: Iterable[Message]) -> list[Message]:
    try:
        return list(messages)
    except (TypeError, RuntimeError):  # the second one: buffers of several dimensions
        raise ClientError(
            f"a batch is a list of rmq_ray.Message objects, not {messages!r:.80}; call {BATCH_FORM}"
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
            if tag is None and keys is NO_KEYS and properties is NO_PROPERTIES
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
            message.tag is None and message.keys is NO_KEYS and message.properties is NO_PROPERTIES
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
    count = len(bodies)
    size = sum(map(len, bodies)) + sum(map(len, texts)) + RECORD_OVERHEAD * count
    if count <= FRAME_RECORDS_MAX and size <= bytes_max:
        return [(bodies, texts, flags)]
    sizes = [
        len(body) + len(text) + RECORD_OVERHEAD for body, text in zip(bodies, texts, strict=True)
    ]
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
