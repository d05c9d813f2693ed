"""The file system of ``power_loss_fs`` in a process of its own, and how it is told what to do."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time
from pathlib import Path
from types import TracebackType
from typing import Any

ROOT_DIRECTORY = Path(__file__).resolve().parents[2]
START_S = 60.0


def why_not() -> str | None:
    """Why there can be no such disk on this machine; None = there can."""
    if not os.access("/dev/fuse", os.R_OK | os.W_OK):
        return "/dev/fuse cannot be opened"
    try:
        import mfusepy  # noqa: F401
    except (ImportError, OSError) as error:
        return f"mfusepy: {error}; install Debian's fuse3"
    return None


class Disk:
    """Mounts it for as long as the block lasts; ``path`` is where."""

    def __init__(self, directory: Path, seed: int) -> None:
        self.path, self._backing = directory / "disks", directory / "backing"
        self._socket, self._seed = str(directory / "control"), seed
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Disk:
        for folder in (self.path, self._backing):
            folder.mkdir(parents=True)
        arguments = [str(self.path), str(self._backing), self._socket, str(self._seed)]
        command = [sys.executable, "-m", "tests.torture.power_loss_fs", *arguments]
        self._process = subprocess.Popen(command, cwd=ROOT_DIRECTORY)
        deadline = time.monotonic() + START_S
        while not os.path.ismount(self.path):
            if self._process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(f"{self.path} was not mounted in {START_S:.0f} s")
            time.sleep(0.05)
        return self

    def __exit__(
        self,
        _type: type[BaseException] | None,
        _error: BaseException | None,
        _traceback: TracebackType | None,
    ) -> None:
        subprocess.run(["fusermount3", "-u", "-z", str(self.path)], check=False)
        assert self._process is not None
        self._process.kill()  # it would wait for files that are still open somewhere
        self._process.wait(10)

    def set(self, host: str, **values: Any) -> None:
        """Fields of ``Host``."""
        self._ask({"do": "set", "host": host, "set": values})

    def lose_power(self, host: str) -> dict[str, int]:
        """Call it while the host is ``off`` and its programs are dead; what was dropped so far."""
        return self._ask({"do": "lose_power", "host": host})

    def remove(self, host: str, path: str) -> None:
        """Take a file or a directory away, without a trace."""
        self._ask({"do": "remove", "host": host, "path": path})

    def files(self, host: str, path: str) -> dict[str, int]:
        """Those below a directory (or the file itself), and their sizes in bytes."""
        return self._ask({"do": "sizes", "host": host, "path": path})

    def flip(self, host: str, path: str, share: float) -> None:
        """One bit of a file, at this share of what is written in it."""
        self._ask({"do": "flip", "host": host, "path": path, "share": share})

    def cut(self, host: str, path: str, share: float) -> None:
        """A file to this share of its size."""
        self._ask({"do": "cut", "host": host, "path": path, "share": share})

    def _ask(self, told: dict[str, Any]) -> dict[str, int]:
        with socket.socket(socket.AF_UNIX) as peer:
            peer.settimeout(30)
            peer.connect(self._socket)
            with peer.makefile("rw") as lines:
                lines.write(json.dumps(told) + "\n")
                lines.flush()
                answer: dict[str, Any] = json.loads(lines.readline())
        if "error" in answer:
            raise ValueError(answer["error"])
        return answer
