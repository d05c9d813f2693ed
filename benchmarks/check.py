"""Has a change made a hot path dearer? CPU a message of a base commit and of the working tree, in
turns on the same machine; a path whose median grew by more than a tenth fails.

    python -m benchmarks.check --base main [--turns 5]          make bench-check BASE=main

CPU, not time: it is steadier where other programs run. In each turn both have fresh processes
(``cpu_paths``) and are called alternately, path by path, so that the machine's mood is the same for
both; the cheapest call of a path counts, as how often threads happen to wake each other differs
from call to call. The base commit is checked out in a temporary directory and runs with the same
virtual environment.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
MEASURE = Path(__file__).with_name("cpu_paths.py")
TURNS_MIN = 5
GROWTH_MAX = 1.1
PATIENCE_S = 60.0

Turn = Mapping[str, float]
"""Path -> microseconds of CPU a message."""


@dataclass(frozen=True)
class Judgement:
    """Of one path: medians in microseconds."""

    path: str
    base: float
    new: float

    @property
    def ratio(self) -> float:
        """New / base."""
        return self.new / self.base

    @property
    def grew(self) -> bool:
        """Whether the change may not be merged as it is."""
        return self.ratio > GROWTH_MAX


def judge(base: Sequence[Turn], new: Sequence[Turn]) -> list[Judgement]:
    """One for each path. ``ValueError`` with fewer turns than a median needs, a path that was not
    measured in each of them, or a figure that cannot be one.
    """
    for side, turns in (("base", base), ("new", new)):
        if len(turns) < TURNS_MIN:
            raise ValueError(f"{len(turns)} turns of {side}; at least {TURNS_MIN} are needed")
        for turn in turns:
            if turn.keys() != base[0].keys():
                raise ValueError(f"a turn of {side} has other paths: {', '.join(turn)}")
            for path, value in turn.items():
                if not value > 0:
                    raise ValueError(f"{path} of {side} took {value} us a message; it did not run")
    return [
        Judgement(
            path,
            statistics.median(turn[path] for turn in base),
            statistics.median(turn[path] for turn in new),
        )
        for path in base[0]
    ]


def table(judgements: Sequence[Judgement]) -> str:
    """A line for each path."""
    lines = [f"{'CPU a message, us':<36} {'base':>9} {'now':>9} {'ratio':>7}"]
    for one in judgements:
        verdict = "GREW" if one.grew else "kept"
        lines.append(
            f"{one.path:<36} {one.base:>9.2f} {one.new:>9.2f} {one.ratio:>7.2f}  {verdict}"
        )
    return "\n".join(lines)


@contextmanager
def checked_out(commit: str) -> Iterator[Path]:
    """A worktree of the commit in a temporary directory, removed afterwards. Exits with what git
    says when there is no such commit.
    """
    with tempfile.TemporaryDirectory(prefix="rmq-ray-base-") as scratch:
        tree = Path(scratch) / "tree"
        git("worktree", "add", "--detach", str(tree), commit)
        try:
            yield tree
        finally:
            git("worktree", "remove", "--force", str(tree))


def git(*arguments: str) -> None:
    """Run in this checkout."""
    done = subprocess.run(["git", "-C", str(ROOT), *arguments], capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"git {' '.join(arguments)}: {done.stderr.strip()}")


class Measured:
    """The clients and the broker of one tree; they end with the block."""

    def __init__(self, tree: Path) -> None:
        self._tree = tree
        self._process = subprocess.Popen(
            [sys.executable, "-P", str(MEASURE), str(tree)],
            cwd=tree,
            env={**os.environ, "PYTHONPATH": str(tree), "PYTHONWARNINGS": "ignore"},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def __enter__(self) -> Measured:
        self.calls: dict[str, int] = json.loads(self._answer())
        return self

    def __exit__(self, *_exc: object) -> None:
        self._process.communicate(timeout=PATIENCE_S)

    def cpu_us(self, path: str) -> float:
        """Of one call."""
        assert self._process.stdin is not None
        self._process.stdin.write(f"{path}\n")
        self._process.stdin.flush()
        return float(self._answer())

    def _answer(self) -> str:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            self._process.communicate(timeout=PATIENCE_S)
            sys.exit(f"the paths of {self._tree} cannot be measured; see what was written above")
        return line


def turn_of(trees: Sequence[Path]) -> dict[Path, Turn]:
    """Both side by side, the first of ``trees`` first."""
    with ExitStack() as ends:
        sides = {tree: ends.enter_context(Measured(tree)) for tree in trees}
        found: dict[Path, dict[str, float]] = {tree: {} for tree in trees}
        for path, calls in sides[trees[0]].calls.items():
            costs = [
                {tree: side.cpu_us(path) for tree, side in sides.items()} for _ in range(calls)
            ]
            for tree in trees:
                found[tree][path] = min(cost[tree] for cost in costs[1:])
    return dict(found)


def main() -> int:
    """Command line; 1 where a path grew."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.check", description=__doc__)
    parser.add_argument("--base", default="main", help="the commit to compare with; default main")
    parser.add_argument("--turns", type=int, default=TURNS_MIN, help=f"at least {TURNS_MIN}")
    arguments = parser.parse_args()
    if arguments.turns < TURNS_MIN:
        parser.error(f"--turns is {arguments.turns}; a median needs at least {TURNS_MIN}")
    with checked_out(arguments.base) as tree:
        turns: dict[Path, list[Turn]] = {tree: [], ROOT: []}
        for number in range(arguments.turns):
            print(f"turn {number + 1} of {arguments.turns}", file=sys.stderr, flush=True)
            for each, turn in turn_of([tree, ROOT][:: -1 if number % 2 else 1]).items():
                turns[each].append(turn)
        judgements = judge(turns[tree], turns[ROOT])
    print(table(judgements))
    failed = [one for one in judgements if one.grew]
    print(
        f"--- {len(failed)} of {len(judgements)} paths cost more" if failed else "--- no path grew"
    )
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
