"""SEND_RECORDS: frames of records that our producers encoded, the fast path
(docs/decisions/0002-frames-of-records.md).

Decides: whether the frame may be appended (topic, queue, bytes in flight) and when its answer
leaves. Does not decide whether the records are sound or were sent before: the store checks every
record before it writes the first byte, and knows repeats.

When the answer with code 0 leaves: ASYNC_FLUSH: the kernel has all records; SYNC_FLUSH: fdatasync
covering them returned; SYNC_MASTER: the slaves in sync have them likewise. Code 10 leaves when the
disk took longer than 5 s, 12 when slaves did (3 s where no disk is waited for), 11 when too few are
in sync. A repeat is answered with the first result, under the same condition.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

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
from rmq_ray.remoting.wire.frame import Command
from rmq_ray.remoting.wire.group_headers import SendWithin
from rmq_ray.remoting.wire.records import first_record, pack_send_answer, unpack_send
from rmq_ray.server.base.responses import Refused
from rmq_ray.server.send.send_path import SendPath
from rmq_ray.server.tables.topic_table import is_internal
from rmq_ray.store.frames.frame_check import PartsOf
from rmq_ray.store.front.appender import Admit

UNBOUNDED = SendWithin()


class RecordsHandlers:
    """One request code. ``untaken(group, topic, end)``: how many messages nobody of the group has
    taken, where the topic's queue has been written up to ``end``.
    """

    def __init__(
        self, path: SendPath, untaken: Callable[[str, str, int], int] = lambda *_queue: 0
    ) -> None:
        self._path = path
        self._untaken = untaken
        self._admitted: dict[str, int] = {}
        self._admitted_version: object = None

    def send(self, command: Command, peer: Peer) -> Command | None:
        """Append one frame. The request's body is patched in place."""
        within = SendWithin.from_fields(command.fields) if command.fields else UNBOUNDED
        return self._append(
            command,
            peer,
            lambda records, count: self._admitted_records(command, peer, records, count),
            admit=None if within.untaken_max is None else partial(self._admit_within, within),
        )

    def _admit_within(self, within: SendWithin, topic: str, end: int) -> None:
        """``Refused`` where the batch has no room in its queue of values: the group that takes has
        the topic's name.
        """
        count, most = within.count or 1, within.untaken_max or 0
        untaken = self._untaken(topic, topic, end)
        if untaken + count > most:
            raise Refused(
                f"{untaken} messages of {topic} wait, {count} more are over {most}; nothing was "
                f"written",
                ResponseCode.NO_ROOM,
            )

    def _append(
        self,
        command: Command,
        peer: Peer,
        admitted: Callable[[memoryview, int], bool],
        parts_of: PartsOf = split_facts,
        admit: Admit | None = None,
    ) -> Command | None:
        """``admitted(records, count)``: whether they may be written now; it raises the refusals.
        ``admit``: what a frame that is no repeat has to pass, too.
        """
        path = self._path
        store = path.keeper.store
        if store is None:
            raise StoreNotReady("the broker has no store to write to now; send again")
        try:
            records, sizes = unpack_send(command.body)
            if not admitted(records, len(sizes)):
                return None
            path.admit(len(records))
            if path.topics.bounded:
                admit = self._within_slots(len(sizes), len(records), admit)
            began = path.fast.now()
            host = (peer.host, peer.port)
            result = store.append_frame(records, sizes, host, parts_of, admit)
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
            counters.put(result.topic, result.count, len(records))
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

    def _within_slots(self, count: int, size: int, admit: Admit | None) -> Admit:
        """A frame that is stored already has its slots: only what is written is judged."""

        def judged(topic: str, end: int) -> None:
            self._path.slots.admit(topic, count, size)
            if admit is not None:
                admit(topic, end)

        return judged

    def _admitted_records(
        self, command: Command, peer: Peer, records: memoryview, count: int
    ) -> bool:
        path = self._path
        topic, queue_id = first_record(records)
        known = (
            self._admitted_version is path.topics.version
            and 0 <= queue_id < self._admitted.get(topic, 0)
        )
        if not known and not self._admit(topic, queue_id):
            path.later(command, peer, topic)
            return False
        if path.limiter.active:
            path.limit(topic, peer, len(records), count)
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
        config = path.gate.writable(path.gate.admit(topic), queue_id)
        if topic in path.pending_topics:
            return False
        if self._admitted_version is not path.topics.version:
            self._admitted.clear()
            self._admitted_version = path.topics.version
        if not config.order:
            self._admitted[topic] = config.write_queues
        return True


def _send(peer: Peer, answer: Command, code: int) -> None:
    answer.code = code
    peer.send(answer)
