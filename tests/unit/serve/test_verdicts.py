"""The table of what becomes of a task."""

from __future__ import annotations

from math import inf

import pytest

from rmq_ray.errors import TaskUnprocessable
from rmq_ray.serve.verdicts import TaskOutcome, judge, lost


@pytest.mark.parametrize(
    ("tries", "retries_max", "action"),
    [
        (1, 0, TaskOutcome.FAILED),
        (1, 1, TaskOutcome.AGAIN),
        (2, 1, TaskOutcome.FAILED),
        (3, 3, TaskOutcome.AGAIN),
        (4, 3, TaskOutcome.FAILED),
        (1_000, inf, TaskOutcome.AGAIN),
    ],
)
def test_a_handler_that_raises_is_tried_so_often(
    tries: int, retries_max: float, action: TaskOutcome
) -> None:
    verdict = judge(ValueError("no"), tries, retries_max)
    assert verdict.action is action and verdict.why == "ValueError: no" and not verdict.lost


def test_what_nobody_can_run_is_not_tried_again() -> None:
    assert judge(TaskUnprocessable("no handler"), 1, inf).action is TaskOutcome.UNPROCESSABLE


def test_a_failure_in_which_the_task_has_no_part_is_no_try() -> None:
    told = list[str]()

    def systemic(why: str) -> bool:
        told.append(why)
        return True

    verdict = judge(ConnectionError("gone"), 7, 3, systemic)
    assert verdict.action is TaskOutcome.UNTRIED and told == ["ConnectionError: gone"]
    assert judge(ValueError("no"), 1, 0, lambda _why: False).action is TaskOutcome.FAILED
    assert judge(ValueError("no"), 1, 0, systemic, again=True).action is TaskOutcome.FAILED
    odd = judge(TaskUnprocessable("no handler"), 1, inf, systemic)
    assert odd.action is TaskOutcome.UNPROCESSABLE and len(told) == 2


def test_a_lost_task_says_how_many_workers_died() -> None:
    assert lost(4).lost and "4 workers died" in lost(4).why
