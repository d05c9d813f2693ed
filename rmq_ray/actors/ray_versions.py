"""Differences between the versions of Ray that this package runs with, each with the version that
ends it; nothing else asks which Ray is there.

    2.50 to 2.54   BlockMetadata must be told its input files        ``block_metadata``
    2.50 to 2.59   job checkpoints take no manager or filter class   ``JOB_CHECKPOINTS``
"""

from __future__ import annotations

import re
from functools import cache
from typing import TYPE_CHECKING, NamedTuple

import ray

from rmq_ray.errors import ClusterError

if TYPE_CHECKING:
    from ray.data.block import BlockMetadata

OLDEST = (2, 50)


class Wanted(NamedTuple):
    """Something that begins with a version of Ray; what serves in its place before."""

    what: str
    since: tuple[int, int]
    instead: str


JOB_CHECKPOINTS = Wanted(
    "offset_checkpoint of Ray Data's jobs", (2, 60), "stream(checkpoint=...) keeps one of its own"
)


@cache
def version_of(text: str) -> tuple[int, int]:
    """
    >>> version_of("2.55.1"), version_of("3.0.0.dev0")
    ((2, 55), (3, 0))
    """
    found = re.match(r"(\d+)\.(\d+)", text)
    return (int(found[1]), int(found[2])) if found else (0, 0)


def require(wanted: Wanted) -> None:
    """``ClusterError`` where Ray is older."""
    if version_of(ray.__version__) < wanted.since:
        newer = ".".join(map(str, wanted.since))
        raise ClusterError(
            f"{wanted.what} needs Ray {newer} or newer, this is {ray.__version__}: "
            f"pip install 'ray>={newer}'; without it {wanted.instead}",
            ray.__version__,
        )


def require_window() -> None:
    """``ClusterError`` in a Ray that is older than any that was tried."""
    if version_of(ray.__version__) < OLDEST:
        raise ClusterError(
            f"Ray {ray.__version__} is older than {'.'.join(map(str, OLDEST))}: pip install "
            f"'rmq_ray[ray]' brings one that fits; a client that is given name_servers= needs none",
            ray.__version__,
        )


def block_metadata(rows: int | None, size_bytes: int) -> BlockMetadata:
    """What Ray Data is told of a block before it is read."""
    from ray.data.block import BlockMetadata

    return BlockMetadata(num_rows=rows, size_bytes=size_bytes, exec_stats=None, input_files=None)
