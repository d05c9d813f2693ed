"""Repeats of single messages: our producers send messages of special kinds (delayed, retried) one by one, with the frame's id in the header.

Decides: whether such a message was stored before. Frames of records carry their id into the log, single messages do not: this memory lasts
as long as the process and the log it wrote; after a crash of the broker a retried single message may be stored twice.
"""

from __future__ import annotations

import zlib

from rmq_ray.clock import Clock
from rmq_ray.config import StoreConfig
from rmq_ray.model.ids import FrameId
from rmq_ray.store.deduplication import DeduplicationCache, StoredFrame
from rmq_ray.store.message_store import AppendResult


class SingleRepeats:
    """The same windows as those of frames, kept apart from them."""

    def __init__(self, config: StoreConfig, clock: Clock) -> None:
        self._config = config
        self._clock = clock
        self._windows = DeduplicationCache(config.deduplication_frames, config.deduplication_keep_ms)

    def find(self, frame_id: FrameId, topic: str, properties: str, body: bytes | bytearray | memoryview) -> tuple[AppendResult | None, int]:
        """(the first result, the content's CRC). Raises ``DuplicateMismatch`` when the id stood for another message."""
        crc = zlib.crc32(body, zlib.crc32(f"{topic}\x00{properties}".encode()))
        known = self._windows.find(frame_id, crc)
        if known is None:
            return None, crc
        place = (known.topic, known.queue_id, known.queue_offset, known.log_offset, known.end_log_offset, known.store_ms)
        return AppendResult(*place, True, 1, (known.log_offset,)), crc

    def add(self, frame_id: FrameId, crc: int, result: AppendResult) -> None:
        """Remember a message that was written."""
        place = (result.topic, result.queue_id, result.base_queue_offset, result.base_log_offset, result.end_log_offset, result.store_ms)
        self._windows.add(frame_id, StoredFrame(crc, *place, 1), self._clock.now_ms())

    def forget(self) -> None:
        """The log failed: what is remembered may not be in it."""
        self._windows = DeduplicationCache(self._config.deduplication_frames, self._config.deduplication_keep_ms)
