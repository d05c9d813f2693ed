"""Queues of a topic on which processes agree without asking one another.

    all of them, sorted   who shares them out: worker n of m takes every m-th one
    the first of them     who has one queue for everybody: a ledger, a queue of values

A name server leaves out the queues of a broker that is down, so such brokers are waited for.
Decides: for which. Does not decide what is done with a queue. Blocking.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager

from rmq_ray.client.instance.client_instance import ClientInstance
from rmq_ray.client.scan.queues_read import queues_read
from rmq_ray.errors import TopicNotFound
from rmq_ray.model.ids import MessageQueue
from rmq_ray.ports import Discovery


def expected_of(discovery: Discovery) -> Collection[str]:
    """Which brokers there should be; none where nobody knows."""
    names: Collection[str] = getattr(discovery, "broker_names", tuple)()
    return names


def queues_to_share(discovery: Discovery, topic: str) -> list[MessageQueue]:
    """All queues of a topic, sorted: for processes that must come to the same list, each by itself.
    Raises as ``queues_read`` does.
    """
    with _started(discovery) as instance:
        return sorted(_queues(instance, topic, expected_of(discovery)))


def first_queue(discovery: Discovery, topic: str, create: Callable[[], object]) -> MessageQueue:
    """The first queue of a topic by broker and number: for processes that must come to the same
    one, each by itself. Brokers that may have an earlier one are waited for. ``create()`` makes the
    topic where there is none. Raises as ``queues_read`` does.
    """
    expected = expected_of(discovery)
    with _started(discovery) as instance:
        try:
            first = min(_queues(instance, topic, ()))
        except TopicNotFound:
            try:
                return min(_queues(instance, topic, expected))
            except TopicNotFound:
                if instance.routes.route(topic) is not None:  # it is there, and nobody may read it
                    raise
                create()
                return min(_queues(instance, topic, expected))
        earlier = [name for name in expected if name < first.broker_name]
        return min(_queues(instance, topic, earlier)) if earlier else first


def _queues(
    instance: ClientInstance, topic: str, expected: Collection[str]
) -> Sequence[MessageQueue]:
    """The topic's queues, those of the given brokers among them."""
    why = "every process must see the same queues"
    return queues_read(instance, lambda: [topic], expected, why)[topic]


@contextmanager
def _started(discovery: Discovery) -> Iterator[ClientInstance]:
    instance = ClientInstance.get_or_create(discovery)
    instance.start()
    try:
        yield instance
    finally:
        instance.release()
