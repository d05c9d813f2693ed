"""Unique keys in a row: 28 characters that they share and 4 hexadecimal digits that count
(store-format 2.5).

    7F000001 4D2A 5EED0001 00000000 | 0000 .. FFFF     a key as text, only when somebody asks for it
                                                       all keys as uint8[n, 32] for the encoder

Decides nothing: producers say where the count begins. Called by producers' identities, encoders and
results. Pure and immutable.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import overload

import rmq_ray.arrays as np
from rmq_ray.arrays import Array
from rmq_ray.codec.record_batch import UNIQUE_KEY_CHARS

HEAD_CHARS = UNIQUE_KEY_CHARS - 4
COUNT_MASK = 0xFFFF


class KeyRange(Sequence[str]):
    """``count`` keys from number ``first`` on.

    >>> keys = KeyRange("7F" * 14, 0xFFFF, 2)
    >>> keys[0][-4:], keys[1][-4:], len(keys)
    ('FFFF', '0000', 2)
    """

    __slots__ = ("_count", "_first", "_head")

    def __init__(self, head: str, first: int, count: int) -> None:
        self._head = head
        self._first = first
        self._count = count

    def __len__(self) -> int:
        return self._count

    @overload
    def __getitem__(self, index: int) -> str: ...
    @overload
    def __getitem__(self, index: slice) -> list[str]: ...
    def __getitem__(self, index: int | slice) -> str | list[str]:
        if isinstance(index, slice):
            return [self[at] for at in range(*index.indices(self._count))]
        at = index + self._count if index < 0 else index
        if not 0 <= at < self._count:
            raise IndexError(f"key {index} of {self._count}")
        return f"{self._head}{(self._first + at) & COUNT_MASK:04X}"

    def matrix(self) -> Array:
        """uint8[n, 32]: the keys' ASCII characters."""
        keys = np.empty((self._count, UNIQUE_KEY_CHARS), np.uint8)
        keys[:, :HEAD_CHARS] = np.frombuffer(self._head.encode(), np.uint8)
        begin, end = self._first & COUNT_MASK, (self._first & COUNT_MASK) + self._count
        digits = _digits()
        keys[:, HEAD_CHARS:] = (
            digits[begin:end] if end <= len(digits) else digits[np.arange(begin, end) & COUNT_MASK]
        )
        return keys

    def joined(self) -> str:
        """All keys with ``,`` between them, as the message id of a batch has them."""
        text = np.full((self._count, UNIQUE_KEY_CHARS + 1), ord(","), np.uint8)
        text[:, :-1] = self.matrix()
        return text.tobytes()[:-1].decode()


@cache
def _digits() -> Array:
    """uint8[65536, 4]: four hexadecimal digits of every number; made once, 256 KiB."""
    numbers = np.arange(COUNT_MASK + 1)[:, None] >> np.array([12, 8, 4, 0]) & 15
    digits: Array = np.frombuffer(b"0123456789ABCDEF", np.uint8)[numbers]
    return digits
