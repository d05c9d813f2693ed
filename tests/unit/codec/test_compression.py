"""Bodies made smaller and restored: what was compressed comes back, anything else is a typed
error.
"""

from __future__ import annotations

import os
import zlib

import pyarrow as pa
import pytest

from rmq_ray.codec.compression import CODECS, compress, decompress, sys_flag_of
from rmq_ray.errors import BodyUnreadable, ConsumeError
from rmq_ray.model.message import SysFlag

LIMIT = 1 << 20
BODIES = [b"x", b"abc" * 5_000, os.urandom(5_000), bytes(LIMIT)]


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("body", BODIES, ids=len)
def test_a_compressed_body_comes_back_as_it_was(codec: str, body: bytes) -> None:
    for level in (None, 1, 9):
        assert decompress(compress(body, codec, level), sys_flag_of(codec), LIMIT) == body


def test_flags_are_those_of_rocketmq_5_and_zlib_without_a_type_is_read_too() -> None:
    assert [sys_flag_of(codec) for codec in CODECS] == [0x301, 0x101, 0x201]
    assert decompress(zlib.compress(b"old"), SysFlag.COMPRESSED, LIMIT) == b"old"


@pytest.mark.parametrize("codec", ["lz4", "zstd"])
def test_streams_without_a_length_in_front_as_java_writes_them_are_read(codec: str) -> None:
    sink = pa.BufferOutputStream()
    with pa.CompressedOutputStream(sink, codec) as stream:
        for _ in range(3):
            stream.write(b"z" * 3_000)
    assert decompress(sink.getvalue().to_pybytes(), sys_flag_of(codec), LIMIT) == b"z" * 9_000


@pytest.mark.parametrize("codec", CODECS)
def test_bytes_that_are_something_else_cut_short_or_a_bomb_are_typed_errors(codec: str) -> None:
    whole = compress(b"body " * 1_000, codec)
    bomb = compress(bytes(LIMIT + 1), codec)
    for wrong in (b"junk", whole[: len(whole) // 2], whole[:-5], bomb, b""):
        with pytest.raises(BodyUnreadable, match=codec):
            decompress(wrong, sys_flag_of(codec), LIMIT)
    assert issubclass(BodyUnreadable, ConsumeError)


@pytest.mark.parametrize("kind", [4, 7])
def test_a_codec_of_the_future_is_named(kind: int) -> None:
    with pytest.raises(BodyUnreadable, match=f"type {kind}"):
        decompress(b"x", SysFlag.COMPRESSED | kind << 8, LIMIT)
