"""What waking threads and processes costs on this machine with nothing else done: the floors of
``send`` from many threads and of end-to-end latency.

    relay    thread ──socket──> other process ──socket──> reader thread ──queue──> listener thread,
             one message every 10 ms
    sharing  64 threads put nothing into shared frames of 200 bytes each, an echo answers, the
             threads of a frame wake one another

A core that slept 10 ms wakes slowly and finds its caches empty: a ping every 10 ms takes several
times a ping in a tight loop.
"""

from __future__ import annotations

import socket
import statistics
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from queue import SimpleQueue

RECORD_BYTES = 200
FRAMES_OUT = 2
ECHO = """
import socket, sys
server = socket.create_server(("127.0.0.1", 0))
print(server.getsockname()[1], flush=True)
peer, _ = server.accept()
peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
frames = peer.makefile("rb")
while head := frames.read(4):
    frames.read(int.from_bytes(head, "big"))
    peer.sendall(b"answered")
"""


@contextmanager
def echo() -> Iterator[socket.socket]:
    """A connection to a process that answers each frame (its length in 4 bytes, its bytes) with 8
    bytes.
    """
    process = subprocess.Popen([sys.executable, "-c", ECHO], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    client = socket.create_connection(("127.0.0.1", int(process.stdout.readline())))
    client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    try:
        yield client
    finally:
        client.close()
        process.kill()
        process.wait()
        process.stdout.close()


def frame(records: int) -> bytes:
    """So many records of nothing."""
    size = RECORD_BYTES * records
    return size.to_bytes(4, "big") + b"x" * size


def relay_ms(calls: int, every_s: float) -> float:
    """Median of the way through the echo to a listener thread, one message every ``every_s``
    seconds.
    """
    ready: SimpleQueue[float | None] = SimpleQueue()
    times: list[float] = []
    through = threading.Semaphore(0)

    def listen() -> None:
        while (sent := ready.get()) is not None:
            times.append((time.perf_counter() - sent) * 1e3)
            through.release()

    with echo() as client:
        begun = 0.0

        def read() -> None:
            while client.recv(64):
                ready.put(begun)
            ready.put(None)

        for work in (listen, read):
            threading.Thread(target=work, daemon=True).start()
        for _ in range(calls):
            begun = time.perf_counter()
            client.sendall(frame(1))
            through.acquire(timeout=5)
            time.sleep(every_s)
        client.shutdown(socket.SHUT_RDWR)
    return statistics.median(times)


class BareSharing:
    """The least that threads which share frames can do: one lock each, two frames out, waking in a
    chain.
    """

    def __init__(self, client: socket.socket) -> None:
        self._client = client
        self._lock = threading.Lock()
        self._open: list[threading.Lock] = []
        self._out: deque[list[threading.Lock]] = deque()
        self._count = 0

    def send(self, mine: threading.Lock) -> None:
        """One message: returns when its frame was answered."""
        with self._lock:
            group, index = self._open, len(self._open)
            group.append(mine)
            if self._count < FRAMES_OUT:
                self._ship()
        mine.acquire()
        if index + 1 < len(group):
            group[index + 1].release()
            return
        with self._lock:
            self._count -= 1
            if self._open:
                self._ship()

    def read(self) -> None:
        """The reader thread: one answer a frame, in order."""
        while answers := self._client.recv(64):
            for _ in range(len(answers) // 8):
                self._out.popleft()[0].release()

    def _ship(self) -> None:
        group, self._open = self._open, []
        self._count += 1
        self._out.append(group)
        self._client.sendall(frame(len(group)))


def shared_sends_per_s(threads: int, seconds: float) -> float:
    """Messages a second of ``threads`` threads."""
    done, stop = [0] * threads, threading.Event()
    with echo() as client:
        sharing = BareSharing(client)
        threading.Thread(target=sharing.read, daemon=True).start()

        def work(number: int) -> None:
            mine = threading.Lock()
            mine.acquire()
            while not stop.is_set():
                sharing.send(mine)
                done[number] += 1

        workers = [
            threading.Thread(target=work, args=(number,), daemon=True) for number in range(threads)
        ]
        for worker in workers:
            worker.start()
        time.sleep(min(0.5, seconds))
        before, begun = sum(done), time.perf_counter()
        time.sleep(seconds)
        rate = (sum(done) - before) / (time.perf_counter() - begun)
        stop.set()
        for worker in workers:
            worker.join(5)
    return rate
