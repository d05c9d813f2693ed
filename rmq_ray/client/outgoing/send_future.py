"""A real ``concurrent.futures.Future`` per message at a fraction of a microsecond: all futures of a
batch share one Condition.

``BatchOutcome`` holds what is the same for the whole batch (state, place, error); a
``SendFuture`` is a pointer into it, and so is its ``SendResult`` until a field is looked at.
``wait``, ``as_completed``, ``add_done_callback`` and ``asyncio.wrap_future`` work, because the
private fields that they use (``_condition``, ``_state``, ``_waiters``, ``_result``,
``_exception``) are properties here; tests run them on every Python version that the project
supports.

Decides nothing about sending. ``client.sending.batching`` makes outcomes and finishes them, exactly
once, ``client.outgoing.callbacks`` calls users' callbacks. Invariants: ``cancel()`` is always False
(the bytes may be out); callbacks run outside the lock; no entry is kept for a future that nobody
looked at; what would wait for itself, in a callback of the same producer, raises ``ClientError``.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future
from dataclasses import fields
from typing import Any

from rmq_ray.client.outgoing.callbacks import Callback, Callbacks, call_all, call_now
from rmq_ray.client.outgoing.confirming import own_copy, unconfirmed
from rmq_ray.client.outgoing.send_payload import StoredAt
from rmq_ray.errors import RmqError, SendError, SendUnconfirmed
from rmq_ray.model.ids import MessageQueue
from rmq_ray.model.message import SendResult

RUNNING, FINISHED = "RUNNING", "FINISHED"  # concurrent.futures' own words


class BatchOutcome:
    """What became of a batch. Written once, under ``condition``. ``runs``: who calls users'
    callbacks, which may block, so not a connection's reader; None = who finishes it.
    """

    __slots__ = (
        "_starts",
        "callbacks",
        "condition",
        "error",
        "message_ids",
        "on_finish",
        "queue",
        "runs",
        "sizes",
        "state",
        "stored",
        "transactional",
        "verdicts",
        "waiters",
    )

    def __init__(self, queue: MessageQueue, runs: Callbacks | None = None) -> None:
        self.runs = runs
        self.condition = (
            threading.Condition()
        )  # re-entrant: wait() takes the condition of every future, and many share this one
        self.state = RUNNING
        self.queue = queue
        self.error: RmqError | None = None
        self.verdicts: Sequence[tuple[BatchOutcome, int] | SendError] | None = None
        """Of a batch that was refused as a whole (``error``) and then sent in parts: for each
        message the outcome of its part and its place there, or its own error.
        """
        self.stored: StoredAt | None = None
        self.message_ids: Sequence[str] = ()
        self.sizes: Iterable[int] = ()
        self.transactional = False
        self._starts: list[int] = []
        self.on_finish: Callable[[], None] | None = None
        self.waiters: dict[SendFuture, list[Any]] = {}
        self.callbacks: dict[SendFuture, list[Callback]] = {}

    def finish(self, error: RmqError | None = None) -> None:
        """Complete every future of the batch; the other fields are set before. A second call does
        nothing.
        """
        with self.condition:
            if self.state is FINISHED:
                return
            self.error, self.state = error, FINISHED
            for future, waiters in self.waiters.items():
                failed = error is not None and self.error_at(future._index) is not None
                for waiter in waiters:
                    if failed:
                        waiter.add_exception(future)
                    else:
                        waiter.add_result(future)
            self.condition.notify_all()
            callbacks, self.callbacks = self.callbacks, {}
        if self.on_finish is not None:
            self.on_finish()
        if callbacks:
            run = call_all if self.runs is None else self.runs.run
            run(callbacks)

    def orphan(self, error: RmqError) -> None:
        """In a forked child only: the condition may be held by a thread that does not exist
        here.
        """
        self.condition, self.runs = threading.Condition(), None
        self.finish(error)

    def error_at(self, index: int) -> RmqError | None:
        """Of the message at ``index``, where the batch has an ``error``."""
        if self.verdicts is None:
            alone = unconfirmed(self.result(index)) if self._is_unconfirmed else None
            return alone or self.error
        verdict = self.verdicts[index]
        return verdict if isinstance(verdict, SendError) else None

    def result_at(self, index: int) -> SendResult | None:
        """The same for its result: it may have been sent in a part that is stored."""
        verdict = self.verdicts[index] if self.verdicts is not None else None
        if verdict is None or isinstance(verdict, SendError):
            return None
        return verdict[0].result(verdict[1])

    def result(self, index: int) -> SendResult:
        """The result of the message at ``index`` of the batch, which is stored."""
        assert self.stored is not None
        message_id = self.message_ids[index]
        transaction_id = message_id if self.transactional else None
        return self.stored.result(message_id, index, self._start(index), transaction_id)

    @property
    def _is_unconfirmed(self) -> bool:
        return isinstance(self.error, SendUnconfirmed) and self.stored is not None

    def _start(self, index: int) -> int:
        """Bytes from the first record to this one."""
        if not index:
            return 0
        if not self._starts:
            self._starts = [0, *itertools.accumulate(map(int, self.sizes))]
        return self._starts[index]


class BatchedSendResult(SendResult):
    """The result of a message of a batch, made when somebody looks at it: most are only counted.
    Equal to the ``SendResult`` that says the same; it becomes that when it is pickled or copied.
    """

    __slots__ = ("_index", "_made", "_outcome")

    _outcome: BatchOutcome
    _index: int
    _made: SendResult

    def __new__(cls, *values: Any, **fields: Any) -> Any:
        """A plain one: what ``dataclasses.replace`` makes."""
        return SendResult(*values, **fields)

    @property
    def made(self) -> SendResult:
        """The plain value."""
        try:
            return self._made
        except AttributeError:
            _set_made(self, self._outcome.result(self._index))
            return self._made

    def __eq__(self, other: object) -> bool:
        return self.made == (other.made if isinstance(other, BatchedSendResult) else other)

    def __hash__(self) -> int:
        return hash(self.made)

    def __repr__(self) -> str:
        return repr(self.made)

    def __reduce__(self) -> Any:
        return SendResult, tuple(getattr(self.made, field.name) for field in fields(SendResult))

    def __copy__(self) -> SendResult:
        return self.made


def _looked_up(name: str) -> Any:
    return property(lambda result: getattr(result.made, name))


for _name in (field.name for field in fields(SendResult)):
    setattr(BatchedSendResult, _name, _looked_up(_name))
_set_outcome, _set_index, _set_made = (
    vars(BatchedSendResult)[name].__set__ for name in ("_outcome", "_index", "_made")
)


def batched_result(outcome: BatchOutcome, index: int) -> SendResult:
    """Of the message at ``index`` of a batch that is stored."""
    result = object.__new__(BatchedSendResult)
    _set_outcome(result, outcome)
    _set_index(result, index)
    return result


class SendFuture(Future[SendResult]):
    """The outcome of one asynchronous send. ``result()`` gives a ``SendResult`` or raises a
    ``SendError``.

    >>> from rmq_ray.model.ids import Address
    >>> from rmq_ray.model.message import SendStatus
    >>> outcome = BatchOutcome(MessageQueue("orders", "broker-a", 0))
    >>> future = SendFuture(outcome, 1)
    >>> place = StoredAt(SendStatus.SEND_OK, outcome.queue, Address("127.0.0.1", 10911), 40, 0)
    >>> outcome.stored, outcome.message_ids, outcome.sizes = place, ("A", "B"), (100, 100)
    >>> outcome.finish()
    >>> future.result(timeout=1).queue_offset
    41
    """

    __slots__ = ("_index", "_outcome")

    def __init__(
        self, outcome: BatchOutcome, index: int
    ) -> None:  # the base's __init__ would make a Condition per future
        self._outcome = outcome
        self._index = index

    @property
    def _condition(self) -> threading.Condition:  # type: ignore[override]
        return self._outcome.condition

    @property
    def _state(self) -> str:  # type: ignore[override]
        return self._outcome.state

    @property
    def _exception(self) -> RmqError | None:  # type: ignore[override]
        """A copy for every reader."""
        if self._outcome.error is None:
            return None
        error = self._outcome.error_at(self._index)
        return None if error is None else own_copy(error)

    @property
    def _result(self) -> SendResult | None:  # type: ignore[override]
        outcome = self._outcome
        return (
            batched_result(outcome, self._index)
            if outcome.error is None
            else outcome.result_at(self._index)
        )

    def result(self, timeout: float | None = None) -> SendResult:
        """As of any future; at once, without a lock, where the batch is stored."""
        outcome = self._outcome
        if outcome.state is FINISHED and outcome.error is None:
            return batched_result(outcome, self._index)
        self._check_may_wait()
        return super().result(timeout)

    def exception(self, timeout: float | None = None) -> BaseException | None:
        """As of any future."""
        self._check_may_wait()
        return super().exception(timeout)

    def _check_may_wait(self) -> None:
        outcome = self._outcome
        if outcome.state is not FINISHED and outcome.runs is not None:
            outcome.runs.check_may_wait("one of its sends")

    @property
    def _waiters(self) -> list[Any]:  # type: ignore[override]
        self._check_may_wait()
        return self._outcome.waiters.setdefault(self, [])

    def add_done_callback(self, fn: Callback) -> None:
        """As of any future: ``fn(future)`` in the producer's thread, or now where it has ended.
        What it raises is logged; an exit passes where the caller's own thread calls it now.
        """
        outcome = self._outcome
        with outcome.condition:
            if outcome.state is not FINISHED:
                outcome.callbacks.setdefault(self, []).append(fn)
                return
        call_now(self, fn)

    def cancel(self) -> bool:
        """False: the message may be on its way."""
        return False
