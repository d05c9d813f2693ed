"""``tools.suite``: which tests run again, and what their second run makes of them."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.outcomes import OUTCOMES_TO, Violation
from tools.suite import (
    AGAIN_MAX,
    LANES,
    ROOT,
    Lane,
    Run,
    judge,
    outcomes,
    preparing,
    read,
    run,
    to_run_again,
)

pytest_plugins = ["pytester"]
LIGHT, HEAVY = "tests/unit/test_a.py::test_a", "tests/ray/test_b.py::test_b"


def lane(*failed: str, judged: bool = False) -> Run:
    lines = [
        json.dumps({"test": test, "outcome": "failed", "why": "no", "judged": judged})
        for test in failed
    ]
    return read(lines, 1 if failed else 0, 1.0)


def test_a_light_test_has_one_chance() -> None:
    for runs in ({"unit": lane(LIGHT)}, {"unit": lane(), "ray": lane(), "alone": lane(LIGHT)}):
        assert to_run_again(runs) == []
        assert judge(runs, None).red == {LIGHT: "no"}


def test_each_mark_stands_where_a_lane_runs_it() -> None:
    lanes = {
        mark: {folder for lane in LANES if lane.marked == mark for folder in lane.folders}
        for mark in ("calm", "alone")
    }
    assert lanes == {"calm": {"ray", "e2e"}, "alone": {"conformance", "ray", "interop"}}
    for path in sorted((ROOT / "tests").glob("*/**/test_*.py")):
        found = set(
            re.findall(r"^@?(?:pytestmark = )?pytest\.mark\.(calm|alone)\b", path.read_text(), re.M)
        )
        folder = path.relative_to(ROOT / "tests").parts[0]
        assert len(found) < 2 and all(folder in lanes[mark] for mark in found), path


def test_red_and_then_green_is_flaky_and_red_twice_is_red() -> None:
    runs = {"unit": lane(), "ray": lane(HEAVY, HEAVY + "2")}
    assert to_run_again(runs) == [HEAVY, HEAVY + "2"]
    verdict = judge(runs, lane(HEAVY + "2"))
    assert (verdict.flaky, verdict.red) == ({HEAVY: "no"}, {HEAVY + "2": "no"})
    assert not verdict.green
    assert judge({"ray": lane(HEAVY)}, lane()).green


def test_what_a_checker_of_promises_said_stands() -> None:
    runs = {"ray": lane(HEAVY, judged=True)}
    assert to_run_again(runs) == [] and not judge(runs, None).green


def test_many_failures_or_many_flaky_tests_are_no_accident() -> None:
    many = [f"{HEAVY}{number}" for number in range(AGAIN_MAX)]
    assert to_run_again({"ray": lane(*many)}) == many
    assert to_run_again({"ray": lane(*many, HEAVY)}) == []
    assert judge({"ray": lane(*many[:3])}, lane()).green
    four = judge({"ray": lane(*many[:4])}, lane())
    assert len(four.flaky) == 4 and not four.green


def test_a_pytest_that_broke_is_red() -> None:
    assert read([], 3, 1.0).broken and read([], 1, 1.0).broken and not read([], 5, 1.0).broken
    assert not judge({"ray": read([], 3, 1.0)}, None).green
    assert judge({"ray": lane(HEAVY)}, read([], 4, 1.0)).red == {HEAVY: "no"}


CASES = """
    import pytest
    from tests.support.outcomes import Violation, judging
    from tests.support.waiting import eventually

    @judging()
    def check(offsets): assert offsets == [0, 1]

    def test_passes(): pass
    def test_fails(): assert 1 == 2
    def test_is_judged(): raise Violation("lost: 1")
    def test_has_a_gap(): check([0, 2])
    def test_stands_still():
        with judging():
            eventually(list, timeout_s=0)
    @pytest.mark.skip
    def test_is_skipped(): pass
    @pytest.fixture
    def ends_badly():
        yield
        raise ValueError("left open")
    def test_ends_badly(ends_badly): pass
"""


@pytest.fixture
def told(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> Iterator[list[str]]:
    path = tmp_path / "told.jsonl"
    monkeypatch.setenv(OUTCOMES_TO, str(path))
    pytester.makepyfile(test_it=CASES, test_broken="import nothing_like_it")
    pytester.runpytest("-p", "tests.support.outcomes", "--continue-on-collection-errors")
    yield path.read_text("utf-8").splitlines()


def test_the_plugin_writes_how_each_test_went(told: list[str]) -> None:
    found = read(told, 1, 2.0)
    assert found.outcomes == {"passed": 1, "skipped": 1, "failed": 6} and not found.broken
    assert {test.rpartition(":")[2] for test in found.failed} == {
        "test_broken.py", "test_fails", "test_is_judged", "test_has_a_gap", "test_stands_still",
        "test_ends_badly",
    }  # fmt: skip
    assert found.judged == {"test_it.py::test_is_judged", "test_it.py::test_has_a_gap"}
    assert "Violation: assert [0, 2] == [0, 1]" in found.failed["test_it.py::test_has_a_gap"]
    assert found.failed["test_it.py::test_ends_badly"] == "ValueError: left open"
    assert issubclass(Violation, AssertionError)


def test_what_failed_while_judging_stands_and_a_wait_inside_runs_again(told: list[str]) -> None:
    runs = {"ray": read([line.replace('"test_', '"tests/ray/test_') for line in told], 1, 2.0)}
    gap, still = (f"tests/ray/test_it.py::test_{name}" for name in ("has_a_gap", "stands_still"))
    again, verdict = to_run_again(runs), judge(runs, lane())
    assert gap not in again and gap in verdict.red
    assert still in again and still in verdict.flaky


def test_a_run_is_read_from_what_its_own_pytest_wrote(capfd: pytest.CaptureFixture[str]) -> None:
    lane = Lane("of-the-test", ())
    found = run(lane, ["tests/unit/test_suite.py", "-q", "-k", "one_chance"])
    assert found.outcomes == {"passed": 1} and found.seconds > 0 and len(outcomes(lane)) == 1
    assert "1 passed" in capfd.readouterr().out


def test_what_is_prepared_beside_the_lanes_ends_with_them(tmp_path: Path) -> None:
    held = tmp_path / "held"
    os.mkfifo(held)
    with preparing(("sh", "-c", f"(echo begun; exec sleep 600) > {held}; true")):
        reader = held.open("rb")
        assert reader.readline() == b"begun\n"
    with reader:
        assert reader.read() == b"", "nobody has it open to write"
