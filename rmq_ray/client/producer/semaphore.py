"""A place in a loop's line, had in time or not at all.

Decides nothing about what the place is for: frames of a broker, the lane of a queue. Called by
``client.producer.async_frames``. Invariant: who does not get it holds nothing. Places are
semaphores: an ``asyncio.Lock`` says that it is free while the next one in line is being woken, and
its ``acquire`` waits then.
"""

from __future__ import annotations

import asyncio


async def acquired(place: asyncio.Semaphore, timeout_ms: float) -> bool:
    """Whether it could be had within ``timeout_ms``; at once and without a timer when it is
    free.
    """
    if not place.locked():  # nor is anybody before us
        return await place.acquire()
    try:
        async with asyncio.timeout(timeout_ms / 1000):
            return await place.acquire()
    except TimeoutError:
        return False
