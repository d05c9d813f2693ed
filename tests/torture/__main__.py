"""A cluster under fire, and whether it kept its promises.

    python -m tests.torture --seconds 600 --mode async|flush|copies|both [--seed 1]
        [--only REGEX] [--ray-failures PERCENT] [--keep DIR] [--directory DIR]

    disk, power_loss_fs  a file system that forgets what was not synced, fails, fills up, is slow
    boots                which boot of which host a store believes to run in
    network, clocks      ports that are cut, answers that are lost; clocks of processes that jump
    faults               what is done when: a deck from a seed
    victims, modes       to whom; how the cluster is started, and what it may lose
    workload             senders and consumers that write down what they began and what came
    history, checker     what they wrote down; the promises as rules over it (open this first)
    run                  all of them together

``--only`` takes of the deck what its names match; ``--ray-failures`` lets so many of 100 actor
calls fail, before, while or after they are carried out; ``--keep`` copies what the disks hold and
what Ray's processes logged to a directory when a promise was broken.

Prints the faults, every violation, and at the end one line: "N acknowledged, F faults, V
violations". Exit code 1 with a violation. Needs FUSE and nftables (Debian's fuse3, nftables), 2 GiB
of disk and 4 GiB of memory for ten minutes, and root for namespaces of its own.
"""

from __future__ import annotations

import argparse
import re
import sys
import tempfile
from pathlib import Path

from tests.torture.boots import enter_namespace
from tests.torture.modes import MODES
from tests.torture.run import EVERY_KIND, torture, why_not


def main() -> int:
    """Command line."""
    parser = argparse.ArgumentParser(prog="python -m tests.torture", description=__doc__)
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--mode", choices=sorted(MODES), default="both")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", type=re.compile, default=EVERY_KIND, metavar="REGEX")
    parser.add_argument("--ray-failures", type=int, default=0, metavar="PERCENT")
    parser.add_argument("--keep", type=Path, default=None, metavar="DIR")
    parser.add_argument("--directory", type=Path, default=None)
    arguments = parser.parse_args()
    if (reason := why_not()) is not None:
        parser.error(reason)
    enter_namespace("tests.torture", sys.argv[1:])
    with tempfile.TemporaryDirectory(dir=arguments.directory, prefix="torture-") as directory:
        told = torture(
            Path(directory),
            MODES[arguments.mode],
            arguments.seconds,
            arguments.seed,
            only=arguments.only,
            ray_failures=arguments.ray_failures,
            keep=arguments.keep,
        )
    print(told.text())
    return 1 if told.violations else 0


if __name__ == "__main__":
    sys.exit(main())
