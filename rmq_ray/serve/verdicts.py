"""What becomes of a task after a try: a decision table, pure.

    | the try                                  | tries left | none left |
    | returned                                 | DONE       | DONE      |
    | raised, exited its thread, took too long | AGAIN      | FAILED    |
    | the same, and so did most of the last    | UNTRIED                |
    | result cannot be stored                  | FAILED     | FAILED    |
    | no handler of that name, unreadable      | UNPROCESSABLE          |
    | cancelled                                | REVOKED                |
    | its workers died ``LOSSES_MAX`` times more than it may be tried | FAILED |

What is UNTRIED waits as if it had never been begun: what its handler needs is gone, and the breaker
that says so is open (``protocol.breaker``). One that fails again, although the breaker was closed
when it began, fails for its own sake: that is a try. A worker's death counts as a try, so that a
task which kills its process ends; those that were beside it get ``LOSSES_MAX`` tries more.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from typing import Any

from rmq_ray.errors import TaskAborted, TaskUnprocessable
from rmq_ray.serve.task_codec import reason

LOSSES_MAX = 3


class TaskOutcome(Enum):
    """See the module."""

    DONE = "done"
    AGAIN = "again"
    UNTRIED = "untried"
    FAILED = "failed"
    UNPROCESSABLE = "unprocessable"
    REVOKED = "revoked"


@dataclass(frozen=True, slots=True)
class TaskVerdict:
    """``why``: in words, for results and dead letters. ``lost``: its workers died."""

    action: TaskOutcome
    result: Any = None
    why: str = ""
    lost: bool = False


def judge(
    error: BaseException,
    tries: int,
    retries_max: float,
    systemic: Callable[[str], bool] | None = None,
    again: bool = False,
) -> TaskVerdict:
    """Of a handler that raised in its try number ``tries``, from 1 on. ``systemic`` is told why it
    failed, and says whether most do. ``again``: it was UNTRIED before, and the breaker has closed
    since.
    """
    said = reason(error)
    if isinstance(error, TaskUnprocessable):
        return TaskVerdict(TaskOutcome.UNPROCESSABLE, why=said)
    if systemic is not None and systemic(said) and not again:
        return TaskVerdict(TaskOutcome.UNTRIED, why=said)
    action = TaskOutcome.AGAIN if tries <= retries_max else TaskOutcome.FAILED
    return TaskVerdict(action, why=said)


def unreadable(error: BaseException) -> TaskVerdict:
    """Of a body that is no task."""
    return TaskVerdict(TaskOutcome.UNPROCESSABLE, why=reason(error))


def lost(tries: int) -> TaskVerdict:
    """Of a task that was begun so often and never ended."""
    error = TaskAborted(
        f"{tries} workers died with the task, or lost it: perhaps its handler ends the process"
    )
    return TaskVerdict(TaskOutcome.FAILED, why=reason(error), lost=True)
