"""Frame ids that follow from what is written, so that a table that is written again is recognised
frame by frame.

    (query, batch, partition)  -SHA-256->  producer id of every 512 frames  frame number n ->
                                                                            sequence n % 512, queue
                                                                            n of the list

Decides: id and queue of each frame. Brokers remember the last 1,024 frames of a producer for 10
minutes, therefore 512 an id. Invariant: the same write, partition and frame number give the same
queue and id wherever and whenever they are computed, given the same list of queues. Called by: the
Spark sink, through ``Producer.send_arrow(frames=...)``.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass

from rmq_ray.model.ids import FrameId, MessageQueue

SEQUENCES = 512


@dataclass(frozen=True, slots=True)
class DerivedFrames:
    """The frames of one partition. ``write``: names the whole write, no other has this name.
    ``queues``: at least one, always in the same order.
    """

    write: str
    partition: int
    queues: Sequence[MessageQueue]

    def place(self, number: int) -> tuple[MessageQueue, FrameId]:
        """Queue and id of frame ``number``, counted from 0.

        >>> q = MessageQueue("t", "b", 0)
        >>> DerivedFrames("w", 1, [q]).place(512)[1].sequence
        0
        >>> DerivedFrames("w", 1, [q]).place(3) == DerivedFrames("w", 1, [q]).place(3)
        True
        """
        block, sequence = divmod(number, SEQUENCES)
        producer_id = hashlib.sha256(
            f"{self.write}\x00{self.partition}\x00{block}".encode()
        ).digest()[:16]
        return self.queues[(self.partition + number) % len(self.queues)], FrameId(
            producer_id, sequence
        )
