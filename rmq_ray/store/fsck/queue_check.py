"""Do the consume queues say what the log says? Every record against its entry, every entry against
a record.

    log     ... record (topic, queue, offset n) ...
    queue   entry 0 | entry 1 | ... | entry n | ...

Entry n must be (its log offset, its size, its tags code). An entry that no record claimed must be
blank, or stand for a record that retention removed or that lies in bytes known to be broken.

Decides: which of the two lies where they disagree is not decided; both are named. A topic that was
deleted leaves records without a queue, and one made anew afterwards goes on behind them (where
Apache RocketMQ did it, it begins at 0 again): neither is a fault.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from rmq_ray.arrays import Array
from rmq_ray.codec.record_properties import ManyFacts
from rmq_ray.codec.store_files import BLANK_SIZE, ENTRIES, ENTRY_BYTES
from rmq_ray.errors import StoreCorrupt, StoreError
from rmq_ray.files import FileCache, FileSystem
from rmq_ray.model.message import SysFlag
from rmq_ray.model.topics import CODED_TOPICS, QUEUE_ID_MAX, is_storable
from rmq_ray.store.frames.log_scan import ScannedRecords
from rmq_ray.store.fsck.log_walk import Broken
from rmq_ray.store.fsck.read_only import FaultList
from rmq_ray.store.queue.consume_queue import ConsumeQueue
from rmq_ray.store.queue.consume_queue_ext import ADDRESS_MAX
from rmq_ray.store.tables.topic_lives import TopicLives

_ENTRIES_A_READ = 65_536
_NAMED_MAX = 10  # entries named one by one for each run of records


@dataclass(slots=True)
class _Checked:
    """One queue: ``first`` and ``expected`` are the queue offsets of the first record seen and of
    the next; -1 = none seen.
    """

    queue: ConsumeQueue
    first: int = -1
    expected: int = -1
    matched: int = 0
    faults: FaultList = field(default_factory=FaultList)


class QueueCheck:
    """``broken``: filled by the walk while it goes on. ``known``: next offsets of all queues as our
    last checkpoint has them. ``lives``: which topics were deleted.
    """

    def __init__(
        self,
        root: str,
        files: FileSystem,
        known: Mapping[tuple[str, int], int] | None,
        broken: Sequence[Broken],
        faults: FaultList,
        lives: TopicLives,
    ) -> None:
        self._root = root
        self._lives = lives
        self._deleted = 0
        self._files = files
        self._known = known
        self._broken = broken
        self._faults = faults
        self._cache = FileCache(files, read_only=True)
        self._unreadable: set[tuple[str, int]] = set()
        self._queues = self._load()
        self._without: Counter[tuple[str, int]] = Counter()

    @property
    def queues(self) -> int:
        """How many queues are on disk."""
        return len(self._queues)

    @property
    def entries(self) -> int:
        """Entries that agree with a record."""
        return sum(checked.matched for checked in self._queues.values())

    @property
    def unqueued(self) -> int:
        """Records whose queue is not there (mostly of deleted topics)."""
        return self._deleted + sum(self._without.values())

    def max_offset(self, topic: str, queue_id: int) -> int:
        """The queue offset that the next record would get; 0 where there is no queue."""
        checked = self._queues.get((topic, queue_id))
        return checked.queue.max_offset if checked is not None else 0

    def add(self, topic: str, queue_id: int, group: ScannedRecords, facts: ManyFacts) -> None:
        """Records of one queue, in log order."""
        kind = group.sys_flags & SysFlag.TRANSACTION_MASK
        rows = np.flatnonzero(
            (kind == SysFlag.TRANSACTION_NOT) | (kind == SysFlag.TRANSACTION_COMMIT)
        )
        old = int(np.count_nonzero(group.starts[rows] + group.base < self._lives.since(topic)))
        self._deleted += old
        rows = rows[old:]
        if not len(rows) or (topic, queue_id) in self._unreadable:
            return
        checked = self._queues.get((topic, queue_id))
        if checked is None:
            self._without[topic, queue_id] += len(rows)
            return
        entries = np.empty(len(group), ENTRIES)
        entries["log_offset"] = group.starts + group.base
        entries["size"] = group.ends - group.starts
        entries["code"] = facts.tag_codes
        entries, offsets = entries[rows], group.queue_offsets[rows]
        breaks = (np.flatnonzero(np.diff(offsets) != 1) + 1).tolist()
        for begin, end in zip([0, *breaks], [*breaks, len(offsets)], strict=True):
            self._check_run(topic, queue_id, checked, int(offsets[begin]), entries[begin:end])

    def finish(self, log_begin: int, log_end: int) -> None:
        """After the last record: entries that no record claimed, records that no queue has, queues
        behind the checkpoint.
        """
        for (topic, queue_id), checked in sorted(self._queues.items()):
            queue, name = checked.queue, f"{topic}/{queue_id}"
            begin = queue.min_offset
            if checked.expected < 0:
                self._check_unclaimed(name, checked, begin, queue.max_offset, log_begin, log_end)
            else:
                self._check_unclaimed(
                    name, checked, begin, min(checked.first, queue.max_offset), log_begin, log_end
                )
                self._check_unclaimed(
                    name, checked, checked.expected, queue.max_offset, log_begin, log_end
                )
            known = (self._known or {}).get((topic, queue_id), 0)
            if queue.max_offset < known:
                checked.faults.add(
                    f"consume queue {name} ends at {queue.max_offset}, the checkpoint knows "
                    f"{known} entries"
                )
            self._faults.add_all(checked.faults)
        for (topic, queue_id), count in sorted(self._without.items()):
            if not is_storable(topic, queue_id):
                self._faults.add(
                    f"{count} records name topic {topic!r} queue {queue_id}, which no broker "
                    f"stores: their headers are damaged",
                    count,
                )
            elif self._known is None or (topic, queue_id) in self._known:
                self._faults.add(
                    f"consume queue {topic}/{queue_id} is missing, the log has {count} of "
                    f"its records",
                    count,
                )

    def _check_run(
        self, topic: str, queue_id: int, checked: _Checked, first: int, entries: Array
    ) -> None:
        """Records with consecutive queue offsets from ``first`` on."""
        name = f"{topic}/{queue_id}"
        actual = np.frombuffer(checked.queue.read(first, len(entries)), ENTRIES)
        if checked.expected < 0:
            checked.first = first
        elif (
            first == 0
            and checked.expected > 0
            and len(actual)
            and actual["log_offset"][0] == entries["log_offset"][0]
        ):
            checked.first, checked.matched, checked.faults = (
                0,
                0,
                FaultList(),
            )  # the topic was deleted and made anew
        elif first > checked.expected:
            self._check_gap(name, checked, first, int(entries["log_offset"][0]))
        elif first < checked.expected:
            where = int(entries["log_offset"][0])
            checked.faults.add(
                f"record at log offset {where}: queue offset {first} of {name} was given "
                f"before, {checked.expected} follows"
            )
        self._compare(name, checked, first, entries, actual, topic not in CODED_TOPICS)
        checked.expected = first + len(entries)

    def _compare(
        self,
        name: str,
        checked: _Checked,
        first: int,
        entries: Array,
        actual: Array,
        has_code: bool,
    ) -> None:
        here = entries[: len(actual)]
        same = (here["log_offset"] == actual["log_offset"]) & (here["size"] == actual["size"])
        if (
            has_code
        ):  # the schedule topic's code is a time that depends on the broker's delay levels
            same &= (here["code"] == actual["code"]) | (actual["code"] <= ADDRESS_MAX)
        checked.matched += int(np.count_nonzero(same))
        for row in np.flatnonzero(~same)[:_NAMED_MAX].tolist():
            said, right = actual[row].tolist(), here[row].tolist()
            checked.faults.add(
                f"consume queue {name} entry {first + row} says (log offset, size, tags "
                f"code) {said}, its record says {right}"
            )
        more = len(same) - int(np.count_nonzero(same)) - _NAMED_MAX
        if more > 0:
            checked.faults.add(
                f"consume queue {name}: {more} more entries of {first} to "
                f"{first + len(same) - 1} differ from their records",
                more,
            )
        missing = len(entries) - len(actual)
        if missing:
            at = first + len(actual)
            checked.faults.add(
                f"consume queue {name} has no entries {at} to {at + missing - 1}, the log "
                f"has their records",
                missing,
            )

    def _check_gap(self, name: str, checked: _Checked, first: int, where: int) -> None:
        """Queue offsets [expected, first) have no record: right where broken bytes took them, or
        where blanks say that they are lost.
        """
        entries = np.frombuffer(
            checked.queue.read(checked.expected, min(first - checked.expected, _ENTRIES_A_READ)),
            ENTRIES,
        )
        if not len(entries) or not self._excused(entries).all():
            fault = (
                f"record at log offset {where}: queue offset {first} of {name} follows "
                f"{checked.expected - 1}"
            )
            checked.faults.add(f"{fault}, {first - checked.expected} records are missing")

    def _check_unclaimed(
        self, name: str, checked: _Checked, begin: int, end: int, log_begin: int, log_end: int
    ) -> None:
        """Entries [begin, end) that no record claimed."""
        for at in range(begin, end, _ENTRIES_A_READ):
            entries = np.frombuffer(checked.queue.read(at, min(_ENTRIES_A_READ, end - at)), ENTRIES)
            wrong = np.flatnonzero(~(self._excused(entries) | (entries["log_offset"] < log_begin)))
            for row in wrong[:_NAMED_MAX].tolist():
                log_offset = int(entries["log_offset"][row])
                what = (
                    f"behind the log's end {log_end}"
                    if log_offset >= log_end
                    else "where no record of this queue begins"
                )
                checked.faults.add(
                    f"consume queue {name} entry {at + row} points to log offset "
                    f"{log_offset}, {what}"
                )
            if len(wrong) > _NAMED_MAX:
                more = len(wrong) - _NAMED_MAX
                checked.faults.add(
                    f"consume queue {name}: {more} more entries from {at} on point to no record",
                    more,
                )

    def _excused(self, entries: Array) -> Array:
        """Blank entries, and those that point into broken bytes."""
        excused: Array = entries["size"] == BLANK_SIZE
        if self._broken:
            at = entries["log_offset"].astype(np.int64)
            index = (
                np.searchsorted(np.array([broken.start for broken in self._broken]), at, "right")
                - 1
            )
            excused |= (index >= 0) & (
                at < np.array([broken.end for broken in self._broken])[index]
            )
        return excused

    def _load(self) -> dict[tuple[str, int], _Checked]:
        """Every queue on disk. All files of a store have one size: the one that most of them
        have.
        """
        found: dict[tuple[str, int], dict[str, int]] = {}
        for topic in self._files.list_dir(self._root):
            for name in (
                self._files.list_dir(f"{self._root}/{topic}")
                if self._files.is_dir(f"{self._root}/{topic}")
                else ()
            ):
                directory = f"{self._root}/{topic}/{name}"
                if name.isdigit() and int(name) <= QUEUE_ID_MAX and is_storable(topic, int(name)):
                    paths = [f"{directory}/{file}" for file in self._files.list_dir(directory)]
                    found[topic, int(name)] = {path: self._files.file_size(path) for path in paths}
                else:
                    self._faults.add(f"{directory} is no consume queue; move it away")
        sizes = Counter(size for files in found.values() for size in files.values())
        file_bytes = sizes.most_common(1)[0][0] if sizes else ENTRY_BYTES
        return {
            key: checked
            for key, files in found.items()
            if (checked := self._open(key, files, file_bytes)) is not None
        }

    def _open(
        self, key: tuple[str, int], files: Mapping[str, int], file_bytes: int
    ) -> _Checked | None:
        queue = ConsumeQueue(
            f"{self._root}/{key[0]}/{key[1]}",
            max(1, file_bytes // ENTRY_BYTES),
            self._files,
            self._cache,
        )
        try:
            for path, size in files.items():
                if size != file_bytes:
                    raise StoreCorrupt(
                        f"{path} has {size} bytes, most consume queue files {file_bytes}",
                        path,
                        size,
                    )
            queue.load()
            if key[0] in self._lives:
                queue.begin_anew(self._lives.since(key[0]), self._lives.begin(*key))
        except StoreError as error:
            self._faults.add(f"consume queue {key[0]}/{key[1]} cannot be read: {error}")
            self._unreadable.add(key)
            return None
        return _Checked(queue)
