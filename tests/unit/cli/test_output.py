"""Tables and JSON: one line a cell, valid JSON for every value."""

from __future__ import annotations

import json
from enum import Enum

import pytest

from rmq_ray.cli.base import output

AWKWARD = {
    "bytes": b"\xff\x00",
    "text": "标签 \ud800 \x01\n",
    "number": float("nan"),
    "endless": float("inf"),
    "set": {1},
    "tuple": (1, b"x"),
    "map": {1: {2: b"y"}},
    "none": None,
    "object": object(),
}


class Colour(Enum):
    RED = "r"


def test_json_carries_any_value(capsys: pytest.CaptureFixture[str]) -> None:
    output.record(AWKWARD, "json")
    found = json.loads(
        capsys.readouterr().out, parse_constant=lambda name: pytest.fail(f"{name} is no JSON")
    )
    assert (found["bytes"], found["tuple"], found["map"], found["none"]) == (
        "base64:/wA=",
        [1, "x"],
        {"1": {"2": "y"}},
        None,
    )
    output.rows([AWKWARD, {}], ["bytes", "missing"], "json")
    assert json.loads(capsys.readouterr().out) == [
        {"bytes": "base64:/wA=", "missing": None},
        {"bytes": None, "missing": None},
    ]


def test_json_of_nothing_is_an_empty_list(capsys: pytest.CaptureFixture[str]) -> None:
    output.rows([], ["a"], "json")
    assert json.loads(capsys.readouterr().out) == []


def test_columns_are_as_wide_as_their_widest_cell(capsys: pytest.CaptureFixture[str]) -> None:
    output.rows([{"a": "标签", "b": 1}, {"a": "x", "b": 22}], ["a", "b"], "table")
    assert capsys.readouterr().out.splitlines() == ["a     b", "标签  1", "x     22"]


def test_a_cell_is_one_short_line() -> None:
    assert output.cell("a\tb\x1b[31m\nc") == "a\\tb\\x1b[31m\\nc"
    assert len(output.cell(b"x" * 10_000)) == output.CELL_CHARS_MAX
    assert output.cell({"k": [1, 2], "l": {}}) == "k=1, 2, l=-"
    assert (output.cell(None), output.cell([]), output.cell(Colour.RED)) == ("-", "-", "RED")
