"""What the parts of one consumer share: who it is, its settings, and the tables that several of
them read.

Decides nothing. A value object: the parts get it instead of one another, so that none of them
points back at the consumer.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from rmq_ray.client.consumer.assigned_queue import AssignedQueues
from rmq_ray.client.consumer.flow_control import FlowControl, PauseTable
from rmq_ray.client.consumer.offset_store import OffsetStore
from rmq_ray.client.consumer.subscriptions import SubscriptionTable
from rmq_ray.client.instance.client_instance import ClientInstance
from rmq_ray.client.instance.timers import DelayedCalls
from rmq_ray.clock import Clock
from rmq_ray.config import ConsumerConfig
from rmq_ray.model.topics import RETRY_PREFIX

DEFAULT_RETRIES = 16


@dataclass(frozen=True, slots=True)
class ConsumerParts:
    """See the module."""

    group: str
    config: ConsumerConfig
    clock: Clock
    client: ClientInstance
    offsets: OffsetStore
    delayed: DelayedCalls
    flow: FlowControl
    subscriptions: SubscriptionTable
    assigned: AssignedQueues = field(default_factory=AssignedQueues)
    pauses: PauseTable = field(default_factory=PauseTable)
    cut_messages: int = 0
    """Most messages of a batch that is cut from a page; 0: as many as the listener gets at once."""

    @property
    def retries_max(self) -> int:
        """How often a failed message is tried again before it goes to the dead-letter topic."""
        configured = self.config.max_reconsume_times
        return DEFAULT_RETRIES if configured == -1 else configured


def is_retry_topic(topic: str) -> bool:
    """Warnings about retry topics are not worth a line: they come and go."""
    return topic.startswith(RETRY_PREFIX)
