"""A frame with messages of several calls that is refused because of one of them: its messages are
sent again in halves, so that each call gets a verdict of its own.

    frame, refused ──> left half ──stored──> results
                       right half ──refused──> its halves ──> ... ──refused──> one message: the error is its own

Decides which refusals may concern one message of many, and what is sent next: earlier messages
first, and the next piece when the one before has ended, so that what is stored keeps its order.
Does not decide how a piece travels: ``client.sending.async_sender`` (batches of ``send_async``),
``client.producer.async_frames`` and ``client.transaction.async_sharing`` (tasks of a loop) do.
Threads that shared a frame need no halves, each of them sends its message alone
(``client.sending.send_coalescer``).

Invariants: nothing of a refused frame is stored, because stores judge every record before they
write the first byte; each piece has a frame id of its own, since a number stands for one content
for ever; a frame that may be stored (an attempt had no answer) is never taken apart; all pieces
share the time-out.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence

from rmq_ray.client.outgoing.send_future import BatchOutcome
from rmq_ray.client.outgoing.splitting import FrameParts
from rmq_ray.client.sending.sending import Delivery
from rmq_ray.errors import MessageIllegal, MessageTooLarge, SendError
from rmq_ray.model.ids import MessageQueue
from rmq_ray.model.message import SendResult

ONE_OF_MANY = (MessageIllegal, MessageTooLarge)
"""Definite refusals that one message can bring upon its whole frame."""

Make = Callable[[FrameParts, BatchOutcome], Delivery]
"""(messages, where their ids and sizes are noted) -> their frame; ``BrokerBusy`` where no frame id
is free now.
"""


class Pieces:
    """Of one refused batch. ``parts``: its messages. Used by one thread at a time.

    >>> pieces = Pieces((["a", "b"], ["", ""], None), MessageQueue("orders", "broker-a", 0), None)
    >>> [pieces.ended(MessageIllegal("one of two")), pieces.begin() is not None, pieces.ended(None), pieces.begin() is not None]
    [None, True, None, True]
    >>> [pieces.ended(MessageIllegal("b itself")), pieces.begin()]
    [None, None]
    >>> [str(outcome.error) for outcome, _ in pieces.verdicts]
    ['None', 'b itself']
    """

    def __init__(self, parts: FrameParts, queue: MessageQueue, make: Make) -> None:
        self._parts = parts
        self._queue = queue
        self._make = make
        self._left = [(0, len(parts[0]))]
        self._outcome = BatchOutcome(queue)
        self.refusal: SendError | None = None
        """Of the whole frame."""
        self.verdicts: list[tuple[BatchOutcome, int]] = []
        """For each message whose end is known, from the first one on: the outcome of its piece, and
        its place there.
        """

    def ended(self, error: SendError | None) -> None:
        """What was sent last is stored, or has failed: at first the whole frame, then what
        ``begin`` gave.
        """
        self.refusal = self.refusal or error
        begin, end = self._left.pop()
        if isinstance(error, ONE_OF_MANY) and end - begin > 1:
            self._left += halves(begin, end)
        else:
            self._judge(begin, end, error)

    def begin(self) -> BatchOutcome | None:
        """Where the next piece's result belongs; ``delivery`` makes its frame. None: every message
        has its verdict.
        """
        self._outcome = BatchOutcome(self._queue)
        return self._outcome if self._left else None

    def delivery(self) -> Delivery:
        """The frame of the piece that is to be sent now."""
        begin, end = self._left[-1]
        bodies, texts, flags = self._parts
        return self._make(
            (bodies[begin:end], texts[begin:end], flags and flags[begin:end]), self._outcome
        )

    def abandon(self, error: SendError | None) -> None:
        """Nothing more is sent: messages without a verdict get this error."""
        while self._left:
            self._outcome = BatchOutcome(self._queue)
            self._judge(*self._left.pop(), error)

    def _judge(self, begin: int, end: int, error: SendError | None) -> None:
        self._outcome.error = error
        self.verdicts += [(self._outcome, place) for place in range(end - begin)]


def halves(begin: int, end: int) -> list[tuple[int, int]]:
    """Of a frame that was refused, as a stack has them: the earlier one is taken first."""
    middle = (begin + end) // 2
    return [(middle, end), (begin, middle)]


async def verdicts(
    count: int, send: Callable[[int, int], Awaitable[Sequence[SendResult]]]
) -> list[SendResult | SendError]:
    """The result or error of each of ``count`` messages. ``send(begin, end)`` sends these of them
    as one frame.
    """
    found: list[SendResult | SendError] = []
    left = [(0, count)]
    while left:  # ends: halves become single messages
        begin, end = left.pop()
        try:
            found += await send(begin, end)
        except ONE_OF_MANY as error:
            if end - begin > 1:
                left += halves(begin, end)
            else:
                found.append(error)
        except SendError as error:
            found += [error] * (end - begin)
    return found
