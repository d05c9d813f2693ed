"""A producer that puts into a queue of values with a bound: a batch is stored whole, and only where
it has room.

Decides nothing of its own: the broker counts what nobody has taken and judges, in the moment in
which it would write (docs/decisions/0032-bounds-of-queues.md). Invariant: of a batch that has no
room nothing is stored.
"""

from __future__ import annotations

from collections.abc import Sequence

from rmq_ray.client.outgoing.send_batches import batch_of, split_batch
from rmq_ray.client.producer.producer import Producer
from rmq_ray.client.sending.send_steps import send_frames
from rmq_ray.model.ids import MessageQueue
from rmq_ray.model.message import SendResult
from rmq_ray.remoting.wire.group_headers import SendWithin


class BoundedProducer(Producer):
    """See the module. What it inherits knows no bound."""

    def send_within(
        self,
        untaken_max: int,
        queue: MessageQueue,
        bodies: Sequence[bytes],
        tags: str | Sequence[str | None] | None = None,
    ) -> list[SendResult]:
        """``send_batch`` of bodies to ``queue``, where with them at most ``untaken_max`` messages
        of its broker wait that nobody of the group of the topic's name has taken; else
        ``TopicFull``, at once. Frames behind the first one of a batch are not judged again.
        """
        core = self._core or self._ready()
        batch, queue_given = batch_of(queue.topic, bodies, queue, (tags, None, None))
        topic, frames = split_batch(batch, self._config)
        fields = SendWithin(untaken_max, len(bodies)).to_fields()
        return send_frames(
            core, self._steps, topic, frames, queue_given, self._timeout_ms, fields=fields
        )
