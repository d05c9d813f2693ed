"""Programs that tests run and a machine may lack."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import TypeVar

import pytest

from tools.interop import ToolMissing

T = TypeVar("T")


def obtained(make: Callable[[], T]) -> T:
    """What ``make`` returns; where a program is missing the test is skipped, or fails where CI
    requires it.
    """
    try:
        return make()
    except ToolMissing as missing:
        if os.environ.get("RMQ_RAY_INTEROP_REQUIRED"):
            pytest.fail(str(missing))
        pytest.skip(str(missing))
