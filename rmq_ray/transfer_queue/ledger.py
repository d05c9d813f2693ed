"""What was put and what was cleared: the records of the ledger, and what follows from all of them.

    tag      body, msgpack
    put      {"keys": [...], "places": [...]}       these values are whole at these places
    clear    {"keys": [...], "places": [...]}       tombstones: these places are nobody's any more
    back     {"offset": n}                          all records from offset n on up to this one are
                                                    void, earlier ``back`` records too: a saved
                                                    state was loaded again

Decides which places are cleared and what the index of keys is. Pure. Invariants: the ledger is one
queue, so its records have one order for everybody; a book made from the first record on that is
there and one that was kept up to date have the same index.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from typing import Any

import msgpack

from rmq_ray.errors import BodyUnreadable
from rmq_ray.transfer_queue.places import OffsetRanges, parts_of

PUT, CLEAR, BACK = "put", "clear", "back"
TOMBSTONES = f"{CLEAR} || {BACK}"
"""The expression for those who need not know what was put."""


def keyed(keys: Sequence[str], places: Sequence[str]) -> bytes:
    """Body of a ``put`` or ``clear``."""
    body: bytes = msgpack.packb({"keys": list(keys), "places": list(places)})
    return body


def back_to(offset: int) -> bytes:
    """Body of a ``back``."""
    body: bytes = msgpack.packb({"offset": offset})
    return body


class Book:
    """What follows from the records so far, which ``apply`` was given in their order."""

    def __init__(self) -> None:
        self.index: dict[str, str] = {}
        """Key -> the place of its newest value that is not cleared; empty where ``put`` records are
        left out.
        """
        self.cleared: dict[tuple[str, int], OffsetRanges] = {}
        """Offsets of each (broker, queue id)."""
        self._noted: OrderedDict[str, int] = OrderedDict()
        """Keys of the index -> the offset of their record, the oldest first."""
        self._void: list[tuple[int, int]] = []

    def apply(self, offset: int, tag: str | None, body: bytes) -> bool:
        """One record. True: all have to be given to the book ``anew``, from the first one on, since
        earlier ones have become void. ``BodyUnreadable`` for what is no record of a ledger.
        """
        try:
            record = msgpack.unpackb(body)
            if tag == BACK:
                return self._back(int(record["offset"]), offset)
            if not self._is_void(offset):
                self._take(offset, tag, record["keys"], record["places"])
        except (KeyError, TypeError, ValueError, msgpack.exceptions.UnpackException) as error:
            raise BodyUnreadable(f"offset {offset} of the ledger is no record of it") from error
        return False

    def anew(self) -> Book:
        """An empty one that knows what is void. This one stays as it is for who reads in it."""
        book = Book()
        book._void = self._void
        return book

    def forget(self, begin: int) -> None:
        """Retention took the records before ``begin``, and with them the values."""
        while self._noted and next(iter(self._noted.values())) < begin:
            key, _ = self._noted.popitem(last=False)
            del self.index[key]

    def is_cleared(self, place: str) -> bool:
        """Whether a tombstone names it, or a part of it."""
        if not self.cleared:
            return False
        return any(part.first in self.cleared.get(part[:2], ()) for part in parts_of(place))

    def _back(self, begin: int, end: int) -> bool:
        if (begin, end) in self._void or self._is_void(end):
            return False
        kept = [back for back in self._void if not begin <= back[1] < end]
        self._void = [*kept, (begin, end)]
        return True

    def _is_void(self, offset: int) -> bool:
        return any(begin <= offset < end for begin, end in self._void)

    def _take(self, offset: int, tag: str | None, keys: list[Any], places: list[Any]) -> None:
        for key, place in zip(keys, places, strict=True):
            if tag == PUT:
                self.index[key] = place
                self._noted[key] = offset
                self._noted.move_to_end(key)
                continue
            if self.index.get(key) == place:
                del self.index[key], self._noted[key]
            for part in parts_of(place):
                self.cleared.setdefault(part[:2], OffsetRanges()).add(part.first, part.size)
