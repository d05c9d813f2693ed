"""The smoke of other Pythons and Rays names tests that there are."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tools import window

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize("file", window.SMOKE)
def test_each_test_of_the_smoke_is_there(file: str) -> None:
    text = (ROOT / "tests" / "ray" / f"{file}.py").read_text("utf-8")
    there = set(re.findall(r"^def (test_\w+)\(", text, re.MULTILINE))
    assert set(window.SMOKE[file]) <= there


def test_the_table_has_a_row_for_each_environment_and_names_what_failed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    results = tmp_path / "window.json"
    results.write_text('{"3.11/2.50.0": {"passed": 3, "failed": ["test_a"], "with": "numpy 2"}}')
    monkeypatch.setattr(window, "RESULTS", results)
    head, _, first, *others = window.table().splitlines()
    assert head.startswith("| Python / Ray |") and first == "| 3.11/2.50.0 | 3; test_a | numpy 2 |"
    assert [row.split(" | ")[1] for row in others] == ["0; not run"] * (len(window.WINDOW) - 1)


def test_a_python_that_is_not_here_is_none() -> None:
    assert window.python_of("3.1") is None and Path(window.newest_python()).exists()
