"""Builds the Java programs before the first test; without JDK or Maven the tests are skipped, or
fail where CI requires them.

With ``RMQ_RAY_INTEROP_RESULTS=1`` the outcomes go into ``interop/results.json``, from which
``tools.compatibility`` writes its page.
"""

from __future__ import annotations

import json
import os

import pytest

from tests.support.tools import obtained
from tools import compatibility, interop

FOLDER = "tests/interop/"
_ended: dict[str, str] = {}


@pytest.fixture(scope="session", autouse=True)
def _java() -> None:
    obtained(interop.build)


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """A test ended, or was left out or failed before it began."""
    if not report.nodeid.startswith(FOLDER):
        return
    if report.when == "call" or report.outcome != compatibility.PASSED:
        _ended[report.nodeid.removeprefix(FOLDER)] = report.outcome


def pytest_sessionfinish() -> None:
    """Keep what this run adds to the results."""
    if os.environ.get("RMQ_RAY_INTEROP_RESULTS") != "1":
        return
    known = compatibility.results() if compatibility.RESULTS.exists() else {}
    found = {**known, **_ended}
    lines = json.dumps(dict(sorted(found.items())), indent=1, ensure_ascii=False)
    compatibility.RESULTS.write_text(lines + "\n", "utf-8")
