"""Waiting for something to become true; letting an event loop go on.

Decides when a test has waited long enough: when nothing has moved for a while, however long all of
it takes. What a failure says: the last value, what each thread of this process does, and what the
``witnesses`` know, such as the brokers.
"""

from __future__ import annotations

import asyncio
import sys
import threading
import time
import traceback
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")
FRAMES = 6  # of each thread
witnesses: dict[str, Callable[[], object]] = {}
"""Who is asked when a test waits for nothing; fixtures put their cluster's status here."""


def eventually(
    check: Callable[[], T],
    timeout_s: float = 60.0,
    every_s: float = 0.02,
    moved: Callable[[], object] | None = None,
) -> T:
    """The first true value of ``check``. Fails when neither its value nor that of ``moved`` has
    changed for ``timeout_s``.
    """
    patience = _Patience(timeout_s, moved)
    while not (value := check()):
        patience.check(value)
        time.sleep(every_s)
    return value


async def eventually_async(
    check: Callable[[], T],
    timeout_s: float = 60.0,
    every_s: float = 0.005,
    moved: Callable[[], object] | None = None,
) -> T:
    """The same inside an event loop, which goes on meanwhile."""
    patience = _Patience(timeout_s, moved)
    while not (value := check()):
        patience.check(value)
        await asyncio.sleep(every_s)
    return value


class StoodStill(AssertionError):
    """What was waited for did not come; it may only be late."""


class _Patience:
    def __init__(self, timeout_s: float, moved: Callable[[], object] | None) -> None:
        self._timeout_s = timeout_s
        self._moved = moved
        self._seen: object = None
        self._since = time.monotonic()

    def check(self, value: object) -> None:
        """Raises ``StoodStill`` after a standstill."""
        seen = (value, self._moved()) if self._moved is not None else value
        now = time.monotonic()
        if seen != self._seen:
            self._seen, self._since = seen, now
        elif now - self._since > self._timeout_s:
            raise StoodStill(
                f"not true, and nothing moved for {self._timeout_s:g} s: {value!r}\n{_told()}"
            )


def _told() -> str:
    names = {thread.ident: thread.name for thread in threading.enumerate()}
    lines = []
    for ident, frame in sys._current_frames().items():
        lines.append(f"thread {names.get(ident, ident)}:")
        lines += traceback.format_stack(frame)[-FRAMES:]
    for name, ask in list(witnesses.items()):
        try:
            lines.append(f"{name}: {ask()}")
        except Exception as error:  # noqa: BLE001 - it is asked because something is wrong
            lines.append(f"{name} does not answer: {error!r}")
    return "\n".join(lines)


async def loop_turns(count: int = 1) -> None:
    """Let the running event loop turn so often: whatever is ready goes on, and no time passes."""
    for _ in range(count):
        await asyncio.sleep(0)
