"""Redis from its Debian packages, without installing it: what ``python -m benchmarks serve``
and ``python_peers`` measure beside.
"""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path

from tools.debian import unpacked
from tools.interop import ToolMissing

PACKAGES = ("redis-server", "redis-tools", "libjemalloc2", "liblzf1")
START_S = 10.0
EVERY_SECOND = ("--appendonly", "yes", "--appendfsync", "everysec", "--save", "")
"""Each write is appended to a file before it is answered, which is synced every second, as Redis
advises.
"""
EVERY_WRITE = ("--appendonly", "yes", "--appendfsync", "always", "--save", "")
AS_IT_COMES = ()
"""Snapshots of memory."""


@contextmanager
def redis_server(directory: Path, keeping: Sequence[str] = EVERY_SECOND) -> Iterator[str]:
    """A server on loopback that keeps what it has in ``directory``: its URL without a database.
    ``ToolMissing`` where it cannot be had.
    """
    program, environment = shutil.which("redis-server"), dict(os.environ)
    if program is None:
        found = unpacked("redis", PACKAGES, "redis-server")
        program = str(found / "usr" / "bin" / "redis-server")
        environment["LD_LIBRARY_PATH"] = str(
            found / "usr" / "lib" / f"{os.uname().machine}-linux-gnu"
        )
    with closing(socket.socket()) as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    directory.mkdir(parents=True, exist_ok=True)
    options = ["--port", str(port), "--bind", "127.0.0.1", "--dir", str(directory)]
    command = [program, *options, *keeping]
    process = subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL)
    try:
        _wait_for(port, process)
        yield f"redis://127.0.0.1:{port}"
    finally:
        process.terminate()
        process.wait(START_S)


def _wait_for(port: int, process: subprocess.Popen[bytes]) -> None:
    end = time.monotonic() + START_S
    while process.poll() is None and time.monotonic() < end:
        try:
            socket.create_connection(("127.0.0.1", port), 1).close()
            return
        except OSError:
            time.sleep(0.05)
    raise ToolMissing(f"redis-server did not start (exit code {process.poll()})")
