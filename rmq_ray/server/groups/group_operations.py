"""What operators ask about the members and positions of consumer groups while they run
(protocol-behaviour 23; remoting 5).

222 reset by time, 223 positions of the members, 314 copy positions to another group, 307 and 309 to
one member, 317 progress of all groups, 328 all producers.

Decides: where a reset goes on, and who is told (220 to every member; members move themselves, about
10 s later, so that running listeners are through). Does not decide how a member does it. Relayed
questions go to the connection of the client that is named, their answers come back unchanged.

Ours: a body of 222 with an ``offsetTable`` gives the positions themselves, bounded by each queue's
first and last offset.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, cast

from rmq_ray.codec.record import parse_offset_message_id
from rmq_ray.errors import RemotingError
from rmq_ray.model.groups import ConsumeType
from rmq_ray.model.ids import MessageQueue
from rmq_ray.ports import Peer
from rmq_ray.remoting.wire import bodies_admin, bodies_groups
from rmq_ray.remoting.wire.codes import RequestCode, ResponseCode
from rmq_ray.remoting.wire.frame import FLAG_ONEWAY, Command, language
from rmq_ray.remoting.wire.group_headers import (
    BrokerConsumeStatsHeader,
    CloneGroupHeader,
    ConsumeDirectlyHeader,
    ConsumerStatusHeader,
    ResetOffsetHeader,
    RunningInfoHeader,
)
from rmq_ray.server.base.responses import Refused, Responder
from rmq_ray.server.base.runtime import BrokerRuntime
from rmq_ray.server.base.statistics import Statistics
from rmq_ray.server.groups import consume_stats
from rmq_ray.server.groups.membership import Client, ConsumerGroup, GroupMembership
from rmq_ray.server.tables.storage import BrokerStorage
from rmq_ray.store.front.message_store import MessageStore
from rmq_ray.store.reading.record_lookup import shown

RELAY_TIMEOUT_MS = 30_000
STATUS_TIMEOUT_MS = 5_000
Handler = Callable[[Command, Peer], Command | None]


class GroupOperations:
    """See the module."""

    def __init__(
        self,
        runtime: BrokerRuntime,
        storage: BrokerStorage,
        members: GroupMembership,
        statistics: Statistics,
        responder: Responder,
    ) -> None:
        self._identity, self._clock = runtime.identity, runtime.clock
        self._keeper = storage.keeper
        self._topics, self._offsets = storage.tables.topics, storage.tables.offsets
        self._members = members
        self._statistics = statistics
        self._later = responder.answer_from
        self._number = 0

    # --- positions --------------------------------------------------------------------------------

    def reset(self, command: Command, peer: Peer) -> None:
        """222: tell every member of the group where each queue of the topic goes on; the answer
        lists the positions.
        """
        header = ResetOffsetHeader.from_fields(command.fields)
        group, store, config = (
            self._online(header.group),
            self._store(),
            self._topics.get(header.topic),
        )
        if group.consume_type is ConsumeType.CONSUME_ACTIVELY:
            raise Refused(
                f"members of group {header.group} pull by themselves and would not be moved: "
                f"stop them first",
                ResponseCode.SYSTEM_ERROR,
            )
        if config is None:
            raise Refused(
                f"[reset-offset] reset offset failed, no topic in this broker. "
                f"topic={header.topic}",
                ResponseCode.SYSTEM_ERROR,
            )
        given = {
            queue.queue_id: offset
            for queue, offset in bodies_groups.decode_offsets(command.body_bytes()).items()
        }
        queues = max(config.read_queues, config.write_queues)
        current = self._committed(header, queues, bool(given))

        def read() -> dict[MessageQueue, int]:
            wanted = {queue_id: _target(store, header, queue_id, given) for queue_id in current}
            moves = header.force or bool(given)
            return {
                MessageQueue(header.topic, self._identity.name, queue_id): target
                if moves or target < current[queue_id]
                else current[queue_id]
                for queue_id, target in wanted.items()
                if target is not None
            }

        def tell(found: dict[MessageQueue, int]) -> Command:
            body = bodies_groups.encode_offsets(found)
            if group.consume_type is not ConsumeType.CONSUME_POP:
                self._tell_members(group, header, body)
                return command.answer(fields={}, body=body)
            for queue, target in found.items():  # no member has a queue: what is out is void
                self._offsets.commit(
                    header.topic,
                    header.group,
                    queue.queue_id,
                    target,
                    command.opaque,
                    administrator=True,
                )
            return command.answer(fields={}, body=body)

        self._later(command, peer, read, tell)

    def _committed(
        self, header: ResetOffsetHeader, queues: int, may_be_new: bool
    ) -> dict[int, int]:
        """Where the group stands in each of the topic's queues; before the first message of one
        without a committed offset. ``Refused`` where it may not be new and has none in the topic,
        or, without force, in one of the queues: what its members consume there is not known yet.
        """
        stored = self._offsets.of_group(header.group).get(header.topic, {})
        missing = not stored if header.force else not stored.keys() >= set(range(queues))
        if missing and not may_be_new:
            raise Refused(
                f"THe consumer group <{header.group}> not exist", ResponseCode.SYSTEM_ERROR
            )
        return {queue_id: stored.get(queue_id, 0) for queue_id in range(queues)}

    def _tell_members(self, group: ConsumerGroup, header: ResetOffsetHeader, body: bytes) -> None:
        """Send every member the positions in ``body``; nobody answers."""
        fields = ResetOffsetHeader(header.topic, header.group, header.timestamp_ms).to_fields()
        for channel in list(group.channels):
            self._number += 1
            cast(Peer, channel).send(
                Command(
                    RequestCode.RESET_CONSUMER_CLIENT_OFFSET,
                    self._number & 0x7FFFFFFF,
                    FLAG_ONEWAY,
                    fields,
                    body,
                )
            )

    def positions(self, command: Command, peer: Peer) -> None:
        """223: what each member (or the one at ``client_addr``) says of its positions in the
        topic.
        """
        header = ConsumerStatusHeader.from_fields(command.fields)
        asked: dict[Peer, Client] = {}
        for channel, client in self._online(header.group).channels.items():
            member = cast(Peer, channel)
            if not header.client_addr or header.client_addr in (
                client.client_id,
                f"{member.host}:{member.port}",
            ):
                asked[member] = client
        found: dict[str, dict[MessageQueue, int]] = {}
        waiting = len(asked)

        def heard(client: Client, outcome: Command | RemotingError) -> None:
            nonlocal waiting
            waiting -= 1
            if isinstance(outcome, Command) and outcome.code == ResponseCode.SUCCESS:
                found[client.client_id] = bodies_groups.decode_offsets(
                    outcome.body_bytes(), "messageQueueTable"
                )
            if not waiting:
                peer.send(command.answer(fields={}, body=bodies_groups.encode_status(found)))

        if not asked:
            raise Refused(
                f"no member of {header.group} is {header.client_addr}", ResponseCode.SYSTEM_ERROR
            )
        fields = ConsumerStatusHeader(header.topic, header.group).to_fields()
        for member, client in asked.items():
            question = Command(RequestCode.GET_CONSUMER_STATUS_FROM_CLIENT, fields=fields)
            _ask(member, question, STATUS_TIMEOUT_MS, partial(heard, client))

    def clone(self, command: Command, peer: Peer) -> Command:
        """314: the destination group gets the source's positions, of one topic or of all. Nobody
        may consume with it when ``offline``.
        """
        header = CloneGroupHeader.from_fields(command.fields)
        if header.offline and self._members.consumers.find(header.dest_group) is not None:
            remark = (
                f"the destination consumer group [{header.dest_group}] online, can not clone "
                f"offset to it"
            )
            raise Refused(remark, ResponseCode.SYSTEM_ERROR)
        for topic, queues in self._offsets.of_group(header.src_group).items():
            if self._topics.get(topic) is None or header.topic not in (None, "", topic):
                continue
            for queue_id, offset in queues.items():
                self._offsets.commit(
                    topic, header.dest_group, queue_id, offset, id(peer), administrator=True
                )
        return command.answer(fields={})

    # --- one member -------------------------------------------------------------------------------

    def running_info(self, command: Command, peer: Peer) -> None:
        """307: what a member says of itself."""
        header = RunningInfoHeader.from_fields(command.fields)
        self._relay(command, peer, header.consumer_group, header.client_id, b"")

    def consume_directly(self, command: Command, peer: Peer) -> None:
        """309: a member runs its listener with one message of this broker's log and says what came
        of it.
        """
        header = ConsumeDirectlyHeader.from_fields(command.fields)
        if not header.client_id:
            raise Refused(
                "consume directly: name a member with clientId", ResponseCode.SYSTEM_ERROR
            )
        store = self._store()
        try:
            _, _, log_offset = parse_offset_message_id(header.msg_id or "")
        except ValueError as error:
            raise Refused(f"consume directly: {error}", ResponseCode.SYSTEM_ERROR) from None

        def relay(record: bytes | None) -> None:
            if record is None:
                raise Refused(
                    f"can not find message by the offset, {log_offset}", ResponseCode.SYSTEM_ERROR
                )
            self._relay(command, peer, header.consumer_group, header.client_id or "", record)

        self._later(command, peer, lambda: shown(store.lives, store.record_at(log_offset)), relay)

    def all_stats(self, command: Command, peer: Peer) -> None:
        """317: how far every group is in every topic; with ``isOrder`` in ordered topics only."""
        header, store, identity = (
            BrokerConsumeStatsHeader.from_fields(command.fields),
            self._store(),
            self._identity,
        )
        wanted = consume_stats.listed(self._topics, self._offsets, self._members, header.is_order)
        self._later(
            command,
            peer,
            lambda: consume_stats.read(store, identity.name, wanted),
            lambda found: command.answer(
                fields={},
                body=bodies_admin.encode_broker_consume_stats(
                    identity.address, self._with_rates(found)
                ),
            ),
        )

    def _with_rates(
        self, found: consume_stats.Found
    ) -> dict[str, list[tuple[dict[MessageQueue, bodies_admin.Progress], float]]]:
        now_ms = self._clock.now_ms()
        return {
            group: [
                (
                    progress,
                    self._statistics.group_tps(next(iter(progress)).topic, group, now_ms),
                )
                for progress in topics
            ]
            for group, topics in found.items()
        }

    def producers(self, command: Command, peer: Peer) -> Command:
        """328: every producer group with its clients."""
        found = {
            group: [
                {
                    "clientId": client.client_id,
                    "language": language(client.language),
                    "lastUpdateTimestamp": client.heard_ms,
                    "remoteIP": f"/{cast(Peer, channel).host}:{cast(Peer, channel).port}",
                    "version": client.version,
                }
                for channel, client in channels.items()
            ]
            for group, channels in self._members.producers.groups().items()
        }
        return command.answer(fields={}, body=bodies_groups.encode_producers(found))

    def _relay(self, command: Command, peer: Peer, group: str, client_id: str, body: bytes) -> None:
        member = self._members.consumers.connection_of(group, client_id)
        if member is None:
            raise Refused(
                f"The Consumer <{group}> <{client_id}> not online", ResponseCode.SYSTEM_ERROR
            )

        def heard(outcome: Command | RemotingError) -> None:
            if isinstance(outcome, Command):
                peer.send(
                    command.answer(
                        outcome.code, outcome.fields or {}, outcome.body_bytes(), outcome.remark
                    )
                )
            else:
                peer.send(
                    command.answer(
                        ResponseCode.SYSTEM_ERROR,
                        {},
                        remark=f"consumer <{group}> <{client_id}> did not answer: {outcome}",
                    )
                )

        _ask(
            cast(Peer, member),
            Command(command.code, fields=command.fields, body=body),
            RELAY_TIMEOUT_MS,
            heard,
        )

    def _online(self, name: str) -> ConsumerGroup:
        group = self._members.consumers.find(name)
        if group is None or not group.channels:
            raise Refused(
                f"Consumer not online, so can not reset offset, Group: {name}",
                ResponseCode.CONSUMER_NOT_ONLINE,
            )
        return group

    def _store(self) -> MessageStore:
        store = self._keeper.store
        if store is None:
            raise self._keeper.refusal()
        return store


def _target(
    store: MessageStore, header: ResetOffsetHeader, queue_id: int, given: Mapping[int, int]
) -> int | None:
    low, high = store.bounds(header.topic, queue_id)
    if given:
        return min(max(low, given[queue_id]), high) if queue_id in given else None
    return (
        high
        if header.timestamp_ms == -1
        else max(0, store.offset_by_time(header.topic, queue_id, header.timestamp_ms))
    )


def _ask(
    member: Peer,
    command: Command,
    timeout_ms: float,
    callback: Callable[[Command | RemotingError], None],
) -> None:
    """A member that cannot be asked now counts as one that did not answer."""
    try:
        cast(Any, member).request(command, timeout_ms, callback)
    except RemotingError as error:
        callback(error)
