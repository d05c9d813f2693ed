"""How a command ends early: Ctrl-C, a "no", an error; in words and as JSON."""

from __future__ import annotations

import json
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner, Result

from rmq_ray import __main__
from rmq_ray.cli import main
from rmq_ray.cli.base import context
from rmq_ray.errors import AdminError, GroupNotFound, TopicNotFound


def run(*arguments: str, text: str | None = None) -> Result:
    return CliRunner().invoke(main.main, list(arguments), input=text)


@pytest.fixture
def meets(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Whatever is asked of the cluster ends with this."""

    def set_up(error: BaseException) -> None:
        def fail(_options: context.Options) -> None:
            raise error

        monkeypatch.setattr(context.Options, "connect", fail)
        for name in ("admin", "discovery"):
            monkeypatch.setattr(context.Options, name, property(fail))

    return set_up


def error_of(done: Result) -> dict[str, str]:
    assert not done.stdout and done.stderr.count("\n") == 1, done.output
    found: dict[str, str] = json.loads(done.stderr)
    assert set(found) == {"type", "message"}
    return found


@pytest.mark.parametrize(
    "command",
    [("status",), ("topic", "list"), ("produce", "t", "x"), ("shell",), ("dlq", "list")],
)
def test_ctrl_c_ends_any_command_with_130_and_without_a_traceback(
    command: tuple[str, ...], meets: Any
) -> None:
    meets(KeyboardInterrupt())
    done = run(*command)
    assert (done.exit_code, done.stdout, done.stderr) == (130, "", "\nAborted!\n")
    done = run(*command, "--format", "json")
    assert done.exit_code == 130 and error_of(done)["message"] == "interrupted"


class Interrupted:
    """Ctrl-C comes while this module is loaded."""

    def find_spec(self, name: str, *_rest: object) -> None:
        if name == "rmq_ray.cli.main":
            raise KeyboardInterrupt


def test_ctrl_c_while_the_command_is_loaded_ends_it_in_the_same_way(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delitem(sys.modules, "rmq_ray.cli.main")
    monkeypatch.setattr(sys, "meta_path", [Interrupted(), *sys.meta_path])
    with pytest.raises(SystemExit) as ended:
        __main__.main()
    assert ended.value.code == 130 and capsys.readouterr().err == "\nAborted!\n"


def test_the_installed_command_is_that_entry_point() -> None:
    settings = tomllib.loads(Path("pyproject.toml").read_text())
    assert settings["project"]["scripts"] == {"rmq-ray": "rmq_ray.__main__:main"}
    done = subprocess.run(
        [sys.executable, "-m", "rmq_ray", "topic", "nonsense"],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 2 and "No such command 'nonsense'" in done.stderr


def test_ctrl_c_at_a_question_is_ctrl_c_and_a_no_is_not(
    monkeypatch: pytest.MonkeyPatch, meets: Any
) -> None:
    meets(AssertionError("deleted without an answer"))
    assert run("topic", "delete", "t", text="n\n").exit_code == 1
    refused = run("--format", "json", "topic", "delete", "t", text="n\n")
    assert refused.exit_code == 1 and '"type": "Abort"' in refused.stderr

    def interrupted(_text: str) -> str:
        raise KeyboardInterrupt

    monkeypatch.setattr(click.termui, "visible_prompt_func", interrupted)
    assert main.main.main(["topic", "delete", "t"], standalone_mode=False) == 130


def test_ctrl_c_ends_a_script_of_the_console(meets: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    meets(KeyboardInterrupt())
    monkeypatch.setattr(context.Options, "connect", lambda self: None)
    done = run("shell", text="topic list\ntopic nonsense\n")
    assert done.exit_code == 130 and "nonsense" not in done.stderr


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (TopicNotFound("topic 't' does not exist in this cluster", "t"), 1),
        (GroupNotFound("no broker knows\nthe group", "g"), 1),
        (AdminError('it said "no"'), 1),
    ],
)
def test_with_json_an_error_is_an_object_with_type_and_message(
    error: Exception, code: int, meets: Any
) -> None:
    meets(error)
    done = run("topic", "list", "--format", "json")
    assert done.exit_code == code
    assert error_of(done) == {
        "type": type(error).__name__,
        "message": " ".join(str(error).split()),
    }
    assert run("topic", "list").stderr.startswith("Error: ")


@pytest.mark.parametrize(
    "arguments",
    [
        ("topic", "create", "x", "--queues", "0", "--format", "json"),
        ("--format=json", "nonsense"),
        ("--timeout", "0", "status", "--format", "json"),
        ("--cluster", "a/b", "up", "--format", "json"),
    ],
    ids=" ".join,
)
def test_with_json_wrong_usage_is_an_object_too(arguments: tuple[str, ...]) -> None:
    done = run(*arguments)
    assert done.exit_code == 2 and error_of(done)["message"]
