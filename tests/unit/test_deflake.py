"""``tools.deflake``: turns with and without load, and what is said of them."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tools import deflake
from tools.deflake import BUSY_LOOPS, NO_END, Turn, busy_loops, repeat, summary

RED = "F\n=== short test summary info ===\nFAILED tests/unit/test_a.py::test_b - no\n1 failed in 1s"


def program(code: str) -> list[str]:
    return [sys.executable, "-c", code]


def test_every_second_turn_is_beside_busy_loops() -> None:
    turns = list(repeat(["tests/a"], 5, program("import sys; print(sys.argv[1:])")))
    assert [turn.is_loaded for turn in turns] == [False, True, False, True, False]
    assert [turn.number for turn in turns] == [1, 2, 3, 4, 5]
    assert {turn.said for turn in turns} == {"['tests/a']\n"}
    assert all(turn.is_green and turn.seconds > 0 for turn in turns)


def test_turns_end_where_pytest_finds_nothing_to_run() -> None:
    (only,) = repeat(["tests/nothing"], 5, program("import sys; sys.exit(4)"))
    assert not only.is_green


def test_busy_loops_are_gone_behind_their_block() -> None:
    with pytest.raises(KeyError), busy_loops() as loops:
        assert len(loops) == BUSY_LOOPS and all(Path(f"/proc/{pid}").exists() for pid in loops)
        raise KeyError
    assert not any(Path(f"/proc/{pid}").exists() for pid in loops)


def test_a_turn_is_a_line() -> None:
    assert str(Turn(2, True, 1.26, 0, "a\n1 passed in 1s\n")) == (
        "2: green, 1.3 s, beside busy loops: 1 passed in 1s"
    )
    assert str(Turn(3, False, 1.0, 1, RED)) == "3: red, 1.0 s: 1 failed in 1s"
    assert str(Turn(3, False, 1.0, -9, "")) == "3: red, 1.0 s: pytest said nothing"


def test_a_red_turn_names_what_failed_or_what_was_said_last() -> None:
    assert Turn(1, False, 1, 1, RED).failures == ["FAILED tests/unit/test_a.py::test_b - no"]
    assert Turn(1, False, 1, 3, "a\nb\nc\nd").failures == ["b", "c", "d"]


def test_a_turn_without_an_end_is_red() -> None:
    code, said = deflake._run(program("import signal; signal.pause()"), timeout_s=0.05)
    assert code == NO_END and "no end" in said


def test_the_closing_lines_count_the_turns() -> None:
    turns = [Turn(1, False, 1, 0, ""), Turn(2, True, 1, 1, RED), Turn(3, False, 1, 1, RED)]
    lines = summary(turns)
    assert lines[-1] == "3 turns: 1 green, 2 red, 1 of these beside busy loops"
    assert lines[0] == "turn 2: FAILED tests/unit/test_a.py::test_b - no" and len(lines) == 3


@pytest.mark.parametrize("arguments", [["tests/a", "0"], ["tests/a", "1001"], [""], []])
def test_wrong_arguments_run_nothing(
    arguments: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit, match="2"):
        deflake.main(arguments)
    assert "usage:" in capsys.readouterr().err
