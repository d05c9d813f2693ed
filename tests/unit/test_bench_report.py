"""What a benchmark run says: goals reached or missed, settings of a row, rounds that failed."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks import scene
from benchmarks.consume import PUSHED, said
from benchmarks.kafka_peer import BENCHES
from benchmarks.peers import BESIDE
from benchmarks.report import BEGIN, END, Figure, Report, circumstances, table, write_report
from benchmarks.scene import Crew
from tools import interop


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
    assert ("**no**" in table(report.figures)) is (said != "reached")


def test_a_figure_without_a_target_is_only_told() -> None:
    report = Report()
    report.tell("floor", 0.0, "us")
    report.add(Figure("rate", 50.0, "msg/s", "Java", 100.0))
    assert (
        report.missed == []
        and "**no**" not in table(report.figures)
        and report.figures[1].line().endswith("0.50 x Java (100)")
    )


def test_rows_say_the_settings_as_they_are_written_the_default_ones_first() -> None:
    assert [said(settings) for settings, _, _ in PUSHED] == [
        "default settings",
        "batch_size=32",
        'batch="arrow"',
        'batch="arrow", batch_size=32',
    ]


def test_the_first_round_warms_up_and_the_median_of_the_others_counts(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    done: list[object] = []
    monkeypatch.setattr(scene, "settle", lambda: done.append("settled"))

    def once(number: int) -> float:
        done.append(number)
        return [1e9, 7.0, 3.0, 5.0, 1.0, 6.0][number]

    assert scene.median_of_rounds(once) == 5.0
    assert done[::2] == ["settled"] * 6 and done[1::2] == list(range(6))


def test_what_a_sending_thread_raises_fails_the_round() -> None:
    def work(number: int) -> None:
        if number == 1:
            raise ConnectionError("no broker")

    with pytest.raises(ConnectionError, match="no broker"):
        Crew(2, work).join()


def test_every_peer_that_a_part_asks_for_can_be_run() -> None:
    source = (interop.PROJECT / "src/main/java/interop/PeerBench.java").read_text()
    asked = {name for names in BESIDE.values() for name in names}
    assert asked == {*interop.BENCHES, *BENCHES}
    assert [name for name in interop.BENCHES if f'"{name}"' not in source] == []


def test_a_report_replaces_all_rows_between_the_markers_and_nothing_else(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(f"# Method\n\n{BEGIN}\n\n| an older row |\n\n{END}\n\n## Parts\n")
    figures = [
        Figure("send", 2_000.0, "msg/s", "Java", 1_000.0, 1.5),
        Figure("latency, p50", 3.0, "ms", "Java", 2.0, 0.4, less_is_better=True),
        Figure("floor", 17.0, "us"),
    ]
    for _ in range(2):  # a second run finds the markers again
        write_report(page, "On two cores.", figures)
    assert page.read_text().splitlines() == [
        "# Method",
        "",
        BEGIN,
        "",
        "On two cores.",
        "",
        "| what | ours | peer or floor | ratio | goal | reached |",
        "| --- | --- | --- | --- | --- | --- |",
        "| send | 2,000 msg/s | Java (1,000) | 2.00 | >= 1.5 | yes |",
        "| latency, p50 | 3 ms | Java (2) | 1.50 | <= 0.4 | **no** |",
        "| floor | 17 us |  |  |  |  |",
        "",
        END,
        "",
        "## Parts",
    ]


def test_a_page_without_markers_stays_as_it_is_and_says_what_it_needs(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(f"{END}\n{BEGIN}\n")
    with pytest.raises(ValueError, match="end: figures of one run"):
        write_report(page, "", [])
    assert page.read_text() == f"{END}\n{BEGIN}\n"


def test_the_page_of_the_project_has_the_markers_and_a_run_says_how_it_was_started() -> None:
    page = (interop.ROOT / "docs" / "benchmarks.md").read_text()
    assert page.count(BEGIN) == page.count(END) == 1 and page.index(BEGIN) < page.index(END)
    said = circumstances(["--peers", *["produce"] * 12])
    assert said.startswith("`python -m benchmarks --peers produce ")
    assert all(len(line) <= 100 for line in said.splitlines())
