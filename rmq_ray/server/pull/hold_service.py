"""PullRequestHoldService: keeps a broker's parked pulls in a process of its own and says when each
must run again.

Decides: nothing beyond ``protocol.hold_table``: it feeds that table with the broker's events and
with time. Does not decide: what a pull answers. The other end is ``server.pull.hold_link``.

    broker ──park, arrived, forget, maxima──> HoldTable ──wake──> broker

Invariants:
- One broker, one connection, one table: the newest connection replaces the one before, and all that
  came by the old one is forgotten with it. A broker that is back parks anew; so nothing here needs
  a disk.
- The socket lies in a directory that only this user can write to, and only this user's processes
  are listened to.
- Wakes are written in the turn of the loop that found them; deadlines fire within a millisecond or
  two of their time.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import socket
import stat
import struct
from collections.abc import Sequence
from typing import cast

from rmq_ray.clock import Clock
from rmq_ray.errors import ConfigError, MalformedFrame, RemotingError, TooManyRequests
from rmq_ray.protocol.hold_table import HoldTable
from rmq_ray.server.pull import hold_wire as wire

log = logging.getLogger("rmq_ray.hold")

SOCKET_PATH_BYTES_MAX = 107  # sun_path of Linux, without its final zero
WAKES_A_FRAME = 4_096


class HoldService:
    """The service of one broker, on the running event loop."""

    def __init__(self, clock: Clock, parked_max: int = 100_000) -> None:
        self._clock = clock
        self._parked_max = parked_max
        self._session: _Session | None = None
        self._stopping = asyncio.Event()
        self._connections = 0
        self._wakes = 0

    async def serve(self, path: str) -> None:
        """Listen on the Unix socket ``path`` until ``close``. A socket that an earlier process left
        there is replaced.

        Raises ``ConfigError`` for a path that is too long or a directory that others can enter.
        """
        _prepare(path)
        try:
            server = await asyncio.get_running_loop().create_unix_server(
                lambda: _Session(self), path
            )
        except OSError as error:
            raise ConfigError(
                f"cannot listen on {path}: {error.strerror or error}; give the hold service "
                f"another path",
                path,
            ) from error
        inode = os.stat(path).st_ino
        try:
            await self._stopping.wait()
        finally:
            server.close()
            if self._session is not None:
                self._session.abandon()
            with contextlib.suppress(FileNotFoundError):
                if os.stat(path).st_ino == inode:
                    os.unlink(path)

    async def close(self) -> None:
        """End ``serve``; the broker sees its connection closed."""
        self._stopping.set()

    def status(self) -> dict[str, object]:
        """Counters for ``status`` and tests."""
        session = self._session
        return {
            "connected": session is not None,
            "broker": session.broker_name if session else "",
            "parked": len(session.table) if session else 0,
            "queues": session.table.queue_count if session else 0,
            "connections": self._connections,
            "wakes": self._wakes,
        }

    def new_table(self) -> HoldTable:
        """An empty table with this service's limit."""
        return HoldTable(self._parked_max)

    def now_ms(self) -> float:
        """Time for deadlines."""
        return self._clock.monotonic_ms()

    def entered(self, session: _Session) -> None:
        """A broker has said hello: whatever the connection before it parked is forgotten."""
        if self._session is not None:
            log.info(
                "broker %s connected anew, %d pulls of its old connection are forgotten",
                session.broker_name,
                len(self._session.table),
            )
            self._session.abandon()
        self._session = session
        self._connections += 1

    def left(self, session: _Session) -> None:
        """A connection is gone."""
        if self._session is session:
            self._session = None

    def count_wakes(self, count: int) -> None:
        """For ``status``."""
        self._wakes += count


class _Session(asyncio.Protocol):
    """One connection of the broker, with everything it parked."""

    def __init__(self, service: HoldService) -> None:
        self._service = service
        self._reader = wire.EventReader()
        self._transport: asyncio.Transport | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._timer_ms = 0.0
        self.table = service.new_table()
        self.broker_name = ""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        if (user := _user_of(transport)) != os.getuid():
            log.warning("a process of user %d was refused at the hold service", user)
            self._transport.abort()

    def data_received(self, data: bytes) -> None:
        answers: list[wire.Event] = []
        woken: list[int] = []
        try:
            for event in self._reader.feed(data):
                self._take(event, answers, woken)
        except RemotingError as error:
            log.warning("connection of broker %r is closed: %s", self.broker_name, error)
            self.abandon()
            return
        self._answer(answers, woken)
        self._set_timer()

    def connection_lost(self, exc: Exception | None) -> None:
        self.abandon()

    def abandon(self) -> None:
        """Close, and forget all that was parked; calling it again does nothing."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._transport is not None:
            self._transport.abort()
            self._transport = None
        self._service.left(self)
        self.table = self._service.new_table()

    def _take(self, event: wire.Event, answers: list[wire.Event], woken: list[int]) -> None:
        try:
            if not self.broker_name:
                answers.append(self._hello(event))
            elif event[0] == wire.PARK:
                woken += self._park(event)
            elif event[0] == wire.ARRIVED:
                _, topic, queue_id, max_offset, codes = event
                woken += self.table.arrived((topic, queue_id), max_offset, codes)
            elif event[0] == wire.FORGET:
                self.table.forget(event[1])
            elif event[0] == wire.MAXIMA:
                woken += self.table.scan(
                    ((topic, queue_id), max_offset) for topic, queue_id, max_offset in event[1]
                )
            elif event[0] == wire.PING:
                answers.append((wire.PONG, event[1]))
            else:
                raise MalformedFrame(
                    f"event kind {event[0]!r} is unknown to version {wire.VERSION} of the "
                    f"hold protocol",
                    "hold link",
                )
        except (ValueError, TypeError, IndexError) as error:
            raise MalformedFrame(
                f"event {event!r:.200} has the wrong shape: {error}", "hold link"
            ) from error

    def _hello(self, event: wire.Event) -> wire.Event:
        kind, version, broker_name = event
        if kind != wire.HELLO or version != wire.VERSION or not broker_name:
            expected = f"HELLO of version {wire.VERSION} with a broker name"
            raise MalformedFrame(
                f"the first event must be {expected}, not {event!r:.200}: run broker and "
                f"hold service of one release",
                "hold link",
            )
        self.broker_name = str(broker_name)
        self._service.entered(self)
        return (wire.WELCOME, wire.VERSION)

    def _park(self, event: wire.Event) -> list[int]:
        _, token, topic, queue_id, from_offset, wait_ms, max_offset, codes = event
        wanted = None if codes is None else frozenset(codes)
        try:
            return self.table.park(
                token,
                (topic, queue_id),
                from_offset,
                self._service.now_ms() + wait_ms,
                wanted,
                max_offset,
            )
        except TooManyRequests as error:
            log.warning("a pull of broker %s is sent back at once: %s", self.broker_name, error)
            return [token]

    def _answer(self, answers: list[wire.Event], woken: Sequence[int]) -> None:
        if self._transport is None:
            return
        for start in range(0, len(woken), WAKES_A_FRAME):
            answers.append((wire.WAKE, woken[start : start + WAKES_A_FRAME]))
        if answers:
            self._transport.write(wire.encode_events(answers))
            self._service.count_wakes(len(woken))
        if self._transport.get_write_buffer_size() > wire.UNSENT_BYTES_MAX:
            log.warning(
                "broker %s does not read its wakes; the connection is closed", self.broker_name
            )
            self.abandon()

    def _set_timer(self) -> None:
        """One timer, for the earliest deadline; one that fires too early only looks again."""
        deadline_ms = self.table.next_deadline_ms()
        if deadline_ms is None or self._transport is None:
            return
        if self._timer is not None:
            if self._timer_ms <= deadline_ms:
                return
            self._timer.cancel()
        self._timer_ms = deadline_ms
        self._timer = asyncio.get_running_loop().call_later(
            max(0.0, deadline_ms - self._service.now_ms()) / 1000, self._deadline
        )

    def _deadline(self) -> None:
        self._timer = None
        self._answer([], self.table.expired(self._service.now_ms()))
        self._set_timer()


def _prepare(path: str) -> None:
    """Make the socket's directory private and take away what an earlier process left."""
    if len(os.fsencode(path)) > SOCKET_PATH_BYTES_MAX:
        raise ConfigError(
            f"socket path {path} is longer than {SOCKET_PATH_BYTES_MAX} bytes; choose a "
            f"shorter one",
            path,
        )
    directory = os.path.dirname(os.path.abspath(path))
    os.makedirs(directory, mode=0o700, exist_ok=True)
    found = os.stat(directory)
    if found.st_uid != os.getuid() or found.st_mode & 0o022:
        raise ConfigError(
            f"directory {directory} of the hold service's socket must belong to this user "
            f"and not be writable by others: chmod 700 it",
            directory,
        )
    with contextlib.suppress(FileNotFoundError):
        if not stat.S_ISSOCK(os.lstat(path).st_mode):
            raise ConfigError(
                f"{path} is a file, not a socket: the hold service will not replace it; "
                f"choose another path",
                path,
            )
        os.unlink(path)


def _user_of(transport: asyncio.BaseTransport) -> int:
    """User id of the process at the other end, as the kernel knows it."""
    credentials = transport.get_extra_info("socket").getsockopt(
        socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i")
    )
    return int(struct.unpack("3i", credentials)[1])
