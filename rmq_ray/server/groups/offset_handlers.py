"""Consumed offsets and the bounds of queues (protocol-behaviour 13, 18; remoting 3).

14 QUERY_CONSUMER_OFFSET, 15 UPDATE_CONSUMER_OFFSET, 43 GET_ALL_CONSUMER_OFFSET, 30 / 31 bounds, 29
by time, 32 earliest, QUEUE_BOUNDS (ours).

Decides: what a group without an offset is told, and who may move an offset back (with
``offset_table``). Answers to bounds count visible messages only.
"""

from __future__ import annotations

import msgpack

from rmq_ray.errors import MalformedFrame
from rmq_ray.ports import Peer
from rmq_ray.remoting.wire import bodies_admin
from rmq_ray.remoting.wire.codes import ResponseCode
from rmq_ray.remoting.wire.frame import Command
from rmq_ray.remoting.wire.headers import (
    AllOffsetsAnswer,
    AllOffsetsHeader,
    GroupKnown,
    OffsetAnswer,
    QueryOffsetHeader,
    QueueHeader,
    SearchOffsetHeader,
    UpdateOffsetHeader,
)
from rmq_ray.server.base.responses import Responder
from rmq_ray.server.base.runtime import BrokerRuntime
from rmq_ray.server.groups.beginning import first_offset
from rmq_ray.server.groups.membership import GroupMembership
from rmq_ray.server.tables.offset_table import Commit, cut_offset
from rmq_ray.server.tables.storage import BrokerStorage
from rmq_ray.store.front.message_store import MessageStore

TOPICS_PER_REQUEST_MAX = 10_000


class OffsetHandlers:
    """See the module."""

    def __init__(
        self,
        runtime: BrokerRuntime,
        storage: BrokerStorage,
        members: GroupMembership,
        responder: Responder,
    ) -> None:
        tables = storage.tables
        self._clock = runtime.clock
        self._later = responder.answer_from
        self._keeper = storage.keeper
        self._topics, self._groups, self._offsets = tables.topics, tables.groups, tables.offsets
        self._save = tables.save_offsets
        self._members = members

    def query(self, command: Command, peer: Peer) -> Command:
        """14: the stored offset; a group that has none is told where the queue begins if it shall
        skip nothing of it (``beginning``), unless it wants what was committed only; else it is told
        so (22). Refused while the log is read again: an offset may lie beyond what is left of it.
        """
        header = QueryOffsetHeader.from_fields(command.fields)
        store = self._store()
        queue = header.topic, header.consumer_group, header.queue_id
        offset = self._offsets.query(*queue)
        known = {}
        if header.with_epoch:
            known = GroupKnown(self._offsets.known_ms(*queue[:2])).to_fields()
        if offset is None and header.set_zero_if_not_found is not False:
            offset = first_offset(store, self._offsets, self._clock, *queue, header.known_ms)
        if offset is None:
            return command.answer(
                ResponseCode.QUERY_NOT_FOUND,
                known,
                remark="Not found, V3_0_6_SNAPSHOT maybe this group consumer boot first",
            )
        told = OffsetAnswer(offset, store.epoch if header.with_epoch else None)
        return command.answer(fields=told.to_fields() | known)

    def update(self, command: Command, peer: Peer) -> Command:
        """15: commits; consumers send it oneway, or say who they are: anybody else is an
        administrator. Of queues that this broker has: what clients make up would fill the table.

        A group that only commits, as Spark's readers do, is known from its first commit on, like
        one that pulls.
        """
        header = UpdateOffsetHeader.from_fields(command.fields)
        config = self._topics.get(header.topic)
        if config is None or not 0 <= header.queue_id < max(
            config.read_queues, config.write_queues
        ):
            return command.answer(
                ResponseCode.SYSTEM_ERROR,
                {},
                remark=f"there is no queue {header.queue_id} of topic {header.topic} here",
            )
        if header.lock_epoch and self._members.is_fenced(
            header.consumer_group, header.topic, header.queue_id, header.lock_epoch
        ):
            self._offsets.fence()
            return command.answer(
                ResponseCode.SYSTEM_ERROR,
                {},
                remark=(
                    f"offset {header.commit_offset} is not taken: lock {header.lock_epoch} of "
                    f"{header.topic}, queue {header.queue_id}, is over: lock again"
                ),
            )
        if header.increase_only and self._offsets.is_behind(
            header.topic, header.consumer_group, header.queue_id, header.commit_offset
        ):
            return command.answer(fields={})
        outcome = self._commit(header, command, peer)
        if outcome is Commit.REFUSED:
            return command.answer(
                ResponseCode.SYSTEM_ERROR,
                {},
                remark=(
                    f"offset {header.commit_offset} is not taken: another client pulls or holds "
                    f"queue {header.queue_id} of {header.topic}"
                ),
            )
        if outcome is Commit.LOWERED:
            self._save()  # a reset: told once, and nobody would tell it again
        self._groups.find(header.consumer_group)
        return command.answer(fields={})

    def _commit(self, header: UpdateOffsetHeader, command: Command, peer: Peer) -> Commit:
        return self._offsets.commit(
            header.topic,
            header.consumer_group,
            header.queue_id,
            header.commit_offset,
            *self._members.committing(
                peer,
                header.consumer_group,
                header.topic,
                header.queue_id,
                header.lock_epoch or 0,
                header.client_id,
            ),
            not header.lock_epoch
            and not header.client_id
            and self._members.is_administrator(header.consumer_group, peer, command.is_oneway),
            self._highest(header),
        )

    def _highest(self, header: UpdateOffsetHeader) -> int | None:
        """The greatest offset that who commits this can have reached; None while nobody knows."""
        store = self._keeper.store
        if store is None:
            return None
        queue = header.topic, header.queue_id
        cut = cut_offset(store, *queue, header.commit_offset, header.log_epoch or 0)
        return store.bounds(*queue)[1] if cut is None else cut

    def all_offsets(self, command: Command, peer: Peer) -> Command:
        """43: all, or what changed since the change that a slave knows."""
        since = AllOffsetsHeader.from_fields(command.fields).since
        changed = None if since is None else self._offsets.since(since)
        told = AllOffsetsAnswer(self._offsets.changes, None if changed is None else since)
        tables = self._offsets.tables() if changed is None else changed
        return command.answer(
            fields=told.to_fields(),
            body=bodies_admin.encode_offset_table(
                {f"{topic}@{group}": queues for (topic, group), queues in tables.items()}
            ),
        )

    def max_offset(self, command: Command, peer: Peer) -> Command:
        """30: 0 for what does not exist."""
        header = QueueHeader.from_fields(command.fields)
        return command.answer(
            fields={"offset": str(self._store().bounds(header.topic, header.queue_id)[1])}
        )

    def min_offset(self, command: Command, peer: Peer) -> Command:
        """31: 0 for what does not exist."""
        header = QueueHeader.from_fields(command.fields)
        return command.answer(
            fields={"offset": str(self._store().bounds(header.topic, header.queue_id)[0])}
        )

    def by_time(self, command: Command, peer: Peer) -> None:
        """29: the message nearest to a time, as RocketMQ answers; or, where that is asked for, the
        first one stored then or later.
        """
        header = SearchOffsetHeader.from_fields(command.fields)
        store = self._store()
        find = store.first_since if header.exact else store.offset_by_time
        self._later(
            command,
            peer,
            lambda: find(header.topic, header.queue_id, header.timestamp_ms),
            lambda offset: command.answer(fields={"offset": str(offset)}),
        )

    def earliest(self, command: Command, peer: Peer) -> None:
        """32: store time of the queue's first message, -1 without one."""
        header = QueueHeader.from_fields(command.fields)
        store = self._store()
        self._later(
            command,
            peer,
            lambda: store.earliest_store_ms(header.topic, header.queue_id),
            lambda stored_ms: command.answer(fields={"timestamp": str(stored_ms)}),
        )

    def bounds(self, command: Command, peer: Peer) -> Command:
        """QUEUE_BOUNDS: {topic: {queue id: [min, max]}} of the asked topics, all for an empty
        list.
        """
        store = self._store()
        asked = _topics(command)
        found: dict[str, dict[int, list[int]]] = {}
        for topic in asked or self._topics.names():
            config = self._topics.get(topic)
            if config is not None:
                found[topic] = {
                    queue_id: list(store.bounds(topic, queue_id))
                    for queue_id in range(max(config.read_queues, config.write_queues))
                }
        return command.answer(body=msgpack.packb(found))

    def _store(self) -> MessageStore:
        store = self._keeper.store
        if store is None:
            raise self._keeper.refusal()
        return store


def _topics(command: Command) -> list[str]:
    try:
        asked = msgpack.unpackb(command.body)
    except (ValueError, msgpack.UnpackException) as error:
        raise MalformedFrame(f"body of QUEUE_BOUNDS is no msgpack: {error}") from None
    if (
        not isinstance(asked, list)
        or len(asked) > TOPICS_PER_REQUEST_MAX
        or not all(isinstance(topic, str) for topic in asked)
    ):
        raise MalformedFrame(
            f"body of QUEUE_BOUNDS must be a list of at most {TOPICS_PER_REQUEST_MAX} topics"
        )
    return asked
