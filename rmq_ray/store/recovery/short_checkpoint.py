"""Our checkpoint: the position from which recovery reads the log again, written every second or 64
MiB.

    rmq_ray/checkpoint:   0 "RMQCKPT1"  |  8 payload bytes u32  |  12 CRC-32 of the payload u32  |  16 payload, msgpack map

    log_position     all records that begin before it are in the consume queues and the index, and those are synced
    log_ms           store time of the last record before it
    queues           [[topic, queue id, next offset], ...]   exact maxima at log_position
    index            ``IndexService.state()`` at log_position or before it
    deduplication    the windows of producers heard lately, at log_position
    boot_id          the kernel's boot: after another one, unsynced pages are gone
    synced           the log itself was synced up to log_position (always under SYNC_FLUSH)
    identity         of the store it belongs to
    last_record      (log offset, CRC-32 of its first 88 bytes) of the last record before log_position; (-1, 0) = none:
                     tells whether the log is still the one that the checkpoint speaks of

Decides: the file's form, and that a checkpoint which cannot be read counts as none. Does not decide
whether the log still agrees with it (recovery). Called by: flusher, recovery. A cache: without it
the log tells the same, in more time.
"""

from __future__ import annotations

import logging
import struct
import zlib
from dataclasses import dataclass, field, fields
from typing import Any

import msgpack

from rmq_ray.errors import StoreMissing
from rmq_ray.files import FileSystem

logger = logging.getLogger("rmq_ray.store")

_FRAME = struct.Struct(">8sII")
_MAGIC = b"RMQCKPT1"


@dataclass(frozen=True, slots=True)
class ShortCheckpoint:
    """See the module. ``queues``: (topic, queue id) -> next queue offset. ``index`` and
    ``deduplication`` are plain values.
    """

    log_position: int
    log_ms: int = 0
    queues: dict[tuple[str, int], int] = field(default_factory=dict)
    index: dict[str, Any] = field(default_factory=dict)
    deduplication: Any = None
    boot_id: str = ""
    synced: bool = False
    identity: str = ""
    last_record: tuple[int, int] = (-1, 0)


_FIELDS = tuple(f.name for f in fields(ShortCheckpoint))


def encode_short_checkpoint(checkpoint: ShortCheckpoint) -> bytes:
    """The whole file."""
    values: dict[str, Any] = {name: getattr(checkpoint, name) for name in _FIELDS}
    values["queues"] = [
        (topic, queue_id, offset) for (topic, queue_id), offset in checkpoint.queues.items()
    ]
    payload: bytes = msgpack.packb(values)
    return _FRAME.pack(_MAGIC, len(payload), zlib.crc32(payload)) + payload


def decode_short_checkpoint(data: bytes) -> ShortCheckpoint | None:
    """None when the bytes are not a whole checkpoint of this form."""
    if len(data) < _FRAME.size:
        return None
    magic, size, crc = _FRAME.unpack_from(data)
    payload = data[_FRAME.size :]
    if magic != _MAGIC or len(payload) != size or zlib.crc32(payload) != crc:
        return None
    values = msgpack.unpackb(payload, strict_map_key=False)
    values["queues"] = {(topic, queue_id): offset for topic, queue_id, offset in values["queues"]}
    values["last_record"] = tuple(values["last_record"])
    return ShortCheckpoint(**values)


def save_short_checkpoint(files: FileSystem, path: str, checkpoint: ShortCheckpoint) -> None:
    """Replace the file atomically; durable on return. Everything it speaks of must be synced
    already.
    """
    files.write_whole(path, encode_short_checkpoint(checkpoint))


def load_short_checkpoint(files: FileSystem, path: str) -> ShortCheckpoint | None:
    """The checkpoint; None when there is none or it cannot be read (then recovery goes RocketMQ's
    way).
    """
    try:
        checkpoint = decode_short_checkpoint(files.read_whole(path))
    except StoreMissing:
        return None
    if checkpoint is None:
        logger.warning(
            "checkpoint %s is damaged: recovery reads the log from RocketMQ's checkpoint on", path
        )
    return checkpoint
