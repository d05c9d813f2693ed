"""Frames that no client should send, over real sockets, to a broker and a name server whose ports
are open to everybody: both stay healthy, their memory is bounded, and other clients are served.

Wrong lengths and types, broken JSON, huge fields, half frames, writers that stop in the middle;
all from a seed.
"""

from __future__ import annotations

import contextlib
import json
import random
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from rmq_ray.actors.discovery import StaticDiscovery
from rmq_ray.client.admin.admin import Admin
from rmq_ray.client.producer.producer import Producer
from rmq_ray.client.pull.pull_consumer import PullConsumer
from rmq_ray.remoting.wire.codes import RequestCode
from tests.support.brokers.open_cluster import CLUSTER, SECRET, opened
from tests.support.waiting import eventually

SEED = 20_260
FRAMES, FRAMES_MAX = 1_500, 60_000
SLOW = 60
GROWTH_MAX = 160 << 20
SERVED_MS_MAX = 5_000
"""A machine that is busy with other tests serves slowly, not never."""
FIELDS = (
    "topic b a consumerGroup group queueId e queueOffset offset commitOffset maxMsgNums sysFlag f "
    "bornTimestamp g flag h properties i batch m bname n key maxNum beginTimestamp endTimestamp "
    "timestamp brokerName brokerAddr clusterName brokerId bodyCrc32 compressed namespace value "
    "readQueueNums writeQueueNums perm clientId clientID msgId index count subscription "
    "expressionType subVersion suspendTimeoutMillis delayLevel commitOrRollback statsName statsKey"
).split()


class Fuzzer:
    """Makes frames from a seed; none names a topic of the test."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self._kinds: tuple[Callable[[], bytes], ...] = (
            self._noise,
            self._lengths,
            self._json,
            self._values,
            self._binary,
            self._values,
            self._request,
            self._request,
            self._half,
        )

    def frame(self) -> bytes:
        """One frame, or what pretends to be one."""
        return self.random.choice(self._kinds)()

    def _bytes(self, size_max: int) -> bytes:
        return self.random.randbytes(self.random.randrange(size_max + 1))

    def _noise(self) -> bytes:
        body = self._bytes(400)
        return struct.pack(">i", len(body)) + body

    def _lengths(self) -> bytes:
        total = self.random.choice((-1, 0, 1, 3, 4, 1 << 24, 1 << 30, -(1 << 31), 0x16030100, 60))
        word = self.random.choice((0, 1 << 24, 2 << 24, 255 << 24, 0xFFFFFF, 7, 1 << 23))
        return struct.pack(">iI", total, word) + self._bytes(80)

    def _text(self) -> str:
        return self.random.choice(
            (
                "",
                "x",
                "-1",
                "9" * 40,
                "1e308",
                "true",
                "null",
                "%RETRY%x",
                "../../etc",
                "fuzz",
                "\x00\x01\x02",
                "ü" * 300,
                "t" * 70_000,
                str(self.random.getrandbits(63)),
                str(-self.random.getrandbits(63)),
            )
        )

    def _thing(self, depth: int = 0) -> object:
        kinds: tuple[Callable[[], object], ...] = (
            self._text,
            lambda: self.random.randint(-(1 << 70), 1 << 70),
            lambda: self.random.choice((None, True, False, 0.5, -0.0)),
            lambda: [self._thing(depth + 1) for _ in range(self.random.randrange(3))],
            lambda: {self._text()[:50]: self._thing(depth + 1)},
        )
        return self.random.choice(kinds[:3] if depth > 3 else kinds)()

    def _json(self) -> bytes:
        """What is no JSON, or no object, or nested without end."""
        deep = self.random.choice(("[", '{"a":')) * self.random.choice((10, 1_000, 100_000))
        text = self.random.choice(
            (deep, "", "[]", "1", '"a"', '{"code":', '{"code":10,}', "{code:10}", '{"code":1e999}')
        )
        return _framed(text.encode() + self._bytes(3), b"", self.random.choice((0, 0, 1)))

    def _values(self) -> bytes:
        header = {
            "code": self.random.choice((self._thing(), self._code())),
            "opaque": self._thing(),
            "flag": self.random.choice((0, 2, self._thing())),
            "language": self._thing(),
            "version": self._thing(),
            "remark": self._thing(),
            "extFields": self.random.choice((self._thing(), self._fields())),
        }
        return _framed(json.dumps(header).encode(), self._body(), 0)

    def _binary(self) -> bytes:
        """The other serialisation, with lengths that lie."""
        lie = self.random.choice((0, 5, -1, 1 << 30, -(1 << 31), 70_000))
        head = struct.pack(
            ">hbhiiii", self._code() & 0x7FFF, self.random.randrange(-128, 128), 407, 7, 0, lie, lie
        )
        return _framed(head + self._bytes(90), self._body(), 1)

    def _request(self) -> bytes:
        """A request of a code that exists, with fields and bodies that make no sense."""
        header = {"code": self._code(), "opaque": 5, "extFields": self._fields(), "version": 407}
        header["flag"] = self.random.choice((0, 0, 0, 1, 2))
        return _framed(json.dumps(header).encode(), self._body(), 0)

    def _half(self) -> bytes:
        whole = self._request()
        return whole[: self.random.randrange(1, len(whole))]

    def _code(self) -> int:
        return int(self.random.choice(list(RequestCode)))

    def _fields(self) -> dict[str, str]:
        names = self.random.sample(FIELDS, self.random.randrange(len(FIELDS)))
        return {name: self._text() for name in names}

    def _body(self) -> bytes:
        return self.random.choice(
            (
                b"",
                json.dumps(self._thing()).encode(),
                b"[" * 50_000,
                b"\x93" * 50_000,
                b"\xdf\xff\xff\xff\xff",
                b"\xc6\xff\xff\xff\xff",
                b"k=v\n" * 200,
                struct.pack(">iiii", 1 << 30, -1, 0, 9),
                self._bytes(3_000),
            )
        )


def _framed(header: bytes, body: bytes, kind: int) -> bytes:
    total = 4 + len(header) + len(body)
    return struct.pack(">iI", total, kind << 24 | len(header)) + header + body


@dataclass(frozen=True)
class Target:
    """A cluster that is open to everybody, in a process of its own."""

    discovery: StaticDiscovery
    pid: int
    ports: dict[str, tuple[str, int]]

    def resident(self) -> int:
        """Bytes of its memory."""
        pages = int(Path(f"/proc/{self.pid}/statm").read_text().split()[1])
        return pages * 4_096


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Target]:
    with opened(tmp_path_factory.mktemp("fuzz"), 300) as (address, pid):
        discovery = StaticDiscovery(address, SECRET, CLUSTER)
        admin = Admin(discovery)
        admin.create_topic("kept", queues=2)
        (broker,) = admin.route("kept").brokers
        admin.close()
        ports = {"name server": address, "broker": str(broker.addresses[0])}
        yield Target(discovery, pid, {name: _address(text) for name, text in ports.items()})


def _address(text: str) -> tuple[str, int]:
    host, _, port = text.rpartition(":")
    return host, int(port)


class Served:
    """Another client, which sends all the time: how long each send took, and what failed."""

    def __init__(self, discovery: StaticDiscovery) -> None:
        self.bodies: list[bytes] = []
        self.slowest_ms = 0.0
        self.failures: list[Exception] = []
        self._discovery = discovery
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> Served:
        self._thread.start()
        return self

    def __exit__(self, *_exception: object) -> None:
        self._ended.set()
        self._thread.join(30)

    def _run(self) -> None:
        with Producer("other", discovery=self._discovery, send_timeout_ms=30_000) as producer:
            while not self._ended.wait(0.02):
                body, began = b"%d" % len(self.bodies), time.monotonic()
                try:
                    producer.send("kept", body)
                except Exception as error:  # noqa: BLE001 - told by the test
                    self.failures.append(error)
                    return
                self.bodies.append(body)
                self.slowest_ms = max(self.slowest_ms, (time.monotonic() - began) * 1_000)


def _answered(address: tuple[str, int]) -> bool:
    """A well-formed request is answered: the route of a topic, or the broker's settings."""
    with socket.create_connection(address, 5) as connection:
        header = {"code": 26, "opaque": 9, "flag": 0, "version": 407}
        for code in (105, 26):
            fields = {"topic": "kept"}
            header |= {"code": code, "extFields": fields}
            connection.sendall(_framed(json.dumps(header).encode(), b"", 0))
            connection.settimeout(5)
            with contextlib.suppress(TimeoutError):
                if connection.recv(8):
                    return True
    return False


@pytest.mark.parametrize("port", ["broker", "name server"])
def test_frames_that_make_no_sense_hurt_nobody(target: Target, port: str) -> None:
    fuzzer, address, before = Fuzzer(SEED + len(port)), target.ports[port], target.resident()
    sent = answered = closed = 0
    with Served(target.discovery) as other:
        while sent < FRAMES or (len(other.bodies) <= 20 and sent < FRAMES_MAX):
            with socket.create_connection(address, 5) as connection:
                connection.settimeout(0.2)
                for _ in range(fuzzer.random.randrange(1, 12)):
                    sent += 1
                    try:
                        connection.sendall(fuzzer.frame())
                    except OSError:
                        closed += 1
                        break
                if fuzzer.random.random() < 0.1:
                    with contextlib.suppress(OSError):
                        answered += bool(connection.recv(1 << 16))
    assert not other.failures and len(other.bodies) > 20, other.failures
    assert other.slowest_ms < SERVED_MS_MAX
    assert _answered(address)
    assert target.resident() - before < GROWTH_MAX
    assert sent >= FRAMES and (answered or closed)


@pytest.mark.parametrize("port", ["broker", "name server"])
def test_writers_that_stop_in_the_middle_hold_up_nobody(target: Target, port: str) -> None:
    address, before = target.ports[port], target.resident()
    promised = struct.pack(">iI", 15 << 20, 60)  # a frame of 15 MiB, of which little comes
    slow = [socket.create_connection(address, 5) for _ in range(SLOW)]
    try:
        with Served(target.discovery) as other:
            for step in range(40):
                for connection in slow:
                    with contextlib.suppress(OSError):
                        connection.sendall(promised if not step else b"{" * 10)
                time.sleep(0.02)
        assert not other.failures and other.slowest_ms < SERVED_MS_MAX
        assert target.resident() - before < GROWTH_MAX, "room is made for what came"
        assert _answered(address)
    finally:
        for connection in slow:
            connection.close()


def test_everything_that_was_acknowledged_is_there_and_the_broker_serves(target: Target) -> None:
    with Served(target.discovery) as other:
        eventually(lambda: len(other.bodies) >= 10)
    admin = Admin(target.discovery)
    assert admin.broker_status("broker-a")["state"] == "serving"
    with PullConsumer("reader", discovery=target.discovery) as reader:
        came = [
            bytes(message.body)
            for queue in reader.fetch_message_queues("kept")
            for message in reader.pull(queue, "*", max(0, _end(admin, queue) - 32), 32).messages
        ]
    admin.close()
    assert set(other.bodies[-10:]) <= set(came)


def _end(admin: Admin, queue: object) -> int:
    return next(
        stats.max_offset for one, stats in admin.topic_stats("kept").items() if one == queue
    )
