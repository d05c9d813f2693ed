"""What is known of a log's past, in three small files (docs/file-format.md#tables-and-small-files).

    rmq_ray/epochs      which stretch was written in which life: one line an epoch, oldest first,
                        <epoch> <log offset where it starts>
    rmq_ray/origin      which log this is, and whether it is a copy, JSON: log (32 hex digits: the
                        identity of the store in which it began), copied (true on a slave)
    rmq_ray/unsound     exists while the log may lack something that was acknowledged or shown of it

Within an epoch one log offset is one record for ever. A store has an identity of its own
(``store_lock``); all copies of a log name the same ``log``; without the file it began here. A host
that lost its power with bytes that were not synced, an end below what was on disk once, or a sync
that failed with bytes acknowledged before it make a log unsound.

Decides: the forms, and that epochs are a rising list. Does not decide: when an epoch begins (a
recovery, a promotion), what follows from a foreign log (``follower_store`` refuses it) or an
unsound one (elections ask another copy first).

Invariants: all of it is durable on return; epochs rise by at least 1, starts never fall; the mark
``unsound`` is on disk before the log is written again, or the next start would take this one's boot
for the one that wrote it all.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from rmq_ray.codec.store_files import OURS, decode_epochs
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
            content = self._files.read_whole(self._path)
        except StoreMissing:
            self._entries = []
            return
        self._entries = decode_epochs(content, self._path)

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


@dataclass(frozen=True, slots=True)
class LogOrigin:
    """``log``: identity of the log, empty = none yet (a slave that never met its master).
    ``copied``: written by a slave last.
    """

    log: str
    copied: bool


def read_origin(files: FileSystem, root: str, identity: str) -> LogOrigin:
    """The origin of the log at ``root``, a store with ``identity``. Raises ``StoreCorrupt`` for a
    file that is not in form.
    """
    path = f"{root}/{OURS}/origin"
    try:
        found = json.loads(files.read_whole(path))
        return LogOrigin(str(found["log"]), bool(found["copied"]))
    except StoreMissing:
        return LogOrigin(identity, False)
    except (ValueError, KeyError, TypeError) as error:
        raise StoreCorrupt(
            f"{path} does not tell a log's origin: {error}; restore it from a copy", path, 0
        ) from error


def write_origin(files: FileSystem, root: str, origin: LogOrigin) -> None:
    """Keep it; durable on return."""
    files.write_whole(
        f"{root}/{OURS}/origin", json.dumps({"log": origin.log, "copied": origin.copied}).encode()
    )


def judge(files: FileSystem, root: str, lost: bool) -> bool:
    """``lost``: this recovery may have lost something. True when the log is sound; durable on
    return.
    """
    path = _path(root)
    if lost and not files.exists(path):
        files.write_whole(path, b"")
    return not files.exists(path)


def absolve(files: FileSystem, root: str) -> None:
    """The log is whole: its master says so, or it is the measure now."""
    if files.exists(_path(root)):
        files.remove_whole(_path(root))


def _path(root: str) -> str:
    return f"{root}/{OURS}/unsound"
