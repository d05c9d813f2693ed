"""What the package's modules and classes are called, as their syntax trees say: for rules about
names in pages, docstrings and comments.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cache

from tests.support.source_rules import package_modules


@dataclass
class Source:
    """Classes of the package (all of one name together) with their members and bases, names by
    module, and loggers.
    """

    attributes: dict[str, set[str]] = field(default_factory=dict)
    bases: dict[str, set[str]] = field(default_factory=dict)
    names: dict[str, set[str]] = field(default_factory=dict)
    loggers: set[str] = field(default_factory=set)

    def has_attribute(self, cls: str, name: str) -> bool:
        return name in self.attributes.get(cls, ()) or any(
            self.has_attribute(base, name) for base in self.bases.get(cls, ())
        )


@cache
def source() -> Source:
    found = Source()
    for module in package_modules():
        dotted = "rmq_ray." + module.name.removesuffix(".py").removesuffix("/__init__").replace(
            "/", "."
        )
        names = found.names.setdefault(dotted.removesuffix(".__init__"), set())
        for node in module.tree.body:
            names |= set(_bound(node))
        for name in names:
            if name[0].isupper() and not name.isupper():
                found.attributes.setdefault(
                    name, set()
                )  # made by a call, as Ray's actor classes are
        found.loggers |= set(re.findall(r'getLogger\("([\w.]+)"\)', module.text))
        for node in ast.walk(module.tree):
            if isinstance(node, ast.ClassDef):
                found.attributes.setdefault(node.name, set()).update(_members(node))
                found.bases.setdefault(node.name, set()).update(
                    ast.unparse(base).split("[")[0].rpartition(".")[2]
                    for base in node.bases
                    if base != node
                )
    for name, bases in found.bases.items():
        bases.discard(name)
    return found


def _bound(node: ast.stmt) -> Iterator[str]:
    if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
        yield node.name
    elif isinstance(node, ast.Assign | ast.AnnAssign):
        for target in node.targets if isinstance(node, ast.Assign) else [node.target]:
            yield from (name.id for name in ast.walk(target) if isinstance(name, ast.Name))
    elif isinstance(node, ast.If | ast.With):
        for inner in node.body:
            yield from _bound(inner)
    elif isinstance(node, ast.Import | ast.ImportFrom):
        yield from ((alias.asname or alias.name).split(".")[0] for alias in node.names)


def _members(cls: ast.ClassDef) -> Iterator[str]:
    for node in cls.body:
        yield from _bound(node)
    for node in ast.walk(cls):
        if (
            isinstance(node, ast.Attribute)
            and isinstance(node.ctx, ast.Store)
            and isinstance(node.value, ast.Name)
            and node.value.id == "self"
        ):
            yield node.attr
