"""A file system in user space that has a power switch; ``disk.Disk`` starts it.

    python -m tests.torture.power_loss_fs MOUNT BACKING SOCKET SEED

    live      what programs read and write
    durable   what would be there after a loss of power: a file's bytes as of its last fsync, a
              directory's names as of the fsync of that directory

After a loss of power each write since the last fsync is there, or not, or torn at a multiple of 512
bytes, as the seed says; of what was made, renamed and removed in a directory since its fsync a
beginning is there, in that order.

One request is served at a time. A second thread takes commands over a Unix socket, a line of JSON
each (``Disk`` sends them); they name the directory below the root that they are for, which stands
for one host's disk.

Decides what a disk may forget and how it may fail. Does not kill the programs that use it: between
``off`` and ``on`` every call ends with EIO, so that nothing is acknowledged after the loss.
"""

from __future__ import annotations

import errno
import itertools
import json
import os
import random
import socket
import stat
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import mfusepy

SECTOR = 512


class Node:
    """A file or a directory. ``durable`` of a directory: its names after a loss of power;
    ``pending``: what happened to it since its last fsync, in order.
    """

    def __init__(self, mode: int, number: int) -> None:
        self.mode, self.number = mode, number
        self.mtime_ns = self.atime_ns = time.time_ns()
        self.names: dict[str, Node] = {}
        self.durable: dict[str, Node] = {}
        self.pending: list[tuple[Any, ...]] = []
        self.live_fd = self.durable_fd = -1
        self.size = self.durable_size = 0

    @property
    def is_directory(self) -> bool:
        """Else a file."""
        return stat.S_ISDIR(self.mode)


class Host:
    """How one host's disk behaves now; counts are of calls that fail from now on. ``forgets``: what
    a failed sync should have written is gone, and the next sync is content.
    """

    def __init__(self) -> None:
        self.off = self.full = self.lies = self.forgets = False
        self.write_errors = self.sync_errors = self.short_writes = 0
        self.sync_delay_s = 0.0


class PowerLossFs:
    """Everything that mfusepy asks for; each call by path or by the handle of an open file."""

    def __init__(self, backing: Path, seed: int) -> None:
        self.backing = backing
        self._random = random.Random(seed)
        self._numbers = itertools.count(2)
        self.handles: dict[int, Node] = {}
        self._next_handle = itertools.count(1)
        self.root = Node(stat.S_IFDIR | 0o755, 1)
        self.hosts: dict[str, Host] = {}
        self.lock = threading.Lock()
        self.dropped_writes = self.dropped_names = 0

    # --- finding ----------------------------------------------------------------------------------

    def host_of(self, path: str) -> Host:
        """The disk that a path lies on."""
        return self.hosts.setdefault(path.strip("/").split("/")[0], Host())

    def node(self, path: str) -> Node:
        """``OSError`` where there is none."""
        found = self.root
        for name in path.strip("/").split("/"):
            if name:
                inner = found.names.get(name) if found.is_directory else None
                if inner is None:
                    raise OSError(errno.ENOENT, path)
                found = inner
        return found

    def parent(self, path: str) -> tuple[Node, str]:
        folder, _, name = path.rstrip("/").rpartition("/")
        return self.node(folder), name

    def opened(self, node: Node) -> int:
        handle = next(self._next_handle)
        self.handles[handle] = node
        return handle

    def file(self, path: str, handle: int | None) -> Node:
        return self.handles[handle] if handle in self.handles else self.node(path)

    # --- names ------------------------------------------------------------------------------------

    def make(self, path: str, mode: int) -> Node:
        """A new file or directory."""
        parent, name = self.parent(path)
        if name in parent.names:
            raise OSError(errno.EEXIST, path)
        node = Node(mode, next(self._numbers))
        if not node.is_directory:
            for which in ("live_fd", "durable_fd"):
                fd, place = tempfile.mkstemp(dir=self.backing)
                os.unlink(place)
                setattr(node, which, fd)
        self._change(parent, ("set", name, node))
        return node

    def remove(self, path: str) -> None:
        """A file or an empty directory; open handles keep working."""
        parent, name = self.parent(path)
        if self.node(path).names:
            raise OSError(errno.ENOTEMPTY, path)
        self._change(parent, ("del", name))

    def rename(self, old: str, new: str) -> None:
        """Within a directory one step, else two."""
        (source, before), (target, after) = self.parent(old), self.parent(new)
        node = self.node(old)
        if source is target:
            self._change(source, ("rename", before, after))
            return
        self._change(target, ("set", after, node))
        self._change(source, ("del", before))

    @staticmethod
    def _change(folder: Node, step: tuple[Any, ...]) -> None:
        _do(folder.names, step)
        folder.pending.append(step)

    # --- bytes ------------------------------------------------------------------------------------

    def write(self, node: Node, data: bytes, offset: int) -> int:
        """Into the live file."""
        os.pwrite(node.live_fd, data, offset)
        node.size = max(node.size, offset + len(data))
        node.pending.append(("write", offset, data))
        node.mtime_ns = time.time_ns()
        return len(data)

    def resize(self, node: Node, size: int) -> None:
        """Cut or extend by zeros."""
        os.ftruncate(node.live_fd, size)
        node.size = size
        node.pending.append(("size", size))
        node.mtime_ns = time.time_ns()

    @staticmethod
    def sync(node: Node) -> None:
        """What is live is durable from now on."""
        if node.is_directory:
            node.durable = dict(node.names)
        else:
            for step in node.pending:
                _put(node, step)
        node.pending.clear()

    # --- damage -----------------------------------------------------------------------------------

    def sizes(self, path: str) -> dict[str, int]:
        """Files below a directory, by their path."""
        try:
            node = self.node(path)
        except OSError:
            return {}
        if not node.is_directory:
            return {path: node.size}
        inner = (self.sizes(f"{path}/{name}") for name in sorted(node.names))
        return {place: size for found in inner for place, size in found.items()}

    def flip(self, path: str, share: float) -> None:
        """One bit, at this share of what was ever written; what was not synced is, first."""
        node = self.node(path)
        self.sync(node)
        data = os.pread(node.live_fd, node.size, 0).rstrip(b"\0")
        if not data:
            return
        at = int(share * len(data))
        for fd in (node.live_fd, node.durable_fd):
            os.pwrite(fd, bytes((data[at] ^ 1 << at % 8,)), at)

    def cut(self, path: str, share: float) -> None:
        """Only this share of a file is left."""
        node = self.node(path)
        self.resize(node, int(share * node.size))
        self.sync(node)

    # --- power ------------------------------------------------------------------------------------

    def lose_power(self, name: str) -> None:
        """Of one host. The directory itself and what was synced stay."""
        host = self.root.names.get(name)
        if host is None:
            return
        self._forget(host, set())
        self.root.durable = dict(self.root.names)

    def _forget(self, node: Node, seen: set[int]) -> None:
        if node.number in seen:
            return
        seen.add(node.number)
        if not node.is_directory:
            self.forget_bytes(node, kept=0.45, torn=0.15)
            return
        kept = self._random.randint(0, len(node.pending))
        self.dropped_names += len(node.pending) - kept
        for step in node.pending[:kept]:
            _do(node.durable, step)
        node.pending.clear()
        node.names = dict(node.durable)
        for inner in list(node.names.values()):
            self._forget(inner, seen)

    def forget_bytes(self, node: Node, kept: float, torn: float) -> None:
        """Of each write that was not synced: whether it is there, torn, or not."""
        touched = [
            (step[1], len(step[2])) if step[0] == "write" else (step[1], 0) for step in node.pending
        ]
        for step in node.pending:
            fate = self._random.random()
            if fate < kept:
                _put(node, step)
                continue
            self.dropped_writes += 1
            if fate < kept + torn and step[0] == "write" and len(step[2]) > SECTOR:
                length = self._random.randrange(SECTOR, len(step[2]), SECTOR)
                _put(node, ("write", step[1], step[2][:length]))
        node.pending.clear()
        os.ftruncate(node.live_fd, node.durable_size)
        node.size = node.durable_size
        for offset, length in touched:
            data = os.pread(node.durable_fd, length, offset)
            if data:
                os.pwrite(node.live_fd, data.ljust(min(length, node.size - offset), b"\0"), offset)


def _do(names: dict[str, Node], step: tuple[Any, ...]) -> None:
    if step[0] == "set":
        names[step[1]] = step[2]
    elif step[0] == "del":
        names.pop(step[1], None)
    elif step[1] in names:
        names[step[2]] = names.pop(step[1])


def _put(node: Node, step: tuple[Any, ...]) -> None:
    if step[0] == "write":
        os.pwrite(node.durable_fd, step[2], step[1])
        node.durable_size = max(node.durable_size, step[1] + len(step[2]))
    else:
        os.ftruncate(node.durable_fd, step[1])
        node.durable_size = step[1]


class Operations(mfusepy.Operations):  # type: ignore[misc]
    """One call of the kernel each."""

    use_ns = True  # times are nanoseconds

    def __init__(self, fs: PowerLossFs) -> None:
        self._fs = fs

    @contextmanager
    def _on(self, path: str) -> Iterator[Host]:
        with self._fs.lock:
            host = self._fs.host_of(path)
            if host.off:
                raise OSError(errno.EIO, path)
            yield host

    def getattr(self, path: str, fh: int | None = None) -> dict[str, Any]:
        with self._on(path):
            node = self._fs.file(path, fh)
            return {
                "st_mode": node.mode,
                "st_ino": node.number,
                "st_nlink": 2 if node.is_directory else 1,
                "st_size": node.size,
                "st_blocks": -(-node.size // SECTOR),
                "st_mtime": node.mtime_ns,
                "st_atime": node.atime_ns,
                "st_ctime": node.mtime_ns,
                "st_uid": os.getuid(),
                "st_gid": os.getgid(),
            }

    def readdir(self, path: str, fh: int) -> list[str]:
        with self._on(path):
            return [".", "..", *self._fs.node(path).names]

    def mkdir(self, path: str, mode: int) -> int:
        with self._on(path):
            self._fs.make(path, stat.S_IFDIR | mode)
            return 0

    def create(self, path: str, mode: int, fi: Any = None) -> int:
        with self._on(path) as host:
            if host.full:
                raise OSError(errno.ENOSPC, path)
            return self._fs.opened(self._fs.make(path, stat.S_IFREG | mode))

    def open(self, path: str, flags: int) -> int:
        with self._on(path):
            node = self._fs.node(path)
            if flags & os.O_TRUNC:
                self._fs.resize(node, 0)
            return self._fs.opened(node)

    def release(self, path: str, fh: int) -> int:
        with self._fs.lock:
            self._fs.handles.pop(fh, None)
            return 0

    def read(self, path: str, size: int, offset: int, fh: int) -> bytes:
        with self._on(path):
            node = self._fs.file(path, fh)
            return os.pread(node.live_fd, max(0, min(size, node.size - offset)), offset)

    def write(self, path: str, data: bytes, offset: int, fh: int) -> int:
        with self._on(path) as host:
            if host.full:
                raise OSError(errno.ENOSPC, path)
            if host.write_errors:
                host.write_errors -= 1
                raise OSError(errno.EIO, path)
            if host.short_writes and len(data) > 1:
                host.short_writes -= 1
                data = data[: len(data) // 2]
            return self._fs.write(self._fs.file(path, fh), bytes(data), offset)

    def truncate(self, path: str, length: int, fh: int | None = None) -> int:
        with self._on(path):
            self._fs.resize(self._fs.file(path, fh), length)
            return 0

    def fallocate(self, path: str, mode: int, offset: int, length: int, fh: int) -> int:
        with self._on(path) as host:
            if mode:
                raise OSError(errno.EOPNOTSUPP, path)
            if host.full:
                raise OSError(errno.ENOSPC, path)
            node = self._fs.file(path, fh)
            self._fs.resize(node, max(node.size, offset + length))
            return 0

    def fsync(self, path: str, datasync: int, fh: int) -> int:
        with self._on(path) as host:
            if host.sync_errors:
                host.sync_errors -= 1
                if host.forgets:
                    self._fs.forget_bytes(self._fs.file(path, fh), kept=0.0, torn=0.0)
                raise OSError(errno.EIO, path)
            delay_s, lies = host.sync_delay_s, host.lies
        if delay_s:
            time.sleep(delay_s)
        with self._on(path):
            if not lies:
                self._fs.sync(self._fs.file(path, fh))
            return 0

    def fsyncdir(self, path: str, datasync: int, fh: int) -> int:
        with self._on(path):
            self._fs.sync(self._fs.node(path))
            return 0

    def unlink(self, path: str) -> int:
        with self._on(path):
            self._fs.remove(path)
            return 0

    rmdir = unlink

    def rename(self, old: str, new: str) -> int:
        with self._on(old):
            self._fs.rename(old, new)
            return 0

    def chmod(self, path: str, mode: int) -> int:
        with self._on(path):
            node = self._fs.node(path)
            node.mode = stat.S_IFMT(node.mode) | stat.S_IMODE(mode)
            return 0

    def utimens(self, path: str, times: tuple[int, int] | None = None) -> int:
        with self._on(path):
            node, now_ns = self._fs.node(path), time.time_ns()
            node.atime_ns, node.mtime_ns = times or (now_ns, now_ns)
            return 0

    def statfs(self, path: str) -> dict[str, int]:
        with self._on(path) as host:
            found = os.statvfs(self._fs.backing)
            free = 0 if host.full else found.f_bavail
            return {
                "f_bsize": found.f_bsize,
                "f_frsize": found.f_frsize,
                "f_blocks": found.f_blocks,
                "f_bfree": free,
                "f_bavail": free,
                "f_namemax": 255,
            }


def _command(fs: PowerLossFs, told: dict[str, Any]) -> dict[str, Any]:
    with fs.lock:
        host = fs.hosts.setdefault(told["host"], Host())
        path = f"{told['host']}/{told.get('path', '')}"
        if told["do"] == "lose_power":
            fs.lose_power(told["host"])
        elif told["do"] == "remove":
            _remove(fs, path)
        elif told["do"] == "sizes":
            return {found[len(told["host"]) + 1 :]: n for found, n in fs.sizes(path).items()}
        elif told["do"] == "flip":
            fs.flip(path, told["share"])
        elif told["do"] == "cut":
            fs.cut(path, told["share"])
        else:
            for name, value in told["set"].items():
                if not hasattr(host, name):
                    return {"error": f"a host has no {name}"}
                setattr(host, name, value)
        return {"dropped_writes": fs.dropped_writes, "dropped_names": fs.dropped_names}


def _remove(fs: PowerLossFs, path: str) -> None:
    try:
        node = fs.node(path)
    except OSError:
        return
    for name in list(node.names):
        _remove(fs, f"{path}/{name}")
    parent, name = fs.parent(path)
    PowerLossFs._change(parent, ("del", name))


def _listen(fs: PowerLossFs, path: str) -> None:
    server = socket.socket(socket.AF_UNIX)
    server.bind(path)
    server.listen()
    while True:  # as long as the process lives
        peer, _ = server.accept()
        with peer, peer.makefile("rw") as lines:
            for line in lines:
                lines.write(json.dumps(_command(fs, json.loads(line))) + "\n")
                lines.flush()


def main() -> None:
    """See the module; ends when it is unmounted."""
    mount, backing, control, seed = sys.argv[1:]
    fs = PowerLossFs(Path(backing), int(seed))
    threading.Thread(target=_listen, args=(fs, control), daemon=True).start()
    mfusepy.FUSE(
        Operations(fs),
        mount,
        foreground=True,
        attr_timeout=0,
        entry_timeout=0,
        negative_timeout=0,
        fsname="rmq-torture",
    )


if __name__ == "__main__":
    main()
