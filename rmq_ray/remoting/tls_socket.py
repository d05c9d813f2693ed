"""TLS for a connection of threads: looks like the socket that it wraps.

    writer (holds Outbox.lock) --encrypt under the lock--> bytes --send, no lock--> socket
    reader --receive, no lock--> bytes --decrypt under the lock--> frames

``ssl.SSLSocket`` may not be read and written at the same time (its one OpenSSL object has no lock
in CPython 3.11), and a reader that waits for input would hold up every sender if it had one. So
OpenSSL works on memory here: its object is touched under ``_lock`` only, which nobody holds while
the kernel is asked for anything.

Called by ``connection``. Invariants: only the holder of ``Outbox.lock`` sends, so
records leave in the order in which they were made (what OpenSSL wants to say while it reads waits
in memory for the next send); what was encrypted is never encrypted again: a ``send`` that timed
out takes up where it stopped when it is called with the same bytes, as ``Outbox`` does.
"""

from __future__ import annotations

import socket
import ssl
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from rmq_ray.remoting.tls import explain
from rmq_ray.remoting.wire.frame import Buffer

SEALED_BYTES_MAX = 256 << 10
"""Encrypted at once: the peer decrypts one piece while the next one is made."""


@dataclass(frozen=True, slots=True)
class TlsFacts:
    """What a handshake agreed upon, and the server's certificate."""

    version: str
    cipher: str
    subject: str
    issuer: str
    hosts: tuple[str, ...]
    expires_ms: int


class TlsSocket:
    """Of a client. ``shake_hands`` before anything else."""

    def __init__(self, sock: socket.socket, context: ssl.SSLContext, host: str) -> None:
        self._sock = sock
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._tls = context.wrap_bio(self._incoming, self._outgoing, server_hostname=host)
        self._lock = threading.Lock()
        self._received = memoryview(bytearray(SEALED_BYTES_MAX))
        self._unsent = memoryview(b"")
        self._unsent_stands_for = 0

    def shake_hands(self, before_each_wait: Callable[[], None]) -> None:
        """Raises ``OSError``, ``ssl.SSLError`` among them. ``before_each_wait`` sets the socket's
        time-out.
        """
        while True:
            try:
                self._tls.do_handshake()
                done = True
            except ssl.SSLWantReadError:
                done = False
            except ssl.SSLError:
                self._sock.sendall(self._outgoing.read())  # the alert that says why
                raise
            before_each_wait()
            self._sock.sendall(self._outgoing.read())
            if done:
                return
            if not self._receive():
                raise ConnectionResetError(
                    "the server closed the connection in the TLS handshake; does its port speak TLS"
                )

    def facts(self) -> TlsFacts:
        """Of the connection that stands."""
        cipher = self._tls.cipher()
        certificate: dict[str, Any] = dict(self._tls.getpeercert() or {})
        return TlsFacts(
            self._tls.version() or "",
            cipher[0] if cipher else "",
            _common_name(certificate.get("subject")),
            _common_name(certificate.get("issuer")),
            tuple(str(name) for _, name in certificate.get("subjectAltName", ())),
            int(ssl.cert_time_to_seconds(str(certificate["notAfter"])) * 1000),
        )

    def await_refusal(self) -> None:
        """Raises ``OSError`` where the server ends the connection within half a second: of TLS 1.3
        it refuses a client's certificate behind the handshake.
        """
        try:
            if not self.recv(1):
                raise ConnectionResetError("the server closed the connection")
        except (TimeoutError, BlockingIOError):
            return

    # --- sending, under Outbox.lock ---------------------------------------------------------------

    def send(self, data: Buffer) -> int:
        """As ``socket.send``: how much of it has left; never a part of what was encrypted."""
        return self.sendmsg((data,))

    def sendmsg(self, buffers: Sequence[Buffer]) -> int:
        """As ``socket.sendmsg``. After ``BlockingIOError`` call it again with the same bytes."""
        if not self._unsent:
            self._seal(_first(buffers))
        while self._unsent:
            self._unsent = self._unsent[self._sock.send(self._unsent) :]
        return self._unsent_stands_for

    def sendall(self, data: Buffer) -> None:
        """All of it."""
        view = memoryview(data)
        while view:
            view = view[self.send(view) :]

    def _seal(self, data: Buffer) -> None:
        with self._lock:
            try:
                self._unsent_stands_for = self._tls.write(data) if len(data) else 0
            except ssl.SSLError as error:
                raise _told(error) from None
            self._unsent = memoryview(self._outgoing.read())

    # --- receiving, in one thread -----------------------------------------------------------------

    def recv_into(self, space: memoryview, _count: int = 0, _flags: int = 0) -> int:
        """As ``socket.recv_into``; 0 when the other end has closed, or was cut off: frames tell
        whether one is missing.
        """
        while True:
            count, over = self._open(space)
            if count or over or not self._receive():
                return count

    def recv(self, count: int) -> bytes:
        """As ``socket.recv``."""
        space = bytearray(count)
        return bytes(space[: self.recv_into(memoryview(space))])

    def _open(self, space: memoryview) -> tuple[int, bool]:
        """How much was decrypted, and whether no more will come."""
        count = 0
        with self._lock:
            try:
                # a read that finds nothing costs as much as one that finds a record
                while count < len(space) and (self._incoming.pending or self._tls.pending()):
                    got = self._tls.read(len(space) - count, space[count:])
                    if not got:
                        return count, True
                    count += int(got)
            except ssl.SSLWantReadError:
                pass
            except ssl.SSLError as error:
                raise _told(error) from None
        return count, False

    def _receive(self) -> bool:
        count = self._sock.recv_into(self._received)
        if count:
            with self._lock:
                self._incoming.write(self._received[:count])
        return count > 0

    # --- the socket itself ------------------------------------------------------------------------

    def settimeout(self, seconds: float | None) -> None:
        """As ``socket.settimeout``."""
        self._sock.settimeout(seconds)

    def shutdown(self, how: int) -> None:
        """As ``socket.shutdown``: wakes whoever waits."""
        self._sock.shutdown(how)

    def close(self) -> None:
        """As ``socket.close``."""
        self._sock.close()


Stream = socket.socket | TlsSocket
"""What a connection of threads sends and receives with."""


def _first(buffers: Sequence[Buffer]) -> Buffer:
    """As many of the first bytes as are encrypted at once, in one piece: each piece costs a
    record.
    """
    if len(buffers) == 1 and len(buffers[0]) <= SEALED_BYTES_MAX:
        return buffers[0]
    pieces: list[Buffer] = []
    room = SEALED_BYTES_MAX
    for buffer in buffers:
        if room <= 0:
            break
        pieces.append(memoryview(buffer)[:room])
        room -= len(pieces[-1])
    return pieces[0] if len(pieces) == 1 else b"".join(pieces)


def _common_name(name: Any) -> str:
    """Of a distinguished name as ``getpeercert`` gives it: relative names of (key, value)."""
    found = dict(pair for relative in name or () for pair in relative)
    return str(found.get("commonName") or found.get("organizationName") or "")


def _told(error: ssl.SSLError) -> ssl.SSLError:
    return ssl.SSLError(1, explain(error))
