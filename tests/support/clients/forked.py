"""Runs a piece of a test in a forked process."""

from __future__ import annotations

import os
from collections.abc import Callable


def in_child(work: Callable[[], str]) -> str:
    """Run in a forked process; what it returns, or the error's text."""
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            text = work()
        except BaseException as error:  # noqa: BLE001 - the child must report whatever happened
            text = repr(error)
        os.write(write, text.encode())
        os._exit(0)
    os.close(write)
    with os.fdopen(read, "rb") as pipe:
        text = pipe.read().decode()
    os.waitpid(child, 0)
    return text
