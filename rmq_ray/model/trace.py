"""Message trace: what one message went through, as Apache RocketMQ's clients write it
(protocol-behaviour 25).

    record 0x02 record 0x02 ...          a record is  field 0x01 field 0x01 ... field

    Pub        type, ms, region, group, topic, message id, tag, keys, store host, body bytes, cost
               ms, message type, offset message id, success
    SubBefore  type, ms, region, group, request id, message id, retries, keys
    SubAfter   type, request id, message id, cost ms, success, keys, code, ms, group
    EndTransaction   type, ms, region, group, topic, message id, tag, keys, store host, message
                     type, transaction id, state, from a check

A trace message's body is such records, its KEYS are the ids and keys in them, so that it is found
by either. Decides the bytes. Pure. Invariant: reading what was written gives it back; what cannot
be read is left out.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import astuple, dataclass, fields
from enum import IntEnum
from typing import Any

FIELD, RECORD = "\x01", "\x02"
REGION = "DefaultRegion"
_REQUIRED = {"Pub": 13, "SubBefore": 7, "SubAfter": 6, "EndTransaction": 12}


class TraceMessageType(IntEnum):
    """Kinds of messages, in RocketMQ's order."""

    NORMAL = 0
    HALF = 1
    COMMIT = 2
    DELAY = 3


class TraceCode(IntEnum):
    """How a call of a listener ended, in RocketMQ's order (ConsumeReturnType)."""

    SUCCESS = 0
    TIME_OUT = 1
    EXCEPTION = 2
    RETURNED_NULL = 3
    FAILED = 4


@dataclass(frozen=True, slots=True)
class _OfProducer:
    """What a producer's records begin with."""

    ms: int
    region: str
    group: str
    topic: str
    message_id: str
    tag: str
    keys: str
    store_host: str


@dataclass(frozen=True, slots=True)
class Pub(_OfProducer):
    """A send that a broker answered. ``ms``: when it began, since 1970."""

    body_bytes: int
    cost_ms: int
    message_type: int
    offset_message_id: str
    success: bool


@dataclass(frozen=True, slots=True)
class SubBefore:
    """A listener is about to get the message. ``request_id`` joins it with its ``SubAfter``."""

    ms: int
    region: str
    group: str
    request_id: str
    message_id: str
    retries: int
    keys: str


@dataclass(frozen=True, slots=True)
class SubAfter:
    """The listener is done with it."""

    request_id: str
    message_id: str
    cost_ms: int
    success: bool
    keys: str
    code: int
    ms: int = 0
    group: str = ""


@dataclass(frozen=True, slots=True)
class EndTransaction(_OfProducer):
    """A half message was committed, rolled back or left open. ``state``: RocketMQ's word for it.
    ``from_check``: a broker had asked.
    """

    message_type: int
    transaction_id: str
    state: str
    from_check: bool


Trace = Pub | SubBefore | SubAfter | EndTransaction
_KINDS: dict[str, type[Any]] = {
    "Pub": Pub,
    "SubBefore": SubBefore,
    "SubAfter": SubAfter,
    "EndTransaction": EndTransaction,
}


def encode(record: Trace) -> str:
    """One record with the separator behind it.

    >>> encode(SubAfter("r", "M", 3, True, "", 0, 9, "g"))
    'SubAfter\\x01r\\x01M\\x013\\x01true\\x01\\x010\\x019\\x01g\\x02'
    """
    values = [
        str(value).lower() if isinstance(value, bool) else str(value) for value in astuple(record)
    ]
    return FIELD.join((type(record).__name__, *(_clean(value) for value in values))) + RECORD


def decode(body: bytes) -> list[Trace]:
    """The records of a trace message; kinds and records that are not understood are left out."""
    return [
        found
        for text in body.decode("utf-8", "replace").split(RECORD)
        if (found := _read(text.split(FIELD))) is not None
    ]


def search_keys(records: Sequence[Trace]) -> list[str]:
    """Message ids and business keys of the records, each once."""
    found: dict[str, None] = {}
    for record in records:
        for key in (record.message_id, *record.keys.split()):
            if key:
                found[key] = None
    return list(found)


def _read(parts: list[str]) -> Trace | None:
    kind = _KINDS.get(parts[0])
    values = parts[1:]
    if kind is None or len(values) < _REQUIRED[parts[0]]:
        return None
    try:
        made: Trace = kind(
            *(_value(field.type, text) for field, text in zip(fields(kind), values, strict=False))
        )
    except ValueError:
        return None
    return made


def _value(kind: object, text: str) -> Any:
    if kind == "int":
        return int(text)
    if kind == "bool":
        return text == "true"
    return "" if text == "null" else text  # Java writes null for what is not there


def _clean(text: str) -> str:
    return (
        text.replace(FIELD, " ").replace(RECORD, " ") if FIELD in text or RECORD in text else text
    )
