"""A line on the terminal while a command takes longer than two seconds: what is done, how far it
is, and for how long.

    - stopping the cluster, 12 s
    / dead letters written: 4000, 3 s

Only where standard error is a terminal; it is wiped when the work ends, so that nothing of it is
left among the results. Decides nothing about the work.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import click

from rmq_ray.clock import SYSTEM_CLOCK

FIRST_S, EVERY_S = 2.0, 0.25
SIGNS = "-\\|/"
WIPE = "\r\x1b[2K"


class ProgressBar:
    """``count``: how many are done, None = there is nothing to count."""

    def __init__(self, what: str) -> None:
        self._what = what
        self.count: int | None = None

    def line(self, seconds: float, turn: int) -> str:
        """
        >>> ProgressBar("stopping the cluster").line(12.4, 0)
        '- stopping the cluster, 12 s'
        """
        counted = "" if self.count is None else f": {self.count}"
        return f"{SIGNS[turn % len(SIGNS)]} {self._what}{counted}, {seconds:.0f} s"


@contextmanager
def progress(what: str, first_s: float = FIRST_S) -> Iterator[ProgressBar]:
    """Show it from ``first_s`` seconds on, until the block ends."""
    shown, ended = ProgressBar(what), threading.Event()
    if not sys.stderr.isatty():
        yield shown
        return
    began_ms = SYSTEM_CLOCK.monotonic_ms()

    def show() -> None:
        turn, wait_s = 0, first_s
        while not ended.wait(wait_s):
            seconds = (SYSTEM_CLOCK.monotonic_ms() - began_ms) / 1_000
            click.echo(f"{WIPE}{shown.line(seconds, turn)}", err=True, nl=False)
            turn, wait_s = turn + 1, EVERY_S
        if turn:
            click.echo(WIPE, err=True, nl=False)

    thread = threading.Thread(target=show, name="progress", daemon=True)
    thread.start()
    try:
        yield shown
    finally:
        ended.set()
        thread.join()
