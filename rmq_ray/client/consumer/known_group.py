"""Whether a group is new in a topic, asked of the topic's other brokers: each knows the positions
in its own queues only.

    broker of a queue: no position, no word   ──> the other brokers of the topic, one question each
                                                  ──> for how long they know the group
    the longest of it, told to that broker    ──> the queue's first message, or the start rule

Decides whom to ask. What follows of it is the broker's rule (``server.groups.beginning``). While a
broker cannot be asked, and no other one knows the group, nobody knows whether it is new. Any
thread; blocking.
"""

from __future__ import annotations

from rmq_ray.client.instance.client_instance import ClientInstance
from rmq_ray.client.instance.outage import PASSING
from rmq_ray.errors import ConnectFailed, RemotingError
from rmq_ray.model.ids import MessageQueue
from rmq_ray.remoting.wire.codes import RequestCode
from rmq_ray.remoting.wire.frame import Command
from rmq_ray.remoting.wire.headers import GroupKnown, QueryOffsetHeader

FRESH_MS = 1_000
"""What was told counts for that long: a new group begins in many queues at once."""


class KnownGroup:
    """Of one group."""

    def __init__(self, client: ClientInstance, group: str) -> None:
        self._client = client
        self._group = group
        self._told: dict[tuple[str, str], tuple[float, float | RemotingError | None]] = {}
        """By topic and broker: when it answered or failed, and since when it knows the group."""

    def elsewhere_ms(self, topic: str, broker_name: str) -> int | None:
        """For how long other brokers than this have known the group in the topic; None: they do
        not. Raises ``RemotingError`` while one of them cannot be asked and no broker of the topic,
        this one included, knows the group.
        """
        queues = {queue.broker_name: queue for queue in self._client.routes.subscribe(topic)}
        own = queues.pop(broker_name, None)
        told = [self._since(queue) for queue in queues.values()]
        since = [born for born in told if isinstance(born, float)]
        if since:
            return max(0, round(self._client.clock.monotonic_ms() - min(since)))
        failed = [error for error in told if isinstance(error, RemotingError)]
        if failed and not (own is not None and isinstance(self._since(own), float)):
            raise failed[0]
        return None

    def _since(self, queue: MessageQueue) -> float | RemotingError | None:
        clock, key = self._client.clock, (queue.topic, queue.broker_name)
        asked_ms = clock.monotonic_ms()
        told_ms, since = self._told.get(key, (-FRESH_MS, None))
        if asked_ms - told_ms >= FRESH_MS:
            try:
                known_ms = self._ask(queue)
                since = None if known_ms is None else float(asked_ms - known_ms)
            except RemotingError as error:
                since = error
            self._told[key] = clock.monotonic_ms(), since
        return since

    def _ask(self, queue: MessageQueue) -> int | None:
        address = self._client.reading_address(queue.broker_name)
        if address is None:
            raise ConnectFailed(
                f"no address of broker {queue.broker_name} is known: whether group {self._group} "
                f"is new in topic {queue.topic} is not known yet"
            )
        header = QueryOffsetHeader(self._group, queue.topic, queue.queue_id, False, True)
        command = Command(RequestCode.QUERY_CONSUMER_OFFSET, fields=header.to_fields())
        answer = self._client.invoke(address, command)
        if answer.code in PASSING:
            raise ConnectFailed(
                f"broker {queue.broker_name} does not say yet whether group {self._group} is new "
                f"in topic {queue.topic}: {answer.remark or answer.code}"
            )
        return GroupKnown.from_fields(answer.fields).known_ms
