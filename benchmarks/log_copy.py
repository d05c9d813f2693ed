"""How fast a fresh slave has its master's log, against the same files over a plain TCP connection
into a file; what its copying costs whoever sends.

A log that fits the memory is copied between page caches; with ``--log-gb 10`` one of 10 GB, too,
which has to come from the disk and go there. Before each way of copying what is dirty is written,
and for the long log nothing of it is in memory.
"""

from __future__ import annotations

import shutil
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from os import sync
from pathlib import Path
from typing import NamedTuple

from benchmarks.recovery import forget_cached
from benchmarks.replica_party import COPY_BYTES, Lookup, cpu_ms, party, send_all, status, until
from benchmarks.report import Figure, percentiles
from benchmarks.scene import Scene
from rmq_ray.client.producer.producer import Producer

ROUNDS = 2
DISK_S = 900.0
QUIET_S = 2.0


class Copied(NamedTuple):
    """MB/s of the slave and of the plain copy; CPU of slave and master, ms for a MB."""

    rate: float
    plain: float
    slave: float
    master: float


def run(scene: Scene) -> None:
    """Logs of 1 KB and of 100 B messages; where asked for, a long one; sends beside it."""
    for body_bytes, name, messages in (
        (1_000, "1 KB", scene.count(400_000)),
        (100, "100 B", scene.count(1_000_000)),
    ):
        directory = scene.directory / f"log-copy-{body_bytes}"
        with master_with(directory, messages, body_bytes) as (producer, master):
            scene.settle()
            _tell(
                scene,
                f"{name} messages",
                max(_copied(scene, directory, producer, master, False) for _ in range(ROUNDS)),
                0.5 if body_bytes == 1_000 else None,
            )
            if body_bytes == 1_000:
                _sends_beside(scene, directory, producer, master)
    if scene.log_gb:
        directory = scene.directory / "log-copy-long"
        with master_with(directory, int(scene.log_gb * 1e9 / 1_137), 1_000) as (producer, master):
            scene.settle()
            _tell(
                scene,
                f"1 KB messages, {scene.log_gb:g} GB, disk to disk",
                _copied(scene, directory, producer, master, cold=True),
                0.5,
            )


@contextmanager
def master_with(directory: Path, messages: int, body_bytes: int) -> Iterator[tuple[Producer, str]]:
    """A master with a log, and who sent it."""
    directory.mkdir()
    with (
        party(directory, "ns") as name_server,
        party(directory, "master") as master,
        Producer("bench", discovery=Lookup(name_server), send_timeout_ms=20_000) as producer,
    ):
        send_all(producer, messages, body_bytes)
        yield producer, master
    shutil.rmtree(directory)


def _tell(scene: Scene, what: str, copied: Copied, target: float | None) -> None:
    scene.report.add(
        Figure(
            f"log copied to a fresh slave, {what}",
            copied.rate,
            "MB/s",
            "plain TCP copy",
            copied.plain,
            target,
        )
    )
    scene.report.tell("CPU of the slave's process for it", copied.slave, "ms/MB")
    scene.report.tell("CPU of the master's process for it", copied.master, "ms/MB")


def _copied(scene: Scene, directory: Path, producer: Producer, master: str, cold: bool) -> Copied:
    """One after the other, from the same state of the machine. What was copied is removed."""
    log = directory / "broker-a-0" / "commitlog"
    found = status(producer, master)
    size, master_pid = found["store"]["end"], found["pid"]
    _settle(log, cold)
    plain = size / plain_copy_s(directory, log, size)
    (directory / "copy").unlink()
    _settle(log, cold)
    with party(directory, "1") as slave:
        scene.settle()
        until(lambda: status(producer, slave)["store"]["end"] > 0, 0.002)
        found = status(producer, slave)
        begun, used, masters, begin = (
            found["store"]["end"],
            cpu_ms(found["pid"]),
            cpu_ms(master_pid),
            time.perf_counter(),
        )
        until(lambda: status(producer, slave)["store"]["visible"] >= size, 0.02, DISK_S)
        seconds, used, masters = (
            time.perf_counter() - begin,
            cpu_ms(found["pid"]) - used,
            cpu_ms(master_pid) - masters,
        )
    shutil.rmtree(directory / "broker-a-1")
    mb = (size - begun) / 1e6
    return Copied(mb / seconds, plain / 1e6, used / mb, masters / mb)


def _settle(log: Path, cold: bool) -> None:
    if cold:
        forget_cached(log)
    else:
        sync()


def _sends_beside(scene: Scene, directory: Path, producer: Producer, master: str) -> None:
    """Single sends, one after the other, before a slave comes and while it copies."""
    size = status(producer, master)["store"]["end"]
    over = threading.Event()
    before: list[float] = []
    during: list[float] = []

    def send(times: list[float]) -> None:
        while not over.is_set():
            begin = time.perf_counter()
            producer.send("bench", b"x" * 1_000)
            times.append((time.perf_counter() - begin) * 1e3)

    for times in (before, during):
        over.clear()
        sender = threading.Thread(target=send, args=(times,), daemon=True)
        if times is before:
            sender.start()
            time.sleep(QUIET_S)
        else:
            with party(directory, "2") as slave:
                scene.settle()
                sender.start()
                until(lambda: status(producer, slave)["store"]["visible"] >= size, 0.02)
        over.set()
        sender.join()
    for times, when in ((before, "alone"), (during, "while a fresh slave copies the log")):
        half, most = percentiles(times, 50, 99)
        scene.report.tell(f"send of 1 KB, one at a time, {when}, p50", half, "ms")
        scene.report.tell(f"send of 1 KB, one at a time, {when}, p99", most, "ms")
    shutil.rmtree(directory / "broker-a-2")


def plain_copy_s(directory: Path, log: Path, size: int) -> float:
    """Seconds for the log's bytes through a socket into a file of another process."""
    left = size
    with (
        party(directory, "copy-to") as port,
        socket.create_connection(("127.0.0.1", int(port))) as connection,
    ):
        begin = time.perf_counter()
        for path in sorted(log.iterdir()):
            with path.open("rb", buffering=0) as file:
                while left and (data := file.read(min(COPY_BYTES, left))):
                    connection.sendall(data)
                    left -= len(data)
        connection.shutdown(socket.SHUT_WR)
        connection.recv(1)
        return time.perf_counter() - begin
