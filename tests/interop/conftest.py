"""Builds the Java programs before the first test; without JDK or Maven the tests are skipped, or
fail where CI requires them.
"""

from __future__ import annotations

import pytest

from tests.support.tools import obtained
from tools import interop


@pytest.fixture(scope="session", autouse=True)
def _java() -> None:
    obtained(interop.build)
