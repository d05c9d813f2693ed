"""Extension units of one consume queue: what does not fit into an entry's 20 bytes (store-format
4).

    directory/00000000000000000000     files of equal size, named by the byte where they start, sparse; a unit never spans two

    unit:   0 size i16  |  2 tags code i64  |  10 store time i64  |  18 bit map length i16  |  20 bit map       big-endian
    end of a full file: size -1, then zeros; at least 4 bytes are left for it

An entry refers to its unit by an address in place of its tags code: position + Long.MIN_VALUE, so
that every number up to ``ADDRESS_MAX`` is one.

Decides: where units go, which addresses are units. Does not decide what is in a bit map, nor when
an entry gets a unit (``extended_queue``). Invariants: units lie back to back in the order of their
entries; nothing but zeros follows the last one. One thread puts, any thread gets.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass

from rmq_ray.errors import StoreError, StoreMissing
from rmq_ray.files import FileSystem
from rmq_ray.store.io.file_cache import FileCache

LONG_MIN = -(1 << 63)
ADDRESS_MAX = -(1 << 31) - 1
"""Numbers up to this in the place of a tags code are addresses."""
HEAD = struct.Struct(">hqqh")
UNIT_BYTES_MIN = HEAD.size  # 20
UNIT_BYTES_MAX = 32_767
END_BYTES = 4  # kept free at the end of a file
END_MARK = b"\xff\xff"
_SPAN_MAX = 1 << 20


@dataclass(frozen=True, slots=True)
class ExtUnit:
    """``bit_map``: which SQL filters the message passes; empty where none was made."""

    code: int
    store_ms: int
    bit_map: bytes = b""


def is_address(code: int) -> bool:
    """Whether a tags code is the address of a unit."""
    return code <= ADDRESS_MAX


def pack_unit(unit: ExtUnit) -> bytes:
    """The bytes of a unit.

    >>> pack_unit(ExtUnit(1, 2)).hex()
    '0014000000000000000100000000000000020000'
    """
    return (
        HEAD.pack(UNIT_BYTES_MIN + len(unit.bit_map), unit.code, unit.store_ms, len(unit.bit_map))
        + unit.bit_map
    )


def unpack_unit(data: bytes, at: int) -> ExtUnit | None:
    """The unit at byte ``at``; None when there is none, or not whole."""
    if at < 0 or at + UNIT_BYTES_MIN > len(data):
        return None
    size, code, store_ms, length = HEAD.unpack_from(data, at)
    if length < 0 or size != UNIT_BYTES_MIN + length or at + size > len(data):
        return None
    return ExtUnit(code, store_ms, data[at + UNIT_BYTES_MIN : at + size])


class ConsumeQueueExt:
    """``file_bytes``: size of a file. ``open_behind`` comes before the first ``put``."""

    __slots__ = (
        "_cache",
        "_end",
        "_file_bytes",
        "_files",
        "_is_new",
        "_starts",
        "_unflushed",
        "directory",
    )

    def __init__(
        self, directory: str, file_bytes: int, files: FileSystem, cache: FileCache
    ) -> None:
        self.directory = directory
        self._file_bytes = file_bytes
        self._files = files
        self._cache = cache
        self._starts = sorted(
            int(name) for name in files.list_dir(directory) if len(name) == 20 and name.isdigit()
        )
        self._end: int | None = None
        self._unflushed: set[int] = set()
        self._is_new = False

    @property
    def is_open(self) -> bool:
        """Whether it is known where the next unit goes."""
        return self._end is not None

    def open_behind(self, last_address: int | None) -> None:
        """The next unit follows the one at ``last_address``, what lies behind that goes; None: no
        entry refers to a unit, all of them go.
        """
        if last_address is None:
            if self._starts:
                self.delete()
            self._end = 0
            return
        position = last_address - LONG_MIN
        unit = self.get(last_address)
        if (
            unit is None
        ):  # a power loss took it: its place is not used again, for its entry still points there
            self._end = (
                self._starts[-1] if self._starts else position - position % self._file_bytes
            ) + self._file_bytes
            return
        self._end = position + UNIT_BYTES_MIN + len(unit.bit_map)
        for start in [start for start in self._starts if start >= self._end]:
            self._remove(start)
        start = position - position % self._file_bytes
        file = self._cache.get(self._path(start))
        file.truncate(self._end - start)
        file.truncate(self._file_bytes)

    def forget_end(self) -> None:
        """Entries were cut: ``open_behind`` is needed again."""
        self._end = None

    def put(self, units: Sequence[ExtUnit]) -> list[int | None]:
        """Write units one behind the other; the address of each, None for one that does not fit
        into a file.
        """
        assert self._end is not None, "open_behind comes first"
        addresses: list[int | None] = []
        pending, begin = bytearray(), self._end
        for unit in units:
            data = pack_unit(unit) if len(unit.bit_map) <= UNIT_BYTES_MAX - UNIT_BYTES_MIN else b""
            if not data or len(data) > self._file_bytes - END_BYTES:
                addresses.append(None)
                continue
            at = begin + len(pending)
            room = self._file_bytes - at % self._file_bytes - END_BYTES
            if len(data) > room:
                self._write(begin, pending + END_MARK)
                begin = at - at % self._file_bytes + self._file_bytes
                pending, at = bytearray(), begin
            addresses.append(at + LONG_MIN)
            pending += data
        self._write(begin, pending)
        self._end = begin + len(pending)
        return addresses

    def get(self, address: int) -> ExtUnit | None:
        """The unit at an address; None when it is not there (any more)."""
        return self.get_many([address])[0]

    def get_many(self, addresses: Sequence[int]) -> list[ExtUnit | None]:
        """The same for many; addresses that lie close together are read at once."""
        found: list[ExtUnit | None] = []
        data, begin, end = b"", 0, -1
        for index, address in enumerate(addresses):
            position = address - LONG_MIN
            if (
                not begin <= position < end - UNIT_BYTES_MIN
                or (unit := unpack_unit(data, position - begin)) is None
            ):
                last = addresses[-1] - LONG_MIN
                near = position <= last < position + _SPAN_MAX and index + 1 < len(addresses)
                begin, length = position, (last - position if near else 0) + UNIT_BYTES_MAX
                data = self._read(begin, length)
                end = begin + len(data)
                unit = unpack_unit(data, 0)
            found.append(unit)
        return found

    def delete_before(self, address: int) -> int:
        """Remove files that lie wholly before the unit at ``address``; returns how many."""
        gone = [start for start in self._starts if start + self._file_bytes <= address - LONG_MIN]
        for start in gone:
            self._remove(start)
        return len(gone)

    def flush(self) -> None:
        """On return every unit that was put before the call survives a power loss. May run beside
        ``put``.
        """
        starts = sorted(self._unflushed)
        self._unflushed.difference_update(starts)
        for start in starts:
            try:
                self._cache.get(self._path(start)).datasync()
            except StoreMissing:
                if start in self._starts:
                    raise
            except StoreError:
                self._unflushed.add(start)
                raise
        if starts:
            self._files.sync_dir(self.directory)
        if self._is_new:
            self._is_new = False
            topic = self.directory.rpartition("/")[0]
            self._files.sync_dir(topic)
            self._files.sync_dir(topic.rpartition("/")[0])

    def delete(self) -> None:
        """Remove every file and the directory."""
        for start in list(self._starts):
            self._remove(start)
        self._files.remove_dir(self.directory)
        self._unflushed.clear()
        self._end = None

    def close(self) -> None:
        """Let go of open files."""
        for start in self._starts:
            self._cache.drop(self._path(start))

    def _write(self, position: int, data: bytes | bytearray) -> None:
        """Within one file, which is made when it is not there."""
        if not data:
            return
        start = position - position % self._file_bytes
        if start not in self._starts:
            self._is_new = self._is_new or not self._starts
            self._files.make_dirs_unsynced(self.directory)
            self._cache.create(self._path(start), self._file_bytes)
            self._starts.append(start)
        self._unflushed.add(start)
        self._cache.get(self._path(start)).pwrite(data, position - start)

    def _read(self, position: int, length: int) -> bytes:
        start = position - position % self._file_bytes
        if position < 0 or start not in self._starts:
            return b""
        try:
            return self._cache.get(self._path(start)).pread(
                min(length, start + self._file_bytes - position), position - start
            )
        except StoreMissing:
            return b""  # retention was faster

    def _remove(self, start: int) -> None:
        path = self._path(start)
        self._starts.remove(start)
        self._cache.drop(path)
        self._files.unlink(path)

    def _path(self, start: int) -> str:
        return f"{self.directory}/{start:020d}"
