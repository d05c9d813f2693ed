"""What a listener gets and what it may answer (protocol-behaviour 15, 16).

    def handle(messages, ctx):          concurrent consumption: messages: list[MessageExt],
                                        ctx: ConsumeContext
        return None                     done (SUCCESS says the same)
        return RECONSUME_LATER          try all of them again later; so does any exception
        return Reject / raise Reject()  dead letter now, no further try

``ctx.ack_index`` makes a success partial: messages after it are tried again.
``ctx.delay_level_when_next_consume`` chooses the delay of the next try (0 = the broker decides by
the number of failures, -1 = dead letter).

    def handle(messages, ctx):          ordered consumption: ctx: OrderlyContext
        return None                     done (SUCCESS says the same): the queue goes on
        return SUSPEND_CURRENT_QUEUE_A_MOMENT
                                        the same messages again, after a pause; so does any
                                        exception
        return Reject / raise Reject()  dead letter now; the queue goes on behind them

``ctx.auto_commit = False``: a success is not committed until a later call returns COMMIT; ROLLBACK
hands out everything since the last commit again. ``ctx.suspend_ms``: how long the queue pauses (-1
= ``ConsumerConfig.suspend_queue_ms``), 10 ms to 30 s.

Decides what an answer means (``judge``, ``judge_orderly``). Does not decide what follows from it:
``client.push.consume_concurrently`` and ``client.push.consume_orderly`` do.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from operator import index
from typing import Any

from rmq_ray.errors import ConsumeError
from rmq_ray.guard import shown, why
from rmq_ray.model.ids import MessageQueue

ACK_ALL = sys.maxsize
BROKER_DECIDES = 0
DEAD_LETTER_LEVEL = -1
LEVEL_MAX = (1 << 31) - 1  # of a request; brokers take their highest level for all above it
SUSPEND_MS_MIN = 10
SUSPEND_MS_MAX = 30_000
AS_CONFIGURED = -1
Listener = Callable[[Any, Any], Any]
"""Called with a list of ``MessageExt`` (``batch="arrow"``: a ``pyarrow.RecordBatch``) and a
``ConsumeContext`` (orderly: an ``OrderlyContext``).
"""


class ConsumeResult(Enum):
    """What a listener of concurrent consumption may return."""

    SUCCESS = "CONSUME_SUCCESS"
    RECONSUME_LATER = "RECONSUME_LATER"


SUCCESS = ConsumeResult.SUCCESS
RECONSUME_LATER = ConsumeResult.RECONSUME_LATER


class Reject(Exception):  # noqa: N818 - a listener's answer, not an error of ours
    """Returned (the class or an object) or raised by a listener: these messages go to the
    dead-letter topic now.
    """


class ConsumeContext:
    """One call of the listener. ``queue`` is where the messages come from; the other two may be set
    by the listener.
    """

    __slots__ = ("ack_index", "delay_level_when_next_consume", "group", "queue")

    def __init__(self, group: str, queue: MessageQueue) -> None:
        self.group = group
        self.queue = queue
        self.ack_index = ACK_ALL
        """With SUCCESS: index of the last message that is done; those after it count as failed."""
        self.delay_level_when_next_consume = BROKER_DECIDES
        """Delay level of the next try of failed messages: 0 the broker decides, 1..18, -1 dead
        letter now.
        """


class ConsumeOrderlyResult(Enum):
    """What a listener of ordered consumption may return besides None and SUCCESS."""

    SUSPEND_CURRENT_QUEUE_A_MOMENT = "SUSPEND_CURRENT_QUEUE_A_MOMENT"
    COMMIT = "COMMIT"
    ROLLBACK = "ROLLBACK"


SUSPEND_CURRENT_QUEUE_A_MOMENT = ConsumeOrderlyResult.SUSPEND_CURRENT_QUEUE_A_MOMENT
COMMIT = ConsumeOrderlyResult.COMMIT
ROLLBACK = ConsumeOrderlyResult.ROLLBACK


class OrderlyContext:
    """One call of the listener. ``queue`` is where the messages come from; the other two may be set
    by the listener.
    """

    __slots__ = ("auto_commit", "group", "queue", "suspend_ms")

    def __init__(self, group: str, queue: MessageQueue) -> None:
        self.group = group
        self.queue = queue
        self.auto_commit = True
        """False: what succeeds is committed by a later COMMIT, or handed out again by a
        ROLLBACK.
        """
        self.suspend_ms: Any = AS_CONFIGURED
        """Pause of the queue after a failure or ROLLBACK, ms."""


@dataclass(frozen=True, slots=True)
class ConsumeVerdict:
    """``done``: that many messages from the first are finished; the rest is sent back with
    ``delay_level``.

    ``fault``: set when the listener itself is wrong (it raised, or returned something that means
    nothing). ``why``: what is written on the messages that are sent back.
    """

    done: int
    delay_level: int = BROKER_DECIDES
    fault: BaseException | None = None
    why: str = ""


def judge(answer: object, ctx: ConsumeContext, count: int) -> ConsumeVerdict:
    """What ``answer`` (a return value, or the exception that the listener raised) means for
    ``count`` messages.

    >>> ctx = ConsumeContext("g", MessageQueue("t", "b", 0))
    >>> judge(None, ctx, 4).done, judge(RECONSUME_LATER, ctx, 4).done
    (4, 0)
    >>> judge(Reject, ctx, 4).delay_level
    -1
    """
    if answer is None or answer is SUCCESS:
        try:
            done = min(max(index(ctx.ack_index), -1) + 1, count)
        except TypeError:
            return _failed(
                ctx,
                _wrong(
                    f"set ctx.ack_index = {shown(ctx.ack_index)}",
                    "give the index of the last message that is done. Counted as RECONSUME_LATER",
                    ctx.ack_index,
                ),
            )
        return ConsumeVerdict(count) if done == count else _failed(ctx, None, done)
    if answer is RECONSUME_LATER:
        return _failed(ctx, None)
    if answer is Reject or isinstance(answer, Reject):
        return ConsumeVerdict(0, DEAD_LETTER_LEVEL, None, failure_of(answer))
    if isinstance(answer, BaseException):
        return _failed(ctx, answer)
    return _failed(
        ctx,
        _wrong(
            f"returned {shown(answer)}",
            "return None, SUCCESS, RECONSUME_LATER or Reject. Counted as RECONSUME_LATER",
            answer,
        ),
    )


class OrderlyStep(Enum):
    """What happens to the messages of a call."""

    COMMIT = "these and all uncommitted ones before them are done"
    KEEP = "done, but not committed yet"
    SUSPEND = "again after a pause, counted"
    ROLLBACK = "everything uncommitted again after a pause, not counted"
    REJECT = "dead letters"


@dataclass(frozen=True, slots=True)
class OrderlyVerdict:
    """``fault``: set when the listener itself is wrong (it raised, or returned something that means
    nothing). ``why``: what is written on dead letters.
    """

    step: OrderlyStep
    fault: BaseException | None = None
    why: str = ""


def judge_orderly(answer: object, ctx: OrderlyContext) -> OrderlyVerdict:
    """What ``answer`` (a return value, or the exception that the listener raised) means.

    >>> ctx = OrderlyContext("g", MessageQueue("t", "b", 0))
    >>> judge_orderly(None, ctx).step.name
    'COMMIT'
    >>> judge_orderly(SUSPEND_CURRENT_QUEUE_A_MOMENT, ctx).step.name
    'SUSPEND'
    """
    if answer is None or answer is SUCCESS:
        return OrderlyVerdict(OrderlyStep.COMMIT if ctx.auto_commit else OrderlyStep.KEEP)
    if answer is COMMIT or answer is ROLLBACK:
        if ctx.auto_commit:
            return OrderlyVerdict(
                OrderlyStep.COMMIT,
                _wrong(
                    f"returned {shown(answer)}",
                    "set ctx.auto_commit = False before you return it. Counted as SUCCESS",
                    answer,
                ),
            )
        return OrderlyVerdict(OrderlyStep.COMMIT if answer is COMMIT else OrderlyStep.ROLLBACK)
    if answer is SUSPEND_CURRENT_QUEUE_A_MOMENT:
        return OrderlyVerdict(OrderlyStep.SUSPEND, None, failure_of(answer))
    if answer is Reject or isinstance(answer, Reject):
        return OrderlyVerdict(OrderlyStep.REJECT, None, failure_of(answer))
    if isinstance(answer, BaseException):
        return OrderlyVerdict(OrderlyStep.SUSPEND, answer, failure_of(answer))
    known = "RECONSUME_LATER is for concurrent consumption; " if answer is RECONSUME_LATER else ""
    wrong = _wrong(
        f"returned {shown(answer)}",
        f"{known}return None, SUCCESS, SUSPEND_CURRENT_QUEUE_A_MOMENT or Reject. Counted "
        f"as SUSPEND",
        answer,
    )
    return OrderlyVerdict(OrderlyStep.SUSPEND, wrong, failure_of(wrong))


def pause_ms(ctx: OrderlyContext, configured_ms: int) -> float:
    """How long the queue pauses: what the listener asked for, else what is configured; 10 ms to 30
    s.

    >>> ctx = OrderlyContext("g", MessageQueue("t", "b", 0))
    >>> pause_ms(ctx, 1_000), pause_ms(ctx, 1)
    (1000, 10)
    """
    asked = ctx.suspend_ms
    usable = (
        isinstance(asked, int | float) and asked != AS_CONFIGURED and asked == asked
    )  # NaN is not
    return min(max(asked if usable else configured_ms, SUSPEND_MS_MIN), SUSPEND_MS_MAX)


def failure_of(answer: object) -> str:
    """Why messages failed, in words: an exception's type and text, else the listener's answer.

    >>> failure_of(ValueError("no amount")), failure_of(Reject), failure_of(RECONSUME_LATER)
    ('ValueError: no amount', 'Reject', 'RECONSUME_LATER')
    """
    if isinstance(answer, BaseException):
        return why(answer)
    return str(getattr(answer, "__name__", None) or getattr(answer, "name", None) or shown(answer))


def _failed(ctx: ConsumeContext, fault: BaseException | None, done: int = 0) -> ConsumeVerdict:
    level = ctx.delay_level_when_next_consume
    said = failure_of(RECONSUME_LATER if fault is None else fault)
    try:
        chosen = min(max(index(level), DEAD_LETTER_LEVEL), LEVEL_MAX)
        return ConsumeVerdict(done, chosen, fault, said)
    except TypeError:
        wrong = _wrong(
            f"set ctx.delay_level_when_next_consume = {shown(level)}",
            "give 0 (the broker decides), 1 to 18, or -1 (dead letter). Counted as RECONSUME_LATER",
            level,
        )
        return ConsumeVerdict(done, BROKER_DECIDES, fault or wrong, said)


def _wrong(what: str, remedy: str, value: object) -> ConsumeError:
    return ConsumeError(f"the listener {what}; {remedy}", shown(value))
