"""Which boot a program believes to run in, so that a store knows a loss of power from a kill.

A store compares ``/proc/sys/kernel/random/boot_id`` with what it noted. Here one machine stands for
many hosts: a file is mounted over it, in a mount namespace of this run's own, and holds the boot id
of the host whose programs start next.
"""

from __future__ import annotations

import os
import subprocess
import sys
import uuid
from collections import defaultdict
from pathlib import Path

KERNELS = "/proc/sys/kernel/random/boot_id"
INSIDE = "RMQ_RAY_TORTURE_NAMESPACE"
"""Set in the environment of a process that has its own namespaces."""


def enter_namespace(module: str, arguments: list[str]) -> None:
    """Run this program again in a mount and a network namespace of its own; returns there, with a
    loopback and nothing else.
    """
    if INSIDE not in os.environ:
        command = ["unshare", "--mount", "--propagation", "private", "--net"]
        command += [sys.executable, "-m", module, *arguments]
        os.execvpe(command[0], command, {**os.environ, INSIDE: "1"})
    subprocess.run(["ip", "link", "set", "lo", "up"], check=True)


class Boots:
    """Of all hosts of a run."""

    def __init__(self, directory: Path) -> None:
        self._file = directory / "boot_id"
        first = str(uuid.uuid4())
        self._ids: defaultdict[str, str] = defaultdict(lambda: first)
        self._file.write_text(f"{first}\n")
        subprocess.run(["mount", "--bind", str(self._file), KERNELS], check=True)

    def close(self) -> None:
        """The kernel's own again."""
        subprocess.run(["umount", KERNELS], check=True)

    def shows(self, host: str) -> bool:
        """Whether a program of this host that starts now reads the boot that it is."""
        return self._file.read_text().strip() == self._ids[host]

    def is_at(self, host: str) -> None:
        """Programs that start now are this host's. Not to be called while another host's start: it
        would not know its loss of power.
        """
        self._file.write_text(f"{self._ids[host]}\n")

    def begins(self, hosts: list[str]) -> None:
        """They boot, all at once; as ``is_at``."""
        fresh = str(uuid.uuid4())
        self._ids |= dict.fromkeys(hosts, fresh)
        self._file.write_text(f"{fresh}\n")
