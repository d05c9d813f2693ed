"""Apache RocketMQ's ``checkpoint`` file: up to which store times log, consume queues and index are
on disk (store-format 6).

     0 physicMsgTimestamp i64 | 8 logicsMsgTimestamp i64 | 16 indexMsgTimestamp i64 | zeros up to
     4096 bytes

Big-endian ms. Decides: the file's form and what time a recovery by file times may trust. Does not
decide when it is written. Called by: flusher, recovery. Ours, with exact positions, is
``short_checkpoint``; this one is for a log that moved without it.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass

from rmq_ray.files import FileSystem

CHECKPOINT_BYTES = 4096
SAFETY_MS = 3_000  # RocketMQ trusts 3 s less than what was noted
_TIMES = struct.Struct(">qqq")


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """Store times in ms; 0 = nothing yet."""

    log_ms: int = 0
    queues_ms: int = 0
    index_ms: int = 0

    @property
    def trusted_ms(self) -> int:
        """RocketMQ's getMinTimestamp: a file whose first record is not younger is whole.

        >>> Checkpoint(10_000, 9_000, 0).trusted_ms, Checkpoint(1, 2).trusted_ms
        (6000, 0)
        """
        return max(0, min(self.log_ms, self.queues_ms) - SAFETY_MS)

    @property
    def trusted_index_ms(self) -> int:
        """RocketMQ's getMinTimestampIndex, used where the index must be safe too."""
        return min(self.trusted_ms, self.index_ms)


def load_checkpoint(files: FileSystem, path: str) -> Checkpoint:
    """The file's times; a missing or short file counts as zeros, as for RocketMQ."""
    if not files.exists(path):
        return Checkpoint()
    return Checkpoint(
        *_TIMES.unpack(files.read_whole(path)[: _TIMES.size].ljust(_TIMES.size, b"\0"))
    )


def save_checkpoint(files: FileSystem, path: str, checkpoint: Checkpoint) -> None:
    """Written in place, as RocketMQ does (24 bytes of one sector); durable on return."""
    new = not files.exists(path)
    file = files.open(path, create=True)
    try:
        if file.size() != CHECKPOINT_BYTES:
            file.truncate(CHECKPOINT_BYTES)
        file.pwrite(_TIMES.pack(checkpoint.log_ms, checkpoint.queues_ms, checkpoint.index_ms), 0)
        file.datasync()
    finally:
        file.close()
    if new:
        files.sync_dir(path.rpartition("/")[0])
