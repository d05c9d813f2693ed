"""One start of a producer on an event loop, and who has the core that its thread makes.

    thread: make ──> run() ──lock──> left for the loop ──> take(), by the first who waits
                          └──given up──> closed

Decides that a core which nobody takes is closed, whichever of the thread and the loop ends first,
also when all who waited for it were cancelled. Does not decide what a start means for the
producer's state (``client.producer.async_producer`` does, which makes one for each attempt).
Invariant: a core is taken once, or closed once.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine
from typing import Any

from rmq_ray.client.sending.producer_core import ProducerCore
from rmq_ray.errors import ClientError


class AsyncStart:
    """Belongs to the loop in which it was made. ``make``: connects, in a thread; ``begin(self)``:
    the start, a task of that loop.
    """

    def __init__(
        self,
        group: str,
        make: Callable[[], ProducerCore],
        begin: Callable[[AsyncStart], Coroutine[Any, Any, None]],
    ) -> None:
        self._group = group
        self._make = make
        self._lock = threading.Lock()
        self._given_up = False
        self._made: ProducerCore | None = None
        self._waiting = 0
        self.task = asyncio.create_task(begin(self))

    @property
    def over(self) -> bool:
        """Whether nobody gets anything from it: it was given up, or its loop was closed, or
        cancelled it before its first step.
        """
        return self._given_up or self.task.cancelled() or self.task.get_loop().is_closed()

    @property
    def made(self) -> bool:
        """Whether a core is there to be taken."""
        return self._made is not None

    @property
    def wanted(self) -> bool:
        """Whether somebody waits for it."""
        return self._waiting > 0

    def check_loop(self) -> None:
        """``ClientError`` when another loop is running than the one in which it goes on."""
        if self.task.get_loop() is not asyncio.get_running_loop():
            raise ClientError(
                f"producer {self._group!r} is being started by another event loop; make one "
                f"per loop",
                self._group,
            )

    async def wait(self) -> None:
        """Until it has ended; what it raises. Who is cancelled and was the last to wait leaves a
        core that is made already to nobody.
        """
        self._waiting += 1
        try:
            await asyncio.shield(self.task)
        except asyncio.CancelledError:
            if self._waiting == 1 and self.task.done():
                self.give_up()
            raise
        finally:
            self._waiting -= 1

    def run(self) -> None:
        """In the thread: make the core, and leave it for the loop. What ``make`` raises."""
        made = self._make()
        with self._lock:
            if not self._given_up:
                self._made = made
                return
        made.close()

    def take(self) -> ProducerCore | None:
        """The core, after ``run``: it is the caller's. None: it was taken, or given up."""
        with self._lock:
            made, self._made = self._made, None
        return made

    def discard(self) -> None:
        """In a thread, after ``run``: nobody waits for the core, it is closed."""
        made = self.take()
        if made is not None:
            made.close()

    def give_up(self) -> None:
        """Nobody will take the core: it is closed, by a thread. Does not block."""
        with self._lock:
            self._given_up = True
            made, self._made = self._made, None
        if made is not None:
            threading.Thread(
                target=made.close, name=f"rmq-given-up-{self._group}", daemon=True
            ).start()
