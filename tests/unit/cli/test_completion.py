"""What a shell completes, without a cluster: commands and options, and nothing where no name server
is remembered.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from click.shell_completion import ShellComplete
from click.testing import CliRunner

from rmq_ray.actors import remembered
from rmq_ray.cli.base import ray_head
from rmq_ray.cli.main import main
from rmq_ray.cli.shell.completion import PROGRAM, VARIABLE


def completed(*words: str) -> list[str]:
    """What a shell offers in the place of the last word."""
    shell = ShellComplete(main, {}, PROGRAM, VARIABLE)
    return [item.value for item in shell.get_completions(list(words[:-1]), words[-1])]


def test_nouns_verbs_options_and_choices_complete() -> None:
    assert completed("com") == ["completion"]
    assert {"topic", "group", "status"} <= set(completed(""))
    assert completed("topic", "cr") == ["create"]
    assert completed("topic", "create", "orders", "--re") == ["--retention"]
    assert completed("group", "lag", "billing", "--w") == ["--watch"]
    assert completed("topic", "list", "--format", "") == ["table", "json"]
    assert completed("--format", "json", "topic", "al") == ["alter"]


@pytest.mark.parametrize("where", ["no Ray runs", "nothing is remembered", "it is not found out"])
def test_without_a_cluster_names_are_none_and_nothing_is_said(
    where: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def find(_address: str, _port: int | None = None) -> str | None:
        if where == "it is not found out":
            raise OSError("/proc cannot be read")
        return None if where == "no Ray runs" else "127.0.0.1:6379"

    monkeypatch.setattr(ray_head, "find", find)
    monkeypatch.setattr(remembered, "directory_of_user", lambda: tmp_path)
    assert completed("topic", "describe", "") == [] == completed("group", "lag", "")
    assert capsys.readouterr() == ("", "")


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_the_script_names_the_command_and_its_variable(shell: str) -> None:
    done = CliRunner().invoke(main, ["completion", shell])
    assert done.exit_code == 0
    assert f"{VARIABLE}={shell}_complete" in done.stdout and PROGRAM in done.stdout
    assert CliRunner().invoke(main, ["completion", "csh"]).exit_code == 2


@pytest.mark.skipif(shutil.which("bash") is None, reason="no bash here")
def test_bash_takes_the_script_and_completes_with_it(tmp_path: Path) -> None:
    program = tmp_path / PROGRAM
    program.write_text(f"#!{sys.executable}\nfrom rmq_ray.__main__ import main\nmain()\n")
    program.chmod(0o755)
    typed = (
        f'PATH="{tmp_path}:$PATH"; eval "$({PROGRAM} completion bash)"; '
        f"COMP_WORDS=({PROGRAM} topic cr); COMP_CWORD=2; "
        f'_rmq_ray_completion {PROGRAM}; echo "${{COMPREPLY[@]}}"'
    )
    done = subprocess.run(
        ["bash", "--norc", "-c", typed], capture_output=True, text=True, timeout=120, check=False
    )
    assert (done.stdout, done.stderr) == ("create\n", "")
