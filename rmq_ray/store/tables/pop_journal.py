"""What the broker knows of popped messages, as a journal beside the log: who has which message
until when, what is acknowledged.

    rmq_ray/pop.journal    entries back to back; the first that is not whole and sound ends the file
    entry, big-endian      length u32 | CRC-32 of the payload u32 | payload: msgpack list, of length
    payload 0              ["rmq-pop", version, epoch of the log]
    others                 [kind, group, topic, queue id, ...]  events of ``protocol.pop``,
                           plain values

Decides: the form, and how much of a damaged file counts: all before the fault. Does not know what
events mean. An append is in the kernel on return (it survives the process, not the host's power);
``replace`` is durable on return. What a power loss takes from the end makes messages come again,
never vanish: the commit offsets have a file of their own. ``read`` and ``replace`` run in a thread,
``append`` in the broker's loop.

Invariants: after a failed append the next one writes over what it left; nothing is appended before
``replace`` made the file.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable
from dataclasses import dataclass, field
from struct import Struct
from typing import Any

import msgpack

from rmq_ray.errors import StoreFailed, StoreMissing
from rmq_ray.files import File, FileSystem

MARK = "rmq-pop"
VERSION = 1
_HEAD = Struct(">II")
_PAYLOAD_MAX = 1 << 20


@dataclass(frozen=True, slots=True)
class PopHistory:
    """What a file says: the log's epoch in which it was written, and its events. Nothing = no file,
    or none of ours.
    """

    epoch: int = 0
    events: list[list[Any]] = field(default_factory=list)


class PopJournal:
    """One broker's file."""

    def __init__(self, path: str, files: FileSystem) -> None:
        self._path = path
        self._files = files
        self._file: File | None = None
        self.size = 0
        """Bytes of the file that count."""

    def read(self) -> PopHistory:
        """The file as far as it is sound."""
        try:
            data = self._files.read_whole(self._path)
        except StoreMissing:
            return PopHistory()
        entries = list(_entries(data))
        if (
            not entries
            or entries[0][:2] != [MARK, VERSION]
            or len(entries[0]) != 3
            or not isinstance(entries[0][2], int)
        ):
            return PopHistory()
        return PopHistory(entries[0][2], entries[1:])

    def append(self, events: Iterable[Iterable[Any]]) -> None:
        """Write these at the end. Raises the store's errors; then none of them counts."""
        if self._file is None:
            raise StoreFailed(
                f"{self._path} is not open; it is written anew in a moment", self._path
            )
        data = b"".join(map(_entry, events))
        self._file.pwrite(data, self.size)
        self.size += len(data)

    def write(self, epoch: int, events: Iterable[Iterable[Any]]) -> int:
        """Put a new file in the old one's place, durable on return; its length in bytes. ``reopen``
        follows in the loop.
        """
        data = b"".join(map(_entry, ((MARK, VERSION, epoch), *events)))
        self._files.make_dirs(self._path.rpartition("/")[0])
        self._files.write_whole(self._path, data)
        return len(data)

    def reopen(self, size: int) -> None:
        """From here on appends go to the file of ``size`` bytes that ``write`` made."""
        file, self._file = self._file, None
        if file is not None:
            file.close()
        self._file, self.size = self._files.open(self._path), size

    def close(self) -> None:
        """No further appends."""
        file, self._file = self._file, None
        if file is not None:
            file.close()


def _entry(event: Iterable[Any]) -> bytes:
    payload: bytes = msgpack.packb(list(event))
    return _HEAD.pack(len(payload), zlib.crc32(payload)) + payload


def _entries(data: bytes) -> Iterable[list[Any]]:
    at = 0
    while at + _HEAD.size <= len(data):
        length, crc = _HEAD.unpack_from(data, at)
        payload = data[at + _HEAD.size : at + _HEAD.size + length]
        if not 0 < length <= _PAYLOAD_MAX or len(payload) != length or zlib.crc32(payload) != crc:
            return
        entry = msgpack.unpackb(payload)
        if not isinstance(entry, list):
            return
        yield entry
        at += _HEAD.size + length
