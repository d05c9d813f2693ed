"""A file system in memory that knows what was synced: tests stop it at any point and look at what a
disk may hold then.

Two views of every file: ``current`` (the page cache: what a living process reads) and ``stable``
(what was synced). Every write since the last sync is kept, in order, so that a power loss may keep
any of them, drop any one, or tear one at any byte. Names are stable after ``sync_dir``.
``survivor()`` builds the file system that the next life finds.

    process death    after_kill(): all writes stay, synced or not, as does what is not synced yet
    power loss       survivor(keep_none | keep_all | a choice), another boot id

Faults: ``fail_next(action, path part, error)`` makes one call raise as the real ``FileSystem``
would; a failed ``datasync`` forgets the writes it should have synced, as Linux does: readers see
them until ``forget_cached``.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from rmq_ray.errors import (
    StoreError,
    StoreFailed,
    StoreFull,
    StoreInUse,
    StoreMissing,
    StoreUnreadable,
)
from rmq_ray.files import Bytes, DirectoryLock, DiskSpace, File, FileSystem

Keep = Callable[[int, "Change"], "bool | int"]
"""(number of the unsynced change, change) -> keep it, drop it, or keep that many bytes of it."""


def keep_all(_number: int, _change: Change) -> bool:
    return True


def keep_none(_number: int, _change: Change) -> bool:
    return False


@dataclass(slots=True)
class Change:
    """One unsynced change of one file: bytes at a position, or a new size (``data`` None)."""

    path: str
    position: int
    data: bytes | None
    sequence: int


@dataclass(slots=True)
class Inode:
    current: bytearray = field(default_factory=bytearray)
    stable: bytearray = field(default_factory=bytearray)
    pending: list[Change] = field(default_factory=list)
    modified_ms: int = 0


@dataclass(slots=True)
class Fault:
    action: str
    part: str
    error: str
    skip: int
    partial: int


def _apply(content: bytearray, change: Change, count: int | None = None) -> None:
    if change.data is None:
        if change.position < len(content):
            del content[change.position :]
        else:
            content.extend(bytes(change.position - len(content)))
        return
    data = change.data if count is None else change.data[:count]
    end = change.position + len(data)
    if end > len(content):
        content.extend(bytes(end - len(content)))
    content[change.position : end] = data


class CrashFile(File):
    """One open file of a ``CrashFileSystem``."""

    __slots__ = ("_disk", "_inode")

    def __init__(self, disk: CrashFileSystem, path: str, inode: Inode) -> None:
        self.path = path
        self._fd = -1
        self._disk = disk
        self._inode = inode

    def pwrite(self, data: Bytes, position: int) -> None:
        content = bytes(data)
        fault = self._disk.take_fault("pwrite", self.path)
        if fault is not None:
            if fault.partial:
                self._change(position, content[: fault.partial])
            raise self._disk.error(fault, self.path)
        self._change(position, content)

    def pread(self, count: int, position: int) -> bytes:
        self._disk.raise_fault("pread", self.path)
        return bytes(self._inode.current[position : position + count])

    def pread_into(self, buffer: memoryview, position: int) -> int:
        data = self.pread(len(buffer), position)
        buffer[: len(data)] = data
        return len(data)

    def datasync(self) -> None:
        fault = self._disk.take_fault("datasync", self.path)
        self._disk.syncs += 1
        if fault is not None:
            self._inode.pending.clear()
            raise self._disk.error(fault, self.path)
        for change in self._inode.pending:
            _apply(self._inode.stable, change)
        self._inode.pending.clear()

    def allocate(self, size: int) -> None:
        self._disk.raise_fault("allocate", self.path)
        if size > len(self._inode.current):
            self._change(size, None)

    def truncate(self, size: int) -> None:
        self._disk.raise_fault("truncate", self.path)
        self._change(size, None)

    def size(self) -> int:
        return len(self._inode.current)

    def data_end(self) -> int:
        return len(self._inode.current.rstrip(b"\0"))

    def read_ahead(self, position: int, count: int) -> None:
        pass

    def forget_cached(self, position: int, count: int) -> None:
        content = bytearray(self._inode.stable)
        for change in self._inode.pending:
            _apply(content, change)
        self._inode.current[:] = content

    def close(self) -> None:
        return

    def __del__(self) -> None:
        return

    def _change(self, position: int, data: bytes | None) -> None:
        self._disk.sequence += 1
        change = Change(self.path, position, data, self._disk.sequence)
        self._inode.pending.append(change)
        _apply(self._inode.current, change)
        self._disk.writes += data is not None


class _Lock(DirectoryLock):
    __slots__ = ("_held",)

    def __init__(self, path: str, held: set[str]) -> None:
        self.path = path
        self._fd = -1
        self._held = held

    def release(self) -> None:
        self._held.discard(self.path)


class CrashFileSystem(FileSystem):
    """See the module. ``boot``: what ``boot_id`` answers."""

    def __init__(self, boot: str = "boot-1") -> None:
        self.boot = boot
        self.names: dict[str, Inode] = {}
        self.stable_names: dict[str, Inode] = {}
        self.directories: set[str] = {"/"}
        self.faults: list[Fault] = []
        self.locks: set[str] = set()
        self.sequence = self.writes = self.syncs = 0
        self.ratio, self.free_bytes = 0.1, 0
        self.random = 0

    # --- what a test does -------------------------------------------------------------------------

    def fail_next(
        self, action: str, part: str, error: str = "EIO", *, skip: int = 0, partial: int = 0
    ) -> None:
        """The next call of ``action`` (after ``skip`` others) on a path that holds ``part`` fails
        with ENOSPC or EIO; a write has then written ``partial`` bytes.
        """
        self.faults.append(Fault(action, part, error, skip, partial))

    def unsynced(self, part: str = "") -> list[Change]:
        """All unsynced changes of files whose path holds ``part``, in the order they were made."""
        changes = [
            change for path, inode in self.names.items() if part in path for change in inode.pending
        ]
        return sorted(changes, key=lambda change: change.sequence)

    def survivor(
        self, keep: Keep, boot: str | None = None, *, names: bool = False
    ) -> CrashFileSystem:
        """The disk as the next life finds it. ``keep`` decides on every unsynced change, numbered
        over all files in order. ``names``: unsynced names survive too (they do where the process
        alone died: ``keep_all``).
        """
        after = type(self)(self.boot if boot is None else boot)
        after.directories = set(self.directories)
        after.random = self.random
        numbers = {change.sequence: number for number, change in enumerate(self.unsynced())}
        for path, inode in (self.names if names or keep is keep_all else self.stable_names).items():
            content = bytearray(inode.stable)
            for change in inode.pending:
                kept = keep(numbers.get(change.sequence, -1), change)
                if kept is True:
                    _apply(content, change)
                elif kept is not False:
                    _apply(content, change, kept)
            after.names[path] = after.stable_names[path] = Inode(
                content, bytearray(content), [], inode.modified_ms
            )
        return after

    def after_kill(self) -> CrashFileSystem:
        """The machine after its process died: page cache, disk and boot are as they were, locks are
        free. One life per disk.
        """
        after = type(self)(self.boot)
        after.names, after.stable_names, after.directories = (
            self.names,
            self.stable_names,
            self.directories,
        )
        after.random, after.sequence = self.random, self.sequence
        return after

    def flip(self, path: str, position: int, bit: int = 1) -> None:
        """Rot: change one bit on the disk and in the cache."""
        for content in (self.names[path].current, self.names[path].stable):
            if position < len(content):
                content[position] ^= bit

    def take_fault(self, action: str, path: str) -> Fault | None:
        """For files: the fault that this call meets."""
        for fault in self.faults:
            if fault.action == action and fault.part in path:
                if fault.skip:
                    fault.skip -= 1
                    return None
                self.faults.remove(fault)
                return fault
        return None

    def raise_fault(self, action: str, path: str) -> None:
        """For files: raise it."""
        fault = self.take_fault(action, path)
        if fault is not None:
            raise self.error(fault, path)

    def error(self, fault: Fault, path: str) -> StoreError:
        """What the real one would raise."""
        if fault.error == "ENOSPC":
            return StoreFull(f"{fault.action} {path}: No space left on device", path)
        kind = StoreUnreadable if fault.action == "pread" else StoreFailed
        return kind(f"{fault.action} {path}: Input/output error", path)

    # --- FileSystem -------------------------------------------------------------------------------

    def open(self, path: str, create: bool = False) -> File:
        self.raise_fault("open", path)
        inode = self.names.get(path)
        if inode is None:
            if not create or path.rpartition("/")[0] not in self.directories:
                raise StoreMissing(f"open {path}: No such file", path)
            inode = self.names[path] = Inode()
        return CrashFile(self, path, inode)

    def make_sized(self, path: str, size: int) -> File:
        file = self.open(path, create=True)
        file.truncate(size)
        return file

    def open_private(self, path: str) -> File:
        return self.open(path, create=True)

    def open_to_read(self, path: str) -> File:
        return self.open(path)

    def open_direct(self, path: str) -> File:
        self.raise_fault("open_direct", path)
        return self.open(path)

    def exists(self, path: str) -> bool:
        return path in self.names or path in self.directories

    def is_dir(self, path: str) -> bool:
        return path in self.directories

    def list_dir(self, path: str) -> list[str]:
        prefix = path.rstrip("/") + "/"
        below = [
            name[len(prefix) :].split("/")[0]
            for name in (*self.names, *self.directories)
            if name.startswith(prefix) and name != prefix
        ]
        return sorted(set(below))

    def make_dirs(self, path: str) -> None:
        parts = path.strip("/").split("/")
        for count in range(1, len(parts) + 1):
            self.directories.add("/" + "/".join(parts[:count]))

    def make_dirs_unsynced(self, path: str) -> None:
        self.make_dirs(path)

    def rename(self, source: str, target: str) -> None:
        self.raise_fault("rename", source)
        if source in self.directories:
            self._rename_directory(source, target)
            return
        if source not in self.names:
            raise StoreMissing(f"rename {source}: No such file", source)
        self.names[target] = self.names.pop(source)

    def unlink(self, path: str) -> None:
        self.raise_fault("unlink", path)
        self.names.pop(path, None)

    def remove_dir(self, path: str) -> None:
        self.directories.discard(path)

    def sync_dir(self, path: str) -> None:
        self.raise_fault("sync_dir", path)
        for name in [
            name
            for name in self.stable_names
            if name.rpartition("/")[0] == path and name not in self.names
        ]:
            del self.stable_names[name]
        for name, inode in self.names.items():
            if name.rpartition("/")[0] == path:
                self.stable_names[name] = inode

    def disk_space(self, path: str) -> DiskSpace:
        return DiskSpace(self.ratio, self.free_bytes)

    def file_size(self, path: str) -> int:
        return self.open(path).size()

    def modified_ms(self, path: str) -> int:
        return self.names[path].modified_ms

    def set_modified_ms(self, path: str, modified_ms: int) -> None:
        self.names[path].modified_ms = modified_ms

    def read_whole(self, path: str) -> bytes:
        file = self.open(path)
        return file.pread(file.size(), 0)

    def lock_first_byte(self, path: str) -> DirectoryLock:
        return self._take_lock(path)

    def lock_directory(self, path: str) -> DirectoryLock:
        return self._take_lock(path)

    def boot_id(self) -> str:
        return self.boot

    def memory_bytes(self) -> int:
        return 8 << 30

    def random_bytes(self, count: int) -> bytes:
        self.random += 1
        return self.random.to_bytes(count, "big")

    def _rename_directory(self, source: str, target: str) -> None:
        """Stable at once: what a power loss may undo of it is not modelled."""
        for names in (self.names, self.stable_names):
            for name in [name for name in names if name.startswith(source + "/")]:
                names[target + name[len(source) :]] = names.pop(name)
        moved = {
            name for name in self.directories if name == source or name.startswith(source + "/")
        }
        self.directories = (self.directories - moved) | {
            target + name[len(source) :] for name in moved
        }

    def _take_lock(self, path: str) -> DirectoryLock:
        if path in self.locks:
            raise StoreInUse(f"{path} is locked", path)
        self.locks.add(path)
        return _Lock(path, self.locks)
