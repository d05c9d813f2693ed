"""How far a stream of batches has come: offsets of every queue with the epochs of their logs, as
text in a checkpoint; and how far the next batch goes.

    {"offsets": {"orders": {"broker-a": {"0": 23}}}, "epochs": {"broker-a": 3}, "starts": {"orders":
    {"broker-a": {"0": 5}}}}

Decides: the form, and how a limit on rows is shared among queues. Does not ask anybody. Invariants:
a batch is given by its end and the one before alone; a batch never has more rows than its limit.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from rmq_ray.errors import ClientError
from rmq_ray.model.ids import MessageQueue
from rmq_ray.protocol.scan.scan_positions import nested, normal

Offsets = Mapping[MessageQueue, int]


@dataclass(frozen=True, slots=True)
class StreamPosition:
    """The end of a batch. ``offsets``: the next one of each queue. ``epochs``: of each broker's
    log, when they were read. ``starts``: where this batch began in queues in which that is not the
    end of the one before: new ones, and those that lost what came next.
    """

    offsets: dict[MessageQueue, int]
    epochs: dict[str, int] = field(default_factory=dict)
    starts: dict[MessageQueue, int] = field(default_factory=dict)

    def to_json(self) -> str:
        """As in the module."""
        parts = {"offsets": nested(self.offsets), "epochs": dict(sorted(self.epochs.items()))}
        return json.dumps(
            {**parts, "starts": nested(self.starts)} if self.starts else parts,
            separators=(",", ":"),
        )

    @classmethod
    def from_json(cls, text: str) -> StreamPosition:
        """The way back. ``ClientError`` for what is no such text.

        >>> position = StreamPosition({MessageQueue("t", "b", 0): 7}, {"b": 2})
        >>> StreamPosition.from_json(position.to_json()).epochs
        {'b': 2}
        """
        try:
            found = json.loads(text)
            if not isinstance(found, dict) or not isinstance(found.get("offsets"), dict):
                raise ValueError("it has no 'offsets'")
            epochs = {str(name): int(epoch) for name, epoch in found.get("epochs", {}).items()}
            return cls(_offsets(found["offsets"]), epochs, _offsets(found.get("starts", {})))
        except (ValueError, TypeError, AttributeError) as error:
            raise ClientError(
                f"position {text!r:.120} of the checkpoint cannot be read: {error}; restore "
                f"it, or use a new checkpoint",
                text[:120],
            ) from None

    def ranges(self, before: StreamPosition | None) -> dict[MessageQueue, tuple[int, int]]:
        """[start, end) of every queue that has rows in this batch. ``before``: the end of the one
        before, None for the first.
        """
        known = {} if before is None else before.offsets
        found = {
            queue: (self.starts.get(queue, known.get(queue, end)), end)
            for queue, end in sorted(self.offsets.items())
        }
        return {queue: (start, end) for queue, (start, end) in found.items() if start < end}


def limited(start: Offsets, end: Offsets, rows_max: int | None) -> dict[MessageQueue, int]:
    """Ends of at most ``rows_max`` rows together, each queue in proportion to what it has; None =
    all.

    ``start`` names every queue of ``end``. Queues whose end lies before their start stay at their
    start.

    >>> long, short = MessageQueue("t", "b", 0), MessageQueue("t", "b", 1)
    >>> list(limited({long: 0, short: 5}, {long: 90, short: 15}, 10).values())
    [9, 6]
    """
    rows = {queue: max(0, end[queue] - start[queue]) for queue in sorted(end)}
    total = sum(rows.values())
    if rows_max is None or total <= rows_max:
        return {queue: start[queue] + count for queue, count in rows.items()}
    taken = {queue: rows_max * count // total for queue, count in rows.items()}
    left = rows_max - sum(taken.values())
    for queue in sorted(rows, key=lambda queue: -(rows_max * rows[queue] % total))[:left]:
        taken[queue] += 1
    return {queue: start[queue] + count for queue, count in taken.items()}


def _offsets(nested: dict[str, Any]) -> dict[MessageQueue, int]:
    found = normal(nested)
    assert isinstance(found, dict)  # it was a mapping
    return found
