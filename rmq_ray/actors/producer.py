"""A producer as a Ray actor: for scripts that want sending off their own process, and for many
senders on many nodes.

Methods take and return plain values; message bodies travel once, as bytes, over the actor call.
Work that can run inside the actor goes there with ``run``: the function gets the producer and sends
as fast as it can encode. Futures and transactions live there only.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import ray

from rmq_ray.actors.clients import Producer
from rmq_ray.client.messages.received import MessageExt
from rmq_ray.model.message import Message, SendResult


class ProducerShell:
    """``ProducerActor.options(...).remote(group, cluster=...)``; takes what ``Producer`` takes."""

    def __init__(self, group: str = "DEFAULT_PRODUCER_RMQ_RAY", **settings: Any) -> None:
        self._producer = Producer(group, **settings)
        self._producer.start()

    def ping(self) -> str:
        """Answers once the actor is connected."""
        return "running"

    def send(self, topic: str | Message, body: bytes | None = None, **options: Any) -> SendResult:
        """One message; see ``Producer.send``."""
        return self._producer.send(topic, body, **options)

    def send_batch(self, messages: Sequence[Message], **options: Any) -> list[SendResult]:
        """Many messages of one topic; see ``Producer.send_batch``."""
        return self._producer.send_batch(messages, **options)

    def send_arrow(self, topic: str, data: Any, **options: Any) -> list[SendResult]:
        """The rows of a ``pyarrow.Table`` or ``RecordBatch``, which Ray hands over without a copy;
        see ``Producer.send_arrow``.
        """
        return self._producer.send_arrow(topic, data, **options)

    def request(self, topic: str, body: bytes, **options: Any) -> MessageExt:
        """A message and the reply to it; see ``Producer.request``."""
        return self._producer.request(topic, body, **options)

    def recall_message(self, topic: str, recall_handle: str, **options: Any) -> str:
        """Take back a message that waits; see ``Producer.recall_message``."""
        return self._producer.recall_message(topic, recall_handle, **options)

    def run(self, work: Callable[..., Any], *arguments: Any, **options: Any) -> Any:
        """Call ``work(producer, *arguments, **options)`` inside the actor and return its result,
        which must be picklable.
        """
        return work(self._producer, *arguments, **options)

    def close(self) -> None:
        """Send what lingers and unregister."""
        self._producer.close()


ProducerActor = ray.remote(ProducerShell)
