"""Which files of the package ran: a journey through the code as it really happens.

    with FilesRun() as files:                # before the threads that shall be seen are started
        ...                                  # start a cluster, a client; warm both up
        seen = files.during(lambda: producer.send("orders", b"x"))   # {"client/...py", ...}

Counts a file when one of its functions begins, in any thread that was started inside the block.
``always`` repeats a step and keeps what ran each time, so that timers which come in between do not
count.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from types import FrameType
from typing import Any

from tests.support.source_rules import PACKAGE

PREFIX = f"{PACKAGE}/"
REPEATS = 10


class FilesRun:
    """See the module."""

    def __init__(self) -> None:
        self._seen: dict[str, None] = {}  # in the order of their first call
        self._watching = False
        self.ever: set[str] = set()  # all that ran in any step

    def __enter__(self) -> FilesRun:
        threading.setprofile(self._called)
        sys.setprofile(self._called)
        return self

    def __exit__(self, *_exc: object) -> None:
        sys.setprofile(None)
        threading.setprofile(None)  # type: ignore[arg-type]

    def _called(self, frame: FrameType, event: str, _argument: Any) -> None:
        if self._watching and event == "call":
            name = frame.f_code.co_filename
            if name.startswith(PREFIX):
                self._seen.setdefault(name[len(PREFIX) :])

    def during(self, step: Callable[[], Any]) -> list[str]:
        """Files that ran while ``step`` did, in the order of their first call."""
        self._seen = {}
        self._watching = True
        try:
            step()
        finally:
            self._watching = False
        self.ever |= set(self._seen)
        return list(self._seen)

    def always(self, step: Callable[[], Any]) -> list[str]:
        """Files that ran in every repeat of ``step``."""
        runs = [self.during(step) for _ in range(REPEATS)]
        return [file for file in runs[0] if all(file in run for run in runs)]
