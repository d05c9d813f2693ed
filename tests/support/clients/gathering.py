"""Sends that wait to travel together."""

from __future__ import annotations

from typing import Any

import pytest

from rmq_ray.client.sending import group_commit
from rmq_ray.client.sending.group_commit import GroupCommit


def gathered(combiner: GroupCommit[Any, Any]) -> int:
    """How many wait in open groups; threads may be putting them there at this moment."""
    return sum(len(group.items) for group in list(combiner._open.values()))


def patient(patch: pytest.MonkeyPatch, wait_s: float = 60.0) -> None:
    """Who waits in an open group looks around only then: half a second is little for all to come
    where the machine is busy.
    """
    patch.setattr(group_commit, "WAIT_SLICE_S", wait_s)
