"""Figures of a benchmark run: value, floor or peer taken in the same run, ratio, target, reached or
missed.

Absolute numbers depend on the machine and its mood; ratios of one run hold. A run that misses a
target exits with 1.
"""

from __future__ import annotations

import json
import os
import textwrap
import time
from dataclasses import asdict, dataclass, field
from pathlib import Path


@dataclass(frozen=True)
class Figure:
    """``ratio`` = value / against (or against / value where less is better). ``target``: the ratio
    to reach, None = only told.
    """

    name: str
    value: float
    unit: str
    against_name: str = ""
    against: float | None = None
    target: float | None = None
    less_is_better: bool = False
    apart: bool = False
    """It stands in a table of its own, not in that of ``write_report``."""

    @property
    def ratio(self) -> float | None:
        """None where there is nothing to compare with."""
        if self.against is None or not self.against or not self.value:
            return None
        return self.value / self.against

    @property
    def reached(self) -> bool | None:
        """None where there is no target, or nothing to compare: a target is not reached then."""
        if self.target is None or self.ratio is None:
            return None
        return self.ratio <= self.target if self.less_is_better else self.ratio >= self.target

    def line(self) -> str:
        """One line of the table."""
        text = f"{self.name:<58} {number(self.value):>12} {self.unit:<8}"
        if self.ratio is not None:
            text += f" {self.ratio:6.2f} x {self.against_name} ({number(self.against or 0)})"
        if self.target is not None:
            sign = "<=" if self.less_is_better else ">="
            verdict = (
                "MISSED, not measured"
                if self.reached is None
                else "reached"
                if self.reached
                else "MISSED"
            )
            text += f"  [{sign} {self.target}: {verdict}]"
        return text


@dataclass
class Report:
    """Collects and prints figures as they come."""

    figures: list[Figure] = field(default_factory=list)

    def add(self, figure: Figure) -> Figure:
        """Print and keep one."""
        self.figures.append(figure)
        print(figure.line(), flush=True)
        return figure

    def tell(self, name: str, value: float, unit: str) -> None:
        """A figure without a comparison, such as a floor."""
        self.add(Figure(name, value, unit))

    def rate(
        self, name: str, rate: float, peer: str, value: float | None, goal: float | None = None
    ) -> None:
        """Messages a second beside a peer's; without the peer there is no goal."""
        self.add(Figure(name, rate, "msg/s", peer, value, None if value is None else goal))

    @property
    def missed(self) -> list[Figure]:
        """Figures that did not reach their target; one that came out as nothing, or met a floor of
        nothing, has not either.
        """
        return [
            figure for figure in self.figures if figure.target is not None and not figure.reached
        ]

    def save(self, path: Path) -> None:
        """As JSON."""
        rows = [{**asdict(f), "ratio": f.ratio, "reached": f.reached} for f in self.figures]
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(rows, indent=1))


def marks(title: str) -> tuple[str, str]:
    """What a section that a run writes stands between."""
    return f"<!-- begin: {title} -->", f"<!-- end: {title} -->"


TITLE = "figures of one run"
BEGIN, END = marks(TITLE)


def table(figures: list[Figure]) -> str:
    """In Markdown, one row a figure."""
    lines = [
        "| what | ours | peer or floor | ratio | goal | reached |",
        "| --- | --- | --- | --- | --- | --- |",
    ]
    for f in figures:
        against = f"{f.against_name} ({number(f.against)})" if f.against is not None else ""
        ratio = f"{f.ratio:.2f}" if f.ratio is not None else ""
        goal = "" if f.target is None else f"{'<=' if f.less_is_better else '>='} {f.target}"
        verdict = "" if f.target is None else "yes" if f.reached else "**no**"
        cells = (f.name, f"{number(f.value)} {f.unit}", against, ratio, goal, verdict)
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def around_section(page: Path, title: str = TITLE) -> tuple[str, str]:
    """What stands before and behind the markers of a page. ``ValueError`` when it has not both, in
    order.
    """
    begin, end = marks(title)
    before, begun, rest = page.read_text().partition(begin)
    _, ended, after = rest.partition(end)
    if not (begun and ended):
        raise ValueError(f"{page} needs the line {begin} and behind it the line {end}")
    return before, after


def write_section(page: Path, text: str, title: str = TITLE) -> None:
    """Replace all that stands between the markers of a page: nothing of another run stays."""
    (before, after), (begin, end) = around_section(page, title), marks(title)
    page.write_text(f"{before}{begin}\n\n{text}\n{end}{after}")


def write_report(page: Path, circumstances: str, figures: list[Figure]) -> None:
    """The table of one run, in its section."""
    write_section(page, f"{circumstances}\n\n{table(figures)}")


def circumstances(arguments: list[str]) -> str:
    """When, how and where this process measures, in lines of a page."""
    memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") / (1 << 30)
    line = (
        f"`python -m benchmarks {' '.join(arguments)}`, "
        f"{time.strftime('%Y-%m-%d %H:%M', time.gmtime())} UTC, {os.cpu_count()} cores, "
        f"{memory:.0f} GiB of memory, load {os.getloadavg()[0]:.1f} when it began."
    )
    return textwrap.fill(line, 100, break_long_words=False, break_on_hyphens=False)


def number(value: float) -> str:
    """Readable at every size."""
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"


def percentiles(values: list[float], *wanted: float) -> list[float]:
    """Nearest-rank percentiles of unsorted values.

    >>> percentiles([3.0, 1.0, 2.0], 50, 99)
    [2.0, 3.0]
    """
    ordered = sorted(values)
    return [ordered[min(len(ordered) - 1, int(len(ordered) * p / 100))] for p in wanted]
