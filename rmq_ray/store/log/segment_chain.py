"""The segments of one commit log, and the thread that prepares the next one before it is needed
(docs/file-format.md#file-format).

    commitlog/00000000001073741824        named by the log offset of its first byte, 20 digits;
                                          every byte that was not written yet reads as zero

Decides: which files belong to the log, when the next one is made, how a cut removes bytes for good,
where the first valid record behind a broken one begins. Does not decide: where records go
(``commit_log``), which segments are too old (``retention``). One thread appends and cuts; any
thread finds and reads.

Invariants: segments are adjacent; each has the configured size from the moment it has its name,
because it is made under ``rmq_ray/`` and renamed (Apache RocketMQ refuses a log directory with
files of other sizes); behind a cut everything reads as zeros, so that bytes of the past can never
be taken for records again.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Sequence

from rmq_ray.clock import Clock
from rmq_ray.codec.store_files import segment_name
from rmq_ray.errors import StoreCorrupt, StoreError, StoreNotReady
from rmq_ray.files import Bytes, File, FileCache, FileSystem
from rmq_ray.store.frames.log_scan import find_valid

logger = logging.getLogger("rmq_ray.store")
PREPARE_WAIT_S = 5.0  # RocketMQ's limit for waiting on the allocation
RETRY_FULL_MS = 1_000  # how often a full disk is tried again
OPEN_SEGMENTS_MAX = 128  # descriptors; the segments that are written stay open besides
_IDLE_S = 1.0
_WIPE_BYTES = 1 << 20
_SEARCH_BYTES = 8 << 20
_ZERO_READ = 4 << 20
_TEMPORARY = "next-segment"


class Segment:
    """Bytes [start, end) of the log. Any thread reads; one thread writes."""

    __slots__ = ("_cache", "_held", "end", "path", "start")

    def __init__(self, start: int, size: int, path: str, cache: FileCache) -> None:
        self.start = start
        self.end = start + size
        self.path = path
        self._cache = cache
        self._held: File | None = None

    @property
    def file(self) -> File:
        """The open file; opened when need be. ``StoreMissing`` when retention removed it."""
        return self._held or self._cache.get(self.path)

    def open_direct(self) -> File:
        """The same bytes for writes past the page cache, by a file of its own."""
        return self._cache.open_direct(self.path)

    def hold(self) -> None:
        """Keep the file open whatever else is read: it is being written."""
        self._held = self._cache.get(self.path)

    def release(self) -> None:
        """End of ``hold``."""
        self._held = None

    def write(self, data: Bytes, log_offset: int) -> None:
        """All of ``data`` at a log offset; on return the kernel has it. Raises as
        ``File.pwrite``.
        """
        (self._held or self.file).pwrite(data, log_offset - self.start)

    def read(self, log_offset: int, count: int) -> bytes:
        """Up to ``count`` bytes, shorter only at the segment's end."""
        return (self._held or self.file).pread(
            min(count, self.end - log_offset), log_offset - self.start
        )


class SegmentChain:
    """``directory``: commitlog/. ``workshop``: where files are made before they get their name.
    ``ahead``: prepare in a thread.
    """

    def __init__(
        self,
        directory: str,
        workshop: str,
        segment_bytes: int,
        files: FileSystem,
        clock: Clock,
        ahead: bool,
    ) -> None:
        self.directory = directory
        self.segment_bytes = segment_bytes
        self._workshop = workshop
        self._files = files
        self._clock = clock
        self._ahead = ahead
        self._segments: list[Segment] = []
        self._listing = threading.Lock()
        self._cache = FileCache(files, OPEN_SEGMENTS_MAX)
        self._making = threading.Condition()
        self._wanted = self._failed_start = -1
        self._failure: StoreError | None = None
        self._failed_ms = 0.0
        self._thread: threading.Thread | None = None
        self._closed = False

    @property
    def begin(self) -> int:
        """Log offset of the first byte that is still there; 0 for a new log."""
        return self._segments[0].start if self._segments else 0

    @property
    def end(self) -> int:
        """Where the last segment ends (not the last record)."""
        return self._segments[-1].end if self._segments else 0

    def segments(self) -> list[Segment]:
        """All segments, oldest first; a copy."""
        return list(self._segments)

    def load(self) -> None:
        """Open every segment. ``StoreCorrupt`` for a file of another name or size or a gap between
        two.
        """
        self._files.make_dirs(self.directory)
        for name in self._files.list_dir(self._workshop):
            if name.startswith(_TEMPORARY):
                self._files.unlink(f"{self._workshop}/{name}")
        segments: list[Segment] = []
        for name in self._files.list_dir(self.directory):
            path = f"{self.directory}/{name}"
            start = int(name) if len(name) == 20 and name.isdigit() else -1
            if start < 0 or start % self.segment_bytes or (segments and start != segments[-1].end):
                raise StoreCorrupt(
                    f"{path} is not the next segment of {self.segment_bytes} bytes; remove "
                    f"it or restore what lay before it",
                    path,
                    0,
                )
            size = self._files.file_size(path)
            if size != self.segment_bytes:
                raise StoreCorrupt(
                    f"{path} has {size} bytes, not {self.segment_bytes}; set segment_bytes "
                    f"to what the log was made with",
                    path,
                    0,
                )
            segments.append(Segment(start, self.segment_bytes, path, self._cache))
        self._segments = segments

    def find(self, log_offset: int) -> Segment | None:
        """The segment that holds the byte, None when it was removed or never there."""
        segments = self._segments
        if not segments:
            return None
        index = (log_offset - segments[0].start) // self.segment_bytes
        if not 0 <= index < len(segments):
            return None
        segment = segments[index]
        return (
            segment if segment.start <= log_offset < segment.end else self._find_slowly(log_offset)
        )

    def ensure(self, log_offset: int) -> Segment:
        """The segment for the log's next byte, made if need be; asks for the one after it. Waits
        for the thread at most 5 s.

        Raises ``StoreFull`` (tried again at most once a second), ``StoreNotReady`` when the disk is
        too slow.
        """
        segment = self.find(log_offset)
        if segment is None:
            start = log_offset - log_offset % self.segment_bytes
            assert not self._segments or start == self.end, "segments are made in order"
            segment = self._take(start)
        if self._ahead and segment.end == self.end:
            self._want(segment.end)
        return segment

    def cut_from(self, log_offset: int) -> None:
        """On return no byte at or behind ``log_offset`` is there any more, and that survives a
        power loss. Interrupted, it can be done again: files keep their size, and none goes before
        the ones behind it.
        """
        with self._making:
            self._wait_idle()
            while (
                len(self._segments) > 1 and self._segments[-1].start >= log_offset
            ):  # ends: one segment less
                with self._listing:
                    last, self._segments = self._segments[-1], self._segments[:-1]
                self._remove(last)
                self._files.sync_dir(self.directory)
        segment = self.find(log_offset)
        if segment is not None:
            self.wipe(segment, log_offset)
            segment.file.datasync()

    def wipe(self, segment: Segment, log_offset: int) -> None:
        """Overwrite what is not zero in the rest of a segment; needs no room on the disk, because
        those bytes have theirs.
        """
        limit = min(segment.end, segment.start + segment.file.data_end())
        for at in range(log_offset, limit, _WIPE_BYTES):
            length = len(segment.read(at, min(_WIPE_BYTES, limit - at)).rstrip(b"\0"))
            if length:
                segment.write(bytes(length), at)

    def begin_at(self, log_offset: int) -> None:
        """Remove every segment; the next one made begins at ``log_offset``, a multiple of
        ``segment_bytes``. Interrupted, it can be done again.
        """
        assert log_offset % self.segment_bytes == 0, "a log begins where a segment does"
        with self._making:
            self._wait_idle()
            while self._segments:  # ends: one segment less
                self._drop_first()
            self._files.sync_dir(self.directory)
        self.ensure(log_offset)

    def remove_first(self) -> bool:
        """Remove the oldest segment; never the last. Readers that hold it go on reading."""
        if len(self._segments) < 2:
            return False
        self._drop_first()
        return True

    def close(self) -> None:
        """Stop the thread and close the files."""
        with self._making:
            self._closed = True
            self._making.notify_all()
        if self._thread is not None:
            self._thread.join(PREPARE_WAIT_S)
        for segment in self._segments:
            segment.release()
        self._cache.close()

    def _find_slowly(self, log_offset: int) -> Segment | None:
        return next(
            (segment for segment in self._segments if segment.start <= log_offset < segment.end),
            None,
        )

    def _take(self, start: int) -> Segment:
        """The thread's segment when it has it or works on it, else one made here."""
        with self._making:
            if self._wanted == start and self._thread is not None:
                self._making.wait_for(lambda: self._wanted != start or self._closed, PREPARE_WAIT_S)
                if self._wanted == start:
                    raise StoreNotReady(
                        f"the next segment at {start} was not allocated within "
                        f"{PREPARE_WAIT_S:.0f} s; the disk is too slow",
                        self.directory,
                    )
            made = self.find(start)
            if made is not None:
                return made
            if (
                self._failed_start == start
                and self._failure is not None
                and self._clock.monotonic_ms() - self._failed_ms < RETRY_FULL_MS
            ):
                raise self._failure
        return self._make(start)

    def _make(self, start: int) -> Segment:
        """Allocate, sync, rename, add. On return the name is durable."""
        temporary = f"{self._workshop}/{_TEMPORARY}-{segment_name(start)}"
        path = f"{self.directory}/{segment_name(start)}"
        try:
            file = self._files.open(temporary, create=True)
            try:
                file.truncate(self.segment_bytes)
                if self._ahead:
                    file.allocate(self.segment_bytes)
                file.datasync()
            finally:
                file.close()
            self._files.rename(temporary, path)
            self._files.sync_dir(self.directory)
        except StoreError as error:
            self._files.unlink(temporary)
            self._failed_start, self._failure, self._failed_ms = (
                start,
                error,
                self._clock.monotonic_ms(),
            )
            raise
        segment = Segment(start, self.segment_bytes, path, self._cache)
        with self._listing:
            self._segments = [*self._segments, segment]
        return segment

    def _drop_first(self) -> None:
        """Nobody finds it while its file goes; a file that stays keeps its place in the list: one
        between two that are gone would be a gap.
        """
        with self._listing:
            first, self._segments = self._segments[0], self._segments[1:]
        try:
            self._remove(first)
        except StoreError:
            with self._listing:
                self._segments = [first, *self._segments]
            raise

    def _remove(self, segment: Segment) -> None:
        self._files.unlink(segment.path)
        segment.release()
        self._cache.drop(segment.path)

    def _want(self, start: int) -> None:
        if self._failed_start == start:
            return  # made at the latest when it is needed
        with self._making:
            if self._wanted >= 0 or self._closed:
                return
            if self._thread is None:
                thread = threading.Thread(target=self._prepare, name="rmq-segments", daemon=True)
                thread.start()
                self._thread = thread
            self._wanted = start
            self._making.notify_all()

    def _wait_idle(self) -> None:
        if not self._making.wait_for(lambda: self._wanted < 0, PREPARE_WAIT_S):
            raise StoreNotReady("a segment is still being allocated", self.directory)

    def _prepare(self) -> None:
        """The thread: makes what is wanted, until the chain is closed."""
        while True:
            with self._making:
                if self._closed:
                    return
                if not self._making.wait_for(lambda: self._wanted >= 0 or self._closed, _IDLE_S):
                    continue
                start = self._wanted
            try:
                if start >= 0 and not self._closed:
                    self._make(start)
            except StoreError:
                pass  # kept in _failure: the append that needs the segment tries again and raises
            except Exception:  # no memory: the thread lives on, who needs the segment makes it
                logger.exception("no segment was made ahead at %d", start)
            finally:
                with self._making:
                    self._wanted = -1
                    self._making.notify_all()


def find_record(segments: Sequence[Segment], broken_at: int, record_max: int) -> int | None:
    """The first valid record behind ``broken_at``, where none begins: in the segment that holds it,
    the first of ``segments``, or in a later one. None when there is none.
    """
    window = max(_SEARCH_BYTES, 2 * record_max)
    skip = 1
    for segment in segments:
        at = max(segment.start, broken_at)
        limit = min(segment.end, segment.start + segment.file.data_end())
        while at < limit:  # ends: at rises by half a window at least
            data = segment.read(at, window)
            found = find_valid(memoryview(data), at, skip)
            if found is not None:
                return found
            if at + len(data) >= limit or len(data) <= record_max:
                break
            at, skip = at + len(data) - record_max, 0
        skip = 0
    return None


def bytes_behind(segments: Sequence[Segment], log_offset: int) -> int:
    """How many bytes at and behind ``log_offset`` are not known to read as zeros: up to the last
    one that does not, 0 if all do.
    """
    last = log_offset
    zeros = bytes(_ZERO_READ)
    for segment in segments:
        at = max(segment.start, log_offset)
        limit = min(segment.end, segment.start + segment.file.data_end())
        while at < limit:  # ends: at rises
            data = segment.read(at, min(_ZERO_READ, limit - at))
            if not data:
                break
            if data != (zeros if len(data) == len(zeros) else bytes(len(data))):
                last = at + len(data.rstrip(b"\0"))
            at += len(data)
    return last - log_offset
