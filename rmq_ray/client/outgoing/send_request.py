"""What a send call means: its arguments checked and brought into one form, for both producers.

Decides which of RocketMQ's paths a message takes: ordinary messages go as records, special kinds
(delay, WAIT=false, retry and system topics) as single messages; and which property carries a
delivery time: a delay travels as a length, so that the broker's clock alone decides when it is
over. Does not decide limits of time: the broker's ``timer_max_delay_hours``. Pure; raises what
``protocol.validators`` raises.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence, Sized
from datetime import datetime, timedelta
from operator import index as as_index

from rmq_ray.errors import ClientError, MessageIllegal
from rmq_ray.model.ids import MessageQueue
from rmq_ray.model.message import (
    DELAY,
    KEYS,
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
from rmq_ray.value import Draft

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


class SendRequest(Draft):
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
    ``when``.
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
