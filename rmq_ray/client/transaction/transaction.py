"""A transaction as users write it: messages that become visible together with what the user's code
did, or never (protocol-behaviour 20).

    with producer.transaction(checker) as tx:      # checker(message) -> LocalTransactionState
        tx.send("orders", b"body")                 # a half message: stored, invisible
        database.commit()
    # left without an error: committed; by an error: rolled back; when this process is gone,
    # brokers ask the checker of another one of the group

Decides: when halves are ended and what of that the user is told. Does not decide how
(``transaction_engine``). Several messages are ended one by one: after a crash in between the broker
asks about each of the rest, so a checker must answer alike for all messages of one transaction.

Invariants: a transaction ends once; after its end nothing can be sent in it; an error of the
``with`` block is never replaced by one of the roll-back.
"""

from __future__ import annotations

import inspect
import logging
import threading
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import NoReturn, Self

from rmq_ray.client.interceptors.send_hooks import HALF, SYNC, SendContext
from rmq_ray.client.outgoing.send_request import (
    Placement,
    Selector,
    SendRequest,
    check_placement,
    checked_request,
    placed,
    timeout_in_ms,
)
from rmq_ray.client.sending.producer_core import ProducerCore
from rmq_ray.client.sending.send_steps import SendSteps
from rmq_ray.client.transaction.transaction_checks import Checker
from rmq_ray.client.transaction.transaction_engine import Half, TransactionEngine, check_immunity
from rmq_ray.errors import ClientError, RmqError, TransactionError
from rmq_ray.model.ids import MessageQueue
from rmq_ray.model.message import Message, SendResult, SendStatus
from rmq_ray.protocol.transaction import LocalTransactionState

log = logging.getLogger("rmq_ray.client.transaction.transaction")
HALVES_MAX = 100_000
COMMIT, ROLLBACK = LocalTransactionState.COMMIT_MESSAGE, LocalTransactionState.ROLLBACK_MESSAGE


def engine_of(core: ProducerCore, checker: Checker | None) -> TransactionEngine:
    """The engine of a producer, with this checker from now on if there is one."""
    check_checker(checker)
    engine = TransactionEngine.of(core)
    if checker is not None:
        engine.set_checker(checker)
    return engine


class HalfSender:
    """Sends halves of one producer, through its hooks and compression where it has them.
    ``checker``: from now on, if there is one.
    """

    def __init__(
        self, core: ProducerCore, steps: SendSteps | None, checker: Checker | None = None
    ) -> None:
        self.engine = engine_of(core, checker)
        self.config = core.config
        self._core = core
        self._steps = steps

    def send(
        self,
        message: SendRequest,
        placement: Placement | None,
        timeout_ms: float,
        immunity_s: int | None = None,
    ) -> Half:
        """Blocks until the half is stored. Raises ``SendError``."""
        check_immunity(immunity_s)
        steps = self._steps
        if steps is None:
            if placement is not None:
                timeout_ms = self._core.place(message, placement, timeout_ms)
            return self.engine.send_half(message, timeout_ms, immunity_s)
        steps.name(message)
        with steps.around(message, SYNC) as ctx:
            ctx.carried[HALF] = True
            whole = steps.placement(placement)
            if whole is not None:
                timeout_ms = self._core.place(message, whole, timeout_ms)
            steps.pack(message)
            half = self.engine.send_half(message, timeout_ms, immunity_s)
            ctx.result = half.result
        return labelled(half, ctx)


def watch_ends(engine: TransactionEngine, steps: SendSteps) -> None:
    """A producer that is traced traces the ends of its transactions too."""
    if steps.trace is not None:
        engine.watch(steps.trace.ended)


def labelled(half: Half, ctx: SendContext) -> Half:
    """The half with what its trace shows of its message."""
    return half._replace(topic=ctx.topic, tag=ctx.tag or "", keys=ctx.keys)


class OpenTransaction:
    """What a transaction is, however it sends: its halves and its state. Used by one thread or task
    at a time.
    """

    def __init__(self, timeout_ms: float) -> None:
        self._timeout_ms = timeout_ms
        self._halves: list[Half] = []
        self._unended: Sequence[Half] = ()
        """Of a decided one: whose end no broker has acknowledged."""
        self._state = LocalTransactionState.UNKNOWN

    @property
    def state(self) -> LocalTransactionState:
        """UNKNOWN while it is open, then what it was decided to be."""
        return self._state

    @property
    def results(self) -> list[SendResult]:
        """One of each message sent in it, in order."""
        return [half.result for half in self._halves]

    def __reduce__(self) -> NoReturn:
        raise ClientError(
            "a transaction belongs to the process that began it; begin another one where it "
            "is needed"
        )

    def _may_send(self) -> None:
        self._open("send")
        if len(self._halves) >= HALVES_MAX:
            raise ClientError(f"{HALVES_MAX} messages are in this transaction already; use several")

    def _kept(self, half: Half) -> SendResult:
        """A half was sent: it ends with the transaction, whatever its status. ``TransactionError``
        unless it is as safe as the mode demands.
        """
        self._halves.append(half)
        if half.result.status is not SendStatus.SEND_OK:
            raise TransactionError(
                f"half message {half.key} is stored with {half.result.status.name} only; "
                f"roll back and try again",
                half.key,
            )
        return half.result

    def _open(self, what: str) -> None:
        if self._state is not LocalTransactionState.UNKNOWN:
            raise ClientError(
                f"cannot {what}: this transaction has ended ({self._state.name}); begin another one"
            )

    def _decided(self, state: LocalTransactionState, engine: TransactionEngine) -> Sequence[Half]:
        """From here on a broker that asks is told ``state``. The halves that are to be ended: all,
        and where it was so before, those of which no broker has said that they are.
        """
        if self._state is state:
            return self._unended
        self._open("commit" if state is COMMIT else "roll back")
        self._state, self._unended = state, tuple(self._halves)
        if len(self._halves) > 1:  # a single one is decided when it is ended
            for half in self._halves:
                engine.decide(half, state)
        return self._unended

    def _ended(self, halves: Sequence[Half], outcomes: Sequence[BaseException | None]) -> None:
        """What the ends of these halves came to. Raises the first error."""
        each = list(zip(halves, outcomes, strict=True))
        self._unended = tuple(half for half, outcome in each if outcome is not None)
        for outcome in outcomes:
            if outcome is not None:
                raise outcome


class Transaction(OpenTransaction):
    """Made by ``Producer.transaction``; a context manager. Used by one thread at a time."""

    def __init__(self, sender: HalfSender, timeout_ms: float) -> None:
        super().__init__(timeout_ms)
        self._sender = sender
        self._lock = threading.Lock()

    def send(  # noqa: PLR0913 - the public signature
        self,
        topic_or_message: str | Message,
        body: bytes | None = None,
        *,
        tag: str | None = None,
        keys: Sequence[str] = (),
        properties: Mapping[str, str] | None = None,
        queue: MessageQueue | None = None,
        selector: Selector | None = None,
        arg: object = None,
        check_immunity: int | None = None,
        timeout: float | None = None,
    ) -> SendResult:
        """Store one half message and wait for it; arguments as those of ``Producer.send``.
        ``check_immunity``: s before a broker asks, None = its setting.

        The result's offsets are the half's. Raises ``SendError``; ``TransactionError`` when the
        half is stored, but not as safely as the mode demands; ``ClientError`` once the transaction
        has ended.
        """
        with self._lock:
            self._may_send()
            placement = placed(queue, selector, arg, None)
            if placement is not None:
                check_placement(queue, selector, None)
            timeout_ms = self._timeout_ms if timeout is None else timeout_in_ms(timeout)
            message = checked_request(
                topic_or_message,
                body,
                (tag, keys, properties),
                0,
                self._sender.config.body_bytes_max,
            )
            return self._kept(self._sender.send(message, placement, timeout_ms, check_immunity))

    def commit(self) -> None:
        """Make every message visible; on return each is. Doing it again ends what no broker has
        acknowledged yet, and raises again where that cannot be.

        Raises the first error, after all messages were tried: ``TransactionUnknown`` (a broker that
        asks is told "commit"), ``TransactionEnded``.
        """
        self._end(COMMIT)

    def rollback(self) -> None:
        """Have no message ever delivered; on return that is certain. Doing it again, and what it
        raises: as ``commit``.
        """
        self._end(ROLLBACK)

    def __enter__(self) -> Self:
        self._open("begin")
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._state is not LocalTransactionState.UNKNOWN:
            return
        if error is None:
            self.commit()
            return
        try:
            self.rollback()
        except RmqError as failure:
            log.warning("the roll-back after %r was not acknowledged: %s", error, failure)

    # --- inside -----------------------------------------------------------------------------------

    def _end(self, state: LocalTransactionState) -> None:
        with self._lock:
            engine = self._sender.engine
            halves, outcomes = self._decided(state, engine), list[RmqError | None]()
            for half in halves:
                try:
                    engine.end(half, state, self._timeout_ms)
                    outcomes.append(None)
                except RmqError as error:
                    outcomes.append(error)
            self._ended(halves, outcomes)


def begin(
    core: ProducerCore, steps: SendSteps | None, checker: Checker | None, timeout: float | None
) -> Transaction:
    """A transaction of the producer with these parts. ``timeout``: s for each half and each end;
    None = the producer's.
    """
    required(checker)
    sender = HalfSender(core, steps, checker)
    return Transaction(
        sender, float(sender.config.send_timeout_ms) if timeout is None else timeout_in_ms(timeout)
    )


def required(checker: Checker | None) -> Checker:
    """The checker; ``ClientError`` without one, or for what cannot be one."""
    check_checker(checker)
    if checker is None:
        raise ClientError(
            "a transaction needs a checker: a function of the half message that says what "
            "became of it when this process is gone; give it here, or to the producer"
        )
    return checker


def check_checker(checker: object) -> None:
    """``ClientError`` for what cannot be a checker; None is for nobody."""
    if checker is None or (callable(checker) and not inspect.iscoroutinefunction(checker)):
        return
    trouble = "is a coroutine function" if callable(checker) else "cannot be called"
    raise ClientError(
        f"the checker {checker!r:.80} {trouble}; give a function of the half message that "
        f"returns a LocalTransactionState, which a thread of its own calls"
    )
