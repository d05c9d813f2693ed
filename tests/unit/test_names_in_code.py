"""Names in double backticks, in docstrings and comments of the package, exist: a reader who looks
for one finds it.

A name is a module, class, function, argument, attribute or key of the package, or of Python's
library; ``file.py`` lies in the folder that names it; ``THEIRS`` are others' names. Of a class of
the package an attribute must be its own.
"""

from __future__ import annotations

import ast
import builtins
import keyword
import re
import sys
from collections.abc import Iterator
from functools import cache

import pytest

import rmq_ray
from tests.support.source_names import source
from tests.support.source_rules import Module, nodes, package_modules

SPAN = re.compile(r"``([A-Za-z_][\w.]*)(?:\([^`]*\))?``")
WORD = re.compile(r"[A-Za-z_][\w.\-]*")
FILES = ("json", "toml", "yml", "tmp", "time")
THEIRS = {
    *("AllocateMessageQueueStrategy", "MachineRoomResolver", "ConsumeStats", "TOPIC_PUT_NUMS"),
    *("indexMsgTimestamp", "logicsMsgTimestamp", "isOrder", "String", "Integer", "Long", "Double"),
    *("Boolean", "DataContext", "DataStreamWriter", "SupportsTriggerAvailableNow"),
    *("ReportsSourceMetrics", "max_ongoing_requests", "read_kafka", "checkpoint_config"),
    *(
        "as_completed",
        "task_consumer",
        "setsid",
        "yyyyMMddHHmmssSSS",
        "ffffffffffffffff",
        "unsound",
    ),
}
"""Apache RocketMQ's, Java's, Ray's and Spark's names; an operating system's; patterns."""


@cache
def modules() -> tuple[Module, ...]:
    return tuple(package_modules())


@cache
def known() -> frozenset[str]:
    """Every name that the package has or uses."""
    found = {
        *dir(builtins),
        *keyword.kwlist,
        *sys.stdlib_module_names,
        *THEIRS,
        "rmq",
        *dir(rmq_ray),
    }
    for module in modules():
        found |= set(module.name.removesuffix(".py").split("/"))
        for node in nodes(module.tree):
            if isinstance(node, ast.Name):
                found.add(node.id)
            elif isinstance(node, ast.Attribute):
                found.add(node.attr)
            elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                found.add(node.name)
            elif isinstance(node, ast.arg | ast.keyword):
                found.add(node.arg or "")
            elif isinstance(node, ast.alias):
                found |= set(f"{node.name}.{node.asname}".split("."))
            elif isinstance(node, ast.Constant) and WORD.fullmatch(str(node.value)):
                found.add(str(node.value))
    return frozenset(found)


def fault_of(span: str, module: Module) -> str | None:
    """Why a name in double backticks is wrong."""
    parts = span.rstrip(".").split(".")
    if parts[-1] == "py":
        return None if module.path.with_name(f"{parts[-2]}.py").exists() else "no such file here"
    if parts[-1] in FILES or parts[0] in THEIRS or parts[0] in sys.stdlib_module_names:
        return None
    for name in parts:
        if name not in known() and not name.isdigit():
            return f"nothing is called {name}"
    for cls, name in zip(parts, parts[1:], strict=False):
        if cls in source().attributes and not source().has_attribute(cls, name):
            return f"{cls} has no {name}"
    return None


def spans(module: Module) -> Iterator[tuple[int, str]]:
    """(line, name) of everything in double backticks."""
    for match in SPAN.finditer(module.text):
        yield module.text.count("\n", 0, match.start()) + 1, match[1]


def test_names_in_double_backticks_exist() -> None:
    wrong = [
        f"{module.path}:{line}: ``{span}``: {fault}"
        for module in modules()
        for line, span in spans(module)
        if (fault := fault_of(span, module)) is not None
    ]
    assert wrong == []


@pytest.mark.parametrize(
    "span", ["record_rowz", "CommitLog.nothing", "server.sql_filterz", "nothing.py"]
)
def test_a_name_that_does_not_exist_is_seen(span: str) -> None:
    assert fault_of(span, modules()[0])


@pytest.mark.parametrize(
    "span", ["CommitLog.place", "codec.record", "rmq.Producer", "queue.SimpleQueue", "rmq.toml"]
)
def test_a_name_that_exists_is_not_complained_of(span: str) -> None:
    assert fault_of(span, modules()[0]) is None
