"""All consume queues of a store (docs/file-format.md#consume-queue).

    consumequeue/<topic>/<queue id>/...           one ``ConsumeQueue``
    rmq_ray/deleted-<n>-<topic>/<queue id>/...    what was ``consumequeue/<topic>`` until its topic
                                                  was deleted

A topic's queues are removed in two steps: out of the way at once (the broker's loop), off the disk
later (the checkpoint thread). The name tells a restart in between which queues are missing on
purpose.

Decides: which queues exist, how many of their files are open at once. Does not decide what a queue
holds, or who may delete.

Invariants: one ``ConsumeQueue`` per topic and queue id; no directory is made from a name that
RocketMQ would refuse; a ``deleted-`` directory goes only after a checkpoint without its topic was
written.
"""

from __future__ import annotations

from rmq_ray.codec.store_files import OURS
from rmq_ray.errors import MessageIllegal, StoreMissing
from rmq_ray.files import OPEN_FILES_MAX, FileCache, FileSystem
from rmq_ray.model.topics import QUEUE_ID_MAX, is_storable
from rmq_ray.store.queue.consume_queue import ConsumeQueue
from rmq_ray.store.queue.consume_queue_ext import ConsumeQueueExt, ExtendedQueue, ExtSettings
from rmq_ray.store.tables.topic_lives import TopicLives

_PREFIX = "deleted-"


def deleted_topics(root: str, files: FileSystem) -> list[tuple[str, str]]:
    """(topic, directory) of every deletion that is not finished."""
    ours = f"{root}/{OURS}"
    names = [name for name in files.list_dir(ours) if name.startswith(_PREFIX)]
    return [(name.split("-", 2)[2], f"{ours}/{name}") for name in names]


def remove_deleted_topics(deleted: list[tuple[str, str]], files: FileSystem) -> None:
    """Take them off the disk: slow where there are many files."""
    for _, directory in deleted:
        for queue_id in files.list_dir(directory):
            for name in files.list_dir(f"{directory}/{queue_id}"):
                files.unlink(f"{directory}/{queue_id}/{name}")
            files.remove_dir(f"{directory}/{queue_id}")
        files.remove_dir(directory)


class QueueTable:
    """Queues by (topic, queue id). ``files_max``: open descriptors over all queues. ``ext``: where
    extension units are, None = never looked for. ``lives``: which topics were deleted before.
    """

    def __init__(
        self,
        root: str,
        entries_per_file: int,
        files: FileSystem,
        files_max: int = OPEN_FILES_MAX,
        ext: ExtSettings | None = None,
        lives: TopicLives | None = None,
    ) -> None:
        self._lives = TopicLives(root, files) if lives is None else lives
        self._ext = ext if ext is not None and (ext.enabled or files.is_dir(ext.root)) else None
        self.root = root
        self._entries_per_file = entries_per_file
        self._files = files
        self._cache = FileCache(files, files_max)
        self._queues: dict[tuple[str, int], ConsumeQueue] = {}

    def find(self, topic: str, queue_id: int) -> ConsumeQueue | None:
        """The queue, None when nothing was ever queued there."""
        return self._queues.get((topic, queue_id))

    def bounds(self, topic: str, queue_id: int) -> tuple[int, int]:
        """(minimum, maximum) queue offset; alike where there is nothing to read."""
        return self.bounds_of(self._queues.get((topic, queue_id)), topic, queue_id)

    def bounds_of(self, queue: ConsumeQueue | None, topic: str, queue_id: int) -> tuple[int, int]:
        """The same of what ``find`` gave: another thread may make the queue meanwhile."""
        if queue is None:
            begin = self._lives.begin(topic, queue_id)
            return begin, begin
        return queue.min_offset, queue.max_offset

    def get_or_create(self, topic: str, queue_id: int) -> ConsumeQueue:
        """The queue; a new one gets its directory with its first entry. ``MessageIllegal`` for a
        name that is no topic.
        """
        queue = self._queues.get((topic, queue_id))
        if queue is None:
            if not is_storable(topic, queue_id):
                limits = (
                    f"topics match ^[%|a-zA-Z0-9_-]{{1,127}}$, queue ids are 0 to {QUEUE_ID_MAX}"
                )
                raise MessageIllegal(
                    f"topic {topic!r} queue {queue_id} cannot be stored: {limits}", topic
                )
            queue = self._queues[topic, queue_id] = self._make(topic, queue_id)
        return queue

    def all(self) -> list[tuple[str, int, ConsumeQueue]]:
        """Every queue as (topic, queue id, queue), in no order; a copy. May run beside appends.

        ``dict.copy`` is one step; ``list(items)`` is not: making its pairs may run the garbage
        collector, whose finalizers let other threads in.
        """
        return [
            (topic, queue_id, queue) for (topic, queue_id), queue in self._queues.copy().items()
        ]

    def topics(self) -> set[str]:
        """Topics that have a queue."""
        return {topic for topic, _ in list(self._queues)}

    def load_all(self) -> None:
        """Load every queue on disk. ``StoreCorrupt`` when a file is not as the format demands.
        10,000 queues take seconds.
        """
        for topic in self._files.list_dir(self.root):
            if not is_storable(topic, 0):
                continue
            for name in self._files.list_dir(f"{self.root}/{topic}"):
                if name.isdigit() and int(name) <= QUEUE_ID_MAX:
                    queue = self._make(topic, int(name))
                    queue.load()
                    self._queues[topic, int(name)] = queue

    def maxima(self) -> dict[tuple[str, int], int]:
        """The next queue offset of every queue: what our checkpoint keeps."""
        return {key: queue.max_offset for key, queue in self._queues.copy().items()}

    def max_log_offset(self) -> int:
        """Where the last record that any queue knows ends in the log."""
        return max((queue.max_log_offset for queue in list(self._queues.values())), default=0)

    def recover_all(self) -> int:
        """RocketMQ's check of every queue (no checkpoint of ours); returns ``max_log_offset``."""
        return max((queue.recover() for queue in list(self._queues.values())), default=0)

    def restore_maxima(self, maxima: dict[tuple[str, int], int]) -> bool:
        """Cut every queue to what the checkpoint says was durable. False, and nothing cut, when a
        queue has less than that: the queues are not those of the checkpoint.
        """
        if any(self._max_of(key) < offset for key, offset in maxima.items()):
            return False
        for key, queue in self._queues.copy().items():
            if key in maxima:
                queue.truncate_to(maxima[key])
            else:
                self._drop(key)
        return True

    def truncate_from(self, log_offset: int) -> int:
        """The log was cut at ``log_offset``: drop all entries of records from there on; returns how
        many.
        """
        return sum(
            queue.truncate_from(log_offset)
            for queue in list(self._queues.values())
            if queue.max_log_offset > log_offset
        )

    def set_min_log_offset(self, log_offset: int) -> None:
        """The log begins at ``log_offset`` now: correct every queue's minimum."""
        for queue in list(self._queues.values()):
            queue.set_min_log_offset(log_offset)

    def delete_files_before_min(self) -> int:
        """Remove files that lie wholly below their queue's minimum; returns how many."""
        return sum(queue.delete_files_before_min() for queue in list(self._queues.values()))

    def delete_topic(self, topic: str) -> int:
        """Remove all queues of a topic with their files (the log keeps its records); returns how
        many queues.
        """
        keys = [key for key in list(self._queues) if key[0] == topic]
        for key in keys:
            self._drop(key)
        if keys:
            self._files.remove_dir(f"{self.root}/{topic}")
        return len(keys)

    def begin_anew(self, topic: str) -> bool:
        """The topic was deleted: nobody finds any more what its queues have of it, or still get.
        True when they have nothing else. The disk stays as it is.
        """
        since = self._lives.since(topic)
        return all(
            [
                queue.begin_anew(since, self._lives.begin(topic, queue_id))
                for name, queue_id, queue in self.all()
                if name == topic
            ]
        )

    def settle_deleted(self) -> None:
        """After a recovery: what is only of topics that were deleted goes."""
        for topic in self.topics():
            if topic not in self._lives:
                continue
            if self.begin_anew(topic):
                self.detach_topic(topic)
            since = self._lives.since(topic)
            for key in [key for key in list(self._queues) if key[0] == topic]:
                queue = self._queues[key]
                if queue.max_log_offset <= since and queue.max_offset < self._lives.begin(*key):
                    self._drop(key)  # the new topic's messages do not follow what it has

    def detach_topic(self, topic: str) -> int:
        """Forget all queues of a topic and move their files to a ``deleted-`` directory: quick, one
        rename. Returns how many queues.
        """
        keys = [key for key in list(self._queues) if key[0] == topic]
        for key in keys:
            queue = self._queues.pop(key)
            if isinstance(queue, ExtendedQueue):
                queue.ext.delete()
            queue.close()
        if keys and self._files.exists(f"{self.root}/{topic}"):
            self._files.rename(f"{self.root}/{topic}", self._deleted_directory(topic))
        return len(keys)

    def _deleted_directory(self, topic: str) -> str:
        """One that is not there yet."""
        ours = f"{self.root.rpartition('/')[0]}/{OURS}"
        names, number = set(self._files.list_dir(ours)), 0
        while f"{_PREFIX}{number}-{topic}" in names:  # ends: the names are finite
            number += 1
        return f"{ours}/{_PREFIX}{number}-{topic}"

    def flush_all(self) -> int:
        """Sync every queue that has something unsynced; returns how many were synced. May run
        beside appends.
        """
        due = [
            (topic, queue_id, queue)
            for topic, queue_id, queue in self.all()
            if not queue.is_flushed
        ]
        new_in = {topic for topic, queue_id, queue in due if self._flush(topic, queue_id, queue)}
        for topic in new_in:
            try:
                self._files.sync_dir(f"{self.root}/{topic}")
            except StoreMissing:
                if topic in self.topics():  # else it was deleted meanwhile
                    raise
        if new_in:
            self._files.sync_dir(self.root)
        return len(due)

    def _flush(self, topic: str, queue_id: int, queue: ConsumeQueue) -> bool:
        try:
            return queue.flush()
        except StoreMissing:
            if self._queues.get((topic, queue_id)) is queue:  # else it was deleted meanwhile
                raise
            return False

    def close(self) -> None:
        """Let go of open files; the table is not used afterwards."""
        self._cache.close()

    def _make(self, topic: str, queue_id: int) -> ConsumeQueue:
        directory, ext = f"{self.root}/{topic}/{queue_id}", self._ext
        if ext is not None:
            units = f"{ext.root}/{topic}/{queue_id}"
            if ext.enabled or self._files.is_dir(units):
                unit_files = ConsumeQueueExt(units, ext.file_bytes, self._files, self._cache)
                return ExtendedQueue(
                    directory,
                    self._entries_per_file,
                    self._files,
                    self._cache,
                    unit_files,
                    ext.enabled,
                )
        return ConsumeQueue(directory, self._entries_per_file, self._files, self._cache)

    def _max_of(self, key: tuple[str, int]) -> int:
        queue = self._queues.get(key)
        return queue.max_offset if queue is not None else 0

    def _drop(self, key: tuple[str, int]) -> None:
        queue = self._queues.pop(key, None)
        if queue is not None:
            queue.delete()
