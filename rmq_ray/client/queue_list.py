"""The queues of a topic that can be written, complete and in an order that does not change: for writers whose repeats must go to the same places.

Decides: that brokers which belong to the cluster are waited for, since a name server leaves out the queues of a broker that is down. Called by the Spark
sink, in the driver.
"""

from __future__ import annotations

from collections.abc import Collection

from rmq_ray.client.client_instance import ClientInstance
from rmq_ray.client.outage import PAUSE_MS, ask_patiently
from rmq_ray.errors import ClusterError, TopicNotFound
from rmq_ray.model.ids import MessageQueue
from rmq_ray.ports import Discovery
from rmq_ray.remoting.bodies import decode_cluster_info
from rmq_ray.remoting.codes import RequestCode
from rmq_ray.remoting.frame import Command

PATIENCE_MS = 30_000


def write_queues(discovery: Discovery, topic: str, brokers_expected: Collection[str] = ()) -> list[MessageQueue]:
    """Sorted. ``TopicNotFound`` where the topic does not exist, ``ClusterError`` where an expected broker stays away for 30 s."""
    instance = ClientInstance.get_or_create(discovery)
    instance.start()
    try:
        _wait(instance, set(brokers_expected))
        instance.routes.refresh(topic)
        info = instance.routes.publish(topic)
    finally:
        instance.release()
    if info is None or not info.queues:
        raise TopicNotFound(f"topic {topic!r} does not exist, or nobody may write it: create it first", topic)
    return sorted(info.queues)


def _wait(instance: ClientInstance, expected: set[str]) -> None:
    give_up = instance.clock.monotonic_ms() + PATIENCE_MS
    while expected:  # ends: all there, or at give_up
        answer = ask_patiently(lambda _: instance.name_server_invoke(Command(RequestCode.GET_BROKER_CLUSTER_INFO)), instance.clock, PATIENCE_MS)
        missing = expected - {data.broker_name for data in decode_cluster_info(answer.body_bytes())}
        if not missing:
            return
        if instance.clock.monotonic_ms() >= give_up:
            raise ClusterError(
                f"{', '.join(sorted(missing))} did not come back within {PATIENCE_MS // 1000} s: its queues belong to the write; see `rmq-ray status`"
            )
        instance.clock.sleep_ms(PAUSE_MS)
