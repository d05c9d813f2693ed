"""Rules that hold for every test: which may start Ray, how long one may take, and what the
environment looks like.

- ``tests/unit`` may not use Ray: ``ray.init`` and everything that starts it implicitly raise there.
- Marks decide the time-out: plain tests 120 s (pyproject.toml), ``ray`` 180 s, ``spark``, ``e2e``
  and ``interop`` 420 s.
- Those without Ray run first, tests/ray before tests/spark: the Ray cluster of either lives to the
  end of the process.
- Examples that hypothesis makes up are judged by what they show, not by how long a machine takes
  for them.
- A file is parsed without the garbage collector (by house rules, and by pytest itself).
- Ray's workers keep the normal priority; Ray phones nobody; pytest never joins a cluster that runs
  on the machine.
- Ctrl-C interrupts, also where pytest runs in the background of a script.
"""

from __future__ import annotations

import ast
import gc
import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

TESTS = Path(__file__).resolve().parent
TIMEOUT_S = {"ray": 180, "spark": 420, "e2e": 420, "interop": 420}

# Read by the raylet, so they must be there before any test starts one. Ray runs its workers at nice
# 15 otherwise.
os.environ.setdefault("RAY_worker_niceness", "0")
# a cluster would begin with a worker for each of its CPUs, 2 s of CPU each, that most tests do not
# need
os.environ.setdefault("RAY_prestart_worker_first_driver", "0")
# each group of Ray Train has one more worker else, which asks whether its hosts will be taken away
os.environ.setdefault("RAY_TRAIN_ENABLE_PREEMPTION_WATCHER", "0")
os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
os.environ.setdefault("RAY_DEDUP_LOGS", "0")
os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
os.environ.pop("RAY_ADDRESS", None)
# a shell that runs a script starts what it puts into the background deaf to Ctrl-C, and so are the
# processes of that, which some tests interrupt
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

_parse = ast.parse


def parse(*arguments: Any, **named: Any) -> Any:
    """``ast.parse`` without the garbage collector: what earlier tests left may log a traceback when
    it is collected, for which Python 3.11 parses, too, and then refuses to go on with this one.
    """
    on = gc.isenabled()
    gc.disable()
    try:
        return _parse(*arguments, **named)
    finally:
        if on:
            gc.enable()


ast.parse = parse

settings.register_profile(
    "any machine", deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("any machine")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Gives every item the time-out of its marks, marks what lies in a folder of a kind, and moves
    those folders to the end.
    """
    items.sort(key=lambda item: _folder(item) if _folder(item) in TIMEOUT_S else "")
    for item in items:
        folder = _folder(item)
        if folder in TIMEOUT_S and item.get_closest_marker(folder) is None:
            item.add_marker(getattr(pytest.mark, folder))
        if item.get_closest_marker("timeout") is None:
            limits = [
                seconds for mark, seconds in TIMEOUT_S.items() if item.get_closest_marker(mark)
            ]
            if limits:
                item.add_marker(pytest.mark.timeout(max(limits)))


def _folder(item: pytest.Item) -> str:
    return item.path.relative_to(TESTS).parts[0] if item.path.is_relative_to(TESTS) else ""


@pytest.fixture(autouse=True)
def _unit_tests_cannot_start_ray(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> Iterator[None]:
    """In tests/unit, starting Ray is an error: at the line that does it, or at the test's end where
    Ray was imported inside.
    """
    if not request.path.is_relative_to(TESTS / "unit"):
        yield
        return

    def refuse(*_args: object, **_kwargs: object) -> None:
        raise AssertionError("a unit test tried to start Ray; move it to tests/ray")

    if "ray" in sys.modules:
        monkeypatch.setattr(sys.modules["ray"], "init", refuse)
    yield
    ray = sys.modules.get("ray")
    if ray is not None and ray.is_initialized():
        ray.shutdown()
        pytest.fail("a unit test started Ray; move it to tests/ray")
