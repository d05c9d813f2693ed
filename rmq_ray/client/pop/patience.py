"""Who waits for messages, and whether he still does: what lets another thread, or a cancelled task,
give a wait up.

    abandonable(call) ── thread: call(patience) ──> waits(stop) ── taken ──> result
          └── task cancelled ── give_up ─────────────┴──> stop()      └── late(result)

Decides that a wait is either given up or taken, never both. Knows nothing of brokers: ``stop`` is
the waiting one's own.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import TypeVar

T = TypeVar("T")


class Patience:
    """Of one wait. Any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._stop: Callable[[], None] | None = None
        self._taken = False
        self.over = False
        """Given up: nobody wants what comes."""

    def give_up(self) -> bool:
        """False when what was waited for is taken already. Returns at once."""
        with self._lock:
            if self._taken:
                return False
            self.over, stop = True, self._stop
        if stop is not None:
            stop()
        return True

    def take(self) -> bool:
        """Whether what has come is still wanted; from here on it is not given up."""
        with self._lock:
            self._taken = not self.over
            return self._taken

    @contextmanager
    def waits(self, stop: Callable[[], None]) -> Iterator[None]:
        """A part of the wait, which ``stop`` ends; at once where it was given up before."""
        with self._lock:
            self._stop, over = stop, self.over
        try:
            if over:
                stop()
            yield
        finally:
            with self._lock:
                self._stop = None


async def abandonable(call: Callable[[Patience], T], late: Callable[[T], object]) -> T:
    """``call(patience)`` in a thread. A task that is cancelled gives the wait up; what was taken
    just then goes to ``late``.
    """
    patience = Patience()
    running = asyncio.get_running_loop().run_in_executor(None, partial(call, patience))
    try:
        return await asyncio.shield(running)
    except asyncio.CancelledError:
        taken = not patience.give_up()
        running.add_done_callback(partial(_unwanted, late if taken else None))
        raise


def _unwanted(late: Callable[[T], object] | None, ended: asyncio.Future[T]) -> None:
    if not ended.cancelled() and ended.exception() is None and late is not None:
        late(ended.result())
