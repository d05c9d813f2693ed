"""Dead letters that are sent again at a rate: work of the console that outlasts a page.

One of a group at a time. Decides nothing about what is sent (``client.admin.dead_letters``).
Invariant: what was sent and how it ended is told until the next begins.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass

from rmq_ray.client.admin.dead_letters import DeadLetters, SendRate
from rmq_ray.errors import ClientError, RmqError
from rmq_ray.ports import Discovery

RUNNING_MAX = 8
TOLD_MAX = 100
"""Groups whose last resending is remembered."""


@dataclass(slots=True)
class Resend:
    """One of them. ``why``: what ended it, "" = all are sent."""

    group: str
    rate: float
    who: str
    pace: SendRate
    running: bool = True
    why: str = ""


class Resends:
    """Of one console."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._found: dict[str, Resend] = {}

    def of(self, group: str) -> Resend | None:
        """The one that runs, or the last one."""
        return self._found.get(group)

    def start(
        self, discovery: Discovery, group: str, rate: float, *, again: bool, who: str
    ) -> Resend:
        """In a thread. ``ClientError`` while one of the group runs, or too many."""
        made = Resend(group, rate, who, SendRate(rate))
        with self._lock:
            running = [one for one in self._found.values() if one.running]
            if any(one.group == group for one in running):
                raise ClientError(f"dead letters of {group} are being resent already", group)
            if len(running) >= RUNNING_MAX:
                raise ClientError(f"{RUNNING_MAX} groups are being resent: wait for one of them")
            self._found.pop(group, None)
            self._found[group] = made
            over = [one.group for one in self._found.values() if not one.running]
            for old in over[: max(0, len(self._found) - TOLD_MAX)]:
                del self._found[old]
        threading.Thread(
            target=_run, args=(made, discovery, again), name="rmq-console-resend", daemon=True
        ).start()
        return made

    def stop(self, group: str) -> None:
        """End it after the part that is being sent."""
        found = self._found.get(group)
        if found is not None:
            found.pace.stop()

    def close(self) -> None:
        """All of them."""
        for group in list(self._found):
            self.stop(group)


def _run(resend: Resend, discovery: Discovery, again: bool) -> None:
    dead = DeadLetters(discovery)
    try:
        dead.resend_dead_letters(resend.group, again=again, execute=True, pace=resend.pace)
        resend.why = "stopped" if resend.pace.stopped else ""
    except RmqError as error:
        resend.why = error.message
    finally:
        resend.running = False
        dead.close()
