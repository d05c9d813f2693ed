"""Runs the small Java programs under interop/ beside Apache RocketMQ 4.9.7: builds them once, then
starts a JVM for each.

    python tools/interop.py build            compile and resolve the class path (cached under
                                             interop/target)
    python tools/interop.py bench [names] [--scale 0.1]
                                             measure the Java broker and client on this machine,
                                             JSON lines

Needs JDK 17 and Maven, and Go 1.19 for Apache's Go client. Called by tests/interop and by `make
bench-peers`. Every JVM gets a limit in time and is ended by its own process id; heaps are small in
tests and as Apache ships them where it is measured.
"""

from __future__ import annotations

import argparse
import fcntl
import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PROJECT = ROOT / "interop"
SUITE = PROJECT / "rocketmq-tests"
SUITE_TESTS = SUITE / "tests.toml"
CLIENTS, FIVE = PROJECT / "clients", PROJECT / "five"
TARGET = PROJECT / "target"
SETTLE = ROOT / "benchmarks" / "settle.py"
BUILD_TIMEOUT_S = 540
JVM_FLAGS = (
    "--add-exports=java.base/jdk.internal.ref=ALL-UNNAMED",
    "--add-exports=java.base/sun.nio.ch=ALL-UNNAMED",
    "--add-opens=java.base/java.nio=ALL-UNNAMED",
    "--add-opens=java.base/sun.nio.ch=ALL-UNNAMED",
    "--add-opens=java.base/java.lang=ALL-UNNAMED",
    "-Dfile.encoding=UTF-8",
    "-Drocketmq.client.logUseSlf4j=true",
    "-Djava.net.preferIPv4Stack=false",
)
SHORT_LIVED = ("-Xmx512m", "-Xms64m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Xshare:auto")
LONG_LIVED = (
    "-Xmx512m",
    "-Xms512m",
    "-XX:+UseG1GC",
    "-Dinterop.log=OFF",
)  # a broker logs an error for every client that leaves
SMALL_STORE = (*LONG_LIVED, f"-Dinterop.segmentBytes={64 << 20}")
"""Of Apache's broker where nothing but its answers is looked at; segments have a GiB otherwise."""

GIB = 1 << 30
MEASURED_BROKER_GIB = min(
    8, max(2, os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // GIB // 4)
)
"""Apache's runbroker.sh gives it 8; a quarter of a smaller machine's memory here, at least 2."""


class ToolMissing(RuntimeError):
    """JDK, Maven or Go is not on PATH; the message names what to install."""


def require_tools() -> None:
    """Raises ``ToolMissing`` when java, javac or mvn is missing."""
    for tool, package in (
        ("java", "openjdk-17-jdk-headless"),
        ("javac", "openjdk-17-jdk-headless"),
        ("mvn", "maven"),
    ):
        _require(tool, package)


def _require(tool: str, package: str) -> None:
    if shutil.which(tool) is None:
        raise ToolMissing(f"{tool} is not on PATH; install it with: apt-get install {package}")


def build(project: Path = PROJECT, version: str = "") -> str:
    """Compiles when the sources changed and returns the class path; one builder at a time.
    ``version``: of RocketMQ, where it is another than the project says.
    """
    require_tools()
    target = project / "target"
    classpath, stamp = target / f"classpath{version}.txt", target / f"sources{version}.sha256"
    target.mkdir(parents=True, exist_ok=True)
    with (target / "build.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        wanted = _sources_hash(project)
        if not (classpath.exists() and stamp.exists() and stamp.read_text() == wanted):
            stamp.unlink(missing_ok=True)
            command = [
                "mvn",
                "-q",
                "-B",
                "compile",
                "dependency:build-classpath",
                f"-Dmdep.outputFile={classpath}",
                *([f"-Drocketmq.version={version}"] if version else []),
            ]
            done = subprocess.run(
                command, cwd=project, capture_output=True, text=True, timeout=BUILD_TIMEOUT_S
            )
            if done.returncode:
                raise RuntimeError(
                    f"{' '.join(command)} failed:\n{done.stdout[-4000:]}{done.stderr[-4000:]}"
                )
            stamp.write_text(wanted)
    return f"{target / 'classes'}:{classpath.read_text().strip()}"


def build_go() -> Path:
    """Compiles the program of Apache's Go client; Go itself knows what changed. Raises
    ``ToolMissing`` without it.
    """
    _require("go", "golang-go")
    program = TARGET / "go-check"
    TARGET.mkdir(parents=True, exist_ok=True)
    done = subprocess.run(
        ["go", "build", "-o", str(program), "."],
        cwd=PROJECT / "go",
        capture_output=True,
        text=True,
        timeout=BUILD_TIMEOUT_S,
        env={**os.environ, "GOFLAGS": "-mod=readonly", "CGO_ENABLED": "0"},
    )
    if done.returncode:
        raise RuntimeError(f"go build failed:\n{done.stdout[-2000:]}{done.stderr[-4000:]}")
    return program


def _sources_hash(project: Path) -> str:
    digest = hashlib.sha256()
    sources = PROJECT if project == FIVE else project
    for path in [project / "pom.xml", *sorted((sources / "src").rglob("*.*"))]:
        digest.update(path.relative_to(PROJECT).as_posix().encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()


def command(
    main: str, *arguments: object, flags: Sequence[str] = SHORT_LIVED, release: str = ""
) -> list[str]:
    """The command line of one program, e.g. ``command("StoreReader", directory, geometry)``.
    ``release``: of RocketMQ, of which it is to use the classes.
    """
    classpath = classes_of(release) if release else build()
    home = f"-Duser.home={tempfile.gettempdir()}"  # where Apache's programs write their logs
    flags = (*JVM_FLAGS, home, *flags)
    return ["java", *flags, "-cp", classpath, f"interop.{main}", *map(str, arguments)]


def classes_of(release: str) -> str:
    """The class path of programs with another release's classes: those of 5 are compiled for it,
    the others are as they were compiled.
    """
    if release.startswith("5"):
        return build(FIVE, release)
    build()
    return f"{TARGET / 'classes'}:{build(CLIENTS, release)}"


def run(main: str, *arguments: object, timeout_s: float = 120) -> str:
    """Runs a program to its end and returns what it printed; a failure raises with its
    complaints.
    """
    done = subprocess.run(
        command(main, *arguments), capture_output=True, text=True, timeout=timeout_s, cwd=TARGET
    )
    if done.returncode:
        raise RuntimeError(
            f"{main} ended with {done.returncode}:\n{done.stderr[-4000:]}\n{done.stdout[-1000:]}"
        )
    return done.stdout


@contextmanager
def started(
    main: str, *arguments: object, flags: Sequence[str] = LONG_LIVED
) -> Iterator[subprocess.Popen[str]]:
    """A program that goes on until the block ends; then it is killed by its process id."""
    process = subprocess.Popen(
        command(main, *arguments, flags=flags),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        text=True,
        cwd=TARGET,
    )
    try:
        yield process
    finally:
        process.kill()
        process.wait(30)
        if process.stdout:
            process.stdout.close()


def suite_tests() -> dict[str, list[str]]:
    """Apache RocketMQ's own integration tests that run against ours, by class, in the order in
    which the classes begin.
    """
    return dict(tomllib.loads(SUITE_TESTS.read_text("utf-8"))["tests"])


def suite_id(class_name: str, test: str) -> str:
    """A name of one of these tests that is short and no other's."""
    return f"{class_name.rpartition('.')[2]}-{test}"


def measured(gib: int) -> tuple[str, ...]:
    """Flags of a JVM that is measured, with so much heap."""
    return (f"-Xms{gib}g", f"-Xmx{gib}g", "-XX:+UseG1GC", "-Dinterop.log=OFF")


def bench(names: Sequence[str], scale: float) -> None:
    """Starts a name server and a broker in one JVM, and lets the client measure them."""
    groups = {
        "ASYNC_FLUSH": [name for name in names if not name.startswith("sync_flush")],
        "SYNC_FLUSH": [name for name in names if name.startswith("sync_flush")],
    }
    for flush, wanted in groups.items():
        if not wanted:
            continue
        with (
            tempfile.TemporaryDirectory(prefix="rmq-peer-") as directory,
            started("PeerServer", directory, flush, flags=measured(MEASURED_BROKER_GIB)) as server,
        ):
            assert server.stdout is not None
            address = server.stdout.readline().strip()
            if not address:
                raise RuntimeError("the Java broker did not start")
            bench_client(wanted, scale, address)


def bench_client(names: Sequence[str], scale: float, address: str) -> None:
    """Runs Apache's client (1 GB, as Apache's tools.sh) against the brokers of a name server;
    prints its JSON lines. It signs for the account of ``INTEROP_ACCESS_KEY`` and
    ``INTEROP_SECRET_KEY``, where they are set.
    """
    settle = f"-Dinterop.settle={sys.executable}\n{SETTLE}"
    client = command("PeerBench", address, scale, *names, flags=(*measured(1), settle))
    subprocess.run(client, check=True, timeout=180 * len(names) + 60, cwd=TARGET, stdout=sys.stdout)


BENCHES = (
    "sync_1",
    "sync_64",
    "async",
    "async_labels",
    "batch_100",
    "batch_1k",
    "consume",
    "consume_1k",
    "consume_32",
    "consume_1k_32",
    "latency",
    "sync_flush_64",
)


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description="Apache RocketMQ 4.9.7 beside this project")
    parser.add_argument("action", choices=["build", "bench"])
    parser.add_argument("names", nargs="*", help=f"of {', '.join(BENCHES)}; default all")
    parser.add_argument("--scale", type=float, default=1.0, help="1 = full length")
    parser.add_argument("--address", help="of another name server than Apache's own")
    arguments = parser.parse_args()
    for name in arguments.names:
        if name not in BENCHES:
            parser.error(f"unknown benchmark {name!r}")
    build()
    if arguments.action == "bench" and arguments.address:
        bench_client(arguments.names or BENCHES, arguments.scale, arguments.address)
    elif arguments.action == "bench":
        bench(arguments.names or BENCHES, arguments.scale)


if __name__ == "__main__":
    main()
