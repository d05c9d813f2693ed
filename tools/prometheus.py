"""Prometheus from its Debian package, without installing it. Called by
``tests/ray/test_prometheus.py``.

    python -m tools.prometheus               prints where the programs are
"""

from __future__ import annotations

import shutil
from pathlib import Path

from tools.debian import unpacked


def programs() -> Path:
    """The directory of ``prometheus`` and ``promtool``: those on PATH, else fetched. Raises
    ``ToolMissing`` where neither is to be had.
    """
    installed = shutil.which("prometheus")
    if installed and shutil.which("promtool"):
        return Path(installed).parent
    return unpacked("prometheus", ["prometheus"], "promtool") / "usr" / "bin"


if __name__ == "__main__":
    print(programs())
