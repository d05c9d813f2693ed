"""Writes a table to its file beside the loop: one write at a time, changes in between are joined.

Decides: when the next write starts, and who may be told that his change is on disk. Does not decide
the format (``codec.config_files``). Called by the topic, group, offset and delay tables of a
broker.

Invariant: a callback given to ``save`` runs only after a write that began after the call has ended.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Generic, TypeVar

from rmq_ray.server.base.offload import Offload

log = logging.getLogger("rmq_ray.server")
S = TypeVar("S")
Saved = Callable[[Exception | None], None]


class ConfigSaver(Generic[S]):
    """``snapshot`` is taken in the loop, ``write`` runs in a thread."""

    def __init__(
        self, name: str, snapshot: Callable[[], S], write: Callable[[S], None], offload: Offload
    ) -> None:
        self._name = name
        self._snapshot = snapshot
        self._write = write
        self._offload = offload
        self._running = False
        self._again = False
        self._waiting: list[Saved] = []
        self.failures = 0

    def save(self, then: Saved | None = None) -> None:
        """Write the table as it is now. ``then(None)`` when it is on disk, ``then(error)`` when it
        could not be written.
        """
        if then is not None:
            self._waiting.append(then)
        if self._running:
            self._again = True
            return
        self._start()

    def save_now(self) -> None:
        """Write in the calling thread: for the stop of a broker. Raises the store's errors."""
        self._write(self._snapshot())

    def _start(self) -> None:
        snapshot, told = self._snapshot(), self._waiting
        self._running, self._again, self._waiting = True, False, []
        try:
            self._offload.submit(
                lambda: self._write(snapshot), lambda outcome: self._ended(outcome, told)
            )
        except Exception as error:  # noqa: BLE001 - told, and the next save begins anew
            self._ended(error, told)

    def _ended(self, outcome: None | Exception, told: list[Saved]) -> None:
        self._running = False
        if outcome is not None:
            self.failures += 1
            log.error("%s was not saved: %s", self._name, outcome)
        for then in told:
            then(outcome)
        if self._again and not self._running:
            self._start()
