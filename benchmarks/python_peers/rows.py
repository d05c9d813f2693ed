"""The rows, their goals, and the table of one run: what was measured of each way, ours beside the
best of the peers'.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from statistics import median

from benchmarks.python_peers.way import EVERY_MS, LATE_MS, SENDERS, Measured
from benchmarks.report import Figure, number

OURS = "rmq_ray"
TITLE = "figures beside what a Python user would pick instead"


@dataclass(frozen=True)
class Row:
    """``values``: of ``Measured``, and their units. ``goal``: ours / the best of the peers'."""

    name: str
    what: str
    goal: float | None
    values: tuple[str, ...] = ("rate",)
    settled: bool = False
    """Each round begins with memory at hand: it fills the page cache."""


LATENCY = ("p50", "p99")
ROWS = (
    Row("produce", "produce 100 B, failures seen", 1.0, settled=True),
    Row("each", "produce 100 B, each its own outcome", 1.0, settled=True),
    Row("produce_1k", "produce 1 KB, failures seen", 1.0, settled=True),
    Row("steady", f"send 100 B, the highest rate at p99 <= {LATE_MS:g} ms", None),
    Row("one", "send 100 B, one at a time", 1.0, LATENCY),
    Row("batches", "consume 100 B in batches, each committed", 1.0),
    Row("single", "consume 100 B, one a call", 0.7),
    Row("idle", f"end to end, idle, a message each {EVERY_MS} ms", None, LATENCY),
    Row("fsync", "fsync for every message, one at a time", None, ("p50",)),
    Row("fsync_64", f"fsync for every message, {SENDERS} senders", None),
)
UNITS = {"rate": "msg/s", "p50": "ms", "p99": "ms"}


@dataclass(frozen=True)
class Found:
    """Of one way: a row's rounds, the first of which warmed up. ``counts``: see ``Way``."""

    system: str
    how: str
    rounds: tuple[Measured, ...]
    counts: bool = True

    def value(self, name: str) -> float:
        """The median of the rounds that count."""
        return median(each[name] for each in self.rounds[1:])


@dataclass(frozen=True)
class Line:
    """Of the table."""

    what: str
    system: str
    how: str
    figure: Figure
    cpu_us: float


def best(found: list[Found], value: str) -> Found | None:
    """Of those that count; None of none."""
    pick = max if value == "rate" else min
    return pick(
        (each for each in found if each.counts), key=lambda each: each.value(value), default=None
    )


def lines(row: Row, found: list[Found]) -> list[Line]:
    """Ours first. The goal is judged by the best of ours that counts, and by nothing where there is
    no peer.
    """
    ours = [each for each in found if each.system == OURS]
    peers = [each for each in found if each.system != OURS]
    made = []
    for value in row.values:
        what = row.what if value == "rate" else f"{row.what}, {value}"
        judged, against = best(ours, value), best(peers, value)
        for each in ours + peers:
            figure = Figure(
                f"{what}: {each.system}, {each.how}",
                each.value(value),
                UNITS[value],
                less_is_better=value != "rate",
                apart=True,
            )
            if each.system == OURS and against is not None:
                figure = replace(
                    figure,
                    against_name=f"{against.system}, {against.how}",
                    against=against.value(value),
                    target=row.goal if each is judged else None,
                )
            made.append(Line(what, each.system, each.how, figure, each.value("cpu_us")))
    return made


def table(made: list[Line]) -> str:
    """In Markdown: what is missed first."""
    missed = {each.what for each in made if each.figure.reached is False}
    text = [
        "| what | with | how | figure | client CPU a message | ours / best peer | goal | reached |",
        "| --- | --- | --- | --- | --- | --- | --- | --- |",
    ]
    for each in sorted(made, key=lambda line: line.what not in missed):
        figure = each.figure
        ratio = "" if figure.ratio is None else f"{figure.ratio:.2f}"
        sign = "<=" if figure.less_is_better else ">="
        goal = "" if figure.target is None else f"{sign} {figure.target}"
        verdict = "" if figure.target is None else "yes" if figure.reached else "**no**"
        cells = (
            each.what,
            each.system,
            each.how,
            f"{number(figure.value)} {figure.unit}",
            f"{number(each.cpu_us)} µs",
            ratio,
            goal,
            verdict,
        )
        text.append(f"| {' | '.join(cells)} |")
    return "\n".join(text) + "\n"
