"""The wheel of the project in an environment of the newest Python here, with nothing but what it
needs itself: no Ray, eight packages at most, and it sends, consumes and says what is missing.
"""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest

from tests.conformance.test_without_ray import PROGRAM
from tests.support.brokers.live_cluster import CLUSTER, SECRET, LiveCluster
from tools import window

PACKAGES_MAX = 8


def run(*command: object, **options: object) -> str:
    words = [str(word) for word in command]
    done = subprocess.run(
        words, capture_output=True, text=True, timeout=300, check=False, **options
    )  # type: ignore[call-overload]
    assert done.returncode == 0, f"{words}: {done.stdout}{done.stderr}"
    return str(done.stdout)


@pytest.fixture(scope="module")
def python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Of an environment that has the wheel."""
    folder = tmp_path_factory.mktemp("wheel")
    run(window.newest_python(), "-m", "venv", "--without-pip", folder / "venv")
    made = folder / "venv" / "bin" / "python"
    run(*window.pip(made), "install", "--quiet", "--no-compile", window.wheel(folder))
    return made


def test_eight_packages_are_enough_to_send_and_to_consume(python: Path, tmp_path: Path) -> None:
    listed = json.loads(run(*window.pip(python), "list", "--format", "json"))
    installed = {package["name"].lower() for package in listed}
    assert "ray" not in installed and len(installed) <= PACKAGES_MAX, installed
    with LiveCluster(tmp_path / "cluster") as cluster:
        (server,) = cluster.lookup().name_servers
        found = json.loads(
            run(
                *(python, "-I", "-c", PROGRAM, server, SECRET.hex(), CLUSTER),
                cwd=tmp_path,
                env=os.environ | {"TMPDIR": str(tmp_path)},  # no command has met a cluster there
            )
        )
    assert found["read"] == 102 and found["said"]["producer"] == "ray"


def test_the_command_line_is_there(python: Path, tmp_path: Path) -> None:
    command = python.with_name("rmq-ray")
    assert "Usage: rmq-ray" in run(command, "--help", cwd=tmp_path)
    asked = [command, "up", "--store", "s"]
    done = subprocess.run(asked, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 1 and "pip install 'rmq_ray[ray]'" in done.stderr, done.stderr
