"""Reading a commit log from its first record to its last without a broker and without changing a
byte.

Decides: the geometry (from the files themselves), where records stand, where broken bytes lie
between them, where the log ends and what stands behind that. Does not decide: what records mean,
what follows from a fault.

    record record record | broken bytes | record record blank | next segment: record record | zeros
    '----- stretch -----'                '----- stretch ----'                 '- stretch -'   ^ end

Invariants: positions rise; a stretch never contains broken bytes; a frame is cut between two
stretches only where broken bytes or the log's end cut it. A log that is being written may be
walked: what is not complete yet counts as behind the end.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

from rmq_ray.codec.record import BLANK, BLANK_BYTES_MIN, RECORD_BYTES_OVER_BODY_MAX
from rmq_ray.codec.store_files import COMMIT_LOG
from rmq_ray.errors import StoreMissing
from rmq_ray.files import FileCache, FileSystem
from rmq_ray.store.frames.frame_tracker import FrameTracker
from rmq_ray.store.frames.log_scan import ScannedRecords, Stop, scan_buffer
from rmq_ray.store.fsck.read_only import FaultList
from rmq_ray.store.log.segment_chain import Segment, bytes_behind, find_record

BUFFER_BYTES = 8 << 20
FRAME_BYTES_MAX = 48 << 20
RECORD_BYTES_MAX = (
    15 << 20
) + RECORD_BYTES_OVER_BODY_MAX  # the greatest body that any setting allows
_OPEN_SEGMENTS_MAX = 4


@dataclass(frozen=True, slots=True)
class Broken:
    """Bytes [start, end) of the log that are no records, although records follow."""

    start: int
    end: int
    why: str


@dataclass(frozen=True, slots=True)
class Stretch:
    """Valid records back to back. ``whole``: nothing is missing behind them; else broken bytes or
    the log's end follow.
    """

    records: ScannedRecords
    whole: bool


class LogWalk:
    """``root``: the store's directory. After the walk: ``broken``, ``end`` and ``tail_bytes`` (not
    zero, behind ``end``) are known.
    """

    def __init__(self, root: str, files: FileSystem, faults: FaultList) -> None:
        self._files = files
        self._faults = faults
        self._cache = FileCache(files, _OPEN_SEGMENTS_MAX, read_only=True)
        self._buffer = bytearray(BUFFER_BYTES)
        self.segments = self._find_segments(f"{root}/{COMMIT_LOG}")
        self.broken: list[Broken] = []
        self.end = self.begin
        self.tail_bytes = 0

    @property
    def begin(self) -> int:
        """The first byte that is still there."""
        return self.segments[0].start if self.segments else 0

    @property
    def segment_bytes(self) -> int:
        """Size of a full segment; 0 for a log without any."""
        return self.segments[0].end - self.segments[0].start if self.segments else 0

    def stretches(self, begin: int | None = None) -> Iterator[Stretch]:
        """All records from ``begin`` on (a record's beginning, or the first valid one behind it is
        taken), a few MiB at a time.
        """
        at = self.begin if begin is None else self._first_at(begin)
        while at is not None and (index := self._index_of(at)) is not None:  # ends: at rises
            at, stretch = self._read(index, at)
            if stretch is not None and len(stretch.records):
                yield stretch
        if self.segments:
            self.tail_bytes = bytes_behind(self.segments, self.end)

    def _read(self, index: int, at: int) -> tuple[int | None, Stretch | None]:
        """(where to go on, records from ``at`` on); None at the log's end."""
        segment = self.segments[index]
        at = max(at, segment.start)  # segments before this one may be missing
        if segment.end - at < BLANK_BYTES_MIN:
            self.end = segment.end
            return segment.end, None
        view = memoryview(self._buffer)[: min(len(self._buffer), segment.end - at)]
        view = view[: segment.file.pread_into(view, at - segment.start)]
        result = scan_buffer(view, at, RECORD_BYTES_MAX, True)
        records, stop = result.records, result.stop
        if stop is Stop.MORE and at + len(view) < segment.end and len(view) == len(self._buffer):
            return self._read_on(at, records, result.end)
        if stop is Stop.BLANK:
            self._check_blank(segment, result.end, view, at)
            self.end = segment.end
            return segment.end, Stretch(records, True)
        self.end = result.end
        why = result.fault or (
            "zeros where records were"
            if stop is Stop.END
            else "a record that reaches beyond its segment"
        )
        following = find_record(self.segments[index:], result.end, RECORD_BYTES_MAX)
        if following is not None:
            self.broken.append(Broken(result.end, following, why))
        return following, Stretch(records, False)

    def _read_on(self, at: int, records: ScannedRecords, end: int) -> tuple[int, Stretch | None]:
        """The buffer is too small for what begins in it: hand out whole frames, or read again with
        a larger one.
        """
        whole = FrameTracker.incomplete_at_end(records)
        if whole == 0 and len(self._buffer) < FRAME_BYTES_MAX:
            self._buffer = bytearray(min(FRAME_BYTES_MAX, 2 * len(self._buffer)))
            return at, None
        if whole < len(records) and whole:
            return at + int(records.starts[whole]), Stretch(records.part(0, whole), True)
        self.end = end
        return end, Stretch(records, True)

    def _check_blank(self, segment: Segment, at: int, view: memoryview, base: int) -> None:
        room = BLANK.unpack_from(view, at - base)[0]
        if room != segment.end - at:
            self._faults.add(
                f"log offset {at}: the blank record says {room} bytes, the segment has "
                f"{segment.end - at} left"
            )

    def _first_at(self, begin: int) -> int | None:
        """``begin`` if a valid record begins there, else the first one behind it."""
        begin = max(begin, self.begin)
        index = self._index_of(begin)
        if index is None:
            return None
        data = memoryview(self.segments[index].read(begin, RECORD_BYTES_MAX))
        if len(scan_buffer(data, begin, RECORD_BYTES_MAX, True).records):
            return begin
        return find_record(self.segments[index:], begin, RECORD_BYTES_MAX)

    def _index_of(self, at: int) -> int | None:
        for index, segment in enumerate(self.segments):
            if segment.start <= at < segment.end:
                return index
            if segment.start > at:  # files are missing before this one: a fault that is known
                return index if at == self.segments[index - 1].end else None
        return None

    def _find_segments(self, directory: str) -> list[Segment]:
        """All files of the log; their size is the one that most of them have."""
        if not self._files.is_dir(directory):
            raise StoreMissing(f"{directory} is not there: this is no store", directory)
        sizes: dict[int, int] = {}
        for name in self._files.list_dir(directory):
            if len(name) == 20 and name.isdigit():
                sizes[int(name)] = self._files.file_size(f"{directory}/{name}")
            else:
                self._faults.add(
                    f"{directory}/{name} is no segment of the log: a broker refuses to start "
                    f"with it"
                )
        if not sizes:
            return []
        size = (
            Counter(size for size in sizes.values() if size).most_common(1)[0][0]
            if any(sizes.values())
            else 0
        )
        if not size:
            for start in sorted(sizes):
                self._faults.add(f"{directory}/{start:020d} is empty: no segment of a log is")
            return []
        found: list[Segment] = []
        for start, have in sorted(sizes.items()):
            path = f"{directory}/{start:020d}"
            if have != size:
                self._faults.add(f"{path} has {have} bytes, the others {size}")
            if start % size or (found and start != found[-1].end):
                self._faults.add(
                    f"{path} does not begin where a segment of {size} bytes ends: one before "
                    f"it is missing, or it has another's name"
                )
            found.append(Segment(start, size, path, self._cache))
        return found
