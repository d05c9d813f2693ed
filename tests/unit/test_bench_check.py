"""What the comparison with a base commit lets pass, and what it fails."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks import check
from benchmarks.check import Turn, judge, table

SEND, PUSH = "send", "push, default settings"


def turns(*values: float, path: str = SEND) -> list[Turn]:
    return [{path: value} for value in values]


FIVE = turns(10.0, 10.0, 10.0, 10.0, 10.0)


@pytest.mark.parametrize(
    ("now", "verdict"),
    [
        (turns(11.0, 11.0, 11.0, 11.0, 11.0), "kept"),
        (turns(11.01, 11.01, 11.01, 11.01, 11.01), "GREW"),
        (turns(99.0, 99.0, 10.0, 10.0, 10.0), "kept"),
        (turns(99.0, 99.0, 99.0, 1.0, 1.0), "GREW"),
        (turns(1.0, 1.0, 1.0, 1.0, 1.0), "kept"),
    ],
)
def test_a_median_that_grew_by_more_than_a_tenth_fails(now: list[Turn], verdict: str) -> None:
    (judgement,) = judge(FIVE, now)
    assert judgement.grew is (verdict == "GREW")


def test_each_path_is_judged_by_itself() -> None:
    base = [{SEND: 10.0, PUSH: 5.0}] * 5
    now = [{SEND: 2.0, PUSH: 5.6}] * 5
    assert [one.grew for one in judge(base, now)] == [False, True]


def test_what_cannot_be_judged_is_an_error() -> None:
    with pytest.raises(ValueError, match="4 turns of new; at least 5"):
        judge(FIVE, FIVE[:4])
    with pytest.raises(ValueError, match="send of base took 0.0 us a message; it did not run"):
        judge([*FIVE, {SEND: 0.0}], FIVE)
    with pytest.raises(ValueError, match="a turn of new has other paths: push"):
        judge(FIVE, [*FIVE, {PUSH: 1.0}])


def test_the_table_has_a_line_for_each_path_with_both_medians() -> None:
    lines = table(judge(FIVE, turns(12.0, 12.0, 12.0, 12.0, 12.0))).splitlines()
    assert lines[1].split() == ["send", "10.00", "12.00", "1.20", "GREW"]


def test_a_base_that_git_does_not_know_ends_it_with_what_git_says() -> None:
    with (
        pytest.raises(SystemExit, match="no-such-commit"),
        check.checked_out("no-such-commit"),
    ):
        pytest.fail("there is no such commit")


def test_a_tree_whose_paths_cannot_be_measured_ends_it(tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match="cannot be measured"), check.Measured(tmp_path):
        pytest.fail("there is nothing to measure")
