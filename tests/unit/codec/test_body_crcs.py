"""CRCs of many bodies: short ones of one length, and long ones at equal distances, take other ways
than all others, to the same values.
"""

from __future__ import annotations

import random
import zlib

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rmq_ray.codec.body_crcs import body_crcs


def expected(bodies: list[bytes]) -> list[int]:
    return [zlib.crc32(body) & 0x7FFFFFFF for body in bodies]


def found(bodies: list[bytes], gap: int) -> list[int]:
    buffer = bytearray(b"\xaa" * gap + b"".join(body + b"\xbb" * gap for body in bodies))
    lengths = np.array([len(body) for body in bodies], np.int64)
    begins = gap + np.cumsum(lengths + gap) - lengths - gap
    return body_crcs(memoryview(buffer), begins, begins + lengths).tolist()


@given(st.lists(st.binary(max_size=20), min_size=1, max_size=40), st.integers(0, 3))
def test_bodies_of_any_length_have_the_crc_of_the_format(bodies: list[bytes], gap: int) -> None:
    assert found(bodies, gap) == expected(bodies)


@given(st.integers(1, 600), st.integers(1, 5), st.randoms(use_true_random=False))
def test_bodies_of_one_length_have_the_crc_of_the_format(
    length: int, count: int, random: object
) -> None:
    bodies = [random.randbytes(length) for _ in range(count)]  # type: ignore[attr-defined]
    assert found(bodies, 1) == expected(bodies)


def test_bodies_that_end_with_zeros_or_are_empty_lose_nothing() -> None:
    for bodies in ([b"\0\0\0", b"a\0\0", b"\0b\0"], [b"", b""], [b"\0"]):
        assert found(bodies, 2) == expected(bodies)


@pytest.mark.parametrize("moved", [None, 1, 5])
def test_long_bodies_of_one_length_at_equal_distances_and_at_others_have_their_own_checksums(
    moved: int | None,
) -> None:
    buffer = random.Random(5).randbytes(20_000)
    begins = np.arange(3, 3 + 6 * 1_500, 1_500)
    if moved is not None:
        begins[moved] += 7
    found = body_crcs(memoryview(buffer), begins, begins + 1_024).tolist()
    assert found == [
        zlib.crc32(buffer[begin : begin + 1_024]) & 0x7FFFFFFF for begin in begins.tolist()
    ]
