"""A socket that takes a few bytes and then none: what was encrypted leaves once, in its order."""

from __future__ import annotations

import ssl
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import pytest

from rmq_ray.clock import SYSTEM_CLOCK
from rmq_ray.remoting.tls import ServerTls, client_context
from rmq_ray.remoting.tls_socket import SEALED_BYTES_MAX, TlsSocket
from tests.support.certificates import Certificates


class _Wire:
    """The kernel and a server in memory. ``takes``: how much each send moves, 0 = time-out."""

    def __init__(self, context: ssl.SSLContext) -> None:
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self.server = context.wrap_bio(self._incoming, self._outgoing, server_side=True)
        self.takes: Iterator[int] = iter(())
        self.received = bytearray()

    def sendall(self, data: bytes) -> None:
        self._incoming.write(data)
        self._work()

    def send(self, data: memoryview) -> int:
        count = next(self.takes, len(data))
        if not count:
            raise BlockingIOError
        self._incoming.write(data[:count])
        self._work()
        return min(count, len(data))

    def recv_into(self, space: memoryview) -> int:
        data = self._outgoing.read(len(space))
        space[: len(data)] = data
        return len(data)

    def _work(self) -> None:
        try:
            self.server.do_handshake()
            while piece := self.server.read(65_536):
                self.received += piece
        except ssl.SSLWantReadError:
            pass


@pytest.fixture(name="wire")
def _wire(tmp_path: Path) -> tuple[_Wire, TlsSocket]:
    files = Certificates(tmp_path)
    wire = _Wire(ServerTls(files.settings(), SYSTEM_CLOCK, "test").context)
    sock = TlsSocket(cast(Any, wire), client_context(files.client()), "localhost")
    sock.shake_hands(lambda: None)
    return wire, sock


def _sent(sock: TlsSocket, parts: list[bytes]) -> int:
    """As the outbox does it; how often the socket took nothing."""
    views = [memoryview(part) for part in parts]
    stalls = 0
    while views:
        try:
            count = sock.sendmsg(views)
        except BlockingIOError:
            stalls += 1
            continue
        while views and count >= len(views[0]):
            count -= len(views.pop(0))
        if count:
            views[0] = views[0][count:]
    return stalls


def test_what_a_full_socket_did_not_take_is_not_encrypted_again(
    wire: tuple[_Wire, TlsSocket],
) -> None:
    server, sock = wire
    parts = [bytes([number]) * (number * 40_000 + 1) for number in range(9)]
    server.takes = iter([0, 10, 0, 0, 5_000, 0, 1, 0, 300_000, 0] * 3)
    assert _sent(sock, parts) >= 5
    assert bytes(server.received) == b"".join(parts)


def test_one_buffer_longer_than_is_encrypted_at_once(wire: tuple[_Wire, TlsSocket]) -> None:
    server, sock = wire
    body = bytes(range(256)) * 4_096
    assert sock.send(body) == SEALED_BYTES_MAX
    assert sock.send(memoryview(body)[SEALED_BYTES_MAX:]) == SEALED_BYTES_MAX
    assert bytes(server.received) == body[: 2 * SEALED_BYTES_MAX]
    assert sock.send(b"") == 0


def test_what_arrives_in_many_records_fills_the_space(wire: tuple[_Wire, TlsSocket]) -> None:
    server, sock = wire
    server.server.write(b"x" * 100_000)
    space = memoryview(bytearray(60_000))
    assert sock.recv_into(space) == 60_000 and sock.recv_into(space) == 40_000
    server.server.write(b"the end")
    assert sock.recv(100) == b"the end"
    assert sock.recv_into(space) == 0  # the other end is gone
