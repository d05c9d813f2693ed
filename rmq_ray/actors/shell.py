"""What every actor shell shares: constructors that neither raise nor block, coroutines whose
surprise ends the process hard.

A coroutine that dies silently leaves an actor that answers nothing for ever; a process that dies is
restarted by Ray within a second. Called by the role shells only.

When to shoot an actor: a pure rule. Ray restarts processes that die; it never notices one that
hangs (SIGSTOP, a stuck loop).

A ping has three outcomes: answered, unavailable (Ray knows that the process is gone and restarts
it: nothing to do), and silence. Three silences in a row earn a kill; afterwards the actor has a
grace period to come back.
"""

from __future__ import annotations

import asyncio
import logging
import os
import warnings
from collections.abc import Coroutine
from dataclasses import dataclass
from enum import Enum
from typing import Any

import ray

MISSES_MAX = 3
GRACE_MS = 15_000


class Ping(Enum):
    """Outcome of one ping."""

    ANSWERED = "answered"
    UNAVAILABLE = "unavailable"
    SILENT = "silent"
    MISSING = "missing"


class Action(Enum):
    """What the supervisor does about a member."""

    NONE = "none"
    KILL = "kill"
    CREATE = "create"


@dataclass(slots=True)
class Watch:
    """One member's history."""

    misses: int = 0
    grace_until_ms: float = 0.0
    kills: int = 0
    creations: int = 0

    def observe(self, ping: Ping, now_ms: float) -> Action:
        """Take one outcome and say what to do now.

        >>> watch = Watch()
        >>> [watch.observe(Ping.SILENT, second * 1000).value for second in (1, 2, 3, 4)]
        ['none', 'none', 'kill', 'none']
        """
        if ping is Ping.ANSWERED or ping is Ping.UNAVAILABLE:
            self.misses = 0
            return Action.NONE
        if now_ms < self.grace_until_ms:
            return Action.NONE
        if ping is Ping.MISSING:
            self.grace_until_ms = now_ms + GRACE_MS
            self.creations += 1
            return Action.CREATE
        self.misses += 1
        if self.misses < MISSES_MAX:
            return Action.NONE
        self.misses = 0
        self.grace_until_ms = now_ms + GRACE_MS
        self.kills += 1
        return Action.KILL


log = logging.getLogger("rmq_ray.actors")
EXIT_SURPRISE = 70
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


def is_restart() -> bool:
    """True in an actor that Ray has restarted: it must find its store and never make a new one."""
    with warnings.catch_warnings():
        warnings.simplefilter(
            "ignore", DeprecationWarning
        )  # Ray's own code asks a deprecated property of its own
        return bool(ray.get_runtime_context().was_current_actor_reconstructed)
