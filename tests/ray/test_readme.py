"""What the README shows works as it stands there: the quick start runs, links lead somewhere."""

from __future__ import annotations

import re
from pathlib import Path

from tests.support.pages import ROOT, block, run_program

README = (ROOT / "README.md").read_text("utf-8")


def test_the_quick_start_runs_verbatim_and_prints_what_its_comments_say(tmp_path: Path) -> None:
    code = block("README.md", "Quick start")
    assert len(code.splitlines()) <= 25
    done = run_program(code, tmp_path, timeout_s=150)
    assert done.returncode == 0, done.stdout + done.stderr
    promised = re.findall(r"print\(.*\)  # (.*)$", code, re.MULTILINE)
    assert len(promised) == 2
    said = [line for line in done.stdout.splitlines() if not line.startswith(("\x1b", "("))]
    pattern = re.escape(promised[0]).replace("0", r"\d")
    assert (
        any(re.fullmatch(pattern, line) for line in said)
        and promised[1] in done.stdout.splitlines()
    ), done.stdout
    assert "Traceback" not in done.stdout + done.stderr
    assert (tmp_path / "rmq-data" / "broker-a" / "commitlog").is_dir()


def test_the_two_commands_are_targets_of_the_makefile() -> None:
    targets = re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text("utf-8"), re.MULTILINE)
    assert [line.split()[1] for line in block("README.md", "Two commands", 0, "").splitlines()] == [
        "demo",
        "test",
    ]
    assert {"demo", "test"} <= set(targets)


def test_links_and_files_of_the_staircase_are_there_in_the_order_of_the_layers() -> None:
    for link in re.findall(r"\]\(([^)#]+)\)", README):
        assert (ROOT / link).exists(), link
    rows = re.findall(r"^\| \[(\w+)\]\((rmq_ray/[\w.]+)\) \|(.*)$", README, re.MULTILINE)
    assert [
        step for step, _, _ in rows
    ] == "model codec store protocol remoting server client actors cluster spark".split()
    for _, folder, text in rows:
        for name in re.findall(r"`([\w/]+\.py)`", text):
            assert (ROOT / folder / name).is_file(), f"{folder}/{name}"
