"""Waits that have a limit."""

from __future__ import annotations

import asyncio
import contextlib


async def wait_at_most(event: asyncio.Event, timeout_s: float) -> None:
    """Return once ``event`` is set, or after ``timeout_s``: ``event.is_set()`` tells which."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(timeout_s):
            await event.wait()
