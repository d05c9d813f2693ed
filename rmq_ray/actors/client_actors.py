"""Producer and push consumer as Ray actors: ``ProducerActor`` and ``ConsumerActor``.

Each is one client in a process of its own. They decide nothing: arguments, results and errors are
those of ``Producer`` and ``PushConsumer``, as far as they can be pickled. Errors are raised by
``ray.get``, as themselves: ``except rmq.SendError`` catches them. Those of the constructor come
from the first call, as ``ray.exceptions.ActorDiedError`` with their text in it; await ``ping``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import ray

from rmq_ray.actors.access_keys import given_account, keywords
from rmq_ray.actors.client_metrics import ClientReporter
from rmq_ray.actors.clients.consumers import PushConsumer
from rmq_ray.actors.clients.producers import Producer
from rmq_ray.actors.discovery import account_of, meant_cluster, use_cluster
from rmq_ray.actors.gateway import my_node
from rmq_ray.client.messages.received import MessageExt
from rmq_ray.errors import ClientError
from rmq_ray.model.message import Message, SendResult

SHUTDOWN_TIMEOUT_MS = 10_000


class ClientActorClass:
    """What ``ray.remote`` makes of a class of clients, but that an actor belongs to the cluster
    that is meant where ``remote`` is called, not to the one that its own process would mean.
    """

    def __init__(self, shell: type, actor: Any = None) -> None:
        self.shell = shell
        """The class of which actors are made."""
        self._actor = ray.remote(shell) if actor is None else actor

    def options(self, **options: Any) -> ClientActorClass:
        """With Ray's options of an actor."""
        return ClientActorClass(self.shell, self._actor.options(**options))

    def remote(self, *arguments: Any, **settings: Any) -> Any:
        """Create the actor; its handle. It is the account that a client made here would be; the
        secret key does not travel. ``ConfigError`` where the cluster must be named.
        """
        settings["cluster"] = meant_cluster(settings.get("cluster"), settings.get("name_servers"))
        keys = ("cluster", "name_servers", "secret", "access_key", "secret_key")
        account = account_of(**{key: settings[key] for key in keys if key in settings})
        return self._actor.remote(*arguments, **settings | keywords(account))

    def __getattr__(self, name: str) -> Any:
        if name == "_actor":  # of an object that is being unpickled
            raise AttributeError(name)
        return getattr(self._actor, name)


class ProducerShell:
    """A producer in an actor: sends off the caller's process, or from many nodes.

        producer = rmq.ProducerActor.options(num_cpus=0).remote("web", cluster="default")
        result = ray.get(producer.send.remote("orders", b"3 apples", tag="paid"))
        ray.get(producer.run.remote(measure, 1_000))  # measure(producer, 1_000) in the actor
        ray.get(producer.close.remote())

    ``group`` and ``settings``: what ``Producer`` takes (``cluster``, ``send_timeout_ms``, ...).
    ``options(...)`` takes Ray's: ``num_cpus``, ``resources`` for a node, ``name``,
    ``max_concurrency`` for calls at once (1; the producer is thread-safe). Bodies travel once, as
    bytes, over the call. An actor that dies takes what it was sending with it: whether that is
    stored nobody knows, and Ray's ``max_task_retries`` may store it twice.
    """

    def __init__(self, group: str = "DEFAULT_PRODUCER_RMQ_RAY", **settings: Any) -> None:
        _use_cluster_of(settings)
        self._producer = Producer(group, **settings)
        self._producer.start()
        self._reporter = ClientReporter(self._producer.metrics, "producer", settings)

    def ping(self) -> str:
        """``"running"``, once the producer is connected."""
        return "running"

    def send(
        self, topic_or_message: str | Message, body: bytes | None = None, **options: Any
    ) -> SendResult:
        """Send one message and wait until the broker has it. ``options``, ``timeout`` (s) among
        them, and errors: ``Producer.send``.
        """
        return self._producer.send(topic_or_message, body, **options)

    def send_batch(
        self,
        messages: Sequence[Message] | str,
        bodies: Sequence[bytes | Message] | None = None,
        **options: Any,
    ) -> list[SendResult]:
        """Send messages of one topic, or a topic and bodies, to one queue; one result for each
        frame, whose ``count`` is its messages. Options and errors: ``Producer.send_batch``.
        """
        return self._producer.send_batch(messages, bodies, **options)

    def send_arrow(self, topic: str, data: Any, **options: Any) -> list[SendResult]:
        """Send the rows of a ``pyarrow.Table`` or ``RecordBatch``, which Ray hands over without a
        copy on one node. Columns, results and errors: ``Producer.send_arrow``.
        """
        return self._producer.send_arrow(topic, data, **options)

    def request(
        self, topic_or_message: str | Message, body: bytes | None = None, **options: Any
    ) -> MessageExt:
        """Send one message and wait for the reply of a consumer, ``timeout`` s (3) in all.
        ``RequestTimeout`` when none came; see ``Producer.request``.
        """
        return self._producer.request(topic_or_message, body, **options)

    def recall_message(self, topic: str, recall_handle: str, **options: Any) -> str:
        """Take back a message that waits for its time; its message id. ``RecallFailed`` when it is
        too late; see ``Producer.recall_message``.
        """
        return self._producer.recall_message(topic, recall_handle, **options)

    def run(self, work: Callable[..., Any], *arguments: Any, **options: Any) -> Any:
        """Call ``work(producer, *arguments, **options)`` inside the actor: as many sends as it
        likes for one call to the actor, with futures, transactions and all else that a ``Producer``
        has. Returns its result, which must be picklable; what it raises is raised.
        """
        return work(self._producer, *arguments, **options)

    def close(self) -> None:
        """Send what lingers and leave the group. The actor stays, its sends are ``ClientError``;
        ``ray.kill`` or the last handle's end ends it.
        """
        self._reporter.close()
        self._producer.close()


ProducerActor = ClientActorClass(ProducerShell)


def _use_cluster_of(settings: Mapping[str, Any]) -> None:
    """Clients that a listener or a program in this actor makes mean the actor's own cluster."""
    if settings.get("name_servers") is None:
        cluster = meant_cluster(settings.get("cluster"))
        keys = settings.get("access_key", ""), settings.get("secret_key", "")
        use_cluster(cluster, given_account(*keys, cluster))


class ConsumerShell:
    """A push consumer in an actor; actors of one group share the queues.

        class Totals:
            def __init__(self, start): self.total = start
            def __call__(self, messages, ctx): self.total += len(messages)
            def value(self): return self.total

        consumer = rmq.ConsumerActor.options(num_cpus=0.5).remote(
            "billing", Totals, {"orders": "paid"}, listener_args=[0], start_from="first"
        )
        ray.get(consumer.ask.remote("value"))
        ray.get(consumer.stop.remote(timeout_s=30))

    ``listener``: a callable ``(messages, ctx)``, or a class of such: the actor makes one object of
    it with ``listener_args``, which may keep state. ``subscriptions``: topic -> filter, and
    ``settings``: what ``PushConsumer`` takes. ``concurrency`` threads (20) call the listener,
    ``ask`` and ``stats`` run beside them: guard what they share with a lock. An actor that dies or
    goes out of scope leaves the group; what it had not finished comes to the others. Many actors
    that shall be scaled and restarted: ``rmq_ray.consumer``. Raises ``ConfigError`` or
    ``ClientError`` for wrong arguments.
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
        _use_cluster_of(settings)
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
        self._reporter = ClientReporter(self._consumer.metrics, "consumer", settings)

    def ping(self) -> str:
        """``"running"``, once the consumer has joined its group; queues come with the next
        rebalance.
        """
        return "running"

    def node(self) -> str:
        """Ray's id of the node that it runs on."""
        return my_node()

    def stats(self) -> dict[str, Any]:
        """Counters in messages since the start, and the queues held now; see
        ``PushConsumer.stats``.
        """
        return self._consumer.stats()

    def ask(self, method: str, *arguments: Any) -> Any:
        """Call a public method of the listener object and return its result, which must be
        picklable. ``ClientError`` when it has none of this name.
        """
        if method.startswith("_") or not hasattr(self._listener, method):
            raise ClientError(f"the listener has no public method {method!r}", method)
        return getattr(self._listener, method)(*arguments)

    def stop(self, timeout_s: float = 30.0) -> bool:
        """Finish running listeners, commit their offsets and leave the group. False when one still
        ran after ``timeout_s``: its messages come again. The actor stays for ``ask``.
        """
        self._reporter.close()
        return self._consumer.stop(int(timeout_s * 1000))

    def __ray_shutdown__(self) -> None:
        """Ray ends the actor in good order (out of scope, SIGTERM): leave the group, so that the
        others take over at once.
        """
        self._consumer.stop(SHUTDOWN_TIMEOUT_MS)


ConsumerActor = ClientActorClass(ConsumerShell)
