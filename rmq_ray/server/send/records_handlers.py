"""SEND_RECORDS: frames of records that our producers encoded, the fast path (design 4, 5.2,
5.5-5.7).

Decides: whether the frame may be appended (topic, queue, bytes in flight) and when its answer
leaves. Does not decide whether the records are sound or were sent before: the store checks every
record before it writes the first byte, and knows repeats.

When the answer with code 0 leaves: ASYNC_FLUSH: the kernel has all records; SYNC_FLUSH: fdatasync
covering them returned; SYNC_MASTER: the slaves in sync have them likewise. Code 10 leaves when the
disk took longer than 5 s, 12 when slaves took longer than 3 s, 11 when too few are in sync. A
repeat is answered with the first result, under the same condition.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from dataclasses import dataclass, replace

from rmq_ray.clock import Clock
from rmq_ray.codec.record_properties import split_facts
from rmq_ray.errors import (
    ClientError,
    DuplicateMismatch,
    MalformedFrame,
    MessageIllegal,
    StoreNotReady,
    TopicNotWritable,
)
from rmq_ray.ports import Peer
from rmq_ray.protocol.validators import check_topic
from rmq_ray.remoting.wire.codes import ResponseCode
from rmq_ray.remoting.wire.frame import FLAG_ONEWAY, Command
from rmq_ray.remoting.wire.records import pack_send_answer, unpack_send
from rmq_ray.server.base.counters import Counters
from rmq_ray.server.base.store_keeper import StoreKeeper
from rmq_ray.server.replication.replication import Replication
from rmq_ray.server.send.acknowledgements import Acknowledgements
from rmq_ray.server.send.fast_failure import FastFailure
from rmq_ray.server.tables.pending_topics import FreshTopics
from rmq_ray.server.tables.topic_gate import TopicGate
from rmq_ray.server.tables.topic_table import TopicTable, is_internal
from rmq_ray.store.frames.frame_check import PartsOf

_HEADER_BYTES = (
    88  # a record's fixed part; queue id at 12, length of the body at 84 (store-format 2.1)
)
_QUEUE_AND_BODY = struct.Struct(">12xi68xi")
Serve = Callable[[Command, Peer], None]


@dataclass(frozen=True, slots=True)
class SendPath:
    """What every send touches. ``sync``: answers wait for fdatasync, or for slaves.
    ``serve(command, peer)`` runs a request later and sends its answer.
    """

    keeper: StoreKeeper
    topics: TopicTable
    gate: TopicGate
    fresh: FreshTopics
    acks: Acknowledgements
    counters: Counters
    clock: Clock
    sync: bool
    serve: Serve
    fast: FastFailure
    replication: Replication

    def admit(self, size: int) -> None:
        """Raises ``BrokerBusy`` when ``size`` more bytes are too many now, or the disk is too slow,
        ``Refused`` while the broker drains.

        Nothing is written then.
        """
        self.gate.check_open()
        if self.sync:
            self.acks.admit(size)
            self.replication.admit()
            store = self.keeper.store
            self.fast.admit(
                self.acks.oldest_wait_ms(
                    self.clock.monotonic_ms(), 0 if store is None else store.durable_offset
                )
            )
        else:
            self.fast.admit()

    def later(self, command: Command, peer: Peer, topic: str) -> None:
        """Run ``command`` again when its new topic is on disk; its body is copied, the connection
        reuses its buffer.
        """
        body = bytearray(command.body_bytes())
        copy = replace(command, body=body)

        def resume(error: Exception | None) -> None:
            if error is None:
                self.serve(copy, peer)
            elif not command.flag & FLAG_ONEWAY:
                peer.send(
                    command.answer(
                        ResponseCode.SERVICE_NOT_AVAILABLE,
                        remark=f"topic {topic} could not be created: {error}",
                    )
                )

        self.fresh.wait(topic, len(body), resume)

    def when_durable(
        self, command: Command, end_offset: int, size: int, told: Callable[[int], None]
    ) -> None:
        """``told(status code)`` once the log is durable up to ``end_offset`` (and replicated, as
        SYNC_MASTER demands), or the time is over; at once with SLAVE_NOT_AVAILABLE where too few
        slaves are in sync. Nobody waits for a oneway send.
        """
        if command.flag & FLAG_ONEWAY:
            return
        store = self.keeper.store
        settled = 0 if store is None else store.visible_offset
        if end_offset > settled and not self.replication.enough:
            told(int(ResponseCode.SLAVE_NOT_AVAILABLE))
            return
        self.acks.wait(end_offset, settled, size, self.clock.monotonic_ms(), told)


class RecordsHandlers:
    """One request code."""

    def __init__(self, path: SendPath) -> None:
        self._path = path
        self._admitted: dict[str, int] = {}
        self._admitted_version: object = None

    def send(self, command: Command, peer: Peer) -> Command | None:
        """Append one frame. The request's body is patched in place."""
        return self._append(
            command, peer, lambda records: self._admitted_records(command, peer, records)
        )

    def _append(
        self,
        command: Command,
        peer: Peer,
        admitted: Callable[[memoryview], bool],
        parts_of: PartsOf = split_facts,
    ) -> Command | None:
        """``admitted(records)``: whether they may be written now; it raises the refusals."""
        path = self._path
        store = path.keeper.store
        if store is None:
            raise StoreNotReady("the broker has no store to write to now; send again")
        try:
            records, sizes = unpack_send(command.body)
            if not admitted(records):
                return None
            path.admit(len(records))
            began = path.fast.now()
            result = store.append_frame(records, sizes, (peer.host, peer.port), parts_of)
            path.fast.ended(began)
        except (MalformedFrame, MessageIllegal) as error:
            return command.answer(ResponseCode.BAD_RECORDS, remark=error.message)
        except DuplicateMismatch as error:
            return command.answer(ResponseCode.DUPLICATE_MISMATCH, remark=error.message)
        counters = path.counters
        if result.repeat:
            counters.put_repeats += 1
        else:
            counters.put_frames += 1
            counters.put_messages += result.count
            counters.put_bytes += len(records)
        answer = command.answer(
            0,
            None,
            pack_send_answer(
                result.base_queue_offset, result.base_log_offset, result.store_ms, result.repeat
            ),
        )
        if not path.sync:
            return answer
        path.when_durable(
            command, result.end_log_offset, len(records), lambda code: _send(peer, answer, code)
        )
        return None

    def _admitted_records(self, command: Command, peer: Peer, records: memoryview) -> bool:
        path = self._path
        topic, queue_id = first_record(records)
        known = (
            self._admitted_version is path.topics.version
            and 0 <= queue_id < self._admitted.get(topic, 0)
        )
        if not known and not self._admit(topic, queue_id):
            path.later(command, peer, topic)
            return False
        return True

    def _admit(self, topic: str, queue_id: int) -> bool:
        """The checks of a send, remembered until the topics change. False when the topic is not on
        disk yet. Raises the refusals.
        """
        path = self._path
        try:
            check_topic(topic)
        except ClientError as error:
            raise MessageIllegal(f"record 0: {error.message}") from error
        if is_internal(topic):
            raise TopicNotWritable(
                f"topic {topic} belongs to a consumer group, and takes nothing from "
                f"producers in frames; send to a topic of your own",
                topic,
            )
        config = path.gate.admit(topic)
        if not 0 <= queue_id < config.write_queues:
            raise ClientError(
                f"request queueId[{queue_id}] is illegal, topic {topic} has "
                f"{config.write_queues} write queues; refresh the route",
                queue_id,
            )
        if topic in path.fresh:
            return False
        if self._admitted_version is not path.topics.version:
            self._admitted.clear()
            self._admitted_version = path.topics.version
        if not config.order:
            self._admitted[topic] = config.write_queues
        return True


def first_record(records: memoryview) -> tuple[str, int]:
    """(topic, queue id) of the first record, read with care: nothing was checked yet. Raises
    ``MessageIllegal``.
    """
    if len(records) <= _HEADER_BYTES:
        raise MessageIllegal(f"record 0: {len(records)} bytes are less than a record's head")
    queue_id, body_length = _QUEUE_AND_BODY.unpack_from(records)
    at = _HEADER_BYTES + body_length
    if not _HEADER_BYTES <= at < len(records):
        raise MessageIllegal(f"record 0: a body of {body_length} bytes runs over the frame's end")
    try:
        return str(records[at + 1 : at + 1 + records[at]], "ascii"), queue_id
    except UnicodeDecodeError:
        raise MessageIllegal(
            "record 0: the topic holds other characters than letters, digits, % | _ -"
        ) from None


def _send(peer: Peer, answer: Command, code: int) -> None:
    answer.code = code
    peer.send(answer)
