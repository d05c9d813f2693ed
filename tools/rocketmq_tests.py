"""Runs RocketMQ's own integration tests, which tests/interop runs against this project, against
Apache's brokers: which of them fail there, too?

    python -m tools.rocketmq_tests CLASS... [--times 20]

Prints for each test how often it passed and why it failed the last time.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import tempfile
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

from tools import interop

TIMEOUT_S = 500
APACHES_CLUSTER = "DefaultCluster"
FLAGS = (
    "--add-opens=java.base/java.lang=ALL-UNNAMED",
    "--add-opens=java.base/java.util=ALL-UNNAMED",
    "-Dfile.encoding=UTF-8",
)


def where(name_server: str, cluster: str) -> tuple[str, ...]:
    """Flags that tell the tests which masters they have: broker-a and broker-b."""
    return (
        f"-Dsuite.nameServer={name_server}",
        f"-Dsuite.cluster={cluster}",
        "-Dsuite.broker1=broker-a",
        "-Dsuite.broker2=broker-b",
    )


def run(threads: int, classes: Iterable[str], folder: Path, *flags: str) -> list[dict[str, Any]]:
    """The lines of ``SuiteRunner``, as many as there are within ``TIMEOUT_S``. What the JVM writes
    lies in ``folder``.
    """
    command = [
        "java",
        *interop.SHORT_LIVED,
        *FLAGS,
        *flags,
        f"-Duser.home={folder}",  # where Java clients write their logs
        f"-Djava.io.tmpdir={folder}",
        "-XX:-UsePerfData",
        "-cp",
        interop.build(interop.SUITE),
        "interop.SuiteRunner",
        str(threads),
    ]
    told = folder / "told.jsonl"
    with (
        told.open("w") as out,
        (folder / "printed.log").open("a") as printed,
        suppress(subprocess.TimeoutExpired),
    ):
        subprocess.run(
            command,
            input="\n".join(classes),
            stdout=out,
            stderr=printed,
            text=True,
            cwd=folder,
            timeout=TIMEOUT_S,
            check=False,
        )
    return [json.loads(line) for line in told.read_text("utf-8").splitlines()]


@contextmanager
def apaches_brokers(folder: Path) -> Iterator[str]:
    """Two of Apache's masters; yields the name server's address."""
    with ExitStack() as started:
        name_server = ""
        for name in ("broker-a", "broker-b"):
            directory = folder / name
            directory.mkdir()
            arguments = (directory, "ASYNC_FLUSH", name, *filter(None, [name_server]))
            server = started.enter_context(
                interop.started("PeerServer", *arguments, flags=interop.SMALL_STORE)
            )
            assert server.stdout is not None
            address = server.stdout.readline().strip()
            if not address:
                raise RuntimeError(f"Apache's {name} did not start")
            name_server = name_server or address
        yield name_server


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description="RocketMQ's own tests against Apache's brokers")
    parser.add_argument("classes", nargs="+", help="short names, e.g. BroadCastNormalMsgRecvFailIT")
    parser.add_argument("--times", type=int, default=20)
    arguments = parser.parse_args()
    known = {name.rpartition(".")[2]: name for name in interop.suite_tests()}
    for name in arguments.classes:
        if name not in known:
            parser.error(f"no class {name!r}: {', '.join(sorted(known))}")
    ended: dict[str, Counter[str]] = {}
    why: dict[str, str] = {}
    with tempfile.TemporaryDirectory(prefix="rocketmq-tests-") as made:
        folder = Path(made)
        with apaches_brokers(folder) as name_server:
            flags = where(name_server, APACHES_CLUSTER)
            for _ in range(arguments.times):
                for line in run(1, [known[name] for name in arguments.classes], folder, *flags):
                    test = f"{line['class'].rpartition('.')[2]}#{line.get('test')}"
                    ended.setdefault(test, Counter())[line["outcome"]] += 1
                    if line["outcome"] == "failed":
                        why[test] = str(line["message"]).partition("\n")[0]
    for test, counted in ended.items():
        print(f"{test}: {counted['passed']} of {counted.total()} passed. {why.get(test, '')}")


if __name__ == "__main__":
    main()
