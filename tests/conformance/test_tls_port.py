"""TLS on a listener's port, over real sockets: who gets in under which mode, that frames of all
sizes come through both ways at once, and what cut or wrong handshakes leave behind.
"""

from __future__ import annotations

import asyncio
import logging
import shutil
import socket
import ssl
import subprocess
import threading
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from rmq_ray.clock import SYSTEM_CLOCK
from rmq_ray.config import ClientAuth, ForeignClients, RemotingLimits, Tls, TlsMode, TlsSettings
from rmq_ray.errors import (
    ConfigError,
    ConnectFailed,
    ConnectionLost,
    HandshakeFailed,
    RemotingError,
    TlsFailed,
)
from rmq_ray.model.ids import Address
from rmq_ray.remoting.async_connection import AsyncConnection
from rmq_ray.remoting.connection import Connection
from rmq_ray.remoting.wire.frame import BINARY, Command, encode_bytes
from tests.support.certificates import Certificates
from tests.support.wire import (
    ASK_BACK,
    BIG,
    CREDENTIALS,
    ECHO,
    HOLD,
    RELEASE,
    Echo,
    RawClient,
    Served,
    eventually,
)

pytestmark = pytest.mark.timeout(120)
WAIT_MS = 30_000
LIMITS = RemotingLimits(connect_timeout_ms=20_000)
IMPATIENT = RemotingLimits(handshake_timeout_ms=300)


@pytest.fixture(name="files", scope="module")
def _files(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return Certificates(tmp_path_factory.mktemp("tls"))


@pytest.fixture(name="own")
def _own(tmp_path: Path) -> Certificates:
    """Certificates that a test may change."""
    return Certificates(tmp_path)


@pytest.fixture(name="served")
def _served(files: Certificates) -> Iterator[Served]:
    with Served(Echo(), tls=files.settings()) as served:
        yield served


def connect(address: Address, tls: Tls | None, **more: object) -> Connection:
    return Connection(address, CREDENTIALS, LIMITS, SYSTEM_CLOCK, tls=tls, **more)  # type: ignore[arg-type]


def echoed(connection: Connection, body: bytes = b"hello") -> bool:
    return connection.request(Command(ECHO, body=body), WAIT_MS).body_bytes() == body


async def echoed_async(address: Address, tls: Tls | None, body: bytes = b"hello") -> bool:
    connection = await AsyncConnection.open(address, CREDENTIALS, LIMITS, SYSTEM_CLOCK, tls=tls)
    try:
        return (await connection.request(Command(ECHO, body=body), WAIT_MS)).body_bytes() == body
    finally:
        await connection.close()


# --- modes ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("secured", [True, False])
@pytest.mark.parametrize("mode", TlsMode)
def test_each_mode_lets_in_whom_it_should(
    files: Certificates, mode: TlsMode, secured: bool
) -> None:
    tls = files.client() if secured else None
    welcome = {
        TlsMode.DISABLED: not secured,
        TlsMode.PERMISSIVE: True,
        TlsMode.ENFORCING: secured,
    }[mode]
    refusal = TlsFailed if secured else HandshakeFailed
    with Served(Echo(), tls=files.settings(mode)) as served:
        if welcome:
            connection = connect(served.address, tls)
            assert echoed(connection)
            connection.close()
            assert asyncio.run(echoed_async(served.address, tls))
        else:
            with pytest.raises(RemotingError) as threads:
                connect(served.address, tls)
            with pytest.raises(RemotingError) as loop:
                asyncio.run(echoed_async(served.address, tls))
            for caught in (threads, loop):
                assert isinstance(caught.value, refusal | ConnectFailed)
                assert "TLS" in str(caught.value)
            assert served.handler.seen == 0
        assert eventually(lambda: served.listener.connections == 0)


def test_an_enforcing_open_port_answers_plain_strangers_with_a_refusal(
    files: Certificates,
) -> None:
    with (
        Served(Echo(), ForeignClients.OPEN, tls=files.settings()) as served,
        RawClient(served.address) as client,
    ):
        answer = client.ask(Command(ECHO, 7))
        assert (answer.code, answer.opaque) == (16, 7) and "TLS" in str(answer.remark)
        assert client.ended() and served.handler.seen == 0


# --- traffic --------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [0, 1, 16_384, 65_536, 300_000, 15 << 20])
def test_frames_of_all_sizes_pass_both_ways(served: Served, files: Certificates, size: int) -> None:
    body = (b"0123456789abcdef" * (size // 16 + 1))[:size]
    connection = connect(served.address, files.client())
    assert echoed(connection, body)
    connection.close()
    assert asyncio.run(echoed_async(served.address, files.client(), body))


def test_many_threads_send_while_long_answers_arrive(served: Served, files: Certificates) -> None:
    connection = connect(served.address, files.client())
    wrong: list[object] = []

    def work(number: int) -> None:
        for turn in range(40):
            if number % 4 == 0:
                wanted = 100_000 + turn
                body = connection.request(Command(BIG, body=b"%d" % wanted), WAIT_MS).body_bytes()
                right = body == b"y" * wanted
            else:
                right = echoed(connection, bytes([number]) * (number * 5_000 + turn))
            if not right:
                wrong.append((number, turn))

    threads = [threading.Thread(target=work, args=(number,)) for number in range(12)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(100)
    assert wrong == [] and connection.alive
    connection.close()


def test_a_held_request_is_answered_and_the_server_may_ask_back(
    served: Served, files: Certificates
) -> None:
    found: list[object] = []
    connection = connect(
        served.address,
        files.client(),
        on_request=lambda command, _: command.answer(body=command.body_bytes()[::-1]),
    )
    connection.request_async(Command(HOLD, body=b"held"), WAIT_MS, found.append)
    assert echoed(connection) and found == []
    connection.request(Command(RELEASE), WAIT_MS)
    assert eventually(lambda: len(found) == 1, 20)
    assert isinstance(found[0], Command) and found[0].body_bytes() == b"held"
    answer = connection.request(Command(ASK_BACK, body=b"abc"), WAIT_MS)
    assert answer.body_bytes() == b"cba"
    connection.close()


def test_a_client_that_does_not_read_holds_up_only_itself(files: Certificates) -> None:
    limits = RemotingLimits(unsent_bytes_max=1 << 20)
    with (
        Served(Echo(), ForeignClients.OPEN, limits, tls=files.settings()) as served,
        _wrapped(served.address, files) as lazy,
    ):
        lazy.settimeout(0.5)
        frame = encode_bytes(Command(BIG, 1, body=b"1000000", serialize=BINARY))
        with pytest.raises(OSError):
            for _ in range(100_000):
                lazy.sendall(frame)
        assert echoed_and_closed(served.address, files.client())


# --- certificates ---------------------------------------------------------------------------------


def _refused(address: Address, tls: Tls) -> str:
    """What both kinds of client say."""
    with pytest.raises(TlsFailed, match="nothing was sent") as threads:
        connect(address, tls)
    with pytest.raises(TlsFailed, match="nothing was sent") as loop:
        asyncio.run(echoed_async(address, tls))
    assert str(address) in str(threads.value) and str(address) in str(loop.value)
    return f"{threads.value}\n{loop.value}"


def test_a_stranger_among_certificates_is_named(files: Certificates, own: Certificates) -> None:
    with Served(Echo(), tls=own.settings()) as served:
        told = _refused(served.address, files.client())
        assert told.count("did not sign its certificate") == 2
        assert served.handler.seen == 0


def test_a_certificate_of_another_host_is_refused_unless_that_is_wanted(own: Certificates) -> None:
    own.renew("elsewhere.example")
    with Served(Echo(), tls=own.settings()) as served:
        assert _refused(served.address, own.client()).count("check_host=False") == 2
        assert echoed_and_closed(served.address, Tls(own.ca, check_host=False))


def echoed_and_closed(address: Address, tls: Tls) -> bool:
    connection = connect(address, tls)
    try:
        return echoed(connection)
    finally:
        connection.close()


def test_an_expired_certificate_is_refused_by_the_server_that_would_show_it(
    own: Certificates,
) -> None:
    own.renew(days=-1)
    with pytest.raises(ConfigError, match="has expired"), Served(Echo(), tls=own.settings()):
        pass


def test_a_certificate_that_expired_meanwhile_is_named_by_clients(own: Certificates) -> None:
    own.renew(days=-1)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(own.server, own.server_key)
    with socket.create_server(("127.0.0.1", 0)) as listening:
        address = Address(*listening.getsockname())

        def serve() -> None:
            for _ in range(2):
                sock, _peer = listening.accept()
                with sock, pytest.raises(OSError), context.wrap_socket(sock, server_side=True):
                    pass

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        assert _refused(address, own.client()).count("its certificate has expired") == 2
        thread.join(10)


@pytest.mark.parametrize("asked", ClientAuth)
def test_client_certificates_are_asked_for_and_verified(
    files: Certificates, own: Certificates, asked: ClientAuth
) -> None:
    unknown = Tls(files.ca, *own.client_pair)
    with Served(Echo(), tls=files.settings(client_auth=asked)) as served:
        assert echoed_and_closed(served.address, files.client(known=True))
        if asked is ClientAuth.REQUIRE:
            told = _refused(served.address, files.client())
            assert told.count("requires a client certificate") == 2
        else:
            assert echoed_and_closed(served.address, files.client())
        if asked is ClientAuth.NONE:
            assert echoed_and_closed(served.address, unknown)
        else:
            assert _refused(served.address, unknown).count("our certificate") == 2


def test_new_files_are_taken_up_without_a_restart_and_broken_ones_are_told(
    own: Certificates, caplog: pytest.LogCaptureFixture
) -> None:
    with Served(Echo(), tls=own.settings()) as served:
        old = connect(served.address, own.client())
        tls = served.listener.tls
        assert tls is not None
        before = tls.status()["expires_ms"]
        Path(own.server).write_text("nonsense")
        assert eventually(lambda: "error" in tls.status(), 20)
        assert "no PEM file" in str(tls.status()["error"]) and "no PEM file" in caplog.text
        assert echoed_and_closed(served.address, own.client())
        own.renew(days=120)
        assert eventually(lambda: tls.status()["expires_ms"] != before, 20)
        assert eventually(lambda: "error" not in tls.status())
        assert echoed_and_closed(served.address, own.client()) and echoed(old)
        old.close()


# --- cut and wrong handshakes ---------------------------------------------------------------------


def _hello() -> bytes:
    outgoing = ssl.MemoryBIO()
    context = ssl.create_default_context()
    with pytest.raises(ssl.SSLWantReadError):
        context.wrap_bio(ssl.MemoryBIO(), outgoing, server_hostname="localhost").do_handshake()
    return outgoing.read()


def test_a_hello_cut_at_every_byte_leaves_nothing(
    served: Served, files: Certificates, caplog: pytest.LogCaptureFixture
) -> None:
    hello = _hello()
    caplog.set_level(logging.ERROR)
    for end in range(1, len(hello)):
        with socket.create_connection((served.address.host, served.address.port), 10) as sock:
            sock.sendall(hello[:end])
    for _ in range(200):
        with socket.create_connection((served.address.host, served.address.port), 10) as sock:
            sock.sendall(hello)
    assert eventually(lambda: served.listener.connections == 0, 30)
    assert echoed_and_closed(served.address, files.client())
    assert served.handler.closings[1:] == [] and caplog.records == []


def test_a_hello_may_come_byte_by_byte_and_half_of_one_is_closed_in_time(
    files: Certificates,
) -> None:
    hello = _hello()
    with (
        Served(Echo(), ForeignClients.OPEN, tls=files.settings()) as served,
        socket.create_connection((served.address.host, served.address.port), 30) as sock,
    ):
        for byte in hello:
            sock.sendall(bytes([byte]))
        assert sock.recv(1) == b"\x16"
    with (
        Served(Echo(), ForeignClients.OPEN, IMPATIENT, tls=files.settings()) as served,
        socket.create_connection((served.address.host, served.address.port), 30) as sock,
    ):
        sock.sendall(hello[:-1])
        assert sock.recv(1) == b""


@pytest.mark.parametrize(
    "rest", [b"\x03\x01\x00\x05hello", b"\xff" * 300, b"\x03\x01" + b"\0" * 40]
)
def test_what_only_begins_like_tls_is_closed(served: Served, rest: bytes) -> None:
    with socket.create_connection((served.address.host, served.address.port), 30) as sock:
        sock.sendall(b"\x16" + rest)
        while sock.recv(1_024):  # an alert at most
            pass
    assert served.handler.seen == 0


def test_a_connection_cut_in_the_middle_of_a_record_ends_its_requests(
    files: Certificates,
) -> None:
    with Served(Echo(), tls=files.settings()) as served, _Cut(served.address) as cut:
        connection = connect(cut.address, files.client())
        assert echoed(connection)
        cut.after(10_000)
        with pytest.raises(ConnectionLost):
            connection.request(Command(BIG, body=b"1000000"), WAIT_MS)
        assert not connection.alive
        assert eventually(lambda: served.listener.connections == 0, 20)


def test_a_record_that_was_changed_on_its_way_ends_the_connection(files: Certificates) -> None:
    with Served(Echo(), tls=files.settings()) as served, _Cut(served.address) as cut:
        connection = connect(cut.address, files.client())
        cut.spoil()
        with pytest.raises(ConnectionLost):
            connection.request(Command(BIG, body=b"100000"), WAIT_MS)
        assert not connection.alive


class _Cut:
    """A relay to one address; on demand it closes in the middle of an answer, or changes it."""

    def __init__(self, target: Address) -> None:
        self._target = target
        self._left: int | None = None
        self._spoil = False
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.address = Address(*self._listening.getsockname())
        self._socks: list[socket.socket] = []
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> _Cut:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._listening.close()
        for sock in self._socks:
            sock.close()

    def after(self, count: int) -> None:
        """Close when the server has sent so many more bytes."""
        self._left = count

    def spoil(self) -> None:
        """Change a bit of the next bytes."""
        self._spoil = True

    def _run(self) -> None:
        client, _ = self._listening.accept()
        server = socket.create_connection((self._target.host, self._target.port))
        self._socks += [client, server]
        threading.Thread(target=self._relay, args=(client, server, False), daemon=True).start()
        self._relay(server, client, True)

    def _relay(self, source: socket.socket, target: socket.socket, answers: bool) -> None:
        with suppress(OSError):
            while data := source.recv(4_096):
                if answers and self._left is not None:
                    data, self._left = data[: self._left], self._left - len(data)
                if answers and self._spoil:
                    data = data[:-1] + bytes([data[-1] ^ 1])
                target.sendall(data)
                if self._left is not None and self._left <= 0:
                    break
        for sock in (source, target):
            with suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)


# --- a scanner's view -----------------------------------------------------------------------------


def _wrapped(address: Address, files: Certificates, **versions: ssl.TLSVersion) -> ssl.SSLSocket:
    context = ssl.create_default_context(cafile=files.ca)
    for name, version in versions.items():
        setattr(context, name, version)
    sock = socket.create_connection((address.host, address.port), 20)
    try:
        return context.wrap_socket(sock, server_hostname=address.host)
    except BaseException:
        sock.close()
        raise


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
def test_new_versions_are_spoken_with_ciphers_that_keep_secrets(
    served: Served, files: Certificates, version: ssl.TLSVersion
) -> None:
    with _wrapped(served.address, files, minimum_version=version, maximum_version=version) as sock:
        name, _, bits = sock.cipher() or ("", "", 0)
        assert bits >= 128 and ("GCM" in name or "CHACHA20" in name)
        assert name.startswith(("ECDHE", "TLS_")) and sock.compression() is None


@pytest.mark.filterwarnings("ignore:ssl.TLSVersion.TLSv1_1 is deprecated")
@pytest.mark.parametrize(
    ("version", "ciphers"),
    [
        (ssl.TLSVersion.TLSv1_1, "DEFAULT@SECLEVEL=0"),
        (ssl.TLSVersion.TLSv1_2, "AES256-SHA256:AES128-SHA:kRSA"),
        (ssl.TLSVersion.TLSv1_2, "ECDHE+AES+SHA1"),
    ],
)
def test_old_versions_and_weak_ciphers_are_refused(
    served: Served, files: Certificates, version: ssl.TLSVersion, ciphers: str
) -> None:
    context = ssl.create_default_context(cafile=files.ca)
    context.set_ciphers(ciphers)
    context.minimum_version = context.maximum_version = version
    with (
        socket.create_connection((served.address.host, served.address.port), 20) as sock,
        pytest.raises(ssl.SSLError),
    ):
        context.wrap_socket(sock, server_hostname="127.0.0.1")


@pytest.mark.skipif(shutil.which("openssl") is None, reason="Python's TLS cannot ask for it")
def test_a_client_that_wants_to_renegotiate_is_refused_and_others_go_on(
    served: Served, files: Certificates
) -> None:
    """As scanners ask; TLS 1.3 has no renegotiation."""
    command = ["openssl", "s_client", "-tls1_2", "-CAfile", files.ca]
    told = []
    with subprocess.Popen(
        [*command, "-connect", str(served.address)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    ) as scanner:
        assert scanner.stdin is not None and scanner.stdout is not None
        limit = threading.Timer(60, scanner.kill)
        limit.start()
        for line in scanner.stdout:
            told.append(line.strip())
            if line.strip() == "Extended master secret: yes":  # the end of what it tells first
                scanner.stdin.write("R\n")
                scanner.stdin.flush()
        limit.cancel()
    assert "RENEGOTIATING" in told and any("no renegotiation" in line for line in told), told
    assert echoed_and_closed(served.address, files.client())


def test_settings_without_files_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="certificate"):
        TlsSettings(TlsMode.ENFORCING)
    with pytest.raises(ConfigError, match="ca"):
        TlsSettings(TlsMode.PERMISSIVE, certificate="x")
    missing = TlsSettings(TlsMode.ENFORCING, str(tmp_path / "no.pem"), ca="no")
    with pytest.raises(ConfigError, match="cannot be read"), Served(Echo(), tls=missing):
        pass
