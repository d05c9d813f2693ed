"""Identifiers and offsets: kinds that must not be mixed up are different types.

Invariant: a ``LogOffset`` counts bytes in a commit log, a ``QueueOffset`` counts messages in one
queue.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NewType

LogOffset = NewType("LogOffset", int)
QueueOffset = NewType("QueueOffset", int)

MASTER_ID = 0


@dataclass(frozen=True, slots=True, order=True)
class MessageQueue:
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


@dataclass(frozen=True, slots=True, order=True)
class Address:
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


@dataclass(frozen=True, slots=True)
class FrameId:
    """Which frame of which producer: what makes a retry recognisable.

    ``producer_id``: 128 random bits, new per producer object and process. ``sequence``: counts
    frames, from 0.
    """

    producer_id: bytes
    sequence: int

    def __post_init__(self) -> None:
        if len(self.producer_id) != 16:
            raise ValueError("producer_id must be 16 bytes")
