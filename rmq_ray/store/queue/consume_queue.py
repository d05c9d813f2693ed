"""One consume queue: where the records of one queue of one topic lie in the commit log
(docs/file-format.md#consume-queue).

    directory/00000000000000000000     files of entries_per_file * 20 bytes, named by the byte where
    directory/00000000000006000000     they start, sparse: what was not written yet reads as zeros

The bytes of an entry are drawn in ``codec.store_files``.

Decides: where entries go, what the queue's bounds are, which entries a cut of the log removes. Does
not decide when a record is queued (dispatcher) or when files are synced (checkpoints).

Invariants: entries are dense, entry n is the record with queue offset n; log offsets rise with n;
the last file is never removed, so that a queue never forgets its maximum. One thread appends and
cuts; any thread reads.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from rmq_ray.arrays import Array
from rmq_ray.codec.store_files import BLANK_ENTRY, BLANK_SIZE, ENTRIES, ENTRY, ENTRY_BYTES
from rmq_ray.errors import StoreCorrupt, StoreMissing
from rmq_ray.files import File, FileCache, FileSystem

GAP_MAX = 1_000_000  # records that may be missing in a row before the queue counts as broken
_TAIL_BYTES = (
    3_276 * ENTRY_BYTES
)  # 64 KiB of whole entries: read at once when the end is looked for
_NO_NAMES, _NEW_FILE, _NEW_DIRECTORY = 0, 1, 2  # names made since the last flush
RECOVERED_FILES = 3  # RocketMQ checks the last three files after a start


class ConsumeQueue:
    """One queue's entries. Offsets of entries are queue offsets; ``log`` offsets are bytes of the
    commit log.
    """

    __slots__ = (
        "_born",
        "_cache",
        "_file_bytes",
        "_files",
        "_first_start",
        "_flushed",
        "_hidden",
        "_last",
        "_last_start",
        "_log_end",
        "_max",
        "_min",
        "_new_names",
        "directory",
    )

    def __init__(
        self,
        directory: str,
        entries_per_file: int,
        files: FileSystem,
        cache: FileCache | None = None,
    ) -> None:
        self.directory = directory
        self._files = files
        self._cache = cache if cache is not None else FileCache(files)
        self._file_bytes = entries_per_file * ENTRY_BYTES
        self._first_start = self._last_start = -1  # bytes; -1 = no file yet
        self._last = ""  # path of the last file
        self._min = self._max = self._flushed = 0
        self._born = 0  # what lies below is of a topic that was deleted
        self._hidden = 0  # readers find nothing below it, though the log still has it
        self._log_end = 0
        self._new_names = _NO_NAMES

    @property
    def entries_per_file(self) -> int:
        """Entries in one file."""
        return self._file_bytes // ENTRY_BYTES

    @property
    def min_offset(self) -> int:
        """First queue offset that readers may ask for."""
        low = self._min
        if self._hidden > low or self._born > low:
            low = min(max(self._hidden, self._born), self._max)
        return low

    @property
    def log_min_offset(self) -> int:
        """First queue offset whose record may still be in the log, handed out or not."""
        return self._min

    @property
    def hides(self) -> bool:
        """Whether the log may still have entries that readers do not find any more."""
        return self._hidden > self._min

    @property
    def max_offset(self) -> int:
        """The queue offset that the next record gets."""
        return self._max

    @property
    def max_log_offset(self) -> int:
        """Where the last queued record ends in the log; 0 for an empty queue."""
        return self._log_end

    @property
    def is_new(self) -> bool:
        """Whether nothing was ever put in: it begins with any offset."""
        return self._last_start < 0

    @property
    def is_flushed(self) -> bool:
        """Whether all entries are synced."""
        return self._max <= self._flushed

    def load(self) -> None:
        """Find the files and both bounds. ``StoreCorrupt`` when a file's size or name is not as the
        format demands.

        A file that is too short (its creation or a cut was interrupted) is brought to its size: it
        reads as zeros.
        """
        starts = self._find_files()
        if not starts:
            return
        self._first_start, self._last_start = starts[0], starts[-1]
        self._last = self._path(starts[-1])
        self._max = self._flushed = self._find_end()
        self._min = self._first_kept(self._first_start // ENTRY_BYTES)
        self._log_end = self._end_before(self._max)

    def append(
        self,
        first_offset: int,
        entries: bytes | bytearray | memoryview,
        store_ms: int | Array = 0,
        bit_maps: Sequence[bytes] | None = None,
    ) -> int:
        """Write entries for queue offsets from ``first_offset`` on, one ``pwrite`` per file;
        returns how many were new. ``store_ms``, of all or of each, and ``bit_maps`` are for queues
        with extension units.

        Entries that the queue has already (by queue offset or by log offset) are ignored. Where the
        log lost records, blank entries take their place. On return readers see the entries; they
        are durable after ``flush``.
        """
        count, odd = divmod(len(entries), ENTRY_BYTES)
        assert not odd, "entries of 20 bytes"
        skip = self._built_already(first_offset, entries, count)
        if skip >= count:
            return 0
        if self._last_start < 0:
            self._begin(first_offset)
        elif first_offset > self._max:
            self._fill_gap(first_offset)
        view = memoryview(entries)[skip * ENTRY_BYTES :] if skip else entries
        self._write(self._max * ENTRY_BYTES, view)
        log_offset, size, _ = ENTRY.unpack_from(entries, (count - 1) * ENTRY_BYTES)
        self._log_end = log_offset + size
        self._max += count - skip
        return count - skip

    def fill_blank(self, offset: int, entry: bytes, present: bytes = BLANK_ENTRY) -> bool:
        """Put an entry where a blank one stands in for its record, or the one that is ``present``
        and wrong; False where there is none. Durable on return.
        """
        if self._last_start < 0 or not self._min <= offset < self._max:
            return False
        start = offset * ENTRY_BYTES // self._file_bytes * self._file_bytes
        file, within = self._file(start), offset * ENTRY_BYTES - start
        if file.pread(ENTRY_BYTES, within) != present:
            return False
        file.pwrite(entry, within)
        file.datasync()
        return True

    def read(self, offset: int, count: int) -> bytes:
        """Up to ``count`` entries from ``offset``, less at the queue's end; nothing outside of it
        or where files are gone.
        """
        end = min(offset + count, self._max)
        if (
            offset < 0
            or self._first_start < 0
            or offset * ENTRY_BYTES < self._first_start
            or offset >= end
        ):
            return b""
        at, stop = offset * ENTRY_BYTES, end * ENTRY_BYTES
        start = at - at % self._file_bytes
        try:
            if stop <= start + self._file_bytes:
                return self._file(start).pread(stop - at, at - start)
            return self._read_over(at, stop)
        except StoreMissing:
            return b""  # retention was faster; the caller looks at min_offset again

    def resolve(
        self, entries: bytes, hit: Callable[[int, bytes], bool] | None = None, lost: int = 0
    ) -> bytes:
        """Entries as ``read`` gave them, with tags codes in the place of addresses (``lost`` where
        a unit is), and blank where ``hit(store time, bit map)`` is False. Here there are no
        addresses; see ``ExtendedQueue``.
        """
        del hit, lost
        return entries

    def truncate_from(self, log_offset: int) -> int:
        """Drop the entries of records that begin at ``log_offset`` or behind it (the log was cut
        there); returns how many.
        """
        return self.truncate_to(self._search(log_offset))

    def truncate_to(self, offset: int) -> int:
        """Drop the entries from queue offset ``offset`` on; returns how many. What was cut reads as
        zeros again.
        """
        dropped = self._max - offset
        if dropped <= 0:
            return 0
        offset = max(offset, self._first_start // ENTRY_BYTES)
        at = offset * ENTRY_BYTES
        while (
            self._last_start > self._first_start and self._last_start >= at
        ):  # ends: falls by one file
            self._remove(self._last_start)
            self._last_start -= self._file_bytes
            self._last = self._path(self._last_start)
        if at < self._last_start + self._file_bytes:
            file = self._file(self._last_start)
            file.truncate(at - self._last_start)
            file.truncate(self._file_bytes)
        self._max = offset
        self._min = min(self._min, offset)
        self._hidden = min(self._hidden, offset)
        self._born = min(self._born, offset)
        self._flushed = min(self._flushed, offset)
        self._log_end = self._end_before(offset)
        return dropped

    def recover(self) -> int:
        """RocketMQ's check after a start without our checkpoint: from the third-last file on,
        accept entries up to the first one without offset and size, and cut there. Returns
        ``max_log_offset``.
        """
        if self._last_start < 0:
            return 0
        begin = (
            max(self._first_start, self._last_start - (RECOVERED_FILES - 1) * self._file_bytes)
            // ENTRY_BYTES
        )
        for at in range(begin, self._max, self._file_bytes // ENTRY_BYTES):
            entries = np.frombuffer(self.read(at, self._file_bytes // ENTRY_BYTES), ENTRIES)
            bad = (entries["log_offset"] < 0) | (entries["size"] <= 0)
            if bad.any():
                self.truncate_to(at + int(bad.argmax()))
                break
        return self._log_end

    def set_min_log_offset(self, log_offset: int) -> None:
        """The log begins at ``log_offset`` now: the minimum moves to the first entry that is still
        in it.
        """
        if self._min < self._max and self._entry(self._min)[0] < log_offset:
            self._min = self._first_kept(self._search(log_offset))

    def hide_before(self, offset: int) -> bool:
        """Readers find no entry below ``offset`` from now on, and those from there on again;
        nothing is removed. True when that moves the minimum.
        """
        before = self.min_offset
        self._hidden = offset
        return self.min_offset != before

    def begin_anew(self, log_offset: int, offset: int) -> bool:
        """The topic was deleted when the log ended at ``log_offset``, and this queue at ``offset``:
        nobody finds what it has of then, or still gets. True when it has nothing else.

        Places in the log decide: who knows nothing of deletions begins the next topic's queue at 0.
        """
        is_old = self._log_end <= log_offset
        if not is_old:
            first = self._search(log_offset)
            offset = max(first, min(offset, self._first_kept(first)))
        self._born = offset
        return is_old

    def first_at(self, log_offset: int) -> int:
        """The first queue offset whose record begins at or behind ``log_offset``; the maximum when
        there is none.
        """
        return self._search(log_offset)

    def delete_files_before_min(self) -> int:
        """Remove files whose every entry lies below the minimum, never the last one; returns how
        many.
        """
        deleted = 0
        while (
            self._first_start < self._last_start
            and self._first_start + self._file_bytes <= self._min * ENTRY_BYTES
        ):  # ends: rises by one file
            self._remove(self._first_start)  # one that stays may not lie behind a gap
            self._first_start += self._file_bytes
            deleted += 1
        return deleted

    def flush(self) -> bool:
        """On return all entries that were appended before the call survive a power loss. May run
        beside ``append``.

        True when the directory itself is new: the caller syncs the directories above it, once for
        many queues.
        """
        target, new_names = self._max, self._new_names
        self._new_names = _NO_NAMES
        at = self._flushed * ENTRY_BYTES
        for start in range(at - at % self._file_bytes, target * ENTRY_BYTES, self._file_bytes):
            try:
                self._file(start).datasync()
            except StoreMissing:
                if 0 <= self._first_start <= start:  # else it was removed meanwhile, on purpose
                    raise
        if new_names and self._first_start >= 0:
            self._files.sync_dir(self.directory)
        self._flushed = max(self._flushed, target)
        return new_names == _NEW_DIRECTORY

    def delete(self) -> None:
        """Remove every file and the directory; the queue is empty afterwards."""
        for name in self._files.list_dir(self.directory):
            path = f"{self.directory}/{name}"
            self._cache.drop(path)
            self._files.unlink(path)
        self._files.remove_dir(self.directory)
        self._first_start = self._last_start = -1
        self._min = self._max = self._flushed = self._log_end = self._hidden = self._born = 0

    def close(self) -> None:
        """Let go of open files."""
        for start in range(max(self._first_start, 0), self._last_start + 1, self._file_bytes):
            self._cache.drop(self._path(start))

    def _find_files(self) -> list[int]:
        names = self._files.list_dir(self.directory)
        starts: list[int] = []
        for name in names:
            path = f"{self.directory}/{name}"
            start = int(name) if len(name) == 20 and name.isdigit() else -1
            if (
                start < 0
                or start % self._file_bytes
                or (starts and start != starts[-1] + self._file_bytes)
            ):
                fault = (
                    f"{path} is not the next file of a consume queue with {self._file_bytes} "
                    f"bytes a file"
                )
                raise StoreCorrupt(
                    f"{fault}; remove the queue's directory to have it built again", path, 0
                )
            size = self._files.file_size(path)
            if size < self._file_bytes:
                self._cache.create(path, self._file_bytes)
            elif size != self._file_bytes:
                raise StoreCorrupt(
                    f"{path} has {size} bytes, not {self._file_bytes}; set "
                    f"consume_queue_entries to what the store was made with",
                    path,
                    size,
                )
            starts.append(start)
        return starts

    def _find_end(self) -> int:
        """Behind the last entry with a size, looked for backwards in the last file; the file's
        start when it is empty.
        """
        file = self._file(self._last_start)
        end = min(file.data_end(), self._file_bytes)
        end -= end % -ENTRY_BYTES  # up to a whole entry
        while end > 0:  # ends: falls by 64 KiB
            begin = max(0, end - _TAIL_BYTES)
            data = file.pread(end - begin, begin)
            written = len(data.rstrip(b"\0"))
            for at in range(written - 1 - (written - 1) % ENTRY_BYTES, -1, -ENTRY_BYTES):
                if ENTRY.unpack_from(data, at)[1] > 0:
                    return (self._last_start + begin + at) // ENTRY_BYTES + 1
            end = begin
        return self._last_start // ENTRY_BYTES

    def _first_kept(self, offset: int) -> int:
        """The first entry from ``offset`` on that is not blank (a queue that began later than at
        its file's start).
        """
        count = 1  # nearly always the first entry is a real one
        while offset < self._max:  # ends: rises by what was read
            sizes = np.frombuffer(self.read(offset, count), ENTRIES)["size"]
            real = sizes != BLANK_SIZE
            if real.any():
                return offset + int(real.argmax())
            offset += max(1, len(sizes))
            count = _TAIL_BYTES // ENTRY_BYTES
        return self._max

    def _end_before(self, offset: int) -> int:
        """Where the record of the last real entry before ``offset`` ends."""
        for at in range(offset - 1, max(self._min, offset - GAP_MAX) - 1, -1):
            log_offset, size, _ = self._entry(at)
            if size != BLANK_SIZE:
                return log_offset + size
        return 0

    def _built_already(
        self, first_offset: int, entries: bytes | bytearray | memoryview, count: int
    ) -> int:
        """How many leading entries were built before: by queue offset, then by where their records
        end.
        """
        skip = max(0, self._max - first_offset) if self._last_start >= 0 else 0
        while skip < count:  # ends: skip rises
            log_offset, size, _ = ENTRY.unpack_from(entries, skip * ENTRY_BYTES)
            if log_offset + size > self._log_end:
                break
            skip += 1
        return skip

    def _begin(self, first_offset: int) -> None:
        """The queue's first file; what precedes ``first_offset`` in it is filled with blank
        entries.
        """
        position = first_offset * ENTRY_BYTES
        self._first_start = position - position % self._file_bytes
        self._files.make_dirs_unsynced(self.directory)
        self._make_file(self._first_start)
        self._new_names = _NEW_DIRECTORY
        if position > self._first_start:
            self._file(self._first_start).pwrite(
                BLANK_ENTRY * ((position - self._first_start) // ENTRY_BYTES), 0
            )
        self._min = self._max = first_offset
        self._flushed = self._first_start // ENTRY_BYTES

    def _fill_gap(self, first_offset: int) -> None:
        missing = first_offset - self._max
        if missing > GAP_MAX:
            fault = (
                f"{self.directory}: entry {first_offset} follows {self._max}: {missing} records "
                f"are missing"
            )
            raise StoreCorrupt(
                f"{fault}; remove the directory to have it built again", self.directory, self._max
            )
        self._write(self._max * ENTRY_BYTES, BLANK_ENTRY * missing)
        self._max = first_offset

    def _write(self, at: int, data: bytes | bytearray | memoryview) -> None:
        within = at - self._last_start
        if within + len(data) <= self._file_bytes:  # by far the most frequent case
            self._cache.get(self._last).pwrite(data, within)
            return
        view = memoryview(data)
        while view:  # ends: every round writes one file's part
            if within >= self._file_bytes:
                self._make_file(self._last_start + self._file_bytes)
                within = 0
            part = view[: self._file_bytes - within]
            if part:
                self._cache.get(self._last).pwrite(part, within)
            within += len(part)
            view = view[len(part) :]

    def _make_file(self, start: int) -> None:
        path = self._path(start)
        self._cache.create(path, self._file_bytes)
        self._last_start, self._last = start, path
        self._new_names = self._new_names or _NEW_FILE

    def _search(self, log_offset: int) -> int:
        """The first entry in [min, max] whose record begins at or behind ``log_offset``; blank
        entries follow their successor.
        """
        low, high = self._min, self._max
        while low < high:  # ends: the range halves
            middle = (low + high) // 2
            probe = middle
            while probe < high and self._entry(probe)[1] == BLANK_SIZE:  # ends: probe rises
                probe += 1
            if probe < high and self._entry(probe)[0] < log_offset:
                low = probe + 1
            else:
                high = middle
        return low

    def _entry(self, offset: int) -> tuple[int, int, int]:
        entry = self.read(offset, 1)
        return ENTRY.unpack(entry) if entry else (0, BLANK_SIZE, 0)

    def _read_over(self, at: int, stop: int) -> bytes:
        parts = []
        while at < stop:  # ends: every round reads one file's part
            start = at - at % self._file_bytes
            end = min(stop, start + self._file_bytes)
            parts.append(self._file(start).pread(end - at, at - start))
            at = end
        return b"".join(parts)

    def _remove(self, start: int) -> None:
        path = self._path(start)
        self._cache.drop(path)
        self._files.unlink(path)

    def _file(self, start: int) -> File:
        return self._cache.get(self._last if start == self._last_start else self._path(start))

    def _path(self, start: int) -> str:
        return f"{self.directory}/{start:020d}"
