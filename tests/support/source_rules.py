"""House rules over the source tree, as functions from a parsed module to complaints.
``tests/unit/test_house_rules.py`` runs them.

A rule returns strings ``path:line: what``; no complaint is an empty list. Rules read syntax trees
only: nothing is imported.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "rmq_ray"

FILE_LINES_MAX = 700
FUNCTION_LINES_MAX = 60
TOO_LONG_STILL = set(
    "__init__ iter_batches write_topic make_handlers reset "
    "write_stream_topic _check_varied encode_mixed".split()
)  # since lines end at 100 columns; this set shall be empty
BELOW_ACTORS = (
    "server",
    "client",
    "remoting",
    "store",
    "codec",
    "protocol",
    "model",
    "ports.py",
    "config.py",
    "setting.py",
    "value.py",
    "clock.py",
    "errors.py",
)
CLOCK_CALLS = {
    "time": {
        "time",
        "time_ns",
        "monotonic",
        "monotonic_ns",
        "perf_counter",
        "perf_counter_ns",
        "sleep",
        "process_time",
    },
    "datetime": {"now", "utcnow", "today"},
    "date": {"today"},
}
CHANCE = {
    "random",
    "randint",
    "choice",
    "choices",
    "shuffle",
    "randrange",
    "uniform",
    "sample",
    "getrandbits",
    "randbytes",
    "token_bytes",
    "token_hex",
    "urandom",
    "uuid1",
    "uuid4",
}


@dataclass(frozen=True, slots=True)
class Module:
    """One file of the package: where it is, its text, its syntax tree."""

    path: Path
    text: str
    tree: ast.Module

    @property
    def name(self) -> str:
        """Path inside the package, e.g. ``codec/record.py``."""
        return self.path.relative_to(PACKAGE).as_posix()

    def at(self, node: ast.AST, what: str) -> str:
        """A complaint that an editor can jump to."""
        return f"{self.path.relative_to(ROOT)}:{getattr(node, 'lineno', 1)}: {what}"

    @property
    def layer(self) -> str:
        """The first part of the path: ``store``, ``config.py``."""
        return self.name.split("/")[0]


def load(path: Path) -> Module:
    """Reads and parses one file."""
    text = path.read_text("utf-8")
    return Module(path, text, ast.parse(text, str(path)))


def package_modules() -> list[Module]:
    """Every Python file of rmq_ray."""
    return [load(path) for path in sorted(PACKAGE.rglob("*.py")) if "__pycache__" not in path.parts]


@cache
def nodes(tree: ast.AST) -> tuple[ast.AST, ...]:
    """Every node of a tree; twenty rules read the same ones."""
    return tuple(ast.walk(tree))


@cache
def parsed(path: Path) -> ast.Module:
    """The tree of a file, which does not change while the rules are read."""
    return ast.parse(path.read_text("utf-8"))


def imported(tree: ast.AST) -> Iterator[tuple[ast.stmt, str]]:
    """(statement, absolute module name) of every import, wherever it stands."""
    for node in nodes(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield node, alias.name
        elif isinstance(node, ast.ImportFrom):
            yield node, "." * node.level + (node.module or "")


def functions(tree: ast.AST) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    """Every function and method, nested ones included."""
    for node in nodes(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield node


def file_too_long(module: Module) -> list[str]:
    """A file is one idea."""
    lines = module.text.count("\n")
    return (
        [f"{module.path.relative_to(ROOT)}:1: {lines} lines, more than {FILE_LINES_MAX}"]
        if lines > FILE_LINES_MAX
        else []
    )


def function_too_long(module: Module) -> list[str]:
    """From ``def`` to the last line, docstring included."""
    return [
        module.at(
            node,
            f"{node.name} has {(node.end_lineno or node.lineno) - node.lineno + 1} lines, "
            f"more than {FUNCTION_LINES_MAX}",
        )
        for node in functions(module.tree)
        if (node.end_lineno or node.lineno) - node.lineno + 1 > FUNCTION_LINES_MAX
        and node.name not in TOO_LONG_STILL
    ]


def no_module_docstring(module: Module) -> list[str]:
    """Every module says what it decides."""
    return (
        []
        if ast.get_docstring(module.tree)
        else [f"{module.path.relative_to(ROOT)}:1: no module docstring"]
    )


def two_ideas(module: Module) -> list[str]:
    """A file says once what it decides: two ideas cost a reader more in one file than in two."""
    told = re.findall(r"\bDecides\b", ast.get_docstring(module.tree) or "")
    return [module.at(module.tree, f"decides {len(told)} things")] if len(told) > 1 else []


def constants_behind(module: Module) -> list[str]:
    """Constants stand before the first definition, but for those that are made of one."""
    found, made = [], set[str]()
    for node in module.tree.body:
        if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            made.add(node.name)
        elif made and isinstance(node, ast.Assign | ast.AnnAssign):
            read = {name.id for name in ast.walk(node) if isinstance(name, ast.Name)}
            if read & made:
                made |= read
            else:
                found.append(module.at(node, f"{', '.join(sorted(read))} behind a definition"))
    return found


def clock_reads(module: Module) -> list[str]:
    """Time is an argument everywhere but in clock.py."""
    if module.name == "clock.py":
        return []
    found = []
    for node in nodes(module.tree):
        if (
            isinstance(node, ast.Attribute)
            and isinstance(node.value, ast.Name)
            and node.attr in CLOCK_CALLS.get(node.value.id, ())
        ):
            found.append(module.at(node, f"{node.value.id}.{node.attr} outside clock.py"))
        elif isinstance(node, ast.ImportFrom) and node.module == "time":
            found.append(module.at(node, "names of the time module imported outside clock.py"))
    return found


def environment_reads(module: Module) -> list[str]:
    """``config.environment`` is the one reading place."""
    if module.name == "config.py":
        return []
    return [
        module.at(node, f"os.{node.attr} outside config.py")
        for node in nodes(module.tree)
        if isinstance(node, ast.Attribute)
        and isinstance(node.value, ast.Name)
        and node.value.id == "os"
        and node.attr in {"environ", "getenv", "putenv", "environb"}
    ]


def ray_below_actors(module: Module) -> list[str]:
    """Parties, rules and bytes know no Ray."""
    if module.layer not in BELOW_ACTORS:
        return []
    return [
        module.at(node, f"imports {name}")
        for node, name in imported(module.tree)
        if name.split(".")[0] in {"ray", "raydp", "pyspark"}
    ]


def unpickling(module: Module) -> list[str]:
    """Nothing that arrives from outside is unpickled; so nothing unpickles at all."""
    found = [
        module.at(node, f"imports {name}")
        for node, name in imported(module.tree)
        if name.split(".")[0] in {"pickle", "cloudpickle", "marshal", "shelve", "dill"}
    ]
    for node in nodes(module.tree):
        if (
            isinstance(node, ast.Attribute)
            and node.attr in {"loads", "load", "Unpickler"}
            and isinstance(node.value, ast.Name)
            and "pickle" in node.value.id
        ):
            found.append(module.at(node, "unpickles"))
    return found


def relative_imports(module: Module) -> list[str]:
    """Imports are absolute."""
    return [
        module.at(node, "relative import")
        for node, name in imported(module.tree)
        if name.startswith(".")
    ]


def impure_protocol(module: Module) -> list[str]:
    """Rules: no I/O, threads, clock, logger, chance, await."""
    if module.layer != "protocol":
        return []
    found = [
        module.at(node, f"protocol/ imports {name}")
        for node, name in imported(module.tree)
        if name.split(".")[0]
        in {
            "os",
            "time",
            "threading",
            "socket",
            "asyncio",
            "logging",
            "random",
            "secrets",
            "uuid",
            "io",
            "pathlib",
            "subprocess",
        }
    ]
    found += [
        module.at(node, "await in protocol/")
        for node in nodes(module.tree)
        if isinstance(node, ast.Await | ast.AsyncFunctionDef)
    ]
    return found


def chance_in_rules(module: Module) -> list[str]:
    """Randomness is passed into protocol/ and model/ as a value."""
    if module.layer not in {"protocol", "model"}:
        return []
    return [
        module.at(node, f"{node.value.id}.{node.attr}")
        for node in nodes(module.tree)
        if isinstance(node, ast.Attribute)
        and isinstance(node.value, ast.Name)
        and node.value.id in {"random", "secrets", "uuid", "os"}
        and node.attr in CHANCE
    ]


def async_store(module: Module) -> list[str]:
    """``store/`` is synchronous."""
    if module.layer not in {"store", "codec"}:
        return []
    return [
        module.at(node, "store/ is synchronous")
        for node in nodes(module.tree)
        if isinstance(node, ast.Await | ast.AsyncFunctionDef)
    ]


def operating_system_in_store(module: Module) -> list[str]:
    """``files.py`` alone opens, writes and syncs files, so that a harness can stand in for the
    disk.
    """
    if module.layer not in {"store", "codec"}:
        return []
    found = [
        module.at(node, f"imports {name}; go through FileSystem")
        for node, name in imported(module.tree)
        if name in {"os", "mmap", "fcntl", "shutil"}
    ]
    found += [
        module.at(node, "open(); go through FileSystem")
        for node in nodes(module.tree)
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "open"
    ]
    return found


def unfinished(module: Module) -> list[str]:
    """No stub, no note to come back, no mock in the product."""
    found = [
        f"{module.path.relative_to(ROOT)}:{number}: unfinished"
        for number, line in enumerate(module.text.splitlines(), 1)
        if any(word in line for word in ("TODO", "FIXME", "XXX:", "HACK"))
    ]
    for node in nodes(module.tree):
        if isinstance(node, ast.Name) and node.id == "NotImplementedError":
            found.append(module.at(node, "NotImplementedError"))
    found += [
        module.at(node, f"imports {name}")
        for node, name in imported(module.tree)
        if name in {"unittest.mock", "mock"}
    ]
    return found


def threads_that_keep_the_process(module: Module) -> list[str]:
    """Threads are daemon."""
    found = []
    for node in nodes(module.tree):
        if isinstance(node, ast.Call) and ast.unparse(node.func) in {
            "threading.Thread",
            "Thread",
            "threading.Timer",
        }:
            keywords = {keyword.arg for keyword in node.keywords}
            if "daemon" not in keywords:
                found.append(module.at(node, "a thread without daemon="))
    return found


def unlimited_waits(module: Module) -> list[str]:
    """``wait()``, ``join()``, ``get()``, ``acquire()`` and ``result()`` without a time-out on
    things that wait.
    """
    if module.layer in {"cli", "spark"}:
        return []
    return [
        module.at(node, f".{node.func.attr}() without a time-out")
        for node in nodes(module.tree)
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and node.func.attr in {"wait", "join", "result"}
        and not node.args
        and not node.keywords
        and not _limited(module.tree, node)
    ]


def _limited(tree: ast.AST, call: ast.Call) -> bool:
    """An awaited call can be cancelled from outside; one that is handed to another call
    (``wait_for``, a task) is limited there.
    """
    for node in nodes(tree):
        if isinstance(node, ast.Await) and node.value is call:
            return True
        if isinstance(node, ast.Call) and any(argument is call for argument in node.args):
            return True
    return False


RULES = (
    file_too_long,
    function_too_long,
    no_module_docstring,
    two_ideas,
    constants_behind,
    clock_reads,
    environment_reads,
    ray_below_actors,
    unpickling,
    relative_imports,
    impure_protocol,
    chance_in_rules,
    async_store,
    operating_system_in_store,
    unfinished,
    threads_that_keep_the_process,
    unlimited_waits,
)
