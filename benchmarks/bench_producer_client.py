"""What the producer itself costs: sends to a broker in another process that stores nothing and
answers at once.

    python -m benchmarks.bench_producer_client [names] [--seconds 2]

Floors beside each figure, taken in the same run: a bare socket's round trip, and a frame made once
and sent again and again over the same kind of connection. The difference to them is what checks,
encoding, batching, retries and futures cost.
"""

from __future__ import annotations

import argparse
import asyncio
import concurrent.futures
import multiprocessing
import socket
import sys
import threading
import time
from collections.abc import Callable
from multiprocessing.connection import Connection as Pipe
from typing import Any

from benchmarks.report import Figure, Report, percentiles
from rmq_ray.client.outgoing.producer_identity import ProducerIdentity
from rmq_ray.client.outgoing.send_payload import encode_records
from rmq_ray.client.producer.producer import Producer
from rmq_ray.clock import SYSTEM_CLOCK
from rmq_ray.config import ForeignClients, RemotingLimits
from rmq_ray.model.ids import Address, MessageQueue
from rmq_ray.model.message import Message
from rmq_ray.model.topics import BrokerData, QueueData, TopicRoute
from rmq_ray.ports import ClusterAddress
from rmq_ray.remoting.connection import Connection
from rmq_ray.remoting.handshake import Credentials
from rmq_ray.remoting.listener import Listener
from rmq_ray.remoting.wire.bodies import encode_route
from rmq_ray.remoting.wire.codes import RequestCode
from rmq_ray.remoting.wire.frame import Command
from rmq_ray.remoting.wire.records import pack_send_answer

CLUSTER, SECRET, TOPIC = "bench", b"b" * 32, "bench"
ANSWER = pack_send_answer(0, 0, 0, False)
BODY = b"x" * 100
LABELS: dict[str, Any] = {
    "tag": "paid",
    "keys": ["o-1"],
    "properties": {"region": "eu", "shop": "12"},
}


# --- the other process ----------------------------------------------------------------------------


class EchoBroker:
    """Name server and broker at once: one route, and offset 0 for everything."""

    route = b""

    def handle(self, command: Command, peer: Any) -> Command | None:
        """Answer at once."""
        if command.is_oneway:
            return None
        if command.code == RequestCode.SEND_RECORDS:
            return command.answer(body=ANSWER)
        if command.code == RequestCode.GET_ROUTEINFO_BY_TOPIC:
            return command.answer(body=self.route)
        return command.answer()

    def closed(self, peer: Any) -> None:
        """Nothing is kept."""


async def serve(pipe: Pipe) -> None:
    """Listens as a name server, as a broker and as a bare socket; tells the ports; ends with the
    parent.
    """
    handler = EchoBroker()
    ports = []
    for role in ("name_server", "broker"):
        listener = Listener(
            handler,
            Credentials(CLUSTER, role, SECRET),
            ForeignClients.CLOSED,
            RemotingLimits(),
            SYSTEM_CLOCK,
            role,
        )
        ports.append((await listener.start("127.0.0.1", 0)).port)
    bare = await asyncio.get_running_loop().create_server(Bare, "127.0.0.1", 0)
    ports.append(bare.sockets[0].getsockname()[1])
    handler.route = encode_route(
        TopicRoute(
            (QueueData("broker-a", 4, 4, 6),),
            (BrokerData(CLUSTER, "broker-a", {0: f"127.0.0.1:{ports[1]}"}),),
        )
    )
    pipe.send(ports)
    await asyncio.to_thread(pipe.poll, None)


class Bare(asyncio.Protocol):
    """Sends back what it gets."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Remember the transport."""
        self.transport: Any = transport

    def data_received(self, data: bytes) -> None:
        """Echo."""
        self.transport.write(data)


def run_server(pipe: Pipe) -> None:
    """The server process."""
    asyncio.run(serve(pipe))


class Discovery:
    """The bench's name server."""

    def __init__(self, port: int) -> None:
        self._address = ClusterAddress(CLUSTER, (f"127.0.0.1:{port}",), SECRET)

    def lookup(self) -> ClusterAddress:
        """See ``ports.Discovery``."""
        return self._address


# --- measuring ------------------------------------------------------------------------------------


def latency_us(call: Callable[[], object], seconds: float) -> tuple[float, float]:
    """p50 and p99 of a call in microseconds."""
    for _ in range(200):
        call()
    times = []
    end = time.perf_counter() + seconds
    while (begin := time.perf_counter()) < end:
        call()
        times.append((time.perf_counter() - begin) * 1e6)
    p50, p99 = percentiles(times, 50, 99)
    return p50, p99


def rate(call: Callable[[], int], threads: int, seconds: float) -> float:
    """Messages a second of ``threads`` threads that call again and again; ``call`` returns how many
    messages it was.
    """
    counts = [0] * threads
    stop = threading.Event()

    def work(index: int) -> None:
        while not stop.is_set():
            counts[index] += call()

    workers = [
        threading.Thread(target=work, args=(index,), daemon=True) for index in range(threads)
    ]
    begin = time.perf_counter()
    for worker in workers:
        worker.start()
    time.sleep(seconds)
    stop.set()
    for worker in workers:
        worker.join(10)
    return sum(counts) / (time.perf_counter() - begin)


def bench_single(producer: Producer, ports: list[int], seconds: float, report: Report) -> None:
    """One message, waited for."""
    bare = socket.create_connection(("127.0.0.1", ports[2]))
    bare.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    payload = bytes(400)

    def echo() -> None:
        bare.sendall(payload)
        left = len(payload)
        while left:
            left -= len(bare.recv(left))

    floor, _ = latency_us(echo, seconds / 2)
    p50, p99 = latency_us(lambda: producer.send(TOPIC, BODY), seconds)
    report.add(Figure("send, p50", p50, "us", "bare socket", floor, less_is_better=True))
    report.add(
        Figure("send, p50 against 150 us", p50, "us", "150 us", 150.0, 1.0, less_is_better=True)
    )
    report.add(Figure("send, p99", p99, "us"))
    connection = Connection(
        Address("127.0.0.1", ports[1]),
        Credentials(CLUSTER, "broker", SECRET),
        RemotingLimits(),
        SYSTEM_CLOCK,
    )
    load = encode_records(
        ProducerIdentity("127.0.0.1"), MessageQueue(TOPIC, "broker-a", 0), [BODY], [""], 0, 1000.0
    )
    command = load.command(MessageQueue(TOPIC, "broker-a", 0))

    def again() -> int:
        connection.request(command, 3000.0)
        return 1

    def send() -> int:
        producer.send(TOPIC, BODY)
        return 1

    for threads, target in ((1, None), (64, 27_000.0)):
        floor = rate(again, threads, seconds)
        value = rate(send, threads, seconds)
        report.add(Figure(f"send, {threads} threads", value, "msg/s", "bare request", floor))
        if target:
            report.add(
                Figure(
                    f"send, {threads} threads against the target",
                    value,
                    "msg/s",
                    "target",
                    target,
                    1.0,
                )
            )
    connection.close()


def bench_async(producer: Producer, ports: list[int], seconds: float, report: Report) -> None:
    """``send_async`` from one thread, all futures waited for."""
    for name, labels, target in (
        ("100 B", {}, 250_000.0),
        ("100 B, tag, key, 2 properties", LABELS, 200_000.0),
    ):
        best = 0.0
        for _ in range(3):
            count = int(100_000 * seconds)
            begin = time.perf_counter()
            futures = [producer.send_async(TOPIC, BODY, **labels) for _ in range(count)]
            done = concurrent.futures.wait(futures[-4000:], timeout=30).done
            assert len(done) == 4000
            producer.flush()
            best = max(best, count / (time.perf_counter() - begin))
            del futures
        report.add(Figure(f"send_async, {name}", best, "msg/s", "target", target, 1.0))


def bench_batch(producer: Producer, ports: list[int], seconds: float, report: Report) -> None:
    """``send_batch`` of 1,000 messages of 100 B, one and two threads; and what encoding them
    costs.
    """
    messages = [Message(TOPIC, BODY) for _ in range(1_000)]
    labelled = [Message(TOPIC, BODY, **LABELS) for _ in range(1_000)]
    different = [Message(TOPIC, b"y" * (80 + n % 40)) for n in range(1_000)]
    identity, queue = ProducerIdentity("127.0.0.1"), MessageQueue(TOPIC, "broker-a", 0)
    bodies, texts = [message.body for message in messages], [""] * 1_000

    def encode() -> None:
        load = encode_records(identity, queue, bodies, texts, SYSTEM_CLOCK.now_ms(), 1000.0)
        identity.release(load.frame_id)

    p50, _ = latency_us(encode, seconds / 2)
    report.add(
        Figure(
            "encode, per message of a batch of 1,000",
            p50 / 1000,
            "us",
            "0.75 us",
            0.75,
            1.0,
            less_is_better=True,
        )
    )
    for name, batch, target in (
        ("100 B", messages, 700_000.0),
        ("100 B, tag, key, 2 properties", labelled, None),
        ("80-119 B", different, None),
    ):
        for threads in (1, 2):

            def send(batch: list[Message] = batch) -> int:
                return sum(result.count for result in producer.send_batch(batch))

            value = rate(send, threads, seconds)
            label = f"send_batch 1,000, {name}, {threads} threads"
            report.add(
                Figure(label, value, "msg/s", "target", target, 1.0)
                if target and threads == 2
                else Figure(label, value, "msg/s")
            )


PARTS = {"single": bench_single, "async": bench_async, "batch": bench_batch}


def main() -> int:
    """Command line; exit code 1 where a target was missed."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("names", nargs="*", help=f"of {', '.join(PARTS)}; default all")
    parser.add_argument("--seconds", type=float, default=2.0)
    arguments = parser.parse_args()
    here, there = multiprocessing.Pipe()
    server = multiprocessing.get_context("spawn").Process(
        target=run_server, args=(there,), daemon=True
    )
    server.start()
    ports = here.recv()
    report = Report()
    with Producer("bench", discovery=Discovery(ports[0])) as producer:
        producer.send(TOPIC, BODY)
        for name in arguments.names or list(PARTS):
            PARTS[name](producer, ports, arguments.seconds, report)
    here.send("end")
    server.join(5)
    return 1 if report.missed else 0


if __name__ == "__main__":
    sys.exit(main())
