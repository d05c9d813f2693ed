"""The receive buffer: frames come out whole however the bytes were cut, and strangers cannot make
it grow.
"""

from __future__ import annotations

import struct

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rmq_ray.errors import MalformedFrame
from rmq_ray.remoting.wire.frame import FRAME_BYTES_MAX
from rmq_ray.remoting.wire.frame_buffer import FIRST_BYTES, FrameBuffer

LENGTHS = st.sampled_from([4, 5, 29, 1_000, FIRST_BYTES - 4, FIRST_BYTES - 3, FIRST_BYTES, 200_000])


def feed(buffer: FrameBuffer, data: bytes) -> list[bytes]:
    frames = []
    at = 0
    while at < len(data):
        space = buffer.space()
        assert len(space) > 0  # an empty buffer would kill the connection
        count = min(len(space), len(data) - at)
        space[:count] = data[at : at + count]
        buffer.filled(count)
        at += count
        while (frame := buffer.take()) is not None:
            frames.append(bytes(frame))
        buffer.settle()
    return frames


@settings(deadline=None)
@given(
    st.lists(LENGTHS, max_size=6),
    st.lists(st.integers(400, 90_000), min_size=1, max_size=8),
    st.booleans(),
)
def test_frames_come_out_whole_however_they_were_cut(
    lengths: list[int], cuts: list[int], eager: bool
) -> None:
    wanted = [bytes((number + 1,)) * length for number, length in enumerate(lengths)]
    stream = b"".join(struct.pack(">i", len(frame)) + frame for frame in wanted)
    buffer = FrameBuffer(FRAME_BYTES_MAX, eager)
    found: list[bytes] = []
    at = step = 0
    while at < len(stream):
        piece = stream[at : at + cuts[step % len(cuts)]]
        found += feed(buffer, piece)
        at += len(piece)
        step += 1
    assert found == wanted and buffer.pending == 0


def test_frames_come_out_whole_when_every_byte_comes_alone() -> None:
    frames = [b"abcd", b"x" * 300, b"12345"]
    buffer = FrameBuffer(FRAME_BYTES_MAX, eager=False)
    stream = b"".join(struct.pack(">i", len(frame)) + frame for frame in frames)
    assert [
        frame for at in range(len(stream)) for frame in feed(buffer, stream[at : at + 1])
    ] == frames


@pytest.mark.parametrize("length", [0, 1, 3, -1, -(1 << 31), 1_001, 0x7FFFFFFF])
def test_impossible_lengths_are_refused_at_once(length: int) -> None:
    with pytest.raises(MalformedFrame, match=str(length)):
        feed(FrameBuffer(1_000, eager=True), struct.pack(">i", length))


def test_a_tls_hello_is_named_as_such() -> None:
    with pytest.raises(MalformedFrame, match="TLS"):
        feed(FrameBuffer(FRAME_BYTES_MAX, eager=False), bytes.fromhex("160301020001"))


def test_16777212_is_the_greatest_length() -> None:
    assert feed(FrameBuffer(FRAME_BYTES_MAX, eager=True), struct.pack(">i", 16_777_212)) == []
    with pytest.raises(MalformedFrame):
        feed(FrameBuffer(FRAME_BYTES_MAX, eager=True), struct.pack(">i", 16_777_213))


def test_a_stranger_that_announces_much_gets_no_memory_for_it() -> None:
    stranger, trusted = (
        FrameBuffer(FRAME_BYTES_MAX, eager=False),
        FrameBuffer(FRAME_BYTES_MAX, eager=True),
    )
    announcement = struct.pack(">i", FRAME_BYTES_MAX) + b"x" * 10
    feed(stranger, announcement)
    feed(trusted, announcement)
    assert stranger.capacity == FIRST_BYTES and trusted.capacity == FRAME_BYTES_MAX + 4
    feed(stranger, b"x" * FIRST_BYTES)
    assert FIRST_BYTES < stranger.capacity <= 4 * FIRST_BYTES


def test_a_grown_buffer_is_given_back_when_it_is_empty() -> None:
    buffer = FrameBuffer(FRAME_BYTES_MAX, eager=True)
    feed(buffer, struct.pack(">i", 1 << 20) + bytes((1 << 20) - 1))
    buffer.shrink()
    assert (1 << 20) + 4 <= buffer.capacity < (1 << 20) + 2 * FIRST_BYTES  # a frame is half there
    feed(buffer, b"x")
    buffer.shrink()
    assert buffer.capacity == FIRST_BYTES and len(buffer.space()) == FIRST_BYTES


@settings(deadline=None)
@given(
    st.lists(LENGTHS, min_size=1, max_size=6),
    st.lists(st.integers(400, 300_000), min_size=1, max_size=8),
    st.booleans(),
)
def test_frames_that_were_given_away_stay_as_they_are_until_their_buffer_is_taken_back(
    lengths: list[int], cuts: list[int], back: bool
) -> None:
    wanted = [bytes((number + 1,)) * length for number, length in enumerate(lengths)]
    stream = b"".join(struct.pack(">i", len(frame)) + frame for frame in wanted)
    buffer = FrameBuffer(FRAME_BYTES_MAX, eager=True)
    kept: list[memoryview] = []
    at = turn = number = 0
    while at < len(stream):  # ends: at rises
        space = buffer.space()
        count = min(len(space), len(stream) - at, cuts[turn % len(cuts)])
        space[:count] = stream[at : at + count]
        buffer.filled(count)
        at, turn = at + count, turn + 1
        while (frame := buffer.take()) is not None:
            buffer.give_away()
            kept.append(frame)
            assert bytes(frame) == wanted[number]
            number += 1
            if back and isinstance(frame.obj, bytearray):
                buffer.take_back(frame.obj)
        buffer.settle()
    assert number == len(wanted) and (back or [bytes(frame) for frame in kept] == wanted)


def test_a_buffer_that_was_taken_back_is_received_into_again() -> None:
    buffer = FrameBuffer(FRAME_BYTES_MAX, eager=True)
    used = set()
    for _ in range(5):
        size = 1 << 20
        assert feed(buffer, struct.pack(">i", size) + bytes(size - 1)) == []
        space = buffer.space()
        space[:1] = b"x"
        buffer.filled(1)
        frame = buffer.take()
        assert frame is not None and isinstance(frame.obj, bytearray)
        buffer.give_away()
        used.add(id(frame.obj))
        buffer.take_back(frame.obj)
        buffer.settle()
    assert len(used) <= 2, "nothing new is made for each frame"
