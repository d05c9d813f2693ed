"""What may be sent, and what names are legal: RocketMQ's Validators with our stricter lengths
(protocol-behaviour 5, 8; store-format 2.4, 2.5).

Decides per value; raises typed errors that name the value and the remedy. Used by producers before
anything is encoded, and by brokers for what foreign clients send. Pure.

    names      ClientError       topic, group
    topics     TopicNotWritable  that belong to the system
    bodies     MessageIllegal    empty or not bytes
               MessageTooLarge   over the limit
    properties MessageIllegal    reserved, blank, or with a separator inside
               MessageTooLarge   over 32767 bytes
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from numbers import Integral
from operator import index

from rmq_ray.errors import ClientError, MessageIllegal, MessageTooLarge, TopicNotWritable
from rmq_ray.model.message import (
    KEYS,
    NAME_SEPARATOR,
    PROPERTY_SEPARATOR,
    RESERVED_PROPERTIES,
    TAGS,
)
from rmq_ray.model.topics import DLQ_PREFIX, FORBIDDEN_SEND_TOPICS, RETRY_PREFIX, SYSTEM_TOPICS

TOPIC_CHARS_MAX = 127
GROUP_CHARS_MAX = 120  # "%RETRY%" + group must be a legal topic
PROPERTIES_BYTES_MAX = 32_767  # PROPLEN is an i16
UNIQUE_TAIL_BYTES = 41  # UNIQ_KEY, its separator and 32 digits end every record
MARK_BYTES = 83  # a frame's mark and the separator behind it
USER_PROPERTIES_BYTES_MAX = PROPERTIES_BYTES_MAX - UNIQUE_TAIL_BYTES - MARK_BYTES
"""What is left for KEYS, TAGS and user properties in any record of a frame."""
SPECIAL_PROPERTIES_BYTES_MAX = USER_PROPERTIES_BYTES_MAX - 512
"""The same of a message that is delayed or does not wait: the broker adds where it goes in
the end.
"""
DEFAULT_GROUPS = frozenset(("DEFAULT_PRODUCER", "DEFAULT_CONSUMER"))
DELAY_LEVEL_MAX = 18
FLAG_MIN, FLAG_MAX = -(1 << 31), (1 << 31) - 1
_REMEMBERED_MAX = 4_096
_topics: set[str] = set()
_send_topics: set[str] = set()
"""Names that were found legal."""

NO_KEYS: Sequence[str] = ()
PLAIN_KEYS = (list, tuple, str)

_last_labels: list[tuple[str | None, Mapping[str, str] | None, str]] = [(None, None, "")]
"""Tag and properties, and their text."""
_last_properties: list[tuple[Mapping[str, str], str]] = [({}, "")]
_LEGAL = re.compile(r"[%|a-zA-Z0-9_-]+")
_ALLOWED = "letters, digits, % | _ -"


def check_topic(topic: str) -> None:
    """``^[%|a-zA-Z0-9_-]{1,127}$``, else ``ClientError``."""
    if topic.__class__ is not str or topic not in _topics:
        _check_name("topic", topic, TOPIC_CHARS_MAX)
        _remember(_topics, topic)


def check_send_topic(topic: str) -> None:
    """A legal topic that users may send to; ``TopicNotWritable`` for the system's own."""
    if topic.__class__ is not str or topic not in _send_topics:
        check_topic(topic)
        if topic in FORBIDDEN_SEND_TOPICS:
            raise TopicNotWritable(
                f"topic {topic!r} belongs to the system and cannot be sent to; use a topic "
                f"of your own",
                topic,
            )
        _remember(_send_topics, topic)


def check_bulk_topic(topic: str) -> None:
    """A topic that rows can be written to in bulk; ``TopicNotWritable`` for those of consumer
    groups, which brokers take message by message.
    """
    check_send_topic(topic)
    if topic.startswith((RETRY_PREFIX, DLQ_PREFIX)):
        raise TopicNotWritable(
            f"topic {topic!r} belongs to a consumer group and takes single messages only; "
            f"write to a topic of your own",
            topic,
        )


def check_new_topic(topic: str) -> None:
    """A legal name for a topic that a user creates; ``ClientError`` for the system's names too."""
    check_topic(topic)
    if topic in SYSTEM_TOPICS:
        raise ClientError(f"topic {topic!r} belongs to the system; choose another name", topic)


def check_group(group: str) -> None:
    """``^[%|a-zA-Z0-9_-]{1,120}$`` and not RocketMQ's default names, else ``ClientError``."""
    _check_name("group", group, GROUP_CHARS_MAX)
    if group in DEFAULT_GROUPS:
        raise ClientError(
            f"group {group!r} is RocketMQ's default name; choose one of your own", group
        )


def check_body(body: object, body_bytes_max: int) -> bytes:
    """The body as bytes. ``MessageIllegal`` when it is not bytes or empty, ``MessageTooLarge`` over
    ``body_bytes_max``.
    """
    if not isinstance(body, bytes):
        if not isinstance(body, bytearray | memoryview):
            raise MessageIllegal(
                f"the body must be bytes, not {type(body).__name__}; encode it first"
            )
        body = bytes(body)
    if not body:
        raise MessageIllegal("the body is empty; a message needs at least one byte")
    if len(body) > body_bytes_max:
        raise MessageTooLarge(
            f"the body has {len(body)} bytes, the limit is {body_bytes_max}; split it or "
            f"store it elsewhere and send a reference",
            len(body),
            body_bytes_max,
        )
    return body


def check_flags(flags: Iterable[object]) -> list[int]:
    """Users' flags as plain numbers: each a signed one of 32 bits, else ``MessageIllegal``. (What
    is larger would be read as SYSFLAG.)

    Numbers of other libraries, which have an ``__index__``, are whole numbers too.
    """
    return [
        flag if flag.__class__ is int and FLAG_MIN <= flag <= FLAG_MAX else _flag(flag)
        for flag in flags
    ]


def check_wait(flag: object) -> bool:
    """``wait_store_ok`` of a message as a plain bool: True or False, also numpy's, or a whole
    number; else ``MessageIllegal``.
    """
    if flag is True or flag is False:
        return flag
    numpys = type(flag).__module__ == "numpy" and type(flag).__name__.startswith("bool")
    if not isinstance(flag, Integral) and not numpys:  # numpy itself takes long to import
        raise MessageIllegal(f"wait_store_ok is {flag!r:.80}; give True or False", "wait_store_ok")
    return bool(flag)


def check_repeatable(keys: object) -> None:
    """``MessageIllegal`` for keys of a ``Message`` that can be read only once: sent again it would
    have none.
    """
    if keys.__class__ not in PLAIN_KEYS and isinstance(keys, Iterator):
        raise MessageIllegal(
            f"the keys of a Message are {keys!r:.80}, which can be read only once; give a "
            f"list of strings",
            "keys",
        )


def check_delay_level(level: object) -> None:
    """0 (none) to 18, else ``MessageIllegal``."""
    if not isinstance(level, int) or isinstance(level, bool) or not 0 <= level <= DELAY_LEVEL_MAX:
        raise MessageIllegal(f"delay_level is {level!r}; 0 (none) to {DELAY_LEVEL_MAX} exist")


def property_text(
    tag: str | None, keys: Sequence[str] | str | None, properties: Mapping[str, str] | None
) -> str:
    """KEYS, TAGS and the user's properties in the form of the wire, each ended by 0x02, so that
    UNIQ_KEY can follow.

    ``tag``: None or empty = none. ``keys``: a list of keys without blanks, or one string with
    blanks between keys. ``properties``: None = none. Raises ``MessageIllegal`` or
    ``MessageTooLarge``.

    >>> property_text("paid", ["o-1", "o-2"], {"region": "eu"})
    'KEYS\\x01o-1 o-2\\x02TAGS\\x01paid\\x02region\\x01eu\\x02'
    """
    try:
        known_tag, known, tail = _last_labels[
            0
        ]  # messages in a row often have the same ones, but for their keys
        if keys.__class__ is list and len(keys) == 1 and tag == known_tag and properties == known:
            key = keys[0]
            if (
                key.__class__ is str and key and key.isprintable() and " " not in key
            ):  # separators are not printable
                text = f"KEYS\x01{key}\x02{tail}"
                if text.isascii() and len(text) <= USER_PROPERTIES_BYTES_MAX:
                    return text
    except (TypeError, ValueError):  # pandas.NA and arrays, which refuse to be compared
        pass
    return _new_text(tag, keys, properties)


def _new_text(
    tag: str | None, keys: Sequence[str] | str | None, properties: Mapping[str, str] | None
) -> str:
    text, keys_end = "", 0
    if keys.__class__ is list and len(keys) == 1:
        key = keys[0]
        if (
            key.__class__ is not str
            or not key
            or " " in key
            or NAME_SEPARATOR in key
            or PROPERTY_SEPARATOR in key
        ):
            return _judged_text(tag, keys, properties)
        text = "KEYS\x01" + key + "\x02"
        keys_end = len(text)
    elif keys is not NO_KEYS and (keys.__class__ not in PLAIN_KEYS or keys):
        return _judged_text(tag, keys, properties)
    if tag.__class__ is str:
        part = _tag_text(tag) if tag else ""
        if tag and not part:
            return _judged_text(tag, keys, properties)
        text += part
    elif tag is not None:
        return _judged_text(tag, keys, properties)
    known: Mapping[str, str] | None = None
    if properties.__class__ is dict and properties:
        known, known_text = _last_properties[0]
        try:
            alike = properties == known
        except (TypeError, ValueError):  # as in property_text
            alike = False
        if not alike:
            own = dict(
                properties
            )  # what is remembered is what was judged, whoever changes the sender's dict meanwhile
            whole = _judged_text(tag, keys, own)
            _last_properties[0] = (own, whole[len(text) :])
            return whole
        text += known_text
    elif properties.__class__ is not dict and properties is not None:
        return _judged_text(tag, keys, properties)
    if keys_end or known:
        _last_labels[0] = (tag, known, text[keys_end:])
    return (
        text
        if text.isascii() and len(text) <= USER_PROPERTIES_BYTES_MAX
        else _judged_text(tag, keys, properties)
    )


@lru_cache(maxsize=4096)
def _tag_text(tag: str) -> str:
    """Empty for what is no tag."""
    sound = tag.strip() and NAME_SEPARATOR not in tag and PROPERTY_SEPARATOR not in tag
    return f"{TAGS}\x01{tag}\x02" if sound else ""


def _judged_text(
    tag: str | None, keys: Sequence[str] | str | None, properties: Mapping[str, str] | None
) -> str:
    """Every rule, one after the other."""
    _check_kinds(tag, properties)
    keys_text, tag, properties = (
        _joined(keys),
        tag or None,
        {} if properties is None else dict(properties),
    )
    text, count = "", len(properties)
    if keys_text:
        text = (
            KEYS + "\x01" + keys_text + "\x02"
        )  # no format, which names a member of an Enum instead of its value
        count += 1
    if tag is not None:
        text += TAGS + "\x01" + tag + "\x02"
        count += 1
    for name, value in properties.items():
        _check_strings(name, value)
        if name in RESERVED_PROPERTIES or not (name and value):
            raise _bad_property(name, value)
        text += name + "\x01" + value + "\x02"
    if (
        text.count(NAME_SEPARATOR) != count
        or text.count(PROPERTY_SEPARATOR) != count
        or tag is not None
        and not tag.strip()
    ):
        raise _find_fault(tag, keys_text, properties)
    if not text.isascii():
        _check_encodable(text)
    check_properties_fit(text, USER_PROPERTIES_BYTES_MAX)
    return text


def check_properties_fit(text: str, limit: int) -> None:
    """``MessageTooLarge`` for a property string of more than ``limit`` bytes."""
    if len(text) * 3 > limit and (size := len(text.encode())) > limit:
        raise MessageTooLarge(
            f"keys, tag and properties have {size} bytes, the limit is {limit}; shorten them "
            f"or put them into the body",
            size,
            limit,
        )


def _flag(flag: object) -> int:
    try:
        number = index(flag)  # type: ignore[arg-type]
        if FLAG_MIN <= number <= FLAG_MAX:
            return number
    except TypeError:
        pass
    raise MessageIllegal(
        f"flag is {flag!r:.80}; give a whole number from {FLAG_MIN} to {FLAG_MAX}", "flag"
    )


def _remember(known: set[str], name: str) -> None:
    if len(known) >= _REMEMBERED_MAX:
        known.clear()
    known.add(name)


def _check_name(kind: str, name: object, chars_max: int) -> None:
    if not isinstance(name, str):
        raise ClientError(f"the {kind} must be a string, not {name!r:.80}", repr(name)[:80])
    if not name.strip():
        raise ClientError(
            f"the {kind} {name!r} is blank; give it 1 to {chars_max} characters ({_ALLOWED})", name
        )
    if len(name) > chars_max:
        raise ClientError(
            f"the {kind} {name[:32]!r}... has {len(name)} characters; {chars_max} are allowed", name
        )
    if _LEGAL.fullmatch(name) is None:
        raise ClientError(
            f"the {kind} {name!r} has other characters than {_ALLOWED}; rename it", name
        )


def _check_encodable(text: str) -> None:
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise MessageIllegal(
            f"tag, keys or properties hold a character that UTF-8 cannot encode: "
            f"{text[error.start : error.end]!r}; remove it"
        ) from None


def _check_kinds(tag: object, properties: object) -> None:
    if tag is not None and not isinstance(tag, str):
        raise MessageIllegal(f"the tag must be a string, not {tag!r:.80}; use None for no tag")
    if properties is not None and not isinstance(properties, Mapping):
        raise MessageIllegal(
            f"properties must be a mapping of strings to strings, not {properties!r:.80}"
        )


def _check_strings(*parts: object) -> None:
    if not all(isinstance(part, str) for part in parts):
        raise MessageIllegal(
            "properties must be strings, not "
            + " = ".join(f"{part!r:.80}" for part in parts)
            + "; convert them first"
        )


def _joined(keys: Iterable[str] | None) -> str:
    if isinstance(keys, str):
        return keys
    listed = [] if keys is None else _listed(keys)
    text = " ".join(listed)
    if text.count(" ") != max(0, len(listed) - 1) or not all(listed):
        raise MessageIllegal(
            f"keys {listed!r} hold a blank inside a key, or an empty key; blanks separate "
            f"keys, replace them"
        )
    return text


def _listed(keys: Iterable[str]) -> list[str]:
    refused = (
        f"keys must be strings, not {keys!r:.80}; give a list of strings, or one string with "
        f"blanks between keys"
    )
    if isinstance(keys, bytes | bytearray | memoryview):
        raise MessageIllegal(refused)
    try:
        listed = list(keys)
    except TypeError:
        raise MessageIllegal(refused) from None
    if not all(isinstance(key, str) for key in listed):
        raise MessageIllegal(refused)
    return listed


def _bad_property(name: str, value: str) -> MessageIllegal:
    if name in RESERVED_PROPERTIES:
        return MessageIllegal(
            f"property {name!r} is reserved by the queue itself; rename it, or use the "
            f"argument meant for it (tag, keys, delay_level)",
            name,
        )
    return MessageIllegal(
        f"property {name!r} = {value!r}: name and value must not be empty; leave the property out",
        name,
    )


def _find_fault(tag: str | None, keys_text: str, properties: Mapping[str, str]) -> MessageIllegal:
    """Only called when something is wrong: which of them it is."""
    values = [("tag", tag or ""), ("keys", keys_text)]
    values += [(f"property {name!r}", name + value) for name, value in properties.items()]
    for what, value in values:
        if NAME_SEPARATOR in value or PROPERTY_SEPARATOR in value:
            return MessageIllegal(
                f"{what} holds the separator 0x01 or 0x02: {value!r}; remove it", what
            )
    return MessageIllegal(f"tag {tag!r} is blank; use None for no tag", "tag")
