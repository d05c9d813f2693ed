"""How many tasks of a queue are not ended: what metrics and autoscaling are made of."""

from __future__ import annotations

from contextlib import suppress

from rmq_ray.client.admin.admin import Admin
from rmq_ray.errors import GroupNotFound, TopicNotFound


def waiting(admin: Admin, queue: str, ordered: str) -> int:
    """Tasks that are there and that nobody has ended, those that run included. Raises what
    administration raises where no broker answers.
    """
    total = 0
    for group in (queue, ordered):
        try:
            total += sum(int(row["lag"]) for row in admin.group_lag(group))
        except GroupNotFound:  # nobody took any yet
            with suppress(TopicNotFound):
                bounds = admin.topic_stats(group).values()
                total += sum(of.max_offset - of.min_offset for of in bounds)
    return total
