"""The tutorial works as it stands there: commands in a shell, programs in one session."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.support.pages import ROOT, page_program, run_page

PAGE = "docs/tutorial.md"


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_the_tutorial_runs_from_top_to_bottom_and_prints_what_its_comments_say(
    ray_here: None, tmp_path: Path
) -> None:
    done = run_page(PAGE, tmp_path, timeout_s=540)
    assert done.returncode == 0, done.stdout + done.stderr
    said = done.stdout.splitlines()
    promised = re.findall(r"^ *print\(.*\)  # (.*)$", page_program(PAGE), re.MULTILINE)
    assert len(promised) == 9 and [line for line in said if line in promised] == promised
    assert len((ROOT / PAGE).read_text("utf-8").splitlines()) <= 230
