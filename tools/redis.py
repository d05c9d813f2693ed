"""Redis from its Debian packages, without installing it: what ``python -m benchmarks serve``
and ``python_peers`` measure beside.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from tools.debian import unpacked
from tools.servers import free_ports, serving

PACKAGES = ("redis-server", "redis-tools", "libjemalloc2", "liblzf1")
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
    (port,) = free_ports(1)
    directory.mkdir(parents=True, exist_ok=True)
    options = ["--port", str(port), "--bind", "127.0.0.1", "--dir", str(directory)]
    command = [program, *options, *keeping]
    with serving(port, command, env=environment, stdout=subprocess.DEVNULL):
        yield f"redis://127.0.0.1:{port}"
