"""Cuts a stream of bytes into frames inside one reused buffer. No I/O: the owner reads into
``space`` and says how much came.

    |  consumed  |  received, not yet taken  |  space  |
    0          start                        end       len

Decides how large the buffer is and which length fields are acceptable. Called by listener and async
connection. Invariants: ``space()`` is never empty; a frame that ``take`` returned stays valid until
``settle``, or for good after ``give_away``; a peer that is not yet trusted makes the buffer grow
only with bytes that really arrived.
"""

from __future__ import annotations

import struct

from rmq_ray.errors import MalformedFrame
from rmq_ray.remoting.wire.frame import FRAME_BYTES_MIN

FIRST_BYTES = 64 << 10
"""Zeroing bigger buffers at connect stalled a broker with 64 connections for a second."""
SPARES_MAX = 3
TLS_FIRST_BYTE = 0x16
_LENGTH = struct.Struct(">i")


class FrameBuffer:
    """One direction of one connection."""

    __slots__ = ("_view", "_start", "_end", "_size", "_spares", "frame_bytes_max", "eager")

    def __init__(self, frame_bytes_max: int, eager: bool) -> None:
        self._view = memoryview(bytearray(FIRST_BYTES))
        self._start = 0
        self._end = 0
        self._size = FIRST_BYTES
        self._spares: list[bytearray] = []
        self.frame_bytes_max = frame_bytes_max
        """Greatest length field that is accepted; may be raised when the peer has proved itself."""
        self.eager = eager
        """Grow at once to what a length field announces (trusted peers), or by doubling with what
        arrived.
        """

    @property
    def pending(self) -> int:
        """Bytes received that belong to frames not yet taken."""
        return self._end - self._start

    @property
    def head(self) -> bytes:
        """The next frame's length field, as it came."""
        return bytes(self._view[self._start : self._start + 4])

    @property
    def capacity(self) -> int:
        """Bytes the buffer occupies."""
        return self._size

    def space(self) -> memoryview:
        """Where the next bytes go; never empty."""
        return self._view[self._end :]

    def filled(self, count: int) -> None:
        """``count`` bytes were written to the beginning of ``space``."""
        self._end += count

    def take(self) -> memoryview | None:
        """The next whole frame without its length field, or None. Raises ``MalformedFrame`` for an
        impossible length.
        """
        start = self._start
        have = self._end - start
        if have < 4:
            return None
        (size,) = _LENGTH.unpack_from(self._view, start)
        if size < FRAME_BYTES_MIN or size > self.frame_bytes_max:
            raise self._impossible(size)
        stop = start + 4 + size
        if stop > self._end:
            return None
        self._start = stop
        return self._view[start + 4 : stop]

    def settle(self) -> None:
        """All whole frames were taken and are done with: make room for the rest of the next one."""
        start, end = self._start, self._end
        if start == end:
            self._start = self._end = 0
            return
        have = end - start
        need = 4
        if have >= 4:
            need += int(_LENGTH.unpack_from(self._view, start)[0])
        if start + need <= self._size and end < self._size:
            return
        size = self._size
        while size < need and (self.eager or have * 2 > size):
            size = need if self.eager else min(need, size * 2)
        if size > self._size:
            grown = self._room(size)
            size = len(grown)
            grown[:have] = self._view[start:end]
            self._view, self._size = grown, size
        elif start:
            self._view[:have] = self._view[start:end]
        self._start, self._end = 0, have

    @property
    def begins_tls(self) -> bool:
        """The bytes received are no frame, but the beginning of TLS."""
        return self._start < self._end and self._view[self._start] == TLS_FIRST_BYTE

    def drain(self) -> bytes:
        """All bytes received; none is left here."""
        found = bytes(self._view[self._start : self._end])
        self._start = self._end = 0
        return found

    def give_away(self) -> None:
        """The frame that was taken last stays valid for good: what lies behind it moves to another
        buffer. Cheaper than a copy of a long frame.
        """
        have = self._end - self._start
        fresh = self._room(max(FIRST_BYTES, have))
        fresh[:have] = self._view[self._start : self._end]
        self._view, self._size = fresh, len(fresh)
        self._start, self._end = 0, have

    def take_back(self, buffer: bytearray) -> None:
        """A buffer that was given away, in which nobody reads any more: it is used again, so that
        no new one has to be zeroed.
        """
        self._spares.append(buffer)
        if len(self._spares) > SPARES_MAX:
            del self._spares[
                min(range(len(self._spares)), key=lambda number: len(self._spares[number]))
            ]

    def shrink(self) -> None:
        """Give a grown buffer back; only does so while no part of a frame is in it."""
        if self._size > FIRST_BYTES and self._start == self._end:
            self._view, self._size = memoryview(bytearray(FIRST_BYTES)), FIRST_BYTES
            self._start = self._end = 0

    def _room(self, size: int) -> memoryview:
        for number, spare in enumerate(self._spares):
            if len(spare) >= size:
                return memoryview(self._spares.pop(number))
        return memoryview(bytearray(-(-size // FIRST_BYTES) * FIRST_BYTES if self.eager else size))

    def _impossible(self, size: int) -> MalformedFrame:
        if self._view[self._start] == TLS_FIRST_BYTE:
            return MalformedFrame("a TLS hello on a port without TLS: switch TLS off in the client")
        return MalformedFrame(
            f"a frame of {size} bytes; {FRAME_BYTES_MIN} to {self.frame_bytes_max} are accepted"
        )
