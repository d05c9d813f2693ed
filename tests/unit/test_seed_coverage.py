"""The list of seed statements is whole, the marks are right, and the page says what the tree
says.
"""

from __future__ import annotations

from collections import Counter

import pytest

from tools.seed_coverage import IDS_A_TEST_MAX, PAGE, coverage, read_marks, render

FOUND = coverage()


def test_the_list_holds_every_statement_of_the_four_documents() -> None:
    count = Counter(seed.split("-")[0] for seed in FOUND.seeds.statements)
    assert count == {"S0": 90, "S1": 51, "S3": 151, "S4": 231}
    assert all(FOUND.seeds.statements.values())


def test_marks_name_statements_that_exist() -> None:
    assert FOUND.unknown() == []


def test_what_is_left_out_or_only_told_is_not_marked() -> None:
    assert FOUND.contradictions() == []


def test_a_test_shows_five_statements_at_most() -> None:
    crowded = [
        f"{mark.test}: {len(mark.ids)} ids"
        for mark in read_marks()
        if len(mark.ids) > IDS_A_TEST_MAX
    ]
    assert crowded == []


def test_the_page_is_what_the_tree_says() -> None:
    assert PAGE.exists() and PAGE.read_text("utf-8") == render(FOUND), "run `make pages`"


def test_every_statement_in_scope_has_a_test() -> None:
    if not FOUND.seeds.strict:
        pytest.skip(
            f"docs/seed-ids.toml is not strict yet; {len(FOUND.missing())} statements in "
            f"scope have no test"
        )
    assert FOUND.missing() == []
