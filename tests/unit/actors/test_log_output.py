"""Log files of actors: rotated, and JSON where that is asked for."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from pathlib import Path

import pytest

from rmq_ray.actors.log_output import ROOT, log_to_file, log_to_stderr


@pytest.fixture(autouse=True)
def _root_logger() -> Iterator[None]:
    root = logging.getLogger(ROOT)
    before = (list(root.handlers), root.level, root.propagate)
    yield
    for handler in root.handlers:
        handler.close()
    root.handlers[:], root.level, root.propagate = before


def test_files_are_rotated_by_size_and_number(tmp_path: Path) -> None:
    path = tmp_path / "logs" / "broker.log"
    log_to_file(str(path), "broker-a", "text", 1_000, 3)
    log = logging.getLogger("rmq_ray.test")
    for number in range(100):
        log.info("line %d", number)
    found = sorted(file.name for file in path.parent.iterdir())
    assert found == ["broker.log", "broker.log.1", "broker.log.2"]
    assert all(file.stat().st_size <= 1_000 for file in path.parent.iterdir())
    assert path.read_text().rstrip().endswith("INFO rmq_ray.test broker-a: line 99")


def test_json_lines_hold_what_a_program_wants(tmp_path: Path) -> None:
    path = tmp_path / "broker.log"
    log_to_file(str(path), "broker-a/1", "json", 1 << 20, 2)
    log = logging.getLogger("rmq_ray.test")
    log.warning("two\nlines of %s", "ü")
    try:
        raise ValueError("why")
    except ValueError:
        log.exception("it failed")
    first, second = (json.loads(line) for line in path.read_text().splitlines())
    assert (first["level"], first["logger"], first["actor"], first["message"]) == (
        "WARNING",
        "rmq_ray.test",
        "broker-a/1",
        "two\nlines of ü",
    )
    assert first["time"].endswith("Z") and "ValueError: why" in second["error"]


def test_standard_error_has_warnings_in_the_same_form(capsys: pytest.CaptureFixture[str]) -> None:
    log_to_stderr("broker-a", "json")
    log_to_stderr("broker-a", "json")
    logging.getLogger("rmq_ray.test").info("unheard")
    logging.getLogger("rmq_ray.test").warning("heard")
    (line,) = capsys.readouterr().err.splitlines()
    assert json.loads(line)["message"] == "heard"
