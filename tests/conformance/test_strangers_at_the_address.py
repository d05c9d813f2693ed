"""Other programs behind the address that a client was given: what was reached, and what to do, is
told within the time-out, as an error with a type.
"""

from __future__ import annotations

import asyncio
import socket
import socketserver
import ssl
import struct
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

import pytest

import rmq_ray as rmq
from rmq_ray.clock import SYSTEM_CLOCK
from rmq_ray.config import RemotingLimits, Tls
from rmq_ray.errors import ConnectFailed, ConnectionLost, HandshakeFailed, RequestTimeout, TlsFailed
from rmq_ray.model.ids import Address
from rmq_ray.remoting.async_connection import AsyncConnection
from rmq_ray.remoting.connection import Connection
from rmq_ray.remoting.handshake import Credentials
from rmq_ray.remoting.wire.codes import RequestCode
from rmq_ray.remoting.wire.frame import Command, decode, encode_bytes
from tests.support.certificates import Certificates
from tests.support.faults.stopwatch import Stopwatch
from tests.support.wire import scripted

SECRET = b"s" * 32
CREDENTIALS = Credentials("c", "name_server", SECRET)
LIMITS = RemotingLimits(connect_timeout_ms=300)
HTTP = b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n"
REDIS = b"-ERR unknown command, with args beginning with: \r\n"


def says(answer: bytes) -> Callable[[socket.socket], None]:
    """A server that answers the first bytes with these, and ends."""

    def script(sock: socket.socket) -> None:
        sock.recv(4096)
        sock.sendall(answer)
        sock.shutdown(socket.SHUT_WR)

    return script


class Http(socketserver.BaseRequestHandler):
    """The same, of as many as come."""

    def handle(self) -> None:
        says(HTTP)(self.request)


def closes(sock: socket.socket) -> None:
    """As Kafka does with a request that is none of its own."""
    sock.recv(4096)
    sock.shutdown(socket.SHUT_RDWR)


def is_silent(_sock: socket.socket) -> None:
    """It accepts and reads nothing."""


@contextmanager
def speaking_tls(files: Certificates) -> Iterator[Address]:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(files.server, files.server_key)

    def script(sock: socket.socket) -> None:
        with suppress(ssl.SSLError):
            context.wrap_socket(sock, server_side=True)

    with scripted(script) as address:
        yield address


def by_thread(address: Address, tls: Tls | None = None, limits: RemotingLimits = LIMITS) -> None:
    Connection(address, CREDENTIALS, limits, SYSTEM_CLOCK, tls=tls)


def by_loop(address: Address, tls: Tls | None = None, limits: RemotingLimits = LIMITS) -> None:
    asyncio.run(AsyncConnection.open(address, CREDENTIALS, limits, SYSTEM_CLOCK, tls=tls))


def by_connect(address: Address, tls: Tls | None = None, limits: RemotingLimits = LIMITS) -> None:
    rmq.connect(name_servers=str(address), secret=SECRET, tls=tls)


Opens = Callable[..., None]
each_way = pytest.mark.parametrize("opens", [by_connect, by_thread, by_loop])


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return Certificates(tmp_path_factory.mktemp("pem"))


@each_way
@pytest.mark.parametrize("with_tls", [False, True])
@pytest.mark.parametrize(
    ("script", "plain", "secured"),
    [
        (says(HTTP), "an HTTP server listens there: check host and port", "speak TLS|speaks HTTP"),
        (says(REDIS), "another program, which says '-ERR', listens there", "does not speak TLS"),
        (closes, "closed the connection during the handshake; .*no server of this kind", "TLS"),
    ],
    ids=["http", "redis", "closes at once"],
)
def test_connecting_to_another_program_says_who_is_there(
    files: Certificates,
    script: Callable[[socket.socket], None],
    plain: str,
    secured: str,
    with_tls: bool,
    opens: Opens,
) -> None:
    tls = files.client() if with_tls else None
    with (
        scripted(script) as address,
        pytest.raises((HandshakeFailed, ConnectFailed, TlsFailed), match=str(address)) as told,
    ):
        opens(address, tls, RemotingLimits())
    told.match(secured if with_tls else plain)


@each_way
def test_a_tls_port_that_is_spoken_to_without_tls_names_the_setting(
    files: Certificates, opens: Opens
) -> None:
    with (
        speaking_tls(files) as address,
        pytest.raises((HandshakeFailed, ConnectFailed), match=r"tls=rmq\.Tls"),
    ):
        opens(address, limits=RemotingLimits())


@each_way
def test_an_alert_of_tls_is_known_by_its_first_bytes(opens: Opens) -> None:
    alert = b"\x15\x03\x03\x00\x02\x02\x46"
    with (
        scripted(says(alert)) as address,
        pytest.raises(HandshakeFailed, match="it speaks TLS: connect with tls"),
    ):
        opens(address, limits=RemotingLimits())


@pytest.mark.parametrize("opens", [by_thread, by_loop])
@pytest.mark.parametrize("with_tls", [False, True])
def test_who_never_answers_costs_the_time_out_and_no_more(
    files: Certificates, with_tls: bool, opens: Opens
) -> None:
    tls = files.client()
    with scripted(is_silent) as address:
        watch = Stopwatch()
        with pytest.raises(ConnectFailed, match=f"{address}.*no answer to the handshake in time"):
            opens(address, tls if with_tls else None)
        assert watch.lived_s < 2


def asks_by_thread(
    address: Address, limits: RemotingLimits = LIMITS, timeout_ms: int = 20_000
) -> None:
    connection = Connection(address, None, limits, SYSTEM_CLOCK)
    try:
        for _ in range(2):
            connection.request(Command(RequestCode.GET_BROKER_CLUSTER_INFO), timeout_ms)
    finally:
        connection.close()


def asks_by_loop(
    address: Address, limits: RemotingLimits = LIMITS, timeout_ms: int = 20_000
) -> None:
    async def ask() -> None:
        connection = await AsyncConnection.open(address, None, limits, SYSTEM_CLOCK)
        try:
            for _ in range(2):
                await connection.request(Command(RequestCode.GET_BROKER_CLUSTER_INFO), timeout_ms)
        finally:
            await connection.close()

    asyncio.run(ask())


@pytest.mark.parametrize("asks", [asks_by_thread, asks_by_loop])
@pytest.mark.parametrize(
    ("script", "error", "text"),
    [
        (says(HTTP), ConnectionLost, "an HTTP server listens there"),
        (says(REDIS), ConnectionLost, "which says '-ERR', listens there"),
        (closes, ConnectionLost, "closed by the server"),
        (is_silent, RequestTimeout, "did not answer in time"),
    ],
    ids=["http", "redis", "closes at once", "silent"],
)
def test_without_a_secret_the_first_request_says_it(
    script: Callable[[socket.socket], None], error: type[Exception], text: str, asks: Opens
) -> None:
    with scripted(script) as address, pytest.raises(error, match=text) as told:
        asks(address, timeout_ms=300 if script is is_silent else 20_000)
    assert str(address) in str(told.value)


@pytest.mark.parametrize("asks", [asks_by_thread, asks_by_loop])
def test_who_was_met_before_is_no_other_program_and_the_size_is_told(asks: Opens) -> None:
    def script(sock: socket.socket) -> None:
        (size,) = struct.unpack(">i", sock.recv(4, socket.MSG_WAITALL))
        asked = decode(memoryview(sock.recv(size, socket.MSG_WAITALL)))
        sock.sendall(encode_bytes(asked.answer()))
        sock.recv(4096)
        sock.sendall(struct.pack(">i", 5_000_000) + b"x" * 64)

    limits = LIMITS.but(frame_bytes_max=1 << 20)
    with scripted(script) as address, pytest.raises(ConnectionLost, match="5000000 bytes") as told:
        asks(address, limits)
    assert "another program" not in str(told.value)


@each_way
@pytest.mark.parametrize("host", ["no-such-host.invalid", "a..b", "x" * 64])
def test_hosts_that_are_none_are_told(host: str, opens: Opens) -> None:
    with pytest.raises(ConnectFailed, match="cannot connect to"):
        opens(Address(host, 9876), limits=RemotingLimits())


def test_a_send_says_the_same_within_its_time_out() -> None:
    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), Http) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        address, watch = Address(*server.server_address), Stopwatch()
        with rmq.Producer(name_servers=str(address), secret=SECRET) as producer:
            with pytest.raises(rmq.SendError, match="an HTTP server listens there"):
                producer.send("orders", b"x", timeout=1)
            assert watch.lived_s < 3
        server.shutdown()
        thread.join()
