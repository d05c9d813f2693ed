"""What a party tells about itself in numbers, as Prometheus means them: families of samples with
labels. Plain tuples, so that they travel by actor calls; who serves them gives them their text.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

Labels = Mapping[str, str]


class Sample(NamedTuple):
    """One series now."""

    labels: Labels
    value: float


class Family(NamedTuple):
    """All series of a name. ``kind``: ``counter`` (only rises, from 0 at the start of its process)
    or ``gauge``. A counter's name ends with ``_total``.
    """

    name: str
    kind: str
    help: str
    samples: tuple[Sample, ...]


def with_labels(families: list[Family], labels: Labels) -> list[Family]:
    """The same with these labels in front of each series' own.

    >>> with_labels([Family("up", "gauge", "", (Sample({"a": "1"}, 1),))], {"cluster": "c"})[0][3]
    (Sample(labels={'cluster': 'c', 'a': '1'}, value=1),)
    """
    return [
        family._replace(
            samples=tuple(Sample({**labels, **own}, value) for own, value in family.samples)
        )
        for family in families
    ]
