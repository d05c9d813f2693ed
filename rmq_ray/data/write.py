"""A Ray Data dataset into a topic: each write task sends its blocks by columns over connections of its own.

Decides: what a task does when it is run again (it sends again: at least once). Does not decide how rows become messages
(``Producer.send_arrow``).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import ray
from ray.data import Datasink
from ray.data.block import BlockAccessor

from rmq_ray.actors.clients import Producer
from rmq_ray.actors.discovery import discovery_for
from rmq_ray.config import DEFAULT_CLUSTER
from rmq_ray.protocol.validators import check_topic


@dataclass(frozen=True)
class Target:
    """Where rows go: plain values, they travel to every write task."""

    topic: str
    body: str
    key: str | None
    tag: str | None
    properties: str | tuple[str, ...]
    cluster: str
    name_servers: tuple[str, ...] | None
    secret: bytes


def write_topic(  # noqa: PLR0913 - the settings of the outermost call
    dataset: ray.data.Dataset,
    topic: str,
    *,
    body: str = "body",
    key: str | None = None,
    tag: str | None = None,
    properties: str | Sequence[str] = (),
    cluster: str = DEFAULT_CLUSTER,
    name_servers: Sequence[str] | str | None = None,
    secret: bytes = b"",
    concurrency: int | None = None,
    ray_remote_args: dict[str, Any] | None = None,
) -> int:
    """Send every row of a dataset as a message and wait; returns how many were stored.

    ``body``, ``key``, ``tag``, ``properties``: names of columns, as for ``Producer.send_arrow``. ``concurrency``, ``ray_remote_args``: of the write
    tasks. At least once: a task that fails after it has sent some rows is run again by Ray and sends them again. Raises ``ClientError`` for
    wrong names at once, ``ClusterError`` where there is no cluster, and what a task raised.
    """
    check_topic(topic)
    discovery_for(cluster, name_servers, secret).lookup()
    servers = None if name_servers is None else tuple(name_servers.split(";") if isinstance(name_servers, str) else name_servers)
    columns = properties if isinstance(properties, str) else tuple(properties)
    sink = TopicDatasink(Target(topic, body, key, tag, columns, cluster, servers, secret))
    dataset.write_datasink(sink, concurrency=concurrency, ray_remote_args=ray_remote_args)
    return sink.stored


class TopicDatasink(Datasink[int]):
    """What Ray Data asks of a sink; ``write`` returns how many rows it sent."""

    def __init__(self, target: Target) -> None:
        self._target = target
        self.stored = 0
        """After the write has completed: rows of all tasks."""

    def get_name(self) -> str:
        """Shown in Ray Data's progress."""
        return f"Topic({self._target.topic})"

    def write(self, blocks: Iterable[Any], ctx: Any) -> int:
        """One write task."""
        to, sent = self._target, 0
        with Producer("rmq-ray-data", cluster=to.cluster, name_servers=to.name_servers, secret=to.secret) as producer:
            for block in blocks:
                table = BlockAccessor.for_block(block).to_arrow()
                if table.num_rows:
                    producer.send_arrow(to.topic, table, body=to.body, key=to.key, tag=to.tag, properties=to.properties)
                    sent += table.num_rows
        return sent

    def on_write_complete(self, write_result: Any) -> None:
        """All tasks are through."""
        self.stored = sum(write_result.write_returns)
