"""Handlers of tasks: functions and coroutine functions by name, and how one call of them ends.

Decides where a coroutine runs (one loop in a thread of its own; another one where a handler blocks
it), and that nothing a handler raises, ``sys.exit`` among it, ends a thread of ours. Does not
decide what becomes of the task.
"""

from __future__ import annotations

import asyncio
import inspect
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from concurrent.futures import TimeoutError as NotYet
from typing import Any

from rmq_ray.errors import ClientError, TaskAborted, TaskUnprocessable
from rmq_ray.serve.task_codec import Task

ALIVE_S = 1.0
LATER_S = 60.0
"""A coroutine is cancelled by whoever watches its time; a wait ends so long after it at last."""
Cancel = Callable[[], object]


class TaskHandlers:
    """Of one replica. ``timeout_s``: of ``task_timeout_s``."""

    def __init__(self, timeout_s: float) -> None:
        self._timeout_s = timeout_s
        self._found: dict[str, Callable[..., Any]] = {}
        self._lock = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None

    def register(self, func: Callable[..., Any], name: str | None = None) -> None:
        """``name`` None: the function's. ``ClientError`` for what cannot be called, and a name
        that is taken.
        """
        if not callable(func):
            raise ClientError(f"a task's handler must be callable, not {func!r:.80}")
        known = name or getattr(func, "__name__", "")
        if not known or known in self._found:
            raise ClientError(
                f"a handler needs a name of its own, and {known!r} is none: give name=", known
            )
        self._found[known] = func

    @property
    def names(self) -> list[str]:
        """All that are registered."""
        return sorted(self._found)

    def run(self, task: Task, cancellable: Callable[[Cancel], None]) -> Any:
        """What the handler returns. Raises what it raises; ``TaskUnprocessable``, ``TaskAborted``
        for an exit. ``cancellable`` is told how to cancel a coroutine.
        """
        handler = self._found.get(task.name)
        if handler is None:
            raise TaskUnprocessable(
                f"there is no handler {task.name!r}; registered are "
                f"{', '.join(self.names) or 'none'}",
                task.id,
            )
        try:
            result = handler(*task.args, **task.kwargs)
            if inspect.iscoroutine(result):
                return self._awaited(result, cancellable)
            return result
        except (SystemExit, KeyboardInterrupt, GeneratorExit) as error:
            raise TaskAborted(
                f"handler {task.name!r} ended its thread ({type(error).__name__}: {error})", task.id
            ) from error

    def close(self) -> None:
        """End the loop; coroutines that still run are dropped."""
        with self._lock:
            loop, self._loop = self._loop, None
        if loop is not None:
            loop.call_soon_threadsafe(loop.stop)

    def check_loop(self) -> None:
        """Where a coroutine holds the loop up, others get a new one."""
        loop = self._loop
        if loop is None:
            return
        try:
            asyncio.run_coroutine_threadsafe(asyncio.sleep(0), loop).result(ALIVE_S)
        except NotYet:
            with self._lock:
                if self._loop is loop:
                    self._loop = None

    def _awaited(
        self, coroutine: Coroutine[Any, Any, Any], cancellable: Callable[[Cancel], None]
    ) -> Any:
        future: Future[Any] = asyncio.run_coroutine_threadsafe(
            _guarded(coroutine), self._running_loop()
        )
        cancellable(future.cancel)
        return future.result(min(self._timeout_s + LATER_S, threading.TIMEOUT_MAX))

    def _running_loop(self) -> asyncio.AbstractEventLoop:
        with self._lock:
            if self._loop is None:
                self._loop = asyncio.new_event_loop()
                threading.Thread(target=_serve, args=(self._loop,), daemon=True).start()
            return self._loop


def _serve(loop: asyncio.AbstractEventLoop) -> None:
    asyncio.set_event_loop(loop)
    loop.run_forever()
    for task in asyncio.all_tasks(loop):
        task.cancel()
    loop.call_soon(loop.stop)
    loop.run_forever()
    loop.close()


async def _guarded(coroutine: Coroutine[Any, Any, Any]) -> Any:
    """An exit would end the loop for all others."""
    try:
        return await coroutine
    except (SystemExit, KeyboardInterrupt) as error:
        raise TaskAborted(f"the handler ended its thread ({type(error).__name__}: {error})") from (
            error
        )
