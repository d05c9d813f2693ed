"""What follows when an attempt to send fails: once more, on another broker, after a pause, or never
(protocol-behaviour 8).

Decides per send, for as many attempts as its overall time-out and its number of retries allow. Does
not send, sleep or choose queues. Pure: ``now_ms`` is an argument (monotonic). A send *stays* on its
broker where there is one only, or the queue is fixed; an idempotent one does, too, once it may be
stored there. Any other send *goes elsewhere*.

    failure                         stays on its broker                     goes elsewhere
    nothing sent                    pause 10 ms doubling to 200 ms, same    counted, another
                                    frame, not counted                      broker
    busy, recovering, closing       the same                                another broker, not
                                                                            counted; with that pause
                                                                            once each was asked
    unknown (connection lost, no    counted, pause, the same frame: the     counted, another broker
    answer)                         broker knows it by its frame id         (may store twice:
                                                                            RocketMQ's way)
    codes of ``RETRIED_CODES``      counted, pause, the same frame          counted, another broker
    any other code                  given up                                given up

Invariants: at most 1 + retries counted attempts; nothing begins after the deadline; once an attempt
was unknown, the send never ends as a definite failure.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum

from rmq_ray.errors import (
    BrokerBusy,
    BrokerUnreachable,
    DuplicateMismatch,
    MessageIllegal,
    SendError,
    SendNotAuthorized,
    SendTimeout,
    SendUnknown,
    TopicFull,
    TopicNotFound,
    TopicNotWritable,
)
from rmq_ray.model.message import SendStatus
from rmq_ray.value import Value

BACK_OFF_FIRST_MS = 10.0
BACK_OFF_MAX_MS = 200.0
NAMED_MAX = 6  # attempts that an error names one by one

# Response codes (protocol-behaviour 2.2); numbers because protocol/ stands below remoting.
(
    SYSTEM_ERROR,
    SYSTEM_BUSY,
    MESSAGE_ILLEGAL,
    SERVICE_NOT_AVAILABLE,
    NO_PERMISSION,
    TOPIC_NOT_EXIST,
) = 1, 2, 13, 14, 16, 17
NO_BUYER_ID, NOT_IN_CURRENT_UNIT, FLOW_CONTROL = 204, 205, 215
DUPLICATE_MISMATCH, STILL_RECOVERING, BAD_RECORDS, NOT_AUTHORIZED = 20001, 20002, 20003, 20004
TOPIC_FULL, NO_ROOM = 20090, 20091

TRANSIENT_CODES = frozenset(
    (SYSTEM_BUSY, SERVICE_NOT_AVAILABLE, FLOW_CONTROL, STILL_RECOVERING, TOPIC_FULL)
)
"""Refused before anything was written, and it passes by itself."""
RETRIED_CODES = TRANSIENT_CODES | {
    TOPIC_NOT_EXIST,
    SYSTEM_ERROR,
    NO_PERMISSION,
    NO_BUYER_ID,
    NOT_IN_CURRENT_UNIT,
    NOT_AUTHORIZED,  # another broker may have heard of a new right already
}
"""Refusals after which RocketMQ's producer tries another broker (4.9's six, 5.x's SYSTEM_BUSY, and
ours).
"""
STATUS_OF_CODE = {status.value: status for status in SendStatus}
"""Answers that mean stored: 0, 10, 11, 12."""


class Failure(Enum):
    """How an attempt ended badly."""

    NOT_SENT = "nothing was sent"
    REFUSED = "the broker refused"
    UNKNOWN = "no answer"


class Step(Enum):
    """What to do next."""

    REPEAT = "the same frame to the same queue"
    ELSEWHERE = "a queue of another broker"
    GIVE_UP = "raise what ``error`` returns"


class Decision(Value, frozen=True):
    """The next step and the pause before it."""

    step: Step
    delay_ms: float = 0.0


_GIVE_UP = Decision(Step.GIVE_UP)


class SendAttempts:
    """The attempts of one send.

    ``started_ms``, ``timeout_ms``: the overall time-out. ``retries``: counted attempts after the
    first. ``brokers``: how many it may go to; 1 where one serves the topic, or the queue is given.
    ``idempotent``: never to another broker once it may be stored. ``codes_retried``: False for
    asynchronous sends, where RocketMQ hands a refusal to the caller; one that passes by itself is
    repeated all the same.
    """

    __slots__ = (
        "_alone",
        "_asked_at_once",
        "_codes_retried",
        "_idempotent",
        "_maybe_stored",
        "_pause_ms",
        "_retries",
        "_timed_out",
        "attempts",
        "deadline_ms",
        "started_ms",
        "timeout_ms",
    )

    def __init__(
        self,
        started_ms: float,
        timeout_ms: float,
        retries: int,
        *,
        brokers: int,
        idempotent: bool = False,
        codes_retried: bool = True,
    ) -> None:
        self.started_ms = started_ms
        self.timeout_ms = timeout_ms
        self.deadline_ms = started_ms + timeout_ms
        self.attempts = 1
        self._retries = retries
        self._alone = brokers == 1
        self._asked_at_once = brokers - 1
        self._idempotent = idempotent
        self._codes_retried = codes_retried
        self._pause_ms = BACK_OFF_FIRST_MS
        self._maybe_stored = False
        self._timed_out = False

    def attempt_timeout_ms(self, now_ms: float) -> float:
        """How long this attempt may wait: its share of what is left where a repeat is recognised,
        else all of it; 0 or less = too late.
        """
        left = self.deadline_ms - now_ms
        if self._alone or self._idempotent:
            return left / max(1, self._retries + 2 - self.attempts)
        return left

    def failed(self, failure: Failure, code: int, now_ms: float) -> Decision:
        """An attempt failed; ``code`` is the response code of a refusal. ``attempts`` counts on."""
        if failure is Failure.UNKNOWN:
            self._maybe_stored = True
        stay = self._alone or (self._idempotent and self._maybe_stored)
        left = self.deadline_ms - now_ms
        if left <= 0:
            self._timed_out = True
            return _GIVE_UP
        if stay and (
            failure is Failure.NOT_SENT or (failure is Failure.REFUSED and code in TRANSIENT_CODES)
        ):
            return self._pause(left)
        if failure is Failure.REFUSED and code in TRANSIENT_CODES:
            return self._yielded(left)
        if failure is Failure.REFUSED and (code not in RETRIED_CODES or not self._codes_retried):
            return _GIVE_UP
        return self._counted(stay, left)

    def not_stored(self, now_ms: float) -> Decision:
        """The answer was a status below SEND_OK and the settings ask for another broker then;
        GIVE_UP = return that result.
        """
        self._maybe_stored = True
        if self._alone or self._idempotent or now_ms >= self.deadline_ms:
            return _GIVE_UP
        return self._counted(False, self.deadline_ms - now_ms)

    def error(
        self,
        failure: Failure,
        code: int,
        reason: str,
        topic: str,
        brokers_sent: Sequence[str],
        now_ms: float,
    ) -> SendError:
        """The typed error of a send that was given up: unknown if any attempt was, else the last
        definite failure.
        """
        cost = now_ms - self.started_ms
        head = (
            f"Send [{self.attempts}] times, still failed, cost [{cost:.0f}]ms, Topic: {topic}, "
            f"BrokersSent: [{_named(brokers_sent)}]"
        )
        if self._maybe_stored and (self._timed_out or now_ms >= self.deadline_ms):
            return SendTimeout(
                f"{head}: no answer within {self.timeout_ms:.0f} ms ({reason}); the message "
                f"may be stored, a longer timeout= may help",
                topic,
            )
        if self._maybe_stored:
            return SendUnknown(f"{head}: {reason}; the message may be stored", topic)
        if failure is Failure.NOT_SENT:
            return BrokerUnreachable(
                f"{head}: {reason.removesuffix('; nothing was sent')}; nothing was sent, "
                f"check that the broker runs",
                topic,
            )
        return refusal(code, f"{head}: {reason}", topic)

    def _pause(self, left_ms: float) -> Decision:
        pause = self._pause_ms
        if 2 * pause >= left_ms:  # a repeat whose answer is not heard is less than what is known
            self._timed_out = True
            return _GIVE_UP
        self._pause_ms = min(pause * 2, BACK_OFF_MAX_MS)
        return Decision(Step.REPEAT, pause)

    def _yielded(self, left_ms: float) -> Decision:
        """A broker is busy: at once to the others, each once, and with pauses while all are."""
        if self._asked_at_once > 0:
            self._asked_at_once -= 1
            return Decision(Step.ELSEWHERE)
        decision = self._pause(left_ms)
        return (
            decision
            if decision.step is Step.GIVE_UP
            else Decision(Step.ELSEWHERE, decision.delay_ms)
        )

    def _counted(self, stay: bool, left_ms: float) -> Decision:
        """A repeat on the same broker pauses too: three attempts within a millisecond would all
        meet the same fault.
        """
        if self.attempts > self._retries:
            return _GIVE_UP
        self.attempts += 1
        return self._pause(left_ms) if stay else Decision(Step.ELSEWHERE)


def _named(brokers: Sequence[str]) -> str:
    """Brokers in the order of the attempts; where there were many, how often each was tried.

    >>> _named(["a", "b", "a"]), _named(["a", "b"] * 10)
    ('a, b, a', 'a (10 times), b (10 times)')
    """
    if len(brokers) <= NAMED_MAX:
        return ", ".join(brokers)
    return ", ".join(
        f"{broker} ({brokers.count(broker)} times)" for broker in dict.fromkeys(brokers)
    )


def refusal(code: int, reason: str, topic: str) -> SendError:
    """The typed error of a definite refusal; ``args[1]`` is the topic."""
    if code == TOPIC_NOT_EXIST:
        command = f"`rmq-ray topic create {topic} --queues 4`"
        return TopicNotFound(f"{reason} (code {code}): create the topic with {command}", topic)
    if code == NOT_AUTHORIZED:
        return SendNotAuthorized(f"{reason} (code {code}); nothing was written", topic)
    if code == NO_PERMISSION:
        return TopicNotWritable(
            f"{reason} (code {code}): topic {topic!r} or its broker is not writable",
            topic,
        )
    if code == NO_ROOM:
        return TopicFull(f"{reason} (code {code})", topic)
    if code == TOPIC_FULL:
        return TopicFull(
            f"{reason} (code {code}): nothing was written; let its consumers acknowledge, wait "
            f"longer (timeout=), or give the topic more slots",
            topic,
        )
    if code in TRANSIENT_CODES:
        return BrokerBusy(f"{reason} (code {code}): nothing was written, send again later", topic)
    if code in (MESSAGE_ILLEGAL, BAD_RECORDS):
        return MessageIllegal(
            f"{reason} (code {code}): nothing was written, change the message", topic
        )
    if code == DUPLICATE_MISMATCH:
        return DuplicateMismatch(
            f"{reason} (code {code}): the frame's number was used before with other bytes; "
            f"make a new producer",
            topic,
        )
    return SendError(f"{reason} (code {code})", topic)
