"""Programs from their Debian packages, without installing them: fetched and unpacked once below
interop/target, nothing is started.
"""

from __future__ import annotations

import fcntl
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

from tools.interop import TARGET, ToolMissing

FETCH_TIMEOUT_S = 240


def unpacked(name: str, packages: Sequence[str], program: str) -> Path:
    """The directory below which the files of ``packages`` are, with ``usr/bin/<program>`` among
    them. Raises ``ToolMissing`` where they cannot be fetched.
    """
    directory = TARGET / name
    directory.mkdir(parents=True, exist_ok=True)
    with (TARGET / f"{name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (directory / "usr" / "bin" / program).exists() and not _fetched(directory, packages):
            _run(directory, ["apt-get", "update", "-qq"])
            if not _fetched(directory, packages):
                raise ToolMissing(f"{name} cannot be fetched: apt-get install {packages[0]}")
    return directory


def _fetched(directory: Path, packages: Sequence[str]) -> bool:
    if not _run(directory, ["apt-get", "download", "-qq", *packages]):
        return False
    found = [max(directory.glob(f"{package}_*.deb"), default=None) for package in packages]
    return all(
        one is not None and _run(directory, ["dpkg-deb", "-x", str(one), str(directory)])
        for one in found
    )


def _run(directory: Path, command: list[str]) -> bool:
    if shutil.which(command[0]) is None:
        return False
    done = subprocess.run(
        command, cwd=directory, capture_output=True, timeout=FETCH_TIMEOUT_S, check=False
    )
    return done.returncode == 0
