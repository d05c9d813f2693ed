"""Change one thing in a module, run the tests that know it, and see whether one of them fails.

    python -m tools.mutate rmq_ray/protocol rmq_ray/store --count 200 --seed 1 --jobs 2

Every mutant is a comparison, an operator, a condition, a constant or a returned value that is
another one than it was. A sample of all of them is tried, each in a copy of the tree: first the
tests of unit, conformance and golden that import the module, then those of its folder, then all of
its room (``tests/unit/store`` and so on). Prints the survivors, which none of these noticed, and
the share that was killed; exit code 1 where that is less than ``--least``. What a test cannot see
(log lines, types) is not changed; a mutant that does the same in another way survives, too.
"""

from __future__ import annotations

import argparse
import ast
import random
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from copy import deepcopy
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from queue import Queue

ROOT = Path(__file__).resolve().parents[1]
COPIED = ("rmq_ray", "tests", "tools", "docs", "examples", "interop", "pyproject.toml", "README.md")
LEFT_OUT = ("__pycache__", "target", "*.pyc")
SUITES = ("unit", "conformance", "golden")
TIMEOUT_S = 240
UNSEEN = ("log", "logger", "warnings", "deque", "repr")
"""Whose arguments no promise speaks of: calls of these are left as they are."""
COMPARED: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
}
COMPUTED: dict[type[ast.operator], type[ast.operator]] = {
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.FloorDiv,
    ast.FloorDiv: ast.Mult,
    ast.BitAnd: ast.BitOr,
    ast.BitOr: ast.BitAnd,
    ast.LShift: ast.RShift,
    ast.RShift: ast.LShift,
}


@dataclass(frozen=True, slots=True)
class Mutant:
    """The ``number``-th place of a module where something can be changed, and what is."""

    path: Path
    number: int
    line: int
    what: str

    def __str__(self) -> str:
        return f"{self.path}:{self.line}: {self.what}"


def places(tree: ast.Module) -> Iterator[ast.AST]:
    """Nodes that have a mutant, in a fixed order: what runs in a function's body."""
    for function in ast.walk(tree):
        if isinstance(function, (ast.FunctionDef, ast.AsyncFunctionDef)):
            for statement in function.body:
                yield from _inside(statement)


def _inside(node: ast.AST) -> Iterator[ast.AST]:
    if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Raise)):
        return  # nested functions are walked by themselves; words of errors are for people
    if isinstance(node, ast.Call) and _name(node.func).split(".")[0] in UNSEEN:
        return
    if isinstance(node, (ast.AnnAssign, ast.Assert)):
        children = [node.value] if isinstance(node, ast.AnnAssign) and node.value else []
    else:
        children = list(ast.iter_child_nodes(node))
        if _changed(node) is not None:
            yield node
    for child in children:
        yield from _inside(child)


def _name(node: ast.expr) -> str:
    return ast.unparse(node) if isinstance(node, (ast.Name, ast.Attribute)) else ""


def _changed(node: ast.AST) -> ast.AST | None:
    """A node in its place, None where there is nothing to change."""
    new = deepcopy(node)
    match new:
        case ast.Compare(ops=[operator, *_]) if type(operator) in COMPARED:
            new.ops[0] = COMPARED[type(operator)]()
        case ast.BoolOp():
            new.op = ast.Or() if isinstance(new.op, ast.And) else ast.And()
        case ast.BinOp() | ast.AugAssign() if type(new.op) in COMPUTED:
            new.op = COMPUTED[type(new.op)]()
        case ast.UnaryOp(op=ast.Not()):
            return new.operand
        case ast.Constant(value=bool()):
            new.value = not new.value
        case ast.Constant(value=int()):
            new.value += 1
        case ast.Return(value=ast.expr()) if not isinstance(new.value, ast.Constant):
            new.value = ast.Constant(None)
        case ast.If() | ast.While() | ast.IfExp() if not isinstance(new.test, ast.Compare):
            new.test = ast.UnaryOp(ast.Not(), new.test)
        case ast.Break() | ast.Continue():
            return ast.Pass()
        case _:
            return None
    return new


def mutants(path: Path) -> list[Mutant]:
    """All of a module."""
    found = []
    for number, node in enumerate(places(ast.parse((ROOT / path).read_text("utf-8")))):
        new = _changed(node)
        assert new is not None
        before, after = (" ".join(ast.unparse(one).split())[:60] for one in (node, new))
        found.append(Mutant(path, number, getattr(node, "lineno", 0), f"{before}  ->  {after}"))
    return found


def source_of(mutant: Mutant) -> str:
    """The whole module with that one change."""
    tree = ast.parse((ROOT / mutant.path).read_text("utf-8"))
    wanted = list(places(tree))[mutant.number]

    class Change(ast.NodeTransformer):
        def visit(self, node: ast.AST) -> ast.AST:
            return _changed(node) if node is wanted else self.generic_visit(node)  # type: ignore[return-value]

    return ast.unparse(ast.fix_missing_locations(Change().visit(tree)))


@cache
def tests_of(path: Path) -> tuple[tuple[str, ...], ...]:
    """(files that import the module, those of its folder besides, the room of both)."""
    module = ".".join(path.with_suffix("").parts)
    parent, _, name = module.rpartition(".")
    folder = ROOT.joinpath("tests/unit", *path.parent.parts[1:])
    while not folder.is_dir():
        folder = folder.parent
    importing = []
    for suite in SUITES:
        for file in sorted((ROOT / "tests" / suite).rglob("test_*.py")):
            text = file.read_text("utf-8")
            if f"from {module} import" in text or f"from {parent} import {name}" in text:
                importing.append(file)
    beside = [file for file in sorted(folder.glob("test_*.py")) if file not in importing]
    return _names(importing), _names(beside), (f"tests/unit/{path.parts[1]}",)


def _names(files: Sequence[Path]) -> tuple[str, ...]:
    return tuple(str(file.relative_to(ROOT)) for file in files)


def passes(tree: Path, tests: Sequence[str]) -> bool:
    """Whether these tests pass in a copy; one that hangs does not."""
    command = [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", *tests]
    try:
        done = subprocess.run(command, cwd=tree, capture_output=True, timeout=TIMEOUT_S)
    except subprocess.TimeoutExpired:
        return False
    return done.returncode == 0


def survives(mutant: Mutant, tree: Path) -> bool:
    """Whether all tests that know the module pass with the change."""
    target = tree / mutant.path
    target.write_text(source_of(mutant), "utf-8")
    try:
        return all(passes(tree, tests) for tests in tests_of(mutant.path) if tests)
    finally:
        shutil.copyfile(ROOT / mutant.path, target)


def copy_to(tree: Path) -> Path:
    """What the tests need of the tree."""
    for name in COPIED:
        source = ROOT / name
        if source.is_dir():
            shutil.copytree(source, tree / name, ignore=shutil.ignore_patterns(*LEFT_OUT))
        else:
            shutil.copyfile(source, tree / name)
    return tree


def run(chosen: Sequence[Mutant], jobs: int) -> list[Mutant]:
    """The survivors; every outcome is printed as it is known."""
    found = []
    with tempfile.TemporaryDirectory(prefix="rmq-mutants-") as folder:
        trees: Queue[Path] = Queue()
        for number in range(jobs):
            (Path(folder) / str(number)).mkdir()
            trees.put(copy_to(Path(folder) / str(number)))

        def play(mutant: Mutant) -> bool:
            tree = trees.get()
            try:
                return survives(mutant, tree)
            finally:
                trees.put(tree)

        with ThreadPoolExecutor(jobs) as pool:
            for mutant, alive in zip(chosen, pool.map(play, chosen), strict=True):
                print(f"{'SURVIVED' if alive else 'killed  '} {mutant}", flush=True)
                if alive:
                    found.append(mutant)
    return found


def main() -> int:
    """Exit code 1 where too many survive."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("paths", nargs="+", type=Path, help="modules or folders of the package")
    parser.add_argument("--count", type=int, default=200, help="how many are tried")
    parser.add_argument("--seed", type=int, default=1, help="which ones")
    parser.add_argument("--jobs", type=int, default=2, help="at a time")
    parser.add_argument("--least", type=float, default=0.9, help="share that must be killed")
    options = parser.parse_args()
    files = [
        file.resolve().relative_to(ROOT)
        for path in options.paths
        for file in (sorted(path.rglob("*.py")) if path.is_dir() else [path])
    ]
    known = [mutant for file in files for mutant in mutants(file)]
    chosen = random.Random(options.seed).sample(known, min(options.count, len(known)))
    survivors = run(chosen, options.jobs)
    tried, alive = (
        Counter("/".join(one.path.parts[:2]) for one in some) for some in (chosen, survivors)
    )
    for room in sorted(tried):
        print(f"{room}: {tried[room] - alive[room]} of {tried[room]} killed")
    share = 1 - len(survivors) / max(1, len(chosen))
    print(f"{len(chosen)} of {len(known)} mutants tried, {share:.1%} killed")
    return int(share < options.least)


if __name__ == "__main__":
    raise SystemExit(main())
