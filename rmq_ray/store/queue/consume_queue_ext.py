"""A consume queue whose entries refer to extension units: what does not fit into an entry's 20
bytes (docs/file-format.md#extension-units; enableConsumeQueueExt).

    directory/00000000000000000000     files of equal size, named by the byte where they start,
                                       sparse; a unit never spans two

    unit, big-endian:   0 size i16  |  2 tags code i64  |  10 store time i64
                        18 bit map length i16  |  20 bit map
    end of a full file: size -1, then zeros; at least 4 bytes are left for it

An entry refers to its unit by an address in place of its tags code: position + Long.MIN_VALUE, so
that every number up to ``ADDRESS_MAX`` is one.

Decides: where units go (``ConsumeQueueExt``), which appended entries get one (those that are new),
what readers see instead of an address (the tags code), which entries a bit map rules out
(``ExtendedQueue``). Does not decide what is in a bit map.

Invariants: units lie back to back in the order of their entries, nothing but zeros follows the last
one; units are durable before the entries that refer to them. One thread puts, any thread gets.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from rmq_ray.arrays import Array
from rmq_ray.codec.store_files import BLANK_SIZE, ENTRIES, ENTRY_BYTES
from rmq_ray.errors import StoreError, StoreMissing
from rmq_ray.files import FileCache, FileSystem
from rmq_ray.store.queue.consume_queue import ConsumeQueue

LONG_MIN = -(1 << 63)
ADDRESS_MAX = -(1 << 31) - 1
"""Numbers up to this in the place of a tags code are addresses."""
HEAD = struct.Struct(">hqqh")
UNIT_BYTES_MIN = HEAD.size  # 20
UNIT_BYTES_MAX = 32_767
END_BYTES = 4  # kept free at the end of a file
END_MARK = b"\xff\xff"
_SPAN_MAX = 1 << 20
_ENTRIES_A_READ = 3_276
Hit = Callable[[int, bytes], bool]
"""(store time, bit map) -> whether the message may pass an SQL filter."""


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


@dataclass(frozen=True, slots=True)
class ExtSettings:
    """``root``: directory beside ``consumequeue``. ``enabled``: new entries get units; else
    existing ones are read only.
    """

    root: str
    file_bytes: int
    enabled: bool


class ExtendedQueue(ConsumeQueue):
    """``ConsumeQueue`` with units."""

    __slots__ = ("_enabled", "ext")

    def __init__(
        self,
        directory: str,
        entries_per_file: int,
        files: FileSystem,
        cache: FileCache,
        ext: ConsumeQueueExt,
        enabled: bool,
    ) -> None:
        super().__init__(directory, entries_per_file, files, cache)
        self.ext = ext
        self._enabled = enabled

    def append(
        self,
        first_offset: int,
        entries: bytes | bytearray | memoryview,
        store_ms: int | Array = 0,
        bit_maps: Sequence[bytes] | None = None,
    ) -> int:
        """See ``ConsumeQueue.append``; ``store_ms`` and ``bit_maps`` go into the units of the
        entries that are new.
        """
        if not self._enabled:
            return super().append(first_offset, entries)
        count = len(entries) // ENTRY_BYTES
        skip = self._built_already(first_offset, entries, count)
        if skip >= count:
            return 0
        if not self.ext.is_open:
            self.ext.open_behind(self.last_address())
        changed = np.frombuffer(entries, ENTRIES).copy()
        times = np.broadcast_to(np.asarray(store_ms, np.int64), count).tolist()
        codes = changed["code"].tolist()
        units = [
            ExtUnit(codes[row], times[row], bit_maps[row] if bit_maps is not None else b"")
            for row in range(skip, count)
        ]
        addresses = self.ext.put(units)
        changed["code"][skip:] = [
            code if address is None else address
            for code, address in zip(codes[skip:], addresses, strict=True)
        ]
        return super().append(first_offset, changed.tobytes())

    def resolve(self, entries: bytes, hit: Hit | None = None, lost: int = 0) -> bytes:
        """See ``ConsumeQueue.resolve``."""
        found = np.frombuffer(entries, ENTRIES)
        rows = np.flatnonzero((found["code"] <= ADDRESS_MAX) & (found["size"] != BLANK_SIZE))
        if not len(rows):
            return entries
        resolved = found.copy()
        units = self.ext.get_many(resolved["code"][rows].tolist())
        for row, unit in zip(rows.tolist(), units, strict=True):
            resolved["code"][row] = unit.code if unit is not None else lost
            if (
                hit is not None
                and unit is not None
                and unit.bit_map
                and not hit(unit.store_ms, unit.bit_map)
            ):
                resolved["size"][row] = BLANK_SIZE
        return resolved.tobytes()

    def last_address(self) -> int | None:
        """Address of the last unit that an entry refers to, looked for backwards; None when no
        entry does.
        """
        end = self.max_offset
        while end > self.log_min_offset:  # ends: falls by what was read
            begin = max(self.log_min_offset, end - _ENTRIES_A_READ)
            codes = np.frombuffer(self.read(begin, end - begin), ENTRIES)["code"]
            rows = np.flatnonzero(codes <= ADDRESS_MAX)
            if len(rows):
                return int(codes[rows[-1]])
            end = begin
        return None

    def truncate_to(self, offset: int) -> int:
        """See ``ConsumeQueue.truncate_to``; units that no entry refers to any more go before the
        next one is put.
        """
        dropped = super().truncate_to(offset)
        if dropped:
            self.ext.forget_end()
        return dropped

    def delete_files_before_min(self) -> int:
        """See ``ConsumeQueue.delete_files_before_min``; the same for units."""
        code = np.frombuffer(self.read(self.log_min_offset, 1), ENTRIES)["code"]
        if len(code) and code[0] <= ADDRESS_MAX:
            self.ext.delete_before(int(code[0]))
        return super().delete_files_before_min()

    def flush(self) -> bool:
        """See ``ConsumeQueue.flush``: units first."""
        self.ext.flush()
        return super().flush()

    def delete(self) -> None:
        """See ``ConsumeQueue.delete``."""
        self.ext.delete()
        super().delete()

    def close(self) -> None:
        """See ``ConsumeQueue.close``."""
        self.ext.close()
        super().close()
