"""Standard output belongs to the command: what Ray's threads print beside it ("node ... has been
marked dead") goes to standard error.

Ray prints such notes in a thread of its own of every driver, straight to ``sys.stdout``, and
gathers some to print them at the end, unless it is told not to. Called by ``cli.context`` before
Ray is imported.
"""

from __future__ import annotations

import sys
import threading
from typing import Any, TextIO

from rmq_ray.config import put_environment

RAY_THREADS = "ray_"
"""How the names of Ray's threads begin in a driver."""


class CommandsOutput:
    """A text stream that writes what Ray's threads print to another one; in everything else it is
    the stream that it was made of.
    """

    def __init__(self, own: TextIO, other: TextIO) -> None:
        self._own, self._other = own, other

    def write(self, text: str) -> int:
        """To the stream of whoever writes."""
        stream = (
            self._other if threading.current_thread().name.startswith(RAY_THREADS) else self._own
        )
        return stream.write(text)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._own, name)


def keep_ray_out() -> None:
    """From now on; harmless when repeated."""
    put_environment(
        "RAY_DEDUP_LOGS", "0"
    )  # else the last of them come out of the main thread, at its end
    if not isinstance(sys.stdout, CommandsOutput):
        sys.stdout = CommandsOutput(sys.stdout, sys.stderr)
