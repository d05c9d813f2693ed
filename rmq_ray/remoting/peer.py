"""The server's end of one connection: cuts frames, checks who speaks, hands requests to the
handler, writes answers.

    FIRST --HELLO--> PROVING --PROVE--> TRUSTED  a stranger on an open port: FIRST --> FOREIGN
    FIRST --TLS--> SECURING --> FIRST, once
      |                 |                        a fault at any point: closed, with a reason, and
                                                 nothing else is touched
      +--- closed port, not HELLO: dropped

Decides when reading pauses (answers not read: 1 MiB; unanswered request bytes:
``unsent_bytes_max``) and when a peer that does not read is closed. Does not decide what a request
means. Made by ``Listener``; everything runs in its event loop. Invariants: one answer a request at
most; the answers of one loop turn leave in one write, or two when they answer earlier requests; a
handler's exception ends neither the loop nor the connection; what was handed over to ``send`` is
never aliased with the receive buffer.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import secrets
from collections.abc import Sequence
from dataclasses import replace
from enum import Enum
from typing import Any, cast

from rmq_ray.config import ForeignClients
from rmq_ray.errors import (
    ConnectionLost,
    MalformedFrame,
    NotAuthorized,
    RemotingError,
    RequestTimeout,
    RmqError,
    TooManyRequests,
)
from rmq_ray.remoting import handshake
from rmq_ray.remoting.answer_writer import AnswerWriter
from rmq_ray.remoting.handler import AnswerCallback, Answered, Owner
from rmq_ray.remoting.handshake import AccountKey, ServerHandshake, ServerState
from rmq_ray.remoting.sockets import tune
from rmq_ray.remoting.tls_transport import TlsTransport
from rmq_ray.remoting.wire.codes import RequestCode, ResponseCode
from rmq_ray.remoting.wire.frame import FLAG_ONEWAY, FLAG_RESPONSE, Command, decode, encode
from rmq_ray.remoting.wire.frame_buffer import FrameBuffer

log = logging.getLogger("rmq_ray.remoting")

GATHERED = frozenset((int(RequestCode.SEND_MESSAGE), int(RequestCode.SEND_MESSAGE_V2)))
"""Single sends: those of one read are handed over together."""
WRITE_HIGH_BYTES = 1 << 20
"""Unread answers above this stop the reading of further requests."""
DEFERRED_MS_MAX = 180_000
"""A request that was never answered (RocketMQ leaves some so) is forgotten after this; pulls are
held 120 s at most.
"""


class Stage(Enum):
    """How far this connection has come."""

    FIRST = 1
    PROVING = 2
    TRUSTED = 3
    FOREIGN = 4
    SECURING = 5


class ServerPeer(asyncio.BufferedProtocol):
    """One connection; implements ``ports.Peer``."""

    def __init__(self, owner: Owner) -> None:
        limits = owner.limits
        open_port = owner.foreign is not ForeignClients.CLOSED
        self.host, self.port = "?", 0
        self.closed = False
        self.trusted = self.member = False
        self.account = ""
        self.hung_up = False
        self.attributes: dict[str, Any] = {}
        self.stage = Stage.FIRST
        self.opened_ms = self.heard_ms = owner.monotonic_ms()
        self.active = False
        """Something moved since the last scan."""
        self._owner = owner
        self._observe: Answered | None = getattr(owner.handler, "answered", None)
        self._handle_sends = getattr(owner.handler, "handle_sends", None)
        self._poll = owner.busy_poll
        self._limits = limits
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport | None = None
        self._buffer = FrameBuffer(
            limits.frame_bytes_max
            if open_port
            else min(limits.frame_bytes_max, handshake.FRAME_BYTES_MAX),
            eager=False,
        )
        self._handshake: ServerHandshake | None = None
        self._proved = b""
        self._writer: AnswerWriter | None = None
        self._in_turn = False
        self._flush_planned = False
        self._unread = False
        self._deferred: dict[int, tuple[int, float, int]] = {}
        """Opaque -> (bytes, since, request code)."""
        self._deferred_bytes = 0
        self._answered_early: dict[int, int] = {}
        """Opaque -> code of what was answered within ``handle``."""
        self._asked: dict[int, tuple[AnswerCallback, float]] = {}
        self._opaque = itertools.count(1)
        self._admitted = False
        self.secured = False
        """Its bytes come through TLS."""

    def __repr__(self) -> str:
        return f"{self.host}:{self.port}"

    # --- what handlers use ------------------------------------------------------------------------

    def send(self, command: Command) -> None:
        """Write one whole frame: at once, or behind others of the same turn of the loop at its end.
        Nothing happens when the connection is closed.

        For answers that were not ready in ``handle``, and for oneway requests of the server. Only
        in the listener's loop.
        """
        if self.closed:
            return
        if command.flag & FLAG_RESPONSE:
            self._settle_deferred(command.opaque, command.code)
        self._write(command)
        if not self._in_turn and not self._flush_planned:
            self._flush()
            self._flush_planned = True  # more may follow
            self._loop.call_soon(self._flush_later)

    def request(self, command: Command, timeout_ms: float, callback: AnswerCallback) -> None:
        """Ask the client; ``callback`` gets its answer, or a ``RemotingError`` within
        ``timeout_ms`` and one second.

        Raises ``TooManyRequests`` and ``ConnectionLost`` at once when nothing can be sent.
        """
        if self.closed:
            raise ConnectionLost(f"{self} is closed; nothing was sent", str(self))
        if len(self._asked) >= self._limits.unanswered_requests_max:
            raise TooManyRequests(f"{self} has {len(self._asked)} unanswered requests", str(self))
        opaque = next(self._opaque) & 0x7FFFFFFF
        self._asked[opaque] = (callback, self._owner.monotonic_ms() + timeout_ms)
        self.send(replace(command, opaque=opaque))

    def close(self, reason: str) -> None:
        """Write what is ready, then close; ``handler.closed`` follows."""
        if self.closed:
            return
        self._flush()
        self.closed = True
        log.debug("closing %s: %s", self, reason)
        if self._transport is not None:
            self._transport.close()

    def abort(self, reason: str) -> None:
        """Close without waiting for the peer to read."""
        self.closed = True
        log.debug("aborting %s: %s", self, reason)
        if self._writer is not None:
            self._writer.clear()
        if self._transport is not None:
            self._transport.abort()

    # --- what the listener's scan uses ------------------------------------------------------------

    def outdated(self, account_key: AccountKey) -> bool:
        """Whether its account has another secret since it proved the old one. Of an account that
        is gone each request is refused, in words that a closed connection has not.
        """
        if not self.trusted or not self.account:
            return False
        return account_key(self.account) not in (None, self._proved)

    def expire(self, now_ms: float) -> None:
        """Drop what waited too long: unanswered requests to the client, requests that were never
        answered.
        """
        for opaque, (callback, deadline) in list(self._asked.items()):
            if deadline <= now_ms:
                del self._asked[opaque]
                self._call_back(
                    callback, RequestTimeout(f"{self} did not answer in time", str(self))
                )
        for opaque, (_, since, _) in list(itertools.islice(self._deferred.items(), 1_000)):
            if now_ms - since < DEFERRED_MS_MAX:
                break
            self._settle_deferred(opaque)

    def release_memory(self) -> None:
        """Called when the connection was idle for a while."""
        self._buffer.shrink()

    # --- asyncio ----------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Accepted by the kernel; refused when there are too many."""
        self._transport = cast(asyncio.Transport, transport)  # uvloop's are no subclass
        self._writer = AnswerWriter(self._transport)
        address = transport.get_extra_info("peername")
        if address:
            self.host, self.port = str(address[0]), int(address[1])
        if not self._owner.admit(self):
            self.abort("too many connections")
            return
        self._admitted = True
        try:
            tune(transport.get_extra_info("socket"))
        except OSError:
            self.abort("the connection had ended before it was accepted")
            return
        self._transport.set_write_buffer_limits(high=WRITE_HIGH_BYTES)

    def get_buffer(self, sizehint: int) -> memoryview:
        """Where the loop puts the next bytes."""
        return self._buffer.space()

    def buffer_updated(self, nbytes: int) -> None:
        """Serve every whole frame that has arrived."""
        poll = self._poll
        begun_ms = poll.now_ms() if poll is not None else 0.0
        buffer = self._buffer
        buffer.filled(nbytes)
        self.active = self._in_turn = True
        try:
            self._serve_frames()
        except MalformedFrame as error:
            if self._may_be_secured():
                self._secure()
            else:
                self._fault(str(error))
        except Exception as error:  # noqa: BLE001
            self._fault("unexpected fault", error)
        finally:
            self._in_turn = False
        if not self.closed:
            if self._writer:
                self._flush()
            self._answered_early.clear()
            buffer.settle()
        if poll is not None:
            poll.served(begun_ms, poll.now_ms())

    def eof_received(self) -> None:
        """The client will send nothing more; the transport closes itself."""
        self.hung_up = not self.closed

    def pause_writing(self) -> None:
        """The client does not read: read no further requests."""
        self._unread = True
        self._adjust_reading()

    def resume_writing(self) -> None:
        """The client reads again."""
        self._unread = False
        self.active = True
        self._adjust_reading()

    def connection_lost(self, exc: Exception | None) -> None:
        """The end, whoever caused it."""
        if not self.closed and isinstance(exc, ConnectionResetError | BrokenPipeError):
            self.hung_up = True
        self.closed = True
        if not self._admitted:
            return
        self._owner.forget(self)
        asked, self._asked = self._asked, {}
        for callback, _ in asked.values():
            self._call_back(
                callback,
                ConnectionLost(f"{self} closed the connection before it answered", str(self)),
            )
        if self.stage in (Stage.TRUSTED, Stage.FOREIGN):
            try:
                self._owner.handler.closed(self)
            except Exception as error:  # noqa: BLE001 - the handler's fault must not reach the loop
                self._owner.complain(self, "the handler failed at the end of a connection", error)

    # --- requests ---------------------------------------------------------------------------------

    def _serve_frames(self) -> None:
        """Every whole frame, in their order; those before a malformed one, too."""
        sends: list[tuple[Command, int]] = []
        try:
            while not self.closed:
                frame = self._buffer.take()
                if frame is None:
                    break
                command = decode(frame)
                if command.code in GATHERED and self._gathers(command):
                    sends.append((command, len(frame)))
                    continue
                if sends:
                    gathered, sends = sends, []
                    self._serve_sends(gathered)
                if self.trusted:
                    self._serve(command, len(frame))
                else:
                    self._serve_untrusted(command, len(frame))
        finally:
            if sends:
                self._serve_sends(sends)

    def _serve(self, command: Command, size: int) -> None:
        flag = command.flag
        if flag & FLAG_RESPONSE:
            asked = self._asked.pop(command.opaque, None)
            if asked is not None:
                command.body = command.body_bytes()
                self._call_back(asked[0], command)
            return
        if len(self._deferred) >= self._limits.unanswered_requests_max and not flag & FLAG_ONEWAY:
            self._write(
                command.answer(
                    ResponseCode.SYSTEM_BUSY,
                    remark=f"{len(self._deferred)} requests of this connection are unanswered",
                )
            )
            return
        began_ms = self._owner.monotonic_ms()
        try:
            answer = self._owner.handler.handle(command, self)
        except RmqError as error:
            ours = self.trusted and isinstance(error, NotAuthorized)
            code = ResponseCode.NOT_AUTHORIZED if ours else error.code
            answer = command.answer(code, remark=error.message)
        except Exception as error:  # noqa: BLE001
            self._owner.complain(self, f"request {command.code} failed", error)
            answer = command.answer(
                ResponseCode.SYSTEM_ERROR, remark=f"{type(error).__name__}: {error}"
            )
        self._answered(command, size, answer, began_ms)

    def _gathers(self, command: Command) -> bool:
        """Whether a single send waits for those behind it in the same read."""
        return (
            self._handle_sends is not None
            and not command.flag & FLAG_RESPONSE
            and (self.trusted or self.stage is Stage.FOREIGN)
        )

    def _serve_sends(self, sends: list[tuple[Command, int]]) -> None:
        """Serve single sends that came in one read, in their order."""
        room = self._limits.unanswered_requests_max - len(self._deferred)
        if len(sends) > room or self.closed:
            for command, size in sends:
                if not self.closed:
                    self._serve(command, size)
            return
        commands, began_ms = [command for command, _ in sends], self._owner.monotonic_ms()
        answers: Sequence[Command | bytes | None]
        try:
            assert self._handle_sends is not None, "see _gathers"
            answers = self._handle_sends(commands, self)
        except RmqError as error:
            answers = [command.answer(error.code, remark=error.message) for command in commands]
        except Exception as error:  # noqa: BLE001
            self._owner.complain(self, f"{len(commands)} sends failed", error)
            remark = f"{type(error).__name__}: {error}"
            answers = [
                command.answer(ResponseCode.SYSTEM_ERROR, remark=remark) for command in commands
            ]
        for (command, size), answer in zip(sends, answers, strict=True):
            self._answered(command, size, answer, began_ms)

    def _answered(
        self, command: Command, size: int, answer: Command | bytes | None, began_ms: float
    ) -> None:
        """``answer``: None = it comes later; bytes: its whole frame."""
        if command.flag & FLAG_ONEWAY:
            return
        if type(answer) is bytes:
            assert self._writer is not None
            self._writer.add([answer])
            self._told(command, 0, began_ms)
        elif answer is not None:
            self._write(cast(Command, answer))
            self._told(command, cast(Command, answer).code, began_ms)
        elif command.opaque in self._answered_early:
            code = self._answered_early.pop(command.opaque)
            self._told(command, code, began_ms)
        elif not self.closed:
            self._deferred[command.opaque] = (size, began_ms, command.code)
            self._deferred_bytes += size
            if self._deferred_bytes > self._limits.unsent_bytes_max:
                self._adjust_reading()

    def _told(self, command: Command, code: int, began_ms: float) -> None:
        if self._observe is not None:
            self._observe(command.code, code, self._owner.monotonic_ms() - began_ms, False)

    def _serve_untrusted(self, command: Command, size: int) -> None:
        if self.stage is Stage.FOREIGN:
            self._serve(command, size)
        elif self._owner.tls is not None and self._owner.tls.enforcing and not self.secured:
            self._refuse_plain(command)
        elif self.stage is Stage.PROVING or command.code == RequestCode.HELLO:
            self._shake_hands(command)
        elif self._owner.foreign is not ForeignClients.CLOSED:
            self.stage = Stage.FOREIGN
            self._owner.accepted(self)
            self._serve(command, size)
        else:
            self._turn_away(
                f"the first frame is request {command.code} and no handshake; this port is "
                f"closed to foreign clients"
            )

    def _may_be_secured(self) -> bool:
        return (
            self.stage is Stage.FIRST
            and self._owner.tls is not None
            and not self.secured
            and self._buffer.begins_tls
        )

    def _secure(self) -> None:
        """These first bytes begin TLS: all later ones come through it."""
        assert self._transport is not None and self._owner.tls is not None
        self.stage, self.secured = Stage.SECURING, True
        transport = TlsTransport(
            self._transport,
            self,
            self._owner.tls.context,
            self._owner.tls.scratch,
            self._is_secure,
            lambda reason: self._fault(f"no TLS: {reason}"),
        )
        self._transport, self._writer = transport, AnswerWriter(transport)
        transport.begin(self._buffer.drain())

    def _is_secure(self) -> None:
        self.stage = Stage.FIRST
        self.opened_ms = self._owner.monotonic_ms()

    def _refuse_plain(self, command: Command) -> None:
        fault = "this port takes TLS connections only: switch TLS on in the client"
        if not command.flag & FLAG_ONEWAY:
            self._write(command.answer(ResponseCode.NO_PERMISSION, remark=fault))
        self._turn_away(fault)

    def _shake_hands(self, command: Command) -> None:
        if self._handshake is None:
            self.stage = Stage.PROVING
            self._handshake = ServerHandshake(
                self._owner.credentials,
                secrets.token_bytes(handshake.NONCE_BYTES),
                self._owner.account_key,
            )
        self._write(self._handshake.receive(command))
        if self._handshake.state is ServerState.FAILED:
            self._owner.refuse(self, f"handshake refused: {self._handshake.fault}")
            self.close("handshake refused")
        elif self._handshake.state is ServerState.TRUSTED:
            self.account = self._handshake.proven.access_key
            self._proved = self._handshake.proven.secret
            self.member = not self.account
            self._handshake = None
            self.stage, self.trusted = Stage.TRUSTED, True
            self._owner.accepted(self)
            self._buffer.frame_bytes_max, self._buffer.eager = self._limits.frame_bytes_max, True

    def _turn_away(self, reason: str) -> None:
        self._owner.refuse(self, f"closed: {reason}")
        self._in_turn = False
        self.close(reason)

    def _fault(self, reason: str, error: BaseException | None = None) -> None:
        self._owner.complain(self, f"closed: {reason}", error)
        self._in_turn = False
        self.close(reason)

    def _settle_deferred(self, opaque: int, code: int | None = None) -> None:
        """``code``: of the answer; None = there is none."""
        entry = self._deferred.pop(opaque, None)
        if entry is None:
            if self._in_turn:
                self._answered_early[opaque] = code or 0
            return
        if code is not None and self._observe is not None:
            self._observe(entry[2], code, self._owner.monotonic_ms() - entry[1], True)
        before = self._deferred_bytes
        self._deferred_bytes = before - entry[0]
        limit = self._limits.unsent_bytes_max
        if before > limit // 2 >= self._deferred_bytes:
            self._adjust_reading()

    def _adjust_reading(self) -> None:
        if self._transport is None or self._transport.is_closing():
            return
        limit = self._limits.unsent_bytes_max
        if self._unread or self._deferred_bytes > limit:
            self._transport.pause_reading()
        elif self._deferred_bytes <= limit // 2:
            self._transport.resume_reading()

    def _call_back(self, callback: AnswerCallback, outcome: Command | RemotingError) -> None:
        try:
            callback(outcome)
        except Exception as error:  # noqa: BLE001 - the handler's fault must not reach the loop
            self._owner.complain(self, "the handler failed on a client's answer", error)

    # --- writing ----------------------------------------------------------------------------------

    def _write(self, command: Command) -> None:
        try:
            parts = encode(command)
        except Exception as error:  # noqa: BLE001
            self._owner.complain(self, f"frame of code {command.code} cannot be written", error)
            if not command.flag & FLAG_RESPONSE:
                return
            parts = encode(
                command.answer(
                    ResponseCode.SYSTEM_ERROR, remark=f"the answer has no frame: {error}"
                )
            )
        assert self._writer is not None
        self._writer.add(parts)

    def _flush_later(self) -> None:
        self._flush_planned = False
        if not self.closed:
            self._flush()

    def _flush(self) -> None:
        writer = self._writer
        if not writer:
            return
        self.active = True
        unsent = writer.flush()
        if unsent > self._limits.unsent_bytes_max:
            self._owner.complain(
                self, f"closed: it does not read its answers, {unsent} bytes are unsent"
            )
            self.abort("it does not read")
