"""Apache Kafka 4.4.0 as a peer: its broker (one KRaft node, 1 GB heap) and librdkafka's producer,
on the same machine.

    python -m benchmarks.kafka_peer [kafka_100] [kafka_1k] [--scale 0.1]     JSON lines

The broker's jars come from Maven Central (interop/kafka/pom.xml, resolved once), librdkafka from
PyPI's confluent-kafka (extra ``bench``). The producer is a process of its own with librdkafka's
settings as they are, but for room: batches of value and key by ``produce_batch``, which is its
quickest way from Python, the messages made once and sent again and again; the clock stops when the
last one is acknowledged. Topics have 4 partitions, one copy.
"""

from __future__ import annotations

import argparse
import fcntl
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from benchmarks.settle import settle
from tools.servers import free_ports, serving

KAFKA = "4.4.0"
PROJECT = Path(__file__).resolve().parents[1] / "interop" / "kafka"
SPARK_PROJECT = PROJECT.parent / "kafka-spark"
BUILD_TIMEOUT_S, RUN_TIMEOUT_S = 540, 300
BENCHES = {"kafka_100": (100, 2_000_000), "kafka_1k": (1_024, 500_000)}
"""Bytes of a body, messages of a round at full length."""
SHIPPED_FLAGS = (
    "-Xmx1g",
    "-Xms1g",
    "-XX:+UseG1GC",
    "-XX:MaxGCPauseMillis=20",
    "-XX:InitiatingHeapOccupancyPercent=35",
    "-XX:+ExplicitGCInvokesConcurrent",
)
"""Of kafka-server-start.sh and kafka-run-class.sh."""
PIECE = 2_000
"""Messages of one ``produce_batch``."""
ROUNDS = 5


def class_path(project: Path = PROJECT) -> str:
    """Of Kafka's broker, or of Spark's source for Kafka; resolved by Maven once."""
    target = project / "target"
    target.mkdir(parents=True, exist_ok=True)
    found = target / "classpath.txt"
    with (target / "build.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not found.exists() or found.stat().st_mtime < (project / "pom.xml").stat().st_mtime:
            command = [
                "mvn",
                "-q",
                "-B",
                "dependency:build-classpath",
                f"-Dmdep.outputFile={found}",
            ]
            subprocess.run(
                command, cwd=project, check=True, timeout=BUILD_TIMEOUT_S, stdout=subprocess.DEVNULL
            )
    return found.read_text().strip()


@contextmanager
def broker(directory: Path) -> Iterator[str]:
    """A formatted, started node until the block ends; its address."""
    port, controller = free_ports(2)
    settings = directory / "server.properties"
    settings.write_text(
        f"process.roles=broker,"
        f"controller\nnode.id=1\ncontroller.quorum.voters=1@127.0.0.1:{controller}\n"
        f"listeners=PLAINTEXT://127.0.0.1:{port},CONTROLLER://"
        f"127.0.0.1:{controller}\ncontroller.listener.names=CONTROLLER\n"
        f"log.dirs={directory / 'log'}\nnum.partitions=4\noffsets.topic.replication.factor=1\n"
        "group.initial.rebalance.delay.ms=0\n"  # as Kafka's own server.properties
    )
    java = ["java", *SHIPPED_FLAGS, "-cp", class_path()]
    format_it = [
        *java,
        "kafka.tools.StorageTool",
        "format",
        "-t",
        "cmVuY2htYXJrc3BlZXIwMQ",
        "-c",
        str(settings),
    ]
    subprocess.run(format_it, check=True, timeout=60, stdout=subprocess.DEVNULL)
    node = [*java, "kafka.Kafka", str(settings)]
    with serving(port, node, stdout=subprocess.DEVNULL):
        yield f"127.0.0.1:{port}"


def produce(address: str, name: str, scale: float) -> dict[str, Any]:
    """Acknowledged messages a second, median of the rounds: value and key."""
    from confluent_kafka import Producer

    size, full = BENCHES[name]
    pieces_wanted = max(1, int(full * scale) // PIECE)
    producer = Producer(
        {
            "bootstrap.servers": address,
            "queue.buffering.max.messages": 2_000_000,
            "queue.buffering.max.kbytes": 1 << 21,
        }
    )
    pieces = [
        [{"value": os.urandom(size), "key": b"o-%d" % (piece * PIECE + n)} for n in range(PIECE)]
        for piece in range(8)
    ]
    rates = []
    for _ in range(ROUNDS + 1):  # the first one warms up
        settle()
        begin = time.perf_counter()
        for piece in range(pieces_wanted):
            taken = producer.produce_batch(f"bench-{name}", pieces[piece % len(pieces)])
            assert taken == PIECE, f"librdkafka took {taken} of {PIECE} messages"
            producer.poll(0)
        left = producer.flush(60)
        assert left == 0, f"{left} messages were not acknowledged"
        rates.append(pieces_wanted * PIECE / (time.perf_counter() - begin))
    return {"bench": name, "per_second": statistics.median(rates[1:])}


def bench(names: list[str], scale: float) -> list[dict[str, Any]]:
    """The broker here, the producer in a process of its own; one figure a name."""
    found = []
    with (
        tempfile.TemporaryDirectory(prefix="rmq-kafka-") as directory,
        broker(Path(directory)) as address,
    ):
        for name in names:
            command = [
                sys.executable,
                "-m",
                "benchmarks.kafka_peer",
                name,
                "--scale",
                str(scale),
                "--address",
                address,
            ]
            done = subprocess.run(
                command, stdout=subprocess.PIPE, text=True, check=True, timeout=RUN_TIMEOUT_S
            )
            found += [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    return found


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=f"Apache Kafka {KAFKA} beside this project")
    parser.add_argument("names", nargs="*", help=f"of {', '.join(BENCHES)}; default all")
    parser.add_argument("--scale", type=float, default=1.0, help="1 = full length")
    parser.add_argument("--address", help="of a broker that runs; default: start one")
    arguments = parser.parse_args()
    names = arguments.names or list(BENCHES)
    figures = (
        [produce(arguments.address, name, arguments.scale) for name in names]
        if arguments.address
        else bench(names, arguments.scale)
    )
    for figure in figures:
        print(json.dumps(figure), flush=True)


if __name__ == "__main__":
    main()
