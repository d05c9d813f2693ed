"""Transactions in RocketMQ's form: a producer with a listener that runs the local transaction and
answers for it later (protocol-behaviour 20).

    class Pay(TransactionListener):
        def execute_local_transaction(self, message, arg): ...   # the half is stored: do it now
        def check_local_transaction(self, message): ...          # a broker asks, maybe elsewhere

Decides: what follows from the half's status and from what the listener did. Everything else is
``Producer``'s and ``transaction_engine``'s.
"""

from __future__ import annotations

from typing import Any

from rmq_ray.client.producer.producer import Producer
from rmq_ray.client.transaction.transaction import HalfSender
from rmq_ray.client.transaction.transaction_listener import (
    TransactionListener,
    TransactionSendResult,
    check_listener,
    checked_half,
    failed_state,
    half_of,
    said_state,
)
from rmq_ray.errors import ClientError
from rmq_ray.model.message import Message, SendStatus
from rmq_ray.ports import Discovery
from rmq_ray.protocol.transaction import LocalTransactionState


class TransactionProducer(Producer):
    """A ``Producer`` whose group answers for its transactions from the start on. ``listener``: must
    be given, and answers instead of a ``checker``; it is pickled with the producer.
    """

    def __init__(
        self,
        group: str,
        *,
        listener: TransactionListener | None = None,
        discovery: Discovery,
        **settings: Any,
    ) -> None:
        if "checker" in settings:
            raise ClientError(
                "a TransactionProducer takes no checker=: its listener's check_local_transaction "
                "is asked. Write TransactionProducer(group, listener=...), or Producer(group, "
                "checker=...) for `with producer.transaction() as tx`",
                group,
            )
        self._listener = found = check_listener(listener)
        super().__init__(
            group, discovery=discovery, checker=found.check_local_transaction, **settings
        )

    def send_in_transaction(
        self, message: Message, arg: Any = None, *, timeout: float | None = None
    ) -> TransactionSendResult:
        """Store the half, run the listener's local transaction with ``arg``, commit or roll back
        and wait for the acknowledgement.

        A half whose status is not SEND_OK is rolled back and the listener is not called:
        ``TransactionError``, unless ``raise_on_status=False``. ``timeout``: s for the half, and
        again for its end. Raises ``SendError`` (the listener did not run) and what ends raise:
        ``TransactionUnknown``, ``TransactionEnded``.
        """
        core = self._core or self._ready()
        timeout_ms = self._time(timeout)
        sender = HalfSender(core, self._steps)
        half = sender.send(half_of(message, self._config.body_bytes_max), None, timeout_ms)
        state, error = LocalTransactionState.ROLLBACK_MESSAGE, None
        if half.result.status is SendStatus.SEND_OK:
            state, error = self._execute(message, arg)
        sender.engine.end(half, state, timeout_ms)
        checked_half(half.result, self._config.raise_on_status)
        return TransactionSendResult.of(half.result, state, error)

    def __getstate__(self) -> dict[str, Any]:
        return super().__getstate__() | {"listener": self._listener}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self._listener = state["listener"]
        super().__setstate__(state)

    def _execute(
        self, message: Message, arg: Any
    ) -> tuple[LocalTransactionState, Exception | None]:
        try:
            said = self._listener.execute_local_transaction(message, arg)
        except Exception as error:  # noqa: BLE001 - the user's code; the broker asks later
            return failed_state(self.group, error), error
        return said_state(self.group, said), None
