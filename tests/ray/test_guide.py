"""The guide works as it stands there, from its first line to its last: commands in a shell,
programs in one session, in an empty directory.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import ray

from tests.support.pages import ROOT, all_blocks

PAGE = "docs/guide.md"
SHELL = """
def shell(command):
    done = subprocess.run(command, shell=True, capture_output=True, text=True, timeout=120)
    print(f"$ {command}\\n{done.stdout}{done.stderr}", flush=True)
    assert done.returncode == 0, command
"""


def program() -> str:
    """The whole page as one session: its programs, and its commands between them."""
    parts = ["import subprocess\n", SHELL]
    for language, text in all_blocks(PAGE):
        if language == "python":
            parts.append(text)
        else:
            parts += [f"shell({line!r})\n" for line in text.splitlines() if line[:1].strip()]
    return "".join(parts)


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_the_guide_runs_from_top_to_bottom_and_prints_what_its_comments_say(
    ray_here: None, tmp_path: Path
) -> None:
    environment = {
        **os.environ,
        "RAY_ADDRESS": ray.get_runtime_context().gcs_address,  # not that of another user's Ray
        "PYTHONPATH": str(ROOT),
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
    }
    try:
        done = subprocess.run(
            [sys.executable, "-c", program()],
            cwd=tmp_path,
            env=environment,
            capture_output=True,
            text=True,
            timeout=360,
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
    said = done.stdout.splitlines()
    assert done.returncode == 0, done.stdout + done.stderr
    promised = re.findall(r"^ *print\(.*\)  # (.*)$", program(), re.MULTILINE)
    assert len(promised) == 6 and [line for line in said if line in promised] == promised
    assert (tmp_path / "rmq-data" / "broker-a" / "commitlog").is_dir()


def test_the_guide_is_one_page_and_the_first_one_that_a_newcomer_is_led_to() -> None:
    assert len((ROOT / PAGE).read_text("utf-8").splitlines()) <= 160
    for index in ("README.md", "docs/README.md"):
        (first, *_rest) = re.findall(r"\((?:docs/)?([a-z-]+\.md)\)", (ROOT / index).read_text())
        assert first == "guide.md"
