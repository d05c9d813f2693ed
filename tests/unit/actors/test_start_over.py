"""Which actors end themselves where they could not start."""

from __future__ import annotations

import asyncio

import pytest

from rmq_ray.actors import shell
from rmq_ray.errors import ConfigError, RmqError, StoreFailed, StoreFull, StoreMissing


@pytest.mark.parametrize(
    ("error", "over"),
    [
        (StoreFailed("fdatasync: Input/output error"), True),
        (StoreFull("No space left on device"), True),
        (ConfigError("cannot listen: Address already in use"), True),
        (StoreMissing("an empty directory"), False),
        (None, False),
    ],
)
def test_what_may_pass_is_tried_again_by_the_next_process(
    monkeypatch: pytest.MonkeyPatch, error: RmqError | None, over: bool
) -> None:
    ended: list[object] = []
    monkeypatch.setattr(shell, "exit_hard", ended.append)
    monkeypatch.setattr(shell, "AGAIN_S", dict.fromkeys(shell.AGAIN_S, 0.0))
    asyncio.run(shell.start_over(error))
    assert ended == ([error] if over else [])
