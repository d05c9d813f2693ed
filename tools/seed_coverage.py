"""Which statement of the seed documents which tests show: reads the tests' marks by syntax tree,
writes docs/seed-coverage.md.

    python tools/seed_coverage.py            write the page
    python tools/seed_coverage.py --missing  list statements in scope without a test

Source of the statements and of what is set apart: docs/seed-ids.toml. Nothing is imported or run.

The page names files of tests, not tests: it stays right while tests move, change their names or get
neighbours. The mark in the file says which one it is. A statement that is set apart as "later" may
be marked where a part of it is shown already; the others may not. "partial" names what of a
statement no test shows.
"""

from __future__ import annotations

import argparse
import ast
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
IDS = ROOT / "docs" / "seed-ids.toml"
PAGE = ROOT / "docs" / "seed-coverage.md"
TESTS = ROOT / "tests"
IDS_A_TEST_MAX = 5
KINDS = {"later": "later", "replaced": "done otherwise or left out", "story": "nothing to test"}


@dataclass(frozen=True, slots=True)
class Mark:
    """One use of the mark: ids, and the test that carries it as ``path::name``."""

    ids: tuple[str, ...]
    test: str


@dataclass(frozen=True, slots=True)
class Seeds:
    """docs/seed-ids.toml: id -> statement, id -> (kind, reason) of what is set apart, id -> what of
    it no test shows, and whether a gap is a failure.
    """

    documents: dict[str, str]
    statements: dict[str, str]
    apart: dict[str, tuple[str, str]]
    partial: dict[str, str]
    strict: bool


@dataclass(slots=True)
class Coverage:
    """Seeds and the tests that show each."""

    seeds: Seeds
    tests: dict[str, list[str]] = field(default_factory=dict)

    def shown(self, seed: str) -> bool:
        """True when tests show the whole of it."""
        known = self.seeds
        return seed in self.tests and seed not in known.apart and seed not in known.partial

    def files(self, seed: str) -> list[str]:
        """The files that hold its tests, sorted."""
        return sorted({test.partition("::")[0] for test in self.tests.get(seed, ())})

    def missing(self) -> list[str]:
        """Ids in scope without a test."""
        return [
            seed
            for seed in self.seeds.statements
            if seed not in self.tests and seed not in self.seeds.apart
        ]

    def contradictions(self) -> list[str]:
        """``id (test)`` of marks on statements that are left out or have nothing to test."""
        return [
            f"{seed} ({test})"
            for seed, tests in sorted(self.tests.items())
            if self.seeds.apart.get(seed, ("later",))[0] != "later"
            for test in tests
        ]

    def unknown(self) -> list[str]:
        """``id (test)`` of marks whose id no document has."""
        return [
            f"{seed} ({test})"
            for seed, tests in sorted(self.tests.items())
            if seed not in self.seeds.statements
            for test in tests
        ]


def read_seeds(path: Path = IDS) -> Seeds:
    """Parses the list; an id set apart twice or unknown is a ``ValueError``."""
    with path.open("rb") as file:
        data = tomllib.load(file)
    statements: dict[str, str] = data["statements"]
    apart: dict[str, tuple[str, str]] = {}
    for entry in data["apart"]:
        if entry["kind"] not in KINDS or not entry["reason"]:
            raise ValueError(f"an entry needs a kind of {sorted(KINDS)} and a reason: {entry}")
        for seed in expand(entry["ids"]):
            if seed in apart or seed not in statements:
                raise ValueError(f"{seed} is set apart twice or unknown")
            apart[seed] = (entry["kind"], entry["reason"])
    partial: dict[str, str] = {}
    for entry in data.get("partial", ()):
        for seed in expand(entry["ids"]):
            if seed in apart or seed in partial or seed not in statements or not entry["lacks"]:
                raise ValueError(f"{seed} is partial and set apart, twice, unknown or unexplained")
            partial[seed] = entry["lacks"]
    return Seeds(data["documents"], statements, apart, partial, data["strict"])


def expand(ids: list[str]) -> Iterator[str]:
    """Ranges to ids.

    >>> list(expand(["S0-001", "S3-047..S3-049"]))
    ['S0-001', 'S3-047', 'S3-048', 'S3-049']
    """
    for item in ids:
        first, _, last = item.partition("..")
        if not last:
            yield first
            continue
        document, low = first.split("-")
        for number in range(int(low), int(last.split("-")[1]) + 1):
            yield f"{document}-{number:03d}"


def read_marks(tests: Path = TESTS) -> Iterator[Mark]:
    """Every ``pytest.mark.seed(...)`` on a test function, a class or a module (``pytestmark``)."""
    for path in sorted(tests.rglob("test_*.py")):
        where = path.relative_to(tests.parent).as_posix()
        tree = ast.parse(path.read_text("utf-8"))
        for name, node in _functions(tree):
            for decorator in node.decorator_list:
                ids = _ids(decorator)
                if ids:
                    yield Mark(ids, f"{where}::{name}")


def _functions(
    tree: ast.Module,
) -> Iterator[tuple[str, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef]]:
    for node in tree.body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield node.name, node
        elif isinstance(node, ast.ClassDef):
            yield node.name, node
            for inner in node.body:
                if isinstance(inner, ast.FunctionDef | ast.AsyncFunctionDef):
                    yield f"{node.name}::{inner.name}", inner


def _ids(decorator: ast.expr) -> tuple[str, ...]:
    if isinstance(decorator, ast.Call) and ast.unparse(decorator.func).endswith("mark.seed"):
        return tuple(
            argument.value
            for argument in decorator.args
            if isinstance(argument, ast.Constant) and isinstance(argument.value, str)
        )
    return ()


def coverage() -> Coverage:
    """The state of the tree."""
    found = Coverage(read_seeds())
    for mark in read_marks():
        for seed in mark.ids:
            found.tests.setdefault(seed, []).append(mark.test)
    return found


def render(found: Coverage) -> str:
    """The page."""
    seeds = found.seeds
    lines = [
        "# Seed coverage",
        "",
        "Written by `tools/seed_coverage.py` from `docs/seed-ids.toml` and the tests' marks; "
        "do not edit.",
        "",
        "| document | statements | shown by tests | in part | set apart | open |",
        "| --- | --- | --- | --- | --- | --- |",
    ]
    for document, title in seeds.documents.items():
        own = [seed for seed in seeds.statements if seed.startswith(document)]
        shown = [seed for seed in own if found.shown(seed)]
        apart = [seed for seed in own if seed in seeds.apart]
        partial = [seed for seed in own if seed in seeds.partial and seed in found.tests]
        lines.append(
            f"| {document} {title} | {len(own)} | {len(shown)} | {len(partial)} | {len(apart)} | "
            f"{len(own) - len(shown) - len(partial) - len(apart)} |"
        )
    for document, title in seeds.documents.items():
        lines += [
            "",
            f"## {document} {title}",
            "",
            "| id | statement | shown by |",
            "| --- | --- | --- |",
        ]
        lines += [
            f"| {seed} | {statement} | {_shown_by(found, seed)} |"
            for seed, statement in seeds.statements.items()
            if seed.startswith(document)
        ]
    return "\n".join(lines) + "\n"


def _shown_by(found: Coverage, seed: str) -> str:
    files = "<br>".join(f"[{file.removeprefix('tests/')}](../{file})" for file in found.files(seed))
    if seed in found.seeds.apart:
        kind, reason = found.seeds.apart[seed]
        return f"{KINDS[kind]}: {reason}" + (f"; a part: {files}" if files else "")
    lacks = found.seeds.partial.get(seed)
    if lacks is not None and files:
        return f"in part, {files}: {lacks}"
    return files or "open"


def main() -> None:
    """Writes the page, or lists the gaps."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument(
        "--missing", action="store_true", help="list statements in scope without a test"
    )
    arguments = parser.parse_args()
    found = coverage()
    if arguments.missing:
        for seed in found.missing():
            print(f"{seed}  {found.seeds.statements[seed]}")
        return
    PAGE.write_text(render(found), "utf-8")
    shown = sum(found.shown(seed) for seed in found.seeds.statements)
    print(
        f"{PAGE.relative_to(ROOT)}: {len(found.seeds.statements)} statements, {shown} shown, "
        f"{len(found.missing())} open"
    )


if __name__ == "__main__":
    main()
