"""Bringing a store to life: which parts it has, where recovery begins, and what follows from where
it ends.

Decides: whether our checkpoint is valid, RocketMQ's rule where it is not (store-format 7), when an
epoch begins. Does not decide: what is a valid record, where the log ends (``recovery``). Called by:
message store (``recover``). Invariants: nothing is cut before all of the log behind the beginning
was read; on return everything below the log's end is synced.
"""

from __future__ import annotations

import logging
import zlib
from collections.abc import Callable
from dataclasses import dataclass, replace

from rmq_ray.clock import Clock
from rmq_ray.codec.record import HEADER_BYTES, RECORD_BYTES_OVER_BODY_MAX
from rmq_ray.config import FlushMode, StoreConfig
from rmq_ray.errors import LogDiverged, StoreFull
from rmq_ray.files import FileSystem
from rmq_ray.store.frames.deduplication import DeduplicationCache
from rmq_ray.store.frames.frame_tracker import FrameTracker
from rmq_ray.store.io.store_lock import COMMIT_LOG, OURS
from rmq_ray.store.log.commit_log import CommitLog
from rmq_ray.store.log.epoch_file import EpochFile
from rmq_ray.store.log.log_origin import LogOrigin, read_origin, write_origin
from rmq_ray.store.log.log_scan import NEVER_STRICT, scan_buffer
from rmq_ray.store.log.quarantine import Quarantine
from rmq_ray.store.log.segment import Segment
from rmq_ray.store.log.segment_chain import SegmentChain
from rmq_ray.store.log.transient_pool import TransientPool
from rmq_ray.store.queue.bit_maps import BitMapper, bit_maps_from
from rmq_ray.store.queue.dispatcher import Dispatcher
from rmq_ray.store.queue.extended_queue import ExtSettings
from rmq_ray.store.queue.index_service import IndexService
from rmq_ray.store.queue.queue_table import QueueTable
from rmq_ray.store.queue.topic_removal import deleted_topics
from rmq_ray.store.reading.reading import LogReader
from rmq_ray.store.reading.retention import Retention
from rmq_ray.store.recovery.checkpoint import Checkpoint, load_checkpoint
from rmq_ray.store.recovery.data_loss_marker import absolve, judge
from rmq_ray.store.recovery.recovery import (
    LogRecovery,
    RecoveryReport,
    check_reaches,
    has_bytes_from,
)
from rmq_ray.store.recovery.redispatch import Redispatcher
from rmq_ray.store.recovery.short_checkpoint import ShortCheckpoint, load_short_checkpoint
from rmq_ray.store.recovery.truncation import cut_lists, resume_truncation

logger = logging.getLogger("rmq_ray.store")

_RECOVERED_SEGMENTS = 3  # RocketMQ reads the last three after a clean stop
DelayOfLevel = Callable[[int], int | None]


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What a store is opened with. ``delay_ms``: milliseconds of a delay level; ``boot_id``: of the
    kernel that runs now.
    """

    config: StoreConfig
    files: FileSystem
    clock: Clock
    boot_id: str
    delay_ms: DelayOfLevel
    delay_level_max: int
    bit_mapper: BitMapper | None = None
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
    windows: DeduplicationCache
    epochs: EpochFile
    quarantine: Quarantine
    reader: LogReader
    retention: Retention

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


def restart(
    around: Surroundings, identity: str, unclean: bool
) -> tuple[StoreParts, RecoveryReport]:
    """Recover the store. Slow; on return it can be read and appended to."""
    started_ms = around.clock.monotonic_ms()
    config, files, root = around.config, around.files, around.root
    chain = SegmentChain(
        f"{root}/{COMMIT_LOG}",
        f"{root}/{OURS}",
        config.segment_bytes,
        files,
        around.clock,
        config.preallocate,
    )
    chain.load()
    cut_at = resume_truncation(files, root, chain)
    report = RecoveryReport(clean=not unclean)
    ours = _our_checkpoint(around, identity)
    same_boot = ours is not None and ours.boot_id == around.boot_id != ""
    durable = ours.log_position if ours is not None and (ours.synced or same_boot) else 0
    check_reaches(chain, durable)
    ext = ExtSettings(
        f"{root}/consumequeue_ext", config.consume_queue_ext_bytes, config.consume_queue_ext
    )
    queues = QueueTable(f"{root}/consumequeue", config.consume_queue_entries, files, ext=ext)
    queues.load_all()
    begin, index = _choose_begin(around, chain, queues, ours if durable else None, report)
    parts = _build(around, chain, queues, index)
    if cut_at is not None:
        cut_lists(cut_at, parts.epochs, parts.quarantine, index)
    if ours is not None and ours.deduplication is not None:
        parts.windows.restore(ours.deduplication)
    seen = max(durable, queues.max_log_offset())
    frames = FrameTracker(parts.windows, around.clock.now_ms() - config.deduplication_keep_ms)
    target = Redispatcher(queues, index, parts.dispatcher)
    scan = LogRecovery(
        chain,
        target,
        frames,
        parts.quarantine,
        config.body_bytes_max,
        durable=durable,
        same_boot=same_boot,
        check_crc=config.check_crc_on_recover,
        strict_from=_ours_from(parts.epochs),
    )
    report.end = scan.run(begin, report)
    _cut(parts, report)
    _sync(chain, min(begin, durable), report.end)
    parts.log.set_end(report.end)
    ever_written = (
        seen > 0 or parts.epochs.current > 0
    )  # the epoch is on disk before the first record, and long before anything notes that record
    power_lost = (
        unclean and not same_boot and config.flush is FlushMode.ASYNC_FLUSH and ever_written
    )
    report.sound = judge(files, root, power_lost or (cut_at is None and report.end < durable))
    _settle_epoch(around, identity, parts.epochs, report, report.end < seen)
    parts.windows.expire(around.clock.now_ms())
    _make_room(chain, report.end)
    report.duration_ms = around.clock.monotonic_ms() - started_ms
    logger.info("store %s recovered: %s", root, report)
    return parts, report


def _build(
    around: Surroundings, chain: SegmentChain, queues: QueueTable, index: IndexService | None
) -> StoreParts:
    config, files, ours = around.config, around.files, f"{around.root}/{OURS}"
    log = CommitLog(
        chain,
        TransientPool(config.transient_store_pool_size, config.transient_buffer_bytes)
        if config.gathers and not around.follows
        else None,
    )
    quarantine = Quarantine(f"{ours}/quarantine", files)
    quarantine.load()
    epochs = EpochFile(f"{ours}/epochs", files)
    epochs.load()
    dispatcher = Dispatcher(queues, index, around.delay_ms, around.delay_level_max)
    if around.bit_mapper is not None and config.consume_queue_ext:
        dispatcher.bit_maps = bit_maps_from(log, around.bit_mapper)
    return StoreParts(
        chain,
        log,
        queues,
        index,
        dispatcher,
        DeduplicationCache(config.deduplication_frames, config.deduplication_keep_ms),
        epochs,
        quarantine,
        LogReader(log, queues, quarantine, files.memory_bytes()),
        Retention(chain, queues, index, files, config, around.clock),
    )


def _our_checkpoint(around: Surroundings, identity: str) -> ShortCheckpoint | None:
    """The checkpoint, without topics that were deleted after it; None when it is of another
    store.
    """
    found = load_short_checkpoint(around.files, f"{around.root}/{OURS}/checkpoint")
    gone = {topic for topic, _ in deleted_topics(around.root, around.files)}
    if found is not None and gone:
        found = replace(
            found,
            queues={key: offset for key, offset in found.queues.items() if key[0] not in gone},
        )
    if found is not None and found.identity != identity:
        logger.warning(
            "the checkpoint in %s belongs to store %s: not used", around.root, found.identity
        )
        return None
    return found


def _choose_begin(
    around: Surroundings,
    chain: SegmentChain,
    queues: QueueTable,
    ours: ShortCheckpoint | None,
    report: RecoveryReport,
) -> tuple[int, IndexService | None]:
    """(where reading begins, the index brought to that point)."""
    if ours is not None and _log_agrees(chain, ours):
        if not queues.restore_maxima(ours.queues):
            report.way = "consume queues are missing: everything is read"
            queues.recover_all()
            return chain.begin, _load_index(around, None)
        index = _load_index(around, None)
        if index is None or index.restore(ours.index):
            report.way = "our checkpoint"
            report.last_record, report.last_ms = ours.last_record[0], ours.log_ms
            return ours.log_position, index
    theirs = load_checkpoint(around.files, f"{around.root}/checkpoint")
    unclean = not report.clean
    index = _load_index(around, theirs.index_ms if unclean else None)
    queues_end = queues.recover_all()
    if not chain.end:
        return 0, index
    report.way = "RocketMQ's rule"
    return rocketmq_begin(chain, theirs, queues_end, unclean, around.config.body_bytes_max), index


def _load_index(around: Surroundings, limit_ms: int | None) -> IndexService | None:
    config = around.config
    if not config.index_enabled:
        return None
    index = IndexService(
        f"{around.root}/index", config.index_slots, config.index_items, around.files, around.clock
    )
    index.load(limit_ms)
    return index


def _log_agrees(chain: SegmentChain, ours: ShortCheckpoint) -> bool:
    """Whether the log is still the one of the checkpoint: its last record is where it was."""
    if not chain.begin <= ours.log_position <= chain.end:
        return False
    log_offset, crc = ours.last_record
    segment = chain.find(log_offset)
    if log_offset < 0 or segment is None:
        return log_offset < chain.begin or not chain.end
    return zlib.crc32(segment.read(log_offset, HEADER_BYTES)) == crc


def rocketmq_begin(
    chain: SegmentChain, theirs: Checkpoint, queues_end: int, unclean: bool, body_bytes_max: int
) -> int:
    """Where RocketMQ would begin (store-format 7), but never behind what the queues hold."""
    used = [
        (segment, stored_ms)
        for segment, stored_ms in (
            (s, _first_store_ms(s, body_bytes_max)) for s in chain.segments()
        )
        if stored_ms
    ]
    if not used:
        return chain.begin
    begin = used[max(0, len(used) - _RECOVERED_SEGMENTS)][0].start
    if unclean:
        begin = next(
            (
                segment.start
                for segment, stored_ms in reversed(used)
                if stored_ms <= theirs.trusted_ms
            ),
            chain.begin,
        )
    reached = chain.find(max(queues_end - 1, chain.begin))
    return min(begin, reached.start if reached is not None else begin)


def _first_store_ms(segment: Segment, body_bytes_max: int) -> int:
    """Store time of a segment's first record; 0 when that is not valid."""
    view = memoryview(segment.read(segment.start, body_bytes_max + RECORD_BYTES_OVER_BODY_MAX))
    records = scan_buffer(
        view[: max(int.from_bytes(view[:4], "big"), 0)], segment.start, len(view), True
    ).records
    return int(records.store_ms[0]) if len(records) else 0


def _cut(parts: StoreParts, report: RecoveryReport) -> None:
    report.cut_bytes = has_bytes_from(parts.chain, report.end)
    if report.cut_bytes:
        logger.warning(
            "%d bytes behind the log's end at %d are removed", report.cut_bytes, report.end
        )
        parts.chain.cut_from(report.end)
    parts.queues.truncate_from(report.end)
    parts.queues.set_min_log_offset(parts.chain.begin)
    parts.windows.cut_from(report.end)


def _sync(chain: SegmentChain, begin: int, end: int) -> None:
    """What a killed process left in the page cache becomes durable."""
    for segment in chain.segments():
        if segment.end > begin and segment.start < end:
            segment.file.datasync()


def _make_room(chain: SegmentChain, end: int) -> None:
    """The segment for the next record, so that no append waits for it; a full disk is the append's
    to report.
    """
    try:
        chain.ensure(end)
    except StoreFull as error:
        logger.warning("no room for the next segment: %s", error)


def _ours_from(epochs: EpochFile) -> int:
    """Log offset from which on we wrote the log: where the first epoch began."""
    return epochs.entries[0][1] if epochs.entries else NEVER_STRICT


def _settle_epoch(
    around: Surroundings, identity: str, epochs: EpochFile, report: RecoveryReport, was_seen: bool
) -> None:
    """A copy has the epochs of its master. Else: the first one, where our writing begins; one after
    a stop that may have lost what was seen; one after a cut of what was seen; one where a copy is
    written to from now on.
    """
    origin = read_origin(around.files, around.root, identity)
    if around.follows:
        if not origin.copied:
            write_origin(
                around.files, around.root, LogOrigin(origin.log if report.end else "", True)
            )
        report.epoch = epochs.current
        return
    if around.new_epoch is not None:
        _begin_elected(around, epochs, report, around.new_epoch)
    elif epochs.current == 0 and not origin.copied:
        epochs.begin(report.end)
    elif (
        was_seen
        or origin.copied
        or (not report.clean and around.config.flush is FlushMode.ASYNC_FLUSH)
    ):
        epochs.begin(report.end)
        report.epoch_raised = True
    if (
        origin.copied
    ):  # after the epoch: until it is on disk the log must not look like one that was written here
        write_origin(around.files, around.root, LogOrigin(origin.log or identity, False))
    report.epoch = epochs.current


def _begin_elected(
    around: Surroundings, epochs: EpochFile, report: RecoveryReport, epoch: int
) -> None:
    """The epoch of an election; once begun it is not begun again, should this recovery be
    repeated.
    """
    if epochs.current > epoch or (epochs.current == epoch and epochs.entries[-1][1] != report.end):
        raise LogDiverged(
            f"the log at {around.root} has epoch {epochs.current} already and cannot begin "
            f"{epoch}; elect its master under a later one",
            epoch,
        )
    if epochs.current != epoch:
        epochs.begin(report.end, epoch)
        report.epoch_raised = True
    absolve(around.files, around.root)
    report.sound = True
