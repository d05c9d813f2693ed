"""What a benchmark run says about its targets: reached, or missed."""

from __future__ import annotations

import pytest

from benchmarks.report import Figure, Report, markdown


@pytest.mark.parametrize(
    ("value", "against", "less", "said"),
    [
        (80.0, 100.0, False, "reached"),
        (74.9, 100.0, False, "MISSED"),
        (74.9, 100.0, True, "reached"),
        (80.0, 100.0, True, "MISSED"),
        (0.0, 100.0, False, "MISSED, not measured"),
        (80.0, 0.0, False, "MISSED, not measured"),
        (80.0, None, False, "MISSED, not measured"),
    ],
)
def test_a_target_is_reached_or_missed_and_nothing_between(
    value: float, against: float | None, less: bool, said: str
) -> None:
    report = Report()
    report.add(Figure("rate", value, "msg/s", "floor", against, 0.75, less))
    assert report.figures[0].line().endswith(f"{'<=' if less else '>='} 0.75: {said}]")
    assert report.missed == ([] if said == "reached" else report.figures)
    assert ("**missed**" in markdown(report.figures)) is (said != "reached")


def test_a_figure_without_a_target_is_only_told() -> None:
    report = Report()
    report.tell("floor", 0.0, "us")
    report.add(Figure("rate", 50.0, "msg/s", "Java", 100.0))
    assert (
        report.missed == []
        and "missed" not in markdown(report.figures)
        and report.figures[1].line().endswith("0.50 x Java (100)")
    )
