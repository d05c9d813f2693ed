"""The log's epochs: which stretch of it was written in which life (design: one offset is one record
for ever, within an epoch).

    rmq_ray/epochs      one line an epoch, oldest first:  <epoch> <log offset where it starts>

Decides: the numbers. Does not decide: when an epoch begins (recovery: an unclean start under
ASYNC_FLUSH, a cut of what could have been seen; promotion). Called by: recovery, message store,
follower store. Invariants: epochs rise by at least 1, starts never fall; durable on return.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from rmq_ray.errors import StoreCorrupt, StoreMissing
from rmq_ray.files import FileSystem

EPOCHS_MAX = 10_000  # older ones are forgotten


class EpochFile:
    """(epoch, start) pairs in memory and on disk. The first epoch is 1."""

    def __init__(self, path: str, files: FileSystem) -> None:
        self._path = path
        self._files = files
        self._entries: list[tuple[int, int]] = []

    @property
    def current(self) -> int:
        """The newest epoch; 0 before the first."""
        return self._entries[-1][0] if self._entries else 0

    @property
    def entries(self) -> tuple[tuple[int, int], ...]:
        """All (epoch, start)."""
        return tuple(self._entries)

    def load(self) -> None:
        """Read the file; none = no epoch yet. ``StoreCorrupt`` when it is not in form."""
        try:
            text = self._files.read_whole(self._path).decode("ascii", "replace")
        except StoreMissing:
            self._entries = []
            return
        entries: list[tuple[int, int]] = []
        for line in text.splitlines():
            epoch, _, start = line.partition(" ")
            if not (epoch.isdigit() and start.isdigit()) or (
                entries and (int(epoch) <= entries[-1][0] or int(start) < entries[-1][1])
            ):
                raise StoreCorrupt(
                    f"{self._path}: line {line!r} is not a later epoch and its start; "
                    f"restore the file from a copy",
                    self._path,
                    0,
                )
            entries.append((int(epoch), int(start)))
        self._entries = entries

    def begin(self, start: int, epoch: int | None = None) -> int:
        """A new epoch from log offset ``start`` on (``epoch``: its number, given by a promotion);
        durable on return.

        Epochs that began behind ``start`` are dropped: that part of the log was cut.
        """
        number = max(self.current + 1, epoch or 0)
        self._keep([*(entry for entry in self._entries if entry[1] <= start), (number, start)])
        return number

    def replace(self, entries: Sequence[tuple[int, int]]) -> None:
        """Take over the epochs of the log that this one is a copy of; durable on return.
        ``StoreCorrupt`` when they are no rising list.
        """
        for before, after in pairwise(entries):
            if after[0] <= before[0] or after[1] < before[1]:
                raise StoreCorrupt(
                    f"{self._path}: epoch {after} cannot follow {before}; nothing was taken over",
                    self._path,
                    0,
                )
        if tuple(entries) != self.entries:
            self._keep(entries)

    def cut_from(self, log_offset: int) -> None:
        """The log ends at ``log_offset`` now: epochs that begin there or behind it never were;
        durable on return.
        """
        kept = [entry for entry in self._entries if entry[1] < log_offset]
        if len(kept) < len(self._entries):
            self._keep(kept)

    def _keep(self, entries: Sequence[tuple[int, int]]) -> None:
        kept = [(int(epoch), int(start)) for epoch, start in entries[-EPOCHS_MAX:]]
        text = "".join(f"{epoch} {start}\n" for epoch, start in kept)
        self._files.write_whole(self._path, text.encode("ascii"))
        self._entries = kept

    def of(self, log_offset: int) -> int:
        """The epoch in which the byte at ``log_offset`` was written; 0 = before the first."""
        found = 0
        for epoch, start in self._entries:
            if start > log_offset:
                break
            found = epoch
        return found
