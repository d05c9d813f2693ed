"""The parts of a store's directory that a reader beside the log knows, too
(docs/file-format.md#consume-queue).

    commitlog/00000000000000000000        segments, named by the log offset where they begin
    consumequeue/{topic}/{queueId}/...    entries: where the records of one queue lie in the log
    rmq_ray/epochs                        one line an epoch, oldest first: <epoch> <log offset>

    entry:   0 log offset i64  |  8 record size i32  |  12 tags code i64      big-endian, 20 bytes
    blank:   offset 0, size 0x7FFFFFFF, code 0: stands before the queue's first offset, and where
             the log lost a record

Decides names and forms; opens no file. What is written when, and what follows from a broken file,
is the store's matter (``store.queue.consume_queue``, ``store.log.log_lineage``).
"""

from __future__ import annotations

import struct

import numpy as np

from rmq_ray.errors import StoreCorrupt

OURS = "rmq_ray"
COMMIT_LOG = "commitlog"
CONSUME_QUEUE = "consumequeue"

ENTRY = struct.Struct(">qiq")
ENTRY_BYTES = ENTRY.size  # 20
ENTRIES = np.dtype([("log_offset", ">i8"), ("size", ">i4"), ("code", ">i8")])
"""The same as a numpy type."""
BLANK_SIZE = 0x7FFFFFFF
BLANK_ENTRY = ENTRY.pack(0, BLANK_SIZE, 0)


def segment_name(start: int) -> str:
    """The file name of the segment that begins at log offset ``start``.

    >>> segment_name(1073741824)
    '00000000001073741824'
    """
    return f"{start:020d}"


def decode_epochs(content: bytes, path: str) -> list[tuple[int, int]]:
    """(epoch, log offset where it starts) of the file ``epochs`` at ``path``, oldest first.
    ``StoreCorrupt`` when they are no rising list.
    """
    epochs: list[tuple[int, int]] = []
    for line in content.decode("ascii", "replace").splitlines():
        epoch, _, start = line.partition(" ")
        if not (epoch.isdigit() and start.isdigit()) or (
            epochs and (int(epoch) <= epochs[-1][0] or int(start) < epochs[-1][1])
        ):
            raise StoreCorrupt(
                f"{path}: line {line!r} is not a later epoch and its start; "
                f"restore the file from a copy",
                path,
                0,
            )
        epochs.append((int(epoch), int(start)))
    return epochs
