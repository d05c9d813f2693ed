"""Open files by path, a bounded number at once: ten thousand consume queues must not hold ten
thousand descriptors.

Decides: which file stays open (the most recently used). Does not decide what is read or written.
Called by: consume queues, index files and split readers; by several threads at once.

Invariant: a file that a thread still uses is never closed under it, although it was dropped here: a
``File`` closes its descriptor with its last reference.
"""

from __future__ import annotations

import threading
from collections import OrderedDict

from rmq_ray.files import File, FileSystem

OPEN_FILES_MAX = 512  # half of the usual soft limit of 1,024 descriptors


class FileCache:
    """Least recently used files are let go beyond ``limit``. ``read_only``: open them for reading
    only.
    """

    def __init__(
        self, files: FileSystem, limit: int = OPEN_FILES_MAX, read_only: bool = False
    ) -> None:
        self._open = files.open_to_read if read_only else files.open
        self._files = files
        self._limit = limit
        self._held: OrderedDict[str, File] = OrderedDict()
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self._held)

    def get(self, path: str) -> File:
        """The open file; ``StoreMissing`` when it is not there."""
        with self._lock:
            file = self._held.get(path)
            if file is not None:
                self._held.move_to_end(path)
                return file
        return self._keep(path, self._open(path))

    def open_direct(self, path: str) -> File:
        """Another file of that name, not kept here: see ``FileSystem.open_direct``."""
        return self._files.open_direct(path)

    def create(self, path: str, size: int) -> File:
        """Make a file of ``size`` bytes that reads as zeros and takes no room; an existing one is
        brought to that size.
        """
        return self._keep(path, self._files.make_sized(path, size))

    def drop(self, path: str) -> None:
        """Forget a file (before it is removed)."""
        with self._lock:
            self._held.pop(path, None)

    def close(self) -> None:
        """Forget all files."""
        with self._lock:
            self._held.clear()

    def _keep(self, path: str, file: File) -> File:
        gone = None
        with self._lock:
            self._held[path] = file
            if len(self._held) > self._limit:
                gone = self._held.popitem(last=False)
        del gone  # closes outside the lock
        return file
