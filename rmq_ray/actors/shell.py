"""What every actor shell shares: constructors that neither raise nor block, coroutines whose
surprise ends the process hard.

A coroutine that dies silently leaves an actor that answers nothing for ever; a process that dies is
restarted by Ray within a second. Called by the role shells only.
"""

from __future__ import annotations

import asyncio
import logging
import os
import warnings
from collections.abc import Coroutine
from typing import Any

import ray

from rmq_ray.errors import ConfigError, RmqError, StoreFailed, StoreFull

log = logging.getLogger("rmq_ray.actors")
EXIT_SURPRISE = 70
AGAIN_S: dict[type[RmqError], float] = {StoreFailed: 2.0, StoreFull: 2.0, ConfigError: 15.0}
"""What may be otherwise when an actor starts again (a port is free, a certificate is renewed), and
when that is tried."""
_tasks: set[asyncio.Task[Any]] = set()


def exit_hard(reason: object) -> None:
    """Log and end the process without hooks; Ray starts the actor again."""
    log.critical(
        "actor ends itself: %s",
        reason,
        exc_info=reason if isinstance(reason, BaseException) else None,
    )
    logging.shutdown()
    os._exit(EXIT_SURPRISE)


def spawn(work: Coroutine[Any, Any, Any], what: str) -> asyncio.Task[Any]:
    """Run a coroutine of an actor in the background; an exception out of it ends the process."""
    task = asyncio.get_running_loop().create_task(work, name=what)
    _tasks.add(task)
    task.add_done_callback(_finished)
    return task


def _finished(task: asyncio.Task[Any]) -> None:
    _tasks.discard(task)
    if not task.cancelled() and (error := task.exception()) is not None:
        exit_hard(error)


def be_urgent() -> None:
    """Ray's workers run at niceness 15; a broker that has to wait for a core is back seconds later.
    Works as root only.
    """
    try:
        os.setpriority(os.PRIO_PROCESS, 0, 0)
    except PermissionError:
        log.info(
            "niceness stays %d: start Ray with RAY_worker_niceness=0 for quick restarts",
            os.getpriority(os.PRIO_PROCESS, 0),
        )


async def start_over(error: RmqError | None) -> None:
    """An actor that served before could not start: where that may pass, its process ends in a while
    and the next one tries. Everything else is for people.
    """
    for kind, pause_s in AGAIN_S.items():
        if isinstance(error, kind):
            await asyncio.sleep(pause_s)
            exit_hard(error)


def is_restart() -> bool:
    """True in an actor that Ray has restarted: it must find its store and never make a new one."""
    with warnings.catch_warnings():
        warnings.simplefilter(
            "ignore", DeprecationWarning
        )  # Ray's own code asks a deprecated property of its own
        return bool(ray.get_runtime_context().was_current_actor_reconstructed)
