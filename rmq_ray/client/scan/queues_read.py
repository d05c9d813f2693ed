"""Which queues a bulk read has: those of all topics that are meant, at all brokers that belong to
the cluster.

    topics or a pattern ──routes──> queues, the same right before and right after
                                    the name servers knew every broker that is expected

Decides: which topics a pattern means; that a topic without queues is an error. Does not decide what
is read of a queue, or at which copy. Blocking, without an instance's lock.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Sequence

from rmq_ray.client.instance.client_instance import ClientInstance
from rmq_ray.client.instance.outage import ask_name_server, while_registered
from rmq_ray.errors import ClientError, TopicNotFound
from rmq_ray.model.ids import MessageQueue
from rmq_ray.model.topics import DLQ_PREFIX, REPLY_SUFFIX, RETRY_PREFIX, SYSTEM_TOPICS
from rmq_ray.protocol.validators import check_topic
from rmq_ray.remoting.wire.bodies import decode_cluster_info, decode_topic_list
from rmq_ray.remoting.wire.codes import RequestCode

Queues = dict[str, tuple[MessageQueue, ...]]


def queues_read(
    instance: ClientInstance,
    topics: Callable[[], Sequence[str]],
    brokers_expected: Collection[str],
    why: str,
) -> Queues:
    """The queues that can be read now, by topic, in the order of ``topics()``.

    Raises ``TopicNotFound`` where one of the topics has none, ``ClusterError``, saying ``why``,
    where an expected broker stays away for 30 s, ``RemotingError`` where no name server answers.
    """

    def look() -> Queues:
        found = {}
        for topic in topics():
            instance.routes.refresh(topic)
            found[topic] = instance.routes.subscribe(topic)
        return found

    found = while_registered(instance, brokers_expected, why, look)
    for topic, queues in found.items():
        if not queues:
            raise TopicNotFound(
                f"topic {topic!r} does not exist in this cluster, or nobody may read it: create it "
                f"or send to it first",
                topic,
            )
    return found


def named_topics(topic: str | Sequence[str]) -> list[str]:
    """Each once, in their order. ``ClientError`` for none, or for what is no name."""
    names = list(dict.fromkeys([topic] if isinstance(topic, str) else topic))
    if not names:
        raise ClientError("a read needs at least one topic", "")
    for name in names:
        check_topic(name)
    return names


def topic_pattern(topic: str | Sequence[str]) -> re.Pattern[str]:
    """The regular expression that whole names must match; ``ClientError``."""
    if not isinstance(topic, str):
        raise ClientError(
            "a pattern is one regular expression, not several topics", str(topic)[:80]
        )
    try:
        return re.compile(topic)
    except re.error as error:
        raise ClientError(f"pattern {topic!r} is no regular expression: {error}", topic) from None


def matching_topics(instance: ClientInstance, wanted: re.Pattern[str]) -> list[str]:
    """The users' topics of this cluster whose whole names match, sorted."""
    known = decode_topic_list(
        ask_name_server(instance, RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER).body_bytes()
    )
    info = ask_name_server(instance, RequestCode.GET_BROKER_CLUSTER_INFO)
    own = {
        name
        for data in decode_cluster_info(info.body_bytes())
        for name in (data.broker_name, data.cluster, f"{data.cluster}{REPLY_SUFFIX}")
    }
    return sorted(
        name
        for name in known
        if wanted.fullmatch(name)
        and name not in own
        and name not in SYSTEM_TOPICS
        and not name.startswith((RETRY_PREFIX, DLQ_PREFIX))
    )
