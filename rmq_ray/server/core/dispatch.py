"""Which requests a broker serves now, and how what goes wrong becomes an answer (protocol-behaviour
5, 22).

Decides: what is served in which state of the store, in which role and epoch
(``remoting.request_table``), how errors become answers, how an answer is given later. A slave
serves reads: pulls, scans, queries, offsets, heartbeats (so that it knows the subscriptions of
those who read from it); sends are refused by the topic gate with the topic's name, the end of a
transaction has an answer of its own. Does not decide anything about messages: handlers do.

Hands requests to handlers; ``store.queue.dispatcher`` is another thing, for records.

Invariants: one loop calls everything here; nothing here raises an ``RmqError`` of a request.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any, cast

from rmq_ray.errors import AppendUnknown, NotAuthorized, RmqError, StoreNotReady, TopicFull
from rmq_ray.ports import Peer
from rmq_ray.protocol.access.decision import Action
from rmq_ray.remoting.request_table import Asker, Handler, Row
from rmq_ray.remoting.wire.codes import RequestCode, ResponseCode
from rmq_ray.remoting.wire.frame import FLAG_ONEWAY, Command
from rmq_ray.server.base.responses import Refused
from rmq_ray.server.base.runtime import BrokerRuntime
from rmq_ray.server.replication.leadership_gate import ConfirmedGate, LeadershipGate
from rmq_ray.server.security import settings_told
from rmq_ray.server.security.access_guard import AskedBy
from rmq_ray.server.security.audited import Witness
from rmq_ray.server.security.broker_security import BrokerSecurity
from rmq_ray.server.send.plain_sends import PlainGroup, PlainSends
from rmq_ray.server.tables.storage import BrokerStorage

log = logging.getLogger("rmq_ray.server")

# error classes with codes from here on have no meaning on the wire, except ours from 20001
CLIENT_SIDE_CODES = 10_000
_OF_RECORDS = frozenset(
    {
        RequestCode.VIEW_MESSAGE_BY_ID,
        RequestCode.END_TRANSACTION,
        RequestCode.CONSUMER_SEND_MSG_BACK,
    }
)
"""Requests of foreign clients whose rights are looked at only when a record was read."""


class Dispatch:
    """Of one broker: the ``Responder`` of its handlers."""

    def __init__(
        self, runtime: BrokerRuntime, storage: BrokerStorage, security: BrokerSecurity
    ) -> None:
        self._identity, self._counters = runtime.identity, runtime.counters
        self._reads = runtime.reads
        self._keeper, self._tables = storage.keeper, storage.tables
        self._audit, self._guard = security.audit, security.guard
        self._party = f"broker {runtime.identity.name}"
        self._gate: LeadershipGate | ConfirmedGate | None = None
        self._plain: PlainSends | None = None
        self.requests: dict[int, tuple[Row, Handler]] = {}

    def begin(
        self,
        requests: dict[int, tuple[Row, Handler]],
        gate: LeadershipGate | ConfirmedGate,
        plain: PlainSends | None = None,
    ) -> None:
        """Serve these from now on: handlers answer through this object, so they are made after it.
        ``gate``: what must be known before. ``plain``: writes single sends together, None = each
        for itself.
        """
        self.requests, self._gate, self._plain = requests, gate, plain

    def handle(self, command: Command, peer: Peer) -> Command | None:
        """Serve one request; ``None`` when the answer comes later through ``peer.send``, or never
        (oneway).
        """
        served = self.requests.get(command.code)
        if served is None:
            return self._not_supported(command)
        row, handler = served
        audit, witness = self._audit, None
        if row.audited and audit is not None:
            witness = Witness(audit, self._party, row, command, peer, self._settings)
        admitted = False
        try:
            if not self._tables.loaded and not row.any_state:
                raise self._keeper.refusal()
            if self._gate is not None:
                self._gate.check(row.fence)
            self._authorize(row, command, peer)
            admitted = True
            if self._guard is not None and not peer.trusted and row.code in _OF_RECORDS:
                peer = cast(Peer, AskedBy(peer))
            if row.master_only:
                self._refuse_as_slave()
            answer = handler(command, peer if witness is None else cast(Peer, witness))
        except RmqError as error:
            if not admitted and isinstance(error, NotAuthorized):
                witness = None  # noted as a refusal, of which a flood is folded
            answer = self._refuse(command, peer, error)
        except Exception as error:
            if witness is not None:
                witness.ends(f"{type(error).__name__}: {error}")
            raise
        if witness is not None and answer is not None:
            witness.hears(answer)
        return None if command.flag & FLAG_ONEWAY else answer

    def _authorize(self, row: Row, command: Command, peer: Peer) -> None:
        if not peer.trusted and Asker.FOREIGN not in row.asked_by:
            raise self._not_authorized(row, peer)
        if self._guard is not None:
            self._guard.admit(row, command, peer)

    def _settings(self, code: int, fields: Mapping[str, str]) -> dict[str, str] | None:
        return settings_told.settings(code, fields, self._tables)

    def handle_sends(self, commands: Sequence[Command], peer: Peer) -> list[Command | bytes | None]:
        """Serve single sends of one connection that came together: what ``handle`` answers to each,
        or that answer's frame. Plain ones are written together, in the order of all of them.
        """
        plain = self._plain
        if plain is None or not self._may_send(plain.row):
            return [self._alone(command, peer) for command in commands]
        answers: list[Command | bytes | None] = []
        group = plain.group(peer)
        for command in commands:
            message = None if peer.closed else plain.read(command, peer)
            if message is None:
                self._end_group(group, answers)
                answers.append(self._alone(command, peer))
                continue
            try:
                self._authorize(self.requests[command.code][0], command, peer)
            except RmqError as error:
                self._end_group(group, answers)
                answers.append(self._refuse(command, peer, error))
                continue
            group.add(command, message)
            if group.is_full:
                self._end_group(group, answers)
        self._end_group(group, answers)
        return answers

    def _alone(self, command: Command, peer: Peer) -> Command | None:
        """``handle`` of one of several: what goes wrong with it is not the others' fault. Nothing
        is done behind one after which the connection was closed.
        """
        if peer.closed:
            return None
        try:
            return self.handle(command, peer)
        except Exception as error:
            log.exception("%s: request %d of %s failed", self._party, command.code, peer)
            return command.answer(
                ResponseCode.SYSTEM_ERROR, remark=f"{type(error).__name__}: {error}"
            )

    def _may_send(self, row: Row) -> bool:
        """Whether any send is served now; a refusal is for each of them."""
        try:
            if self._gate is not None:
                self._gate.check(row.fence)
        except RmqError:
            return False
        return self._tables.loaded

    def _end_group(self, group: PlainGroup, answers: list[Command | bytes | None]) -> None:
        """Write what was gathered; what cannot be written together is served one by one."""
        commands = group.commands
        if not commands:
            return
        try:
            written = group.write()
        except RmqError as error:
            answers += [self._refuse(command, group.peer, error) for command in commands]
        else:
            answers += (
                [self._alone(command, group.peer) for command in commands]
                if written is None
                else written
            )
        group.clear()

    def serve(self, command: Command, peer: Peer) -> None:
        """Serve a request that had to wait; its answer is sent."""
        row, handler = self.requests[command.code]

        def run() -> Command | None:
            if row.master_only:
                self._refuse_as_slave()
            return handler(command, peer)

        self.answer(command, peer, run)

    def answer(self, command: Command, peer: Peer, run: Callable[[], Command | None]) -> None:
        """Send what ``run`` returns, or the refusal it raises."""
        try:
            answer = run()
        except RmqError as error:
            answer = self._refuse(command, peer, error)
        if answer is not None and not command.flag & FLAG_ONEWAY:
            peer.send(answer)

    def answer_from(
        self,
        command: Command,
        peer: Peer,
        read: Callable[[], Any],
        build: Callable[[Any], Command | None],
    ) -> None:
        """Run ``read`` beside the loop, then send what ``build`` makes of its result in the loop.
        Raises ``BrokerBusy`` when too much waits.
        """

        def run(outcome: Any) -> Command | None:
            if isinstance(outcome, Exception):
                raise outcome
            return build(outcome)

        self._reads.submit(read, lambda outcome: self.answer(command, peer, lambda: run(outcome)))

    def check_topic(self, peer: Peer, action: Action, topic: str) -> None:
        """For handlers that learn the topic from a record. Raises ``NotAuthorized``."""
        if self._guard is not None:
            self._guard.check_topic(peer, action, topic)

    def may_send(self, peer: Peer, topic: str) -> bool:
        """Whether a client may send to a topic; nothing is noted."""
        return self._guard is None or self._guard.may_send(peer, topic)

    @staticmethod
    def _not_supported(command: Command) -> Command | None:
        remark = f" request type {command.code} not supported"
        return command.answer(ResponseCode.REQUEST_CODE_NOT_SUPPORTED, remark=remark)

    def _not_authorized(self, row: Row, peer: Peer) -> NotAuthorized:
        why = "this request is for clients of the cluster that proved its secret"
        if self._audit is not None:
            self._audit.refused(self._party, peer, row, (), why)
        return NotAuthorized(why)

    def _refuse_as_slave(self) -> None:
        identity = self._identity
        if identity.is_slave:
            raise Refused(
                f"broker {identity.name} at {identity.address} is a slave; ask the master",
                ResponseCode.NO_PERMISSION,
            )

    def _refuse(self, command: Command, peer: Peer, error: RmqError) -> Command | None:
        """The answer that names the error. No answer to a message that may be stored: every code
        stands for a definite refusal, a closed connection for neither, so that producers send the
        frame again, which is recognised when the disk was read.
        """
        if isinstance(error, AppendUnknown):
            self._keeper.check(error)
            peer.close(error.message)
            return None
        if isinstance(error, Refused):
            return command.answer(error.response_code, remark=error.message)
        if isinstance(error, NotAuthorized) and self._guard is not None:
            return self._guard.refusal(command, peer, error)
        if isinstance(error, NotAuthorized) and peer.trusted:
            return command.answer(ResponseCode.NOT_AUTHORIZED, remark=error.message)
        if isinstance(error, StoreNotReady) and peer.trusted:
            return command.answer(ResponseCode.STILL_RECOVERING, remark=error.message)
        if isinstance(error, TopicFull) and peer.trusted:
            return command.answer(ResponseCode.TOPIC_FULL, remark=error.message)
        self._keeper.check(error)
        if error.code == ResponseCode.SYSTEM_BUSY:
            self._counters.refused_busy += 1
        code = error.code if error.code < CLIENT_SIDE_CODES else int(ResponseCode.SYSTEM_ERROR)
        return command.answer(code, remark=error.message)
