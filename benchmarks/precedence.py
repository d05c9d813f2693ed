"""Precedence over what else runs on the machine, for figures on one that is busy with other work.
Needs root, and the kernel's autogroups.

Decides nothing about figures. A session of processes (Ray's, this one) is what Linux shares cores
among; its niceness counts against other sessions, while processes of one session share as ever. So
broker, producers, readers and JVMs hinder one another as on an idle machine.
"""

from __future__ import annotations

import os
from pathlib import Path

from benchmarks.dataframe import tree_cpu

AHEAD = -15
_named: set[int] = set()


def take(niceness: int = AHEAD) -> int:
    """Give every session of this process and of what it started a niceness; how many of them took
    it. Again where sessions were added.
    """
    for pid in tree_cpu(os.getpid()):
        try:
            session = os.getsid(pid)
            if session not in _named:
                Path(f"/proc/{pid}/autogroup").write_text(str(niceness))
                _named.add(session)
        except OSError:
            continue  # it ended meanwhile, or may not be changed by us
    return len(_named)
