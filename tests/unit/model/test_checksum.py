import builtins
import random
import zlib

import pytest

from rmq_ray.model.checksum import crc32, fastest


@pytest.mark.parametrize("kind", [bytes, bytearray, memoryview])
def test_the_numbers_are_those_of_zlib_whatever_the_length_and_the_kind_of_buffer(kind):
    rng = random.Random(7)
    for size in (*range(300), 1_023, 1_024, 4_097, 70_000):
        body = rng.randbytes(size)
        assert crc32(kind(body)) == zlib.crc32(body), size


def test_a_slice_that_begins_at_an_odd_byte_has_its_own_number():
    data = random.Random(8).randbytes(5_000)
    view = memoryview(bytearray(data))
    for begin in range(1, 64, 7):
        assert crc32(view[begin : begin + 1_500]) == zlib.crc32(data[begin : begin + 1_500])


def test_without_a_wheel_of_zlib_ng_zlib_takes_its_place(monkeypatch):
    real = builtins.__import__

    def refuse(name, *rest):
        if name == "zlib_ng":
            raise ImportError(name)
        return real(name, *rest)

    monkeypatch.setattr(builtins, "__import__", refuse)
    assert fastest() is zlib.crc32
