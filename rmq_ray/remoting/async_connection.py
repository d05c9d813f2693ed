"""One connection inside an event loop: the caller's loop sends, receives and waits; no thread.

Decides the same as ``connection`` (what a broken connection means for each request), for asyncio.
Called by ``AsyncProducer`` and by brokers. Invariants: everything runs in the loop that called
``open``; answers own their bytes; a cancelled request leaves nothing behind; frames of one turn of
the loop leave in one write; a peer that does not read ends the connection at ``unsent_bytes_max``.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import secrets
import ssl
from collections.abc import Callable
from typing import cast

from rmq_ray.clock import Clock
from rmq_ray.config import RemotingLimits, Tls
from rmq_ray.errors import (
    ConnectFailed,
    HandshakeFailed,
    MalformedFrame,
    RemotingError,
    RequestTimeout,
    TlsFailed,
    TooManyRequests,
)
from rmq_ray.model.ids import Address
from rmq_ray.remoting import handshake
from rmq_ray.remoting.answer_writer import AnswerWriter
from rmq_ray.remoting.answering import answer_to
from rmq_ray.remoting.handshake import ClientHandshake, Credentials
from rmq_ray.remoting.sockets import tune
from rmq_ray.remoting.tls import SCRATCH_BYTES, client_context
from rmq_ray.remoting.tls_transport import TlsTransport
from rmq_ray.remoting.waiting import lost, no_time_left, not_sent
from rmq_ray.remoting.wire.frame import FLAG_ONEWAY, FLAG_RESPONSE, Command, decode, encode
from rmq_ray.remoting.wire.frame_buffer import FrameBuffer

log = logging.getLogger("rmq_ray.remoting")

LENT_BYTES_MIN = 256 << 10
"""A shorter answer is copied out of the receive buffer; a longer one keeps it."""

RequestCallback = Callable[[Command, "AsyncConnection"], Command | None]
LostCallback = Callable[["AsyncConnection", RemotingError], None]


class AsyncConnection(asyncio.BufferedProtocol):
    """Made by ``open``. ``on_request`` answers the server's requests in the loop (None = no
    answer); ``on_lost`` is called once when the connection breaks, but not after ``close``.
    """

    def __init__(
        self,
        address: Address,
        limits: RemotingLimits,
        clock: Clock,
        on_request: RequestCallback | None,
        on_lost: LostCallback | None,
    ) -> None:
        self.address = address
        self._name = str(address)
        self._limits = limits
        self._clock = clock
        self._on_request = on_request
        self._on_lost = on_lost
        self._loop = asyncio.get_running_loop()
        self._buffer = FrameBuffer(limits.frame_bytes_max, eager=True)
        self._transport: asyncio.Transport | None = None
        self._writer: AnswerWriter | None = None
        self._waiting: dict[int, asyncio.Future[Command]] = {}
        self._opaque = itertools.count(1)
        self._flush_planned = False
        self._dead: str | None = None
        self._no_tls = ""
        self._met = False
        self._stranger = ""
        self._ready = False
        self._closed = self._loop.create_future()
        self._idle_check: asyncio.TimerHandle | None = None
        self._moved_ms = clock.monotonic_ms()

    @classmethod
    async def open(
        cls,
        address: Address,
        credentials: Credentials | None,
        limits: RemotingLimits,
        clock: Clock,
        on_request: RequestCallback | None = None,
        on_lost: LostCallback | None = None,
        tls: Tls | None = None,
    ) -> AsyncConnection:
        """Connect and prove. Raises ``ConnectFailed``, ``HandshakeFailed`` or ``TlsFailed``
        (nothing was sent), ``ConfigError`` for a file of ``tls``.
        """
        context = client_context(tls) if tls is not None else None
        loop = asyncio.get_running_loop()
        connection = cls(address, limits, clock, on_request, on_lost)
        try:
            async with asyncio.timeout(limits.connect_timeout_ms / 1000):
                await loop.create_connection(lambda: connection, address.host, address.port)
                if context is not None:
                    await connection._secure(context)
                if credentials is not None:
                    await connection._shake_hands(
                        ClientHandshake(credentials, secrets.token_bytes(handshake.NONCE_BYTES))
                    )
        except (OSError, TimeoutError, ValueError) as error:  # ValueError: a host that is no name
            connection._break(str(error))
            raise connection._not_ready(error) from None
        except HandshakeFailed as error:
            connection._break("handshake failed")
            raise HandshakeFailed(f"{address}: {error}", str(address)) from None
        except RemotingError as error:
            connection._break(str(error))
            raise connection._not_ready(error) from None
        except BaseException:
            connection._break("cancelled")
            raise
        connection._ready = True
        return connection

    @property
    def alive(self) -> bool:
        """Requests may be tried; False for good once the connection broke or was closed."""
        return self._dead is None

    async def request(self, command: Command, timeout_ms: float) -> Command:
        """Send and wait. Errors are those of ``Connection.request``; cancelling leaves the request
        perhaps processed.
        """
        if timeout_ms <= 0:
            raise no_time_left(self._name)
        if len(self._waiting) >= self._limits.unanswered_requests_max:
            raise TooManyRequests(
                f"{len(self._waiting)} requests to {self._name} are unanswered; nothing was sent",
                self._name,
            )
        opaque = next(self._opaque) & 0x7FFFFFFF
        self._send(command, opaque, command.flag)
        return await self._answer(opaque, timeout_ms)

    def oneway(self, command: Command) -> None:
        """Send without an answer. Raises ``ConnectFailed``, ``TooManyRequests``, ``FrameTooLarge``:
        nothing was sent.
        """
        self._send(command, next(self._opaque) & 0x7FFFFFFF, command.flag | FLAG_ONEWAY)

    def give_back(self, answer: Command) -> None:
        """Nobody reads in this answer's body any more: where it lay in a buffer of its own, later
        answers are received there.
        """
        body = answer.body
        if isinstance(body, memoryview) and isinstance(body.obj, bytearray):
            self._buffer.take_back(body.obj)

    async def close(self) -> None:
        """End the connection; what waits ends with ``ConnectionLost``."""
        self._on_lost = None
        self._flush()
        self._break("closed by this side", gently=True)
        if self._transport is not None:
            await asyncio.wait([self._closed], timeout=1.0)

    # --- sending ----------------------------------------------------------------------------------

    def _send(self, command: Command, opaque: int, flag: int) -> None:
        if self._dead is not None or self._writer is None or self._transport is None:
            raise not_sent(self._name, self._dead or "not connected")
        if self._transport.get_write_buffer_size() > self._limits.unsent_bytes_max:
            raise TooManyRequests(
                f"{self._name} does not read: {self._transport.get_write_buffer_size()} "
                f"bytes are unsent",
                self._name,
            )
        self._writer.add(encode(command, opaque, flag))
        if not self._flush_planned:
            self._flush_planned = True
            self._loop.call_soon(self._flush)

    def _flush(self) -> None:
        self._flush_planned = False
        if self._writer and self._dead is None:
            self._moved_ms = self._clock.monotonic_ms()
            self._writer.flush()

    async def _answer(self, opaque: int, timeout_ms: float) -> Command:
        future: asyncio.Future[Command] = self._loop.create_future()
        self._waiting[opaque] = future
        timer = self._loop.call_later(timeout_ms / 1000, self._expire, opaque)
        try:
            return await future
        finally:
            timer.cancel()
            self._waiting.pop(opaque, None)

    def _expire(self, opaque: int) -> None:
        future = self._waiting.pop(opaque, None)
        if future is not None and not future.done():
            future.set_exception(
                RequestTimeout(
                    f"{self._name} did not answer in time; the request may have been processed",
                    self._name,
                )
            )

    async def _secure(self, context: ssl.SSLContext) -> None:
        """All bytes go through TLS from now on."""
        assert self._transport is not None
        done: asyncio.Future[None] = self._loop.create_future()

        def ready() -> None:
            if not done.done():
                done.set_result(None)

        def failed(reason: str) -> None:
            self._no_tls = reason
            self._break(reason)
            if not done.done():
                done.set_exception(lost(self._name, reason))

        transport = TlsTransport(
            self._transport,
            self,
            context,
            memoryview(bytearray(SCRATCH_BYTES)),
            ready,
            failed,
            self.address.host,
        )
        self._transport, self._writer = transport, AnswerWriter(transport)
        transport.begin()
        await done

    async def _shake_hands(self, client: ClientHandshake) -> None:
        hello = client.hello()
        self._send(hello, hello.opaque, hello.flag)
        prove = client.prove(await self._answer(hello.opaque, self._limits.connect_timeout_ms))
        self._send(prove, prove.opaque, prove.flag)
        client.finish(await self._answer(prove.opaque, self._limits.connect_timeout_ms))

    def _not_ready(self, error: Exception) -> RemotingError:
        """What became of a connection that ended before anybody could use it."""
        address = self._name
        if self._no_tls:  # of TLS 1.3 the server's last word may come behind our HELLO
            return TlsFailed(f"no TLS with {address}: {self._no_tls}; nothing was sent", address)
        if self._stranger:
            return HandshakeFailed(
                f"{address}: no answer to a handshake; {self._stranger}", address
            )
        why: str | None = str(error) or type(error).__name__
        if self._transport is None:
            return ConnectFailed(f"cannot connect to {address}: {why}; nothing was sent", address)
        why = handshake.TOO_LATE if isinstance(error, TimeoutError) else self._dead or why
        return ConnectFailed(
            f"connection to {address} ended before it was ready: {why}; nothing was sent", address
        )

    # --- the end ----------------------------------------------------------------------------------

    def _break(self, reason: str, gently: bool = False) -> None:
        if self._dead is None:
            self._dead = reason
            if self._idle_check is not None:
                self._idle_check.cancel()
            if self._transport is not None:
                if gently:
                    self._transport.close()
                else:
                    self._transport.abort()
        waiting, self._waiting = self._waiting, {}
        for future in waiting.values():
            if not future.done():
                future.set_exception(lost(self._name, self._dead))

    def _look_around(self) -> None:
        """Every quarter of the idle time-out."""
        if self._dead is None:
            if (
                not self._waiting
                and self._clock.monotonic_ms() - self._moved_ms > self._limits.idle_timeout_ms
            ):
                self._break("idle")
            else:
                self._idle_check = self._loop.call_later(
                    self._limits.idle_timeout_ms / 4000, self._look_around
                )

    # --- asyncio ----------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Connected."""
        self._transport = cast(asyncio.Transport, transport)  # uvloop's are no subclass
        self._writer = AnswerWriter(self._transport)
        try:
            tune(transport.get_extra_info("socket"))
        except OSError as error:
            self._break(str(error))
            return
        self._look_around()

    def get_buffer(self, sizehint: int) -> memoryview:
        """Where the loop puts the next bytes."""
        return self._buffer.space()

    def buffer_updated(self, nbytes: int) -> None:
        """Hand out every whole frame."""
        self._buffer.filled(nbytes)
        self._moved_ms = self._clock.monotonic_ms()
        frame: memoryview | None = None
        try:
            while self._dead is None:
                frame = self._buffer.take()
                if frame is None:
                    break
                if len(frame) < LENT_BYTES_MIN:
                    self._deliver(decode(memoryview(bytes(frame))))
                else:
                    self._buffer.give_away()
                    self._deliver(decode(frame))
            self._buffer.settle()
        except MalformedFrame as error:
            said = str(error)
            if frame is None and not self._met:
                self._stranger = handshake.stranger(self._buffer.head)
                said = f"{self._name} sent no frame; {self._stranger}"
            log.warning("closing %s: %s", self._name, said)
            self._break(said)
        except Exception as error:  # a fault here would leave every caller waiting
            log.exception("the reader of %s failed", self._name)
            self._break(f"reader failed: {error!r}")

    def eof_received(self) -> None:
        """The server has closed its side; the transport closes itself."""

    def connection_lost(self, exc: Exception | None) -> None:
        """The end, whoever caused it."""
        told = self._on_lost if self._ready else None
        reason = str(exc) if exc is not None else "closed by the server"
        early = not self._ready and (exc is None or isinstance(exc, ConnectionError))
        self._break(handshake.CLOSED_EARLY if early else reason)
        if not self._closed.done():
            self._closed.set_result(None)
        if told is not None:
            try:
                told(self, lost(self._name, self._dead or "ended"))
            except Exception:  # the owner's fault; the connection is over anyway
                log.exception("on_lost of %s failed", self._name)

    def _deliver(self, command: Command) -> None:
        self._met = True
        if command.flag & FLAG_RESPONSE:
            future = self._waiting.pop(command.opaque, None)
            if future is not None and not future.done():
                future.set_result(command)
            return
        answer = answer_to(command, self, self._on_request, self._name, log)
        if answer is not None:
            try:
                self._send(answer, answer.opaque, answer.flag)
            except RemotingError as error:
                log.warning(
                    "request %d of %s stays unanswered: %s", command.code, self._name, error
                )
