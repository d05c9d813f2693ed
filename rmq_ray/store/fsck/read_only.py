"""A store's files for looking only: nothing is created, written, cut or removed, whoever asks for
it.

Decides: that every writing call is refused with ``StoreUnwritable``, and ``FaultList``: how what is
wrong is kept. Invariant: a store that was only inspected is byte for byte what it was (its ``lock``
file's time may change).
"""

from __future__ import annotations

from rmq_ray.errors import StoreUnwritable
from rmq_ray.files import Bytes, File, FileSystem

LISTED_MAX = 1_000


class FaultList:
    """Sentences that each name a place and what is wrong there; the first 1,000 are kept, all are
    counted.
    """

    def __init__(self) -> None:
        self.listed: list[str] = []
        self.count = 0

    def add(self, fault: str, times: int = 1) -> None:
        """``times``: how many faults the sentence stands for."""
        self.count += times
        if len(self.listed) < LISTED_MAX:
            self.listed.append(fault)

    def add_all(self, other: FaultList) -> None:
        """Everything of another list."""
        self.count += other.count - len(other.listed)
        for fault in other.listed:
            self.add(fault)


class ReadOnlyFiles(FileSystem):
    """The real file system, opened for reading. ``open`` never creates."""

    def open(self, path: str, create: bool = False) -> File:
        """Open for reading, whatever ``create`` says; ``StoreMissing`` when the file is not
        there.
        """
        return self.open_to_read(path)

    def make_dirs(self, path: str) -> None:
        """Refused."""
        raise _refusal("make directory", path)

    def make_dirs_unsynced(self, path: str) -> None:
        """Refused."""
        raise _refusal("make directory", path)

    def rename(self, source: str, target: str) -> None:
        """Refused."""
        raise _refusal("rename", source)

    def unlink(self, path: str) -> None:
        """Refused."""
        raise _refusal("remove", path)

    def remove_dir(self, path: str) -> None:
        """Refused."""
        raise _refusal("remove directory", path)

    def set_modified_ms(self, path: str, modified_ms: int) -> None:
        """Refused."""
        raise _refusal("set times of", path)

    def write_whole(self, path: str, data: Bytes) -> None:
        """Refused."""
        raise _refusal("write", path)


def _refusal(doing: str, path: str) -> StoreUnwritable:
    return StoreUnwritable(
        f"{doing} {path}: the store is only looked at; start a broker on it to have it repaired",
        path,
    )
