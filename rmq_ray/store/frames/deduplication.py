"""Which frames a producer sent lately, so that a repeat is answered with the first result instead
of being stored twice.

Decides: whether a frame is a repeat. Does not decide: what the producer is told. Called by: message
store, recovery. Per producer id the last 1,024 frames by sequence with the frame's CRC; producers
not heard for 10 minutes are dropped, and the longest unheard ones beyond 10,000. A cache of the
log: recovery fills it again from the marks of the frames.

How long a producer was not heard is counted from one ``expire`` to the next, by a clock that does
not jump: neither the wall clock of a host nor the store times that one wrote tell it.

Invariant: a frame enters when it was written, never before; a sequence number means one content for
ever.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, NamedTuple

from rmq_ray.errors import DuplicateMismatch
from rmq_ray.model.ids import FrameId

PRODUCERS_MAX = 10_000


class StoredFrame(NamedTuple):
    """Where a frame lies. Offsets of its first record; ``end_log_offset`` behind its last."""

    crc: int
    topic: str
    queue_id: int
    queue_offset: int
    log_offset: int
    end_log_offset: int
    store_ms: int
    records: int


@dataclass(slots=True)
class _Window:
    frames: OrderedDict[int, StoredFrame]
    heard_ms: float | None = None
    """Monotonic; None = since the last ``expire``."""
    floor: int = -1
    """Greatest sequence that fell out of the window."""


class DeduplicationCache:
    """Windows by producer id. Not thread-safe: the thread that appends owns it (``snapshot`` under
    the store's lock).
    """

    def __init__(self, frames_max: int, keep_ms: int) -> None:
        self._frames_max = frames_max
        self._keep_ms = keep_ms
        self._windows: OrderedDict[bytes, _Window] = OrderedDict()

    def __len__(self) -> int:
        return len(self._windows)

    @property
    def frames_max(self) -> int:
        """How many frames of one producer are remembered."""
        return self._frames_max

    def find(self, frame_id: FrameId, crc: int) -> StoredFrame | None:
        """The first result when this is a repeat, else None. ``DuplicateMismatch`` when the number
        stands for another content or is so old that nobody knows any more.
        """
        window = self._windows.get(frame_id.producer_id)
        if window is None:
            return None
        known = window.frames.get(frame_id.sequence)
        if known is None:
            if frame_id.sequence <= window.floor:
                what = (
                    f"frame {frame_id.sequence} is older than the last {self._frames_max} frames "
                    f"of its producer"
                )
                raise DuplicateMismatch(
                    f"{what}; it cannot be told from a repeat, send it under a new sequence number"
                )
            return None
        if known.crc != crc:
            raise DuplicateMismatch(
                f"frame {frame_id.sequence} was stored with other bytes at log offset "
                f"{known.log_offset}; use a new sequence number"
            )
        return known

    def add(self, frame_id: FrameId, stored: StoredFrame) -> None:
        """Remember a frame that was written."""
        window = self._windows.get(frame_id.producer_id)
        if window is None:
            window = self._windows[frame_id.producer_id] = _Window(OrderedDict())
            if len(self._windows) > PRODUCERS_MAX:
                self._windows.popitem(last=False)
        else:
            self._windows.move_to_end(frame_id.producer_id)
        window.heard_ms = None
        frames = window.frames
        frames[frame_id.sequence] = stored
        if len(frames) > self._frames_max:
            window.floor = max(window.floor, frames.popitem(last=False)[0])

    def skip(self, producer_id: bytes, sequence: int) -> None:
        """Frames up to ``sequence`` were stored, of which nothing is remembered: at least
        ``frames_max`` later ones are added next.
        """
        window = self._windows.setdefault(producer_id, _Window(OrderedDict()))
        window.floor = max(window.floor, sequence)

    def expire(self, now_ms: float) -> int:
        """Drop producers that were not heard for the configured time; returns how many. ``now_ms``:
        monotonic.
        """
        for window in reversed(self._windows.values()):
            if window.heard_ms is not None:
                break
            window.heard_ms = now_ms
        silent = []
        for producer_id, window in self._windows.items():
            if window.heard_ms is None or now_ms - window.heard_ms <= self._keep_ms:
                break
            silent.append(producer_id)
        for producer_id in silent:
            del self._windows[producer_id]
        return len(silent)

    def cut_from(self, log_offset: int) -> None:
        """Forget frames that lie at or behind a cut of the log."""
        for window in self._windows.values():
            gone = [
                sequence
                for sequence, stored in window.frames.items()
                if stored.end_log_offset > log_offset
            ]
            for sequence in gone:
                del window.frames[sequence]

    def clear(self) -> None:
        """Forget everything."""
        self._windows.clear()

    def snapshot(self) -> list[tuple[bytes, int, int, list[tuple[int, StoredFrame]]]]:
        """A shallow copy, quick: (producer id, store time of its last frame, floor, [(sequence,
        frame)]), the longest unheard first, for the checkpoint.
        """
        return [
            (
                producer_id,
                next(reversed(window.frames.values())).store_ms if window.frames else 0,
                window.floor,
                list(window.frames.items()),
            )
            for producer_id, window in self._windows.items()
        ]

    def restore(self, snapshot: Iterable[Any]) -> None:
        """From what ``snapshot`` gave, after a round through msgpack; all count as heard now."""
        self._windows.clear()
        for producer_id, _, floor, frames in snapshot:
            known = OrderedDict(
                (int(sequence), StoredFrame(*stored)) for sequence, stored in frames
            )
            self._windows[bytes(producer_id)] = _Window(known, None, int(floor))
