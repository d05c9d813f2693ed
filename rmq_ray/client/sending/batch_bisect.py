"""A frame with messages of several calls that is refused because of one of them: its messages are
sent again in halves, so that each call gets a verdict of its own.

    frame, refused ──> left half ──stored──> results
                       right half ──refused──> its halves ──> ... ──refused──> one message

Decides which refusals may concern one message of many, and what is sent next: earlier messages
first, and the next part when the one before has ended, so that what is stored keeps its order. Does
not decide how a part travels. Threads that shared a frame need no halves, each of them sends its
message alone (``client.sending.group_commit``).

Invariants: nothing of a refused frame is stored, because stores judge every record before they
write the first byte; each part has a frame id of its own, since a number stands for one content
for ever; a frame that may be stored (an attempt had no answer) is never taken apart; all parts
share the time-out.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Generic, TypeVar

from rmq_ray.client.outgoing.confirming import unconfirmed
from rmq_ray.client.outgoing.send_future import BatchOutcome
from rmq_ray.client.outgoing.send_payload import FrameParts
from rmq_ray.client.sending.send_engine import InFlightSend
from rmq_ray.errors import MessageIllegal, MessageTooLarge, SendError
from rmq_ray.model.ids import MessageQueue

ONE_OF_MANY = (MessageIllegal, MessageTooLarge)
"""Definite refusals that one message can bring upon its whole frame."""

Verdict = TypeVar("Verdict")


class BatchBisect(Generic[Verdict]):
    """Of one batch. Used by one thread or task at a time.

    >>> bisect = BatchBisect(2)
    >>> bisect.failed(MessageIllegal("one of two")), bisect.part
    (None, (0, 1))
    >>> bisect.stored(["a"]), bisect.failed(MessageIllegal("b itself")), bisect.part
    (None, None, None)
    >>> bisect.verdicts
    ['a', MessageIllegal('b itself')]
    """

    def __init__(self, count: int) -> None:
        self._left = [(0, count)]
        self.verdicts: list[Verdict | SendError] = []
        """Of each message whose end is known, from the first one on."""

    @property
    def part(self) -> tuple[int, int] | None:
        """The messages [first, behind last) that are to be sent now: at first all. None: every
        message has its verdict.
        """
        return self._left[-1] if self._left else None

    def stored(self, verdicts: Sequence[Verdict | SendError]) -> None:
        """The part is stored, as safely as asked for or not; one verdict for each of its
        messages.
        """
        self._left.pop()
        self.verdicts += verdicts

    def failed(self, error: SendError) -> None:
        """The part is not stored, or perhaps."""
        begin, end = self._left.pop()
        if isinstance(error, ONE_OF_MANY) and end - begin > 1:
            middle = (begin + end) // 2
            self._left += [(middle, end), (begin, middle)]
        else:
            self.verdicts += [error] * (end - begin)

    def abandon(self, error: SendError) -> None:
        """Nothing more is sent: messages without a verdict get this error."""
        while self._left:
            begin, end = self._left.pop()
            self.verdicts += [error] * (end - begin)


async def bisected(
    count: int, send: Callable[[int, int], Awaitable[Sequence[Verdict | SendError]]]
) -> list[Verdict | SendError]:
    """The verdict of each of ``count`` messages. ``send(begin, end)`` sends these of them as one
    frame.
    """
    bisect: BatchBisect[Verdict] = BatchBisect(count)
    while (part := bisect.part) is not None:  # ends: halves become single messages
        try:
            bisect.stored(await send(*part))
        except SendError as error:
            bisect.failed(error)
    return bisect.verdicts


class SplitBatch:
    """A refused batch of futures, whose messages are sent again in parts. ``make``: the frame of
    some of its messages, which notes their ids and sizes in the outcome; ``BrokerBusy`` where no
    frame id is free now. Used by one thread at a time.
    """

    def __init__(
        self,
        parts: FrameParts,
        queue: MessageQueue,
        make: Callable[[FrameParts, BatchOutcome], InFlightSend],
    ) -> None:
        self._parts = parts
        self._queue = queue
        self._make = make
        self._outcome = BatchOutcome(queue)
        self._bisect: BatchBisect[tuple[BatchOutcome, int]] = BatchBisect(len(parts[0]))
        self.refusal: SendError | None = None
        """Of the whole frame."""

    @property
    def verdicts(self) -> list[tuple[BatchOutcome, int] | SendError]:
        """For each message whose end is known the outcome of its part and its place there, or its
        error.
        """
        return self._bisect.verdicts

    def ended(self, error: SendError | None) -> None:
        """What was sent last is stored, or has failed: at first the whole frame, then what
        ``begin`` gave.
        """
        self.refusal = self.refusal or error
        part, told = self._bisect.part, self._outcome
        if error is not None and told.stored is None:
            self._bisect.failed(error)
        elif part is not None:
            found: list[tuple[BatchOutcome, int] | SendError] = []
            for place in range(part[1] - part[0]):
                alone = None if error is None else unconfirmed(told.result(place))
                found.append(alone or (told, place))
            self._bisect.stored(found)

    def begin(self) -> BatchOutcome | None:
        """Where the next part's result belongs; ``send`` makes its frame. None: every message has
        its verdict.
        """
        self._outcome = BatchOutcome(self._queue)
        return self._outcome if self._bisect.part is not None else None

    def send(self) -> InFlightSend:
        """The frame of the part that is to be sent now."""
        assert self._bisect.part is not None
        begin, end = self._bisect.part
        bodies, texts, flags = self._parts
        return self._make(
            (bodies[begin:end], texts[begin:end], flags and flags[begin:end]), self._outcome
        )

    def abandon(self, error: SendError) -> None:
        """Nothing more is sent: messages without a verdict get this error."""
        self._bisect.abandon(error)
