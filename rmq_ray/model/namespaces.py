"""Names with a namespace in front, as Apache RocketMQ's clients write them (protocol-behaviour 25).

    orders -> ns%orders        %RETRY%billing -> %RETRY%ns%billing        RMQ_SYS_TRACE_TOPIC stays

A client with a namespace adds it to every topic and group that it names and takes it off what it
shows; brokers and name servers know whole names only. Pure. Invariant: adding twice adds once;
taking off what is not there changes nothing; the system's names have none.
"""

from __future__ import annotations

from rmq_ray.model.groups import is_system_group
from rmq_ray.model.ids import MessageQueue
from rmq_ray.model.topics import DLQ_PREFIX, RETRY_PREFIX, SYSTEM_TOPICS

SEPARATOR = "%"


def with_namespace(namespace: str, name: str) -> str:
    """The whole name of a topic or group.

    >>> with_namespace("ns", "orders"), with_namespace("ns", "%RETRY%ns%g")
    ('ns%orders', '%RETRY%ns%g')
    """
    if not namespace or not name or _is_system(name):
        return name
    prefix, own = _split(name)
    return name if own.startswith(namespace + SEPARATOR) else f"{prefix}{namespace}{SEPARATOR}{own}"


def without_namespace(namespace: str, name: str) -> str:
    """The name as its user knows it.

    >>> without_namespace("ns", "%DLQ%ns%g"), without_namespace("other", "ns%orders")
    ('%DLQ%g', 'ns%orders')
    """
    if not namespace:
        return name
    prefix, own = _split(name)
    return prefix + own.removeprefix(namespace + SEPARATOR)


def queue_with_namespace(namespace: str, queue: MessageQueue) -> MessageQueue:
    """The queue as brokers know it. What is no queue stays as it is: whoever uses it refuses it."""
    if not namespace or not isinstance(queue, MessageQueue):
        return queue
    return MessageQueue(with_namespace(namespace, queue.topic), queue.broker_name, queue.queue_id)


def queue_without_namespace(namespace: str, queue: MessageQueue) -> MessageQueue:
    """The queue as its user knows it."""
    return (
        MessageQueue(without_namespace(namespace, queue.topic), queue.broker_name, queue.queue_id)
        if namespace
        else queue
    )


def _split(name: str) -> tuple[str, str]:
    for prefix in (RETRY_PREFIX, DLQ_PREFIX):
        if name.startswith(prefix):
            return prefix, name[len(prefix) :]
    return "", name


def _is_system(name: str) -> bool:
    return name in SYSTEM_TOPICS or name.lower().startswith("rmq_sys_") or is_system_group(name)
