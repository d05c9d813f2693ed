"""Names the tests that a base commit does not have, and runs them many times, half of them under
load: what fails now and then is seen before anybody else meets it.

    python -m tools.new_tests [base commit, default: main]

New is a function ``test_*``, a method as well, that the file in the working tree has and the same
file has not where this branch left the base; one with parameters counts once. Files are read, not
imported.
"""

from __future__ import annotations

import ast
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from tools import deflake

ROOT = Path(__file__).resolve().parents[1]
BASE = "main"
COUNT = "RMQ_RAY_NEW_TESTS"
"""The variable that says how often every new test runs, the heavy ones as well."""
TIMES, TIMES_HEAVY = 10, 2
HEAVY = ("ray", "spark", "e2e", "interop", "torture")
NEW_MAX = 40
"""More new tests than this are a merge: they have been born elsewhere."""
SECONDS_MAX = 900.0
"""No turn begins later."""


class NoBase(RuntimeError):
    """The base commit is not in this repository."""


def new_tests(base: str = BASE, root: Path = ROOT) -> list[str]:
    """Node ids. ``NoBase`` where neither ``base`` nor ``origin/<base>`` is a commit here."""
    commit = base_commit(base, root)
    moved = _git(root, "diff", "--name-status", "-M", "--diff-filter=AMR", commit, "--", "tests")
    files = {}
    for line in moved.splitlines():
        _, before, *after = line.split("\t")
        files[after[0] if after else before] = before
    untracked = _git(root, "ls-files", "--others", "--exclude-standard", "--", "tests")
    files.update((name, name) for name in untracked.splitlines())
    wanted = {name: before for name, before in files.items() if _is_test_file(name)}
    known = _texts(root, commit, list(wanted.values()))
    return [
        f"{name}::{test}"
        for name, before in sorted(wanted.items())
        for test in added(known.get(before, ""), (root / name).read_text("utf-8"))
    ]


def base_commit(base: str, root: Path = ROOT) -> str:
    """Where HEAD left ``base``; ``NoBase`` where that is not known here."""
    for name in (base, f"origin/{base}"):
        try:
            return _git(root, "merge-base", name, "HEAD").strip()
        except subprocess.CalledProcessError:
            continue
    raise NoBase(f"no commit {base} in {root}")


def added(before: str, after: str) -> list[str]:
    """Tests of a file's text that an earlier text of it has not, in their order."""
    known = set(_tests(ast.parse(before)))
    return [test for test in dict.fromkeys(_tests(ast.parse(after))) if test not in known]


def _tests(node: ast.AST, outer: str = "") -> Iterator[str]:
    """As pytest numbers them: ``test_a``, ``TestB::test_c``; also what stands below an ``if``."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef):
            if child.name.startswith("test_"):
                yield f"{outer}{child.name}"
        elif isinstance(child, ast.ClassDef):
            if child.name.startswith("Test"):
                yield from _tests(child, f"{outer}{child.name}::")
        elif isinstance(child, ast.stmt | ast.ExceptHandler):
            yield from _tests(child, outer)


def under_load(base: str, tell: Callable[[str], None] = print) -> list[str]:
    """Runs what is new; a complaint for each test that was red. ``base``: "" runs nothing."""
    if not base:
        return []
    try:
        tests = new_tests(base)
    except NoBase as missing:
        tell(f"NEW no test runs under load: {missing}")
        return []
    if not 0 < len(tests) <= NEW_MAX:
        tell(f"NEW {len(tests)} tests since {base}" + (f", over {NEW_MAX}" if tests else ""))
        return []
    complaints, end = [], time.monotonic() + SECONDS_MAX
    light, heavy = parted(tests)
    for kind, times in ((light, times_of(TIMES)), (heavy, times_of(TIMES_HEAVY))):
        if kind:
            tell(f"NEW {len(kind)} tests since {base} run {times} times: {', '.join(kind)}")
            complaints += red_in(deflake.repeat(kind, times), times, end, tell)
    return complaints


def red_in(
    turns: Iterator[deflake.Turn], times: int, end: float, tell: Callable[[str], None]
) -> list[str]:
    """A complaint for each test that was red in a turn. ``end``: by the monotonic clock; the turns
    after it are left out, in a line.
    """
    failures: dict[str, list[int]] = {}
    for turn in turns:
        tell(str(turn))
        if not turn.is_green:
            for line in turn.failures:
                failures.setdefault(line.partition(" - ")[0], []).append(turn.number)
        if turn.number < times and time.monotonic() > end:
            tell(f"NEW the time is over after {turn.number} of {times} turns")
            break
    return [
        f"a new test is red in {len(numbers)} of {times} turns: {line}"
        for line, numbers in failures.items()
    ]


def parted(tests: Sequence[str]) -> tuple[list[str], list[str]]:
    """(light, heavy) ones."""
    heavy = [test for test in tests if test.split("/")[1] in HEAVY]
    return [test for test in tests if test not in heavy], heavy


def times_of(usual: int) -> int:
    """How often tests run that usually run so often."""
    return int(os.environ.get(COUNT) or usual)


def _is_test_file(name: str) -> bool:
    return Path(name).name.startswith("test_") and name.endswith(".py")


def _texts(root: Path, commit: str, names: Sequence[str]) -> dict[str, str]:
    """The files of a commit, by one call of git; without those that it has not."""
    asked = "".join(f"{commit}:{name}\n" for name in names)
    told = subprocess.run(
        ["git", "cat-file", "--batch"], cwd=root, input=asked.encode(), capture_output=True
    ).stdout
    found, at = {}, 0
    for name in names:
        head, at = told[at : told.index(b"\n", at)], told.index(b"\n", at) + 1
        if head.endswith(b" missing"):
            continue
        size = int(head.split()[-1])
        found[name] = told[at : at + size].decode()
        at += size + 1
    return found


def _git(root: Path, *words: str) -> str:
    done = subprocess.run(["git", *words], cwd=root, capture_output=True, text=True, check=True)
    return done.stdout


def main(arguments: Sequence[str]) -> int:
    """Prints the node ids, one a line; a line of complaint where the base is not known."""
    try:
        print(*new_tests(arguments[0] if arguments else BASE), sep="\n")
    except NoBase as missing:
        print(f"which tests are new is not known: {missing}", file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
