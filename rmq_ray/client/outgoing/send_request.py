"""What a send call means: its arguments checked and brought into one form, and a batch cut into
frames (store-format 10). Shared by both producers.

Decides which of RocketMQ's paths a message takes: ordinary messages go as records, special kinds
(delay, WAIT=false, retry and system topics) as single messages. Decides which property carries a
delivery time: a delay travels as a length, so that the broker's clock alone decides when it is
over. Decides what may travel together: messages of one topic without delay, WAIT=false or system
topics, cut by bytes only, so that a batch below ``batch_bytes_max`` is one frame. Does not decide
limits of time: the broker's ``timer_max_delay_hours``. Pure; raises what ``protocol.validators``
raises.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence, Sized
from dataclasses import dataclass
from datetime import datetime, timedelta
from operator import index as as_index
from typing import Any, cast

from rmq_ray.client.outgoing.send_payload import RECORD_OVERHEAD, FrameParts
from rmq_ray.codec.record_batch import FRAME_RECORDS_MAX
from rmq_ray.config import ProducerConfig
from rmq_ray.errors import ClientError, MessageIllegal
from rmq_ray.model.ids import MessageQueue
from rmq_ray.model.message import (
    DELAY,
    KEYS,
    NO_PROPERTIES,
    TAGS,
    TIMER_DELAY_MS,
    TIMER_DELIVER_MS,
    WAIT,
    Message,
    decode_properties,
)
from rmq_ray.model.topics import RETRY_PREFIX, SYSTEM_TOPICS
from rmq_ray.protocol.validators import (
    DELAY_LEVEL_MAX,
    NO_KEYS,
    PLAIN_KEYS,
    SPECIAL_PROPERTIES_BYTES_MAX,
    check_body,
    check_delay_level,
    check_flags,
    check_properties_fit,
    check_repeatable,
    check_send_topic,
    check_wait,
    property_text,
)

When = int | str
"""A delay level, 0 = at once; or the property of an exact time as it goes on the wire."""
_MS = timedelta(milliseconds=1)
Selector = Callable[[Sequence[MessageQueue], Message, object], MessageQueue]
"""(writable queues, message, the call's ``arg``) -> one of the queues."""
Labels = tuple[str | None, Sequence[str], Mapping[str, str] | None]
"""Tag, keys, properties."""

Placement = tuple[MessageQueue | None, Selector | None, object, str | None]
"""Given queue, selector, its ``arg``, message group: at most one way to choose the queue."""

NO_LABELS: Labels = (None, NO_KEYS, None)
TIMEOUT_S_MAX = 1e8
SEND_FORM = "send(topic, body, tag=..., keys=[...]), the topic a string and the body bytes"
BATCH_FORM = (
    "send_batch(topic, [body, ...]) for bodies alone, send_batch([Message(...), ...]) for messages"
)
LabelColumns = tuple[object, object, object]
"""Tags, keys, properties of a batch of bodies: one for all, or a sequence with one for each."""
NO_COLUMNS: LabelColumns = (None, None, None)


@dataclass(frozen=True, slots=True)
class BodyColumns:
    """A batch as columns: bodies of one topic, and each one's property text; no object for a
    message.
    """

    topic: str
    bodies: list[bytes]
    texts: list[str]


@dataclass(slots=True)
class SendRequest:
    """One checked message. ``text``: KEYS, TAGS and user properties. ``special``: takes the
    single-message path.

    ``queue``: where it must go, None = anywhere. ``ordered``: it was given its queue for the sake
    of order. ``group``: its message group. ``flag``: a flag word (``client.outgoing.compressing``).
    """

    topic: str
    body: bytes
    text: str
    flag: int = 0
    special: bool = False
    queue: MessageQueue | None = None
    ordered: bool = False
    group: str | None = None


def checked_request(
    topic_or_message: str | Message, body: object, labels: Labels, time: When, body_bytes_max: int
) -> SendRequest:
    """The checked message of a call: a ``Message``, or a topic with its parts. ``time``: see
    ``client.outgoing.send_request``.
    """
    tag, keys, properties = labels
    flag, wait_store_ok = 0, True
    if isinstance(topic_or_message, Message):
        message = topic_or_message
        if body is not None or tag is not None or _given(keys) or _given(properties) or time:
            raise ClientError(
                "give a Message or a topic with parts, not both: set body, tag, keys, "
                "properties and the delay in the Message"
            )
        topic, body, tag, keys, properties = (
            message.topic,
            message.body,
            message.tag,
            message.keys,
            message.properties,
        )
        time = when(message.delay_level, message.delay, message.deliver_at)
        (flag,), wait_store_ok = check_flags((message.flag,)), check_wait(message.wait_store_ok)
        check_repeatable(keys)
    else:
        topic = topic_or_message
        _check_kinds(topic, body)
    check_send_topic(topic)
    content = check_body(body, body_bytes_max)
    text = (
        ""
        if tag is None and keys is NO_KEYS and properties is None
        else property_text(tag, keys, properties)
    )
    special = is_special(topic, time, wait_store_ok)
    if special:
        if not isinstance(time, str):
            check_delay_level(time)
        check_properties_fit(text, SPECIAL_PROPERTIES_BYTES_MAX)
        text += special_text(time, wait_store_ok)
    return SendRequest(topic, content, text, flag, special)


def _check_kinds(topic: object, body: object) -> None:
    """``ClientError`` for a topic that is no string, ``MessageIllegal`` for a body that is no
    bytes: they say how the call is written.
    """
    if not isinstance(topic, str):
        raise ClientError(
            f"the topic must be a string, not {topic!r:.80}; call {SEND_FORM}", repr(topic)[:80]
        )
    if not isinstance(body, bytes | bytearray | memoryview):
        given = "is missing" if body is None else f"must be bytes, not {type(body).__name__}"
        raise MessageIllegal(f"the body {given}; {_as_bytes(body)}call {SEND_FORM}")


def _as_bytes(body: object) -> str:
    """How a body of some usual type becomes bytes."""
    if isinstance(body, str):
        return "encode it, for instance body.encode(); "
    if isinstance(body, dict | list | tuple | int | float):
        return "encode it, for instance json.dumps(body).encode(); "
    return "" if body is None else "encode it first; "


def _given(labels: object) -> bool:
    """Whether a call names keys or properties; an empty collection names none."""
    if labels is None or labels is NO_KEYS:
        return False
    try:
        return not isinstance(labels, Sized) or len(labels) > 0
    except TypeError:  # arrays without dimensions
        return True


def is_special(topic: str, time: When, wait_store_ok: bool) -> bool:
    """True for what a frame of records may not carry."""
    return (
        time != 0 or not wait_store_ok or topic.startswith(RETRY_PREFIX) or topic in SYSTEM_TOPICS
    )


def special_text(time: When, wait_store_ok: bool) -> str:
    """The reserved properties of a special message, in the form of the wire.

    >>> special_text(3, False)
    'DELAY\\x013\\x02WAIT\\x01false\\x02'
    """
    delay = time if isinstance(time, str) else f"{DELAY}\x01{time}\x02" if time else ""
    return delay if wait_store_ok else f"{delay}{WAIT}\x01false\x02"


def as_message(message: SendRequest) -> Message:
    """What a selector sees: the message as its sender gave it, but for the time of its delivery."""
    properties = decode_properties(message.text)
    tag, keys = properties.pop(TAGS, None), properties.pop(KEYS, "")
    return Message(
        message.topic,
        message.body,
        tag,
        keys.split(" ") if keys else (),
        properties,
        message.flag & 0xFFFF_FFFF,
    )


def placed(
    queue: MessageQueue | None, selector: Selector | None, arg: object, message_group: str | None
) -> Placement | None:
    """A call's placement; None = anywhere. ``ClientError`` for an ``arg`` that nobody would look
    at.
    """
    if arg is not None and selector is None:
        raise ClientError(f"arg {arg!r:.80} is for a selector; give selector=, or leave arg out")
    return (
        None
        if queue is None and selector is None and message_group is None
        else (queue, selector, arg, message_group)
    )


def check_placement(
    queue: MessageQueue | None, selector: Selector | None, message_group: object
) -> None:
    """At most one way to choose the queue may be used, and a group must have a name."""
    if sum(way is not None for way in (queue, selector, message_group)) > 1:
        raise ClientError(
            "queue, selector and message_group each choose the queue; give one of them"
        )
    if selector is not None and not callable(selector):
        raise ClientError(
            f"the selector {selector!r:.80} cannot be called; give a function of (queues, "
            f"message, arg) that returns one of the queues"
        )
    if message_group is not None and (not isinstance(message_group, str) or not message_group):
        raise ClientError(
            f"message_group {message_group!r} must be a string that is not empty; use None "
            f"for no group"
        )


def timeout_in_ms(timeout_s: float) -> float:
    """A call's time-out in milliseconds; ``ClientError`` unless it is positive and less than three
    years.
    """
    try:
        if 0 < timeout_s < TIMEOUT_S_MAX:
            return float(timeout_s) * 1000
    except (TypeError, ValueError):  # ValueError: arrays
        pass
    raise ClientError(
        f"timeout is {timeout_s!r}; give a positive number of seconds, or None for the "
        f"configured one"
    )


# --- delivery times ---


def when(delay_level: int, delay: object, deliver_at: object) -> When:
    """What the three arguments ask for; at most one may be given. ``ClientError``.

    >>> when(3, None, None), when(0, timedelta(seconds=1.5), None)
    (3, 'TIMER_DELAY_MS\\x011500\\x02')
    """
    if delay_level.__class__ is not int:
        delay_level = _level(delay_level)
    if delay is None and deliver_at is None:
        return delay_level
    if (delay is not None) + (deliver_at is not None) + (delay_level != 0) > 1:
        raise ClientError(
            "delay_level, delay and deliver_at each choose the delivery time; give one of them"
        )
    if delay is not None:
        return f"{TIMER_DELAY_MS}\x01{_delay_ms(delay)}\x02"
    if not isinstance(deliver_at, datetime):
        raise ClientError(
            f"deliver_at is {deliver_at!r}; give a datetime (one without time zone is local time)",
            repr(deliver_at),
        )
    try:
        return f"{TIMER_DELIVER_MS}\x01{max(1, -int(-deliver_at.timestamp() * 1000 // 1))}\x02"
    except (OverflowError, ValueError, OSError) as error:  # local times at the ends of the calendar
        raise ClientError(
            f"deliver_at is {deliver_at!r}, which is no point in time here ({error}); give "
            f"one with a time zone",
            repr(deliver_at),
        ) from None


def _level(delay_level: object) -> int:
    """A plain number, which is written as one: that of an Enum's member or of another library, but
    no bool.
    """
    try:
        if not isinstance(delay_level, bool):
            return as_index(delay_level)  # type: ignore[arg-type]
    except TypeError:
        pass
    raise ClientError(
        f"delay_level is {delay_level!r}; give a whole number, 0 (none) to 18", repr(delay_level)
    )


def _delay_ms(delay: object) -> int:
    """Rounded up to whole milliseconds: never early."""
    if not isinstance(delay, timedelta) or delay < timedelta(0):
        raise ClientError(
            f"delay is {delay!r}; give a timedelta that is not negative{_delay_form(delay)}",
            repr(delay),
        )
    whole, rest = divmod(delay, _MS)
    return whole + bool(rest)


def _delay_form(delay: object) -> str:
    """What to write for a bare number, which may mean seconds or one of RocketMQ's levels."""
    if not isinstance(delay, int | float) or isinstance(delay, bool) or not delay > 0:
        return ""
    seconds = f": delay=timedelta(seconds={delay!r}) for {delay!r} s"
    if isinstance(delay, int) and delay <= DELAY_LEVEL_MAX:
        return f"{seconds}, or delay_level={delay} for level {delay} of {DELAY_LEVEL_MAX}"
    return seconds


# --- batches ---


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
    if tags is None and keys is None and properties is None:
        return [""] * count
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
