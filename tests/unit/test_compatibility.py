"""The page of compatibility says what the last run of the interop tests showed, by tests that
exist.
"""

from __future__ import annotations

import ast

import pytest

from tools import compatibility


def named() -> list[str]:
    return [
        test
        for row in compatibility.features()
        for client, tests in row.items()
        if client != "name"
        for test in tests  # type: ignore[attr-defined]
    ]


def test_the_page_is_that_of_the_results() -> None:
    page = compatibility.PAGE.read_text("utf-8")
    assert page == compatibility.rendered(), "write it anew: python -m tools.compatibility"


@pytest.mark.parametrize("test", sorted(set(named())))
def test_a_named_test_exists_and_did_not_fail(test: str) -> None:
    file, _, name = test.partition("::")
    tree = ast.parse((compatibility.TESTS / file).read_text("utf-8"))
    assert name.split("[")[0] in {
        node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)
    }
    ended = compatibility.cases(test, compatibility.results())
    assert set(ended) <= {compatibility.PASSED}, ended


def test_each_of_rocketmqs_own_tests_has_a_name_and_a_result_of_its_own() -> None:
    own = compatibility.own_tests()
    assert len(own) == len(set(own))
    known = [name for name in compatibility.results() if name.startswith(compatibility.OWN_TESTS)]
    assert sorted(known) == sorted(own)


def test_cases_of_a_test_are_counted_and_one_that_failed_shows() -> None:
    ended = {"a.py::t[1]": "passed", "a.py::t[2]": "failed", "a.py::tt": "passed"}
    assert compatibility.cases("a.py::t", ended) == ["passed", "failed"]
    assert compatibility.cases("a.py::t[2]", ended) == ["failed"]
    assert compatibility._cell(["a.py::t", "a.py::tt"], ended) == "2 of 3"
    assert compatibility._cell([], ended) == ""
    assert compatibility._cell(["a.py::x"], ended) == "0 of 1", "it has not run"
