"""Which queues a bulk read has: those of all topics that are meant, at all brokers that belong to
the cluster.

    topics or a pattern ──routes──> queues, looked up right before and right after the name servers
                                    had those of every broker that is expected

Decides: which topics a pattern means; that a topic without queues is an error. Does not decide what
is read of a queue, or at which copy. Blocking, without an instance's lock.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Sequence

from rmq_ray.client.instance.client_instance import ClientInstance
from rmq_ray.client.instance.outage import Queues, ask_name_server, while_registered
from rmq_ray.errors import ClientError, TopicNotFound
from rmq_ray.model.topics import DLQ_PREFIX, REPLY_SUFFIX, RETRY_PREFIX, SYSTEM_TOPICS
from rmq_ray.protocol.validators import check_topic
from rmq_ray.remoting.wire.bodies import decode_cluster_info, decode_topic_list
from rmq_ray.remoting.wire.codes import RequestCode
from rmq_ray.remoting.wire.frame import Command


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


def queues_meant(
    instance: ClientInstance,
    topic: str | Sequence[str],
    pattern: bool,
    brokers_expected: Collection[str],
) -> Queues:
    """The same of the topics of a read: names, or with ``pattern`` those of the users' that match a
    regular expression as a whole. ``ClientError`` for none, for what is no name, and for what is no
    expression; ``TopicNotFound`` where none matches.
    """
    topics = _meant(instance, topic, pattern)
    found = queues_read(instance, topics, brokers_expected, "a read now would lack its queues")
    if not found:
        raise TopicNotFound(f"no topic of this cluster matches {topic!r}", str(topic))
    return found


def _meant(
    instance: ClientInstance, topic: str | Sequence[str], pattern: bool
) -> Callable[[], list[str]]:
    if not pattern:
        names = list(dict.fromkeys([topic] if isinstance(topic, str) else topic))
        if not names:
            raise ClientError("a read needs at least one topic", "")
        for name in names:
            check_topic(name)
        return lambda: names
    if not isinstance(topic, str):
        raise ClientError(
            "a pattern is one regular expression, not several topics", str(topic)[:80]
        )
    try:
        wanted = re.compile(topic)
    except re.error as error:
        raise ClientError(f"pattern {topic!r} is no regular expression: {error}", topic) from None
    return lambda: _matching(instance, wanted)


def _matching(instance: ClientInstance, wanted: re.Pattern[str]) -> list[str]:
    listed, info = (
        ask_name_server(instance, Command(code)).body_bytes()
        for code in (
            RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER,
            RequestCode.GET_BROKER_CLUSTER_INFO,
        )
    )
    known = decode_topic_list(listed)
    own = {
        name
        for data in decode_cluster_info(info)
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
