"""A plugin of pytest that writes how each test went, one JSON object a line, for ``tools.suite``.

    {"test": node id, "outcome": "passed" | "failed" | "skipped", "seconds": all of its phases,
     "why": the first and the last line of a failure, "judged": a checker of promises said so}

The file is named by the environment, ``OUTCOMES_TO``; without it nothing is written. A test that
fails to be collected has a line, too. With workers (xdist) the process that leads them writes.
"""

from __future__ import annotations

import json
import os
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.support.waiting import StoodStill

OUTCOMES_TO = "RMQ_RAY_OUTCOMES"
WHY_CHARS = 300


class Violation(AssertionError):
    """A checker of promises found one broken: lost, twice, out of order. No test that fails with it
    is given a second chance.
    """


@contextmanager
def judging() -> Iterator[None]:
    """Makes an assertion that fails inside a ``Violation`` of the same words; a wait that stood
    still stays what it is. It belongs around comparisons of what was acknowledged with what is
    stored or was delivered, where nothing may be merely late, and decorates helpers that compare.
    """
    try:
        yield
    except (Violation, StoodStill):
        raise
    except AssertionError as error:
        raise Violation(str(error)) from error


def pytest_configure(config: pytest.Config) -> None:
    path = os.environ.get(OUTCOMES_TO)
    if path and not hasattr(config, "workerinput"):
        config.pluginmanager.register(_Outcomes(Path(path)), "outcomes")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    call: pytest.CallInfo[None],
) -> Iterator[None]:
    report = yield
    if call.excinfo is not None and isinstance(call.excinfo.value, Violation):
        report.user_properties.append(("judged", True))
    return report


class _Outcomes:
    def __init__(self, path: Path) -> None:
        self._path = path
        self._seconds: dict[str, float] = defaultdict(float)
        self._said: set[str] = set()

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        test = report.nodeid
        self._seconds[test] += getattr(report, "duration", 0.0)
        if report.failed:
            self._write(test, "failed", _why(report), ("judged", True) in report.user_properties)
        elif report.skipped:
            self._write(test, "skipped")
        elif report.when == "teardown" and test not in self._said:
            self._write(test, "passed")

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.failed:
            self._write(report.nodeid, "failed", _why(report))

    def _write(self, test: str, outcome: str, why: str = "", judged: bool = False) -> None:
        self._said.add(test)
        line = {
            "test": test,
            "outcome": outcome,
            "seconds": round(self._seconds[test], 2),
            "why": why,
            "judged": judged,
        }
        with self._path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")


def _why(report: pytest.TestReport | pytest.CollectReport) -> str:
    crash = getattr(report.longrepr, "reprcrash", None)
    text = str(crash.message if crash is not None else report.longrepr).strip()
    lines = text.splitlines()
    return " ... ".join(line[:WHY_CHARS] for line in [*lines[:1], *lines[1:][-1:]])
