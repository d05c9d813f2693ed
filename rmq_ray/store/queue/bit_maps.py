"""Bit maps of messages for the extension units of their entries (store-format 4;
enableCalcFilterBitMap).

Decides: when they are made: at the first dispatch of a frame, of what the log holds, and only where
somebody filters the topic by SQL92. Records that are queued again after a crash get none, which
means that every filter reads them. Called by: dispatcher.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

import numpy as np

from rmq_ray.codec.record_batch import CheckedFrame
from rmq_ray.store.log.commit_log import CommitLog
from rmq_ray.store.reading.filtered_reading import property_spans


class BitMapper(Protocol):
    """The SQL92 filters of the broker's groups."""

    def has_filters(self, topic: str) -> bool:
        """Whether anybody filters the topic."""
        ...

    def bit_map(self, topic: str, properties: bytes, store_ms: int) -> bytes:
        """Which filters a message with these properties passes."""
        ...


def bit_maps_from(
    log: CommitLog, mapper: BitMapper
) -> Callable[[CheckedFrame, int, int], Sequence[bytes] | None]:
    """What ``Dispatcher.bit_maps`` is set to."""

    def make(frame: CheckedFrame, log_offset: int, store_ms: int) -> Sequence[bytes] | None:
        if not mapper.has_filters(frame.topic):
            return None
        data = log.read(log_offset, frame.length)
        if int(np.sum(frame.sizes)) != frame.length:  # others' records lie between them
            data = b"".join(
                [
                    data[start : start + size]
                    for start, size in zip(frame.starts, frame.sizes, strict=True)
                ]
            )
        _, begins, ends = property_spans(data, np.asarray(frame.sizes, np.int64))
        return [
            mapper.bit_map(frame.topic, data[begin:end], store_ms)
            for begin, end in zip(begins, ends, strict=True)
        ]

    return make
