"""One index file: from the hash of ``topic#key`` to the log offsets of records
(docs/file-format.md#index).

       0  beginTimestamp i64 | endTimestamp i64 | beginPhyOffset i64 | endPhyOffset i64
      32  slots used i32 | next item i32
      40  slots * i32          number of the newest item of the slot's chain, 0 = none
     ...  items * 20 bytes     key hash i32 | log offset i64 | seconds after beginTimestamp i32 |
                               previous item of the chain i32

All big-endian; item numbers begin at 1. Real size: 5,000,000 slots, 20,000,000 items, 420,000,040
bytes, sparse.

Decides: chains and their order (newest first), what a crash leaves valid. Does not decide when to
begin a new file (index service) or which keys are indexed (dispatcher).

How it survives a crash without mmap: items are written in order with ``pwrite``; slots live in
memory and their dirty pages are written back now and then, always after the items they point to
were synced, and the header after them: a header on disk promises that the slots know its items, for
Apache RocketMQ indexes no record again that lies before its endPhyOffset. ``durable`` says how many
items were synced and how many of those the slots on disk already know; ``cut`` goes back to such a
point: slots that point beyond it walk back through ``previous``, items that the slots do not know
yet are linked again. One thread puts; flushes and queries may run beside it.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from rmq_ray.errors import StoreCorrupt
from rmq_ray.files import File, FileSystem

Array = np.ndarray[Any, Any]

HEADER = struct.Struct(">qqqqii")
HEADER_BYTES = HEADER.size  # 40
ITEM = struct.Struct(">iqii")
ITEM_BYTES = ITEM.size  # 20
ITEMS = np.dtype([("hash", ">i4"), ("log_offset", ">i8"), ("seconds", ">i4"), ("previous", ">i4")])
SLOT_BYTES = 4
SECONDS_MAX = 0x7FFFFFFF
_SECOND_MS = 1_000
_PAGE_BYTES = 4096
_GAP_PAGES = 16  # clean pages between dirty ones that are cheaper to write again than to leave out
_RELINK_ITEMS = 1 << 20  # items linked again at once (20 MiB)


class IndexHeader(NamedTuple):
    """The file's header. Times are store times in ms of the first and last indexed record, offsets
    where they begin in the log.
    """

    begin_ms: int = 0
    end_ms: int = 0
    begin_offset: int = 0
    end_offset: int = 0
    slots_used: int = 0
    next_item: int = 1
    """Number of the next item."""

    def pack(self) -> bytes:
        """40 bytes."""
        return HEADER.pack(*self)


@dataclass(frozen=True, slots=True)
class Durable:
    """What of a file is synced: items below ``header.next_item``, of which the slots on disk know
    those below ``slots_count``.

    ``last_item``: bytes of the last of them, to know the file again.
    """

    header: IndexHeader
    slots_count: int
    last_item: bytes = b""


def index_file_bytes(slots: int, items: int) -> int:
    """The exact size.

    >>> index_file_bytes(5_000_000, 20_000_000)
    420000040
    """
    return HEADER_BYTES + slots * SLOT_BYTES + items * ITEM_BYTES


class IndexFile:
    """One file of a fixed geometry. After ``settle`` the slots are on disk only."""

    def __init__(
        self, path: str, slots: int, items: int, files: FileSystem, new: bool = False
    ) -> None:
        self.path = path
        self.header = IndexHeader()
        self.durable = Durable(self.header, 1)
        self._slots_max = slots
        self._items_max = items
        self._items_at = HEADER_BYTES + slots * SLOT_BYTES
        self._files = files
        self._file: File = (
            files.make_sized(path, index_file_bytes(slots, items)) if new else files.open(path)
        )
        self._slots: Array | None = None
        self._slot: memoryview = memoryview(b"")
        self._dirty = bytearray((self._items_at + _PAGE_BYTES - 1) // _PAGE_BYTES)

    @classmethod
    def create(
        cls, path: str, slots: int, items: int, files: FileSystem, after: IndexHeader | None
    ) -> IndexFile:
        """A new file; until its first item its times and offsets are the end of the file
        before it.
        """
        made = cls(path, slots, items, files, new=True)
        if after is not None:
            made.header = IndexHeader(
                after.end_ms, after.end_ms, after.end_offset, after.end_offset
            )
            made._file.pwrite(made.header.pack(), 0)
        made._hold_slots(np.zeros(slots, np.int32))
        return made

    @classmethod
    def load(cls, path: str, slots: int, items: int, files: FileSystem) -> IndexFile:
        """An existing file with its header. ``StoreCorrupt`` when size or header contradict the
        geometry.
        """
        found = cls(path, slots, items, files)
        size, wanted = found._file.size(), index_file_bytes(slots, items)
        header = IndexHeader(
            *HEADER.unpack(found._file.pread(HEADER_BYTES, 0).ljust(HEADER_BYTES, b"\0"))
        )
        header = header._replace(
            next_item=max(1, header.next_item)
        )  # Apache RocketMQ's reading of an empty file
        if size != wanted or header.next_item > items:
            fault = (
                f"{path} has {size} bytes and {header.next_item} items, not {wanted} bytes with "
                f"at most {items}"
            )
            raise StoreCorrupt(f"{fault}; remove it: queries by key lose its records", path, 0)
        found.header = header
        found.durable = found._durable_at(header, header.next_item)
        return found

    @property
    def is_full(self) -> bool:
        """No item fits any more (one number less than the geometry's: item 0 is never used)."""
        return self.header.next_item >= self._items_max

    @property
    def room(self) -> int:
        """Items that still fit."""
        return self._items_max - self.header.next_item

    def open_slots(self) -> None:
        """Read the slots into memory, to put further items."""
        slots = self._read_slots()
        self._walk_back(slots, self.header.next_item)
        self._hold_slots(slots)

    def put_many(self, hashes: Array, log_offsets: Array, store_ms: int | Array) -> int:
        """Append items in order, as many as fit; returns how many. One ``pwrite``. Queries see them
        on return.

        ``hashes`` int32 or int64, not negative; ``log_offsets`` int64; ``store_ms`` one for all or
        an int64 array.
        """
        count = min(len(hashes), self.room)
        if count <= 0:
            return 0
        assert self._slots is not None, "a settled file takes no items"
        old = self.header
        first = old.next_item
        first_ms, last_ms = (
            (store_ms, store_ms)
            if isinstance(store_ms, int)
            else (int(store_ms[0]), int(store_ms[count - 1]))
        )
        begin_ms = old.begin_ms if first > 1 else first_ms
        at = hashes[:count] % self._slots_max
        numbers = np.arange(first, first + count, dtype=np.int32)
        items = np.empty(count, ITEMS)
        previous = self._link(at, numbers)
        items["hash"], items["log_offset"], items["previous"] = (
            hashes[:count],
            log_offsets[:count],
            previous,
        )
        items["seconds"] = _seconds(
            begin_ms, store_ms if isinstance(store_ms, int) else store_ms[:count]
        )
        self._file.pwrite(items.tobytes(), self._items_at + first * ITEM_BYTES)
        self._slots[at] = numbers  # of equal slots the last, newest one stays
        np.frombuffer(self._dirty, np.uint8)[(at * SLOT_BYTES + HEADER_BYTES) // _PAGE_BYTES] = 1
        begin_offset = old.begin_offset if first > 1 else int(log_offsets[0])
        used = old.slots_used + count - int(np.count_nonzero(previous))
        self.header = IndexHeader(
            begin_ms, last_ms, begin_offset, int(log_offsets[count - 1]), used, first + count
        )
        return count

    def is_time_matched(self, begin_ms: int, end_ms: int) -> bool:
        """Whether the file's times overlap [begin, end]. The last one may be known to the second
        only.
        """
        return self.header.begin_ms <= end_ms and begin_ms <= self.header.end_ms + _SECOND_MS - 1

    def query(self, key_hash: int, begin_ms: int, end_ms: int) -> Iterator[int]:
        """Log offsets of items with this hash whose second overlaps [begin, end], newest first."""
        header = self.header
        number = self._slot_value(key_hash % self._slots_max)
        below = self._items_max
        while 0 < number < below:  # ends: numbers of a chain fall
            item_hash, log_offset, seconds, previous = ITEM.unpack(
                self._file.pread(ITEM_BYTES, self._items_at + number * ITEM_BYTES)
            )
            if (
                number < header.next_item
            ):  # else the slot knows more than the header that is on disk
                first_ms = header.begin_ms + seconds * _SECOND_MS
                if first_ms + _SECOND_MS <= begin_ms or seconds < 0:
                    break
                if item_hash == key_hash and first_ms <= end_ms:
                    yield log_offset
            number, below = previous, number

    def flush_items(self) -> None:
        """On return ``durable.header`` covers every item put before the call. Cheap: slots and
        header on disk stay behind.
        """
        header = self.header
        if header.next_item > 1 and header != self.durable.header:
            self._file.datasync()
            self.durable = self._durable_at(header, self.durable.slots_count)

    def flush(self) -> None:
        """On return items, slots and header as they were before the call are durable. Up to 20 MB
        are written.
        """
        header = self.header
        if (
            self._slots is None
            or header.next_item <= 1
            or (self.durable.header, self.durable.slots_count) == (header, header.next_item)
        ):
            return
        pages = self._snapshot_slots()  # may know newer items: they were written before their slots
        self._file.datasync()
        for position, data in pages:
            self._file.pwrite(data, position)
        self._file.datasync()
        self._file.pwrite(header.pack(), 0)
        self._file.datasync()
        self.durable = self._durable_at(header, header.next_item)

    def settle(self) -> None:
        """Flush a full file and let go of its slots in memory; queries read them from the file."""
        self.flush()
        self._slot = memoryview(b"")
        self._slots = None
        self._dirty = bytearray()

    def cut(self, durable: Durable) -> bool:
        """Go back to what ``durable`` says, after a crash. False, and nothing changed, when the
        file holds less than that.
        """
        header = durable.header
        if durable != self._durable_at(header, durable.slots_count):
            return False
        slots = self._read_slots()
        self._walk_back(slots, header.next_item)
        self._relink(slots, durable.slots_count, header.next_item)
        self.header = header
        self._hold_slots(slots)
        self._dirty = bytearray(b"\1" * len(self._dirty))  # written back whole by the next flush
        self.durable = durable
        return True

    def cut_from(self, log_offset: int) -> None:
        """Forget the items from the first record at or behind ``log_offset`` on, as if they had
        never been put. Not durable before a ``flush``.
        """
        count = self._first_from(log_offset)
        if count >= self.header.next_item:
            return
        self.flush()
        last = (
            ITEM.unpack(self._file.pread(ITEM_BYTES, self._items_at + (count - 1) * ITEM_BYTES))
            if count > 1
            else (0, self.header.begin_offset, 0, 0)
        )
        header = self.header._replace(
            end_ms=self.header.begin_ms + last[2] * 1000, end_offset=last[1], next_item=count
        )
        self.cut(self._durable_at(header, 1))
        assert self._slots is not None
        self.header = header._replace(slots_used=int(np.count_nonzero(self._slots)))

    def _first_from(self, log_offset: int) -> int:
        """The number of the first item of a record at or behind ``log_offset``; ``next_item`` when
        there is none.
        """
        found = end = self.header.next_item
        while end > 1:  # ends: falls by a chunk
            begin = max(1, end - _RELINK_ITEMS)
            raw = self._file.pread((end - begin) * ITEM_BYTES, self._items_at + begin * ITEM_BYTES)
            behind = np.flatnonzero(np.frombuffer(raw, ITEMS)["log_offset"] >= log_offset)
            if not len(behind):
                break
            found, end = begin + int(behind[0]), begin
        return found

    def remove(self) -> None:
        """Delete the file; a query that is reading it goes on."""
        self._files.unlink(self.path)

    def close(self) -> None:
        """Flush everything and close."""
        self.flush()
        self._file.close()

    def _hold_slots(self, slots: Array) -> None:
        self._slots = slots
        self._slot = slots.data

    def _read_slots(self) -> Array:
        return np.frombuffer(
            self._file.pread(self._slots_max * SLOT_BYTES, HEADER_BYTES), ">i4"
        ).astype(np.int32)

    def _durable_at(self, header: IndexHeader, slots_count: int) -> Durable:
        last = header.next_item - 1
        return Durable(
            header,
            slots_count,
            self._file.pread(ITEM_BYTES, self._items_at + last * ITEM_BYTES) if last else b"",
        )

    def _slot_value(self, at: int) -> int:
        slot = self._slot
        if slot:
            return int(slot[at])
        return int.from_bytes(
            self._file.pread(SLOT_BYTES, HEADER_BYTES + at * SLOT_BYTES), "big", signed=True
        )

    def _link(self, at: Array, numbers: Array) -> Array:
        """The item before each of these in its chain: the slot's old value, or an earlier one of
        the same batch.
        """
        assert self._slots is not None
        previous = self._slots[at]
        order = np.argsort(at, kind="stable")
        sorted_at = at[order]
        repeats = np.flatnonzero(sorted_at[1:] == sorted_at[:-1]) + 1
        if len(repeats):
            previous[order[repeats]] = numbers[order[repeats - 1]]
        return previous

    def _snapshot_slots(self) -> list[tuple[int, bytes]]:
        """(position, bytes) of all dirty pages, which count as clean from here on."""
        assert self._slots is not None
        dirty = np.frombuffer(self._dirty, np.uint8)
        pages = np.flatnonzero(dirty)
        if not len(pages):
            return []
        dirty[pages] = 0
        breaks = np.flatnonzero(np.diff(pages) > _GAP_PAGES)
        firsts, lasts = pages[np.r_[0, breaks + 1]], pages[np.r_[breaks, len(pages) - 1]]
        runs = []
        for first, last in zip(firsts.tolist(), lasts.tolist(), strict=True):
            low = max(0, (first * _PAGE_BYTES - HEADER_BYTES) // SLOT_BYTES)
            high = min(self._slots_max, ((last + 1) * _PAGE_BYTES - HEADER_BYTES) // SLOT_BYTES)
            runs.append(
                (HEADER_BYTES + low * SLOT_BYTES, self._slots[low:high].astype(">i4").tobytes())
            )
        return runs

    def _walk_back(self, slots: Array, count: int) -> None:
        """Slots that point to items from ``count`` on go back through those items' chains."""
        slots[(slots < 0) | (slots >= self._items_max)] = 0
        highest = int(slots.max())
        if highest < count:
            return
        raw = self._file.pread(
            (highest + 1 - count) * ITEM_BYTES, self._items_at + count * ITEM_BYTES
        )
        chains = np.frombuffer(raw, ITEMS)["previous"].astype(np.int32)
        beyond = np.flatnonzero(slots >= count)
        while len(beyond):  # ends: numbers of a chain fall
            numbers = slots[beyond]
            previous = chains[numbers - count]
            slots[beyond] = np.where((previous > 0) & (previous < numbers), previous, 0)
            beyond = beyond[slots[beyond] >= count]

    def _relink(self, slots: Array, begin: int, end: int) -> None:
        """Items [begin, end) become the heads of their chains again."""
        for first in range(max(begin, 1), end, _RELINK_ITEMS):
            count = min(_RELINK_ITEMS, end - first)
            raw = self._file.pread(count * ITEM_BYTES, self._items_at + first * ITEM_BYTES)
            hashes = np.frombuffer(raw, ITEMS)["hash"].astype(np.int32)
            slots[hashes % self._slots_max] = np.arange(first, first + count, dtype=np.int32)


def _seconds(begin_ms: int, store_ms: int | Array) -> int | Array:
    """Whole seconds after the file's begin, never negative."""
    if isinstance(store_ms, int):
        return min(max((store_ms - begin_ms) // 1000, 0), SECONDS_MAX)
    seconds: Array = np.clip((store_ms - begin_ms) // 1000, 0, SECONDS_MAX)
    return seconds
