"""OFFSET_MOVED_EVENT: a message that tells operators that a consumer asked for an offset which is
not there (protocol-behaviour 10.4).

Decides: that one event a second for a group and queue is enough: a consumer that asks in a loop
must not fill the log. Called by the pull handlers of a master.
"""

from __future__ import annotations

from rmq_ray.clock import Clock
from rmq_ray.errors import StoreError
from rmq_ray.model.fastjson import dumps
from rmq_ray.model.ids import MessageQueue
from rmq_ray.model.message import KEYS, TAGS
from rmq_ray.model.topics import OFFSET_MOVED_TOPIC
from rmq_ray.server.send.message_writer import MessageWriter

PAUSE_MS = 1_000
REMEMBERED_MAX = 10_000


class MovedEvents:
    """Writes the events. A store that cannot take them loses them: they are hints."""

    def __init__(self, writer: MessageWriter, clock: Clock) -> None:
        self._writer = writer
        self._clock = clock
        self._last_ms: dict[tuple[str, MessageQueue], float] = {}
        self.lost = 0

    def tell(self, group: str, queue: MessageQueue, asked: int, corrected: int) -> None:
        """``asked``: the offset of the request; ``corrected``: where the consumer is sent."""
        now_ms = self._clock.monotonic_ms()
        last_ms = self._last_ms.get((group, queue))
        if last_ms is not None and now_ms - last_ms < PAUSE_MS:
            return
        if len(self._last_ms) >= REMEMBERED_MAX:
            self._last_ms.clear()
        self._last_ms[group, queue] = now_ms
        place = {"brokerName": queue.broker_name, "queueId": queue.queue_id, "topic": queue.topic}
        body = dumps(
            {
                "consumerGroup": group,
                "messageQueue": place,
                "offsetNew": corrected,
                "offsetRequest": asked,
            }
        ).encode()
        try:
            self._writer.put(OFFSET_MOVED_TOPIC, 0, body, {KEYS: group, TAGS: group})
        except StoreError:
            self.lost += 1
