"""Whether a group is new in a topic, asked of the topic's other brokers: each knows the positions
in its own queues only.

    broker of a queue: no position, no word   ──> the other brokers of the topic, one question each
                                                  ──> for how long they know the group
    the longest of it, told to that broker    ──> the queue's first message, or the start rule

Decides whom to ask. What follows of it is the broker's rule (``server.groups.beginning``). A broker
that cannot be asked now says nothing. Any thread; blocking.
"""

from __future__ import annotations

import logging

from rmq_ray.client.instance.client_instance import ClientInstance
from rmq_ray.errors import RemotingError
from rmq_ray.model.ids import MessageQueue
from rmq_ray.remoting.wire.codes import RequestCode
from rmq_ray.remoting.wire.frame import Command
from rmq_ray.remoting.wire.headers import GroupKnown, QueryOffsetHeader

FRESH_MS = 1_000
"""What was told counts for that long: a new group begins in many queues at once."""

log = logging.getLogger("rmq_ray.client.offsets")


class KnownGroup:
    """Of one group."""

    def __init__(self, client: ClientInstance, group: str) -> None:
        self._client = client
        self._group = group
        self._told: dict[tuple[str, str], tuple[float, float | None]] = {}
        """By topic and broker: when it was asked, and since when it knows the group."""

    def elsewhere_ms(self, topic: str, broker_name: str) -> int | None:
        """For how long other brokers than this have known the group in the topic; None: they do
        not.
        """
        others = {queue.broker_name: queue for queue in self._client.routes.subscribe(topic)}
        others.pop(broker_name, None)
        since = [born for queue in others.values() if (born := self._since(queue)) is not None]
        return max(0, round(self._client.clock.monotonic_ms() - min(since))) if since else None

    def _since(self, queue: MessageQueue) -> float | None:
        key, now_ms = (queue.topic, queue.broker_name), self._client.clock.monotonic_ms()
        asked_ms, since_ms = self._told.get(key, (-FRESH_MS, None))
        if now_ms - asked_ms >= FRESH_MS:
            known_ms = self._ask(queue)
            since_ms = None if known_ms is None else now_ms - known_ms
            self._told[key] = now_ms, since_ms
        return since_ms

    def _ask(self, queue: MessageQueue) -> int | None:
        address = self._client.reading_address(queue.broker_name)
        if address is None:
            return None
        header = QueryOffsetHeader(self._group, queue.topic, queue.queue_id, False, True)
        command = Command(RequestCode.QUERY_CONSUMER_OFFSET, fields=header.to_fields())
        try:
            answer = self._client.invoke(address, command)
        except RemotingError as error:
            log.info("whether group %s is new at %s is not known: %s", self._group, address, error)
            return None
        return GroupKnown.from_fields(answer.fields).known_ms
