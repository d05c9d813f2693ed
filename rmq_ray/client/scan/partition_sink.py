"""One partition of a table on its way into a topic: what a worker of a parallel write does, in a
process without Ray or Spark.

    record batches ─Producer.send_arrow─> frames, with ids of their own kind or derived ones
        ─> brokers

Decides: that frames are numbered through the whole partition, so that a repeat finds them. Does not
decide which rows a partition has. Called by the workers of the Spark and Ray Data sinks. Invariant:
rows that were counted are stored.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass
from typing import Any

from rmq_ray.client.instance.client_instance import ClientInstance
from rmq_ray.client.instance.outage import Queues, while_registered
from rmq_ray.client.producer.producer import Producer
from rmq_ray.client.sending.arrow_columns import Columns
from rmq_ray.errors import TopicNotFound
from rmq_ray.model.ids import MessageQueue
from rmq_ray.ports import ClusterAddress, Discovery
from rmq_ray.protocol.scan.derived_frames import DerivedFrames

SPARK_GROUP = "rmq-ray-spark"
RETRIES = 8


@dataclass(frozen=True, slots=True)
class Known:
    """A ``Discovery`` of what is known already."""

    where: ClusterAddress

    def lookup(self) -> ClusterAddress:
        """Always the same."""
        return self.where


@dataclass(frozen=True, slots=True)
class WriteTarget:
    """Where rows go: plain values, they travel to every worker. ``write``, ``queues``: of frames
    with derived ids, empty without them. ``group``: of the producer.
    """

    topic: str
    columns: Columns
    where: ClusterAddress
    timeout_ms: int
    write: str = ""
    queues: tuple[MessageQueue, ...] = ()
    group: str = SPARK_GROUP


def send_partition(
    target: WriteTarget, partition: int, batches: Iterable[Any], stored: Callable[[int], None]
) -> int:
    """Send every ``pyarrow.RecordBatch`` (or table); how many rows were stored. ``stored`` is told
    after each batch. Raises as ``Producer.send_arrow``.
    """
    to, frames = target.columns, DerivedFrames(target.write, partition, target.queues)
    rows = sent = 0
    with Producer(
        target.group,
        discovery=Known(target.where),
        send_timeout_ms=target.timeout_ms,
        retries=RETRIES,
    ) as producer:
        for batch in batches:
            if batch.num_rows:
                place = (
                    None
                    if not target.write
                    else lambda number, first=sent: frames.place(first + number)
                )
                results = producer.send_arrow(
                    target.topic,
                    batch,
                    body=to.body,
                    key=to.key,
                    tag=to.tag,
                    properties=to.properties,
                    place=place,
                )
                sent += len(results)
                rows += batch.num_rows
                stored(batch.num_rows)
    return rows


def write_queues(
    discovery: Discovery, topic: str, brokers_expected: Collection[str] = ()
) -> list[MessageQueue]:
    """The queues of a topic that can be written, complete and sorted: for writers whose repeats
    must go to the same places.

    Masters of the brokers that are expected are waited for, since a name server leaves out the
    queues of one that is down. ``TopicNotFound`` where the topic does not exist, ``ClusterError``
    where an expected broker stays away for 30 s.
    """
    instance = ClientInstance.get_or_create(discovery)

    def look() -> Queues:
        instance.routes.refresh(topic)
        return {topic: instance.routes.writable(topic) or ()}

    instance.start()
    try:
        queues = while_registered(
            instance, brokers_expected, "its queues belong to the write", look, writing=True
        )[topic]
    finally:
        instance.release()
    if not queues:
        raise TopicNotFound(
            f"topic {topic!r} does not exist, or nobody may write it: create it first", topic
        )
    return sorted(queues)
