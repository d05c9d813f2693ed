"""The command line as users run it: a process for each command, in a temporary directory of its
own where it starts Ray.
"""

from __future__ import annotations

import itertools
import json
import os
import socket
import subprocess
import sys
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rmq_ray.cli.base import ray_head
from tests.support.pages import ROOT

COMMAND_S = 240
PORTS = range(61_000, 65_000)
"""Above those that the kernel and Ray's workers choose for themselves: gRPC shares a port that
another Ray listens on.
"""
_ports = itertools.count(os.getpid() * 97)


class Program:
    """Runs ``python -m rmq_ray`` with some general options. ``environment``: None = that of this
    process; ``python``: the interpreter.
    """

    def __init__(
        self,
        *general: str,
        environment: dict[str, str] | None = None,
        python: Path | str = sys.executable,
    ) -> None:
        self.general = general
        self.environment = {
            **(os.environ if environment is None else environment),
            "PYTHONPATH": str(ROOT),
        }
        self.python = str(python)

    def start(self, *arguments: str, **options: Any) -> subprocess.Popen[str]:
        command = [self.python, "-m", "rmq_ray", *self.general, *arguments]
        return subprocess.Popen(
            command,
            env=self.environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            **options,
        )

    def run(self, *arguments: str, text: str | None = None) -> subprocess.CompletedProcess[str]:
        process = self.start(*arguments)
        try:
            out, err = process.communicate(text, timeout=COMMAND_S)
        except subprocess.TimeoutExpired:
            process.kill()
            raise
        return subprocess.CompletedProcess(process.args, process.returncode, out, err)

    def ok(self, *arguments: str, text: str | None = None) -> str:
        done = self.run(*arguments, text=text)
        assert done.returncode == 0, f"{arguments}: {done.stdout}{done.stderr}"
        return done.stdout

    def json(self, *arguments: str) -> Any:
        return json.loads(self.ok("--format", "json", *arguments))

    def session(self, *lines: str) -> list[Any]:
        """What each line prints, all of them in one process of ``shell``."""
        text, found = self.ok("--format", "json", "shell", text="\n".join(lines)), []
        while text := text.lstrip():
            told, end = json.JSONDecoder().raw_decode(text)
            found.append(told)
            text = text[end:]
        return found

    def fails(self, *arguments: str) -> str:
        done = self.run(*arguments)
        assert done.returncode == 1, f"{arguments}: {done.returncode} {done.stdout}{done.stderr}"
        assert done.stderr.count("\n") == 1 and done.stderr.startswith("Error: "), done.stderr
        return done.stderr


def free_port() -> int:
    """Another one each time."""
    for number in itertools.islice(_ports, len(PORTS)):
        port = PORTS[number % len(PORTS)]
        with socket.socket() as probe:
            try:
                probe.bind(("", port))
            except OSError:
                continue
            return port
    raise AssertionError("no free port")


def processes_that_name(text: str) -> list[str]:
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            line = path.read_bytes().replace(b"\0", b" ").decode("utf-8", "replace")
        except OSError:
            continue
        if text in line and int(path.parent.name) != os.getpid():
            found.append(line)
    return found


@contextmanager
def machine_alone(kind: str, **environment: str) -> Iterator[tuple[Program, Path]]:
    """A machine of its own, as far as Ray can tell: other temporary directories, no token mode from
    this process, no address. ``environment``: of every command. The heads that were started there
    are ended, and nothing runs then.
    """
    # short: Ray puts Unix sockets below it
    directory = Path(os.environ.get("RAY_TMPDIR", "/tmp")) / f"{kind}-{uuid.uuid4().hex[:8]}"
    directory.mkdir()
    own = {"RAY_TMPDIR": str(directory), "TMPDIR": str(directory)}
    cli = Program(environment=os.environ | own)
    for variable in ("RAY_ADDRESS", "RAY_AUTH_MODE", "RAY_worker_niceness"):
        cli.environment.pop(variable, None)
    cli.environment |= environment
    try:
        yield cli, directory
    finally:
        for head in ray_head.running():
            if Path(head.directory).is_relative_to(directory):
                ray_head.stop(head)
    assert processes_that_name(str(directory)) == []
    subprocess.run(["rm", "-rf", str(directory)], check=True, timeout=60)
