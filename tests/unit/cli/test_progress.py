"""A line for what takes long, on terminals only."""

from __future__ import annotations

import sys

import pytest

from rmq_ray.cli.shell.progress import WIPE, progress
from tests.support.waiting import eventually


def test_what_takes_long_is_told_and_wiped(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    said: list[str] = []

    def told() -> bool:
        said.append(capsys.readouterr().err)
        return "dead letters written: 7, " in "".join(said)

    with progress("dead letters written", first_s=0.0) as shown:
        shown.count = 7
        eventually(told)
    said.append(capsys.readouterr().err)
    assert "".join(said).endswith(WIPE)


def test_short_work_and_other_streams_see_nothing(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with progress("anything", first_s=0.0):
        pass
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    with progress("anything"):
        pass
    assert capsys.readouterr().err == ""
