"""Records that are on disk but broken: skipped, counted, listed.

    rmq_ray/quarantine      one line a record, in the order of discovery:
                            <log offset> <bytes> <what is wrong>

A recovery lists what is broken below the last durable position, readers list what differs from its
CRC. Decides nothing. Any thread.

Invariant: a listed record is never delivered; the list is durable on return and
holds at most 10,000 lines.
"""

from __future__ import annotations

import logging
import threading

from rmq_ray.errors import StoreError, StoreMissing
from rmq_ray.files import FileSystem

logger = logging.getLogger("rmq_ray.store")

LISTED_MAX = 10_000


class Quarantine:
    """(log offset -> bytes, fault). ``count`` goes on beyond what is listed. Any thread."""

    def __init__(self, path: str, files: FileSystem) -> None:
        self._path = path
        self._files = files
        self._listed: dict[int, tuple[int, str]] = {}
        self._lock = threading.Lock()
        self.count = 0

    def load(self) -> None:
        """Read the list; lines that make no sense are dropped."""
        try:
            text = self._files.read_whole(self._path).decode("utf-8", "replace")
        except StoreMissing:
            return
        for line in text.splitlines():
            offset, size, fault = (*line.split(" ", 2), "", "")[:3]
            if offset.isdigit() and size.isdigit():
                self._listed[int(offset)] = (int(size), fault)
        self.count = len(self._listed)

    def add(self, log_offset: int, size: int, fault: str) -> None:
        """List a broken record; one that is listed already changes nothing."""
        with self._lock:
            if log_offset in self._listed:
                return
            self.count += 1
            logger.error(
                "record at log offset %d (%d bytes) is broken and skipped: %s",
                log_offset,
                size,
                fault,
            )
            if len(self._listed) >= LISTED_MAX:
                return
            self._listed[log_offset] = (size, fault)
            try:
                self._write()
            except StoreError as error:
                logger.error(
                    "the quarantine list could not be written: %s", error
                )  # it is found again when the record is read again

    def shrink(self, log_offset: int, size: int) -> None:
        """The first ``size`` bytes of a listed stretch are whole again; what is left stays listed.
        Durable on return; raises the store's errors.
        """
        with self._lock:
            listed, fault = self._listed.pop(log_offset, (0, ""))
            if not listed:
                return
            if listed > size and log_offset + size not in self._listed:
                self._listed[log_offset + size] = (listed - size, fault)
            else:
                self.count -= 1
            self._write()

    def size_of(self, log_offset: int) -> int:
        """How many bytes are listed as broken from there on; 0 = none."""
        with self._lock:
            return self._listed.get(log_offset, (0, ""))[0]

    def count_in(self, begin: int, end: int) -> int:
        """How many listed stretches lie, in part at least, in log offsets [begin, end)."""
        with self._lock:
            return sum(
                offset < end and offset + size > begin for offset, (size, _) in self._listed.items()
            )

    def cut_from(self, log_offset: int) -> None:
        """The log was cut there: other records will lie behind it. Durable on return; raises the
        store's errors.
        """
        with self._lock:
            gone = [
                offset for offset, (size, _) in self._listed.items() if offset + size > log_offset
            ]
            for offset in gone:
                del self._listed[offset]
            if gone:
                self._write()

    def _write(self) -> None:
        text = "".join(
            f"{offset} {length} {what}\n" for offset, (length, what) in self._listed.items()
        )
        self._files.write_whole(self._path, text.encode())

    def entries(self) -> list[tuple[int, int, str]]:
        """(log offset, bytes, fault) of every listed record."""
        with self._lock:
            return [(offset, size, fault) for offset, (size, fault) in self._listed.items()]
