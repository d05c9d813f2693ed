"""Where one training worker is: an open window of each of its queues, and how far it went in it.

    queue 0   ..done..[low      high)..       a window: rows that are shuffled among themselves
    queue 3   ........[low   high).....       done: how many of them were handed out, in that order

The order in a window follows from the seed, the queue and ``low`` alone, and windows of different
queues are handed out evenly mixed. So what is left of a window is the same rows in the same order
whoever goes on with it: the same worker, another one, one of another number of workers.

Decides: the order, and what a saved state may be. Pure. Invariants: every offset of a window is
handed out once; ``low`` never goes back.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from rmq_ray.errors import ClientError
from rmq_ray.model.ids import MessageQueue

FORMAT = 1
Array = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Window:
    """[``low``, ``high``) of one queue, of which ``done`` places were handed out."""

    low: int
    high: int
    done: int = 0

    def __post_init__(self) -> None:
        if not (0 <= self.low <= self.high and 0 <= self.done <= self.high - self.low):
            raise ClientError(f"no window: [{self.low}, {self.high}), {self.done} handed out")

    @property
    def left(self) -> int:
        """Places that were not handed out."""
        return self.high - self.low - self.done

    @property
    def safe(self) -> int:
        """The offset before which everything was handed out."""
        return self.low if self.left else self.high


@dataclass(frozen=True, slots=True)
class TrainState:
    """What a checkpoint keeps of one worker, or of all of them (``merged``). ``seed`` None: rows
    come in the order of their offsets. ``end``: where reading ends, for runs that have an end.
    """

    topic: str
    cluster: str
    seed: int | None
    windows: dict[MessageQueue, Window]
    epochs: dict[str, int] = field(default_factory=dict)
    end: dict[MessageQueue, int] | None = None
    shard: tuple[int, int] = (0, 1)

    def to_dict(self) -> dict[str, Any]:
        """Plain values, for JSON or a checkpoint of any framework."""
        queues: dict[str, dict[str, list[int]]] = {}
        for queue, at in sorted(self.windows.items()):
            queues.setdefault(queue.broker_name, {})[str(queue.queue_id)] = [
                at.low,
                at.high,
                at.done,
                *([] if self.end is None or queue not in self.end else [self.end[queue]]),
            ]
        return {
            "format": FORMAT,
            "topic": self.topic,
            "cluster": self.cluster,
            "seed": self.seed,
            "queues": queues,
            "epochs": dict(sorted(self.epochs.items())),
            "shard": list(self.shard),
        }

    @classmethod
    def from_dict(cls, given: Mapping[str, Any] | str) -> Self:
        """The way back, also from its JSON text. ``ClientError`` for what is no such state.

        >>> state = TrainState("t", "c", 7, {MessageQueue("t", "b", 0): Window(3, 9, 2)})
        >>> TrainState.from_dict(state.to_dict()) == state
        True
        """
        try:
            found = json.loads(given) if isinstance(given, str) else given
            if found["format"] != FORMAT:
                raise ValueError(f"it has format {found['format']!r}, this version reads {FORMAT}")
            windows, end = {}, {}
            for broker, queues in found["queues"].items():
                for queue_id, numbers in queues.items():
                    queue = MessageQueue(str(found["topic"]), str(broker), int(queue_id))
                    windows[queue] = Window(*map(int, numbers[:3]))
                    if len(numbers) > 3:
                        end[queue] = int(numbers[3])
            rank, workers = map(int, found["shard"])
            return cls(
                str(found["topic"]),
                str(found["cluster"]),
                None if found["seed"] is None else int(found["seed"]),
                windows,
                {str(name): int(epoch) for name, epoch in found["epochs"].items()},
                end or None,
                (rank, workers),
            )
        except (KeyError, ValueError, TypeError, AttributeError, ClientError) as error:
            raise ClientError(
                f"this is no state of a train source ({error!r:.120}): give what state_dict() "
                f"returned, of one worker or a list of all of them",
                repr(given)[:80],
            ) from None


def merged(states: Sequence[TrainState]) -> TrainState:
    """The states of all workers of a run as one. ``ClientError`` where some are missing, or they
    are not of one run.
    """
    if not states:
        raise ClientError("no state of a train source is given")
    first = states[0]
    kinds = {(state.topic, state.cluster, state.seed, state.shard[1]) for state in states}
    ranks = sorted(state.shard[0] for state in states)
    if len(kinds) > 1:
        raise ClientError(
            f"these are states of several runs (topic, cluster, seed, workers): "
            f"{sorted(kinds, key=repr)}"
        )
    if ranks != list(range(first.shard[1])):
        raise ClientError(
            f"the states of {first.shard[1]} workers are needed and those of {ranks} are there: "
            f"every worker saves its own into the checkpoint that it reports",
            len(ranks),
        )
    windows: dict[MessageQueue, Window] = {}
    epochs: dict[str, int] = {}
    end: dict[MessageQueue, int] = {}
    for state in states:
        windows |= state.windows
        end |= state.end or {}
        for broker, epoch in state.epochs.items():
            epochs[broker] = min(epoch, epochs.get(broker, epoch))
    return replace(first, windows=windows, epochs=epochs, end=end or None)


def hand_out_order(
    queues: Sequence[MessageQueue], windows: Mapping[MessageQueue, Window], seed: int | None
) -> tuple[Array, Array]:
    """What is left of the windows, in order: (number of the queue in ``queues``, offset) of each
    place.

    >>> a, b = MessageQueue("t", "b", 0), MessageQueue("t", "b", 1)
    >>> where, offsets = hand_out_order([a, b], {a: Window(5, 9), b: Window(0, 2)}, None)
    >>> offsets.tolist()
    [5, 0, 6, 7, 1, 8]
    """
    numbers, offsets, ranks = [], [], []
    for number, queue in enumerate(queues):
        at = windows[queue]
        places = np.arange(at.low, at.high, dtype=np.int64)
        if seed is not None:
            places = np.random.default_rng(
                [seed, zlib.crc32(str(queue).encode()), at.low]
            ).permutation(places)
        offsets.append(places[at.done :])
        numbers.append(np.full(at.left, number, np.int64))
        ranks.append((np.arange(at.done, len(places)) + 0.5) / max(1, len(places)))
    if not numbers:
        return np.empty(0, np.int64), np.empty(0, np.int64)
    order = np.argsort(np.concatenate(ranks), kind="stable")
    return np.concatenate(numbers)[order], np.concatenate(offsets)[order]


def advanced(
    queues: Sequence[MessageQueue], windows: Mapping[MessageQueue, Window], handed_out: Array
) -> dict[MessageQueue, Window]:
    """The windows behind places of these queues (numbers in ``queues``)."""
    counts = np.bincount(handed_out, minlength=len(queues))
    return {
        queue: replace(windows[queue], done=windows[queue].done + int(count))
        for queue, count in zip(queues, counts, strict=True)
    }


def of_queues(state: TrainState, queues: Iterable[MessageQueue]) -> dict[MessageQueue, Window]:
    """The windows of these queues; those that the state does not know begin at 0 of nothing."""
    return {queue: state.windows[queue] for queue in queues if queue in state.windows}
