"""What a party tells about itself in numbers, as Prometheus means them: families of samples with
labels. Plain tuples, so that they travel by actor calls; ``text_of`` and ``page_of`` give them the
text that Prometheus reads: thousands of them travel as text, made where nobody waits for it.
``Histogram`` counts by size: one look for the bucket and two additions for each value.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence
from math import inf
from typing import NamedTuple

Labels = Mapping[str, str]


class Sample(NamedTuple):
    """One series now."""

    labels: Labels
    value: float
    part: str = ""
    """Of a histogram: ``_bucket``, ``_sum`` or ``_count``."""


class Family(NamedTuple):
    """All series of a name. ``kind``: ``counter`` (only rises, from 0 at the start of its process),
    ``gauge`` or ``histogram``. A counter's name ends with ``_total``.
    """

    name: str
    kind: str
    help: str
    samples: tuple[Sample, ...]


class FamilyText(NamedTuple):
    """A family whose series are text already, a line each; else see ``Family``."""

    name: str
    kind: str
    help: str
    lines: str


def text_of(families: Iterable[Family]) -> list[FamilyText]:
    """Each family in Prometheus's text format; a microsecond or two for each series.

    >>> text_of([Family("up", "gauge", "", (Sample({"a": 'say "b"'}, 1),))])[0].lines
    'up{a="say \\\\"b\\\\""} 1.0\\n'
    """
    escaped: dict[str, str] = {}
    found = []
    for name, kind, words, samples in families:
        lines = []
        for labels, value, part in samples:
            shown = []
            for label, text in labels.items():
                safe = escaped.get(text)
                if safe is None:
                    safe = escaped[text] = _escape(text)
                shown.append(f'{label}="{safe}"')
            inside = f"{{{','.join(shown)}}}" if shown else ""
            lines.append(f"{name}{part}{inside} {_number(value)}\n")
        found.append(FamilyText(name, kind, words, "".join(lines)))
    return found


def page_of(families: Iterable[FamilyText]) -> str:
    """All of them as one answer to a scrape: those of one name together, as Prometheus demands."""
    kinds: dict[str, tuple[str, str]] = {}
    lines: dict[str, list[str]] = {}
    for name, kind, words, text in families:
        kinds.setdefault(name, (kind, words))
        lines.setdefault(name, []).append(text)
    return "".join(
        f"# HELP {name} {_escape(words)}\n# TYPE {name} {kind}\n{''.join(lines[name])}"
        for name, (kind, words) in kinds.items()
    )


def _escape(text: str) -> str:
    return text.replace("\\", "\\\\").replace("\n", "\\n").replace('"', '\\"')


def _number(value: float) -> str:
    if value != value:
        return "NaN"
    return repr(float(value)) if abs(value) != inf else "+Inf" if value > 0 else "-Inf"


def with_labels(families: list[Family], labels: Labels) -> list[Family]:
    """The same with these labels in front of each series' own.

    >>> with_labels([Family("up", "gauge", "", (Sample({"a": "1"}, 1),))], {"cluster": "c"})[0][3]
    (Sample(labels={'cluster': 'c', 'a': '1'}, value=1, part=''),)
    """
    return [
        family._replace(
            samples=tuple(
                Sample({**labels, **own}, value, part) for own, value, part in family.samples
            )
        )
        for family in families
    ]


class Histogram:
    """``counts`` has one more than ``bounds``: what is greater than all of them."""

    __slots__ = ("bounds", "counts", "sum")

    def __init__(self, bounds: Sequence[float]) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.sum = 0.0

    def add(self, value: float, times: int = 1) -> None:
        """A value, so many times."""
        self.counts[bisect_left(self.bounds, value)] += times
        self.sum += value * times

    def add_all(self, values: Sequence[float]) -> None:
        """Each of them; none is below 0.

        >>> made = Histogram((1, 5))
        >>> made.add_all((0.25, 0.5)), made.add_all((0.5, 6.0)), made.counts, made.sum
        (None, None, [3, 0, 1], 7.25)
        """
        together = sum(values)
        if values and together <= self.bounds[0]:  # as each of them is, then
            self.add(together / len(values), len(values))
        else:
            for value in values:
                self.add(value)

    def samples(self, labels: Labels) -> list[Sample]:
        """As Prometheus wants them: each bucket with all below it.

        >>> made = Histogram((1, 5))
        >>> made.add(3)
        >>> [(one.part, one.labels.get("le"), one.value) for one in made.samples({})][:2]
        [('_bucket', '1', 0.0), ('_bucket', '5', 1.0)]
        """
        told, found = 0, []
        for bound, count in zip([*map(str, self.bounds), "+Inf"], self.counts, strict=True):
            told += count
            found.append(Sample({**labels, "le": bound}, float(told), "_bucket"))
        return [
            *found,
            Sample(labels, self.sum, "_sum"),
            Sample(labels, float(told), "_count"),
        ]
