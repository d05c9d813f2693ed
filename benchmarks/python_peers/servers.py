"""The peers' servers on loopback, in a directory of the run.

What cannot be had on a machine is ``Missing``, with the reason; the others run.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from benchmarks.kafka_peer import KAFKA, broker
from tools.interop import ROOT, ToolMissing
from tools.redis import AS_IT_COMES, EVERY_SECOND, EVERY_WRITE, redis_server
from tools.servers import free_ports, serving

NATS_MODULE, NATS_VERSION = "github.com/nats-io/nats-server/v2", "v2.15.2"
BUILD = ROOT / "build" / "peers"
BUILD_TIMEOUT_S = 900
Where = dict[str, Any]


class Missing(Exception):
    """A server that cannot be had here: what, and why."""


@contextmanager
def kafka(directory: Path) -> Iterator[tuple[str, Where]]:
    """Apache Kafka's broker."""
    directory.mkdir()
    with broker(directory) as address:
        yield f"Apache Kafka {KAFKA}", {"bootstrap.servers": address}


def nats_program() -> Path:
    """Built from the Go module proxy once."""
    program = BUILD / "nats-server"
    BUILD.mkdir(parents=True, exist_ok=True)
    with (BUILD / "build.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if program.exists() and NATS_VERSION[1:] in version_of(program):
            return program
        if shutil.which("go") is None:
            raise ToolMissing("nats-server is built with Go, which is not here")
        subprocess.run(
            ["go", "install", f"{NATS_MODULE}@{NATS_VERSION}"],
            env={**os.environ, "GOBIN": str(BUILD)},
            check=True,
            timeout=BUILD_TIMEOUT_S,
        )
    return program


def version_of(program: Path | str) -> str:
    """What it says of itself."""
    done = subprocess.run(
        [program, "--version"], capture_output=True, text=True, check=True, timeout=30
    )
    return done.stdout.strip()


@contextmanager
def nats(directory: Path) -> Iterator[tuple[str, Where]]:
    """Two servers: as they come, and one that syncs each write."""
    program = nats_program()
    with ExitStack() as ends:
        where = {
            name: ends.enter_context(nats_server(program, directory / f"nats-{name}", setting))
            for name, setting in (("async", ""), ("sync", "sync_interval: always"))
        }
        yield f"nats-server {NATS_VERSION[1:]}", where


@contextmanager
def nats_server(program: Path, directory: Path, setting: str) -> Iterator[str]:
    """With JetStream; its URL."""
    directory.mkdir(parents=True)
    (port,) = free_ports(1)
    settings = directory / "server.conf"
    settings.write_text(
        f'listen: "127.0.0.1:{port}"\njetstream {{\n  store_dir: "{directory}"\n  {setting}\n}}\n'
    )
    with serving(port, [program, "-c", settings], stderr=subprocess.DEVNULL):
        yield f"nats://127.0.0.1:{port}"


@contextmanager
def redis(directory: Path) -> Iterator[tuple[str, Where]]:
    """Three servers: as they come, with an append-only file, and one that syncs each write."""
    with ExitStack() as ends:
        where = {
            name: ends.enter_context(redis_server(directory / f"redis-{name}", options))
            for name, options in (
                ("snapshots", AS_IT_COMES),
                ("file", EVERY_SECOND),
                ("always", EVERY_WRITE),
            )
        }
        yield f"redis-server {redis_version(where['snapshots'])}", where


def redis_version(url: str) -> str:
    """By the server's own word."""
    import redis as client

    with client.Redis.from_url(url) as handle:
        return str(handle.info("server")["redis_version"])


SERVERS: dict[str, tuple[str, Callable[[Path], Any]]] = {
    "Kafka": ("confluent_kafka", kafka),
    "NATS JetStream": ("nats", nats),
    "Redis Streams": ("redis", redis),
}
"""The module of the client, and what starts the server."""


@contextmanager
def started(system: str, directory: Path) -> Iterator[tuple[str, Where]]:
    """What runs, and where. ``Missing`` where it cannot be had."""
    module, start = SERVERS[system]
    if find_spec(module) is None:
        raise Missing(f"{system}: {module} is not installed; make bench-peers does that")
    with ExitStack() as ends:
        try:
            found = ends.enter_context(start(directory / module))
        except (ToolMissing, OSError, RuntimeError, subprocess.SubprocessError) as error:
            raise Missing(f"{system}: {error}") from error
        yield found
