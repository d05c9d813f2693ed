"""Does every item of the index point to a record that has a key with its hash? Are the chains
whole?

    index/<yyyyMMddHHmmssSSS>     items in log order, over all files
    the log                       read in the same order: keys of every record

Both are walked side by side, so memory does not grow with the store. Decides: the geometry of a
file where nobody says it (slots : items = 1 : 4 as by default, or another whole ratio under which
the first item stands where it should). Does not decide: whether an index is complete; keys that it
lacks are counted, no more: an index may be removed at any time.

Chains are checked after a clean stop only: a killed broker leaves slots behind that its next start
links again.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from rmq_ray.arrays import Array
from rmq_ray.files import FileSystem
from rmq_ray.store.fsck.log_walk import Broken
from rmq_ray.store.fsck.read_only import FaultList
from rmq_ray.store.queue.index_file import (
    HEADER,
    HEADER_BYTES,
    ITEM,
    ITEM_BYTES,
    ITEMS,
    SLOT_BYTES,
    IndexHeader,
)

_ITEMS_A_READ = 1 << 20
_NAMED_MAX = 10
_RATIOS = (4, 1, 2, 3, 5, 6, 8, 10, 16, 20)


@dataclass(frozen=True, slots=True)
class _Items:
    """A run of items of one file, from number ``first`` on."""

    path: str
    first: int
    values: Array


@dataclass(frozen=True, slots=True)
class _Opened:
    path: str
    slots: int
    header: IndexHeader


class IndexCheck:
    """``slots``: of every file, None = found out. ``broken``: filled by the walk while it
    goes on.
    """

    def __init__(
        self,
        directory: str,
        files: FileSystem,
        slots: int | None,
        broken: Sequence[Broken],
        faults: FaultList,
    ) -> None:
        self._files = files
        self._broken = broken
        self._faults = faults
        self._opened = [
            opened
            for name in files.list_dir(directory)
            if (opened := self._open(f"{directory}/{name}", slots)) is not None
        ]
        self._runs = self._read_all()
        self._pending: _Items | None = None
        self._wrong: dict[str, int] = {}
        self.items = 0
        """Items that were compared with the log."""
        self.unindexed = 0
        """Keys of records that no item stands for."""

    @property
    def file_count(self) -> int:
        """How many files could be read."""
        return len(self._opened)

    def add(self, base: int, end: int, keys: Array) -> None:
        """All (log offset - ``base``) << 32 | hash of the keys of records in [base, end) of the
        log, in any order.
        """
        known = np.unique(keys)
        found = np.zeros(len(known), np.bool_)
        for run, values in self._take_until(end):
            offsets = values["log_offset"].astype(np.int64)
            inside = offsets >= base
            wanted = np.where(inside, offsets - base, 0) << 32 | values["hash"].astype(np.int64)
            at = np.minimum(np.searchsorted(known, wanted), max(0, len(known) - 1))
            right = (
                inside & (known[at] == wanted) if len(known) else np.zeros(len(values), np.bool_)
            )
            found[at[right]] = True
            self.items += int(np.count_nonzero(right))
            self._report(run, values, np.flatnonzero(~right), base)
        self.unindexed += int(np.count_nonzero(~found))

    def finish(self, log_end: int, clean: bool) -> None:
        """After the last record: items that point behind the log, and the chains of every file."""
        for run, values in self._take_until(1 << 62):
            self._report(run, values, np.arange(len(values)), log_end)
        for path, count in self._wrong.items():
            if count > _NAMED_MAX:
                self._faults.add(
                    f"{path}: {count - _NAMED_MAX} more items point to no record with their key",
                    count - _NAMED_MAX,
                )
        if clean:
            for opened in self._opened:
                self._check_chains(opened)

    def skip_until(self, log_begin: int) -> None:
        """Items of records that retention removed are not looked at."""
        for _ in self._take_until(log_begin):
            pass

    def _report(self, run: _Items, values: Array, rows: Array, base: int) -> None:
        for row in rows.tolist():
            log_offset = int(values["log_offset"][row])
            if any(broken.start <= log_offset < broken.end for broken in self._broken):
                continue
            count = self._wrong[run.path] = self._wrong.get(run.path, 0) + 1
            if count <= _NAMED_MAX:
                what = (
                    "it is not in log order"
                    if log_offset < base
                    else "no record there has a key with its hash"
                )
                self._faults.add(
                    f"{run.path} item {run.first + row} points to log offset {log_offset}: {what}"
                )

    def _take_until(self, end: int) -> Iterator[tuple[_Items, Array]]:
        """Items that point before ``end``, in order; the rest waits for the next call."""
        while True:  # ends: every round takes a run, or stops
            run = self._pending or next(self._runs, None)
            self._pending = None
            if run is None:
                return
            behind = run.values["log_offset"] >= end
            count = int(behind.argmax()) if behind.any() else len(run.values)
            if count:
                yield _Items(run.path, run.first, run.values[:count]), run.values[:count]
            if count < len(run.values):
                self._pending = _Items(run.path, run.first + count, run.values[count:])
                return

    def _read_all(self) -> Iterator[_Items]:
        for opened in self._opened:
            file = self._files.open_to_read(opened.path)
            items_at = HEADER_BYTES + opened.slots * SLOT_BYTES
            for first in range(1, opened.header.next_item, _ITEMS_A_READ):
                count = min(_ITEMS_A_READ, opened.header.next_item - first)
                yield _Items(
                    opened.path,
                    first,
                    np.frombuffer(
                        file.pread(count * ITEM_BYTES, items_at + first * ITEM_BYTES), ITEMS
                    ),
                )
            file.close()

    def _open(self, path: str, slots: int | None) -> _Opened | None:
        file = self._files.open_to_read(path)
        size = file.size()
        header = IndexHeader(*HEADER.unpack(file.pread(HEADER_BYTES, 0).ljust(HEADER_BYTES, b"\0")))
        header = header._replace(next_item=max(1, header.next_item))
        candidates = (
            [slots]
            if slots is not None
            else [(size - HEADER_BYTES) // (SLOT_BYTES + ratio * ITEM_BYTES) for ratio in _RATIOS]
        )
        for candidate in candidates:
            items, odd = divmod(size - HEADER_BYTES - candidate * SLOT_BYTES, ITEM_BYTES)
            if odd or items < header.next_item or candidate < 1:
                continue
            at = HEADER_BYTES + candidate * SLOT_BYTES
            first, last = (
                ITEM.unpack(file.pread(ITEM_BYTES, at + number * ITEM_BYTES))
                for number in (1, max(1, header.next_item - 1))
            )
            if header.next_item == 1 or _are_ends(first, last, header):
                return _Opened(path, candidate, header)
        self._faults.add(
            f"{path} has {size} bytes and {header.next_item - 1} items, which fit no number "
            f"of slots; remove it: queries by key lose its records"
        )
        return None

    def _check_chains(self, opened: _Opened) -> None:
        """Each item is the newest of its slot or precedes exactly one other of the same slot."""
        count = opened.header.next_item
        file = self._files.open_to_read(opened.path)
        slots = np.frombuffer(file.pread(opened.slots * SLOT_BYTES, HEADER_BYTES), ">i4").astype(
            np.int64
        )
        items = np.frombuffer(
            file.pread(count * ITEM_BYTES, HEADER_BYTES + opened.slots * SLOT_BYTES), ITEMS
        )
        own = items["hash"].astype(np.int64) % opened.slots
        previous = items["previous"].astype(np.int64)
        numbers = np.arange(count)
        linked = (numbers > 0) & (previous > 0)
        bad = linked & ((previous >= numbers) | (own[np.clip(previous, 0, count - 1)] != own))
        used = np.flatnonzero((slots > 0) & (slots < count))
        heads = slots[used]
        wrong_heads = own[heads] != used
        times = np.bincount(previous[linked & ~bad], minlength=count) + np.bincount(
            heads[~wrong_heads], minlength=count
        )
        lost = int(np.count_nonzero(times[1:] == 0))
        broken = (
            int(np.count_nonzero(bad))
            + int(np.count_nonzero(wrong_heads))
            + int(np.count_nonzero((slots < 0) | (slots >= count)))
        )
        if broken or lost:
            self._faults.add(
                f"{opened.path}: {broken} links of its chains are wrong, {lost} items cannot "
                f"be found; remove it to do without",
                broken + lost,
            )


def _are_ends(first: tuple[int, ...], last: tuple[int, ...], header: IndexHeader) -> bool:
    """Whether these can be the first and the last item of a file with this header: (hash, log
    offset, seconds, previous).
    """
    return (
        any(first)
        and any(last)
        and first[1:] == (header.begin_offset, 0, 0)
        and last[1] == header.end_offset
    )
