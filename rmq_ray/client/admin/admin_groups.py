"""Administration of consumer groups: who they are, how far they are, where they go on
(protocol-behaviour 18).

Decides: how a group's position is moved: by its running members where there are some (222 makes
each drop its queues and go on elsewhere; a commit from outside would be overwritten by theirs),
directly otherwise. Nothing moves without ``execute``. Called by: ``admin``. Blocking; rows are
dicts.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from rmq_ray.client.admin.admin_link import AdminLink, body_of
from rmq_ray.client.instance.stopped_brokers import why_some_stopped
from rmq_ray.client.instance.time_search import first_since
from rmq_ray.errors import AdminError, ClientError, GroupNotFound, TopicNotFound
from rmq_ray.model.groups import is_system_group
from rmq_ray.model.ids import MessageQueue
from rmq_ray.model.moments import moment_ms, unless_seconds
from rmq_ray.model.topics import GroupConfig
from rmq_ray.protocol.scan.scan_positions import LikeGroup
from rmq_ray.protocol.validators import check_group, check_topic
from rmq_ray.remoting.wire.bodies import decode_lock_holders
from rmq_ray.remoting.wire.bodies_admin import (
    Progress,
    decode_conflicts,
    decode_connections,
    decode_consume_stats,
    decode_group_configs,
    encode_group,
)
from rmq_ray.remoting.wire.bodies_groups import encode_offsets
from rmq_ray.remoting.wire.body_json import parse, write
from rmq_ray.remoting.wire.codes import RequestCode, ResponseCode
from rmq_ray.remoting.wire.frame import Buffer, Command
from rmq_ray.remoting.wire.group_headers import (
    ConsumeDirectlyHeader,
    ResetOffsetHeader,
    RunningInfoHeader,
)
from rmq_ray.remoting.wire.headers import (
    ConsumerGroupHeader,
    ConsumeStatsHeader,
    DeleteGroupHeader,
    OffsetAnswer,
    QueueHeader,
    UpdateOffsetHeader,
)
from rmq_ray.remoting.wire.overview import DELAYED, UNCOMMITTED, ask_overview, read_overview

NOT_SUPPORTED = ResponseCode.REQUEST_CODE_NOT_SUPPORTED

FIRST, LAST = "first", "last"
RETRIES_MAX = 1_000


@dataclass(frozen=True, slots=True)
class Offset:
    """The same queue offset in every queue."""

    offset: int


SeekTarget = str | int | datetime | Offset | LikeGroup | Mapping[MessageQueue, int]
"""``"first"``, ``"last"``, a store time, offsets, or another group; see
``AdminGroups.seek_group``.
"""


class AdminGroups(AdminLink):
    """The part of ``Admin`` that knows groups."""

    def groups(self, *, system: bool = False) -> list[str]:
        """Names of all consumer groups that a broker knows; with ``system`` also those of
        RocketMQ's own tools.
        """
        command = Command(RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG)
        found: set[str] = set()
        for broker, address in self.masters().items():
            found |= set(
                decode_group_configs(
                    body_of(self._ask(address, command, f"broker {broker} did not tell its groups"))
                )[0]
            )
        return sorted(name for name in found if system or not is_system_group(name))

    def waiting(self) -> dict[str, dict[str, int]]:
        """What waits before it can be consumed, at all brokers: ``delayed``, topic -> messages at a
        level or with a time, those under ``%RETRY%group`` being what the group failed on; and
        ``uncommitted``, topic -> half messages. A topic that is missing has none; a part that is
        missing is not known: a broker still counts after its start, or is older.
        """
        found: dict[str, dict[str, int]] = {DELAYED: {}, UNCOMMITTED: {}}
        for broker, address in self.masters().items():
            failure = f"broker {broker} did not tell what waits"
            answer = self._ask(address, ask_overview(), failure, (NOT_SUPPORTED,))
            told = {} if answer.code == NOT_SUPPORTED else read_overview(body_of(answer))
            for part in [*found]:
                if part not in told:
                    del found[part]
                    continue
                for topic, count in told[part].items():
                    found[part][topic] = found[part].get(topic, 0) + count
        return found

    def _waiting_for(self) -> Counter[str]:
        """Topic -> all that waits for it, as far as that is told now."""
        found: Counter[str] = Counter()
        with suppress(AdminError):  # what is told beside an answer keeps nobody from it
            for counts in self.waiting().values():
                found.update(counts)
        return found

    def group_lag(self, group: str) -> list[dict[str, Any]]:
        """A row for each queue that the group consumes: topic, broker, queue, max_offset,
        committed, lag, taken, committed_age_ms, last_consumed_ms. ``GroupNotFound`` where none
        does.

        ``lag``: messages from the first that is not done on, those that are out at simple consumers
        or done behind it included. ``taken``: simple consumers took everything below this offset;
        from there on messages wait. As ``committed`` where nothing is out.

        ``committed_age_ms``: how long ago a consumer last committed the queue, moved or not: what
        it has finished since is still counted as lag. None where nobody has since the broker began.
        ``last_consumed_ms``: when the last message that is consumed was stored, ms.
        """
        rows = [
            {
                "topic": queue.topic,
                "broker": queue.broker_name,
                "queue": queue.queue_id,
                "max_offset": p.broker_offset,
                "committed": p.consumer_offset,
                "lag": max(0, p.broker_offset - p.consumer_offset),
                "taken": max(p.consumer_offset, p.pull_offset or 0),
                "committed_age_ms": p.committed_age_ms,
                "last_consumed_ms": p.last_ms,
            }
            for queue, p in sorted(self._progress(group).items())
        ]
        if not rows:
            self._require_group(group)
        return rows

    def group_clients(self, group: str) -> list[dict[str, Any]]:
        """A row for each running consumer of the group and broker that it is connected to: broker,
        client_id, address, language.

        Empty when nobody consumes; ``GroupNotFound`` where no broker knows the group.
        """
        rows = [
            {
                "broker": broker,
                "client_id": client.client_id,
                "address": client.address,
                "language": client.language,
            }
            for broker, body in self._connections(group).items()
            for client in sorted(decode_connections(body), key=lambda client: client.client_id)
        ]
        if not rows:
            self._require_group(group)
        return rows

    def group_locks(self, group: str) -> list[dict[str, Any]]:
        """A row for each queue that a consumer of the group holds the lock of, to consume it in
        order: topic, broker, queue, holder (client id), ends_in_ms, left.

        ``ends_in_ms``: until then nobody else gets the queue, unless the holder gives it back; he
        refreshes it every 20 s. ``left``: his connection has closed, he is awaited for 5 s. Of
        brokers that a running consumer is connected to.
        """
        return [
            {
                "topic": queue.topic,
                "broker": queue.broker_name,
                "queue": queue.queue_id,
                "holder": holder.client_id,
                "ends_in_ms": holder.ends_in_ms,
                "left": holder.left,
            }
            for body in self._connections(group).values()
            for queue, holder in sorted(decode_lock_holders(body).items())
        ]

    def group_conflicts(self, group: str) -> list[dict[str, Any]]:
        """A row for each way in which running consumers of one group subscribe to a topic
        differently: topic, expression, client_ids.

        Empty where they agree. The newest heartbeat counts for all of them, so messages are
        filtered for some by what others asked.
        """
        found: dict[tuple[str, str], set[str]] = {}
        for body in self._connections(group).values():
            for topic, texts in decode_conflicts(body).items():
                for text, clients in texts.items():
                    found.setdefault((topic, text), set()).update(clients)
        return [
            {"topic": topic, "expression": text, "client_ids": sorted(clients)}
            for (topic, text), clients in sorted(found.items())
        ]

    def seek_group(
        self, group: str, topic: str, to: SeekTarget, *, execute: bool = False
    ) -> list[dict[str, Any]]:
        """Where the group would go on in each queue of a topic, and with ``execute`` moves it
        there: broker, queue, committed, target, moved_by.

        ``to``: "first" and "last" message that is there; a store time, ``datetime`` or ms since the
        epoch (the first message stored then or later); ``Offset(n)`` for every queue; a mapping
        ``MessageQueue -> offset``; ``LikeGroup(name)``, where another group is now (queues without
        a position of it stay). Targets are bounded by what a queue has. A group whose push
        consumers run is moved by them, 10 s later, when running listeners are through; groups of
        other members must be stopped. Raises ``AdminError`` then, ``GroupNotFound``,
        ``TopicNotFound``, ``ClientError``.
        """
        check_topic(topic)
        wanted = self._wanted(to, topic)
        self._require_group(group)
        committed = self._queues_of(group, topic)
        clients = {row["client_id"] for row in self.group_clients(group)} if execute else set()
        targets = {
            queue: self._target(queue, wanted, committed[queue].consumer_offset)
            for queue in sorted(committed)
        }
        if clients:
            self._move_members(group, topic, targets)
        elif execute:
            for queue, target in targets.items():
                self._commit(group, queue, target)
        return [
            {
                "broker": queue.broker_name,
                "queue": queue.queue_id,
                "committed": committed[queue].consumer_offset,
                "target": target,
                "moved_by": target - committed[queue].consumer_offset,
            }
            for queue, target in targets.items()
        ]

    def skip_group(self, group: str, topic: str, *, execute: bool = False) -> list[dict[str, Any]]:
        """Give up the backlog of a group in a topic: it goes on behind the last message that is
        there now. Like ``seek_group(..., "last")``.
        """
        return self.seek_group(group, topic, LAST, execute=execute)

    def clone_group(
        self, source: str, target: str, topic: str, *, execute: bool = False
    ) -> list[dict[str, Any]]:
        """Let ``target`` go on where ``source`` is in a topic; a ``target`` that no broker knows
        yet begins there.

        A row for each queue: broker, queue, committed (of ``target``, 0 = none), target, moved_by;
        queues without a position of ``source`` are left out. ``AdminError`` while members of
        ``target`` run (with ``execute``), ``GroupNotFound`` for ``source``, ``TopicNotFound``.
        """
        check_topic(topic)
        check_group(target)
        self._require_group(source)
        if (
            execute
            and target in self.groups(system=True)
            and (clients := self.group_clients(target))
        ):
            raise AdminError(
                f"{len(clients)} consumers of group {target!r} are running and would commit "
                f"their own positions: stop them first",
                target,
            )
        found, present = self._queues_of(source, topic), self._progress(target, topic)
        if execute:
            self._make_known(target)
            for queue in sorted(found):
                self._commit(target, queue, found[queue].consumer_offset)
        rows = []
        for queue in sorted(found):
            there = present[queue].consumer_offset if queue in present else 0
            offset = found[queue].consumer_offset
            rows.append(
                {
                    "broker": queue.broker_name,
                    "queue": queue.queue_id,
                    "committed": there,
                    "target": offset,
                    "moved_by": offset - there,
                }
            )
        return rows

    def consume_directly(
        self, group: str, client_id: str, offset_message_id: str, broker: str
    ) -> dict[str, Any]:
        """Let one running member of a group consume one stored message again, now; nothing is
        committed by it.

        ``offset_message_id``: of ``SendResult.offset_message_id`` or ``message get``; ``broker``:
        the broker name that has it. Returns RocketMQ's ``consumeResult`` (CR_SUCCESS, CR_LATER,
        CR_THROW_EXCEPTION), ``spentTimeMills``, ``remark``. ``AdminError`` where member or message
        is missing.
        """
        check_group(group)
        header = ConsumeDirectlyHeader(group, client_id, offset_message_id, broker)
        if broker not in self.masters():
            raise AdminError(
                f"there is no broker {broker!r}: {', '.join(self.masters())} run", broker
            )
        command = Command(RequestCode.CONSUME_MESSAGE_DIRECTLY, fields=header.to_fields())
        answer = self._ask(
            self.masters()[broker], command, f"{client_id} of {group!r} did not consume the message"
        )
        return parse(body_of(answer))

    def running_info(self, group: str, client_id: str, *, stacks: bool = False) -> dict[str, Any]:
        """What a running member says of itself, RocketMQ's members: ``properties``, ``mqTable``,
        ``statusTable``, ``subscriptionSet``, and with ``stacks`` where its threads stand
        (``jstack``). ``AdminError`` where it does not run.
        """
        check_group(group)
        fields = RunningInfoHeader(group, client_id, stacks).to_fields()
        refusal: AdminError | None = None
        for broker, address in self.masters().items():
            try:
                command = Command(RequestCode.GET_CONSUMER_RUNNING_INFO, fields=fields)
                return parse(
                    body_of(
                        self._ask(address, command, f"broker {broker} does not reach {client_id}")
                    )
                )
            except AdminError as error:
                refusal = error
        raise refusal or AdminError(f"{client_id} is no member of {group!r}", group)

    def create_group(self, group: str) -> None:
        """Make the group known to every master that does not know it; the others keep its
        settings. Consumers need none: theirs is made when they come.
        """
        check_group(group)
        self._make_known(group)

    def delete_group(self, group: str, *, keep_dead_letters: bool = False) -> dict[str, int]:
        """Forget the group on every master: its positions, what waits to be consumed again, and its
        dead letters unless ``keep_dead_letters``; a group of that name begins anew. Returns the
        topics that went along and how many messages they held, those that waited for their retry
        among them. ``AdminError`` while a consumer of it runs, ``GroupNotFound``.
        """
        if clients := {row["client_id"] for row in self.group_clients(group)}:
            raise AdminError(
                f"{len(clients)} consumers of group {group!r} are running: stop them first", group
            )
        fields = DeleteGroupHeader(group, True, keep_dead_letters or None).to_fields()
        gone: dict[str, int] = {}
        waited = self._waiting_for()
        for broker, address in self.masters().items():
            answer = self._ask(
                address,
                Command(RequestCode.DELETE_SUBSCRIPTIONGROUP, fields=fields),
                f"broker {broker} did not delete group {group!r}",
            )
            for told in filter(None, (answer.fields or {}).get("topics", "").split(",")):
                topic, _, count = told.partition("=")
                gone[topic] = gone.get(topic, 0) + int(count)
        for topic in gone:
            gone[topic] += waited[topic]
            self._forget_route(topic)
        return gone

    def _connections(self, group: str) -> dict[str, Buffer]:
        """Broker -> its answer about running consumers, where there are some."""
        check_group(group)
        found = {}
        for broker, address in self.masters().items():
            command = Command(
                RequestCode.GET_CONSUMER_CONNECTION_LIST,
                fields=ConsumerGroupHeader(consumer_group=group).to_fields(),
            )
            answer = self._ask(
                address,
                command,
                f"broker {broker} did not tell who consumes with {group!r}",
                (ResponseCode.CONSUMER_NOT_ONLINE,),
            )
            if answer.code == ResponseCode.SUCCESS:
                found[broker] = body_of(answer)
        return found

    def _progress(self, group: str, topic: str | None = None) -> dict[MessageQueue, Progress]:
        check_group(group)
        fields = ConsumeStatsHeader(consumer_group=group, topic=topic).to_fields()
        found: dict[MessageQueue, Progress] = {}
        for broker, address in self.masters().items():
            command = Command(RequestCode.GET_CONSUME_STATS, fields=fields)
            found.update(
                decode_consume_stats(
                    body_of(
                        self._ask(
                            address, command, f"broker {broker} did not tell the lag of {group!r}"
                        )
                    )
                )
            )
        return found

    def _queues_of(self, group: str, topic: str) -> dict[MessageQueue, Progress]:
        found = self._progress(group, topic)
        if not found:
            raise TopicNotFound(
                f"no broker has the topic {topic!r}: there is nothing to move group {group!r} in",
                topic,
            )
        return found

    def _wanted(self, to: SeekTarget, topic: str) -> SeekTarget:
        """The target, checked; that of another group as its offsets."""
        if isinstance(to, LikeGroup):
            self._require_group(to.group)
            return {
                queue: progress.consumer_offset
                for queue, progress in self._progress(to.group, topic).items()
            }
        if isinstance(to, datetime):
            return moment_ms(to)
        if isinstance(to, int) and not isinstance(to, bool):
            return unless_seconds(to)
        if (
            (isinstance(to, str) and to not in (FIRST, LAST))
            or isinstance(to, bool)
            or not isinstance(to, str | Offset | Mapping)
        ):
            raise ClientError(
                f"position {to!r} must be 'first', 'last', a time (datetime or ms since the "
                f"epoch), Offset(n), offsets by queue, or LikeGroup(name)"
            )
        return to

    def _target(self, queue: MessageQueue, to: SeekTarget, now: int) -> int:
        if isinstance(to, Mapping | Offset):
            low, high = (
                self._bound(queue, RequestCode.GET_MIN_OFFSET),
                self._bound(queue, RequestCode.GET_MAX_OFFSET),
            )
            return min(max(low, to.get(queue, now) if isinstance(to, Mapping) else to.offset), high)
        if isinstance(to, str):
            return self._bound(
                queue, RequestCode.GET_MIN_OFFSET if to == FIRST else RequestCode.GET_MAX_OFFSET
            )
        assert isinstance(to, int)
        return self._offset(queue, first_since(queue, to))

    def _bound(self, queue: MessageQueue, code: RequestCode) -> int:
        return self._offset(
            queue,
            Command(
                code, fields=QueueHeader(topic=queue.topic, queue_id=queue.queue_id).to_fields()
            ),
        )

    def _offset(self, queue: MessageQueue, command: Command) -> int:
        answer = self._ask(
            self.masters()[queue.broker_name],
            command,
            f"broker {queue.broker_name} did not tell the offsets of {queue}",
        )
        return OffsetAnswer.from_fields(answer.fields).offset

    def _move_members(self, group: str, topic: str, targets: Mapping[MessageQueue, int]) -> None:
        """Each broker tells the members (222 with our body)."""
        for broker, address in self.masters().items():
            own = {
                queue: target for queue, target in targets.items() if queue.broker_name == broker
            }
            if own:
                fields = ResetOffsetHeader(topic, group, -1, force=True).to_fields()
                command = Command(
                    RequestCode.INVOKE_BROKER_TO_RESET_OFFSET,
                    fields=fields,
                    body=encode_offsets(own),
                )
                self._ask(
                    address,
                    command,
                    f"broker {broker} did not move {group!r}: stop its consumers and try again",
                )

    def _commit(self, group: str, queue: MessageQueue, offset: int) -> None:
        header = UpdateOffsetHeader(
            consumer_group=group, topic=queue.topic, queue_id=queue.queue_id, commit_offset=offset
        )
        command = Command(RequestCode.UPDATE_CONSUMER_OFFSET, fields=header.to_fields())
        self._ask(
            self.masters()[queue.broker_name],
            command,
            f"broker {queue.broker_name} did not move {group!r} on {queue}",
        )

    def _make_known(self, group: str) -> None:
        """Every master has the group from now on, with its own settings where it had it before."""
        if group in self.groups(system=True):
            return
        body = write(encode_group(GroupConfig(group)))
        for broker, address in self.masters().items():
            self._ask(
                address,
                Command(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, body=body),
                f"broker {broker} did not create group {group!r}",
            )

    def _require_group(self, group: str) -> None:
        if group not in self.groups(system=True):
            why = why_some_stopped(self._stopped())
            raise GroupNotFound(
                f"no broker knows the consumer group {group!r}: it never connected, or was deleted"
                f"{'' if why is None else f'; or it is on what is stopped: {why}'}",
                group,
            )
