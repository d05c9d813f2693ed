"""What the tool that changes modules changes, and what it leaves."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from tools import mutate

MODULE = Path("rmq_ray/protocol/process_queue.py")


def changed(source: str) -> list[str]:
    """Every mutant of a function's body."""
    tree = ast.parse(f"def f(a, b):\n    {source}")
    found = []
    for node in mutate.places(tree):
        new = mutate._changed(node)
        assert new is not None
        found.append(ast.unparse(new))
    return found


@pytest.mark.parametrize(
    ("source", "mutants"),
    [
        ("return a < b", ["return None", "a <= b"]),
        ("return a is not None", ["return None", "a is None"]),
        ("x = a + b", ["a - b"]),
        ("x = not a", ["a"]),
        ("x = a and b", ["a or b"]),
        ("x = True", ["False"]),
        ("x = 7", ["8"]),
        ("x += b", ["x -= b"]),
        ("x = a if b else 'c'", ["a if not b else 'c'"]),
        ("x: int = 7", ["8"]),
    ],
)
def test_one_thing_is_another(source: str, mutants: list[str]) -> None:
    assert changed(source) == mutants


@pytest.mark.parametrize(
    "source",
    ["log.info('at %d', 7)", "raise ValueError(7)", "assert a > 7", "x = 'text'", "return None"],
)
def test_what_no_test_can_see_is_left(source: str) -> None:
    assert changed(source) == []


def test_each_mutant_of_a_module_compiles_and_differs() -> None:
    plain = ast.unparse(ast.parse((mutate.ROOT / MODULE).read_text("utf-8"))).splitlines()
    found = mutate.mutants(MODULE)
    assert len(found) > 50
    for mutant in found:
        lines = mutate.source_of(mutant).splitlines()
        compile("\n".join(lines), str(MODULE), "exec")
        assert lines != plain, mutant


def test_the_tests_that_import_a_module_come_first() -> None:
    importing, beside, room = mutate.tests_of(MODULE)
    assert room == ("tests/unit/protocol",)
    assert "tests/unit/protocol/test_process_queue.py" in importing
    assert "tests/unit/protocol/test_delay.py" in beside
    assert not set(importing) & set(beside)
