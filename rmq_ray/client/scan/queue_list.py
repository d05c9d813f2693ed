"""The queues of a topic that can be written, complete and in an order that does not change: for
writers whose repeats must go to the same places.

Decides: that brokers which belong to the cluster are waited for, since a name server leaves out the
queues of a broker that is down. Called by the Spark sink, in the driver.
"""

from __future__ import annotations

from collections.abc import Collection

from rmq_ray.client.instance.client_instance import ClientInstance
from rmq_ray.client.instance.outage import wait_for_brokers
from rmq_ray.errors import TopicNotFound
from rmq_ray.model.ids import MessageQueue
from rmq_ray.ports import Discovery


def write_queues(
    discovery: Discovery, topic: str, brokers_expected: Collection[str] = ()
) -> list[MessageQueue]:
    """Sorted. ``TopicNotFound`` where the topic does not exist, ``ClusterError`` where an expected
    broker stays away for 30 s.
    """
    instance = ClientInstance.get_or_create(discovery)
    instance.start()
    try:
        wait_for_brokers(instance, brokers_expected, "its queues belong to the write")
        instance.routes.refresh(topic)
        info = instance.routes.publish(topic)
    finally:
        instance.release()
    if info is None or not info.queues:
        raise TopicNotFound(
            f"topic {topic!r} does not exist, or nobody may write it: create it first", topic
        )
    return sorted(info.queues)
