"""RocketMQ's form of transactions: a listener that runs the local transaction and answers for it
later, and what follows from what it says.

Decides: an error, or a value that is no state, counts as UNKNOWN and is logged. Called by
``TransactionProducer`` and ``AsyncProducer``.
"""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from rmq_ray.client.outgoing.send_request import SendRequest, checked_request
from rmq_ray.client.transaction.transaction_checks import as_state
from rmq_ray.errors import ClientError, TransactionError
from rmq_ray.guard import shown, tell_failure
from rmq_ray.model.message import Message, SendResult
from rmq_ray.protocol.transaction import LocalTransactionState

if TYPE_CHECKING:
    from rmq_ray.client.messages.received import MessageExt

log = logging.getLogger("rmq_ray.client.transaction.transaction")


class TransactionListener(ABC):
    """What a transactional producer's user writes. True, False and None stand for commit, rollback
    and unknown.
    """

    @abstractmethod
    def execute_local_transaction(self, message: Message, arg: Any) -> Any:
        """The half of ``message`` is stored: do the local transaction -> ``LocalTransactionState``.
        An error counts as UNKNOWN: the broker asks later. For ``AsyncProducer`` it may be a
        coroutine function.
        """

    @abstractmethod
    def check_local_transaction(self, message: MessageExt) -> LocalTransactionState | bool | None:
        """What became of the local transaction of this half message. An error counts as UNKNOWN. In
        a thread of its own.
        """


@dataclass(frozen=True, slots=True)
class TransactionSendResult(SendResult):
    """Outcome of the half message, and of the local transaction. ``error``: what the listener
    raised.
    """

    local_state: LocalTransactionState = LocalTransactionState.UNKNOWN
    error: Exception | None = None

    @classmethod
    def of(
        cls, half: SendResult, state: LocalTransactionState, error: Exception | None
    ) -> TransactionSendResult:
        """The half's result with what followed."""
        return cls(
            half.status,
            half.message_id,
            half.queue,
            half.queue_offset,
            half.offset_message_id,
            half.log_offset,
            half.transaction_id,
            local_state=state,
            error=error,
        )


def check_listener(listener: object) -> TransactionListener:
    """``ClientError`` for anything else."""
    if not isinstance(listener, TransactionListener):
        raise ClientError(
            f"listener {listener!r:.80} is no TransactionListener; write a class with "
            f"execute_local_transaction and check_local_transaction"
        )
    return listener


def checked_half(half: SendResult, raises: bool) -> None:
    """A half that was rolled back because it is not stored as safely as the mode demands.
    ``TransactionError`` where that was asked for: nothing of it is ever delivered.
    """
    if half.unknown and raises:
        raise TransactionError(
            f"half message {half.message_id} was answered {half.status.name} by "
            f"{half.queue.broker_name}: {half.status.meaning}. It was rolled back, and the local "
            f"transaction did not run: begin again later (raise_on_status=False returns the "
            f"result instead)",
            half.message_id,
        )


def half_of(message: object, body_bytes_max: int) -> SendRequest:
    """The checked message of ``send_in_transaction``."""
    if not isinstance(message, Message):
        raise ClientError(f"send_in_transaction takes a Message, not {type(message).__name__}")
    return checked_request(message, None, (None, (), None), 0, body_bytes_max)


def said_state(group: str, said: object) -> LocalTransactionState:
    """What ``execute_local_transaction`` returned."""
    state = as_state(said)
    if state is None:
        log.error(
            "execute_local_transaction of group %s returned %s, which is no "
            "LocalTransactionState and counts as unknown",
            group,
            shown(said),
        )
    return state or LocalTransactionState.UNKNOWN


def failed_state(group: str, error: Exception) -> LocalTransactionState:
    """It raised: the broker asks later."""
    kind = f"the local transaction of group {group}"
    tell_failure(log, kind, error, "its outcome counts as unknown")
    return LocalTransactionState.UNKNOWN
