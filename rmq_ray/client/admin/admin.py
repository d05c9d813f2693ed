"""Administration of topics, groups and offsets over connections: what ``mq.admin`` offers.

Decides nothing that brokers do not decide themselves; it asks all masters and puts the answers
together. Blocking; used from any thread. Results are plain rows (dicts) where people read them,
values where programs do.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from functools import cached_property, partial
from typing import Any

import msgpack

from rmq_ray.client.admin.access_control import AccessControl
from rmq_ray.client.admin.admin_groups import AdminGroups
from rmq_ray.client.admin.admin_link import POLL_MS, body_of
from rmq_ray.client.admin.admin_settings import AdminSettings
from rmq_ray.client.admin.health import Health, look
from rmq_ray.client.admin.unread import readers, unread
from rmq_ray.client.outgoing.send_request import timeout_in_ms
from rmq_ray.codec.record import decode_record, parse_offset_message_id
from rmq_ray.codec.record_row import record_row
from rmq_ray.errors import AdminError, ClientError, RmqError
from rmq_ray.extras import load
from rmq_ray.model.ids import Address, MessageQueue
from rmq_ray.model.moments import unless_seconds
from rmq_ray.model.topics import (
    BOUND_MAX,
    DEFAULT_TOPIC,
    DLQ_PREFIX,
    REPLY_SUFFIX,
    RESERVE_TIME,
    RETENTION_HOURS_MAX,
    RETRY_PREFIX,
    SLOT_BYTES,
    SLOTS,
    SLOTS_GROUP,
    SYSTEM_TOPICS,
    TRACE_TOPIC,
    Permission,
    TopicConfig,
    TopicRoute,
)
from rmq_ray.model.trace import decode
from rmq_ray.protocol.scan.scan_positions import Where
from rmq_ray.protocol.validators import check_group, check_topic
from rmq_ray.remoting.wire.bodies import decode_route, decode_topic_configs, decode_topic_list
from rmq_ray.remoting.wire.bodies_admin import RETENTION_FIELD, QueueStats, decode_topic_stats
from rmq_ray.remoting.wire.codes import RequestCode, ResponseCode
from rmq_ray.remoting.wire.frame import Buffer, Command
from rmq_ray.remoting.wire.headers import (
    CreateTopicHeader,
    QueryMessageHeader,
    RouteHeader,
    TopicHeader,
    ViewMessageHeader,
)

QUEUES_MAX = 4_096
FOUND_MAX = 64  # a broker returns no more for one query
_END_OF_TIME_MS = (1 << 63) - 1
CHUNK_BYTES = 8 << 20
ROWS_MAX = 50_000_000
_WRITE = int(Permission.WRITE)


class Admin(AdminGroups, AdminSettings):
    """Topics, groups, offsets and messages of a cluster: ``mq.admin``.

    Blocks, from any thread; a request may take ``timeout_ms`` (10,000). Besides what each method
    names, calls raise ``AdminError`` where a broker refuses and ``RemotingError`` where none
    answers. ``close`` ends the connections; the next call opens them again.
    """

    @cached_property
    def acl(self) -> AccessControl:
        """Accounts and their rights: of a cluster with ``foreign="acl"``, for processes in its Ray
        cluster.
        """
        return AccessControl(self._discovery)

    def health(self, timeout: float = 1.0) -> Health:
        """Whether a name server and a broker's master answer within ``timeout`` seconds: for load
        balancers, which ask every few seconds. Raises nothing but ``ClientError`` for a time-out
        that is none; what is wrong is in ``Health.problem``. Two small requests.
        """
        timeout_ms = timeout_in_ms(timeout)
        try:
            return look(self._client(), timeout_ms)
        except RmqError as error:
            return Health(problem=str(error))

    def topics(self, *, system: bool = False) -> list[str]:
        """Names of all topics; with ``system`` also the queue's own, retry and dead-letter
        topics.
        """
        names = decode_topic_list(
            body_of(self._name_server(Command(RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER)))
        )
        if system:
            return sorted(names)
        own = {data.broker_name for data in self.brokers()} | {
            data.cluster for data in self.brokers()
        }
        return sorted(name for name in names if not _is_system(name, own))

    def create_topic(  # noqa: PLR0913 - the settings of a topic
        self,
        name: str,
        queues: int = 4,
        *,
        read_queues: int | None = None,
        write_queues: int | None = None,
        permission: int = 6,
        order: bool = False,
        retention_hours: int | None = None,
        slots: int | None = None,
        slot_bytes: int | None = None,
        slots_group: str | None = None,
    ) -> None:
        """Create or change a topic on every master. ``queues``: per broker, for reading and
        writing. ``retention_hours``: older messages are not handed out any more; 0 = as long as the
        store keeps its log, which is the most there is; None leaves it.

        ``slots``, ``slot_bytes``: senders wait while so many messages, or bytes of records, on a
        broker are not acknowledged by ``slots_group`` ("": by the slowest group that has a
        position), and get ``TopicFull`` at their time-out; 0 = unbounded, None leaves it.

        On return every broker has it on disk and the name servers know it. Raises ``ClientError``
        for a name that RocketMQ refuses, ``AdminError`` where a broker refused.
        """
        check_topic(name)
        reading, writing = (
            queues if count is None else count for count in (read_queues, write_queues)
        )
        _check_settings((reading, writing), permission, retention_hours)
        changes = _own_changes(retention_hours, slots, slot_bytes, slots_group)
        config = TopicConfig(name, reading, writing, permission, order=order)
        masters = self.masters()
        for broker, address in masters.items():
            self._put_topic(broker, address, config, changes)
        self._wait_for_route(name, dict.fromkeys(masters, (reading, writing, permission)))

    def alter_topic(
        self,
        name: str,
        *,
        queues: int | None = None,
        permission: int | None = None,
        retention_hours: int | None = None,
        slots: int | None = None,
        slot_bytes: int | None = None,
        slots_group: str | None = None,
        force: bool = False,
    ) -> list[dict[str, Any]]:
        """Change what is given of a topic, on every master that has it, and leave the rest; see
        ``create_topic``. ``TopicNotFound`` where no broker has it.

        With fewer ``queues`` nothing is sent to the others from now on, and they can be read as
        long as one of them holds messages that a group has not consumed. Those are returned, a row
        for each queue: broker, queue, messages; the next such call takes the queues away once
        nothing is left. ``force``: they go at once, with what they hold.
        """
        check_topic(name)
        _check_settings(
            (1,) if queues is None else (queues,),
            6 if permission is None else permission,
            retention_hours,
        )
        changes = _own_changes(retention_hours, slots, slot_bytes, slots_group)
        masters = self.masters()
        known = {b: topics[name] for b, topics in self.topic_configs().items() if name in topics}
        if not known:
            raise self._no_topic(name)
        made = {}
        rest: list[dict[str, Any]] = []
        groups: set[str] | None = None
        for broker, config in known.items():
            address = masters[broker]
            changed = replace(
                config,
                read_queues=config.read_queues if queues is None else queues,
                write_queues=config.write_queues if queues is None else queues,
                permission=config.permission if permission is None else permission,
            )
            if changed.read_queues < config.read_queues and not force:
                kept = replace(changed, read_queues=config.read_queues)
                self._put_topic(broker, address, kept, changes)
                groups = self._readers(name, masters) if groups is None else groups
                left = self._unread(broker, address, changed, config.read_queues, groups)
                rest += left
                changed = kept if left else changed
            self._put_topic(broker, address, changed, changes)
            made[broker] = (changed.read_queues, changed.write_queues, changed.permission)
        self._wait_for_route(name, made)
        return rest

    def _readers(self, topic: str, masters: Mapping[str, Address]) -> set[str]:
        """Groups that read it at any of the brokers."""
        found: set[str] = set()
        for broker, address in masters.items():
            failure = f"broker {broker} did not tell who reads topic {topic!r}"
            found.update(readers(partial(self._ask, address, failure=failure), topic))
        return found

    def _unread(
        self,
        broker: str,
        address: Address,
        config: TopicConfig,
        queues: int,
        groups: Iterable[str],
    ) -> list[dict[str, Any]]:
        """Of its queues from the last that stays up to ``queues``."""
        failure = f"broker {broker} did not tell what is unread of topic {config.name!r}"
        found = unread(
            partial(self._ask, address, failure=failure),
            config.name,
            range(config.read_queues, queues),
            groups,
        )
        return [
            {"broker": broker, "queue": queue_id, "messages": count}
            for queue_id, count in found.items()
        ]

    def _put_topic(
        self, broker: str, address: Address, config: TopicConfig, changes: str | None
    ) -> None:
        header = CreateTopicHeader(
            topic=config.name,
            default_topic=DEFAULT_TOPIC,
            read_queues=config.read_queues,
            write_queues=config.write_queues,
            permission=config.permission,
            filter_type=config.filter_type,
            sys_flag=config.sys_flag,
            order=config.order,
            attributes=changes,
        )
        self._ask(
            address,
            Command(RequestCode.UPDATE_AND_CREATE_TOPIC, fields=header.to_fields()),
            f"broker {broker} did not create topic {config.name!r}",
        )

    def delete_topic(self, name: str) -> dict[str, Any]:
        """Delete a topic on every master and at the name server. Returns what went with it:
        ``messages``, those that were ``waiting`` for their time or a commit, and the
        ``groups`` that had positions in it. ``TopicNotFound`` where no broker has it.
        """
        check_topic(name)
        self.route(name)
        fields = TopicHeader(topic=name).to_fields()
        messages, groups = 0, set[str]()
        waited = self._waiting_for()[name]
        for broker, address in self.masters().items():
            answer = self._ask(
                address,
                Command(RequestCode.DELETE_TOPIC_IN_BROKER, fields=fields),
                f"broker {broker} did not delete topic {name!r}",
            )
            told = answer.fields or {}
            messages += int(told.get("messages", 0))
            groups.update(filter(None, told.get("groups", "").split(",")))
        self._forget_route(name)
        return {"messages": messages, "waiting": waited, "groups": sorted(groups)}

    def route(self, name: str) -> TopicRoute:
        """Where a topic's queues are. ``TopicNotFound`` where nobody has it."""
        check_topic(name)
        route = self._route(name)
        if route is None:
            raise self._no_topic(name)
        return route

    def _route(self, name: str) -> TopicRoute | None:
        answer = self._name_server(
            Command(
                RequestCode.GET_ROUTEINFO_BY_TOPIC,
                fields=RouteHeader(topic=name, accept_standard_json_only=True).to_fields(),
            ),
            accept=(ResponseCode.TOPIC_NOT_EXIST,),
        )
        is_there = answer.code != ResponseCode.TOPIC_NOT_EXIST
        return decode_route(body_of(answer)) if is_there else None

    def topic_configs(self) -> dict[str, dict[str, TopicConfig]]:
        """Broker name -> topic -> its settings there."""
        command = Command(RequestCode.GET_ALL_TOPIC_CONFIG)
        return {
            broker: decode_topic_configs(
                body_of(self._ask(address, command, f"broker {broker} did not tell its topics"))
            )[0]
            for broker, address in self.masters().items()
        }

    def topic_stats(self, name: str) -> dict[MessageQueue, QueueStats]:
        """Offsets and last store time of every queue."""
        return {
            queue: stats
            for _, answer in self._stats_of_brokers(name)
            for queue, stats in decode_topic_stats(body_of(answer)).items()
        }

    def describe_topic(self, name: str) -> list[dict[str, Any]]:
        """A row for each queue: broker, queue, min_offset, max_offset, messages, retention_hours
        (None: as long as the store keeps its log).
        """
        return [
            {
                "broker": broker,
                "queue": queue.queue_id,
                "min_offset": stats.min_offset,
                "max_offset": stats.max_offset,
                "messages": stats.max_offset - stats.min_offset,
                "retention_hours": int((answer.fields or {}).get(RETENTION_FIELD, 0)) or None,
            }
            for broker, answer in self._stats_of_brokers(name)
            for queue, stats in sorted(decode_topic_stats(body_of(answer)).items())
        ]

    def _stats_of_brokers(self, name: str) -> Iterator[tuple[str, Command]]:
        names = {queue.broker_name for queue in self.route(name).queues}
        command = Command(
            RequestCode.GET_TOPIC_STATS_INFO, fields=TopicHeader(topic=name).to_fields()
        )
        for broker, address in sorted(self.masters().items()):
            if broker in names:
                failure = f"broker {broker} did not tell about topic {name!r}"
                yield broker, self._ask(address, command, failure)

    def _wait_for_route(self, name: str, made: Mapping[str, tuple[int, int, int]]) -> None:
        """Brokers register a topic at once; wait until the name server shows it on each as it was
        made: (read queues, write queues, permission).
        """
        clock = self._client().clock
        deadline = clock.monotonic_ms() + self._timeout_ms
        while True:
            route = self._route(name)
            if route is not None and made.items() <= {
                (q.broker_name, (q.read_queues, q.write_queues, q.permission)) for q in route.queues
            }:
                return
            if clock.monotonic_ms() > deadline:
                raise AdminError(
                    f"the name server does not show topic {name!r} on every broker after "
                    f"{self._timeout_ms // 1000} s",
                    name,
                )
            clock.sleep_ms(POLL_MS)

    def find_messages(
        self,
        topic: str,
        key: str,
        *,
        limit: int = 32,
        begin_ms: int = 0,
        end_ms: int = _END_OF_TIME_MS,
    ) -> list[dict[str, Any]]:
        """Messages of a topic with a business key, or with a message id as the key, stored in
        [begin, end]; newest first, at most 64 a broker.
        """
        check_topic(topic)
        if not key:
            raise ClientError("the key is empty; give the key or the message id to look for")
        header = QueryMessageHeader(
            topic=topic,
            key=key,
            max_count=max(1, min(limit, FOUND_MAX)),
            begin_ms=unless_seconds(begin_ms),
            end_ms=unless_seconds(end_ms),
        )
        rows: list[dict[str, Any]] = []
        for broker, address in self.masters().items():
            command = Command(RequestCode.QUERY_MESSAGE, fields=header.to_fields())
            answer = self._ask(
                address,
                command,
                f"broker {broker} did not look for {key!r} in topic {topic!r}",
                (ResponseCode.QUERY_NOT_FOUND,),
            )
            if answer.code == ResponseCode.SUCCESS:
                rows += rows_of(broker, body_of(answer))
        return sorted(rows, key=lambda row: (-int(row["store_ms"]), -int(row["log_offset"])))[
            :limit
        ]

    def message_trace(self, message_id: str, *, topic: str = TRACE_TOPIC) -> list[dict[str, Any]]:
        """What traced clients wrote of a message, by its message id or a business key: rows in the
        order of their times.

        Columns: ``time_ms``, ``kind`` (Pub, SubBefore, SubAfter, EndTransaction), ``group``,
        ``message_id`` and the record's other fields.
        """
        return trace_rows(self.find_messages(topic, message_id, limit=FOUND_MAX), message_id)

    def message_at(self, offset_message_id: str) -> dict[str, Any]:
        """The message with an offset message id (``SendResult.offset_message_id``): broker address
        and log offset, 32 hex digits.

        ``ClientError`` for a text that is none, ``AdminError`` where no master has that address, or
        nothing lies there.
        """
        try:
            host, port, log_offset = parse_offset_message_id(offset_message_id)
        except ValueError as error:
            raise ClientError(
                f"{offset_message_id!r} is no offset message id: {error}", offset_message_id
            ) from None
        wanted = Address(host, port)
        broker = next((name for name, address in self.masters().items() if address == wanted), None)
        if broker is None:
            raise AdminError(
                f"no master of this cluster listens at {wanted}; for the message id of a "
                f"producer give the topic too",
                offset_message_id,
            )
        command = Command(
            RequestCode.VIEW_MESSAGE_BY_ID, fields=ViewMessageHeader(offset=log_offset).to_fields()
        )
        return rows_of(
            broker,
            body_of(
                self._ask(
                    wanted, command, f"broker {broker} has no message at log offset {log_offset}"
                )
            ),
        )[0]

    def to_arrow(
        self,
        topic: str,
        *,
        start: Where = "earliest",
        end: Where = "latest",
        columns: Sequence[str] | None = None,
        rows_max: int = ROWS_MAX,
    ) -> Any:
        """``pyarrow.Table`` of what the topic holds now (columns: ``rmq_ray.model.arrow.SCHEMA``);
        ``.to_pandas()`` makes a frame of it.

        ``start``, ``end``: "earliest", "latest", a time, a group's position or offsets, see
        ``rmq_ray.protocol.scan.scan_positions``. All of it lies in this process's memory: a plan of
        more than ``rows_max`` rows is refused with ``ClientError`` before anything is read. Raises
        ``TopicNotFound``, ``OffsetOutOfRange`` and ``ClusterError`` as reading into Spark does. The
        segments are kept from retention until it returns.
        """
        check_topic(topic)
        pa = load("pyarrow")
        from rmq_ray.client.scan.scan_plan import open_reader, plan_scan
        from rmq_ray.client.scan.shared_queues import expected_of
        from rmq_ray.codec.arrow.arrow_reader import to_batch

        empty = to_batch(
            topic, "", b"", [], columns
        )  # also checks the columns, before anything is asked for
        batches = []
        with plan_scan(self._discovery, topic, start, end, 1, expected_of(self._discovery)) as plan:
            if plan.rows > rows_max:
                raise ClientError(
                    f"topic {topic!r} has {plan.rows} messages there, more than "
                    f"rows_max={rows_max}: read a part, or use Spark or Ray Data",
                    plan.rows,
                )
            reader = open_reader(plan)
            try:
                for split in plan.splits:
                    for records, sizes in reader.read(split, CHUNK_BYTES):
                        batches.append(
                            to_batch(topic, split.queue.broker_name, records, sizes, columns)
                        )
            finally:
                reader.close()
        return pa.Table.from_batches(batches or [empty])

    def drain_broker(self, broker: str) -> dict[str, Any]:
        """The broker takes no new messages from now on, until ``undrain_broker`` or its next start;
        it serves and delivers what it has.

        On return its queues are shown without write permission. Sends that still reach it are
        refused and go to another broker by themselves; where a topic has no other broker they are
        repeated until their time-out. Returns ``broker``, ``address``, ``draining``, ``was``.
        ``AdminError`` for an unknown name.
        """
        return self._drain(broker, True)

    def undrain_broker(self, broker: str) -> dict[str, Any]:
        """End of ``drain_broker``: on return the name servers show its topics with the permissions
        that they have.
        """
        return self._drain(broker, False)

    def delete_expired(self, broker: str) -> None:
        """Segments of the broker's log that are older than its ``reserved_hours`` go within the
        next minutes, whatever the hour; the newest one never.
        """
        self._ask(
            self._master(broker),
            Command(RequestCode.DELETE_EXPIRED_COMMITLOG),
            f"broker {broker} did not begin to clean",
        )

    def note_change(self, fields: Mapping[str, str]) -> None:
        """A line in the audit log of the first broker, of what is about to be done: ``change``,
        the ``topic`` or ``group`` that it is done to, and more. For administrators.
        """
        masters = self.masters()
        broker = min(masters)
        command = Command(RequestCode.NOTE_CHANGE, fields=dict(fields))
        self._ask(masters[broker], command, f"broker {broker} did not note it")

    def broker_status(self, broker: str) -> dict[str, Any]:
        """What the master tells of itself (operations: status)."""
        answer = self._ask(
            self._master(broker),
            Command(RequestCode.BROKER_STATUS),
            f"broker {broker} did not tell its state",
        )
        found: dict[str, Any] = msgpack.unpackb(body_of(answer), strict_map_key=False)
        return found

    def _drain(self, broker: str, draining: bool) -> dict[str, Any]:
        address = self._master(broker)
        what = "drained" if draining else "taken back"
        answer = self._ask(
            address,
            Command(RequestCode.DRAIN_BROKER, body=msgpack.packb([draining])),
            f"broker {broker} was not {what}",
        )
        self._wait_until_shown(broker, not draining)
        return {"broker": broker, "address": str(address), **msgpack.unpackb(body_of(answer))}

    def _wait_until_shown(self, broker: str, writable: bool) -> None:
        """A name server shows the topic that each broker has under its own name with the permission
        that is meant.
        """
        clock = self._client().clock
        deadline = clock.monotonic_ms() + self._timeout_ms
        command = Command(
            RequestCode.GET_ROUTEINFO_BY_TOPIC,
            fields=RouteHeader(topic=broker, accept_standard_json_only=True).to_fields(),
        )
        while True:
            route = decode_route(body_of(self._name_server(command)))
            if {
                bool(queue.permission & _WRITE)
                for queue in route.queues
                if queue.broker_name == broker
            } == {writable}:
                return
            if clock.monotonic_ms() > deadline:
                raise AdminError(
                    f"the name servers do not show the change of broker {broker} after "
                    f"{self._timeout_ms // 1000} s",
                    broker,
                )
            clock.sleep_ms(POLL_MS)


def _check_settings(queues: Sequence[object], permission: object, retention_hours: object) -> None:
    """``ClientError`` for what no broker would take."""
    for count in queues:
        if type(count) is not int or not 1 <= count <= QUEUES_MAX:
            raise ClientError(
                f"queues must be a whole number, 1 to {QUEUES_MAX}, not {count!r:.80}",
                repr(count)[:80],
            )
    if permission not in (2, 4, 6):
        raise ClientError(
            f"permission must be 2 (write), 4 (read) or 6 (both), not {permission}", permission
        )
    if retention_hours is not None and (
        type(retention_hours) is not int or not 0 <= retention_hours <= RETENTION_HOURS_MAX
    ):
        raise ClientError(
            f"retention_hours must be a whole number of hours, or 0 for as long as the store keeps "
            f"its log, not {retention_hours!r:.80}",
            repr(retention_hours)[:80],
        )


def _own_changes(
    retention_hours: int | None, slots: int | None, slot_bytes: int | None, slots_group: str | None
) -> str | None:
    """The changes of attributes as RocketMQ 5 writes them, None for none. ``ClientError`` for what
    no broker would take.
    """
    for name, value in (("slots", slots), ("slot_bytes", slot_bytes)):
        if value is not None and (type(value) is not int or not 0 <= value <= BOUND_MAX):
            raise ClientError(
                f"{name} must be a whole number, or 0 for a topic without a bound, not "
                f"{value!r:.80}",
                repr(value)[:80],
            )
    if slots_group:
        check_group(slots_group)
    wanted = {
        RESERVE_TIME: retention_hours,
        SLOTS: slots,
        SLOT_BYTES: slot_bytes,
        SLOTS_GROUP: slots_group,
    }
    changes = [
        f"+{name}={value}" if value else f"-{name}"
        for name, value in wanted.items()
        if value is not None
    ]
    return ",".join(changes) or None


def _is_system(name: str, own: set[str]) -> bool:
    return (
        name in SYSTEM_TOPICS
        or name in own
        or name.startswith((RETRY_PREFIX, DLQ_PREFIX, "rmq_sys_"))
        or name.endswith(REPLY_SUFFIX)
    )


def trace_rows(found: Iterable[Mapping[str, Any]], message_id: str) -> list[dict[str, Any]]:
    """What ``message_trace`` returns, of the trace messages that were found."""
    records = {record for row in found if row["body"] for record in decode(row["body"])}
    rows = [
        {
            "time_ms": record.ms,
            "kind": type(record).__name__,
            "group": record.group,
            **asdict(record),
        }
        for record in records
        if message_id == record.message_id or message_id in record.keys.split()
    ]
    for row in rows:
        del row["ms"]
    return sorted(
        rows, key=lambda row: (row["time_ms"], row["kind"] in ("SubAfter", "EndTransaction"))
    )


def rows_of(broker: str, body: Buffer) -> list[dict[str, Any]]:
    """Records back to back, as ``find_messages`` has them."""
    rows = []
    data = bytes(body)
    at = 0
    while at < len(data):  # ends: every record has a size
        record = decode_record(data, at)
        rows.append({"broker": broker, **record_row(record)})
        at += record.size
    return rows
