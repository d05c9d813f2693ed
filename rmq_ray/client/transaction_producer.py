"""Transactions in RocketMQ's form: a producer with a listener that runs the local transaction and answers for it later (protocol-behaviour 20).

    class Pay(TransactionListener):
        def execute_local_transaction(self, message, arg): ...   # right after the half is stored -> LocalTransactionState
        def check_local_transaction(self, message): ...          # asked by a broker, maybe in another process of the group

Decides: what follows from the half's status and from what the listener did. Everything else is ``Producer``'s and ``transaction_engine``'s.
"""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any

from rmq_ray.client.outgoing import outgoing, timeout_in_ms
from rmq_ray.client.producer import Producer
from rmq_ray.client.producer_core import ProducerCore
from rmq_ray.client.received import MessageExt
from rmq_ray.client.transaction import HalfSender
from rmq_ray.client.transaction_checks import as_state
from rmq_ray.client.transaction_engine import TransactionEngine
from rmq_ray.errors import ClientError
from rmq_ray.model.message import Message, SendResult, SendStatus
from rmq_ray.ports import Discovery
from rmq_ray.protocol.transaction import LocalTransactionState

log = logging.getLogger("rmq_ray.client.transaction")


class TransactionListener(ABC):
    """What a transactional producer's user writes. True, False and None stand for commit, rollback and unknown."""

    @abstractmethod
    def execute_local_transaction(self, message: Message, arg: Any) -> LocalTransactionState | bool | None:
        """The half of ``message`` is stored: do the local transaction. An error counts as UNKNOWN: the broker asks later."""

    @abstractmethod
    def check_local_transaction(self, message: MessageExt) -> LocalTransactionState | bool | None:
        """What became of the local transaction of this half message. An error counts as UNKNOWN. In a thread of its own."""


@dataclass(frozen=True, slots=True)
class TransactionSendResult(SendResult):
    """Outcome of the half message, and of the local transaction. ``error``: what the listener raised."""

    local_state: LocalTransactionState = LocalTransactionState.UNKNOWN
    error: Exception | None = None


class TransactionProducer(Producer):
    """A ``Producer`` whose group answers for its transactions from the start on. ``listener`` is pickled with it."""

    def __init__(self, group: str, *, listener: TransactionListener, discovery: Discovery, **settings: Any) -> None:
        if not isinstance(listener, TransactionListener):
            raise ClientError(f"listener {listener!r:.80} is no TransactionListener; write a class with execute_local_transaction and check_local_transaction")
        self._listener = listener
        super().__init__(group, discovery=discovery, **settings)

    def send_in_transaction(self, message: Message, arg: Any = None, *, timeout: float | None = None) -> TransactionSendResult:
        """Store the half, run the listener's local transaction with ``arg``, commit or roll back and wait for the acknowledgement.

        A half whose status is not SEND_OK is rolled back and the listener is not called. ``timeout``: s for the half, and again for its end.
        Raises ``SendError`` (the listener did not run) and what ends raise: ``TransactionUnknown``, ``TransactionEnded``.
        """
        core = self._core or self._ready()
        timeout_ms = self._timeout_ms if timeout is None else timeout_in_ms(timeout)
        if not isinstance(message, Message):
            raise ClientError(f"send_in_transaction takes a Message, not {type(message).__name__}")
        sender = HalfSender(core, self._config, self._steps, None)
        half = sender.send(outgoing(message, None, (None, (), None), 0, self._config.body_bytes_max), None, timeout_ms)
        state, error = LocalTransactionState.ROLLBACK_MESSAGE, None
        if half.result.status is SendStatus.SEND_OK:
            state, error = self._execute(message, arg)
        sender.engine.end(half, state, timeout_ms)
        result = half.result
        return TransactionSendResult(
            result.status, result.message_id, result.queue, result.queue_offset, result.offset_message_id, result.log_offset, result.transaction_id,
            local_state=state, error=error,
        )  # fmt: skip

    def __getstate__(self) -> dict[str, Any]:
        return super().__getstate__() | {"listener": self._listener}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self._listener = state["listener"]
        super().__setstate__(state)

    def _execute(self, message: Message, arg: Any) -> tuple[LocalTransactionState, Exception | None]:
        try:
            said = self._listener.execute_local_transaction(message, arg)
        except Exception as error:  # noqa: BLE001 - the user's code; the broker asks later
            log.exception("the local transaction of group %s failed; its outcome counts as unknown", self.group)
            return LocalTransactionState.UNKNOWN, error
        state = as_state(said)
        if state is None:
            log.error("execute_local_transaction of group %s returned %r, which is no LocalTransactionState and counts as unknown", self.group, said)
        return state or LocalTransactionState.UNKNOWN, None

    def _start_core(self) -> ProducerCore:
        core = super()._start_core()
        TransactionEngine.of(core).set_checker(self._listener.check_local_transaction)
        return core
