"""Answers a broker's question what became of a transaction (protocol-behaviour 20; remoting 4, code
39).

Decides: who answers: what this process knows of the transaction itself, else the checker. Does not
decide what a checker says. One thread asks the checker, one message after the other, at most
``WAITING_MAX`` wait; a question that is dropped comes again with the broker's next round.

Invariant: whatever the checker does, the broker gets an answer: an error or an exit, or a value
that is none of the three states, counts as UNKNOWN and is logged; the broker then asks another
producer of the group, as it does where there is no checker.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING

from rmq_ray.client.instance.client_instance import ClientInstance
from rmq_ray.client.interceptors.send_hooks import TransactionEnd
from rmq_ray.errors import RemotingError
from rmq_ray.guard import attempt, guarded, shown, tell_failure, why
from rmq_ray.model.ids import Address, MessageQueue
from rmq_ray.model.message import PRODUCER_GROUP
from rmq_ray.protocol.transaction import LocalTransactionState
from rmq_ray.remoting.wire.codes import RequestCode, ResponseCode
from rmq_ray.remoting.wire.frame import FLAG_ONEWAY, Command
from rmq_ray.remoting.wire.headers import CheckTransactionHeader, EndTransactionHeader

if TYPE_CHECKING:
    from rmq_ray.client.messages.received import MessageExt

Checker = Callable[["MessageExt"], object]
"""The half message -> ``LocalTransactionState``; True, False and None stand for commit, rollback
and unknown.
"""
WAITING_MAX = 2_000  # checkRequestHoldMax
IDLE_S = 1.0
END_TIMEOUT_MS = 3_000

log = logging.getLogger("rmq_ray.client.transaction.transaction")


class TransactionChecks:
    """``known(unique key)``: what the process knows of a transaction of its own, None = nothing."""

    def __init__(
        self,
        instance: ClientInstance,
        group: str,
        known: Callable[[str], LocalTransactionState | None],
    ) -> None:
        self._instance = instance
        self._group = group
        self._known = known
        self._waiting: deque[tuple[CheckTransactionHeader, bytes, Address]] = deque()
        self._wake = threading.Condition()
        self._thread: threading.Thread | None = None
        self._closed = False
        self.checker: Checker | None = None
        self.watcher: Callable[[TransactionEnd], object] | None = None

    def asked(self, command: Command, address: Address) -> None:
        """A broker asks; in a reader thread. The answer goes out later, as a request of its own."""
        header, body = CheckTransactionHeader.from_fields(command.fields), command.body_bytes()
        with self._wake:
            if self._closed:
                return
            if len(self._waiting) >= WAITING_MAX:
                log.warning(
                    "%d questions about transactions of group %s wait already; one more is "
                    "dropped and will come again",
                    WAITING_MAX,
                    self._group,
                )
                return
            self._waiting.append((header, bytes(body), address))
            if self._thread is None:
                thread = threading.Thread(
                    target=self._run, name=f"rmq-check-{self._group}", daemon=True
                )
                thread.start()
                self._thread = thread
            self._wake.notify()

    def close(self) -> None:
        """No question is answered any more."""
        with self._wake:
            self._closed = True
            self._waiting.clear()
            self._wake.notify_all()

    def _run(self) -> None:
        while True:
            with self._wake:
                while not self._waiting and not self._closed:
                    self._wake.wait(IDLE_S)
                if self._closed:
                    return
                header, body, address = self._waiting.popleft()
            kind = f"the answer about a transaction of group {self._group}"
            guarded(log, kind, self._answer, header, body, address, then="the broker asks again")

    def _answer(self, header: CheckTransactionHeader, body: bytes, address: Address) -> None:
        # few producers are ever asked: the others start without what reads messages
        from rmq_ray.client.messages.received import PulledPage
        from rmq_ray.codec.record import decode_record

        record = decode_record(body)
        queue = MessageQueue(record.topic, "", record.queue_id)
        (message,) = PulledPage(queue, body, (len(body),)).messages()
        if message.all_properties.get(PRODUCER_GROUP) != self._group:
            return
        state, remark = self._known(message.message_id), None
        if state is None:
            state, remark = self._ask(message)
        if self.watcher is not None:
            self.watcher(
                TransactionEnd(
                    record.topic,
                    message.message_id,
                    message.tag or "",
                    " ".join(message.keys),
                    address,
                    state,
                    True,
                )
            )
        ending = EndTransactionHeader(
            self._group,
            header.state_table_offset,
            header.commit_log_offset,
            state.value,
            message.message_id,
            True,
            header.transaction_id,
            True if remark is not None else None,
        )
        command = Command(RequestCode.END_TRANSACTION, fields=ending.to_fields(), remark=remark)
        if state is LocalTransactionState.UNKNOWN:
            command.flag = FLAG_ONEWAY
            self._instance.link.oneway(address, command)
            return
        self._tell(address, command, state, message)

    def _tell(
        self, address: Address, command: Command, state: LocalTransactionState, message: MessageExt
    ) -> None:
        try:
            answer = self._instance.invoke(address, command, END_TIMEOUT_MS)
        except RemotingError as error:
            log.warning(
                "%s of transaction %s, asked for by %s, was not acknowledged; it asks again: %s",
                state.name,
                message.message_id,
                address,
                error,
            )
            return
        if answer.code != ResponseCode.SUCCESS:
            log.warning(
                "%s refused %s of transaction %s, which it had asked for: %s",
                address,
                state.name,
                message.message_id,
                answer.remark,
            )

    def _ask(self, message: MessageExt) -> tuple[LocalTransactionState, str | None]:
        """(what the checker says, why it cannot say anything)."""
        if self.checker is None:
            log.warning(
                "a broker asks for transaction %s of group %s, and this producer has no checker: "
                "another one is to be asked",
                message.message_id,
                self._group,
            )
            return LocalTransactionState.UNKNOWN, "it has no checker"
        said, error = attempt(self.checker, message)
        if error is not None:
            kind = f"the checker of group {self._group}"
            tell_failure(log, kind, error, f"transaction {message.message_id} stays open")
            return LocalTransactionState.UNKNOWN, f"the checker failed: {why(error)}"
        state = as_state(said)
        if state is None:
            log.error(
                "the checker of group %s returned %s, which is no LocalTransactionState: "
                "transaction %s stays open",
                self._group,
                shown(said),
                message.message_id,
            )
            return LocalTransactionState.UNKNOWN, f"the checker returned {type(said).__name__}"
        return state, None


def as_state(said: object) -> LocalTransactionState | None:
    """What a checker or listener returned, as a state; None when it is none.

    >>> as_state(True), as_state(None), as_state("yes")
    (<LocalTransactionState.COMMIT_MESSAGE: 8>, <LocalTransactionState.UNKNOWN: 0>, None)
    """
    if isinstance(said, LocalTransactionState):
        return said
    if said is True:
        return LocalTransactionState.COMMIT_MESSAGE
    if said is False:
        return LocalTransactionState.ROLLBACK_MESSAGE
    return LocalTransactionState.UNKNOWN if said is None else None
