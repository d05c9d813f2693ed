"""What the machine gives at best, taken in the same run: bare actor call, bare socket, bare pwrite,
bare fdatasync, bare path.

``bare_produce`` is the least that a broker actor can do with frames of records: no checks, no
index, no de-duplication: it patches offsets and appends. What the real broker loses against it is
the price of its promises.
"""

from __future__ import annotations

import asyncio
import os
import socket
import statistics
import struct
import tempfile
import threading
import time
import zlib
from typing import Any

import numpy as np
import ray

from benchmarks.report import percentiles

SIZE_COUNT, HEAD_BYTES = (
    ">ii",
    8,
)  # plain texts: Ray pickles an actor class with the globals that its methods use
ANSWER, ANSWER_BYTES = ">q", 8
FLUSH_BYTES = 1024
RECORD = ">iIIiiqqiqIIqIIiqi"
MAGIC, LOOPBACK = 0xDAA320A7, 0x7F000001


@ray.remote(num_cpus=0)
class Echo:
    """The bare actor."""

    async def ping(self, value: bytes) -> bytes:
        """The same bytes."""
        return value


def actor_call_us(calls: int = 1_000) -> float:
    """Median round trip of an actor call with 100 bytes, microseconds."""
    echo = Echo.remote()
    ray.get(echo.ping.remote(b""))
    times = []
    for _ in range(calls):
        begin = time.perf_counter()
        ray.get(echo.ping.remote(b"x" * 100))
        times.append((time.perf_counter() - begin) * 1e6)
    ray.kill(echo)
    return statistics.median(times)


def socket_round_trip_us(calls: int = 5_000) -> float:
    """Median round trip over a loopback socket to a server thread, microseconds."""
    server = socket.create_server(("127.0.0.1", 0))

    def serve() -> None:
        peer, _ = server.accept()
        peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        while data := peer.recv(65536):
            peer.sendall(data)

    threading.Thread(target=serve, daemon=True).start()
    client = socket.create_connection(server.getsockname())
    client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    times = []
    for _ in range(calls):
        begin = time.perf_counter()
        client.sendall(b"x" * 100)
        client.recv(65536)
        times.append((time.perf_counter() - begin) * 1e6)
    client.close()
    server.close()
    return statistics.median(times)


def pwrite_mb_s(directory: str, total_mb: int = 256) -> float:
    """Appending 256 KiB pieces to a preallocated file, MB/s."""
    fd = _preallocated(directory, total_mb << 20)
    piece = os.urandom(256 << 10)
    begin = time.perf_counter()
    for position in range(0, total_mb << 20, len(piece)):
        os.pwrite(fd, piece, position)
    seconds = time.perf_counter() - begin
    os.close(fd)
    return (total_mb << 20) / 1e6 / seconds


def fdatasync_ms(directory: str, calls: int = 200) -> tuple[float, float]:
    """(p50, p99) of pwrite of 1 KiB + fdatasync on a preallocated file, milliseconds."""
    fd = _preallocated(directory, 16 << 20)
    times = []
    for i in range(calls):
        begin = time.perf_counter()
        os.pwrite(fd, b"x" * FLUSH_BYTES, i * FLUSH_BYTES)
        os.fdatasync(fd)
        times.append((time.perf_counter() - begin) * 1e3)
    os.close(fd)
    p50, p99 = percentiles(times, 50, 99)
    return p50, p99


def queue_put_per_s(items: int = 1_000) -> float:
    """``ray.util.queue.Queue.put`` of 100 bytes, one at a time."""
    from ray.util.queue import Queue

    queue = Queue(actor_options={"num_cpus": 0})
    queue.put(b"")
    begin = time.perf_counter()
    for _ in range(items):
        queue.put(b"x" * 100)
    rate = items / (time.perf_counter() - begin)
    queue.shutdown(force=True)
    return rate


def queue_get_per_s(items: int = 1_000) -> float:
    """``ray.util.queue.Queue.get`` of 100 bytes, one at a time."""
    from ray.util.queue import Queue

    queue = Queue(actor_options={"num_cpus": 0})
    queue.put_nowait_batch([b"x" * 100] * items)
    queue.put(b"")
    queue.get()
    begin = time.perf_counter()
    for _ in range(items):
        queue.get()
    rate = items / (time.perf_counter() - begin)
    queue.shutdown(force=True)
    return rate


def queue_relay_ms(items: int, every_s: float) -> float:
    """Median from ``ray.util.queue.Queue.put`` to a thread that waits in ``get``, milliseconds."""
    from ray.util.queue import Queue

    queue, times = Queue(actor_options={"num_cpus": 0}), []

    def take() -> None:
        for _ in range(items):
            sent = queue.get(timeout=30)
            times.append((time.perf_counter() - sent) * 1e3)

    taker = threading.Thread(target=take, daemon=True)
    taker.start()
    for _ in range(items):
        time.sleep(every_s)
        queue.put(time.perf_counter())
    taker.join(30)
    queue.shutdown(force=True)
    return statistics.median(times)


def _preallocated(directory: str, size: int) -> int:
    handle, path = tempfile.mkstemp(dir=directory)
    os.posix_fallocate(handle, 0, size)
    os.unlink(path)
    return handle


@ray.remote(num_cpus=0)
class BareBroker:
    """Patches queue offset, physical offset and store time into frames, appends them, writes
    consume-queue entries.
    """

    def __init__(self, directory: str) -> None:
        self._log = os.open(
            os.path.join(directory, "bare.log"), os.O_CREAT | os.O_RDWR | os.O_TRUNC
        )
        self._queue = os.open(
            os.path.join(directory, "bare.cq"), os.O_CREAT | os.O_RDWR | os.O_TRUNC
        )
        self._position = self._offset = 0
        self._server: Any = None

    async def listen(self) -> int:
        """Begin to listen; the port."""
        outer = self

        class Connection(asyncio.BufferedProtocol):
            def connection_made(self, transport: Any) -> None:
                self.transport = transport
                self.buffer = bytearray(1 << 23)
                self.view = memoryview(self.buffer)
                self.filled = 0

            def get_buffer(self, hint: int) -> memoryview:
                return self.view[self.filled :]

            def buffer_updated(self, count: int) -> None:
                self.filled += count
                at = 0
                while self.filled - at >= HEAD_BYTES:
                    size, records = struct.unpack_from(SIZE_COUNT, self.buffer, at)
                    if self.filled - at < HEAD_BYTES + size:
                        break
                    offset = outer.append(
                        np.frombuffer(self.buffer, np.uint8, size, at + HEAD_BYTES), records
                    )
                    self.transport.write(struct.pack(ANSWER, offset))
                    at += HEAD_BYTES + size
                if at:
                    self.view[: self.filled - at] = bytes(self.view[at : self.filled])
                    self.filled -= at

        self._server = await asyncio.get_running_loop().create_server(Connection, "127.0.0.1", 0)
        return int(self._server.sockets[0].getsockname()[1])

    def append(self, frame: np.ndarray, records: int) -> int:
        """Patch and append one frame; the next queue offset."""
        sizes = frame[: 4 * records].view(np.int32).astype(np.int64)
        data = frame[4 * records :]
        starts = np.cumsum(sizes) - sizes
        offsets = np.arange(self._offset, self._offset + records, dtype=">i8")
        positions = (starts + self._position).astype(">i8")
        at = starts[:, None] + np.arange(20, 28)
        data[at] = offsets.view(np.uint8).reshape(-1, 8)
        data[at + 8] = positions.view(np.uint8).reshape(-1, 8)
        data[starts[:, None] + np.arange(56, 64)] = np.frombuffer(
            struct.pack(ANSWER, time.time_ns() // 1_000_000), np.uint8
        )
        entries = np.zeros(records, dtype=[("position", ">i8"), ("size", ">i4"), ("tag", ">i8")])
        entries["position"], entries["size"] = positions, sizes
        os.pwrite(self._log, data, self._position)
        os.pwrite(self._queue, entries.tobytes(), self._offset * 20)
        self._position += len(data)
        self._offset += records
        return self._offset


def bare_frame(bodies: list[bytes], key: int) -> bytes:
    """Sizes and records of the store's layout with a unique key each; nothing checked, nothing
    else.
    """
    parts: list[bytes] = []
    sizes: list[int] = []
    pack, crc, topic = struct.Struct(RECORD).pack, zlib.crc32, b"\x09TopicTest"
    for body in bodies:
        properties = b"UNIQ_KEY\x01%032X" % key
        key += 1
        size = 88 + len(body) + len(topic) + 2 + len(properties)
        head = pack(
            size,
            MAGIC,
            crc(body) & 0x7FFFFFFF,
            0,
            0,
            0,
            0,
            0,
            123,
            LOOPBACK,
            1,
            0,
            LOOPBACK,
            1,
            0,
            0,
            len(body),
        )
        parts += (head, body, topic, len(properties).to_bytes(2, "big"), properties)
        sizes.append(size)
    return np.array(sizes, np.int32).tobytes() + b"".join(parts)


@ray.remote(num_cpus=0)
class BareProducer:
    """Encodes each frame anew and keeps ``depth`` of them in flight."""

    def run(self, port: int, messages: int, size: int, batch: int, depth: int) -> float:
        """Messages a second."""
        peer = socket.create_connection(("127.0.0.1", port))
        peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        answers = peer.makefile("rb")
        bodies = [os.urandom(size) for _ in range(batch)]
        in_flight, key = 0, 0
        begin = time.perf_counter()
        for _ in range(messages // batch):
            frame = bare_frame(bodies, key)
            key += batch
            peer.sendall(struct.pack(SIZE_COUNT, len(frame), batch) + frame)
            in_flight += 1
            if in_flight >= depth:
                answers.read(ANSWER_BYTES)
                in_flight -= 1
        answers.read(ANSWER_BYTES * in_flight)
        return messages / (time.perf_counter() - begin)


def bare_produce_per_s(
    directory: str, size: int, batch: int, messages: int, depth: int = 4
) -> float:
    """Messages per second of the bare path, one producer actor, one broker actor."""
    broker, producer = BareBroker.remote(directory), BareProducer.remote()
    port = ray.get(broker.listen.remote())
    ray.get(producer.run.remote(port, messages // 10, size, batch, depth))
    rate = ray.get(producer.run.remote(port, messages, size, batch, depth))
    ray.kill(broker)
    ray.kill(producer)
    for name in ("bare.log", "bare.cq"):
        os.unlink(os.path.join(directory, name))
    return float(rate)
