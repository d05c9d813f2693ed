"""TLS for a connection of an event loop: a protocol to the raw transport, a transport to the
protocol within.

    raw transport --bytes--> TlsTransport --decrypted, into the protocol's own buffer--> protocol
                  <--bytes--              <--write--

Does what asyncio's own TLS does, but can begin on a connection whose first bytes were read
already, and keeps no buffer of its own while nothing moves (asyncio's has 256 KiB each: 10,000
connections that only begin a handshake would take 2.5 GiB).

Called by ``peer`` and ``async_connection``, in one loop. Invariants: the protocol gets nothing
before the handshake is done, and nothing after ``close``; bytes behind a paused reader stay
encrypted.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from rmq_ray.remoting.tls import explain


class TlsTransport(asyncio.Transport, asyncio.BufferedProtocol):
    """``on_ready`` once after the handshake; ``on_failed(reason)`` once when TLS itself fails, and
    then the protocol closes. ``scratch``: where raw bytes are received, shared by all connections
    of the loop. ``host``: of a client.
    """

    def __init__(
        self,
        raw: asyncio.Transport,
        protocol: asyncio.BufferedProtocol,
        context: ssl.SSLContext,
        scratch: memoryview,
        on_ready: Callable[[], None],
        on_failed: Callable[[str], None],
        host: str | None = None,
    ) -> None:
        super().__init__()
        self._raw = raw
        self._protocol = protocol
        self._scratch = scratch
        self._on_ready = on_ready
        self._on_failed = on_failed
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._tls = context.wrap_bio(
            self._incoming, self._outgoing, server_side=host is None, server_hostname=host
        )
        self._loop = asyncio.get_running_loop()
        self._ready = self._paused = self._ended = False

    def begin(self, first: bytes = b"") -> None:
        """Take the raw transport over; ``first``: what was received already."""
        self._raw.set_protocol(self)
        self._incoming.write(first)
        self._work()

    # --- to the raw transport: a protocol ---------------------------------------------------------

    def get_buffer(self, sizehint: int) -> memoryview:
        """Where the loop puts the next encrypted bytes."""
        return self._scratch

    def buffer_updated(self, nbytes: int) -> None:
        """Decrypt, and hand on."""
        self._incoming.write(self._scratch[:nbytes])
        self._work()

    def eof_received(self) -> None:
        """The other end will send nothing more; the raw transport closes itself."""
        if self._ready:
            self._protocol.eof_received()
        else:
            self._fail("the other end closed the connection in the TLS handshake")

    def pause_writing(self) -> None:
        """The other end does not read."""
        self._protocol.pause_writing()

    def resume_writing(self) -> None:
        """The other end reads again."""
        self._protocol.resume_writing()

    def connection_lost(self, exc: Exception | None) -> None:
        """The end, whoever caused it."""
        self._ended = True
        self._protocol.connection_lost(exc)

    # --- to the protocol: a transport -------------------------------------------------------------

    def write(self, data: bytes | bytearray | memoryview) -> None:
        """Encrypt and send."""
        if self._ended or not len(data):
            return
        try:
            self._tls.write(data)
        except ssl.SSLError as error:
            self._fail(explain(error))
        self._send()

    def get_write_buffer_size(self) -> int:
        """Encrypted bytes that the kernel has not taken."""
        return self._raw.get_write_buffer_size()

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        """Of the raw transport."""
        self._raw.set_write_buffer_limits(high, low)

    def is_closing(self) -> bool:
        """As of the raw transport."""
        return self._raw.is_closing()

    def pause_reading(self) -> None:
        """Hand on nothing more, and receive nothing more."""
        self._paused = True
        self._raw.pause_reading()

    def resume_reading(self) -> None:
        """Go on; first with what was received before the pause."""
        if self._paused:
            self._paused = False
            self._loop.call_soon(self._go_on)

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        """Of the raw transport."""
        return self._raw.get_extra_info(name, default)

    def close(self) -> None:
        """Say goodbye, send what is written, then close."""
        if self._ended:
            return
        self._ended = True
        if self._ready:
            with suppress(ssl.SSLError):  # the other end's goodbye is not waited for
                self._tls.unwrap()
        self._send()
        self._raw.close()

    def abort(self) -> None:
        """Close at once."""
        self._ended = True
        self._raw.abort()

    # --- between them -----------------------------------------------------------------------------

    def _go_on(self) -> None:
        if not self._paused and not self._raw.is_closing():
            self._raw.resume_reading()
            self._work()

    def _work(self) -> None:
        if self._ended:
            return
        try:
            if not self._ready:
                self._tls.do_handshake()
                self._ready = True
                self._send()
                self._on_ready()
            self._hand_on()
        except ssl.SSLWantReadError:
            pass
        except ssl.SSLError as error:
            self._send()  # the alert that says why
            self._fail(explain(error))
        self._send()

    def _hand_on(self) -> None:
        while not self._paused and not self._ended:
            space, count = memoryview(self._protocol.get_buffer(-1)), 0
            over = False
            try:  # a read that finds nothing costs as much as one that finds a record
                while (
                    count < len(space)
                    and not over
                    and (self._incoming.pending or self._tls.pending())
                ):
                    got = int(self._tls.read(len(space) - count, space[count:]))
                    count += got
                    over = not got
            except ssl.SSLWantReadError:
                pass
            if not count and not over:
                return
            if count:
                self._protocol.buffer_updated(count)
            if over:
                self._protocol.eof_received()
                self.close()

    def _send(self) -> None:
        if self._outgoing.pending and not self._raw.is_closing():
            self._raw.write(self._outgoing.read())

    def _fail(self, reason: str) -> None:
        if not self._ended:
            self._on_failed(reason)
