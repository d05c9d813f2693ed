"""The guide works as it stands there, from its first line to its last: commands in a shell,
programs in one session, in an empty directory.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.support.pages import ROOT, page_program, run_page

PAGE = "docs/guide.md"


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_the_guide_runs_from_top_to_bottom_and_prints_what_its_comments_say(
    ray_here: None, tmp_path: Path
) -> None:
    done = run_page(PAGE, tmp_path, timeout_s=360)
    said = done.stdout.splitlines()
    assert done.returncode == 0, done.stdout + done.stderr
    promised = re.findall(r"^ *print\(.*\)  # (.*)$", page_program(PAGE), re.MULTILINE)
    assert len(promised) == 6 and [line for line in said if line in promised] == promised
    assert (tmp_path / "rmq-data" / "broker-a" / "commitlog").is_dir()


def test_the_guide_is_one_page_and_the_first_one_that_a_newcomer_is_led_to() -> None:
    assert len((ROOT / PAGE).read_text("utf-8").splitlines()) <= 160
    for index in ("README.md", "docs/README.md"):
        (first, *_rest) = re.findall(r"\((?:docs/)?([a-z-]+\.md)\)", (ROOT / index).read_text())
        assert first == "guide.md"
