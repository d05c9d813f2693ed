"""Opens one connection: TCP, then our handshake where there are credentials. Blocking, with one
time-out over all of it.

Called by ``connection``. Invariant: when it raises, no request has left, so repeating is safe:
``ConnectFailed`` (nobody there, too slow, the server is full), ``HandshakeFailed`` (wrong secret,
cluster, role, or another program's port).
"""

from __future__ import annotations

import secrets
import socket
import struct

from rmq_ray.clock import Clock
from rmq_ray.config import RemotingLimits
from rmq_ray.errors import ConnectFailed, HandshakeFailed, MalformedFrame
from rmq_ray.model.ids import Address
from rmq_ray.remoting import handshake
from rmq_ray.remoting.handshake import ClientHandshake, Credentials
from rmq_ray.remoting.sockets import limit_waits, tune
from rmq_ray.remoting.wire.frame import Command, decode, encode_bytes

SEND_STALL_MS = 1_000
RECEIVE_SLICE_MS = 500
"""How long a blocked send or receive of the open connection lasts before it looks around."""
_LENGTH = struct.Struct(">i")
_TOO_LATE = "no answer to the handshake in time; the server is overloaded or stopped"


def dial(
    address: Address, credentials: Credentials | None, limits: RemotingLimits, clock: Clock
) -> socket.socket:
    """A connected, proven socket whose sends and receives give up after a second and half a second
    without progress.
    """
    deadline = clock.monotonic_ms() + limits.connect_timeout_ms
    try:
        sock = socket.create_connection(
            (address.host, address.port), limits.connect_timeout_ms / 1000
        )
    except OSError as error:
        raise ConnectFailed(
            f"cannot connect to {address}: {error}; nothing was sent", str(address)
        ) from None
    try:
        if (
            sock.getsockname() == sock.getpeername()
        ):  # nobody listens on a port of the ephemeral range: TCP may meet itself there
            raise ConnectFailed(
                f"cannot connect to {address}: nobody listens there; nothing was sent", str(address)
            )
        tune(sock)
        if credentials is not None:
            _shake_hands(
                _Exchange(sock, deadline, clock),
                ClientHandshake(credentials, secrets.token_bytes(handshake.NONCE_BYTES)),
                address,
            )
        sock.settimeout(None)
        limit_waits(sock, SEND_STALL_MS, RECEIVE_SLICE_MS)
    except OSError as error:
        sock.close()
        raise ConnectFailed(
            f"connection to {address} ended before it was ready: "
            f"{error or type(error).__name__}; nothing was sent",
            str(address),
        ) from None
    except BaseException:
        sock.close()
        raise
    return sock


class _Exchange:
    """One frame out, one frame in, until a deadline."""

    def __init__(self, sock: socket.socket, deadline_ms: float, clock: Clock) -> None:
        self._sock = sock
        self._deadline_ms = deadline_ms
        self._clock = clock

    def ask(self, command: Command) -> Command:
        self._arm()
        self._sock.sendall(encode_bytes(command))
        (size,) = _LENGTH.unpack(self._receive(4))
        if not 0 < size <= handshake.FRAME_BYTES_MAX:
            raise MalformedFrame(f"an answer of {size} bytes to a handshake")
        return decode(memoryview(self._receive(size)))

    def _receive(self, count: int) -> bytes:
        found = b""
        while len(found) < count:
            self._arm()
            try:
                piece = self._sock.recv(count - len(found))
            except TimeoutError:
                raise TimeoutError(_TOO_LATE) from None
            if not piece:
                raise ConnectionResetError(
                    "the server closed the connection during the handshake; it may be full, "
                    "or no server of this kind"
                )
            found += piece
        return found

    def _arm(self) -> None:
        left_ms = self._deadline_ms - self._clock.monotonic_ms()
        if left_ms <= 0:
            raise TimeoutError(_TOO_LATE)
        self._sock.settimeout(left_ms / 1000)


def _shake_hands(exchange: _Exchange, client: ClientHandshake, address: Address) -> None:
    try:
        client.finish(exchange.ask(client.prove(exchange.ask(client.hello()))))
    except (MalformedFrame, HandshakeFailed) as error:
        raise HandshakeFailed(f"{address}: {error}", str(address)) from None
