"""Looking at a store's files without a broker: is everything in it as the format demands, and what
is in it?

``verify`` reads all of it once, in log order:

    1 records      structure, CRC, own position; whole frames                   log_walk, log_scan
    2 queues       every entry agrees with its record, queue offsets are dense  queue_check
    3 index        every item points to a record that has a key with its hash   index_check
    4 the rest     identity, epochs, quarantine, both checkpoints               here

No check sees a changed FLAG, BORNTIMESTAMP, BORNHOST, STOREHOST, RECONSUMETIMES,
PREPAREDTRANSACTIONOFFSET or a user property's value: the format has no CRC over them and nothing is
derived from them.

Decides: what is a fault. What a broker has found before and listed in ``rmq_ray/quarantine`` is
counted, no fault; nor are records of deleted topics. Does not decide: how it is repaired (a
broker's start rebuilds queues and index from the log). Invariants: the store is not changed; memory
does not grow with it; ``verify`` holds the store's locks while it reads, so that no broker starts
meanwhile; ``dump`` takes none and may look at a running broker's store.
"""

from __future__ import annotations

import json
import zlib
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from rmq_ray.arrays import Array
from rmq_ray.codec.record import HEADER_BYTES, decode_record
from rmq_ray.codec.record_properties import collect_facts, stored_facts
from rmq_ray.codec.record_row import record_row
from rmq_ray.codec.store_files import COMMIT_LOG, CONSUME_QUEUE, OURS
from rmq_ray.errors import StoreCorrupt, StoreError, StoreInUse, StoreMissing
from rmq_ray.files import DirectoryLock
from rmq_ray.model.message import SysFlag
from rmq_ray.store.frames.frame_marks import own_marks, without_marks
from rmq_ray.store.frames.frame_tracker import members_from
from rmq_ray.store.frames.log_scan import ScannedRecords
from rmq_ray.store.fsck.index_check import IndexCheck
from rmq_ray.store.fsck.log_walk import LogWalk, Stretch
from rmq_ray.store.fsck.queue_check import QueueCheck
from rmq_ray.store.fsck.read_only import FaultList, ReadOnlyFiles
from rmq_ray.store.log.log_lineage import EpochFile
from rmq_ray.store.log.quarantine import Quarantine
from rmq_ray.store.recovery.checkpoint import (
    RecoveryPoint,
    decode_recovery_point,
    load_store_checkpoint,
)
from rmq_ray.store.recovery.redispatch import collect_hashes, rows_by_queue
from rmq_ray.store.tables.topic_lives import TopicLives

INDEX = "index"


@dataclass(slots=True)
class StoreReport:
    """What ``verify`` counted. Positions are log offsets; ``clean``: the last broker stopped in
    order; ``fault_count`` >= len(``faults``).
    """

    path: str
    broker: str = ""
    identity: str = ""
    clean: bool = True
    epoch: int = 0
    begin: int = 0
    end: int = 0
    segments: int = 0
    segment_bytes: int = 0
    records: int = 0
    frames: int = 0
    queues: int = 0
    queue_entries: int = 0
    unqueued: int = 0
    """Records whose queue is gone, mostly of deleted topics."""
    index_files: int = 0
    index_items: int = 0
    unindexed: int = 0
    """Keys of records that no index item stands for."""
    quarantined: int = 0
    """Broken stretches that a broker has listed before."""
    fault_count: int = 0
    faults: list[str] = field(default_factory=list)
    """A sentence each, with the place; at most 1,000."""

    def as_row(self) -> dict[str, Any]:
        """Everything but the sentences, for printing."""
        names = [
            name for name in self.__dataclass_fields__ if name not in ("faults", "fault_count")
        ]
        return {
            **{name: getattr(self, name) for name in names},
            "bytes": self.end - self.begin,
            "faults": self.fault_count,
        }


def verify(path: str, *, index_slots: int | None = None) -> StoreReport:
    """Check the whole store. ``index_slots``: of the index files, where it is not a quarter of
    their items and cannot be told.

    Raises ``StoreMissing`` where no store is, ``StoreInUse`` while a broker runs on it. Faults are
    in the report, never raised.
    """
    path = path.rstrip("/") or "/"
    files = ReadOnlyFiles()
    _require_store(path, files)
    locks = _lock(path, files)
    try:
        return _Verification(path, files, index_slots).run()
    finally:
        for lock in locks:
            lock.release()


def dump(
    path: str, topic: str | None = None, from_offset: int = 0, limit: int = 20
) -> list[dict[str, Any]]:
    """Up to ``limit`` records in log order, from the first one at or behind log offset
    ``from_offset`` on; broken bytes are stepped over.

    Rows are those of ``record_row``. Raises ``StoreMissing`` where no store is.
    """
    path = path.rstrip("/") or "/"
    files = ReadOnlyFiles()
    _require_store(path, files)
    wanted = None if topic is None else topic.encode()
    rows: list[dict[str, Any]] = []
    for stretch in LogWalk(path, files, FaultList()).stretches(from_offset):
        topics = stretch.records.topics()
        for row in (
            range(len(topics))
            if wanted is None
            else [row for row, name in enumerate(topics) if name == wanted]
        ):
            if len(rows) >= limit:
                return rows
            rows.append(
                record_row(decode_record(stretch.records.view, int(stretch.records.starts[row])))
            )
    return rows


class _Verification:
    """One run over one store."""

    def __init__(self, path: str, files: ReadOnlyFiles, index_slots: int | None) -> None:
        self._path = path
        self._files = files
        self._faults = FaultList()
        self._report = StoreReport(path, clean=not files.exists(f"{path}/abort"))
        self._walk = LogWalk(path, files, self._faults)
        self._ours = self._read_ours()
        known = self._ours.queues if self._ours is not None else None
        lives = TopicLives(path, files)
        try:
            lives.load()
        except StoreError as error:
            self._faults.add(str(error))
        self._queues = QueueCheck(
            f"{path}/{CONSUME_QUEUE}", files, known, self._walk.broken, self._faults, lives
        )
        self._index = IndexCheck(
            f"{path}/{INDEX}", files, index_slots, self._walk.broken, self._faults
        )
        self._cut_frame: tuple[int, str] | None = None
        self._last: tuple[int, int] | None = None

    def run(self) -> StoreReport:
        """Everything; see the module."""
        report, walk = self._report, self._walk
        self._check_identity()
        self._index.skip_until(walk.begin)
        for stretch in walk.stretches():
            self._check_frames(stretch)
            self._check_records(stretch.records)
        self._queues.finish(walk.begin, walk.end)
        self._index.finish(walk.end, report.clean)
        self._check_broken()
        self._check_checkpoints()
        self._check_epochs(walk.end)
        report.begin, report.end = walk.begin, walk.end
        report.segments, report.segment_bytes = len(walk.segments), walk.segment_bytes
        report.queues, report.queue_entries, report.unqueued = (
            self._queues.queues,
            self._queues.entries,
            self._queues.unqueued,
        )
        report.index_files, report.index_items, report.unindexed = (
            self._index.file_count,
            self._index.items,
            self._index.unindexed,
        )
        report.fault_count, report.faults = self._faults.count, self._faults.listed
        return report

    def _check_frames(self, stretch: Stretch) -> None:
        """Every mark's records are there. What broken bytes took is not a fault of its own."""
        records = stretch.records
        self._cut_frame = None
        marks = own_marks(records)
        members = np.minimum(members_from(records, marks.rows), marks.counts)
        self._report.frames += int(np.count_nonzero(members == marks.counts))
        for number in np.flatnonzero(members < marks.counts).tolist():
            row, have = int(marks.rows[number]), int(members[number])
            fault = (
                f"log offset {records.base + int(records.starts[row])}: a frame of "
                f"{int(marks.counts[number])} records has only {have}"
            )
            if row + have == len(records) and not stretch.whole:
                self._cut_frame = (records.base + int(records.ends[-1]), fault)
            else:
                self._faults.add(fault)

    def _check_records(self, records: ScannedRecords) -> None:
        self._report.records += len(records)
        base, end = records.base, records.base + int(records.ends[-1])
        keys: list[Array] = []
        for (name, queue_id), members in rows_by_queue(records.topics(), records.queue_ids).items():
            topic = name.decode("utf-8", "replace")
            group = records.select(members)
            facts = collect_facts(group.view, without_marks(group), group.ends, stored_facts)
            self._queues.add(topic, queue_id, group, facts)
            hashes: list[Array] = []
            rows: list[Array] = []
            collect_hashes(topic, facts, members, hashes, rows)
            for found, of in zip(hashes, rows, strict=True):
                indexed = (
                    records.sys_flags[of] & SysFlag.TRANSACTION_MASK
                ) != SysFlag.TRANSACTION_ROLLBACK
                keys.append((records.starts[of] << 32 | found.astype(np.int64))[indexed])
        self._index.add(base, end, np.concatenate(keys) if keys else np.zeros(0, np.int64))
        self._last = base + int(records.starts[-1]), int(records.store_ms[-1])

    def _check_broken(self) -> None:
        """Broken stretches and what stands behind the log's end."""
        quarantine = Quarantine(f"{self._path}/{OURS}/quarantine", self._files)
        quarantine.load()
        listed = [(start, start + size) for start, size, _ in quarantine.entries()]
        self._report.quarantined = len(listed)
        for broken in self._walk.broken:
            if not any(start <= broken.start and broken.end <= end for start, end in listed):
                self._faults.add(
                    f"log offset {broken.start}: {broken.end - broken.start} bytes are no "
                    f"record: {broken.why}"
                )
        walk = self._walk
        if self._cut_frame is not None and self._cut_frame[0] == walk.end:
            self._faults.add(
                f"{self._cut_frame[1]}: the log ends behind them, a broker's start removes them"
            )
        if walk.tail_bytes:
            self._faults.add(
                f"log offset {walk.end}: {walk.tail_bytes} bytes behind the log's end are no "
                f"record (a torn tail): a broker's start removes them"
            )

    def _check_identity(self) -> None:
        path = f"{self._path}/{OURS}/identity"
        if self._files.exists(
            path
        ):  # not there: written by Apache RocketMQ, or a copy of its part of the files
            try:
                values = json.loads(self._files.read_whole(path))
                self._report.identity, self._report.broker = (
                    str(values["identity"]),
                    str(values["broker_name"]),
                )
            except (ValueError, LookupError, TypeError) as error:
                self._faults.add(f"{path} is not an identity: {error}")

    def _check_epochs(self, log_end: int) -> None:
        epochs = EpochFile(f"{self._path}/{OURS}/epochs", self._files)
        try:
            epochs.load()
        except StoreCorrupt as error:
            self._faults.add(str(error))
        self._report.epoch = epochs.current
        late = [epoch for epoch, start in epochs.entries if start > log_end]
        if late:
            self._faults.add(
                f"{self._path}/{OURS}/epochs: epoch {late[0]} begins behind the log's end {log_end}"
            )

    def _read_ours(self) -> RecoveryPoint | None:
        path = f"{self._path}/{OURS}/checkpoint"
        if not self._files.exists(path):
            return None
        found = decode_recovery_point(self._files.read_whole(path))
        if found is None:
            self._faults.add(f"{path} is damaged; a broker's start goes without it, in more time")
        return found

    def _check_checkpoints(self) -> None:
        """Both tell of a log that is really there."""
        walk, ours = self._walk, self._ours
        last_ms = self._last[1] if self._last else 0
        times = load_store_checkpoint(self._files, f"{self._path}/checkpoint")
        for name, at_ms in (
            ("log", times.log_ms),
            ("queues", times.queues_ms),
            ("index", times.index_ms),
        ):
            if at_ms < 0 or (at_ms > last_ms and self._last is not None):
                self._faults.add(
                    f"{self._path}/checkpoint: the time of the {name}, {at_ms}, is not that "
                    f"of a record (the last was stored at {last_ms})"
                )
        if ours is None:
            return
        path = f"{self._path}/{OURS}/checkpoint"
        if self._report.identity and ours.identity != self._report.identity:
            self._faults.add(
                f"{path} belongs to store {ours.identity}, this is {self._report.identity}"
            )
        if not ours.log_position <= walk.end:
            self._faults.add(
                f"{path} knows the log up to {ours.log_position}, it ends at {walk.end}: "
                f"records were lost"
            )
        elif ours.last_record[0] >= walk.begin and not self._is_last_record(*ours.last_record):
            self._faults.add(
                f"{path}: the record at log offset {ours.last_record[0]} is not the one that "
                f"it remembers"
            )

    def _is_last_record(self, log_offset: int, crc: int) -> bool:
        for segment in self._walk.segments:
            if segment.start <= log_offset < segment.end:
                return zlib.crc32(segment.read(log_offset, HEADER_BYTES)) == crc
        return False


def _require_store(path: str, files: ReadOnlyFiles) -> None:
    if files.is_dir(f"{path}/{COMMIT_LOG}"):
        return
    stores = (
        [name for name in files.list_dir(path) if files.is_dir(f"{path}/{name}/{COMMIT_LOG}")]
        if files.is_dir(path)
        else []
    )
    hint = (
        f"; it holds the stores {', '.join(f'{path}/{name}' for name in stores)}"
        if stores
        else "; give the directory of one broker's store"
    )
    raise StoreMissing(f"{path} is no store, it has no {COMMIT_LOG}/{hint}", path)


def _lock(path: str, files: ReadOnlyFiles) -> list[DirectoryLock]:
    """Both of the store's locks; a lock file that is not there is not made."""
    locks: list[DirectoryLock] = []
    try:
        locks.append(files.lock_directory(path))
        if files.exists(f"{path}/lock"):
            locks.append(files.lock_first_byte(f"{path}/lock"))
    except StoreInUse:
        for lock in locks:
            lock.release()
        raise StoreInUse(
            f"a broker runs on the store {path}: stop it first (`rmq-ray down`), or verify a copy",
            path,
        ) from None
    return locks
