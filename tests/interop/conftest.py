"""Builds the Java programs before the first test; without JDK or Maven the tests are skipped, or
fail where CI requires them.
"""

from __future__ import annotations

import os

import pytest

from tools import interop


@pytest.fixture(scope="session", autouse=True)
def _java() -> None:
    try:
        interop.build()
    except interop.ToolMissing as missing:
        if os.environ.get("RMQ_RAY_INTEROP_REQUIRED"):
            pytest.fail(str(missing))
        pytest.skip(str(missing))
