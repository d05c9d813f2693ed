"""Sends that wait to travel together."""

from __future__ import annotations

from typing import Any

from rmq_ray.client.sending.group_commit import GroupCommit


def gathered(combiner: GroupCommit[Any, Any]) -> int:
    """How many wait in open groups; threads may be putting them there at this moment."""
    return sum(len(group.items) for group in list(combiner._open.values()))
