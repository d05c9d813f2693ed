"""``rmq-ray``: noun and verb, ``rmq-ray topic create orders --queues 4``. Exit code 0 fine, 1
failed, 2 wrong usage, 130 ended by Ctrl-C (but for ``consume`` and ``run``: that is how they end).

``console`` runs such commands one after the other in one process that has joined the cluster
already; each answers at once. From a pipe the lines are a script: its exit code is 1 when one of
them failed.
"""

from __future__ import annotations

import shlex
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib import import_module
from itertools import pairwise
from typing import Any

import click

from rmq_ray.cli import output

if __name__ == "__main__":
    main()
