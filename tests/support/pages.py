"""Code blocks of the pages, so that tests can run what users read."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
_BLOCK = re.compile(r"^```(\w*)\n(.*?)^```", re.MULTILINE | re.DOTALL)


def section(page: str, heading: str) -> str:
    """What stands under a heading of the second level, up to the next one."""
    text = (ROOT / page).read_text("utf-8")
    return re.split(r"^## ", text.partition(f"## {heading}\n")[2], maxsplit=1, flags=re.MULTILINE)[
        0
    ]


def blocks(page: str, heading: str) -> list[tuple[str, str]]:
    """(language, text) of the code blocks under a heading, in their order."""
    return _BLOCK.findall(section(page, heading))


def all_blocks(page: str) -> list[tuple[str, str]]:
    """(language, text) of every code block of a page, in their order."""
    return _BLOCK.findall((ROOT / page).read_text("utf-8"))


def block(page: str, heading: str, number: int = 0, language: str = "python") -> str:
    """The code block ``number`` of a language under a heading."""
    return [text for found, text in blocks(page, heading) if found == language][number]


def shell(command: str) -> None:
    """A line of a page, which must succeed. One of ours runs in this process once that has joined
    Ray: as the same command, without a process that joins it, too.
    """
    print(f"$ {command}", flush=True)
    ray = sys.modules.get("ray")
    if command.startswith("rmq-ray ") and ray is not None and ray.is_initialized():
        from click.testing import CliRunner

        from rmq_ray.cli.main import main

        words = shlex.split(command, comments=True)[1:]
        done = CliRunner().invoke(main, words, catch_exceptions=False)
        said, code = done.output, done.exit_code
    else:
        ran = subprocess.run(command, shell=True, capture_output=True, text=True, timeout=120)
        said, code = ran.stdout + ran.stderr, ran.returncode
    print(said, flush=True)
    assert code == 0, command


def page_program(page: str) -> str:
    """A whole page as one session: its programs, and its commands between them. Blocks of other
    languages are left out.
    """
    parts = ["from tests.support.pages import shell\n"]
    for language, text in all_blocks(page):
        if language == "python":
            parts.append(text)
        elif language == "":
            parts += [f"shell({line!r})\n" for line in text.splitlines() if line[:1].strip()]
    return "".join(parts)


def run_page(page: str, directory: Path, *, timeout_s: float) -> subprocess.CompletedProcess[str]:
    """The session, as ``run_program``."""
    return run_program(page_program(page), directory, timeout_s=timeout_s)


def run_program(
    program: str, directory: Path, *, timeout_s: float
) -> subprocess.CompletedProcess[str]:
    """In a process of its own, in this directory, on the Ray cluster of this process; the message
    cluster that it leaves is taken down.
    """
    import ray

    from rmq_ray import Cluster
    from rmq_ray.actors import gateway
    from rmq_ray.config import DEFAULT_CLUSTER

    environment = {
        **os.environ,
        "RAY_ADDRESS": ray.get_runtime_context().gcs_address,  # not that of another user's Ray
        "PYTHONPATH": str(ROOT),
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
    }
    try:
        return subprocess.run(
            [sys.executable, "-c", program],
            cwd=directory,
            env=environment,
            capture_output=True,
            text=True,
            timeout=timeout_s,
            check=False,
        )
    finally:
        if DEFAULT_CLUSTER in gateway.clusters():
            Cluster(DEFAULT_CLUSTER).stop()
