"""Administration of topics, groups and offsets over connections: what ``mq.admin`` offers.

Decides nothing that brokers do not decide themselves; it asks all masters and puts the answers together. Blocking; used from
any thread. Results are plain rows (dicts) where people read them, values where programs do.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from rmq_ray.client.client_instance import ClientInstance
from rmq_ray.errors import AdminError, ClientError, GroupNotFound, ResponseError, TopicNotFound
from rmq_ray.model.ids import MASTER_ID, Address, MessageQueue
from rmq_ray.model.topics import DEFAULT_TOPIC, DLQ_PREFIX, REPLY_SUFFIX, RETRY_PREFIX, SYSTEM_TOPICS, BrokerData, TopicConfig, TopicRoute
from rmq_ray.ports import Discovery
from rmq_ray.protocol.validators import check_group, check_topic
from rmq_ray.remoting.bodies import decode_cluster_info, decode_route, decode_topic_configs, decode_topic_list
from rmq_ray.remoting.bodies_admin import QueueStats, decode_consume_stats, decode_group_configs, decode_topic_stats
from rmq_ray.remoting.codes import RequestCode, ResponseCode
from rmq_ray.remoting.frame import Command
from rmq_ray.remoting.headers import ConsumeStatsHeader, CreateTopicHeader, RouteHeader, TopicHeader

TIMEOUT_MS = 10_000
QUEUES_MAX = 10_000
POLL_MS = 5


class Admin:
    """One client instance; ``close`` it when done."""

    def __init__(self, discovery: Discovery) -> None:
        self._discovery = discovery
        self._instance: ClientInstance | None = None

    def close(self) -> None:
        """Close the connections; the next call opens them again."""
        if self._instance is not None:
            self._instance.release()
            self._instance = None

    # --- the cluster -------------------------------------------------------------------------------------------------------

    def brokers(self) -> list[BrokerData]:
        """Every broker name with its addresses by id, as a name server knows them."""
        return decode_cluster_info(self._name_server(Command(RequestCode.GET_BROKER_CLUSTER_INFO)).body)  # type: ignore[arg-type]

    def masters(self) -> dict[str, Address]:
        """Addresses of the masters by broker name. Waits for the brokers' registration at a name server that has just started.

        ``AdminError`` where there is none after 10 s.
        """
        clock = self._client().clock
        deadline = clock.monotonic_ms() + TIMEOUT_MS
        while True:
            found = {data.broker_name: Address.parse(data.addresses[MASTER_ID]) for data in self.brokers() if MASTER_ID in data.addresses}
            if found:
                return found
            if clock.monotonic_ms() > deadline:
                raise AdminError("no broker is registered at the name servers: see `rmq-ray status`")
            clock.sleep_ms(POLL_MS)

    # --- topics ------------------------------------------------------------------------------------------------------------

    def topics(self, *, system: bool = False) -> list[str]:
        """Names of all topics; with ``system`` also the queue's own, retry and dead-letter topics."""
        names = decode_topic_list(self._name_server(Command(RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER)).body)  # type: ignore[arg-type]
        if system:
            return sorted(names)
        own = {data.broker_name for data in self.brokers()} | {data.cluster for data in self.brokers()}
        return sorted(name for name in names if not _is_system(name, own))

    def create_topic(
        self, name: str, queues: int = 4, *, read_queues: int | None = None, write_queues: int | None = None, permission: int = 6, order: bool = False
    ) -> None:
        """Create or change a topic on every master. ``queues``: per broker, for reading and writing.

        On return every broker has it on disk and the name servers know it. Raises ``ClientError`` for a name that RocketMQ
        refuses, ``AdminError`` where a broker refused.
        """
        check_topic(name)
        reading, writing = read_queues or queues, write_queues or queues
        for count in (reading, writing):
            if not 1 <= count <= QUEUES_MAX:
                raise ClientError(f"queues must be 1 to {QUEUES_MAX}, not {count}", count)
        if permission not in (2, 4, 6):
            raise ClientError(f"permission must be 2 (write), 4 (read) or 6 (both), not {permission}", permission)
        header = CreateTopicHeader(topic=name, default_topic=DEFAULT_TOPIC, read_queues=reading, write_queues=writing, permission=permission, order=order)
        for broker, address in self.masters().items():
            self._ask(address, Command(RequestCode.UPDATE_AND_CREATE_TOPIC, fields=header.to_fields()), f"broker {broker} did not create topic {name!r}")
        self._wait_for_route(name)

    def delete_topic(self, name: str) -> None:
        """Delete a topic on every master and at the name server. ``TopicNotFound`` where no broker has it."""
        check_topic(name)
        self.route(name)
        fields = TopicHeader(topic=name).to_fields()
        for broker, address in self.masters().items():
            self._ask(address, Command(RequestCode.DELETE_TOPIC_IN_BROKER, fields=fields), f"broker {broker} did not delete topic {name!r}")
        for answer in self._client().link.every_name_server_invoke(Command(RequestCode.DELETE_TOPIC_IN_NAMESRV, fields=fields), TIMEOUT_MS):
            _accepted(answer, f"a name server did not delete topic {name!r}", ())

    def route(self, name: str) -> TopicRoute:
        """Where a topic's queues are. ``TopicNotFound`` where nobody has it."""
        check_topic(name)
        answer = self._name_server(
            Command(RequestCode.GET_ROUTEINFO_BY_TOPIC, fields=RouteHeader(topic=name, accept_standard_json_only=True).to_fields()),
            accept=(ResponseCode.TOPIC_NOT_EXIST,),
        )
        if answer.code == ResponseCode.TOPIC_NOT_EXIST:
            raise TopicNotFound(f"topic {name!r} does not exist in this cluster", name)
        return decode_route(answer.body)  # type: ignore[arg-type]

    def topic_configs(self) -> dict[str, dict[str, TopicConfig]]:
        """Broker name -> topic -> its settings there."""
        command = Command(RequestCode.GET_ALL_TOPIC_CONFIG)
        return {
            broker: decode_topic_configs(self._ask(address, command, f"broker {broker} did not tell its topics").body)[0]
            for broker, address in self.masters().items()
        }  # type: ignore[arg-type]

    def topic_stats(self, name: str) -> dict[MessageQueue, QueueStats]:
        """Offsets and last store time of every queue."""
        names = {queue.broker_name for queue in self.route(name).queues}
        found: dict[MessageQueue, QueueStats] = {}
        for broker, address in self.masters().items():
            if broker in names:
                answer = self._ask(
                    address,
                    Command(RequestCode.GET_TOPIC_STATS_INFO, fields=TopicHeader(topic=name).to_fields()),
                    f"broker {broker} did not tell about topic {name!r}",
                )
                found.update(decode_topic_stats(answer.body))  # type: ignore[arg-type]
        return found

    def describe_topic(self, name: str) -> list[dict[str, Any]]:
        """A row for each queue: broker, queue, min_offset, max_offset, messages."""
        return [
            {
                "broker": queue.broker_name,
                "queue": queue.queue_id,
                "min_offset": s.min_offset,
                "max_offset": s.max_offset,
                "messages": s.max_offset - s.min_offset,
            }
            for queue, s in sorted(self.topic_stats(name).items())
        ]

    # --- groups ------------------------------------------------------------------------------------------------------------

    def groups(self) -> list[str]:
        """Names of all consumer groups that a broker knows."""
        command = Command(RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG)
        found: set[str] = set()
        for broker, address in self.masters().items():
            found |= set(decode_group_configs(self._ask(address, command, f"broker {broker} did not tell its groups").body)[0])  # type: ignore[arg-type]
        return sorted(found)

    def group_lag(self, group: str) -> list[dict[str, Any]]:
        """A row for each queue that the group consumes: topic, broker, queue, max_offset, committed, lag. ``GroupNotFound`` where none does."""
        check_group(group)
        rows = []
        for broker, address in self.masters().items():
            answer = self._ask(
                address,
                Command(RequestCode.GET_CONSUME_STATS, fields=ConsumeStatsHeader(consumer_group=group).to_fields()),
                f"broker {broker} did not tell the lag of {group!r}",
            )
            for queue, p in sorted(decode_consume_stats(answer.body).items()):  # type: ignore[arg-type]
                rows.append(
                    {
                        "topic": queue.topic,
                        "broker": queue.broker_name,
                        "queue": queue.queue_id,
                        "max_offset": p.broker_offset,
                        "committed": p.consumer_offset,
                        "lag": max(0, p.broker_offset - p.consumer_offset),
                        "last_consumed_ms": p.last_ms,
                    }
                )
        if not rows and group not in self.groups():
            raise GroupNotFound(f"no broker knows the consumer group {group!r}: it never connected, or was deleted", group)
        return rows

    # --- asking ------------------------------------------------------------------------------------------------------------

    def _client(self) -> ClientInstance:
        if self._instance is None:
            instance = ClientInstance.get_or_create(self._discovery)
            instance.start()
            self._instance = instance
        return self._instance

    def _ask(self, address: Address, command: Command, failure: str) -> Command:
        answer = self._client().invoke(address, command, TIMEOUT_MS)
        return _accepted(answer, failure, ())

    def _name_server(self, command: Command, accept: Iterable[int] = ()) -> Command:
        return _accepted(self._client().name_server_invoke(command, TIMEOUT_MS), "the name server refused", accept)

    def _wait_for_route(self, name: str) -> None:
        """Brokers register a new topic at once; wait until the name server shows it on every master."""
        clock = self._client().clock
        deadline = clock.monotonic_ms() + TIMEOUT_MS
        masters = set(self.masters())
        while True:
            try:
                if masters <= {queue.broker_name for queue in self.route(name).queues}:
                    return
            except TopicNotFound:
                if clock.monotonic_ms() > deadline:
                    raise
            if clock.monotonic_ms() > deadline:
                raise AdminError(f"the name server does not show topic {name!r} on every broker after {TIMEOUT_MS // 1000} s", name)
            clock.sleep_ms(POLL_MS)


def _accepted(answer: Command, failure: str, accept: Iterable[int]) -> Command:
    if answer.code == ResponseCode.SUCCESS or answer.code in accept:
        return answer
    reason = f"{failure}: {answer.remark or 'code ' + str(answer.code)}"
    if answer.code == ResponseCode.TOPIC_NOT_EXIST:
        raise TopicNotFound(reason)
    if answer.code in (ResponseCode.SYSTEM_ERROR, ResponseCode.NO_PERMISSION, ResponseCode.MESSAGE_ILLEGAL):
        raise AdminError(reason, answer.code)
    raise ResponseError(reason, answer.code)


def _is_system(name: str, own: set[str]) -> bool:
    return name in SYSTEM_TOPICS or name in own or name.startswith((RETRY_PREFIX, DLQ_PREFIX, "rmq_sys_")) or name.endswith(REPLY_SUFFIX)
