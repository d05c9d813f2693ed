"""Who is connected to a broker, and the pulls and pops that wait for messages: the last of a
broker's rooms (``base.runtime``).
"""

from __future__ import annotations

from dataclasses import dataclass

from rmq_ray.server.base.statistics import Statistics
from rmq_ray.server.groups.membership import GroupMembership
from rmq_ray.server.pop.pop_service import PopService
from rmq_ray.server.pull.pull_handlers import PullHandlers


@dataclass(frozen=True, slots=True)
class Clients:
    """``statistics``: what they stored and got."""

    members: GroupMembership
    pulls: PullHandlers
    pops: PopService
    statistics: Statistics
