"""Bit maps of extension units: which SQL92 filters a record passes.

They are made at the first dispatch of a frame, of what the log holds, and only where somebody
filters the topic by SQL92; records that are queued again after a crash get none, which means that
every filter reads them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

import numpy as np

from rmq_ray.codec.record_batch import CheckedFrame
from rmq_ray.codec.record_layout import RecordLayout
from rmq_ray.store.log.commit_log import CommitLog


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
        layout = RecordLayout(data, np.asarray(frame.sizes, np.int64))
        return [
            mapper.bit_map(frame.topic, data[begin:end], store_ms)
            for begin, end in zip(layout.text_begins.tolist(), layout.ends.tolist(), strict=True)
        ]

    return make
