"""Waiting for something to become true, with a limit and a message; letting an event loop go on."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


def eventually(check: Callable[[], T], timeout_s: float = 60.0, every_s: float = 0.02) -> T:
    """The first true value of ``check``; fails with its last value otherwise."""
    deadline = time.monotonic() + timeout_s
    while True:
        value = check()
        if value:
            return value
        if time.monotonic() > deadline:
            raise AssertionError(f"not true within {timeout_s} s: {value!r}")
        time.sleep(every_s)


async def loop_turns(count: int = 1) -> None:
    """Let the running event loop turn so often: whatever is ready goes on, and no time passes."""
    for _ in range(count):
        await asyncio.sleep(0)
