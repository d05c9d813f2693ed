"""The shape of rmq_ray/ in figures: tokens, modules, sub-packages, import cycles, journeys.

    python tools/shape.py            print the figures
    python tools/shape.py --rooms    print each sub-package with its modules and tokens, too
    python tools/shape.py --ref REV  the same of an older revision, beside today's

Reads files and syntax trees only; nothing is imported or run. Tokens are names, operators, numbers
and strings of Python's own ``tokenize``. A sub-package is a folder below ``rmq_ray/``; an import
cycle between sub-packages counts imports under ``TYPE_CHECKING`` and inside functions, too. The
files of a journey are those that ``docs/data-flow.md`` lists; a test traces them.
"""

from __future__ import annotations

import argparse
import ast
import io
import re
import subprocess
import tarfile
import tempfile
import tokenize
from collections import Counter, defaultdict
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
COUNTED = {tokenize.NAME, tokenize.OP, tokenize.NUMBER, tokenize.STRING}
COLUMNS_MAX = 100


@dataclass(slots=True)
class Shape:
    """Figures of one checkout. ``rooms``: sub-package -> [modules, tokens]."""

    files: int = 0
    lines: int = 0
    tokens: int = 0
    test_lines: int = 0
    rooms: dict[str, list[int]] = field(default_factory=dict)
    cycles: list[tuple[str, ...]] = field(default_factory=list)
    repeated_classes: list[str] = field(default_factory=list)
    wide_lines: int = 0
    marks: Counter[str] = field(default_factory=Counter)
    journeys: dict[str, int] = field(default_factory=dict)


def measure(root: Path) -> Shape:
    """The figures of the checkout at ``root``."""
    shape = Shape()
    package = root / "rmq_ray"
    modules = {path: path.read_text("utf-8") for path in sorted(package.rglob("*.py"))}
    classes: Counter[str] = Counter()
    for path, text in modules.items():
        count = tokens_of(text)
        shape.files += 1
        shape.lines += text.count("\n")
        shape.tokens += count
        room = shape.rooms.setdefault(room_of(path, package), [0, 0])
        room[0] += path.name != "__init__.py"
        room[1] += count
        shape.marks["fmt: skip"] += text.count("fmt: skip") + text.count("fmt: off")
        shape.marks["noqa: PLR0913"] += text.count("PLR0913")
        for node in ast.parse(text).body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                classes[node.name] += 1
    shape.repeated_classes = sorted(name for name, count in classes.items() if count > 1)
    shape.cycles = cycles_of(imports_between_rooms(modules, package))
    for path in [*modules, *(root / "tests").rglob("*.py"), *(root / "docs").rglob("*.md")]:
        shape.wide_lines += wide_lines_of(path.read_text("utf-8"), path.suffix == ".md")
    for path in (root / "tests").rglob("*.py"):
        shape.test_lines += path.read_text("utf-8").count("\n")
    page = root / "docs" / "data-flow.md"
    if page.exists():
        shape.journeys = {name: len(files) for name, files in journeys_of(page).items()}
    return shape


def tokens_of(text: str) -> int:
    """Names, operators, numbers and strings of a Python file."""
    found = tokenize.generate_tokens(io.StringIO(text).readline)
    return sum(token.type in COUNTED for token in found)


def room_of(path: Path, package: Path) -> str:
    """The folder of a module as a dotted name; "" is ``rmq_ray`` itself."""
    return ".".join(path.relative_to(package).parent.parts)


def wide_lines_of(text: str, is_page: bool) -> int:
    """Lines over 100 columns; tables of a page do not count."""
    return sum(
        len(line) > COLUMNS_MAX and not (is_page and line.startswith("|"))
        for line in text.splitlines()
    )


def imports_between_rooms(modules: dict[Path, str], package: Path) -> dict[str, set[str]]:
    """Sub-package -> sub-packages that its modules import, wherever the import stands."""
    rooms = {room_of(path, package) for path in modules}
    names = {_dotted(path, package): room_of(path, package) for path in modules}
    found: dict[str, set[str]] = defaultdict(set)
    for path, text in modules.items():
        here = room_of(path, package)
        for node in ast.walk(ast.parse(text)):
            wanted: list[str] = []
            if isinstance(node, ast.Import):
                wanted = [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom) and node.module:
                whole = [f"{node.module}.{alias.name}" for alias in node.names]
                wanted = [name if name in names else node.module for name in whole]
            for name in wanted:
                there = names.get(name)
                if there is not None and there != here and there in rooms and there and here:
                    found[here].add(there)
    return found


def _dotted(path: Path, package: Path) -> str:
    parts = ["rmq_ray", *path.relative_to(package).with_suffix("").parts]
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def cycles_of(arrows: dict[str, set[str]]) -> list[tuple[str, ...]]:
    """Sets of sub-packages that reach one another, largest first."""
    rooms = set(arrows) | {room for seen in arrows.values() for room in seen}
    reach = {room: set(arrows.get(room, ())) for room in rooms}
    for middle in rooms:
        for room in rooms:
            if middle in reach[room]:
                reach[room] |= reach[middle]
    found = {
        tuple(sorted(other for other in reach[room] if room in reach[other]))
        for room in rooms
        if room in reach[room]
    }
    return sorted(found, key=len, reverse=True)


def journeys_of(page: Path) -> dict[str, list[str]]:
    """Title of a journey -> its files: the rows ``| n | `path` | ... |`` below a heading."""
    found: dict[str, list[str]] = {}
    title = ""
    for line in page.read_text("utf-8").splitlines():
        if line.startswith("## "):
            title = line[3:].strip()
        row = re.match(r"\| \d+ \| `([\w/]+\.py)` \|", line)
        if row and title:
            found.setdefault(title, []).append(row[1])
    return found


def of_revision(revision: str) -> Shape:
    """The figures of an older revision, unpacked beside."""
    with tempfile.TemporaryDirectory() as folder:
        done = subprocess.run(
            ["git", "-C", str(ROOT), "archive", revision, "rmq_ray", "tests", "docs"],
            capture_output=True,
            check=True,
        )
        with tarfile.open(fileobj=io.BytesIO(done.stdout)) as packed:
            packed.extractall(folder, filter="data")
        return measure(Path(folder))


def rows_of(shape: Shape) -> dict[str, str]:
    """What is printed, by its name."""
    room, (modules, _tokens) = max(shape.rooms.items(), key=lambda item: item[1][0])
    rows = {
        "Python files in rmq_ray/": f"{shape.files:,}",
        "modules (without __init__)": f"{sum(count for count, _ in shape.rooms.values()):,}",
        "lines": f"{shape.lines:,}",
        "tokens": f"{shape.tokens:,}",
        "largest sub-package": f"{modules} modules (rmq_ray.{room})",
        "import cycles between sub-packages": f"{len(shape.cycles)} {_short(shape.cycles)}".strip(),
        "class names used twice": f"{len(shape.repeated_classes)}",
        "lines over 100 columns": f"{shape.wide_lines:,}",
        "lines of tests": f"{shape.test_lines:,}",
    }
    rows |= {name: f"{count}" for name, count in shape.marks.items()}
    return rows | {f"journey: {name}": f"{count} files" for name, count in shape.journeys.items()}


def _short(cycles: list[tuple[str, ...]]) -> str:
    return "; ".join(" <-> ".join(cycle) for cycle in cycles)


def main() -> None:
    """Print the figures."""
    parser = argparse.ArgumentParser(description="the shape of rmq_ray/ in figures")
    parser.add_argument("--rooms", action="store_true", help="each sub-package, too")
    parser.add_argument("--ref", help="an older revision, shown beside today's")
    arguments = parser.parse_args()
    now = measure(ROOT)
    today, before = rows_of(now), rows_of(of_revision(arguments.ref)) if arguments.ref else {}
    for name, value in today.items():
        print(f"{name:44} {before.get(name, ''):>14} {value}")
    if arguments.rooms:
        for room, (modules, tokens) in sorted(now.rooms.items()):
            print(f"  rmq_ray.{room:34} {modules:3} modules {tokens:7,} tokens")


if __name__ == "__main__":
    main()
