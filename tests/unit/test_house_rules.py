"""The house rules hold for every file of the package, and each rule sees a file that breaks it."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest

from tests.support.source_rules import PACKAGE, ROOT, RULES, Module, nodes, package_modules, parsed

Rule = Callable[[Module], list[str]]
MODULES = package_modules()
MODULES_MAX = 18

BREAKS = {
    "file_too_long": ("model/a.py", '"""x"""\n' * 701),
    "function_too_long": ("model/a.py", "def f():\n" + "    x = 1\n" * 60),
    "no_module_docstring": ("model/a.py", "x = 1\n"),
    "two_ideas": ("model/a.py", '"""Decides a.\n\nDecides b.\n"""\n'),
    "constants_behind": ("model/a.py", "def f():\n    return 1\n\nA = 1\n"),
    "clock_reads": ("server/a.py", "import time\ntime.monotonic()\n"),
    "environment_reads": ("server/a.py", "import os\nos.environ['A']\n"),
    "ray_below_actors": ("client/a.py", "def f():\n    import ray\n"),
    "unpickling": ("remoting/a.py", "import pickle\n"),
    "relative_imports": ("model/a.py", "from . import b\n"),
    "impure_protocol": ("protocol/a.py", "import threading\n"),
    "chance_in_rules": ("protocol/a.py", "def f(random):\n    return random.choice([1])\n"),
    "async_store": ("store/a.py", "async def f():\n    pass\n"),
    "operating_system_in_store": ("store/a.py", "import os\n"),
    "unfinished": ("model/a.py", "# TO" + "DO: later\n"),
    "threads_that_keep_the_process": (
        "client/a.py",
        "import threading\nthreading.Thread(target=f)\n",
    ),
    "unlimited_waits": ("client/a.py", "event.wait()\n"),
}


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.__name__)
def test_every_file_of_the_package_keeps_the_rule(rule: Rule) -> None:
    complaints = [complaint for module in MODULES for complaint in rule(module)]
    assert not complaints, "\n" + "\n".join(complaints)


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.__name__)
def test_the_rule_sees_a_file_that_breaks_it(rule: Rule) -> None:
    name, text = BREAKS[rule.__name__]
    assert rule(Module(PACKAGE / name, text, ast.parse(text)))


def test_a_folder_is_a_room_that_a_reader_can_survey() -> None:
    """At most 18 modules, and a door plate: what is decided there, and what to open first."""
    folders = {module.path.parent for module in MODULES}
    full = {folder.name: sum(1 for _ in folder.glob("[!_]*.py")) for folder in folders}
    assert {name: count for name, count in full.items() if count > MODULES_MAX} == {}
    for folder in folders - {PACKAGE}:
        plate = ast.get_docstring(ast.parse((folder / "__init__.py").read_text("utf-8")))
        assert plate and len(plate) > 30, folder


def test_test_files_have_names_of_their_own() -> None:
    names = [path.name for path in (ROOT / "tests").rglob("test_*.py")]
    assert sorted(set(names)) == sorted(names)


def test_tests_are_no_packages() -> None:
    assert not list((ROOT / "tests").rglob("__init__.py"))


def test_every_test_asserts_something() -> None:
    """A test must be able to fail: an assert, ``pytest.raises``, ``pytest.fail`` a helper named for
    it, or inputs of hypothesis.
    """
    blind = []
    for path in (ROOT / "tests").rglob("test_*.py"):
        for node in nodes(parsed(path)):
            if (
                isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
                and node.name.startswith("test_")
                and not _can_fail(node)
            ):
                blind.append(f"{path.relative_to(ROOT)}:{node.lineno}: {node.name}")
    assert not blind, "\n" + "\n".join(blind)


def _can_fail(function: ast.AST) -> bool:
    if any(
        "given(" in ast.unparse(decorator) for decorator in getattr(function, "decorator_list", ())
    ):
        return True  # fails by what it raises for some input
    for node in ast.walk(function):
        if isinstance(node, ast.Assert):
            return True
        if isinstance(node, ast.Call):
            name = (
                node.func.attr
                if isinstance(node.func, ast.Attribute)
                else getattr(node.func, "id", "")
            )
            if name in {"raises", "fail", "warns"} or re.match(
                r"_?(check|assert|expect|verify|eventually|until)", name
            ):
                return True
    return False


SLEEPS = 111
"""Places in tests that wait for time to pass. Wait for what is meant instead; this only falls."""


def test_the_number_of_sleeps_in_tests_only_falls() -> None:
    found = [
        f"{path.relative_to(ROOT)}:{node.lineno}"
        for path in sorted((ROOT / "tests").rglob("*.py"))
        for node in nodes(parsed(path))
        if isinstance(node, ast.Call)
        and ast.unparse(node.func) in {"time.sleep", "asyncio.sleep"}
        and ast.unparse(node.args[0]) != "0"  # lets an event loop turn
    ]
    assert len(found) <= SLEEPS, "\n" + "\n".join(found)
    assert len(found) == SLEEPS, f"well done: set SLEEPS to {len(found)}"


def test_unit_tests_neither_sleep_nor_use_ray() -> None:
    found = []
    for path in (ROOT / "tests" / "unit").rglob("*.py"):
        for node in nodes(parsed(path)):
            if isinstance(node, ast.Call) and ast.unparse(node.func) in {
                "time.sleep",
                "ray.init",
                "asyncio.sleep",
            }:
                found.append(f"{path.relative_to(ROOT)}:{node.lineno}: {ast.unparse(node)}")
    assert not found, "\n" + "\n".join(found)


NOT_OF_A_PRODUCER = (
    *("numpy", "pyarrow", "ray", "asyncio", "ssl", "email", "http", "importlib.metadata"),
    *("logging.config", "difflib", "tempfile", "pathlib", "subprocess", "yaml", "click"),
    *("rmq_ray.store", "rmq_ray.server", "rmq_ray.table", "rmq_ray.client.admin"),
    *("rmq_ray.client.push", "rmq_ray.client.pull", "rmq_ray.client.pop"),
    *("rmq_ray.client.sending.loop_sender", "rmq_ray.protocol.filters.sql92_parser"),
    *("rmq_ray.remoting.tls", "rmq_ray.protocol.access", "rmq_ray.model.trace"),
)
"""What a program does not wait for that only sends."""
LINES_OF_A_PRODUCER_MAX = 19_100
"""Of ours, loaded before its first message: a tenth of a second, most of it. This only falls."""


@pytest.mark.parametrize(
    ("module", "heavy"),
    [
        ("rmq_ray", ("pyspark", "raydp", "py4j")),
        ("rmq_ray.server.broker.broker", ("pyarrow", "ray")),  # a restart waits for its imports
        ("rmq_ray.cluster", ("pyarrow", "rmq_ray.server.broker.broker", "rmq_ray.store")),
        ("rmq_ray; rmq_ray.Producer", NOT_OF_A_PRODUCER),
        ("rmq_ray; rmq_ray.connect", NOT_OF_A_PRODUCER),
        ("rmq_ray; rmq_ray.PushConsumer", ("pyarrow", "ray", "rmq_ray.store", "rmq_ray.table")),
    ],
)
def test_what_is_heavy_is_not_imported_where_it_is_not_needed(
    module: str, heavy: tuple[str, ...]
) -> None:
    assert not loaded_by(module).intersection(heavy)


def test_what_a_producer_waits_for_only_falls() -> None:
    lines = {
        "rmq_ray." + module.name.removesuffix(".py").replace("/", "."): module.text.count("\n")
        for module in MODULES
    }
    loaded = loaded_by("rmq_ray; rmq_ray.Producer")
    ours = {name: lines[name] for name in lines if name in loaded}
    assert sum(ours.values()) <= LINES_OF_A_PRODUCER_MAX, ours


@cache
def loaded_by(imported: str) -> frozenset[str]:
    """The modules of a process that has imported these."""
    done = subprocess.run(
        [sys.executable, "-c", f"import sys, {imported}; print(*sys.modules)"],
        capture_output=True,
        text=True,
        timeout=50,
        cwd=ROOT,
        check=True,
    )
    return frozenset(done.stdout.split())


def test_every_public_name_is_exported_and_documented() -> None:
    init = PACKAGE / "__init__.py"
    if not init.exists():
        pytest.skip("the package has no public names yet")
    import rmq_ray

    exported = set(rmq_ray.__all__)
    missing = {
        "start",
        "connect",
        "Producer",
        "AsyncProducer",
        "PushConsumer",
        "Message",
        "MessageQueue",
        "SendStatus",
        "SendResult",
        "ProducerActor",
        "ConsumerActor",
        "RmqError",
    } - exported
    assert not missing
    undocumented = [
        name
        for name in sorted(exported)
        if callable(getattr(rmq_ray, name)) and not _documentation(getattr(rmq_ray, name))
    ]
    assert not undocumented


def _documentation(value: object) -> str | None:
    """The docstring; of an actor class that of the class which was made remote."""
    own = [
        cls for cls in type(value).__mro__ if cls.__module__.startswith("rmq_ray.") and cls.__doc__
    ]
    return value.__doc__ or (own[0].__doc__ if own else None)


def test_the_project_speaks_of_itself_alone() -> None:
    """Documents and code name no path of a workshop, no ticket and no tool that wrote them."""
    words = re.compile(
        "/" + "work/|/" + "tmp/rmq|/root/|\\bissue #\\d+|" + "clau" + "de|co-authored",
        re.IGNORECASE,
    )
    found = []
    for path in _tracked():
        for number, line in enumerate(path.read_text("utf-8", errors="replace").splitlines(), 1):
            if words.search(line):
                found.append(f"{path.relative_to(ROOT)}:{number}: {line.strip()[:100]}")
    assert not found, "\n" + "\n".join(found)


def _tracked() -> list[Path]:
    folders = ("rmq_ray", "tests", "tools", "examples", "benchmarks", "docs")
    files = [
        path
        for folder in folders
        for path in (ROOT / folder).rglob("*")
        if path.suffix in {".py", ".md", ".toml", ".json"}
    ]
    return [
        path
        for path in files
        if "__pycache__" not in path.parts and path.name != "test_house_rules.py"
    ] + [ROOT / "pyproject.toml"]
