"""What Ray's threads print does not come between the lines of a command."""

from __future__ import annotations

import io
import sys
import threading

import pytest

from rmq_ray.cli.base import context
from rmq_ray.config import environment


def test_only_rays_threads_write_elsewhere() -> None:
    own, other = io.StringIO(), io.StringIO()
    stream = context.CommandsOutput(own, other)
    for name in ("ray_listen_error_messages", "mine"):
        thread = threading.Thread(target=lambda: print("said", file=stream), name=name, daemon=True)  # type: ignore[arg-type]
        thread.start()
        thread.join(10)
    stream.write("row\n")
    assert (own.getvalue(), other.getvalue()) == ("said\nrow\n", "said\n")
    assert stream.getvalue() == own.getvalue() and not stream.isatty()


def test_a_process_is_wrapped_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdout", io.StringIO())
    monkeypatch.delenv("RAY_DEDUP_LOGS", raising=False)
    context.keep_ray_out()
    wrapped = sys.stdout
    context.keep_ray_out()
    assert (
        sys.stdout is wrapped
        and isinstance(wrapped, context.CommandsOutput)
        and environment("RAY_DEDUP_LOGS") == "0"
    )
