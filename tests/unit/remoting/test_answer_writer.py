"""Frames of one turn leave together, and nothing that is written later depends on buffers that are
used again.
"""

from __future__ import annotations

import asyncio
from typing import Any

from rmq_ray.remoting.answer_writer import JOIN_BYTES_MAX, AnswerWriter


class Wire(asyncio.Transport):
    """Keeps what is written."""

    def __init__(self) -> None:
        super().__init__()
        self.written: list[Any] = []

    def write(self, data: Any) -> None:
        self.written.append(data)

    def get_write_buffer_size(self) -> int:
        return sum(len(data) for data in self.written)


def test_short_frames_leave_in_one_write() -> None:
    wire = Wire()
    writer = AnswerWriter(wire)
    for number in range(10):
        writer.add([b"head%d" % number, b"body"])
    assert writer and writer.flush() == 90
    assert wire.written == [b"".join(b"head%dbody" % number for number in range(10))] and not writer


def test_long_buffers_are_not_copied_and_keep_their_place() -> None:
    wire = Wire()
    writer = AnswerWriter(wire)
    long = b"x" * JOIN_BYTES_MAX
    writer.add([b"a", b"b", long])
    writer.add([b"c", b"d"])
    writer.flush()
    assert wire.written == [b"ab", long, b"cd"] and wire.written[1] is long


def test_a_mutable_buffer_is_copied_when_it_is_added() -> None:
    for long in (4, JOIN_BYTES_MAX):
        wire = Wire()
        writer = AnswerWriter(wire)
        buffer = bytearray(b"x" * long)
        writer.add([buffer])
        writer.add([memoryview(buffer)])
        buffer[:] = b"y" * long
        writer.flush()
        buffer[:] = b"z" * long
        assert b"".join(wire.written) == b"x" * 2 * long


def test_cleared_frames_are_never_written() -> None:
    wire = Wire()
    writer = AnswerWriter(wire)
    writer.add([b"a"])
    writer.clear()
    assert not writer and wire.written == []
