"""Each way of breaking the network does what it says, on a loopback of the test's own."""

from __future__ import annotations

import ctypes
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

import pytest

from rmq_ray.remoting.wire.frame import Command, decode, encode_bytes
from tests.torture import network

CLONE_NEWNET = 0x40000000
WAIT_S, PATIENCE_S = 0.15, 10.0
ANSWERS = 20

pytestmark = [
    pytest.mark.skipif(network.why_not() is not None, reason=f"not here: {network.why_not()}"),
    pytest.mark.skipif(os.getuid() != 0, reason="a network namespace of its own needs root"),
]


def in_own_network(work: Callable[[], None]) -> None:
    """A thread, and what it starts, may be in another namespace than the process."""

    def run() -> None:
        assert ctypes.CDLL(None, use_errno=True).unshare(CLONE_NEWNET) == 0
        subprocess.run(["ip", "link", "set", "lo", "up"], check=True)
        work()

    with ThreadPoolExecutor(1) as pool:
        pool.submit(run).result(60)


class Server:
    """Answers each frame with one of the same opaque."""

    def __init__(self) -> None:
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.port = int(self.listener.getsockname()[1])
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        while True:
            peer, _ = self.listener.accept()
            threading.Thread(target=self._serve, args=(peer,), daemon=True).start()

    @staticmethod
    def _serve(peer: socket.socket) -> None:
        with suppress(OSError), peer, peer.makefile("rb") as frames:  # who asked may have left
            while head := frames.read(4):
                asked = decode(memoryview(frames.read(int.from_bytes(head))))
                peer.sendall(encode_bytes(Command(code=0, opaque=asked.opaque, flag=1)))


def ask(port: int, first_s: float = WAIT_S) -> list[int]:
    """Opaques of what comes back on a new connection: the first within ``first_s``, others within a
    moment.
    """
    came = []
    with socket.create_connection(("127.0.0.1", port), timeout=first_s) as peer:
        peer.sendall(encode_bytes(Command(code=34, opaque=1)))
        with peer.makefile("rb") as frames:
            try:
                while head := frames.read(4):
                    body = frames.read(int.from_bytes(head))
                    if len(body) < int.from_bytes(head):
                        return [*came, -1]
                    came.append(decode(memoryview(body)).opaque)
                    peer.settimeout(WAIT_S)
            except TimeoutError:
                pass
    return came


def fails(port: int, first_s: float = WAIT_S) -> bool:
    try:
        return ask(port, first_s) == []
    except OSError:
        return True


@pytest.mark.parametrize(("requests", "answers"), [(True, True), (True, False), (False, True)])
def test_a_cut_port_is_silent_and_comes_back(requests: bool, answers: bool) -> None:
    def work() -> None:
        server = Server()
        assert ask(server.port, PATIENCE_S) == [1]
        with network.cut(server.port, requests=requests, answers=answers):
            assert fails(server.port)
        assert ask(server.port, PATIENCE_S) == [1]

    in_own_network(work)


@pytest.mark.parametrize(("requests", "answers"), [(True, True), (True, False), (False, True)])
def test_a_process_is_apart_from_a_port_that_others_reach(requests: bool, answers: bool) -> None:
    def work() -> None:
        server = Server()
        with (
            socket.create_connection(("127.0.0.1", server.port), timeout=WAIT_S) as before,
            network.apart(server.port, os.getpid(), requests=requests, answers=answers),
        ):
            before.sendall(encode_bytes(Command(code=34, opaque=1)))
            with pytest.raises(TimeoutError):
                before.recv(1)
            assert another_reaches(server.port)
            with socket.create_connection(("127.0.0.1", server.port), timeout=WAIT_S) as late:
                time.sleep(PATIENCE_S / 20)
                late.sendall(encode_bytes(Command(code=34, opaque=1)))
                with pytest.raises(TimeoutError):
                    late.recv(1)
        assert ask(server.port, PATIENCE_S) == [1]

    in_own_network(work)


def another_reaches(port: int) -> bool:
    told = encode_bytes(Command(code=34, opaque=1)).hex()
    program = (
        f"import socket; peer = socket.create_connection(('127.0.0.1', {port}), {PATIENCE_S}); "
        f"peer.sendall(bytes.fromhex('{told}')); print(len(peer.recv(4)))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    return done.stdout.strip() == "4"


def test_one_that_loses_packets_answers_in_the_end() -> None:
    def work() -> None:
        server = Server()
        with network.lossy(server.port, percent=10):
            assert not all(fails(server.port, PATIENCE_S) for _ in range(5))

    in_own_network(work)


@pytest.mark.parametrize(
    ("kind", "spoilt"), [("lost", []), ("repeated", [1, 1]), ("torn", [-1]), ("late", [])]
)
def test_a_proxy_spoils_some_answers_and_passes_the_others(kind: str, spoilt: list[int]) -> None:
    def work() -> None:
        server = Server()
        with network.proxied(server.port, kind, seed=1):
            came = [ask(server.port) for _ in range(ANSWERS)]
        assert [1] in came and spoilt in came
        assert ask(server.port, PATIENCE_S) == [1]

    in_own_network(work)


def test_an_overtaken_answer_comes_behind_later_ones() -> None:
    def work() -> None:
        server = Server()
        with (
            network.proxied(server.port, "overtaken", seed=1),
            socket.create_connection(("127.0.0.1", server.port), timeout=PATIENCE_S) as peer,
            peer.makefile("rb") as frames,
        ):
            wanted = list(range(1, ANSWERS + 1))
            for opaque in wanted:
                peer.sendall(encode_bytes(Command(code=34, opaque=opaque)))
            came = [
                decode(memoryview(frames.read(int.from_bytes(frames.read(4))))).opaque
                for _ in wanted
            ]
        assert sorted(came) == wanted != came

    in_own_network(work)


def test_connections_from_before_a_proxy_are_reset() -> None:
    def work() -> None:
        server = Server()
        with (
            socket.create_connection(("127.0.0.1", server.port), timeout=WAIT_S) as peer,
            network.proxied(server.port, "late", seed=1),
            pytest.raises(ConnectionError),
        ):
            peer.sendall(encode_bytes(Command(code=34, opaque=1)))
            peer.recv(1)

    in_own_network(work)
