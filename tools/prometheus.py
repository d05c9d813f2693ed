"""Prometheus from its Debian package, without installing it: fetched and unpacked once below
interop/target, nothing is started. Called by ``tests/ray/test_prometheus.py``.

    python -m tools.prometheus               prints where the programs are
"""

from __future__ import annotations

import fcntl
import shutil
import subprocess
from pathlib import Path

from tools.interop import TARGET, ToolMissing

DIRECTORY = TARGET / "prometheus"
FETCH_TIMEOUT_S = 240


def programs() -> Path:
    """The directory of ``prometheus`` and ``promtool``: those on PATH, else fetched. Raises
    ``ToolMissing`` where neither is to be had.
    """
    installed = shutil.which("prometheus")
    if installed and shutil.which("promtool"):
        return Path(installed).parent
    found = DIRECTORY / "usr" / "bin"
    DIRECTORY.mkdir(parents=True, exist_ok=True)
    with (TARGET / "prometheus.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (found / "promtool").exists() and not _fetched():
            _run(["apt-get", "update", "-qq"])
            if not _fetched():
                raise ToolMissing("prometheus cannot be fetched: apt-get install prometheus")
    return found


def _fetched() -> bool:
    if not _run(["apt-get", "download", "-qq", "prometheus"]):
        return False
    packages = sorted(DIRECTORY.glob("prometheus_*.deb"))
    return bool(packages) and _run(["dpkg-deb", "-x", str(packages[-1]), str(DIRECTORY)])


def _run(command: list[str]) -> bool:
    if shutil.which(command[0]) is None:
        return False
    done = subprocess.run(
        command, cwd=DIRECTORY, capture_output=True, timeout=FETCH_TIMEOUT_S, check=False
    )
    return done.returncode == 0


if __name__ == "__main__":
    print(programs())
