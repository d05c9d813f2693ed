"""Whether a send may go to a topic and queue of this broker (protocol-behaviour 9; remoting 3.1).

Decides: permissions, automatic creation, the queue. Does not decide what a message may hold. Called
by the record and message handlers. The answers are codes with remarks, because that is what leaves
the broker.
"""

from __future__ import annotations

from rmq_ray.errors import AdminError, ClientError, TopicNotFound, TopicNotWritable
from rmq_ray.model.topics import (
    DEFAULT_TOPIC,
    FORBIDDEN_SEND_TOPICS,
    REPLY_SUFFIX,
    Permission,
    TopicConfig,
)
from rmq_ray.protocol.redelivery import group_of_retry_topic
from rmq_ray.protocol.validators import check_topic
from rmq_ray.remoting.wire.codes import ResponseCode
from rmq_ray.server.base.identity import Identity
from rmq_ray.server.base.refusal import Refused
from rmq_ray.server.tables.group_table import GroupTable
from rmq_ray.server.tables.topic_table import CLIENT_DEFAULT_QUEUES, TopicTable

WRITE = int(Permission.WRITE)


class TopicGate:
    """Looks up or makes the topic of a send."""

    def __init__(self, identity: Identity, topics: TopicTable, groups: GroupTable) -> None:
        self._identity = identity
        self._topics = topics
        self._groups = groups
        self._turn = 0

    def admit(
        self,
        topic: str,
        default_topic: str = DEFAULT_TOPIC,
        default_queues: int = CLIENT_DEFAULT_QUEUES,
    ) -> TopicConfig:
        """The topic's settings; made from ``default_topic`` where it is missing.

        Raises ``TopicNotWritable`` (16), ``TopicNotFound`` (17), ``AdminError`` or ``ClientError``
        for a bad name (1), what ``check_open`` raises (14).
        """
        if self._identity.is_slave:
            raise TopicNotWritable(
                f"broker {self._identity.name} is a slave and takes no sends; send to the master",
                topic,
            )
        if not topic.endswith(
            REPLY_SUFFIX
        ):  # a reply goes to the broker that its asker is connected to, no other one
            self.check_open()
        config = self._topics.get(topic)
        if config is None:
            check_topic(topic)
            config = self._create(topic, default_topic, default_queues)
        if topic in FORBIDDEN_SEND_TOPICS:
            raise TopicNotWritable(f"Sending message to topic[{topic}] is forbidden.", topic)
        if not config.permission & WRITE or (config.order and not self._identity.writable):
            raise TopicNotWritable(
                f"the broker[{self._identity.address}] sending message to topic[{topic}] is "
                f"forbidden: it is not writable",
                topic,
            )
        return config

    def check_open(self) -> None:
        """Raises ``Refused`` (14, SERVICE_NOT_AVAILABLE) while the broker drains: producers ask
        another broker, or this one again later.
        """
        if self._identity.draining:
            raise Refused(
                f"broker {self._identity.name} is drained and takes no messages; nothing was "
                f"written",
                ResponseCode.SERVICE_NOT_AVAILABLE,
            )

    def queue(self, config: TopicConfig, queue_id: int) -> int:
        """The queue to write: the given one, or for a negative one the next in turn. Raises
        ``ClientError`` (1) beyond the last.
        """
        if queue_id < 0:
            self._turn += 1
            return self._turn % max(1, config.write_queues)
        if queue_id >= max(config.read_queues, config.write_queues):
            raise ClientError(
                f"request queueId[{queue_id}] is illegal, topic {config.name} has "
                f"{config.write_queues} write and {config.read_queues} read queues; "
                "refresh the route",
                queue_id,
            )
        return queue_id

    def _create(self, topic: str, default_topic: str, default_queues: int) -> TopicConfig:
        group = group_of_retry_topic(topic)
        if group is not None and self._groups.find(group) is not None:
            return self._topics.create_internal(topic, 1)
        return self._topics.create_by_send(topic, default_topic, default_queues)


SEND_REFUSALS = (AdminError, ClientError, TopicNotFound, TopicNotWritable)
