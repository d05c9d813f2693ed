"""From a route to the queues that a producer may write and a consumer may read (protocol-behaviour
7).

Decides the lists and their order. Does not fetch routes (``client.instance.route_cache``) and does
not choose a queue (``protocol.routing.queue_selection``). Pure: a route in, values out.

Invariants: queues are listed by broker name, then id, as RocketMQ sorts them; a queue is only
listed for writing when its broker has a master (id 0).
"""

from __future__ import annotations

from msgspec.structs import replace

from rmq_ray.model.ids import MASTER_ID, MessageQueue
from rmq_ray.model.topics import BrokerData, Permission, QueueData, TopicRoute
from rmq_ray.value import Value


class PublishInfo(Value, frozen=True):
    """What a producer knows of a topic.

    ``queues``: may be written, sorted. ``ordered``: the route carried an order configuration, so
    the list is fixed. ``brokers``: the names in ``queues``, each once, sorted.
    """

    topic: str
    queues: tuple[MessageQueue, ...] = ()
    ordered: bool = False
    brokers: tuple[str, ...] = ()

    @property
    def ok(self) -> bool:
        """True when there is a queue to write to."""
        return bool(self.queues)


def publish_info(topic: str, route: TopicRoute) -> PublishInfo:
    """The queues that may be written: ordered configuration first, else every writable queue of
    brokers with a master.
    """
    if route.order_conf:
        queues = _ordered_queues(topic, route.order_conf)
        ordered = True
    else:
        queues = _writable_queues(topic, route)
        ordered = False
    return PublishInfo(
        topic, queues, ordered, tuple(sorted({queue.broker_name for queue in queues}))
    )


def subscribe_queues(topic: str, route: TopicRoute) -> tuple[MessageQueue, ...]:
    """The queues that may be read; a slave alone is enough to read from."""
    return tuple(
        MessageQueue(topic, data.broker_name, queue_id)
        for data in sorted(route.queues)
        if data.permission & Permission.READ
        for queue_id in range(data.read_queues)
    )


def default_route(route: TopicRoute, queues_max: int) -> TopicRoute:
    """The route of a topic that does not exist yet, made from the template topic's: read = write =
    min(``queues_max``, read).
    """
    return replace(route, queues=tuple(_limited(data, queues_max) for data in route.queues))


def normalized(route: TopicRoute) -> TopicRoute:
    """The same route with queue and broker lists sorted: two routes that say the same compare
    equal.
    """
    return replace(
        route,
        queues=tuple(sorted(route.queues)),
        brokers=tuple(sorted(route.brokers, key=_broker_key)),
    )


def _ordered_queues(topic: str, order_conf: str) -> tuple[MessageQueue, ...]:
    """``broker-a:4;broker-b:4`` -> queues 0..3 of each; entries that are not ``name:count`` are
    left out.
    """
    queues: list[MessageQueue] = []
    for entry in order_conf.split(";"):
        name, separator, count = entry.strip().partition(":")
        if separator and name and count.isdigit():
            queues.extend(MessageQueue(topic, name, queue_id) for queue_id in range(int(count)))
    return tuple(queues)


def _writable_queues(topic: str, route: TopicRoute) -> tuple[MessageQueue, ...]:
    masters = {data.broker_name for data in route.brokers if MASTER_ID in data.addresses}
    return tuple(
        MessageQueue(topic, data.broker_name, queue_id)
        for data in sorted(route.queues)
        if data.permission & Permission.WRITE and data.broker_name in masters
        for queue_id in range(data.write_queues)
    )


def _limited(data: QueueData, queues_max: int) -> QueueData:
    count = min(queues_max, data.read_queues)
    return replace(data, read_queues=count, write_queues=count)


def _broker_key(data: BrokerData) -> str:
    return data.broker_name
