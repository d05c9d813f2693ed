"""Bringing a store to life: its parts are built here, and where they begin and end is settled
(docs/file-format.md#recovery).

    1 finish a cut that was begun     2 choose where reading begins    3 read (``recovery``)
    4 cut what lies behind the end    5 sync                           6 begin an epoch where needed

Cutting the end off a copy's log, without which another master was elected, leaves a mark while it
may be half done:

    rmq_ray/truncating      one line: the log offset at which the log is to end

    mark, durable -> our checkpoint removed -> queues, index, windows, quarantine, log, epochs cut
    -> new checkpoint -> mark removed

Decides: whether our checkpoint is valid, RocketMQ's rule where it is not, when an epoch begins, the
order of a cut. Does not decide: what is a valid record, where the log ends (``recovery``), where to
cut (``protocol.election.replication``).

Invariants: nothing is cut before all of the log behind the beginning was read, or before its mark
is on disk; the mark stays until everything that was derived from the cut log is cut too; each step
can be done again; on return everything below the log's end is synced.
"""

from __future__ import annotations

import logging
import zlib
from dataclasses import replace

from rmq_ray.codec.record import HEADER_BYTES, RECORD_BYTES_OVER_BODY_MAX
from rmq_ray.codec.store_files import COMMIT_LOG, OURS
from rmq_ray.config import BODY_BYTES_MAX, FlushMode
from rmq_ray.errors import LogDiverged, StoreCorrupt, StoreError, StoreFull, StoreMissing
from rmq_ray.files import FileSystem
from rmq_ray.store.frames.deduplication import DeduplicationCache
from rmq_ray.store.frames.frame_tracker import FrameTracker
from rmq_ray.store.frames.log_scan import NEVER_STRICT, scan_buffer
from rmq_ray.store.log.commit_log import CommitLog
from rmq_ray.store.log.log_lineage import (
    EpochFile,
    LogOrigin,
    absolve,
    judge,
    read_origin,
    write_origin,
)
from rmq_ray.store.log.quarantine import Quarantine
from rmq_ray.store.log.segment_chain import Segment, SegmentChain, bytes_behind
from rmq_ray.store.log.transient_pool import TransientPool
from rmq_ray.store.queue.bit_maps import bit_maps_from
from rmq_ray.store.queue.consume_queue_ext import ExtSettings
from rmq_ray.store.queue.dispatcher import Dispatcher
from rmq_ray.store.queue.index_service import IndexService
from rmq_ray.store.queue.queue_table import QueueTable, deleted_topics
from rmq_ray.store.queue.visibility import Visibility
from rmq_ray.store.reading.log_reader import LogReader
from rmq_ray.store.reading.retention import Retention
from rmq_ray.store.recovery.checkpoint import (
    RecoveryPoint,
    StoreCheckpoint,
    load_recovery_point,
    load_store_checkpoint,
)
from rmq_ray.store.recovery.recovery import LogRecovery, RecoveryReport, check_reaches
from rmq_ray.store.recovery.store_parts import StoreParts, Surroundings

logger = logging.getLogger("rmq_ray.store")

SENT_AGAIN_MS = 20_000
"""A producer whose time-out is no longer ends its tries within this time."""
_RECOVERED_SEGMENTS = 3  # RocketMQ reads the last three after a clean stop


def restart(
    around: Surroundings, identity: str, unclean: bool
) -> tuple[StoreParts, RecoveryReport]:
    """Recover the store. Slow; on return it can be read and appended to."""
    started_ms = around.clock.monotonic_ms()
    config, files, root = around.config, around.files, around.root
    around.lives.load()
    chain = _load_chain(around)
    cut_at = resume_truncation(files, root, chain)
    report = RecoveryReport(clean=not unclean)
    ours = _our_checkpoint(around, identity)
    same_boot = ours is not None and ours.boot_id == around.boot_id != ""
    durable = ours.log_position if ours is not None and (ours.synced or same_boot) else 0
    check_reaches(chain, durable)
    queues = _load_queues(around)
    if ours is not None:
        ours = replace(ours, queues=_expected(around, ours, queues))
    begin, index = _choose_begin(around, chain, queues, ours if durable else None, report)
    parts = _build(around, chain, queues, index)
    if cut_at is not None:
        cut_lists(cut_at, parts.epochs, parts.quarantine, index)
    if ours is not None and ours.deduplication is not None:
        parts.windows.restore(ours.deduplication)
    seen = max(durable, queues.max_log_offset())
    scan = LogRecovery(
        parts,
        FrameTracker(parts.windows),
        config,
        durable=durable,
        same_boot=same_boot,
        is_blind=ours is None,
        strict_from=_ours_from(parts.epochs),
    )
    report.end = scan.run(begin, report)
    _cut(parts, report)
    _sync(chain, min(begin, durable), report.end)
    parts.log.set_end(report.end)
    if not around.follows or cut_at is not None:
        around.lives.cut_to(report.end)
        around.lives.save(around.lives.snapshot())
    queues.settle_deleted()
    # the epoch is on disk before the first record, and long before anything notes that record
    ever_written = seen > 0 or parts.epochs.current > 0
    power_lost = (
        unclean and not same_boot and config.flush is FlushMode.ASYNC_FLUSH and ever_written
    )
    report.sound = judge(files, root, power_lost or (cut_at is None and report.end < durable))
    _settle_epoch(around, identity, parts.epochs, report, report.end < seen)
    _make_room(chain, report.end)
    parts.visibility.moved_to(report.end, report.last_ms, report.last_record)
    report.duration_ms = around.clock.monotonic_ms() - started_ms
    logger.info("store %s recovered: %s", root, report)
    return parts, report


def _load_chain(around: Surroundings) -> SegmentChain:
    config, root = around.config, around.root
    chain = SegmentChain(
        f"{root}/{COMMIT_LOG}",
        f"{root}/{OURS}",
        config.segment_bytes,
        around.files,
        around.clock,
        config.preallocate,
    )
    chain.load()
    return chain


def _load_queues(around: Surroundings) -> QueueTable:
    config, root = around.config, around.root
    ext = ExtSettings(
        f"{root}/consumequeue_ext", config.consume_queue_ext_bytes, config.consume_queue_ext
    )
    queues = QueueTable(
        f"{root}/consumequeue",
        config.consume_queue_entries,
        around.files,
        ext=ext,
        lives=around.lives,
    )
    queues.load_all()
    return queues


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
    dispatcher = Dispatcher(queues, index, around.rules)
    if around.rules.bit_mapper is not None and config.consume_queue_ext:
        dispatcher.bit_maps = bit_maps_from(log, around.rules.bit_mapper)
    return StoreParts(
        chain,
        log,
        queues,
        index,
        dispatcher,
        Visibility(log, dispatcher, config.flush is FlushMode.SYNC_FLUSH),
        DeduplicationCache(config.deduplication_frames, config.deduplication_keep_ms),
        epochs,
        quarantine,
        LogReader(log, queues, quarantine, files.memory_bytes()),
        Retention(chain, queues, index, files, config, around.clock),
        around.lives,
    )


def _our_checkpoint(around: Surroundings, identity: str) -> RecoveryPoint | None:
    """The checkpoint; None when it is of another store."""
    found = load_recovery_point(around.files, f"{around.root}/{OURS}/checkpoint")
    if found is not None and found.identity != identity:
        logger.warning(
            "the checkpoint in %s belongs to store %s: not used", around.root, found.identity
        )
        return None
    return found


def _expected(
    around: Surroundings, ours: RecoveryPoint, queues: QueueTable
) -> dict[tuple[str, int], int]:
    """The checkpoint's queues, without those that are not there because their topics were deleted
    after it. Where that is in doubt they count as missing, and everything is read.
    """
    lives = around.lives
    gone = {topic for topic, _ in deleted_topics(around.root, around.files)}

    def is_expected(topic: str, queue_id: int, offset: int) -> bool:
        if topic not in lives:
            return topic not in gone
        if queues.find(topic, queue_id) is not None or offset > lives.begin(topic, queue_id):
            return True
        return topic not in gone and ours.log_position > lives.since(topic)

    return {key: offset for key, offset in ours.queues.items() if is_expected(*key, offset)}


def _choose_begin(
    around: Surroundings,
    chain: SegmentChain,
    queues: QueueTable,
    ours: RecoveryPoint | None,
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
    theirs = load_store_checkpoint(around.files, f"{around.root}/checkpoint")
    unclean = not report.clean
    index = _load_index(around, theirs.index_ms if unclean else None)
    queues_end = queues.recover_all()
    if not chain.end:
        return 0, index
    report.way = "RocketMQ's rule"
    return rocketmq_begin(chain, theirs, queues_end, unclean, BODY_BYTES_MAX), index


def _load_index(around: Surroundings, limit_ms: int | None) -> IndexService | None:
    config = around.config
    if not config.index_enabled:
        return None
    index = IndexService(
        f"{around.root}/index", config.index_slots, config.index_items, around.files, around.clock
    )
    index.load(limit_ms)
    return index


def _log_agrees(chain: SegmentChain, ours: RecoveryPoint) -> bool:
    """Whether the log is still the one of the checkpoint: its last record is where it was."""
    if not chain.begin <= ours.log_position <= chain.end:
        return False
    log_offset, crc = ours.last_record
    segment = chain.find(log_offset)
    if log_offset < 0 or segment is None:
        return log_offset < chain.begin or not chain.end
    return zlib.crc32(segment.read(log_offset, HEADER_BYTES)) == crc


def rocketmq_begin(
    chain: SegmentChain,
    theirs: StoreCheckpoint,
    queues_end: int,
    unclean: bool,
    body_bytes_max: int,
) -> int:
    """Where RocketMQ would begin (docs/file-format.md#recovery), but never behind what the queues
    hold, nor behind a frame that its producer may send again.
    """
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
                if stored_ms <= theirs.trusted_ms - SENT_AGAIN_MS
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
    report.cut_bytes = bytes_behind(parts.chain.segments(), report.end)
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
    if origin.copied:
        # after the epoch: until it is on disk the log must not look like one that was written here
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


def mark_truncation(files: FileSystem, root: str, log_offset: int) -> None:
    """From now on the log ends at ``log_offset``, whatever happens; our checkpoint speaks of a
    longer one and goes. Durable on return.
    """
    files.write_whole(_mark_path(root), b"%d\n" % log_offset)
    files.remove_whole(f"{root}/{OURS}/checkpoint")


def pending_truncation(files: FileSystem, root: str) -> int | None:
    """Where a cut that was begun must cut; None when there is none. ``StoreCorrupt`` when the mark
    is not in form.
    """
    try:
        text = files.read_whole(_mark_path(root)).decode("ascii", "replace").strip()
    except StoreMissing:
        return None
    if not text.isdigit():
        raise StoreCorrupt(
            f"{_mark_path(root)} names no log offset; restore the store from a copy",
            _mark_path(root),
            0,
        )
    return int(text)


def resume_truncation(files: FileSystem, root: str, chain: SegmentChain) -> int | None:
    """At a start, before anything else is read: finish the cut of the log; where it ends now, None
    when no cut was begun.
    """
    log_offset = pending_truncation(files, root)
    if log_offset is not None:
        logger.warning("the log at %s was being cut at %d: it is cut again", root, log_offset)
        mark_truncation(files, root, log_offset)
        if chain.begin <= log_offset < chain.end:
            chain.cut_from(log_offset)
    return log_offset


def cut_lists(
    log_offset: int, epochs: EpochFile, quarantine: Quarantine, index: IndexService | None
) -> None:
    """Epochs, quarantine and index know nothing of what lies at or behind ``log_offset`` any
    more.
    """
    epochs.cut_from(log_offset)
    quarantine.cut_from(log_offset)
    if index is not None:
        index.cut_from(log_offset)


def finish_truncation(files: FileSystem, root: str) -> None:
    """A checkpoint of the shorter log is on disk."""
    if files.exists(_mark_path(root)):
        files.remove_whole(_mark_path(root))


def _mark_path(root: str) -> str:
    return f"{root}/{OURS}/truncating"


def give_up_unsynced(around: Surroundings, parts: StoreParts) -> None:
    """What the log's failure left unsynced may be lost, of which ASYNC_FLUSH has acknowledged
    some: another copy is to be preferred.
    """
    parts.forget_unsynced()
    log = parts.log
    if (
        log.failure is None
        or log.durable >= log.end
        or around.config.flush is not FlushMode.ASYNC_FLUSH
    ):
        return
    try:
        judge(around.files, around.root, lost=True)
    except StoreError as error:
        logger.error(
            "the disk of %s takes no note that acknowledged bytes may be lost: %s",
            around.root,
            error,
        )
