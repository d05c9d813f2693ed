"""What a listener of ordered consumption gets and what it may answer (protocol-behaviour 16).

    def handle(messages, ctx):                       messages: list[MessageExt], ctx: OrderlyContext
        return None                                  done (SUCCESS says the same): the queue goes on
        return SUSPEND_CURRENT_QUEUE_A_MOMENT        the same messages again, after a pause; so does any exception
        return Reject / raise Reject()               dead letter now; the queue goes on behind them

``ctx.auto_commit = False``: a success is not committed until a later call returns COMMIT; ROLLBACK
hands out everything since the last commit again. ``ctx.suspend_ms``: how long the queue pauses (-1
= ``ConsumerConfig.suspend_queue_ms``), 10 ms to 30 s.

Decides what an answer means (``judge_orderly``). Does not decide what follows:
``client.push.consume_orderly`` does.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from typing import Any

from rmq_ray.client.consumer.received import MessageExt
from rmq_ray.client.push.listener import RECONSUME_LATER, SUCCESS, Reject, shown
from rmq_ray.errors import ConsumeError
from rmq_ray.model.ids import MessageQueue

SUSPEND_MS_MIN = 10
SUSPEND_MS_MAX = 30_000
AS_CONFIGURED = -1


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


OrderlyListener = Callable[[list[MessageExt], Any], Any]
"""Called with the messages and an ``OrderlyContext``."""


class Step(Enum):
    """What happens to the messages of a call."""

    COMMIT = "these and all uncommitted ones before them are done"
    KEEP = "done, but not committed yet"
    SUSPEND = "again after a pause, counted"
    ROLLBACK = "everything uncommitted again after a pause, not counted"
    REJECT = "dead letters"


@dataclass(frozen=True, slots=True)
class OrderlyVerdict:
    """``fault``: set when the listener itself is wrong (it raised, or returned something that means
    nothing).
    """

    step: Step
    fault: BaseException | None = None


def judge_orderly(answer: object, ctx: OrderlyContext) -> OrderlyVerdict:
    """What ``answer`` (a return value, or the exception that the listener raised) means.

    >>> ctx = OrderlyContext("g", MessageQueue("t", "b", 0))
    >>> judge_orderly(None, ctx).step.name, judge_orderly(SUSPEND_CURRENT_QUEUE_A_MOMENT, ctx).step.name
    ('COMMIT', 'SUSPEND')
    """
    if answer is None or answer is SUCCESS:
        return OrderlyVerdict(Step.COMMIT if ctx.auto_commit else Step.KEEP)
    if answer is COMMIT or answer is ROLLBACK:
        if ctx.auto_commit:
            return OrderlyVerdict(
                Step.COMMIT,
                _wrong(
                    answer, "set ctx.auto_commit = False before you return it. Counted as SUCCESS"
                ),
            )
        return OrderlyVerdict(Step.COMMIT if answer is COMMIT else Step.ROLLBACK)
    if answer is SUSPEND_CURRENT_QUEUE_A_MOMENT:
        return OrderlyVerdict(Step.SUSPEND)
    if answer is Reject or isinstance(answer, Reject):
        return OrderlyVerdict(Step.REJECT)
    if isinstance(answer, BaseException):
        return OrderlyVerdict(Step.SUSPEND, answer)
    known = "RECONSUME_LATER is for concurrent consumption; " if answer is RECONSUME_LATER else ""
    return OrderlyVerdict(
        Step.SUSPEND,
        _wrong(
            answer,
            f"{known}return None, SUCCESS, SUSPEND_CURRENT_QUEUE_A_MOMENT or Reject. Counted "
            f"as SUSPEND",
        ),
    )


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


def _wrong(answer: object, remedy: str) -> ConsumeError:
    return ConsumeError(f"the listener returned {shown(answer)}; {remedy}", shown(answer))
