"""Administration of topics, groups and offsets over connections: what ``mq.admin`` offers.

Decides nothing that brokers do not decide themselves; it asks all masters and puts the answers
together. Blocking; used from any thread. Results are plain rows (dicts) where people read them,
values where programs do.
"""

from __future__ import annotations

from typing import Any

from rmq_ray.client.admin.admin_arrow import AdminArrow
from rmq_ray.client.admin.admin_brokers import AdminBrokers
from rmq_ray.client.admin.admin_groups import AdminGroups
from rmq_ray.client.admin.admin_link import POLL_MS, accepted, body_of
from rmq_ray.client.admin.admin_messages import AdminMessages
from rmq_ray.errors import AdminError, ClientError, TopicNotFound
from rmq_ray.model.ids import MessageQueue
from rmq_ray.model.topics import (
    DEFAULT_TOPIC,
    DLQ_PREFIX,
    REPLY_SUFFIX,
    RETRY_PREFIX,
    SYSTEM_TOPICS,
    TopicConfig,
    TopicRoute,
)
from rmq_ray.protocol.validators import check_topic
from rmq_ray.remoting.wire.bodies import decode_route, decode_topic_configs, decode_topic_list
from rmq_ray.remoting.wire.bodies_admin import QueueStats, decode_topic_stats
from rmq_ray.remoting.wire.codes import RequestCode, ResponseCode
from rmq_ray.remoting.wire.frame import Command
from rmq_ray.remoting.wire.headers import CreateTopicHeader, RouteHeader, TopicHeader

QUEUES_MAX = 4_096


class Admin(AdminGroups, AdminMessages, AdminArrow, AdminBrokers):
    """One client instance; ``close`` it when done. ``timeout_ms``: of each request."""

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

    def create_topic(
        self,
        name: str,
        queues: int = 4,
        *,
        read_queues: int | None = None,
        write_queues: int | None = None,
        permission: int = 6,
        order: bool = False,
    ) -> None:
        """Create or change a topic on every master. ``queues``: per broker, for reading and
        writing.

        On return every broker has it on disk and the name servers know it. Raises ``ClientError``
        for a name that RocketMQ refuses, ``AdminError`` where a broker refused.
        """
        check_topic(name)
        reading, writing = (
            queues if count is None else count for count in (read_queues, write_queues)
        )
        for count in (reading, writing):
            if type(count) is not int or not 1 <= count <= QUEUES_MAX:
                raise ClientError(
                    f"queues must be a whole number, 1 to {QUEUES_MAX}, not {count!r:.80}",
                    repr(count)[:80],
                )
        if permission not in (2, 4, 6):
            raise ClientError(
                f"permission must be 2 (write), 4 (read) or 6 (both), not {permission}", permission
            )
        header = CreateTopicHeader(
            topic=name,
            default_topic=DEFAULT_TOPIC,
            read_queues=reading,
            write_queues=writing,
            permission=permission,
            order=order,
        )
        masters = self.masters()
        for broker, address in masters.items():
            self._ask(
                address,
                Command(RequestCode.UPDATE_AND_CREATE_TOPIC, fields=header.to_fields()),
                f"broker {broker} did not create topic {name!r}",
            )
        self._wait_for_route(name, set(masters), (reading, writing, permission))

    def delete_topic(self, name: str) -> None:
        """Delete a topic on every master and at the name server. ``TopicNotFound`` where no broker
        has it.
        """
        check_topic(name)
        self.route(name)
        fields = TopicHeader(topic=name).to_fields()
        for broker, address in self.masters().items():
            self._ask(
                address,
                Command(RequestCode.DELETE_TOPIC_IN_BROKER, fields=fields),
                f"broker {broker} did not delete topic {name!r}",
            )
        for answer in self._client().link.every_name_server_invoke(
            Command(RequestCode.DELETE_TOPIC_IN_NAMESRV, fields=fields), self._timeout_ms
        ):
            accepted(answer, f"a name server did not delete topic {name!r}")

    def route(self, name: str) -> TopicRoute:
        """Where a topic's queues are. ``TopicNotFound`` where nobody has it."""
        check_topic(name)
        answer = self._name_server(
            Command(
                RequestCode.GET_ROUTEINFO_BY_TOPIC,
                fields=RouteHeader(topic=name, accept_standard_json_only=True).to_fields(),
            ),
            accept=(ResponseCode.TOPIC_NOT_EXIST,),
        )
        if answer.code == ResponseCode.TOPIC_NOT_EXIST:
            raise TopicNotFound(f"topic {name!r} does not exist in this cluster", name)
        return decode_route(body_of(answer))

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
        names = {queue.broker_name for queue in self.route(name).queues}
        found: dict[MessageQueue, QueueStats] = {}
        for broker, address in self.masters().items():
            if broker in names:
                answer = self._ask(
                    address,
                    Command(
                        RequestCode.GET_TOPIC_STATS_INFO, fields=TopicHeader(topic=name).to_fields()
                    ),
                    f"broker {broker} did not tell about topic {name!r}",
                )
                found.update(decode_topic_stats(body_of(answer)))
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

    def _wait_for_route(self, name: str, masters: set[str], made: tuple[int, int, int]) -> None:
        """Brokers register a topic at once; wait until the name server shows it on these as it was
        made: (read queues, write queues, permission).
        """
        clock = self._client().clock
        deadline = clock.monotonic_ms() + self._timeout_ms
        while True:
            try:
                shown = self.route(name).queues
                if masters <= {
                    q.broker_name
                    for q in shown
                    if (q.read_queues, q.write_queues, q.permission) == made
                }:
                    return
            except TopicNotFound:
                if clock.monotonic_ms() > deadline:
                    raise
            if clock.monotonic_ms() > deadline:
                raise AdminError(
                    f"the name server does not show topic {name!r} on every broker after "
                    f"{self._timeout_ms // 1000} s",
                    name,
                )
            clock.sleep_ms(POLL_MS)


def _is_system(name: str, own: set[str]) -> bool:
    return (
        name in SYSTEM_TOPICS
        or name in own
        or name.startswith((RETRY_PREFIX, DLQ_PREFIX, "rmq_sys_"))
        or name.endswith(REPLY_SUFFIX)
    )
