"""One segment of the commit log: a file of fixed size, named by the log offset of its first byte
(store-format 1).

    commitlog/00000000001073741824        20 digits; every byte that was not written yet reads as zero

Decides: nothing; it translates log offsets into positions of one file. Called by: the segment chain
and what it hands segments to. Invariant: a segment's size never changes once it has its name.
"""

from __future__ import annotations

from rmq_ray.files import Bytes, File
from rmq_ray.store.io.file_cache import FileCache


def segment_name(start: int) -> str:
    """The file name of the segment that begins at log offset ``start``.

    >>> segment_name(1073741824)
    '00000000001073741824'
    """
    return f"{start:020d}"


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
