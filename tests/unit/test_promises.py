"""Every promise on its page names the tests that show it, and these tests exist."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

import pytest

from tests.support.source_rules import parsed

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "promises.md"
SECTION, ROWS_MIN = "## Sentence by sentence", 30
SHOWN = re.compile(r"`(?P<file>tests/[\w/]+\.py)`: (?P<names>test_\w+(?:, test_\w+)*)")


def rows_of(text: str) -> list[tuple[str, str]]:
    """(promise, what shows it) of the first table behind the section's title."""
    table = text.partition(SECTION)[2].partition("\n| --- | --- |\n")[2].partition("\n\n")[0]
    cells = [line.strip("|").split(" | ") for line in table.splitlines()]
    return [(promise.strip(), shown.strip()) for promise, shown in cells]


@cache
def names_in(file: str) -> frozenset[str]:
    """Names of the test functions of a file; none where there is no file."""
    path = ROOT / file
    tree = parsed(path) if path.is_file() else ast.Module([], [])
    return frozenset(node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef))


def fault_of(shown: str) -> str:
    """What is wrong with a cell that names tests; empty where each of them is there."""
    for part in shown.split("; "):
        found = SHOWN.fullmatch(part)
        if found is None:
            return f"{part!r} is no file with the names of its tests"
        for name in found["names"].split(", "):
            if name not in names_in(found["file"]):
                return f"{found['file']} has no {name}"
    return ""


def test_every_promise_names_tests_that_exist() -> None:
    rows = rows_of(PAGE.read_text("utf-8"))
    assert len(rows) >= ROWS_MIN and all(promise for promise, _ in rows)
    assert [(promise, fault) for promise, shown in rows if (fault := fault_of(shown))] == []


@pytest.mark.parametrize(
    "shown",
    [
        "",
        "some tests",
        "`tests/unit/test_promises.py`",
        "`tests/unit/test_promises.py`: test_that_is_not_there",
        "`tests/unit/test_nothing.py`: test_every_promise_names_tests_that_exist",
        "`tests/unit/test_promises.py`: test_every_promise_names_tests_that_exist, test_nothing",
    ],
)
def test_a_name_that_leads_nowhere_is_seen(shown: str) -> None:
    assert fault_of(shown)


def test_every_promise_that_is_not_kept_has_a_reason() -> None:
    text = PAGE.read_text("utf-8").partition("| not kept, or not shown by a test | why |")[2]
    rows = [line.strip("|").split(" | ") for line in text.splitlines() if line.startswith("| ")]
    assert rows[0][0].strip() == "---" and len(rows) > 1
    assert all(len(row) == 2 and len(row[1].strip()) > 20 for row in rows[1:])
