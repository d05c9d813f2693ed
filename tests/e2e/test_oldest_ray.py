"""A part of the smoke of ``tools.window`` with the oldest Ray that is promised."""

from __future__ import annotations

import pytest

from tools import window


def test_the_oldest_ray_starts_sends_consumes_restarts_and_reads() -> None:
    version, _, ray = window.WINDOW[0].partition("/")
    if window.python_of(version) is None:
        pytest.skip(f"Python {version} is not here")
    tests = window.node_ids(of_each=1)
    found = window.smoke(version, ray, tests)
    assert found["failed"] == [] and found["passed"] == len(tests), found
