"""END_TRANSACTION 37 and CHECK_TRANSACTION_STATE 39 (protocol-behaviour 20; remoting 3, 4).

Decides: whether an end names a half of that group, what a repeated or contradicting end is told, whom a check goes to. Does not decide what an
end writes (``transaction_service``). When the answer 0 leaves: the final message and its op are as durable as the mode demands.

    answer   0   ended so, now or before      1   no such half of this group      4   it ended otherwise, or nobody knows how any more
            10   written, fdatasync did not end in time
"""

from __future__ import annotations

from dataclasses import replace
from typing import cast

from rmq_ray.model.message import PRODUCER_GROUP, UNIQUE_KEY, SysFlag, decode_properties, encode_properties
from rmq_ray.model.topics import HALF_TOPIC
from rmq_ray.ports import Peer
from rmq_ray.protocol.transaction import EndState, real_target
from rmq_ray.remoting.codes import RequestCode, ResponseCode
from rmq_ray.remoting.frame import FLAG_ONEWAY, Command
from rmq_ray.remoting.headers import CheckTransactionHeader, EndTransactionHeader
from rmq_ray.server.cold_reads import is_cold
from rmq_ray.server.identity import Identity
from rmq_ray.server.later import AnswerFrom
from rmq_ray.server.membership import Membership
from rmq_ray.server.records_handlers import SendPath
from rmq_ray.server.refusal import Refused
from rmq_ray.server.transaction_service import Transactions
from rmq_ray.store.message_store import AppendResult
from rmq_ray.store.record import Record, decode_record, encode_record, offset_message_id

STATES = {int(SysFlag.TRANSACTION_COMMIT): EndState.COMMITTED, int(SysFlag.TRANSACTION_ROLLBACK): EndState.ROLLED_BACK}


class TransactionHandlers:
    """37."""

    def __init__(self, path: SendPath, transactions: Transactions, identity: Identity, answer_from: AnswerFrom) -> None:
        self._path = path
        self._transactions = transactions
        self._identity = identity
        self._later = answer_from

    def end(self, command: Command, peer: Peer) -> Command | None:
        """END_TRANSACTION: commit (8), rollback (12) or unknown (0, which changes nothing)."""
        header = EndTransactionHeader.from_fields(command.fields)
        path = self._path
        if self._identity.is_slave:
            raise Refused(f"broker {self._identity.name} is a slave; end the transaction at the master", ResponseCode.SLAVE_NOT_AVAILABLE)
        if header.commit_or_rollback == SysFlag.TRANSACTION_NOT:
            path.counters.half_unknown += 1
            return command.answer(fields={})
        state = STATES.get(header.commit_or_rollback)
        if state is None:
            raise Refused(f"commitOrRollback is {header.commit_or_rollback}; 8 commits, 12 rolls back, 0 leaves it open", ResponseCode.SYSTEM_ERROR)
        store = path.keeper.store
        if store is None:
            raise path.keeper.refusal()
        at = header.commit_log_offset
        if path.sync and store.visible_offset <= at < store.end_offset:  # a copy that was just made for a check
            again = replace(command, body=bytearray(command.body_bytes()))
            path.acks.wait(at + 1, store.visible_offset, 0, path.clock.monotonic_ms(), lambda _code: path.serve(again, peer))
            return None
        if is_cold(store, at):
            self._later(command, peer, lambda: store.record_at(at), lambda raw: self._end(command, peer, header, state, raw))
            return None
        return self._end(command, peer, header, state, store.record_at(at))

    def _end(self, command: Command, peer: Peer, header: EndTransactionHeader, state: EndState, raw: bytes | None) -> Command | None:
        """``raw``: the record at the given log offset, None = there is none."""
        half, properties = _checked(raw, header)
        transactions, path = self._transactions, self._path
        offset = transactions.window.current(half.queue_offset)
        known = transactions.window.state(offset)
        if known is EndState.PENDING:
            if path.sync:
                path.acks.admit(len(half.body))
            end = transactions.finish(half, properties, offset, state)
        elif known is state:
            store = path.keeper.store
            end = 0 if store is None else store.end_offset
        else:
            remark = "nobody knows how any more" if known in (EndState.ENDED, EndState.FORGOTTEN) else known.name.lower().replace("_", " ")
            raise Refused(f"the transaction of half message {half.queue_offset} has ended before: {remark}", ResponseCode.TRANSACTION_FAILED)
        if not path.sync:
            return command.answer(fields={})
        path.when_durable(command, end, len(half.body), lambda code: peer.send(command.answer(code, {})))
        return None


class TransactionAsker:
    """Finds a live connection of the half's producer group, any of them, and sends it 39. Implements ``transaction_service.Asker``."""

    def __init__(self, members: Membership, host: tuple[str, int]) -> None:
        self._members = members
        self._host = host
        self._number = 0

    def find(self, properties: dict[str, str]) -> Peer | None:
        """Whom to ask about a half with these properties; None while nobody of its group is connected."""
        found = self._members.producers.next_connection(properties.get(PRODUCER_GROUP, ""), lambda peer: not cast(Peer, peer).closed)
        return cast("Peer | None", found)

    def ask(self, peer: Peer, half: Record, properties: dict[str, str], copy: AppendResult) -> None:
        """``half``: as it was found; ``copy``: where the record with ``properties`` lies that stands for it now, whose offsets the answer must carry."""
        target = real_target(properties) or (half.topic, half.queue_id)
        record = replace(
            half, topic=target[0], queue_id=target[1], queue_offset=copy.base_queue_offset, log_offset=copy.base_log_offset, store_ms=copy.store_ms,
            properties=encode_properties(properties),
        )  # fmt: skip
        unique = properties.get(UNIQUE_KEY)
        header = CheckTransactionHeader(copy.base_queue_offset, copy.base_log_offset, unique, unique, offset_message_id(*self._host, copy.base_log_offset))
        self._number = (self._number + 1) & 0x7FFFFFFF
        peer.send(Command(RequestCode.CHECK_TRANSACTION_STATE, self._number, FLAG_ONEWAY, header.to_fields(), encode_record(record)))


def _checked(raw: bytes | None, header: EndTransactionHeader) -> tuple[Record, dict[str, str]]:
    """The half record that the header means, and its properties. Raises ``Refused`` (1)."""
    if raw is None:
        raise Refused(f"there is no half message at log offset {header.commit_log_offset}", ResponseCode.SYSTEM_ERROR)
    half = decode_record(raw)
    if half.topic != HALF_TOPIC or half.queue_offset != header.state_table_offset:
        raise Refused(f"the record at log offset {header.commit_log_offset} is not half message {header.state_table_offset}", ResponseCode.SYSTEM_ERROR)
    properties = decode_properties(half.properties)
    if properties.get(PRODUCER_GROUP) != header.producer_group:
        raise Refused(f"half message {header.state_table_offset} is not of producer group {header.producer_group}", ResponseCode.SYSTEM_ERROR)
    return half, properties
