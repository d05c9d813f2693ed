"""RECALL_MESSAGE 370: a producer takes back a message that waits for its delivery time (features
18).

Decides: which waiting message a handle means, what is told of one that is gone. Does not decide how
it is taken out (``timer_service``). The answer 0 means never delivered, as durable as the mode
demands; 22 that it was due already, or is not here.
"""

from __future__ import annotations

from rmq_ray.codec.record import Record, decode_record
from rmq_ray.model.message import TIMER_OUT_MS, decode_properties
from rmq_ray.model.topics import TIMER_TOPIC
from rmq_ray.ports import Peer
from rmq_ray.protocol.timer import WAITING, RecallHandle, names_same
from rmq_ray.remoting.wire.codes import ResponseCode
from rmq_ray.remoting.wire.frame import Command
from rmq_ray.remoting.wire.headers import RecallHeader
from rmq_ray.server.base.responses import Refused, Responder
from rmq_ray.server.base.runtime import BrokerRuntime
from rmq_ray.server.delay.timer_service import TimerService
from rmq_ray.server.send.send_path import SendPath
from rmq_ray.store.front.message_store import MessageStore

COPIES_MAX = 64


class RecallHandler:
    """One request code."""

    def __init__(
        self, runtime: BrokerRuntime, path: SendPath, timed: TimerService, responder: Responder
    ) -> None:
        self._identity, self._clock = runtime.identity, runtime.clock
        self._path = path
        self._timed = timed
        self._later = responder.answer_from

    def recall(self, command: Command, peer: Peer) -> Command | None:
        """370."""
        header = RecallHeader.from_fields(command.fields)
        handle = RecallHandle.decode(header.recall_handle)
        if handle.broker_name != self._identity.name or handle.topic != header.topic:
            raise Refused(
                f"the handle is of topic {handle.topic} at broker {handle.broker_name}, not "
                f"of {header.topic} here",
                ResponseCode.SYSTEM_ERROR,
            )
        store = self._path.keeper.store
        if store is None:
            raise self._path.keeper.refusal()
        self._later(
            command,
            peer,
            lambda: self._copies(store, handle),
            lambda found: self._take_back(command, peer, handle, found),
        )
        return None

    def _copies(self, store: MessageStore, handle: RecallHandle) -> list[Record]:
        """In a thread: the message as it was sent, and the copies that were rolled from it, by
        queue offset.
        """
        found = {}
        for raw in (
            store.record_at(handle.log_offset),
            *store.query(TIMER_TOPIC, handle.unique_key, COPIES_MAX, 0, self._clock.now_ms()),
        ):
            record = decode_record(raw) if raw is not None else None
            if (
                record is not None
                and record.topic == TIMER_TOPIC
                and record.queue_id == WAITING
                and names_same(decode_properties(record.properties), handle)
            ):
                found[record.queue_offset] = record
        return [found[offset] for offset in sorted(found)]

    def _take_back(
        self, command: Command, peer: Peer, handle: RecallHandle, copies: list[Record]
    ) -> Command | None:
        path, timed = self._path, self._timed
        if not copies:
            raise Refused(
                f"no message {handle.unique_key} waits in topic {handle.topic}",
                ResponseCode.QUERY_NOT_FOUND,
            )
        newest = copies[-1]
        due = decode_properties(newest.properties).get(TIMER_OUT_MS, "0")
        if timed.is_delivered(int(due) if due.isdigit() else 0, newest.queue_offset):
            raise Refused(
                f"message {handle.unique_key} was due already: it is delivered, or was taken "
                f"back before",
                ResponseCode.QUERY_NOT_FOUND,
            )
        store = path.keeper.store
        end = 0 if store is None else store.end_offset
        if not timed.is_cancelled(newest.queue_offset):
            if path.sync:
                path.acks.check_room(0)
            end = timed.cancel(newest.queue_offset, handle.topic, newest.log_offset)
        fields = {"msgId": handle.unique_key}
        if not path.sync:
            return command.answer(fields=fields)
        path.when_durable(command, end, 0, lambda code: peer.send(command.answer(code, fields)))
        return None
