"""What a store is made of: what it is opened with, and the parts that live from one recovery to the
next.

``restart`` makes all of them in one place and hands each what it needs. Both ends of
replication and the checkpoints work on the same parts. Decides nothing.
"""

from __future__ import annotations

from dataclasses import dataclass

from rmq_ray.clock import Clock
from rmq_ray.config import StoreConfig
from rmq_ray.files import FileSystem
from rmq_ray.store.frames.deduplication import DeduplicationCache
from rmq_ray.store.log.commit_log import CommitLog
from rmq_ray.store.log.log_lineage import EpochFile
from rmq_ray.store.log.quarantine import Quarantine
from rmq_ray.store.log.segment_chain import SegmentChain
from rmq_ray.store.queue.dispatcher import Dispatcher, DispatchRules
from rmq_ray.store.queue.index_service import IndexService
from rmq_ray.store.queue.queue_table import QueueTable
from rmq_ray.store.queue.visibility import Visibility
from rmq_ray.store.reading.log_reader import LogReader
from rmq_ray.store.reading.retention import Retention
from rmq_ray.store.tables.topic_lives import TopicLives


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What a store is opened with. ``boot_id``: of the kernel that runs now."""

    config: StoreConfig
    files: FileSystem
    clock: Clock
    boot_id: str
    rules: DispatchRules
    lives: TopicLives
    follows: bool = False
    """The log is to be a copy of another's: epochs begin there."""
    new_epoch: int | None = None
    """The log begins this epoch now, greater than all before: its master was elected."""

    @property
    def root(self) -> str:
        """The store's directory."""
        return self.config.path


@dataclass(slots=True)
class StoreParts:
    """Everything that lives from one recovery to the next."""

    chain: SegmentChain
    log: CommitLog
    queues: QueueTable
    index: IndexService | None
    dispatcher: Dispatcher
    visibility: Visibility
    windows: DeduplicationCache
    epochs: EpochFile
    quarantine: Quarantine
    reader: LogReader
    retention: Retention
    lives: TopicLives

    def forget_unsynced(self) -> None:
        """After a failed write or sync: the next read of bytes that may not be on disk asks the
        disk, not the page cache.
        """
        for segment in self.chain.segments():
            if segment.end > self.log.durable:
                segment.file.forget_cached(0, segment.end - segment.start)

    def close(self) -> None:
        """Let go of every file; what was not flushed stays so."""
        self.chain.close()
        self.queues.close()
