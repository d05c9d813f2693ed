"""A server in a process of its own on loopback: when it may be used, and how it ends."""

from __future__ import annotations

import socket
import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

START_S, END_S = 60.0, 30.0


def free_ports(count: int) -> list[int]:
    """Ports that nobody listens on now."""
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [each.getsockname()[1] for each in sockets]
    for each in sockets:
        each.close()
    return ports


@contextmanager
def serving(port: int, command: Sequence[str | Path], **options: Any) -> Iterator[None]:
    """The server runs, and listens on ``port``, until the block ends; then it is killed by its
    process id. ``options``: of ``subprocess.Popen``. ``RuntimeError`` when it ends before it
    listens, or takes too long.
    """
    process = subprocess.Popen(command, stdin=subprocess.DEVNULL, **options)
    try:
        _wait_for_port(port, process)
        yield
    finally:
        process.kill()
        process.wait(END_S)


def _wait_for_port(port: int, process: subprocess.Popen[Any]) -> None:
    deadline = time.monotonic() + START_S
    while time.monotonic() < deadline and process.poll() is None:
        try:
            socket.create_connection(("127.0.0.1", port), 1).close()
            return
        except OSError:
            time.sleep(0.1)
    raise RuntimeError(
        f"{process.args!r}: nothing listens on port {port} (exit code {process.poll()})"
    )
