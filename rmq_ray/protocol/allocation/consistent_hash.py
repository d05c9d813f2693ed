"""Consistent hashing: a consumer that comes or goes moves few queues (protocol-behaviour 14).

    ring, 0 .. 2^32-1  points of the consumers: MD5("<client id>-<n>"), n = 0 .. virtual_nodes - 1
    queue              MD5("MessageQueue [topic=T, brokerName=B, queueId=N]")
    owner              the consumer of the next point at or behind the queue's, else of the ring's
                       first
    hash               the digest's first four bytes, big-endian

Invariants: each queue goes to exactly one of the consumers listed. When a consumer leaves, only its
own queues change hands; when one joins, queues change hands only to it. Shares may differ a lot:
with 10 points a consumer some get twice what others get.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from hashlib import md5

import numpy as np
from numpy.typing import NDArray

from rmq_ray.errors import ConfigError
from rmq_ray.model.ids import MessageQueue
from rmq_ray.protocol.allocation.even import index_of

VIRTUAL_NODES = 10  # RocketMQ's default
VIRTUAL_NODES_MAX = 10_000
POINT_BYTES = 4
QUEUES_CACHED = 32_768  # points of queues, which rarely change from one rebalance to the next

Points = NDArray[np.uint32]


@dataclass(frozen=True, slots=True)
class ConsistentHash:
    """RocketMQ's CONSISTENT_HASH. ``virtual_nodes``: points of each consumer on the ring; more of
    them make shares more even.

    >>> brokers = ("broker-a", "broker-b")
    >>> queues = [MessageQueue("TopicTest", broker, i) for broker in brokers for i in range(4)]
    >>> ids = ["192.168.0.6@15956", "192.168.0.7@15957", "192.168.0.8@15958"]
    >>> [(q.broker_name, q.queue_id) for q in ConsistentHash().allocate("g", ids[0], queues, ids)]
    [('broker-a', 3), ('broker-b', 2)]
    """

    virtual_nodes: int = VIRTUAL_NODES
    name: str = "CONSISTENT_HASH"

    def __post_init__(self) -> None:
        if not 1 <= self.virtual_nodes <= VIRTUAL_NODES_MAX:
            raise ConfigError(
                f"virtual_nodes must be 1 to {VIRTUAL_NODES_MAX}, not {self.virtual_nodes}: "
                f"without points nobody owns a queue",
                self.virtual_nodes,
            )

    def allocate(
        self, group: str, client_id: str, queues: Sequence[MessageQueue], client_ids: Sequence[str]
    ) -> list[MessageQueue]:
        """See the protocol."""
        if index_of(client_id, queues, client_ids) is None:
            return []
        points, owners = _ring(tuple(client_ids), self.virtual_nodes)
        texts = [
            f"MessageQueue [topic={queue.topic}, brokerName={queue.broker_name}, "
            f"queueId={queue.queue_id}]"
            for queue in queues
        ]
        following = np.searchsorted(
            points, np.array([_queue_point(text) for text in texts], np.uint32), side="left"
        )
        following[following == len(points)] = 0
        mine = np.flatnonzero(owners[following] == client_ids.index(client_id))
        return [queues[at] for at in mine.tolist()]


def point(key: str) -> int:
    """Where a key lies on the ring.

    >>> point("192.168.0.6@15956-0")
    1411474541
    """
    return int.from_bytes(md5(key.encode(), usedforsecurity=False).digest()[:POINT_BYTES], "big")


_queue_point = lru_cache(maxsize=QUEUES_CACHED)(point)


@lru_cache(maxsize=16)
def _ring(client_ids: tuple[str, ...], virtual_nodes: int) -> tuple[Points, NDArray[np.int64]]:
    """Sorted points and the index of each one's owner. Of equal points the one that was put last
    counts.
    """
    keys = [f"{client_id}-{number}" for client_id in client_ids for number in range(virtual_nodes)]
    placed = {point(key): at // virtual_nodes for at, key in enumerate(keys)}
    return np.array(sorted(placed), np.uint32), np.array(
        [placed[point] for point in sorted(placed)], np.int64
    )
