"""Clocks of single processes that jump, by a hook that every Python of a run loads.

A directory on PYTHONPATH has a ``sitecustomize.py``, so that each process begins with a file of its
own, ``<pid>``, of eight bytes: what its wall clock is ahead of the machine's, in ns. Whoever writes
them makes its clock jump. Monotonic time does not jump, as on a real host.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

HOOK = """
import mmap, os, time
_real, _real_ns = time.time, time.time_ns
_path = os.path.join({directory!r}, str(os.getpid()))
with open(_path, "w+b") as _file:
    _file.write(bytes(8))
    _file.flush()
    _ahead = mmap.mmap(_file.fileno(), 8)
time.time_ns = lambda: _real_ns() + int.from_bytes(_ahead[:8], "little", signed=True)
time.time = lambda: _real() + int.from_bytes(_ahead[:8], "little", signed=True) / 1e9
"""


class Clocks:
    """Of all processes that begin after it was made."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory / "clocks"
        hooks = directory / "hooks"
        for folder in (self._directory, hooks):
            folder.mkdir()
        (hooks / "sitecustomize.py").write_text(HOOK.format(directory=str(self._directory)))
        self._before = os.environ.get("PYTHONPATH", "")
        os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, (str(hooks), self._before)))

    def close(self) -> None:
        """What begins from now on has the machine's clock."""
        os.environ["PYTHONPATH"] = self._before

    @contextmanager
    def ahead(self, pid: int, seconds: int) -> Iterator[None]:
        """A process's wall clock jumps by so much, and back at the end; negative: back first."""
        path = self._directory / str(pid)
        self._set(path, seconds)
        try:
            yield
        finally:
            self._set(path, 0)

    @staticmethod
    def _set(path: Path, seconds: int) -> None:
        with path.open("r+b") as file:
            file.write((seconds * 10**9).to_bytes(8, "little", signed=True))
