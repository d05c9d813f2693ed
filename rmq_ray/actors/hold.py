"""The PullRequestHoldService as a Ray actor: keeps a broker's parked pulls beside it, nothing on
disk.
"""

from __future__ import annotations

import os

from rmq_ray.actors.shell import be_urgent, spawn
from rmq_ray.clock import SYSTEM_CLOCK
from rmq_ray.server.pull.hold_service import HoldService


class HoldShell:
    """Serves the link at once; the broker connects whenever it is there."""

    def __init__(self, link: str) -> None:
        be_urgent()
        self._link = link
        self._service = HoldService(SYSTEM_CLOCK)
        spawn(self._service.serve(link), "hold service")

    async def ping(self) -> str:
        """State in a word; the supervisor calls it every second."""
        return "serving"

    async def serving(self) -> str | None:
        """The link's path."""
        return self._link

    async def status(self) -> dict[str, object]:
        """Counters and states, for people and tests."""
        return {"pid": os.getpid(), **self._service.status()}

    async def stop(self) -> None:
        """Close the port and every connection."""
        await self._service.close()
