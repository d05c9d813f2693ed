"""Producer and push consumer as Ray actors.

``ProducerActor`` is for scripts that want sending off their own process, and for many senders on
many nodes: methods take and return plain values; message bodies travel once, as bytes, over the
actor call. Work that can run inside the actor goes there with ``run``: the function gets the
producer and sends as fast as it can encode. Futures and transactions live there only.

``ConsumerActor`` runs its listener inside the actor; several actors of one group share the queues.
The listener is a callable ``(messages, ctx)``, or a class of which the actor makes one object with
``listener_args``: then it may keep state, and ``ask`` calls its methods.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import ray

from rmq_ray.actors.clients import Producer, PushConsumer
from rmq_ray.client.messages.received import MessageExt
from rmq_ray.errors import ClientError
from rmq_ray.model.message import Message, SendResult

SHUTDOWN_TIMEOUT_MS = 10_000


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


class ConsumerShell:
    """``ConsumerActor.options(...).remote(group, listener=..., subscriptions={...})``; takes what
    ``PushConsumer`` takes.
    """

    def __init__(
        self,
        group: str,
        listener: Callable[..., Any],
        subscriptions: Mapping[str, Any],
        *,
        listener_args: Sequence[Any] = (),
        **settings: Any,
    ) -> None:
        self._listener = listener(*listener_args) if isinstance(listener, type) else listener
        if not callable(self._listener):
            raise ClientError(
                f"listener {listener!r} is not callable: give a function (messages, ctx) or "
                f"a class with __call__",
                repr(listener),
            )
        self._consumer = PushConsumer(
            group, listener=self._listener, subscriptions=subscriptions, **settings
        )
        self._consumer.start()

    def ping(self) -> str:
        """Answers once the actor is connected."""
        return "running"

    def stats(self) -> dict[str, Any]:
        """Counters of the consumer; see ``PushConsumer.stats``."""
        return self._consumer.stats()

    def ask(self, method: str, *arguments: Any) -> Any:
        """Call a public method of the listener object and return its result."""
        if method.startswith("_") or not hasattr(self._listener, method):
            raise ClientError(f"the listener has no public method {method!r}", method)
        return getattr(self._listener, method)(*arguments)

    def stop(self, timeout_s: float = 30.0) -> bool:
        """Finish running listeners, commit their offsets and leave the group. False when one still
        ran after ``timeout_s``.
        """
        return self._consumer.stop(int(timeout_s * 1000))

    def __ray_shutdown__(self) -> None:
        """Ray ends the actor in good order (out of scope, SIGTERM): leave the group, so that the
        others take over at once.
        """
        self._consumer.stop(SHUTDOWN_TIMEOUT_MS)


ConsumerActor = ray.remote(ConsumerShell)
