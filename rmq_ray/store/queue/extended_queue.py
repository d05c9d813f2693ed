"""A consume queue whose entries refer to extension units (store-format 4; enableConsumeQueueExt).

Decides: which appended entries get a unit (those that are new), what readers see instead of an
address (the tags code), which entries a bit map rules out, and that units are durable before the
entries that refer to them. Does not decide where units lie (``consume_queue_ext``).

Made by ``QueueTable`` where the option is on, or where units of an earlier life exist. Invariant:
the same as ``ConsumeQueue``'s.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from rmq_ray.codec.record_batch import Array
from rmq_ray.files import FileSystem
from rmq_ray.store.io.file_cache import FileCache
from rmq_ray.store.queue.consume_queue import BLANK_SIZE, ENTRIES, ENTRY_BYTES, ConsumeQueue
from rmq_ray.store.queue.consume_queue_ext import ADDRESS_MAX, ConsumeQueueExt, ExtUnit

_ENTRIES_A_READ = 3_276
Hit = Callable[[int, bytes], bool]
"""(store time, bit map) -> whether the message may pass an SQL filter."""


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
        while end > self.min_offset:  # ends: falls by what was read
            begin = max(self.min_offset, end - _ENTRIES_A_READ)
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
        code = np.frombuffer(self.read(self.min_offset, 1), ENTRIES)["code"]
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
