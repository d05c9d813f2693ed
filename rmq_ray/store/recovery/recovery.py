"""Reading a log from where recovery begins to its end, and what is made of it on the way
(docs/file-format.md#recovery).

    scan      valid records are queued and indexed again (what was there changes nothing), whole
              frames enter the windows of repeats
    end       at the first bytes that are no record; a frame that is not whole there goes too
    skip      below the last position known to be durable, and in the same boot, broken bytes that
              valid records follow are put into quarantine instead

Decides where the log ends. Does not decide: where reading begins and what follows from the end
(``restart``), validity of a record (``log_scan``), what is queued (``redispatch``).

Invariants: repeatable (a recovery that was interrupted starts again and ends the same), idempotent
(a second one changes nothing but the epoch).
"""

from __future__ import annotations

import logging
from dataclasses import dataclass, field

from rmq_ray.codec.record import BLANK_BYTES_MIN, OVERHEAD_BYTES, RECORD_BYTES_OVER_BODY_MAX
from rmq_ray.config import BODY_BYTES_MAX, StoreConfig
from rmq_ray.errors import StoreMissing
from rmq_ray.store.frames.frame_tracker import FrameTracker
from rmq_ray.store.frames.log_scan import ScannedRecords, ScanResult, Stop, scan_buffer
from rmq_ray.store.log.segment_chain import Segment, SegmentChain, find_record
from rmq_ray.store.recovery.redispatch import Redispatcher
from rmq_ray.store.recovery.store_parts import StoreParts

logger = logging.getLogger("rmq_ray.store")

BUFFER_BYTES = 8 << 20
FRAME_BYTES_MAX = 48 << 20  # a frame that a connection can bring has 16 MiB


@dataclass(slots=True)
class RecoveryReport:
    """What recovery found and did. Positions are log offsets."""

    clean: bool = True
    """The last stop was clean."""
    begin: int = 0
    """Where reading began."""
    end: int = 0
    """Where the log ends now."""
    records: int = 0
    """Valid records that were read."""
    cut_bytes: int = 0
    """Bytes of records and parts of records that were removed behind ``end`` (0 = there was
    nothing).
    """
    incomplete_frames: int = 0
    """Frames that lack records and stand because others follow."""
    quarantined: list[tuple[int, int, str]] = field(default_factory=list)
    """(log offset, bytes, fault) of broken stretches that were skipped."""
    last_record: int = -1
    """Where the last record begins; -1 = there is none."""
    last_ms: int = 0
    """Its store time."""
    epoch: int = 0
    epoch_raised: bool = False
    sound: bool = True
    """The log has all that was ever acknowledged or shown of it, as far as it can be told: no host
    died with bytes of it that were not on disk.
    """
    way: str = "new log"
    """Why reading began where it did."""
    duration_ms: float = 0.0


class LogRecovery:
    """Steps 2 and 3. ``durable``: everything below it was on disk once; ``same_boot``: no page of
    the cache was lost; ``strict_from``: we wrote what begins there or later; ``is_blind``: our
    checkpoint is gone, and nobody knows what was on disk.
    """

    def __init__(
        self,
        parts: StoreParts,
        frames: FrameTracker,
        config: StoreConfig,
        *,
        durable: int,
        same_boot: bool,
        strict_from: int,
        is_blind: bool,
    ) -> None:
        self._chain = chain = parts.chain
        self._target = Redispatcher(
            parts.queues,
            parts.index,
            parts.dispatcher,
            parts.quarantine,
            parts.lives,
            holds=True,
        )
        self._frames = frames
        self._quarantine = parts.quarantine
        self._record_max = BODY_BYTES_MAX + RECORD_BYTES_OVER_BODY_MAX
        self._durable = durable
        self._same_boot = same_boot
        self._is_blind = is_blind
        self._check_crc = config.check_crc_on_recover
        self._strict_from = strict_from
        self._buffer = bytearray(min(BUFFER_BYTES, max(chain.segment_bytes, OVERHEAD_BYTES)))

    def run(self, begin: int, report: RecoveryReport) -> int:
        """Read from ``begin`` to the end of the log; returns that end."""
        report.begin = begin
        end = self._read(begin, report)
        self._target.settle()
        return end

    def _read(self, at: int, report: RecoveryReport) -> int:
        while True:  # ends: at rises with every round, to the chain's end at the latest
            segment = self._chain.find(at)
            if segment is None or segment.end - at < BLANK_BYTES_MIN:
                return at
            following, end = self._read_from(segment, at, report)
            if following is None:
                return end
            at = following

    def _read_from(
        self, segment: Segment, at: int, report: RecoveryReport
    ) -> tuple[int | None, int]:
        """One buffer of records from ``at``; (where to go on or None, the end if there is nothing
        to go on to).
        """
        view = memoryview(self._buffer)[: min(len(self._buffer), segment.end - at)]
        view = view[: segment.file.pread_into(view, at - segment.start)]
        segment.file.read_ahead(at - segment.start + len(view), len(self._buffer))
        result = scan_buffer(view, at, self._record_max, self._check_crc, self._strict_from)
        records, stop = result.records, result.stop
        whole = at + len(view) >= segment.end
        if stop is Stop.MORE and whole:
            stop = Stop.BAD  # a record cannot cross the segment's end
        incomplete = self._frames.incomplete_at_end(records)
        if stop is Stop.MORE:
            if incomplete < len(records):
                records = records.part(0, incomplete)
            if not len(records) and self._grow():
                return at, at
            if not len(records):
                records = result.records  # a mark that no frame can have: taken for complete
            self._accept(records, report)
            return (int(records.ends[-1]) + at if len(records) else None), at
        return self._settle(segment, result, stop, incomplete, report)

    def _settle(
        self,
        segment: Segment,
        result: ScanResult,
        stop: Stop,
        incomplete: int,
        report: RecoveryReport,
    ) -> tuple[int | None, int]:
        """The records end for another reason than the buffer's size."""
        records, end = result.records, result.end
        following = (
            segment.end
            if stop is Stop.BLANK
            else self._skip_broken(segment, end, stop, result.fault, report)
        )
        if incomplete < len(records) and (following is None or not self._has_record(following)):
            cut = records.base + int(records.starts[incomplete])
            self._accept(records.part(0, incomplete), report)
            return None, cut
        self._accept(records, report)
        if incomplete < len(records):
            report.incomplete_frames += 1
        return following, end

    def _skip_broken(
        self, segment: Segment, end: int, stop: Stop, fault: str, report: RecoveryReport
    ) -> int | None:
        """Where valid records go on behind broken bytes that were sound once; None = the log ends
        here.
        """
        may_end = end >= self._durable and (stop is Stop.END or not self._same_boot)
        if may_end and not (self._is_blind and self._goes_on_behind(segment)):
            return None
        following = [later for later in self._chain.segments() if later.start >= segment.start]
        found = find_record(following, end, self._record_max)
        if found is None:
            return None
        why = fault or "zeros where records were"
        self._quarantine.add(end, found - end, why)
        report.quarantined.append((end, found - end, why))
        return found

    def _goes_on_behind(self, segment: Segment) -> bool:
        """A later segment has records: what was being written when the power went lies there."""
        return any(
            self._has_record(later.start)
            for later in self._chain.segments()
            if later.start > segment.start
        )

    def _has_record(self, log_offset: int) -> bool:
        segment = self._chain.find(log_offset)
        if segment is None:
            return False
        view = memoryview(segment.read(log_offset, self._record_max))
        return len(scan_buffer(view, log_offset, self._record_max, self._check_crc).records) > 0

    def _accept(self, records: ScannedRecords, report: RecoveryReport) -> None:
        report.incomplete_frames += self._frames.add(records)
        self._target.add(records)
        report.records += len(records)
        if len(records):
            report.last_record = records.base + int(records.starts[-1])
            report.last_ms = int(records.store_ms[-1])

    def _grow(self) -> bool:
        """A larger buffer for a frame or record that does not fit; False when it is large enough
        for any.
        """
        if len(self._buffer) >= FRAME_BYTES_MAX:
            return False
        self._buffer = bytearray(min(FRAME_BYTES_MAX, max(2 * len(self._buffer), self._record_max)))
        return True


def check_reaches(chain: SegmentChain, durable: int) -> None:
    """``StoreMissing`` when the log is shorter than what was durable: part of the store was lost or
    replaced.
    """
    if durable > chain.end:
        raise StoreMissing(
            f"{chain.directory} ends at {chain.end}, but {durable} bytes were durable; mount "
            f"the right disk or restore it",
            chain.directory,
        )
