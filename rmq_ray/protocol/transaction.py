"""Transactional messages: what a half message is, when its producer is asked, and which halves have
ended (protocol-behaviour 20; store-format 11).

    half queue  RMQ_SYS_TRANS_HALF_TOPIC/0     0  1  2  3  4  5 ...  every half message, real topic
                                                                     and queue among its properties
    op queue    RMQ_SYS_TRANS_OP_HALF_TOPIC/0  "1" "0" "3" ...       each entry ends one half: its
                                                                     body is the half's queue offset
    HalfWindow                                 E  E  .  E  .  .      '.' = still pending, E = how it
                                                                     ended

Decides: properties on the way in and out, what a check does with one half (``judge``), what is
known of each half (``HalfWindow``), which offsets of both queues a restart must read again. Does
not decide: when to look, how to store, whom to ask. Callers: the broker's send, end and check
paths.

Invariants: a half ends once; its first outcome stands. A window that begins at its two saved
offsets and sees every op from there on knows every half that is pending. An op is kept as long as
the half that it names, or the copy that took its place, is inside the window.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Mapping
from enum import Enum, IntEnum
from functools import lru_cache
from typing import NamedTuple

from rmq_ray.model.message import (
    DELAY,
    FRAME,
    HALF_FROM,
    IMMUNITY_SECONDS,
    OP_OUTCOME,
    PREPARED_QUEUE_OFFSET,
    PRODUCER_GROUP,
    PROPERTY_SEPARATOR,
    REAL_QUEUE_ID,
    REAL_TOPIC,
    TAGS,
    TRANSACTION_CHECK_TIMES,
    TRANSACTION_PREPARED,
    UNIQUE_KEY,
    WAIT,
    decode_properties,
    encode_properties,
)
from rmq_ray.model.topics import HALF_TOPIC, OP_HALF_TOPIC, SCHEDULE_TOPIC
from rmq_ray.value import Value

SYSTEM_GROUP = "CID_RMQ_SYS_TRANS"
"""Consumer group under which the offsets of both queues are saved."""
OP_TAG = "d"
IMMUNITY_S_MAX = 7 * 86_400
HISTORY = (
    65_536  # ended halves that are remembered, so that a repeated end gets the first one's answer
)
_COMPACT = 65_536
_MARK, _UNIQUE_PART = f"{FRAME}\x01", f"\x02{UNIQUE_KEY}\x01"
UNIQUE_TAIL_CHARS = len(_UNIQUE_PART) + 32
_NOT_IN_FINAL = frozenset(
    (
        FRAME,
        REAL_TOPIC,
        REAL_QUEUE_ID,
        TRANSACTION_PREPARED,
        DELAY,
        WAIT,
        TRANSACTION_CHECK_TIMES,
        PREPARED_QUEUE_OFFSET,
        HALF_FROM,
    )
)


class LocalTransactionState(Enum):
    """What a producer says of its local transaction; values are those of END_TRANSACTION."""

    COMMIT_MESSAGE = 8
    ROLLBACK_MESSAGE = 12
    UNKNOWN = 0
    """Not decided yet, or not known here: the broker asks again later."""


class EndState(IntEnum):
    """What became of a half message."""

    PENDING = 0
    COMMITTED = 1
    ROLLED_BACK = 2
    MOVED = 3
    """A newer copy of it stands for it."""
    DISCARDED = 4
    """Asked for too often, or too old: it lies in TRANS_CHECK_MAX_TIME_TOPIC."""
    ENDED = 5
    """Ended by a broker that did not write how."""
    FORGOTTEN = 6
    """Ended so long ago that nobody knows how."""


_EACH_STATE = tuple(EndState)
_LETTERS = {
    EndState.COMMITTED: "c",
    EndState.ROLLED_BACK: "r",
    EndState.MOVED: "m",
    EndState.DISCARDED: "x",
}
_STATES = {letter: state for state, letter in _LETTERS.items()}


class Verdict(Enum):
    """What a check does with one pending half."""

    STOP = "it and all behind it are too young"
    PUT_BACK = "its own immunity is not over: a copy goes to the end of the queue"
    CHECK = "a copy goes to the end of the queue and its producer group is asked"
    DISCARD = "it goes to TRANS_CHECK_MAX_TIME_TOPIC"


class CheckRules(Value, frozen=True):
    """``timeout_ms``: immunity of a young half (transactionTimeOut). ``checks_max``:
    transactionCheckMax. ``reserved_ms``: age at which it is given up.
    """

    timeout_ms: int = 6_000
    checks_max: int = 15
    reserved_ms: int = 72 * 3_600_000


class Op(Value, frozen=True):
    """One entry of the op queue. ``copy``: of a moved half, the queue offset of what stands for it
    now; ``before``: of what it stood for itself.
    """

    half_offset: int
    state: EndState
    copy: int = -1
    before: int = -1


def as_half(
    topic: str, queue_id: int, properties: Mapping[str, str], group: str
) -> tuple[str, dict[str, str]]:
    """(topic, properties) under which a half message is stored, in queue 0. The group that will be
    asked is PGROUP, or the sender's.
    """
    half = {name: value for name, value in properties.items() if name not in _NOT_IN_FINAL}
    half |= {TRANSACTION_PREPARED: "true", REAL_TOPIC: topic, REAL_QUEUE_ID: str(queue_id)}
    half.setdefault(PRODUCER_GROUP, group)
    return HALF_TOPIC, half


@lru_cache(maxsize=1024)
def half_prefix(topic: str, queue_id: int, group: str, immunity_s: int | None) -> str:
    """What the property string of a half that comes in a frame begins with: where it is to go, and
    who is asked.

    >>> half_prefix("orders", 3, "web", None)
    'TRAN_MSG\\x01true\\x02REAL_TOPIC\\x01orders\\x02REAL_QID\\x013\\x02PGROUP\\x01web\\x02'
    """
    target = {
        TRANSACTION_PREPARED: "true",
        REAL_TOPIC: topic,
        REAL_QUEUE_ID: str(queue_id),
        PRODUCER_GROUP: group,
    }
    return (
        encode_properties(
            target if immunity_s is None else {**target, IMMUNITY_SECONDS: str(immunity_s)}
        )
        + PROPERTY_SEPARATOR
    )


def real_target(properties: Mapping[str, str]) -> tuple[str, int] | None:
    """Topic and queue of a half message; None when it names none, or one that users may not
    write.
    """
    topic, queue = properties.get(REAL_TOPIC, ""), properties.get(REAL_QUEUE_ID, "")
    if not topic or topic in (HALF_TOPIC, OP_HALF_TOPIC, SCHEDULE_TOPIC) or not queue.isdigit():
        return None
    return topic, int(queue)


@lru_cache(maxsize=64)
def op_text(state: EndState, copy: int = -1, before: int = -1) -> str:
    """The property string of an op message."""
    return encode_properties(encode_op(Op(0, state, copy, before))[1])


def final_text(properties: Mapping[str, str]) -> str:
    """The property string of a committed message: the user's properties, without what made it a
    half.
    """
    return PROPERTY_SEPARATOR.join(
        [f"{name}\x01{value}" for name, value in properties.items() if name not in _NOT_IN_FINAL]
    )


class HalfFacts(NamedTuple):
    """Of a half's property string: who is asked about it, where its final goes (see
    ``real_target``), the final's property string.
    """

    group: str | None
    target: tuple[str, int] | None
    final: str


def half_facts(text: str) -> HalfFacts:
    """Our producers end the string with the unique key; what stands before it is mostly the same in
    many halves, and is parsed once.
    """
    cut = len(text) - UNIQUE_TAIL_CHARS
    if cut > 0 and text.startswith(_UNIQUE_PART, cut):
        head = _head_facts(
            text[text.find(PROPERTY_SEPARATOR) + 1 if text.startswith(_MARK) else 0 : cut]
        )
        if head is not None and PROPERTY_SEPARATOR not in text[cut + 1 :]:
            return HalfFacts(
                head.group, head.target, head.final + text[cut if head.final else cut + 1 :]
            )
    return _facts(decode_properties(text))


@lru_cache(maxsize=8192)
def _head_facts(text: str) -> HalfFacts | None:
    """Of the string without its unique key; None when there is one in it all the same."""
    properties = decode_properties(text)
    return None if UNIQUE_KEY in properties else _facts(properties)


def _facts(properties: Mapping[str, str]) -> HalfFacts:
    return HalfFacts(
        properties.get(PRODUCER_GROUP), real_target(properties), final_text(properties)
    )


def checks_of(properties: Mapping[str, str]) -> int:
    """How often the producer was asked about this half."""
    text = properties.get(TRANSACTION_CHECK_TIMES, "")
    return int(text) if text.isdigit() else 0


def copy_for_check(
    properties: Mapping[str, str], half_offset: int, counted: bool = True
) -> dict[str, str]:
    """Properties of the copy that stands for the half at ``half_offset`` while its producer is
    asked. ``counted``: there is somebody to be asked.
    """
    return {
        **properties,
        TRANSACTION_CHECK_TIMES: str(checks_of(properties) + counted),
        HALF_FROM: str(half_offset),
    }


def copy_for_immunity(properties: Mapping[str, str], half_offset: int) -> dict[str, str]:
    """Properties of the copy that waits on for its own immunity; it keeps the offset of its first
    copy.
    """
    first = properties.get(PREPARED_QUEUE_OFFSET) or str(half_offset)
    return {**properties, PREPARED_QUEUE_OFFSET: first, HALF_FROM: str(half_offset)}


def judge(
    rules: CheckRules,
    properties: Mapping[str, str],
    times: tuple[int, int],
    round_ms: int,
    now_ms: int,
) -> Verdict:
    """What to do with a pending half. ``times``: (born ms, stored ms). ``round_ms``: when this
    round of checks began.
    """
    born_ms, store_ms = times
    age = now_ms - born_ms
    if checks_of(properties) >= rules.checks_max or age > rules.reserved_ms:
        return Verdict.DISCARD
    if store_ms >= round_ms:
        return Verdict.STOP
    own = immunity_ms(properties)
    if own is None:
        return Verdict.STOP if 0 <= age < rules.timeout_ms else Verdict.CHECK
    return Verdict.PUT_BACK if 0 <= age < (rules.timeout_ms if own < 0 else own) else Verdict.CHECK


def immunity_ms(properties: Mapping[str, str]) -> int | None:
    """The message's own immunity, -1 = the broker's; None when it asks for none that makes
    sense.
    """
    text = properties.get(IMMUNITY_SECONDS, "").strip()
    if not text.lstrip("-").isdigit():
        return None
    return -1 if int(text) < 0 else int(text) * 1_000


def encode_op(op: Op) -> tuple[bytes, dict[str, str]]:
    """(body, properties) of an op message; how it ended is ours, in a reserved property.

    >>> encode_op(Op(7, EndState.COMMITTED))
    (b'7', {'TAGS': 'd', 'RMQ_OP': 'c'})
    """
    outcome = _LETTERS[op.state] + (f",{op.copy},{op.before}" if op.state is EndState.MOVED else "")
    return str(op.half_offset).encode(), {TAGS: OP_TAG, OP_OUTCOME: outcome}


def decode_op(body: bytes, properties: Mapping[str, str]) -> list[Op]:
    """What an op message ends: one half, or several (RocketMQ 5 joins offsets by commas); nothing
    when it cannot be read.
    """
    letter, *numbers = properties.get(OP_OUTCOME, "").split(",")
    state = _STATES.get(letter, EndState.ENDED)
    offsets = [
        int(part) for part in body.decode("ascii", "replace").split(",") if part.strip().isdigit()
    ]
    if (
        state is EndState.MOVED
        and len(numbers) == 2
        and all(number.isdigit() for number in numbers)
    ):
        return [Op(offset, state, int(numbers[0]), int(numbers[1])) for offset in offsets[:1]]
    return [Op(offset, EndState.ENDED if state is EndState.MOVED else state) for offset in offsets]


class HalfWindow:
    """What is known of the halves from queue offset ``start`` on: one byte each. ``op_start``: the
    op queue's offset from which ops are kept.
    """

    def __init__(self, start: int, op_start: int) -> None:
        self.start = start
        self.op_start = op_start
        self._states = bytearray()
        self._hint = 0
        self._ended = 0
        self._op_keys = array(
            "q"
        )  # of every op from _op_at on: the greatest half offset that still needs it
        self._op_at = 0
        self._copies: dict[int, int] = {}

    def apply(self, ops: Iterable[Op]) -> None:
        """An op message that was read: what it says, and that it exists."""
        key = -1
        for op in ops:
            self.end(op)
            key = max(key, op.half_offset, op.copy)
        self.written(key)

    def written(self, key: int) -> None:
        """The next op message is in the op queue. ``key``: the greatest half offset that it
        names.
        """
        self._op_keys.append(key)

    def ended(self, half_offset: int, state: EndState) -> None:
        """The half was committed or rolled back, and its op is in the op queue."""
        self._end(half_offset, state)
        self._op_keys.append(half_offset)

    def end(self, op: Op) -> bool:
        """The half ended in this way; its op is written next. False when it had ended before."""
        if not self._end(op.half_offset, op.state):
            return False
        if op.copy >= 0:
            self._copies[op.half_offset] = op.copy
            if op.before >= 0:
                self._copies[op.before] = op.copy
        return True

    def _end(self, half_offset: int, state: EndState) -> bool:
        at = half_offset - self.start
        if at < 0:
            return False
        states = self._states
        if at >= len(states):
            states.extend(bytes(at + 1 - len(states)))
        elif states[at]:
            return False
        states[at] = state
        self._ended += 1
        return True

    def state(self, half_offset: int) -> EndState:
        """What became of it."""
        at = half_offset - self.start
        if at < 0:
            return EndState.FORGOTTEN
        return _EACH_STATE[self._states[at]] if at < len(self._states) else EndState.PENDING

    def current(self, half_offset: int) -> int:
        """The copy that stands for this half now: itself, or what it was moved to."""
        if half_offset not in self._copies:
            return half_offset
        for _ in range(len(self._copies) + 1):  # a chain is never longer than the table
            following = self._copies.get(half_offset)
            if following is None or following == half_offset:
                break
            half_offset = following
        return half_offset

    def next_pending(self, from_offset: int) -> int:
        """The first half at or behind ``from_offset`` that has not ended; it may be the queue's
        end.
        """
        at = max(from_offset - self.start, self._hint)
        found = self._states.find(0, at)
        if found < 0:
            found = max(at, len(self._states))
        if from_offset - self.start <= self._hint:
            self._hint = found
        return self.start + found

    def pending(self, half_max: int) -> int:
        """How many of the halves below ``half_max`` have not ended."""
        return max(0, half_max - self.start - self._ended)

    def ended_from(self, offset: int) -> bytes:
        """A byte for each half from ``offset`` on, 0 where it waits; all behind them do."""
        return bytes(self._states[max(0, offset - self.start) :])

    def trim(self, half_max: int, keep: int = HISTORY) -> tuple[int, int]:
        """Forget what ended more than ``keep`` halves before the first pending one; returns the
        offsets (half, op) to save: a window made of them, with every op from there on applied,
        knows what this one knows.
        """
        gone = min(self.next_pending(self.start), half_max) - keep - self.start
        if gone > 0:
            del self._states[:gone]
            self.start += gone
            self._hint -= gone
            self._ended -= gone
            self._copies = {half: copy for half, copy in self._copies.items() if copy >= self.start}
        keys, at = self._op_keys, self._op_at
        while at < len(keys) and keys[at] < self.start:
            at += 1
        self.op_start += at - self._op_at
        self._op_at = at
        if at > _COMPACT and at * 2 > len(keys):
            del keys[:at]
            self._op_at = 0
        return self.start, self.op_start
