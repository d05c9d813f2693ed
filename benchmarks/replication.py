"""What slaves cost and give: SYNC_MASTER against ASYNC_MASTER, batched; a log copied to a fresh slave against the same files over a plain TCP
connection; how long a consumer stands still when the master is killed.
"""

from __future__ import annotations

import os
import shutil
import socket
import time
from contextlib import ExitStack
from itertools import pairwise
from pathlib import Path
from typing import Any

import msgpack

from benchmarks.replica_party import COPY_BYTES, Lookup, party
from benchmarks.report import Figure
from benchmarks.scene import Scene
from rmq_ray.client.producer import Producer
from rmq_ray.client.push_consumer import PushConsumer
from rmq_ray.config import ConsumerConfig
from rmq_ray.model.ids import Address
from rmq_ray.model.message import SendStatus
from rmq_ray.remoting.codes import RequestCode
from rmq_ray.remoting.frame import Command

BODY_BYTES = 1_000
PATIENCE_S = 120.0


def run(scene: Scene) -> None:
    """Both modes with one slave on the same machine, then the catching up of a second one."""
    messages = scene.count(400_000)
    rates = {mode: produced_rate(scene.directory / f"replication-{mode}", mode, messages) for mode in ("async", "sync")}
    scene.report.add(Figure("SYNC_MASTER, one slave, batches of 1 KB messages", rates["sync"], "msg/s", "ASYNC_MASTER", rates["async"], 0.6))
    copied, plain, cpu = copied_rates(scene.directory / "replication-copy", messages)
    scene.report.add(Figure("log copied to a fresh slave, 1 KB messages", copied / 1e6, "MB/s", "plain TCP copy", plain / 1e6, 0.5))
    scene.report.tell("CPU of the slave's process for it", cpu, "ms/MB")
    gaps = [consumer_gap_s(scene.directory / f"replication-gap-{number}") for number in range(scene.count(5, 2))]
    scene.report.add(Figure("kill -9 of a master until its consumer goes on at the slave, worst", max(gaps), "s", "a second", 1.0, 1.0, less_is_better=True))


def produced_rate(directory: Path, mode: str, messages: int) -> float:
    """Acknowledged messages per second."""
    directory.mkdir()
    with (
        party(directory, "ns") as name_server,
        party(directory, "master", mode),
        party(directory, "1", mode),
        Producer("bench", discovery=Lookup(name_server), send_timeout_ms=20_000) as producer,
    ):
        _until(lambda: producer.send("bench", b"first").status is SendStatus.SEND_OK)
        _send(producer, min(20_000, messages))
        begin = time.perf_counter()
        _send(producer, messages)
        seconds = time.perf_counter() - begin
    shutil.rmtree(directory)
    return messages / seconds


def copied_rates(directory: Path, messages: int) -> tuple[float, float, float]:
    """(bytes per second to a slave that begins with nothing, bytes per second of the same log over a plain connection, the slave's CPU in ms for a MB)."""
    directory.mkdir()
    with (
        party(directory, "ns") as name_server,
        party(directory, "master") as master,
        Producer("bench", discovery=Lookup(name_server), send_timeout_ms=20_000) as producer,
    ):
        _send(producer, messages)
        size = _status(producer, master)["store"]["end"]
        plain = size / plain_copy_s(directory, directory / "broker-a-0" / "commitlog", size)
        with party(directory, "1") as slave:
            _until(lambda: _status(producer, slave)["store"]["end"] > 0, 0.002)
            found = _status(producer, slave)
            begun, used, begin = found["store"]["end"], _cpu_ms(found["pid"]), time.perf_counter()
            _until(lambda: _status(producer, slave)["store"]["visible"] >= size, 0.02)
            seconds, used = time.perf_counter() - begin, _cpu_ms(found["pid"]) - used
    shutil.rmtree(directory)
    return (size - begun) / seconds, plain, used / ((size - begun) / 1e6)


def consumer_gap_s(directory: Path) -> float:
    """The longest pause of a consumer of 1,500 messages whose master is killed after 400. Every message must come, and once."""
    directory.mkdir()
    got: list[tuple[float, bytes]] = []

    def listen(messages: list[Any], _ctx: Any) -> None:
        got.extend((time.perf_counter(), bytes(message.body)) for message in messages)
        time.sleep(0.002)

    config = ConsumerConfig("bench", threshold_messages=50, pull_records=10, concurrency=1)
    with party(directory, "ns") as name_server, party(directory, "1") as slave, ExitStack() as life:
        life.enter_context(party(directory, "master"))
        with Producer("bench", discovery=Lookup(name_server)) as producer:
            for future in [producer.send_async("bench", b"%d" % number) for number in range(1_500)]:
                future.result(30)
            producer.send("bench", b"last")
            _until(lambda: _status(producer, slave)["store"]["records"] >= 1_501)
        with PushConsumer("bench", listener=listen, subscriptions={"bench": "*"}, discovery=Lookup(name_server), start_from="first", config=config):
            _until(lambda: len(got) > 400, 0.005)
            killed = time.perf_counter()
            life.close()
            _until(lambda: len({body for _, body in got}) == 1_501)
    shutil.rmtree(directory)
    assert len(got) == 1_501, f"{len(got) - 1_501} came twice"
    times = [at for at, _ in got]
    return max(after - before for before, after in pairwise(times) if after > killed)


def plain_copy_s(directory: Path, log: Path, size: int) -> float:
    """Seconds for the log's bytes through a socket into a file of another process."""
    left = size
    with party(directory, "copy-to") as port, socket.create_connection(("127.0.0.1", int(port))) as connection:
        begin = time.perf_counter()
        for path in sorted(log.iterdir()):
            with path.open("rb", buffering=0) as file:
                while left and (data := file.read(min(COPY_BYTES, left))):
                    connection.sendall(data)
                    left -= len(data)
        connection.shutdown(socket.SHUT_WR)
        connection.recv(1)
        return time.perf_counter() - begin


def _send(producer: Producer, messages: int) -> None:
    body = b"x" * BODY_BYTES
    futures = [producer.send_async("bench", body) for _ in range(messages)]
    refused = sum(future.result(60).status is not SendStatus.SEND_OK for future in futures)
    assert not refused, f"{refused} of {messages} were not acknowledged"


def _cpu_ms(pid: int) -> float:
    """CPU time of a process, user and system."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) * 1e3 / os.sysconf("SC_CLK_TCK")


def _status(producer: Producer, address: str) -> dict[str, Any]:
    core = producer._core
    assert core is not None, "the producer has started"
    answer = core.instance.invoke(Address.parse(address), Command(RequestCode.BROKER_STATUS), 5_000)
    found: dict[str, Any] = msgpack.unpackb(answer.body, strict_map_key=False)
    return found


def _until(check: Any, every_s: float = 0.05) -> None:
    deadline = time.perf_counter() + PATIENCE_S
    while not check():
        assert time.perf_counter() < deadline, "waited too long"
        time.sleep(every_s)
