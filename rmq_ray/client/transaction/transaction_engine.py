"""Half messages and their ends, as one producer in one process sends them (protocol-behaviour 20).

    Transaction, TransactionProducer ──> TransactionEngine ──half──> broker
                                                           ──end──>
                        checker <── TransactionChecks <── CHECK_TRANSACTION_STATE (39)

Decides: how often an end is repeated, what this process knows of each of its transactions. Does not
decide outcomes: the user's code does, or, asked by a broker, the checker. One per ``ProducerCore``;
thread-safe.

Invariants: a half whose send came to nothing certain is remembered as rolled back, because nobody
will ever end it; an end that nobody acknowledged stays remembered, so that the broker's question
gets the decision and not the checker's opinion; a half is repeated on its own broker only.
"""

from __future__ import annotations

import logging
import threading
from collections import OrderedDict
from collections.abc import Callable
from typing import NamedTuple

from rmq_ray.client.interceptors.send_hooks import TransactionEnd
from rmq_ray.client.outgoing.send_request import SendRequest
from rmq_ray.client.sending.producer_core import ProducerCore
from rmq_ray.client.transaction.transaction_checks import Checker, TransactionChecks
from rmq_ray.client.transaction.transaction_sending import EndSender, HalfSending
from rmq_ray.errors import (
    ClientError,
    RemotingError,
    SendUnknown,
    TransactionEnded,
    TransactionError,
    TransactionUnknown,
)
from rmq_ray.model.ids import MessageQueue
from rmq_ray.model.message import SendResult, SendStatus
from rmq_ray.protocol.retry import BACK_OFF_FIRST_MS, BACK_OFF_MAX_MS, TRANSIENT_CODES
from rmq_ray.protocol.transaction import IMMUNITY_S_MAX, LocalTransactionState
from rmq_ray.remoting.wire.codes import RequestCode, ResponseCode
from rmq_ray.remoting.wire.frame import FLAG_ONEWAY, Command
from rmq_ray.remoting.wire.halves import End
from rmq_ray.remoting.wire.headers import EndTransactionHeader

log = logging.getLogger("rmq_ray.client.transaction.transaction")
KNOWN_MAX = 10_000  # decisions of this process that it remembers until they are acknowledged
OPEN_MAX = 200_000  # halves that are not decided: more than one transaction may have
_NOT_CONFIRMED = {status.value for status in SendStatus if status is not SendStatus.SEND_OK}
ATTEMPT_MS_MIN, ATTEMPT_MS_MAX = 1_000.0, 3_000.0
_making = threading.Lock()


class Half(NamedTuple):
    """A half message that is stored. ``topic``, ``tag``, ``keys``: of the message, as brokers know
    it; only where it is watched.
    """

    result: SendResult
    key: str
    topic: str = ""
    tag: str = ""
    keys: str = ""


class TransactionEngine:
    """See the module. ``of(core)`` makes or finds the one of a producer."""

    def __init__(self, core: ProducerCore) -> None:
        self._core = core
        self.halves = HalfSending(core)
        self._ends = EndSender(core.instance, core.group)
        self._lock = threading.Lock()
        self._known: OrderedDict[str, LocalTransactionState] = OrderedDict()
        self._open: OrderedDict[str, None] = OrderedDict()
        self._brokers: set[str] = set()
        self._checks = TransactionChecks(core.instance, core.group, self.known)
        core.requests[RequestCode.CHECK_TRANSACTION_STATE] = self._checks.asked
        self._closed = False
        core.closers.append(self._close)

    @classmethod
    def of(cls, core: ProducerCore) -> TransactionEngine:
        """The engine of this producer, made at its first use."""
        if core.transactions is None:
            with _making:
                if core.transactions is None:  # another thread may have made it
                    core.transactions = cls(core)
        found = core.transactions
        assert isinstance(found, cls)
        return found

    def set_checker(self, checker: Checker) -> None:
        """Who answers for transactions that this process knows nothing of; the last one given
        counts. Brokers learn of the first one at once.
        """
        self._checks.checker = checker
        if not self._core.has_checker:
            self._core.has_checker = True
            self._core.instance.timers.soon("heartbeat", self._core.instance.heartbeat)

    def watch(self, watcher: Callable[[TransactionEnd], object]) -> None:
        """``watcher`` is told of each end before it is sent, in the sending thread; must not block
        or raise.
        """
        self._checks.watcher = watcher

    def watched(self, half: Half, state: LocalTransactionState) -> None:
        """Tell the watcher, if there is one."""
        if self._checks.watcher is not None:
            address = self._core.instance.broker_address(half.result.queue.broker_name)
            self._checks.watcher(
                TransactionEnd(half.topic, half.key, half.tag, half.keys, address, state, False)
            )

    def known(self, key: str) -> LocalTransactionState | None:
        """What this process itself knows: UNKNOWN while the transaction is open, its decision until
        it is acknowledged, None = nothing.
        """
        with self._lock:
            return LocalTransactionState.UNKNOWN if key in self._open else self._known.get(key)

    def send_half(
        self, message: SendRequest, timeout_ms: float, immunity_s: int | None = None
    ) -> Half:
        """Store a half message; blocks. Raises ``SendError``: definite, or ``SendUnknown``; then it
        will be rolled back.
        """
        key = self.begin(message)
        try:
            result = self.halves.send(message, key, timeout_ms, immunity_s)
        except BaseException as error:
            self.not_begun(key, error)
            raise
        return self.stored(result, key)

    def begin(self, message: SendRequest) -> str:
        """The unique key of a half that will be sent now; a broker that asks is told that it is
        open. Followed by ``stored`` or ``not_begun``.
        """
        if self._closed:
            raise ClientError(
                f"producer {self._core.group!r} of this transaction is closed; make a new "
                f"one and begin again",
                self._core.group,
            )
        if message.special:
            raise ClientError(
                "a transactional message is neither delayed nor sent to a retry or system "
                "topic, and always waits for its store"
            )
        key = self._core.identity.unique_key(self._core.clock.now_ms())
        with self._lock:
            self._open[key] = None
            if len(self._open) > OPEN_MAX:
                self._open.popitem(last=False)
        return key

    def not_begun(self, key: str, error: BaseException) -> None:
        """The half was not stored, or perhaps: nobody will end it, so a broker that asks is told to
        roll it back.
        """
        if isinstance(error, SendUnknown) or not isinstance(
            error, Exception
        ):  # no answer, or interrupted
            self._remember(key, LocalTransactionState.ROLLBACK_MESSAGE)
        else:
            self._forget(key)

    def stored(self, result: SendResult, key: str) -> Half:
        """The half is stored; its broker must come to know this producer, because who is not known
        there cannot be asked.
        """
        if result.queue.broker_name not in self._brokers:
            self._brokers.add(result.queue.broker_name)
            self._core.instance.timers.soon("heartbeat", self._core.instance.heartbeat)
        it = result
        if it.transaction_id is not None:
            return Half(it, key)
        return Half(
            SendResult(
                it.status,
                it.message_id,
                it.queue,
                it.queue_offset,
                it.offset_message_id,
                it.log_offset,
                key,
                it.count,
            ),
            key,
        )

    def decide(self, half: Half, state: LocalTransactionState) -> None:
        """The decision is made, its end not yet sent: from here on a broker that asks is told."""
        self._remember(half.key, state)

    def end(self, half: Half, state: LocalTransactionState, timeout_ms: float) -> None:
        """Commit or roll back and wait until the broker has acknowledged it; repeated, which
        changes nothing, until ``timeout_ms``.

        UNKNOWN is sent without waiting. Raises ``TransactionUnknown``, ``TransactionEnded`` or
        ``TransactionError``.
        """
        began_ms = self._core.clock.monotonic_ms()
        self.watched(half, state)
        if state is not LocalTransactionState.UNKNOWN and self._ended_at_once(
            half, state, timeout_ms
        ):
            return
        ending = self.ending(half, state, timeout_ms, began_ms)
        while ending is not None and (left := ending.left_ms()) > 0:
            try:
                answer = self._ends.end(
                    half.result.queue.broker_name, ending.end, attempt_ms(timeout_ms, left)
                )
            except RemotingError as error:
                answer = (-1, str(error))
            if ending.done(answer):
                return
            self._core.clock.sleep_ms(ending.pause_ms())
        if ending is not None:
            raise ending.given_up()

    def _ended_at_once(self, half: Half, state: LocalTransactionState, timeout_ms: float) -> bool:
        """The usual case: the first attempt is acknowledged. Else nothing is said, and it is
        repeated, which is safe.
        """
        self.decide(half, state)
        if self._closed:
            return False
        result = half.result
        try:
            end = End(result.queue_offset, result.log_offset, state.value)
            code, _ = self._ends.end(
                result.queue.broker_name, end, attempt_ms(timeout_ms, timeout_ms)
            )
        except RemotingError:
            return False
        if code == ResponseCode.SUCCESS:
            self._forget(half.key)
        return code == ResponseCode.SUCCESS

    def ending(
        self,
        half: Half,
        state: LocalTransactionState,
        timeout_ms: float,
        began_ms: float | None = None,
    ) -> EndAttempts | None:
        """The attempts to end a half, which is decided from here on. None for UNKNOWN: the broker
        is told and no answer comes. ``began_ms``: when the time began to run, monotonic; None =
        now.
        """
        if state is LocalTransactionState.UNKNOWN:
            self._forget(half.key)
            self._oneway(half.result.queue, self._end_command(half, state))
            return None
        self.decide(half, state)
        return EndAttempts(
            self,
            self._core,
            half,
            state,
            timeout_ms,
            self._core.clock.monotonic_ms() if began_ms is None else began_ms,
        )

    def settle(
        self, half: Half, state: LocalTransactionState, code: int, remark: str | None
    ) -> None:
        """The broker's answer to an end. Raises unless it says that it is so."""
        if code in _NOT_CONFIRMED:
            raise TransactionUnknown(
                f"{state.name} of transaction {half.key} was answered "
                f"{ResponseCode(code).name}: {SendStatus(code).meaning}; if it is lost, the "
                f"broker asks, and is told the same",
                half.key,
            )
        self._forget(half.key)
        if code == ResponseCode.SUCCESS:
            return
        if code == ResponseCode.TRANSACTION_FAILED:
            raise TransactionEnded(f"{state.name} came too late: {remark}", half.key)
        raise TransactionError(
            f"{state.name} of transaction {half.key} was refused (code {code}): {remark}", half.key
        )

    @property
    def closed(self) -> bool:
        """Whether the producer was closed."""
        return self._closed

    # --- inside -----------------------------------------------------------------------------------

    def _close(self) -> None:
        self._closed = True
        self._checks.close()

    def _end_command(self, half: Half, state: LocalTransactionState) -> Command:
        result = half.result
        header = EndTransactionHeader(
            self._core.group,
            int(result.queue_offset),
            int(result.log_offset),
            state.value,
            half.key,
            False,
            half.key,
        )
        return Command(RequestCode.END_TRANSACTION, fields=header.to_fields())

    def _oneway(self, queue: MessageQueue, command: Command) -> None:
        address = self._core.instance.broker_address(queue.broker_name)
        command.flag |= FLAG_ONEWAY
        try:
            if address is not None:
                self._core.instance.link.oneway(address, command)
        except RemotingError as error:
            log.info(
                "the broker %s was not told that a transaction is open; it asks by itself: %s",
                queue.broker_name,
                error,
            )

    def _remember(self, key: str, state: LocalTransactionState) -> None:
        with self._lock:
            self._open.pop(key, None)
            self._known[key] = state
            self._known.move_to_end(key)
            if len(self._known) > KNOWN_MAX:
                self._known.popitem(last=False)

    def _forget(self, key: str) -> None:
        with self._lock:
            self._open.pop(key, None)
            self._known.pop(key, None)


class EndAttempts:
    """The attempts to end one half: how long, how often, and what they came to. ``end``: what the
    broker is told.
    """

    def __init__(
        self,
        engine: TransactionEngine,
        core: ProducerCore,
        half: Half,
        state: LocalTransactionState,
        timeout_ms: float,
        began_ms: float,
    ) -> None:
        self.end = End(int(half.result.queue_offset), int(half.result.log_offset), state.value)
        self._engine = engine
        self._core = core
        self._half = half
        self._state = state
        self._timeout_ms = timeout_ms
        self._deadline = began_ms + timeout_ms
        self._pause = BACK_OFF_FIRST_MS
        self._reason = "no address of the broker is known"

    def left_ms(self) -> float:
        """Time for further attempts; 0 or less: give up."""
        return 0.0 if self._engine.closed else self._deadline - self._core.clock.monotonic_ms()

    def done(self, answer: tuple[int, str | None] | None) -> bool:
        """Whether an attempt settled it. ``answer``: code and remark, -1 and what the connection
        met, None = nobody to ask. Raises what ``settle`` does.
        """
        if answer is not None:
            code, remark = answer
            if code >= 0 and code not in TRANSIENT_CODES:
                self._engine.settle(self._half, self._state, code, remark)
                return True
            self._reason = remark or f"code {code}"
        self._core.instance.refresh_route_soon(self._half.result.queue.topic)
        return False

    def pause_ms(self) -> float:
        """How long to wait before the next attempt."""
        pause, self._pause = self._pause, min(self._pause * 2, BACK_OFF_MAX_MS)
        return min(pause, max(0.0, self._deadline - self._core.clock.monotonic_ms()))

    def given_up(self) -> TransactionUnknown:
        """Nobody acknowledged it in time."""
        what, key = f"{self._state.name} of transaction {self._half.key}", self._half.key
        if self._engine.closed:
            return TransactionUnknown(
                f"{what} was not acknowledged before the producer was closed; the broker will ask",
                key,
            )
        name = self._half.result.queue.broker_name
        return TransactionUnknown(
            f"{what} was not acknowledged by {name} within {self._timeout_ms:.0f} ms "
            f"({self._reason}); it may have happened, else the broker asks and is told",
            key,
        )


def attempt_ms(timeout_ms: float, left_ms: float) -> float:
    """How long to wait for one answer: an eighth of the time, from 1 to 3 s, because an end may be
    repeated as often as one likes.
    """
    return min(left_ms, max(ATTEMPT_MS_MIN, min(timeout_ms / 8, ATTEMPT_MS_MAX)))


def check_immunity(immunity_s: object) -> None:
    """None, or seconds from 0 to a week, else ``ClientError``."""
    if immunity_s is not None and (
        not isinstance(immunity_s, int)
        or isinstance(immunity_s, bool)
        or not 0 <= immunity_s <= IMMUNITY_S_MAX
    ):
        raise ClientError(
            f"check_immunity is {immunity_s!r}; give whole seconds from 0 to "
            f"{IMMUNITY_S_MAX}, or None for the broker's setting"
        )
