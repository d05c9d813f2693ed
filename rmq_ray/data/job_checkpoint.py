"""Ray Data's job checkpoints (``DataContext.checkpoint_config``) by offsets instead of ids.

    read_topic(columns=[..., "offset_id"], start=unwritten(...)) ─> ... ─> write_parquet(out)
         │ reads behind what is written                                        │
         └ OffsetFilter: rows in holes <─ ranges <─ OffsetCheckpointManager <─ Ray's files of ids

Decides: what is kept in memory of what was written (ranges), and where a job that is started again
begins to read. Does not decide when a row counts as written: Ray's own writer puts a file of ids
beside each file of output, pending before and committed after. That writer cannot be replaced in
Ray 2.60, so its files have a number for each row; no job loads them as such.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import ray
from pyarrow import fs
from ray.data.checkpoint import CheckpointConfig
from ray.data.checkpoint.checkpoint_filter import CheckpointFilter, CheckpointManager

from rmq_ray.actors.discovery import discovery_for
from rmq_ray.actors.gateway import value_of
from rmq_ray.client.scan.batch_planner import state_of
from rmq_ray.client.scan.topic_state import TopicState
from rmq_ray.data.checkpoint_files import file_system
from rmq_ray.data.offset_ids import OFFSET_ID, behind, inside, ranges_of
from rmq_ray.errors import ClientError
from rmq_ray.model.ids import MessageQueue

FILTER_MEMORY_BYTES = 64 << 20
"""Ray reserves 1 GiB for each actor that filters by ids; ranges take a few KiB."""
PENDING = ".pending.parquet"


def offset_checkpoint(path: str | os.PathLike[str], **settings: Any) -> CheckpointConfig:
    """For ``DataContext.checkpoint_config``: a job over ``read_topic(columns=[..., "offset_id"])``
    that is started again leaves out what it has written. ``path``: a directory or URI that every
    node reaches. ``settings``: of ``ray.data.checkpoint.CheckpointConfig``. It stays when the job
    ends, so that the next one goes on behind it.
    """
    file_system(path, "path")
    text = os.fspath(path)
    config = CheckpointConfig(
        OFFSET_ID,
        text if "://" in text else os.path.abspath(text),
        checkpoint_manager_cls=OffsetCheckpointManager,
        checkpoint_filter_cls=OffsetFilter,
        **{"delete_checkpoint_on_success": False, **settings},
    )
    config.checkpoint_actor_memory_bytes = FILTER_MEMORY_BYTES
    return config


def unwritten(
    topics: str | Sequence[str], path: str | os.PathLike[str], cluster: str | None = None
) -> dict[MessageQueue, int]:
    """Where ``read_topic(start=...)`` has to begin: in each queue the first offset that no
    committed file of the checkpoint has. What lies behind it and is written, too, the filter leaves
    out. ``ClientError`` for a path that cannot be read, ``TopicNotFound``.
    """
    files, inside_fs = file_system(path, "path")
    written = written_ranges(files, inside_fs)
    discovery = discovery_for(cluster, None, b"")
    with TopicState(discovery, topics) as asked:
        bounds = state_of(asked, discovery).bounds
    return {queue: min(high, behind(written, queue, low)) for queue, (low, high) in bounds.items()}


def written_ranges(files: fs.FileSystem, path: str) -> Any:
    """The ranges of ids in all committed files, one file in memory at a time."""
    found = ranges_of([])
    for info in files.get_file_info(fs.FileSelector(path, allow_not_found=True)):
        if not info.path.endswith(".parquet") or info.path.endswith(PENDING):
            continue
        try:
            ids = pq.read_table(info.path, filesystem=files, columns=[OFFSET_ID])[OFFSET_ID]
        except (OSError, ValueError, KeyError) as error:
            raise ClientError(
                f"{info.path} has no column {OFFSET_ID!r} ({error}): the checkpoint belongs to "
                f"another job; give this one a directory of its own",
                info.path,
            ) from None
        found = ranges_of(ids.to_numpy(), found)
    return found


class OffsetCheckpointManager(CheckpointManager):
    """Loads what was written as ranges of offsets; made by Ray Data, in the driver."""

    def load_checkpoint(
        self, data_file_dir: str | None = None, data_file_filesystem: Any = None
    ) -> tuple[Any, int]:
        """(reference to the ranges, their bytes), after output without a committed file of ids was
        removed; (None, 0) where nothing is written.
        """
        if data_file_dir is not None:
            self._clean_pending_checkpoints(data_file_dir, data_file_filesystem)
        found = written_ranges(self.filesystem, self.checkpoint_path_unwrapped)
        return (ray.put(found), found.nbytes) if len(found) else (None, 0)


class OffsetFilter(CheckpointFilter):
    """Leaves out rows whose ``offset_id`` lies in what was written; made by Ray Data, in actors."""

    def __init__(self, checkpoint_config: CheckpointConfig, checkpoint_ref: Any) -> None:
        super().__init__(checkpoint_config, checkpoint_ref)
        self._ranges = value_of(checkpoint_ref)

    def filter_rows_for_block(self, block: Any) -> Any:
        """The rows that are not written."""
        if not len(block):
            return block
        ids = np.asarray(block[OFFSET_ID].to_numpy())
        return block.filter(pa.array(~inside(ids, self._ranges)))
