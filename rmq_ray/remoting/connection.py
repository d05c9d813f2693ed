"""One connection that any thread may use: a request is written by its caller, answers are matched
by opaque.

    callers - Outbox (combined writes) -> socket
    socket -> reader thread --- WaitingTable ---> lock of the caller, or callback
                           \\--- the server's own requests ---> on_request, answer written back

Decides when the connection is dead and what that means for each request: not sent, or perhaps
processed. Does not decide about retries. Called by ``pool``, scan readers and tests; the wire is
``frame``'s, opening is ``dial``'s. Invariants: every wait has a limit and is cut into slices of
half a second (Ctrl-C and ``ray.cancel`` reach a thread only between them); a dying reader fails
everything that waits; a process made by fork never touches its parent's connection; nothing is
raised for a response code.

``dial`` opens one: TCP, then TLS where it is asked for, then our handshake where there are
credentials. Blocking, with one time-out over all of it. Invariant: when it raises, no request has
left, so repeating is safe: ``ConnectFailed`` (nobody there, too slow, the server is full),
``HandshakeFailed`` (wrong secret, cluster, role, or another program's port), ``TlsFailed`` (a
certificate), ``ConfigError`` (a file of ``tls``).
"""

from __future__ import annotations

import logging
import os
import secrets
import socket
import struct
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING

from rmq_ray.clock import Clock
from rmq_ray.config import RemotingLimits, Tls
from rmq_ray.errors import (
    ClientError,
    ConnectFailed,
    HandshakeFailed,
    MalformedFrame,
    RemotingError,
    RequestTimeout,
    TlsFailed,
)
from rmq_ray.model.ids import Address
from rmq_ray.remoting import handshake
from rmq_ray.remoting.answering import answer_to
from rmq_ray.remoting.handler import AnswerCallback
from rmq_ray.remoting.handshake import ClientHandshake, Credentials
from rmq_ray.remoting.outbox import STALLS_MAX, Outbox
from rmq_ray.remoting.sockets import limit_waits, tune
from rmq_ray.remoting.waiting import (
    Waiter,
    WaitingTable,
    discard_thread_waiter,
    lost,
    no_time_left,
    not_sent,
    thread_waiter,
)
from rmq_ray.remoting.wire.frame import (
    FLAG_ONEWAY,
    FLAG_RESPONSE,
    FRAME_BYTES_MIN,
    Command,
    decode,
    encode,
    encode_bytes,
)

if TYPE_CHECKING:
    from rmq_ray.remoting.tls_socket import Stream, TlsSocket


SEND_STALL_MS = 1_000
RECEIVE_SLICE_MS = 500
"""How long a blocked send or receive of the open connection lasts before it looks around."""
log = logging.getLogger("rmq_ray.remoting")
SLICE_MS = 500
SILENT_SLICES = (
    3  # so many without a byte, and requests wait: the owner is told, and again after as many
)
READ_BYTES = 64 << 10
_LENGTH = struct.Struct(">i")
_CLOSE_WAIT_S = 5.0
RequestCallback = Callable[[Command, "Connection"], Command | None]
LostCallback = Callable[["Connection", RemotingError], None]
SilentCallback = Callable[["Connection"], None]


def dial(
    address: Address,
    credentials: Credentials | None,
    limits: RemotingLimits,
    clock: Clock,
    tls: Tls | None = None,
) -> Stream:
    """A connected, proven socket whose sends and receives give up after a second and half a second
    without progress.
    """
    secure = None if tls is None else _secure_with(tls)
    deadline = clock.monotonic_ms() + limits.connect_timeout_ms
    try:
        sock = socket.create_connection(
            (address.host, address.port), limits.connect_timeout_ms / 1000
        )
    except (OSError, ValueError) as error:  # ValueError: a host that can be no name
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
        stream: Stream = sock
        if secure is not None:
            stream = secured = secure(sock, address.host)
            secured.shake_hands(_Exchange(sock, deadline, clock).arm)
        if credentials is not None:
            _shake_hands(
                _Exchange(stream, deadline, clock),
                ClientHandshake(credentials, secrets.token_bytes(handshake.NONCE_BYTES)),
                address,
            )
        sock.settimeout(None)
        limit_waits(sock, SEND_STALL_MS, RECEIVE_SLICE_MS)
    except OSError as error:
        sock.close()
        raise _not_ready(address, error, secure is not None) from None
    except BaseException:
        sock.close()
        raise
    return stream


def _secure_with(tls: Tls) -> Callable[[socket.socket, str], TlsSocket]:
    """Makes TLS of a socket to a host. OpenSSL is loaded by those who speak it."""
    from rmq_ray.remoting.tls import client_context
    from rmq_ray.remoting.tls_socket import TlsSocket

    context = client_context(tls)
    return lambda sock, host: TlsSocket(sock, context, host)


def _not_ready(address: Address, error: OSError, secure: bool) -> RemotingError:
    """What became of a connection that stood and ended before anybody could use it."""
    if secure:
        import ssl

        from rmq_ray.remoting.tls import explain

        if isinstance(error, ssl.SSLError):
            return TlsFailed(
                f"no TLS with {address}: {explain(error)}; nothing was sent", str(address)
            )
    why = (
        handshake.TOO_LATE
        if isinstance(error, TimeoutError)
        else str(error) or type(error).__name__
    )
    return ConnectFailed(
        f"connection to {address} ended before it was ready: {why}; nothing was sent", str(address)
    )


class _Exchange:
    """One frame out, one frame in, until a deadline."""

    def __init__(self, sock: Stream, deadline_ms: float, clock: Clock) -> None:
        self._sock = sock
        self._deadline_ms = deadline_ms
        self._clock = clock

    def ask(self, command: Command) -> Command:
        self.arm()
        try:
            self._sock.sendall(encode_bytes(command))
            first = self._receive(4)
        except ConnectionError:
            raise ConnectionResetError(handshake.CLOSED_EARLY) from None
        (size,) = _LENGTH.unpack(first)
        if not 0 < size <= handshake.FRAME_BYTES_MAX:
            raise MalformedFrame(f"no answer to a handshake; {handshake.stranger(first)}")
        return decode(memoryview(self._receive(size)))

    def _receive(self, count: int) -> bytes:
        found = b""
        while len(found) < count:
            self.arm()
            piece = self._sock.recv(count - len(found))
            if not piece:
                raise ConnectionResetError(handshake.CLOSED_EARLY)
            found += piece
        return found

    def arm(self) -> None:
        """Wait no longer than the deadline. ``TimeoutError`` where it has passed."""
        left_ms = self._deadline_ms - self._clock.monotonic_ms()
        if left_ms <= 0:
            raise TimeoutError
        self._sock.settimeout(left_ms / 1000)


def _shake_hands(exchange: _Exchange, client: ClientHandshake, address: Address) -> None:
    try:
        client.finish(exchange.ask(client.prove(exchange.ask(client.hello()))))
    except (MalformedFrame, HandshakeFailed) as error:
        raise HandshakeFailed(f"{address}: {error}", str(address)) from None


class Connection:
    """Connects in the constructor: raises ``ConnectFailed`` or ``HandshakeFailed`` (nothing was
    sent).

    ``credentials`` None: no handshake, for open ports. ``tls`` None: plain.
    ``on_request(command, connection)`` answers the server's requests in the reader thread (None =
    no answer) and must be quick; ``on_lost(connection, error)`` is called once when the connection
    breaks, but not after ``close``; ``on_silent(connection)`` every 1.5 s while requests wait and
    nothing comes. Close it: its reader thread keeps it alive. A thread of the process that
    computes without end delays every answer by up to ``sys.getswitchinterval()`` (5 ms) each way.
    """

    def __init__(
        self,
        address: Address,
        credentials: Credentials | None,
        limits: RemotingLimits,
        clock: Clock,
        on_request: RequestCallback | None = None,
        on_lost: LostCallback | None = None,
        on_silent: SilentCallback | None = None,
        tls: Tls | None = None,
    ) -> None:
        self.address = address
        self._name = str(address)
        self._limits = limits
        self._clock = clock
        self._on_request = on_request
        self._on_lost = on_lost
        self._on_silent = on_silent
        self._silent = 0
        self._pid = os.getpid()
        self._dead: str | None = None
        self._closed_here = False
        self._death = threading.Lock()
        self._sock = dial(address, credentials, limits, clock, tls)
        self._proven = credentials is not None
        self._waiting = WaitingTable(limits.unanswered_requests_max, self._name)
        self._outbox = Outbox(self._sock, limits.unsent_bytes_max, self._name, self._break)
        self._heard_ms = clock.monotonic_ms()
        self._reader = threading.Thread(
            target=self._run, name=f"rmq-reader-{self._name}", daemon=True
        )
        self._reader.start()

    def __repr__(self) -> str:
        return f"<Connection to {self._name}{'' if self.alive else ', dead'}>"

    @property
    def alive(self) -> bool:
        """Requests may be tried; False for good once the connection broke, was closed, or the
        process was forked.
        """
        return self._dead is None and self._pid == os.getpid()

    def request(self, command: Command, timeout_ms: float) -> Command:
        """Send and wait for the answer; its body may be kept. The command itself is not changed.

        Raises ``ConnectFailed``, ``TooManyRequests`` or ``FrameTooLarge`` (nothing was sent),
        ``ConnectionLost`` or ``RequestTimeout`` (may have been processed), ``ClientError`` in the
        reader's own thread, which would wait for itself.
        """
        if threading.get_ident() == self._reader.ident:
            raise ClientError(
                "a callback of a connection waits for an answer on the same connection; use "
                "request_async there"
            )
        opaque = self._next_opaque(timeout_ms)
        parts = encode(command, opaque)
        waiter = thread_waiter()
        try:
            self._submit(opaque, parts, waiter, timeout_ms)
            first_ms = timeout_ms if timeout_ms < SLICE_MS else SLICE_MS
            if not waiter.lock.acquire(timeout=first_ms / 1000):
                self._wait(opaque, waiter, self._clock.monotonic_ms() + timeout_ms - first_ms)
            outcome = waiter.outcome
        except RemotingError:
            raise
        except BaseException:
            self._waiting.take(opaque)
            discard_thread_waiter()
            raise
        finally:
            waiter.busy = False
            waiter.outcome = None
        if isinstance(outcome, Command):
            return outcome
        assert outcome is not None
        raise outcome

    def request_async(self, command: Command, timeout_ms: float, callback: AnswerCallback) -> None:
        """Send; ``callback`` gets the answer or a ``RemotingError``, once, in the reader's or a
        failing writer's thread: be quick.

        Time-outs are noticed within half a second. Raises like ``request`` when nothing was sent;
        then the callback is not called. Buffers of the body must stay unchanged until the callback.
        """
        opaque = self._next_opaque(timeout_ms)
        parts = encode(command, opaque)
        waiter = Waiter(callback, self._clock.monotonic_ms() + timeout_ms)
        self._submit(opaque, parts, waiter, timeout_ms)

    def oneway(self, command: Command) -> None:
        """Send without an answer. Raises like ``request``, but never ``RequestTimeout``; no error
        does not mean processed.
        """
        parts = encode(command, self._next_opaque(), command.flag | FLAG_ONEWAY)
        self._outbox.put(parts, None)
        if self._dead is not None:
            raise lost(self._name, self._dead)

    def answer(self, command: Command) -> None:
        """The answer to a request of the server that took longer; nothing when the connection is
        dead.
        """
        if self.alive:
            self._outbox.put(encode(command), None)

    def close(self) -> None:
        """End the connection; what waits ends with ``ConnectionLost``. In a forked child only the
        child's copy goes.
        """
        if self._pid != os.getpid():
            self._sock.close()
            return
        self._closed_here = True
        self._break("closed by this side")

    # --- sending ----------------------------------------------------------------------------------

    def _next_opaque(self, timeout_ms: float = 1.0) -> int:
        if timeout_ms <= 0:
            raise no_time_left(self._name)
        if self._pid != os.getpid():
            raise not_sent(
                self._name, "it belongs to the parent process; open a new one after a fork"
            )
        if self._dead is not None:
            raise not_sent(self._name, self._dead)
        return self._waiting.next_opaque()

    def _submit(
        self,
        opaque: int,
        parts: list[bytes | bytearray | memoryview],
        waiter: Waiter,
        timeout_ms: float,
    ) -> None:
        self._waiting.put(opaque, waiter)
        if self._dead is not None:  # registered after the last look of whoever broke the connection
            self._waiting.fail_all(self._dead)
        try:
            self._outbox.put(parts, waiter, min(STALLS_MAX, 1 + int(timeout_ms) // SEND_STALL_MS))
        except RemotingError:
            if self._waiting.take(opaque) is not None:
                self._waiting.settle_timed(opaque)
                raise

    def _wait(self, opaque: int, waiter: Waiter, deadline: float) -> None:
        while True:
            left_s = (deadline - self._clock.monotonic_ms()) / 1000
            if left_s <= 0:
                break
            if waiter.lock.acquire(timeout=min(SLICE_MS / 1000, left_s)):
                return
        if (
            self._waiting.take(opaque) is not None
        ):  # nobody else can release the lock any more: it may be used again
            raise RequestTimeout(
                f"{self._name} did not answer in time; the request may have been processed",
                self._name,
            )
        if not waiter.hand_over():  # the reader has the answer in hand
            discard_thread_waiter()
            raise RequestTimeout(
                f"the answer of {self._name} was lost inside this process", self._name
            )

    # --- the end ----------------------------------------------------------------------------------

    def _break(self, reason: str) -> None:
        """Dead from here on: nothing more leaves, everything that waits ends. Any thread, any
        number of times.
        """
        with self._death:
            first = self._dead is None
            if first:
                self._dead = reason
        self._outbox.closed = True
        if first:
            try:
                self._sock.shutdown(socket.SHUT_RDWR)  # wakes the reader and a blocked writer
            except OSError:
                log.debug("%s was gone already", self._name)
        self._waiting.fail_all(self._dead or reason)
        self._outbox.clear()

    def _run(self) -> None:
        try:
            self._read()
        except (OSError, MalformedFrame) as error:
            self._break(str(error) or type(error).__name__)
        except BaseException as error:
            log.exception("the reader of %s failed", self._name)
            self._break(f"reader failed: {error!r}")
        if self._outbox.lock.acquire(
            timeout=_CLOSE_WAIT_S
        ):  # a number of a closed socket may belong to another one: no writer may be inside
            self._sock.close()
            self._outbox.lock.release()
        if self._on_lost is not None and not self._closed_here:
            try:
                self._on_lost(self, lost(self._name, self._dead or "ended"))
            except Exception:  # the owner's fault; the connection is over anyway
                log.exception("on_lost of %s failed", self._name)

    # --- receiving --------------------------------------------------------------------------------

    def _read(self) -> None:
        buffer = bytearray(READ_BYTES)
        view = memoryview(buffer)
        end, met = 0, self._proven
        while True:
            end += self._receive(view[end:])
            start = 0
            while end - start >= 4:
                (size,) = _LENGTH.unpack_from(buffer, start)
                if not FRAME_BYTES_MIN <= size <= self._limits.frame_bytes_max:
                    said = handshake.no_frame(
                        bytes(view[start : start + 4]), self._limits.frame_bytes_max, met
                    )
                    raise MalformedFrame(f"{self._name} {said}", self._name)
                stop = start + 4 + size
                if stop > end:
                    break
                self._deliver(memoryview(bytes(view[start + 4 : stop])))
                start, met = stop, True
            if start < end and end - start >= 4 and 4 + size > READ_BYTES:
                self._deliver(self._receive_long(size, view[start + 4 : end]))
                start, met = end, True
            if start:
                view[: end - start] = view[start:end]
                end -= start
            if self._waiting.timed:
                self._waiting.expire(self._clock.monotonic_ms())

    def _receive(self, space: memoryview, flags: int = 0) -> int:
        """At least one byte. Looks after time-outs while nothing comes; raises ``OSError`` when the
        connection has ended.

        With ``MSG_WAITALL`` all of it in one system call unless it takes long: each call gives the
        GIL away for up to 5 ms.
        """
        while True:
            try:
                count = self._sock.recv_into(space, 0, flags)
            except BlockingIOError:
                self._look_around()
                continue
            if not count:
                raise ConnectionResetError(self._dead or "closed by the server")
            self._heard_ms = 0.0
            return count

    def _receive_long(self, size: int, first: memoryview) -> memoryview:
        """A frame longer than the buffer gets one of its own, so that its body needs no copy."""
        frame = memoryview(bytearray(size))
        at = len(first)
        frame[:at] = first
        while at < size:
            at += self._receive(frame[at:], socket.MSG_WAITALL)
        return frame

    def _look_around(self) -> None:
        now_ms = self._clock.monotonic_ms()
        self._waiting.expire(now_ms)
        self._silent = self._silent + 1 if self._heard_ms and len(self._waiting) else 0
        if self._on_silent is not None and self._silent and self._silent % SILENT_SLICES == 0:
            self._on_silent(self)
        if self._heard_ms == 0.0 or self._outbox.active or len(self._waiting):
            self._heard_ms, self._outbox.active = now_ms, False
        elif now_ms - self._heard_ms > self._limits.idle_timeout_ms:
            raise ConnectionResetError("idle")
        if self._dead is not None:
            raise ConnectionResetError(self._dead)

    def _deliver(self, frame: memoryview) -> None:
        command = decode(frame)
        if not command.flag & FLAG_RESPONSE:
            self._serve(command)
            return
        waiter = self._waiting.take(command.opaque)
        if waiter is None:
            log.debug("an answer of %s came too late or was never asked for", self._name)
            return
        if waiter.callback is None:
            waiter.outcome = command
            waiter.lock.release()
        else:
            self._waiting.settle_timed(command.opaque)
            waiter.resolve(command)

    def _serve(self, command: Command) -> None:
        answer = answer_to(command, self, self._on_request, self._name, log)
        if answer is not None:
            try:
                self._outbox.put(encode(answer), None)
            except RemotingError as error:
                log.warning(
                    "request %d of %s stays unanswered: %s", command.code, self._name, error
                )
