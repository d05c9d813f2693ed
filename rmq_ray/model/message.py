"""Messages as users make them, and what a send returns. Many messages travel as one ``bytes``;
these objects stay at the ends.

Reserved property names and limits: store-format 2.4 and 2.5.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import Enum
from typing import NoReturn

from rmq_ray.model.ids import LogOffset, MessageQueue, QueueOffset
from rmq_ray.value import Value

NAME_SEPARATOR = "\x01"
PROPERTY_SEPARATOR = "\x02"

KEYS = "KEYS"
TAGS = "TAGS"
WAIT = "WAIT"
DELAY = "DELAY"
RETRY_TOPIC = "RETRY_TOPIC"
REAL_TOPIC = "REAL_TOPIC"
REAL_QUEUE_ID = "REAL_QID"
TRANSACTION_PREPARED = "TRAN_MSG"
PRODUCER_GROUP = "PGROUP"
MIN_OFFSET = "MIN_OFFSET"
MAX_OFFSET = "MAX_OFFSET"
UNIQUE_KEY = "UNIQ_KEY"
RECONSUME_TIME = "RECONSUME_TIME"
MAX_RECONSUME_TIMES = "MAX_RECONSUME_TIMES"
CONSUME_START_TIME = "CONSUME_START_TIME"
ORIGIN_MESSAGE_ID = "ORIGIN_MESSAGE_ID"
TRACE_ON = "TRACE_ON"
CLUSTER = "CLUSTER"
INSTANCE_ID = "INSTANCE_ID"
IMMUNITY_SECONDS = "CHECK_IMMUNITY_TIME_IN_SECONDS"
TRANSACTION_CHECK_TIMES = "TRANSACTION_CHECK_TIMES"
PREPARED_QUEUE_OFFSET = "TRAN_PREPARED_QUEUE_OFFSET"
HALF_FROM = "RMQ_HALF_FROM"
"""Ours: on a copy of a half message, the queue offset of the half that it stands for."""
OP_OUTCOME = "RMQ_OP"
"""Ours: on an op message, how the half ended."""
FAILED_WITH = "RMQ_FAILED_WITH"
"""Ours: on a message that comes again and on a dead letter, why its listener failed last."""
FAILED_ON = "RMQ_FAILED_ON"
"""Ours, beside it: id of the client whose listener that was."""
TIMER_DELIVER_MS = "TIMER_DELIVER_MS"
TIMER_DELAY_MS = "TIMER_DELAY_MS"
TIMER_DELAY_SECONDS = "TIMER_DELAY_SEC"
TIMER_OUT_MS = "TIMER_OUT_MS"
TIMER_ROLL_TIMES = "TIMER_ROLL_TIMES"
TIMER_CANCELS = "RMQ_TIMER_CANCELS"
"""Ours: on what takes the place of a waiting message, that one's offset in the timer queue."""
FRAME = "RMQ_FRAME"
"""Ours: (producer id, sequence, count, own physical offset), first property of a frame's first
record; hidden from users.
"""

RESERVED_PROPERTIES = frozenset(
    "KEYS TAGS WAIT DELAY RETRY_TOPIC REAL_TOPIC REAL_QID TRAN_MSG PGROUP MIN_OFFSET "
    "MAX_OFFSET BUYER_ID ORIGIN_MESSAGE_ID "
    "TRANSFER_FLAG CORRECTION_FLAG MQ2_FLAG RECONSUME_TIME MSG_REGION TRACE_ON UNIQ_KEY "
    "EXTEND_UNIQ_INFO MAX_RECONSUME_TIMES "
    "CONSUME_START_TIME TRAN_PREPARED_QUEUE_OFFSET TRANSACTION_CHECK_TIMES "
    "CHECK_IMMUNITY_TIME_IN_SECONDS INSTANCE_ID "
    "CORRELATION_ID REPLY_TO_CLIENT TTL ARRIVE_TIME PUSH_REPLY_TIME CLUSTER MSG_TYPE "
    "INNER_MULTI_DISPATCH "
    "INNER_MULTI_QUEUE_OFFSET RMQ_FRAME RMQ_HALF_FROM RMQ_OP TIMER_DELIVER_MS TIMER_DELAY_MS "
    "TIMER_DELAY_SEC TIMER_OUT_MS TIMER_ROLL_TIMES "
    "TIMER_ENQUEUE_MS TIMER_DEQUEUE_MS TIMER_DEL_UNIQKEY TIMER_DEL_MS RMQ_TIMER_CANCELS "
    "RMQ_FAILED_WITH RMQ_FAILED_ON".split()
)
PREENCODED_PROPERTIES = frozenset((KEYS, TAGS, UNIQUE_KEY, CLUSTER, INSTANCE_ID, FRAME))
"""Reserved properties that a frame of pre-encoded records may carry (design: 4); all others take
the single-message path.
"""


class SysFlag:
    """Bits of a record's SYSFLAG (store-format 2.3)."""

    COMPRESSED = 0x1
    MULTI_TAGS = 0x2
    TRANSACTION_NOT = 0x0
    TRANSACTION_PREPARED = 0x4
    TRANSACTION_COMMIT = 0x8
    TRANSACTION_ROLLBACK = 0xC
    TRANSACTION_MASK = 0xC
    BORN_HOST_V6 = 0x10
    STORE_HOST_V6 = 0x20


class NoProperties(dict[str, str]):
    """The properties of a message that has none: one empty mapping for all of them."""

    def __setitem__(self, *_item: object, **_named: object) -> NoReturn:
        raise TypeError(
            "a Message does not change: give properties={...} when it is made, or make another one "
            "with dataclasses.replace"
        )

    setdefault = update = __ior__ = __setitem__

    def __hash__(self) -> int:  # type: ignore[override]
        return 0

    def __reduce__(self) -> str:
        return "NO_PROPERTIES"


NO_PROPERTIES = NoProperties()


class Message(Value, frozen=True, gc=False):
    """One message to send.

    ``body``: 1 byte to 4 MiB. ``tag``: one tag, used by consumers to filter. ``keys``: business
    keys for queries, no blanks inside; no iterator, because a message may be sent again.
    ``properties``: user properties; names and values not empty, no reserved names. ``flag``: a
    signed number of 32 bits, opaque to the queue. ``delay_level``: 0 = none, 1..18; or ``delay``,
    or ``deliver_at``: an exact time. Checked by ``protocol.validators`` when it is sent, not here.

    Made in 0.04 us where a frozen dataclass takes one, more than all else that sending a small
    message in a batch costs. ``dataclasses.replace`` and its kin take it.
    """

    topic: str
    body: bytes
    tag: str | None = None
    keys: Sequence[str] = ()
    properties: Mapping[str, str] = NO_PROPERTIES
    flag: int = 0
    delay_level: int = 0
    wait_store_ok: bool = True
    delay: timedelta | None = None
    deliver_at: datetime | None = None


class SendStatus(Enum):
    """What is true of a message that the broker has taken (promises: the table of modes)."""

    SEND_OK = 0
    """Written, and flushed and replicated as the broker's mode demands."""
    FLUSH_DISK_TIMEOUT = 10
    """Written, but fdatasync did not end within 5 s: may be lost with the host."""
    SLAVE_NOT_AVAILABLE = 11
    """Written on the master; too few slaves in sync to copy it to."""
    FLUSH_SLAVE_TIMEOUT = 12
    """Written on the master; a slave did not confirm in time."""

    @property
    def meaning(self) -> str:
        """What is true of the message, in words."""
        return _MEANINGS[self]


_MEANINGS = {
    SendStatus.SEND_OK: "written, flushed and replicated as the broker's mode demands",
    SendStatus.FLUSH_DISK_TIMEOUT: (
        "written, but the disk did not confirm within 5 s: it may be lost with the host"
    ),
    SendStatus.SLAVE_NOT_AVAILABLE: (
        "written on the master alone: too few slaves are in sync, it may be lost with the master"
    ),
    SendStatus.FLUSH_SLAVE_TIMEOUT: (
        "written on the master, but a slave did not confirm in time: it may be lost with the master"
    ),
}


@dataclass(frozen=True, slots=True)
class SendResult:
    """Outcome of one send, or of one frame of a batch (then ``queue_offset`` is the first
    message's).

    ``message_id``: the client's unique key (a batch: joined by ``,``). ``offset_message_id``: store
    host and physical offset, 32 hex digits, as RocketMQ's tools take it.
    """

    status: SendStatus
    message_id: str
    queue: MessageQueue
    queue_offset: QueueOffset
    offset_message_id: str = ""
    log_offset: LogOffset = LogOffset(-1)
    transaction_id: str | None = None
    count: int = 1
    recall_handle: str | None = None
    """Of a message with ``delay`` or ``deliver_at``: what takes it back while it waits."""

    @property
    def unknown(self) -> bool:
        """True when the broker has the message but not as safely as its mode promises: it may be
        lost, and sending again may store it twice.
        """
        return self.status is not SendStatus.SEND_OK


def encode_properties(properties: Mapping[str, str]) -> str:
    """``name 0x01 value 0x02 name 0x01 value``, no trailing separator (store-format 2.4).

    >>> encode_properties({"KEYS": "k1", "TAGS": "TagA"})
    'KEYS\\x01k1\\x02TAGS\\x01TagA'
    """
    return PROPERTY_SEPARATOR.join(
        f"{name}{NAME_SEPARATOR}{value}" for name, value in properties.items()
    )


def decode_properties(text: str) -> dict[str, str]:
    """Both endings are read; segments shorter than 3, without separator or with an empty value are
    skipped.

    >>> decode_properties("a\\x01b\\x02c\\x01\\x02d\\x01e\\x02")
    {'a': 'b', 'd': 'e'}
    """
    found: dict[str, str] = {}
    for segment in text.split(PROPERTY_SEPARATOR):
        name, separator, value = segment.partition(NAME_SEPARATOR)
        if separator and len(segment) >= 3 and value:
            found[name] = value
    return found
