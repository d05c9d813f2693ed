"""Collects the frames of one turn of the loop and writes them together.

Decides how buffers are joined: short neighbours into one, long ones as they are (copying them costs
more than a system call). Called by ``peer`` and ``async_connection``. Invariant: what was added is
never changed by its maker afterwards: mutable buffers are copied, because the receive buffer they
may be views of is used again.
"""

from __future__ import annotations

import asyncio

from rmq_ray.remoting.wire.frame import Buffer

JOIN_BYTES_MAX = 64 << 10


class AnswerWriter:
    """The outgoing half of one asyncio connection."""

    __slots__ = ("_transport", "_parts", "_bytes")

    def __init__(self, transport: asyncio.WriteTransport) -> None:
        self._transport = transport
        self._parts: list[Buffer] = []
        self._bytes = 0

    def __bool__(self) -> bool:
        return bool(self._parts)

    def add(self, parts: list[Buffer]) -> None:
        """Append one frame."""
        for part in parts:
            fixed = (
                part
                if type(part) is bytes or (isinstance(part, memoryview) and part.readonly)
                else bytes(part)
            )
            self._parts.append(fixed)
            self._bytes += len(fixed)

    def clear(self) -> None:
        """Forget what was not written."""
        self._parts, self._bytes = [], 0

    def flush(self) -> int:
        """Write everything; the bytes that the kernel has not taken yet."""
        parts, size, transport = self._parts, self._bytes, self._transport
        self._parts, self._bytes = [], 0
        if len(parts) == 1:
            transport.write(parts[0])
        elif size <= JOIN_BYTES_MAX:
            transport.write(b"".join(parts))
        else:
            for piece in _joined(parts):
                transport.write(piece)
        return transport.get_write_buffer_size()


def _joined(parts: list[Buffer]) -> list[Buffer]:
    pieces: list[Buffer] = []
    short: list[Buffer] = []
    for part in parts:
        if len(part) < JOIN_BYTES_MAX:
            short.append(part)
            continue
        if short:
            pieces.append(b"".join(short))
            short = []
        pieces.append(part)
    if short:
        pieces.append(b"".join(short))
    return pieces
