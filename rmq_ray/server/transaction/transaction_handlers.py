"""END_TRANSACTION 37 and END_TRANSACTIONS 20062 (protocol-behaviour 20; remoting 3, 4).

Decides: whether an end names a half of that group, what a repeated or contradicting end is told.
Does not decide what an end writes (``transaction_service``). When the answer 0 leaves: the final
message and its op are as durable as the mode demands.

    answer   0   ended so, now or before
             1   no such half of this group
             4   it ended otherwise, or nobody knows how any more
            10   written, fdatasync did not end in time
            17   to be committed, and its topic was deleted: nothing was written
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from rmq_ray.codec.record import RecordParts, decode_record, record_parts
from rmq_ray.config import BrokerConfig
from rmq_ray.model.message import SysFlag
from rmq_ray.model.topics import HALF_TOPIC
from rmq_ray.ports import Peer
from rmq_ray.protocol.access.decision import Action
from rmq_ray.protocol.transaction import EndState, HalfFacts, half_facts
from rmq_ray.remoting.wire.codes import ResponseCode
from rmq_ray.remoting.wire.frame import Command
from rmq_ray.remoting.wire.halves import End, pack_end_answers, unpack_ends
from rmq_ray.remoting.wire.headers import EndTransactionHeader
from rmq_ray.server.base.responses import Refused, Responder
from rmq_ray.server.base.runtime import BrokerRuntime
from rmq_ray.server.send.send_path import SendPath
from rmq_ray.server.transaction.transaction_service import HalfEnding, Transactions
from rmq_ray.store.front.message_store import MessageStore

STATES = {
    int(SysFlag.TRANSACTION_COMMIT): EndState.COMMITTED,
    int(SysFlag.TRANSACTION_ROLLBACK): EndState.ROLLED_BACK,
}
Outcome = tuple[int, str | None]
"""Response code and remark."""
READ_BYTES_MAX = (
    16 << 20
)  # of halves that one request has read; what comes after is told to come again
REASON_CHARS_MAX = 200  # of why a producer cannot say what became of a half
_LATER = b"later"
_HALF_TOPIC = HALF_TOPIC.encode()


class TransactionHandlers:
    """37, 20062."""

    def __init__(
        self,
        runtime: BrokerRuntime,
        path: SendPath,
        transactions: Transactions,
        responder: Responder,
    ) -> None:
        self._identity = runtime.identity
        self._body_bytes_max = runtime.config.store.body_bytes_max
        self._path = path
        self._transactions = transactions
        self._later, self._check_topic = responder.answer_from, responder.check_topic

    def configure(self, config: BrokerConfig) -> None:
        """Settings were changed."""
        self._body_bytes_max = config.store.body_bytes_max

    def end(self, command: Command, peer: Peer) -> Command | None:
        """END_TRANSACTION: commit (8), rollback (12) or unknown (0, which changes nothing)."""
        header = EndTransactionHeader.from_fields(command.fields)
        path = self._path
        if self._identity.is_slave:
            raise Refused(
                f"broker {self._identity.name} is a slave; end the transaction at the master",
                ResponseCode.SLAVE_NOT_AVAILABLE,
            )
        if header.commit_or_rollback == SysFlag.TRANSACTION_NOT:
            if header.ask_another:
                return self._hand_on(command, peer, header)
            path.counters.half_unknown += 1
            return command.answer(fields={})
        ends = [End(header.state_table_offset, header.commit_log_offset, header.commit_or_rollback)]

        def answered(codes: Sequence[Outcome]) -> Command:
            code, remark = codes[0]
            return command.answer(code, {}, remark=remark)

        return self._end_all(command, peer, (header.producer_group, ends), answered)

    def end_many(self, command: Command, peer: Peer) -> Command | None:
        """END_TRANSACTIONS: many commits and roll-backs of one producer group. Each is answered for
        itself; an error of the store is one of all.
        """
        if self._identity.is_slave:
            raise Refused(
                f"broker {self._identity.name} is a slave; end the transaction at the master",
                ResponseCode.SLAVE_NOT_AVAILABLE,
            )
        group, ends = unpack_ends(command.body)
        return self._end_all(
            command, peer, (group, ends), lambda codes: command.answer(body=pack_end_answers(codes))
        )

    def _end_all(
        self,
        command: Command,
        peer: Peer,
        asked: tuple[str, list[End]],
        answered: Callable[[Sequence[Outcome]], Command],
    ) -> Command | None:
        group, ends = asked
        store = self._store()
        if self._waits(command, peer, store, [end.log_offset for end in ends]):
            return None

        def read() -> list[bytes | None]:
            found = store.records_at([end.log_offset for end in ends], READ_BYTES_MAX)
            return found + [_LATER] * (len(ends) - len(found))

        def build(found: Sequence[bytes | None]) -> Command | None:
            return self._ended(
                command,
                peer,
                [self._look(peer, group, end, raw) for end, raw in zip(ends, found, strict=True)],
                answered,
            )

        if any(store.is_cold(end.log_offset) for end in ends):
            self._later(command, peer, read, build)
            return None
        return build(read())

    def _hand_on(
        self, command: Command, peer: Peer, header: EndTransactionHeader
    ) -> Command | None:
        """Who was asked cannot say what became of a half: the next of the group is asked."""
        store, log_offset = self._store(), header.commit_log_offset
        if self._waits(command, peer, store, [log_offset]):
            return None
        self._path.counters.half_unknown += 1
        if not store.is_cold(log_offset):  # else it is no copy that was just made for a check
            raw = store.record_at(log_offset)
            end = End(header.state_table_offset, log_offset, header.commit_or_rollback)
            _, facts = _checked(raw, header.producer_group, end)
            assert raw is not None
            if facts.target is not None:
                self._check_topic(peer, Action.PUB, facts.target[0])
            reason = " ".join((command.remark or "no reason given").split())[:REASON_CHARS_MAX]
            self._transactions.hand_on(decode_record(raw), peer, reason)
        return command.answer(fields={})

    def _store(self) -> MessageStore:
        keeper = self._path.keeper
        if keeper.store is None:
            raise keeper.refusal()
        return keeper.store

    def _waits(
        self, command: Command, peer: Peer, store: MessageStore, log_offsets: Sequence[int]
    ) -> bool:
        """Whether one of them is a copy that was just made for a check and that no slave has yet:
        the request is served again when one has.
        """
        path = self._path
        last = max((offset for offset in log_offsets if offset < store.end_offset), default=-1)
        if not path.sync or last < store.visible_offset:
            return False
        again = replace(command, body=bytearray(command.body_bytes()))
        path.acks.wait(
            last + 1,
            store.visible_offset,
            0,
            path.clock.monotonic_ms(),
            lambda _code: path.serve(again, peer),
        )
        return True

    def _look(self, peer: Peer, group: str, end: End, raw: bytes | None) -> HalfEnding | Outcome:
        """What is to be written for this end, or its answer. ``raw``: the record at its log offset,
        None = there is none. ``NotAuthorized`` where the asker may not send to its topic.
        """
        state = STATES.get(end.state)
        try:
            if state is None:
                raise Refused(
                    f"commitOrRollback is {end.state}; 8 commits, 12 rolls back, 0 leaves it open",
                    ResponseCode.SYSTEM_ERROR,
                )
            if raw is _LATER:
                raise Refused(
                    f"this request ends halves of more than {READ_BYTES_MAX} bytes; end this "
                    f"one again",
                    ResponseCode.SYSTEM_BUSY,
                )
            half, facts = _checked(raw, group, end)
            if (
                facts.target is None
            ):  # refused when the half came; another broker may have written this one
                raise Refused(
                    f"the half message at log offset {end.log_offset} names no lawful topic "
                    f"and queue",
                    ResponseCode.SYSTEM_ERROR,
                )
            self._check_topic(peer, Action.PUB, facts.target[0])
            if state is EndState.COMMITTED and len(half.body) > self._body_bytes_max:
                raise Refused(
                    f"the body has {len(half.body)} bytes, this broker takes "
                    f"{self._body_bytes_max}: raise body_bytes_max, or roll it back",
                    ResponseCode.MESSAGE_ILLEGAL,
                )
        except Refused as error:
            return error.response_code, error.message
        return HalfEnding(
            half,
            self._transactions.window.current(half.queue_offset),
            state,
            facts.target,
            facts.final,
        )

    def _ended(
        self,
        command: Command,
        peer: Peer,
        looked: Sequence[HalfEnding | Outcome],
        answered: Callable[[Sequence[Outcome]], Command],
    ) -> Command | None:
        """Write what is to be written and answer when it is durable."""
        path, transactions = self._path, self._transactions
        pending: dict[int, HalfEnding] = {}
        outcomes: list[Outcome] = []
        for one in looked:
            outcomes.append(self._judge(one, pending) if isinstance(one, HalfEnding) else one)
        size = sum([len(ending.half.body) for ending in pending.values()])
        if path.sync and pending:
            path.acks.check_room(size)
        store = path.keeper.store
        end = (
            transactions.finish(list(pending.values()))
            if pending
            else 0
            if store is None
            else store.end_offset
        )
        if not path.sync:
            return answered(outcomes)

        def durable(code: int) -> None:
            peer.send(
                answered(
                    [(code, None) if done == 0 else (done, remark) for done, remark in outcomes]
                )
            )

        path.when_durable(command, end, size, durable)
        return None

    def _judge(self, ending: HalfEnding, pending: dict[int, HalfEnding]) -> Outcome:
        """0: it is to be written, or ended so before; else why not. ``pending``: what this request
        ends, by queue offset.
        """
        earlier = pending.get(ending.offset)
        known = self._transactions.window.state(ending.offset) if earlier is None else earlier.state
        if known is EndState.PENDING:
            if ending.state is EndState.COMMITTED:
                target = self._transactions.target(ending)
                if target is None:
                    return (
                        ResponseCode.TOPIC_NOT_EXIST,
                        f"topic {ending.target[0]} was deleted since the half message was sent: "
                        f"nothing was written, the transaction is given up",
                    )
                ending = ending._replace(target=target)
            pending[ending.offset] = ending
        elif known is not ending.state:
            remark = (
                "nobody knows how any more"
                if known in (EndState.ENDED, EndState.FORGOTTEN)
                else known.name.lower().replace("_", " ")
            )
            return (
                ResponseCode.TRANSACTION_FAILED,
                f"the transaction of half message {ending.half.queue_offset} has ended "
                f"before: {remark}",
            )
        return 0, None


def _checked(raw: bytes | None, group: str, end: End) -> tuple[RecordParts, HalfFacts]:
    """The half record that is meant, and what its properties say. Raises ``Refused`` (1)."""
    if raw is None:
        raise Refused(
            f"there is no half message at log offset {end.log_offset}", ResponseCode.SYSTEM_ERROR
        )
    half = record_parts(raw)  # the store has looked at it
    if half.topic != _HALF_TOPIC or half.queue_offset != end.half_offset:
        raise Refused(
            f"the record at log offset {end.log_offset} is not half message {end.half_offset}",
            ResponseCode.SYSTEM_ERROR,
        )
    facts = half_facts(str(half.text, "utf-8", "replace"))
    if facts.group != group:
        raise Refused(
            f"half message {end.half_offset} is not of producer group {group}",
            ResponseCode.SYSTEM_ERROR,
        )
    return half, facts
