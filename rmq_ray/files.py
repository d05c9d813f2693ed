"""Files and directories as the store sees them: the only module that touches ``os`` and ``fcntl``.

Decides: how an operating-system error becomes a typed one. ``ENOSPC``/``EDQUOT`` -> ``StoreFull``
(recovers by itself); any other failure of a write or a sync -> ``StoreFailed`` (the log
fail-stops); a file that cannot be opened or read -> ``StoreFailed``; a directory that cannot be
written -> ``StoreUnwritable``. Does not decide: formats, retries, what to do after a failure.
Called by: every module of ``store``. The crash harness of the tests substitutes ``FileSystem`` and
``File``.

Invariants: ``pwrite`` writes everything or raises; no mmap anywhere (a full disk under a mapping is
SIGBUS); a name is durable only after ``sync_dir`` of its directory. A ``File`` may be used by
several threads: all calls are positional.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import hashlib
import os
import threading
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import TypeVar

from rmq_ray.errors import (
    StoreError,
    StoreFailed,
    StoreFull,
    StoreInUse,
    StoreMissing,
    StoreUnreadable,
    StoreUnwritable,
)

Bytes = bytes | bytearray | memoryview
"""What is written; a memoryview must be contiguous."""

T = TypeVar("T")
_NO_ROOM = (errno.ENOSPC, errno.EDQUOT)
_NO_DESCRIPTOR = (errno.EMFILE, errno.ENFILE)
_NOT_ALLOWED = (errno.EACCES, errno.EPERM, errno.EROFS)
_NO_DIRECTORY = (errno.ENOTDIR, errno.EEXIST)
OPEN_FILES_MAX = 512  # half of the usual soft limit of 1,024 descriptors
_RUNS_MAX = 100_000  # runs of data in one sparse file; beyond it the whole file counts as data
_WRITES_MAX = 1_000  # a positional write that needs more pieces than this is broken


def _typed(error: OSError, doing: str, path: str) -> StoreError:
    """The store's error for an operating-system error."""
    detail = f"{doing} {path}: {error.strerror or error}"
    if error.errno in _NO_ROOM:
        return StoreFull(f"{detail}; free space on this disk or add a larger one", path)
    if error.errno in _NOT_ALLOWED:
        return StoreUnwritable(f"{detail}; give the broker's user write permission", path)
    if error.errno == errno.ENOENT:
        return StoreMissing(f"{detail}; mount the disk that has it, or choose another path", path)
    if error.errno in _NO_DIRECTORY:
        return StoreUnwritable(
            f"{detail}; a file is where a directory of the store should be: choose another "
            f"path, or move the file away",
            path,
        )
    if error.errno in _NO_DESCRIPTOR:
        return StoreUnreadable(f"{detail}; raise the limit of open files", path)
    return StoreFailed(f"{detail}; the disk must be read again before the store goes on", path)


def _unread(error: OSError, doing: str, path: str) -> StoreError:
    """The same for a read: nothing that was written is in doubt."""
    found = _typed(error, doing, path)
    return (
        StoreUnreadable(f"{doing} {path}: {error.strerror or error}; check the disk", path)
        if type(found) is StoreFailed
        else found
    )


class File:
    """One open file. Positions and sizes in bytes; every call is positional, so threads may share
    it.
    """

    __slots__ = ("_fd", "path")

    def __init__(self, path: str, fd: int) -> None:
        self.path = path
        self._fd = fd

    def pwrite(self, data: Bytes, position: int) -> None:
        """Write all of ``data`` at ``position``. On return the kernel has every byte (not yet the
        disk).

        Raises ``StoreFull`` on a full disk, ``StoreFailed`` otherwise; then any prefix of ``data``
        may have been written.
        """
        try:
            written = os.pwrite(self._fd, data, position)
            size = data.nbytes if type(data) is memoryview else len(data)
            if written != size:
                self._pwrite_rest(memoryview(data).cast("B"), position, written)
        except OSError as error:
            raise _typed(error, "write to", self.path) from error

    def _pwrite_rest(self, data: memoryview, position: int, written: int) -> None:
        for _ in range(_WRITES_MAX):
            count = os.pwrite(self._fd, data[written:], position + written)
            written += count
            if written == len(data):
                return
            if count == 0:
                break
        raise StoreFailed(
            f"write to {self.path} stopped after {written} of {len(data)} bytes; check the disk",
            self.path,
        )

    def pread(self, count: int, position: int) -> bytes:
        """Up to ``count`` bytes from ``position``; shorter only at the end of the file."""
        try:
            data = os.pread(self._fd, count, position)
            while len(data) < count:  # ends: every round adds bytes or meets the end of the file
                more = os.pread(self._fd, count - len(data), position + len(data))
                if not more:
                    break
                data += more
            return data
        except OSError as error:
            raise _unread(error, "read from", self.path) from error

    def pread_into(self, buffer: memoryview, position: int) -> int:
        """Fill ``buffer`` (writable, bytes) from ``position``; returns the count, smaller only at
        the end of the file.
        """
        done = 0
        try:
            while done < len(buffer):  # ends: every round adds bytes or meets the end of the file
                count = os.preadv(self._fd, [buffer[done:]], position + done)
                if count == 0:
                    break
                done += count
            return done
        except OSError as error:
            raise _unread(error, "read from", self.path) from error

    def datasync(self) -> None:
        """``fdatasync``: on return everything written to this file before the call survives a power
        loss.

        Raises ``StoreFailed``; it must never be called again then (the kernel forgets which pages
        failed).
        """
        try:
            os.fdatasync(self._fd)
        except OSError as error:
            raise StoreFailed(
                f"fdatasync of {self.path}: {error.strerror}; the disk must be read again "
                f"before the store goes on",
                self.path,
            ) from error

    def allocate(self, size: int) -> None:
        """Reserve blocks for bytes [0, size); existing bytes stay, new ones read as zero.
        ``StoreFull`` if there is no room.
        """
        try:
            os.posix_fallocate(self._fd, 0, size)
        except OSError as error:
            raise _typed(error, f"allocate {size} bytes for", self.path) from error

    def truncate(self, size: int) -> None:
        """Set the file's size; a larger one than before reads as zeros."""
        try:
            os.ftruncate(self._fd, size)
        except OSError as error:
            raise _typed(error, f"truncate to {size} bytes", self.path) from error

    def size(self) -> int:
        """Current size in bytes."""
        try:
            return os.fstat(self._fd).st_size
        except OSError as error:
            raise _typed(error, "stat", self.path) from error

    def data_end(self) -> int:
        """Where the last run of stored bytes ends: everything behind it is a hole and reads as
        zeros. At most ``size()``.

        On a file system without holes this is ``size()``. Used to find the end of sparse files
        without reading them.
        """
        end = at = 0
        try:
            for _ in range(_RUNS_MAX):
                at = os.lseek(self._fd, os.lseek(self._fd, at, os.SEEK_DATA), os.SEEK_HOLE)
                end = at
            return self.size()
        except OSError as error:
            if error.errno == errno.ENXIO:  # no data from here on
                return end
            raise _typed(error, "seek in", self.path) from error

    def read_ahead(self, position: int, count: int) -> None:
        """Tell the kernel that these bytes are read next: the disk fetches them while the caller
        works on others.
        """
        try:
            os.posix_fadvise(self._fd, position, count, os.POSIX_FADV_WILLNEED)
        except OSError as error:
            raise _typed(error, "advise", self.path) from error

    def forget_cached(self, position: int, count: int) -> None:
        """Tell the kernel that these pages will not be read again soon (a bulk read should not push
        out the tail).
        """
        try:
            os.posix_fadvise(self._fd, position, count, os.POSIX_FADV_DONTNEED)
        except OSError as error:
            raise _typed(error, "advise", self.path) from error

    def close(self) -> None:
        """Close the descriptor; calling it again does nothing."""
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)

    def __del__(self) -> None:
        # Bounded caches let files go by dropping them: a thread that still reads one keeps it open
        # until it is done.
        self.close()


@dataclass(frozen=True, slots=True)
class DiskSpace:
    """The room on a disk: the used share, 0.0 to 1.0, what is free and how large it is, in bytes
    (0 = not known).
    """

    used_ratio: float
    free_bytes: int
    total_bytes: int = 0

    def __str__(self) -> str:
        return f"{self.used_ratio:.0%} used, {self.free_bytes / (1 << 30):.1f} GiB free"


class DirectoryLock:
    """An exclusive lock held until ``release`` or the death of the process."""

    __slots__ = ("_fd", "path")

    def __init__(self, path: str, fd: int) -> None:
        self.path = path
        self._fd = fd

    def release(self) -> None:
        """Give the lock back; calling it again does nothing."""
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)


class FileSystem:
    """The real file system. All paths are plain strings; every failure is a typed
    ``StoreError``.
    """

    def open(self, path: str, create: bool = False) -> File:
        """Open for reading and writing. ``create``: make the file if it is missing (its name is
        durable after ``sync_dir``).
        """
        flags = os.O_RDWR | os.O_CLOEXEC | (os.O_CREAT if create else 0)
        return File(path, self._call("open", path, lambda: os.open(path, flags, 0o644)))

    def make_sized(self, path: str, size: int) -> File:
        """A file of ``size`` bytes that reads as zeros and takes no room: there as a whole or not
        at all, whenever the process dies (RocketMQ refuses a store with a file of another size). An
        existing one is brought to that size.
        """
        if not os.path.lexists(path):
            with contextlib.suppress(OSError):
                # a file system without nameless files, or somebody was faster: made below, or its
                # error told
                fd = os.open(os.path.dirname(path), os.O_TMPFILE | os.O_RDWR | os.O_CLOEXEC, 0o644)
                file = File(path, fd)
                try:
                    file.truncate(size)
                    os.link(f"/proc/self/fd/{fd}", path, follow_symlinks=True)
                except BaseException:
                    file.close()
                    raise
                return file
        file = self.open(path, create=True)
        file.truncate(size)
        return file

    def open_private(self, path: str) -> File:
        """Open for reading and writing, made if it is missing; nobody but this user may read it."""
        flags = os.O_RDWR | os.O_CLOEXEC | os.O_CREAT
        return File(path, self._call("open", path, lambda: os.open(path, flags, 0o600)))

    def open_to_read(self, path: str) -> File:
        """Open for reading only (scans of a store that another process owns)."""
        return File(
            path, self._call("open", path, lambda: os.open(path, os.O_RDONLY | os.O_CLOEXEC))
        )

    def open_direct(self, path: str) -> File:
        """For writes past the page cache: positions, lengths and addresses in whole pages. Fails
        where the file system has none.
        """
        flags = os.O_RDWR | os.O_CLOEXEC | getattr(os, "O_DIRECT", 0)
        return File(path, self._call("open", path, lambda: os.open(path, flags)))

    def exists(self, path: str) -> bool:
        """Whether a file or directory of that name is there."""
        return os.path.lexists(path)

    def is_dir(self, path: str) -> bool:
        """Whether it is a directory."""
        return os.path.isdir(path)

    def list_dir(self, path: str) -> list[str]:
        """Names in a directory, sorted; empty when the directory is missing."""
        try:
            return sorted(os.listdir(path))
        except FileNotFoundError:
            return []
        except OSError as error:
            raise _typed(error, "list", path) from error

    def make_dirs(self, path: str) -> None:
        """Make a directory and its parents; existing ones are fine. New names are durable on
        return.
        """
        missing = []
        at = os.path.abspath(path)
        while not os.path.isdir(at):  # ends at "/"
            missing.append(at)
            at = os.path.dirname(at)
        self._call("make directory", path, lambda: os.makedirs(path, exist_ok=True))
        for made in missing:
            self.sync_dir(os.path.dirname(made))

    def make_dirs_unsynced(self, path: str) -> None:
        """The same without syncing: for derived files, whose names are synced when the files are
        flushed.
        """
        self._call("make directory", path, lambda: os.makedirs(path, exist_ok=True))

    def rename(self, source: str, target: str) -> None:
        """Atomically replace ``target``; durable after ``sync_dir``."""
        self._call("rename", source, lambda: os.replace(source, target))

    def unlink(self, path: str) -> None:
        """Remove a file; a missing one is fine."""
        try:
            os.unlink(path)
        except FileNotFoundError:
            return
        except OSError as error:
            raise _typed(error, "remove", path) from error

    def remove_whole(self, path: str) -> None:
        """Remove a small file durably; a missing one is fine."""
        self.unlink(path)
        self.sync_dir(os.path.dirname(path))

    def remove_dir(self, path: str) -> None:
        """Remove an empty directory; a missing one is fine."""
        try:
            os.rmdir(path)
        except FileNotFoundError:
            return
        except OSError as error:
            raise _typed(error, "remove directory", path) from error

    def sync_dir(self, path: str) -> None:
        """On return the names made, renamed and removed in this directory survive a power loss."""
        fd = self._call(
            "open directory",
            path,
            lambda: os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC),
        )
        try:
            os.fsync(fd)
        except OSError as error:
            raise StoreFailed(
                f"fsync of directory {path}: {error.strerror}; check the disk", path
            ) from error
        finally:
            os.close(fd)

    def disk_space(self, path: str) -> DiskSpace:
        """The room on the disk that holds ``path``, as an unprivileged user sees it."""
        stat = self._call("statvfs", path, lambda: os.statvfs(path))
        usable = stat.f_blocks - stat.f_bfree + stat.f_bavail
        used_ratio = (stat.f_blocks - stat.f_bfree) / usable if usable else 1.0
        total = stat.f_blocks * stat.f_frsize
        return DiskSpace(used_ratio, stat.f_bavail * stat.f_frsize, total)

    def file_size(self, path: str) -> int:
        """Size in bytes without opening."""
        return self._call("stat", path, lambda: os.stat(path)).st_size

    def mode(self, path: str) -> int:
        """Who may do what with it: the permission bits."""
        return self._call("stat", path, lambda: os.stat(path)).st_mode & 0o777

    def modified_ms(self, path: str) -> int:
        """Time of the last write, ms since the epoch."""
        return self._call("stat", path, lambda: os.stat(path)).st_mtime_ns // 1_000_000

    def set_modified_ms(self, path: str, modified_ms: int) -> None:
        """Set the time of the last write (a preallocated file gets its real one back)."""
        self._call(
            "set times of",
            path,
            lambda: os.utime(path, ns=(modified_ms * 1_000_000, modified_ms * 1_000_000)),
        )

    def read_whole(self, path: str) -> bytes:
        """The whole file; ``StoreMissing`` if it is not there."""
        file = self.open_to_read(path)
        try:
            return file.pread(file.size(), 0)
        finally:
            file.close()

    def write_whole(self, path: str, data: Bytes) -> None:
        """Replace a small file atomically and durably: write ``path.tmp``, sync, rename, sync the
        directory.
        """
        self._replace(path, data, self.open(f"{path}.tmp", create=True))

    def write_private(self, path: str, data: Bytes) -> None:
        """The same for a file that nobody but this user may read, from its first byte on."""
        self.unlink(f"{path}.tmp")  # one that was left may be readable for others
        self._replace(path, data, self.open_private(f"{path}.tmp"))

    def _replace(self, path: str, data: Bytes, temporary: File) -> None:
        try:
            temporary.truncate(0)
            temporary.pwrite(data, 0)
            temporary.datasync()
        finally:
            temporary.close()
        self.rename(temporary.path, path)
        self.sync_dir(os.path.dirname(path))

    def lock_first_byte(self, path: str) -> DirectoryLock:
        """``lockf`` on byte 0, then the text ``lock``: what Apache RocketMQ's broker does
        (docs/file-format.md#tables-and-small-files).
        """
        fd = self._call(
            "open", path, lambda: os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        )
        try:
            fcntl.lockf(fd, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, 0, os.SEEK_SET)
            os.pwrite(fd, b"lock", 0)
        except OSError as error:
            os.close(fd)
            raise self._lock_error(error, path) from error
        return DirectoryLock(path, fd)

    def lock_directory(self, path: str) -> DirectoryLock:
        """``flock`` on a directory: holds between processes and between two stores of one
        process.
        """
        fd = self._call(
            "open directory",
            path,
            lambda: os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC),
        )
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            os.close(fd)
            raise self._lock_error(error, path) from error
        return DirectoryLock(path, fd)

    def boot_id(self) -> str:
        """Changes with every boot of the kernel: the page cache of another boot is gone. Empty when
        unknown.
        """
        try:
            with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
                return file.read().strip()
        except OSError:
            return ""

    def memory_bytes(self) -> int:
        """The machine's RAM."""
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")

    def random_bytes(self, count: int) -> bytes:
        """Bytes of the kernel's generator, for identities."""
        return os.urandom(count)

    @staticmethod
    def _lock_error(error: OSError, path: str) -> StoreError:
        if error.errno in (errno.EACCES, errno.EAGAIN):
            return StoreInUse(
                f"{path} is locked by another process; stop that broker or give this one "
                f"another path",
                path,
            )
        return _typed(error, "lock", path)

    @staticmethod
    def _call(doing: str, path: str, action: Callable[[], T]) -> T:
        try:
            return action()
        except OSError as error:
            raise _typed(error, doing, path) from error


@lru_cache(maxsize=1)
def host_id() -> str:
    """32 hex digits: this machine since its last boot, the same in all its processes and network
    namespaces.

    Two parties with the same value may share files; whether they do is checked by the store's
    identity at its path.
    """
    files = FileSystem()
    try:
        machine = files.read_whole("/etc/machine-id").strip()
    except StoreError:
        machine = b""
    known = machine + files.boot_id().encode()
    return hashlib.sha256(known or files.random_bytes(32)).hexdigest()[:32]


class FileCache:
    """Open files by path, at most ``limit`` at once: the least recently used are let go, for ten
    thousand consume queues must not hold ten thousand descriptors. ``read_only``: open them for
    reading only. Any thread.

    A file that a thread still uses is never closed under it, although it was dropped here: a
    ``File`` closes its descriptor with its last reference.
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
