"""A push consumer as a Ray actor: the listener runs inside the actor, several actors of one group
share the queues.

The listener is a callable ``(messages, ctx)``, or a class of which the actor makes one object with
``listener_args``: then it may keep state, and ``ask`` calls its methods.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import ray

from rmq_ray.actors.clients import PushConsumer
from rmq_ray.errors import ClientError

SHUTDOWN_TIMEOUT_MS = 10_000


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
