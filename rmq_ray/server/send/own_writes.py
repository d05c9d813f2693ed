"""Where a message goes that the broker itself stores for somebody: a delayed one that is due, a
half that is committed, a copy that is renewed. Such a message was admitted long ago; what was true
of its topic then need not be true now.

    its topic is gone, or was made again since  ──> nowhere: dropped, counted, logged once for each
                                                    topic, or refused where somebody can be told
    its queue is gone                           ──> another one: its number modulo the write queues
    else                                        ──> where it says

Decides only that; the same of a client's send is decided by ``send_path.TopicGate``. A topic that
this broker does not know, and that nobody deleted, is made: a slave that was promoted may have a
message before the settings of its topic.
"""

from __future__ import annotations

import logging

from rmq_ray.model.topics import TopicConfig
from rmq_ray.server.base.counters import Counters
from rmq_ray.server.tables.storage import BrokerStorage
from rmq_ray.server.tables.topic_table import QUEUES_MAX

log = logging.getLogger("rmq_ray.server")
TOLD_MAX = 1_000


class OwnWrites:
    """Of one broker; loop only."""

    def __init__(self, storage: BrokerStorage, counters: Counters) -> None:
        self._keeper, self._topics = storage.keeper, storage.tables.topics
        self._counters = counters
        self._told: set[str] = set()

    def queue(self, topic: str, queue_id: int, log_offset: int) -> int | None:
        """The queue of ``topic`` for a message whose record lies at ``log_offset`` and names
        ``queue_id``; None where the topic that it was for is gone. Raises the keeper's refusal.
        """
        if self.is_gone(topic, log_offset):
            return None
        config = self._topics.get(topic)
        if config is None:
            queues = min(queue_id + 1, QUEUES_MAX)
            config = self._topics.put(TopicConfig(topic, queues, queues, adopted=True))
        if queue_id >= config.write_queues:
            config = self._topics.widen(config, queue_id)
        if queue_id < config.write_queues:
            return queue_id
        return queue_id % (config.write_queues or config.read_queues or 1)

    def is_gone(self, topic: str, log_offset: int) -> bool:
        """Whether the topic for which a record at ``log_offset`` was stored is not there any more,
        be it that one of its name is.
        """
        store = self._keeper.store
        if store is None:
            raise self._keeper.refusal()
        lives = store.lives
        return not lives.holds(topic, log_offset) or (topic in lives and topic not in self._topics)

    def dropped(self, topic: str) -> None:
        """A message of a topic that is gone is given up."""
        self._counters.dropped_deleted += 1
        if topic not in self._told:
            if len(self._told) >= TOLD_MAX:
                self._told.clear()
            self._told.add(topic)
            log.warning(
                "messages that waited for topic %s are dropped: it was deleted after they were "
                "sent; the status counts them (dropped_deleted)",
                topic,
            )
