"""Code blocks of the pages, so that tests can run what users read."""

from __future__ import annotations

import os
import re
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


_SHELL = """
def shell(command):
    done = subprocess.run(command, shell=True, capture_output=True, text=True, timeout=120)
    print(f"$ {command}\\n{done.stdout}{done.stderr}", flush=True)
    assert done.returncode == 0, command
"""


def page_program(page: str) -> str:
    """A whole page as one session: its programs, and its commands between them. Blocks of other
    languages are left out.
    """
    parts = ["import subprocess\n", _SHELL]
    for language, text in all_blocks(page):
        if language == "python":
            parts.append(text)
        elif language == "":
            parts += [f"shell({line!r})\n" for line in text.splitlines() if line[:1].strip()]
    return "".join(parts)


def run_page(page: str, directory: Path, *, timeout_s: float) -> subprocess.CompletedProcess[str]:
    """The session in a process of its own, in this directory, on the Ray cluster of this process;
    the message cluster that it leaves is taken down.
    """
    import ray

    environment = {
        **os.environ,
        "RAY_ADDRESS": ray.get_runtime_context().gcs_address,  # not that of another user's Ray
        "PYTHONPATH": str(ROOT),
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
    }
    try:
        return subprocess.run(
            [sys.executable, "-c", page_program(page)],
            cwd=directory,
            env=environment,
            capture_output=True,
            text=True,
            timeout=timeout_s,
            check=False,
        )
    finally:
        subprocess.run(
            [sys.executable, "-m", "rmq_ray", "down"],
            env=environment,
            capture_output=True,
            timeout=120,
            check=False,
        )
