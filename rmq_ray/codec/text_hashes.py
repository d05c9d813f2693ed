"""Java's string hash of many ASCII texts that lie in one buffer (store-format 3, 5), without a
string for each.

Pure. Called by ``alike_properties`` (tags, keys) and ``index_service`` (``topic#key``). Numbers are
uint32: the bits of Java's int.
"""

from __future__ import annotations

from functools import cache, lru_cache

import rmq_ray.arrays as np
from rmq_ray.arrays import Array

_SHIFTS_MAX = 32_768  # no property is longer


def hash_texts_at(data: Array, begins: Array, ends: Array) -> Array:
    """``String.hashCode`` of the texts at bytes [begins, ends) of ``data`` (uint8): uint32[n].
    Texts of one length are hashed together.
    """
    lengths = ends - begins
    hashes = np.zeros(len(begins), np.uint32)
    for length in np.flatnonzero(np.bincount(lengths)).tolist():
        if length:
            rows = np.flatnonzero(lengths == length)
            texts = (
                np.ndarray((len(data) - length + 1,), f"V{length}", data, 0, (1,))[begins[rows]]
                .view(np.uint8)
                .reshape(len(rows), length)
            )
            hashes[rows] = texts.astype(np.uint32) @ powers(length)
    return hashes


@lru_cache(maxsize=256)
def powers(length: int) -> Array:
    """uint32: what each of ``length`` characters is multiplied with."""
    return np.array([pow(31, length - 1 - n, 1 << 32) for n in range(length)], np.uint32)


def shifts(lengths: Array) -> Array:
    """uint32: what the hash of a head is multiplied with when a text of such a length follows."""
    found: Array = _all_shifts()[lengths]
    return found


@cache
def _all_shifts() -> Array:
    factors = np.full(_SHIFTS_MAX, 31, np.uint32)
    factors[0] = 1
    return np.multiply.accumulate(factors, dtype=np.uint32)
