"""Identifiers and offsets: kinds that must not be mixed up are different types.

Invariant: a ``LogOffset`` counts bytes in a commit log, a ``QueueOffset`` counts messages in one
queue.
"""

from __future__ import annotations

from typing import NewType

from rmq_ray.value import Value

LogOffset = NewType("LogOffset", int)
QueueOffset = NewType("QueueOffset", int)

MASTER_ID = 0


class MessageQueue(Value, frozen=True, order=True):
    """The finest unit of a topic: one queue of one broker. Sorts by topic, broker name, queue id as
    RocketMQ does.
    """

    topic: str
    broker_name: str
    queue_id: int

    def __str__(self) -> str:
        return (
            f"MessageQueue [topic={self.topic}, brokerName={self.broker_name}, "
            f"queueId={self.queue_id}]"
        )


class Address(Value, frozen=True, order=True):
    """Where a party listens."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"{self.host}:{self.port}"

    @classmethod
    def parse(cls, text: str) -> Address:
        """From ``host:port``; ``ValueError`` when it is not that."""
        host, _, port = text.rpartition(":")
        if not host or not port.isdigit() or not 0 < int(port) < 65536:
            raise ValueError(f"{text!r} is not host:port")
        return cls(host, int(port))


class FrameId(Value, frozen=True):
    """Which frame of which producer: what makes a retry recognisable.

    ``producer_id``: 128 random bits, new per producer object and process. ``sequence``: counts
    frames, from 0.
    """

    producer_id: bytes
    sequence: int

    def __post_init__(self) -> None:
        if len(self.producer_id) != 16:
            raise ValueError("producer_id must be 16 bytes")
