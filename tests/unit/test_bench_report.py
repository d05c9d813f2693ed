"""What a benchmark run says: goals reached or missed, settings of a row, rounds that failed."""

from __future__ import annotations

import pytest

from benchmarks.__main__ import PEERS
from benchmarks.consume import PUSHED, said
from benchmarks.kafka_peer import BENCHES
from benchmarks.report import Figure, Report, markdown
from benchmarks.scene import Crew, median_of_rounds
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


def test_rows_say_the_settings_as_they_are_written_the_default_ones_first() -> None:
    assert [said(settings) for settings, _, _ in PUSHED] == [
        "default settings",
        "batch_size=32",
        'batch="arrow"',
        'batch="arrow", batch_size=32',
    ]


def test_the_first_round_warms_up_and_the_median_of_the_others_counts() -> None:
    assert median_of_rounds(lambda number: [1e9, 7.0, 3.0, 5.0][number]) == 5.0


def test_what_a_sending_thread_raises_fails_the_round() -> None:
    def work(number: int) -> None:
        if number == 1:
            raise ConnectionError("no broker")

    with pytest.raises(ConnectionError, match="no broker"):
        Crew(2, work).join()


def test_every_peer_that_a_part_asks_for_can_be_run() -> None:
    source = (interop.PROJECT / "src/main/java/interop/PeerBench.java").read_text()
    asked = {name for names in PEERS.values() for name in names}
    assert asked == {*interop.BENCHES, *BENCHES}
    assert [name for name in interop.BENCHES if f'"{name}"' not in source] == []
