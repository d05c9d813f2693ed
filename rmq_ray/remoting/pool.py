"""One connection for each address, opened when first used and replaced when broken.

Decides when to connect; a request that meets a connection just broken, with nothing sent, is tried
once on a new one. Called by clients and by brokers towards name servers. Invariants: connecting to
one address holds up nobody who talks to another; threads that waited for an attempt share its
failure instead of each trying in turn; after a fork nothing of the parent's is used.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from typing import TypeVar

from rmq_ray.clock import Clock
from rmq_ray.config import RemotingLimits, Tls
from rmq_ray.errors import ConnectFailed, RemotingError
from rmq_ray.model.ids import Address
from rmq_ray.remoting.connection import Connection, LostCallback, RequestCallback, SilentCallback
from rmq_ray.remoting.handler import AnswerCallback
from rmq_ray.remoting.handshake import Credentials
from rmq_ray.remoting.wire.frame import Command

CONNECT_MS_MIN = 250
_SLICE_S = 0.5
T = TypeVar("T")


class _Slot:
    """One address. ``attempts`` counts finished attempts to connect; ``failure`` is the last one's
    outcome.
    """

    __slots__ = ("lock", "connection", "attempts", "failure")

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.connection: Connection | None = None
        self.attempts = 0
        self.failure: RemotingError | None = None


def connect_budget_ms(limits: RemotingLimits, timeout_ms: float) -> int:
    """How long a request with this time-out may take to connect: half of it, so that another server
    can be asked in the other half.
    """
    return min(limits.connect_timeout_ms, max(CONNECT_MS_MIN, int(timeout_ms / 2)))


class ConnectionPool:
    """See the module. ``credentials`` are the same for all addresses: a pool talks to servers of
    one role.
    """

    def __init__(
        self,
        credentials: Credentials | None,
        limits: RemotingLimits,
        clock: Clock,
        on_request: RequestCallback | None = None,
        on_lost: LostCallback | None = None,
        on_silent: SilentCallback | None = None,
        tls: Tls | None = None,
    ) -> None:
        self._credentials = credentials
        self._limits = limits
        self._clock = clock
        self._on_request = on_request
        self._on_lost = on_lost
        self._on_silent = on_silent
        self._tls = tls
        self._slots: dict[Address, _Slot] = {}
        self._pid = os.getpid()
        self._closed = False

    def request(self, address: Address, command: Command, timeout_ms: float) -> Command:
        """See ``Connection.request``. ``timeout_ms`` covers connecting, too, which takes half of it
        at most: who asked can try elsewhere with the rest.
        """
        return self._with(
            address, lambda connection, left_ms: connection.request(command, left_ms), timeout_ms
        )

    def request_async(
        self, address: Address, command: Command, timeout_ms: float, callback: AnswerCallback
    ) -> None:
        """See ``Connection.request_async``; connecting, where needed, happens in the caller's
        thread and takes half of ``timeout_ms`` at most.
        """
        self._with(
            address,
            lambda connection, left_ms: connection.request_async(command, left_ms, callback),
            timeout_ms,
        )

    def oneway(self, address: Address, command: Command) -> None:
        """See ``Connection.oneway``."""
        self._with(
            address,
            lambda connection, _left_ms: connection.oneway(command),
            2.0 * self._limits.connect_timeout_ms,
        )

    def answer(self, address: Address, command: Command) -> None:
        """See ``Connection.answer``; never connects: whoever asked on an older connection has
        forgotten it.
        """
        slot = self._slots.get(address)
        if slot is not None and slot.connection is not None:
            slot.connection.answer(command)

    def drop(self, address: Address) -> None:
        """Close the connection to an address that is not needed any more."""
        slot = self._slots.pop(address, None)
        if slot is not None and slot.connection is not None:
            slot.connection.close()

    def close(self) -> None:
        """Close all connections; later calls raise ``ConnectFailed``."""
        self._closed = True
        for address in list(self._slots):
            self.drop(address)

    def _with(
        self, address: Address, use: Callable[[Connection, float], T], timeout_ms: float
    ) -> T:
        slot = self._slots.get(address)
        connection = slot.connection if slot is not None else None
        if connection is not None and connection.alive:
            try:
                return use(connection, timeout_ms)
            except ConnectFailed:  # it broke since the look above and nothing was sent
                pass
        began_ms = self._clock.monotonic_ms()
        connection = self._connect(address, connect_budget_ms(self._limits, timeout_ms))
        return use(connection, max(1.0, timeout_ms - (self._clock.monotonic_ms() - began_ms)))

    def _connect(self, address: Address, budget_ms: int) -> Connection:
        if self._pid != os.getpid():
            self._slots, self._pid = {}, os.getpid()
        if self._closed:
            raise ConnectFailed(
                f"no connection to {address}: the pool is closed; nothing was sent", str(address)
            )
        slot = self._slots.setdefault(address, _Slot())
        seen = slot.attempts
        self._wait_for(slot, address, budget_ms)
        try:
            if slot.connection is not None and slot.connection.alive:
                return slot.connection
            if slot.attempts != seen and slot.failure is not None:
                raise type(slot.failure)(*slot.failure.args)
            return self._open(slot, address, budget_ms)
        finally:
            slot.lock.release()

    def _wait_for(self, slot: _Slot, address: Address, budget_ms: int) -> None:
        """Whoever connects there already; a little longer than that may take, to share its
        failure.
        """
        deadline = self._clock.monotonic_ms() + budget_ms + CONNECT_MS_MIN
        while not slot.lock.acquire(timeout=min(_SLICE_S, budget_ms / 1000)):
            if self._clock.monotonic_ms() > deadline:
                raise ConnectFailed(
                    f"no connection to {address}: another thread is still connecting; "
                    f"nothing was sent",
                    str(address),
                )

    def _open(self, slot: _Slot, address: Address, budget_ms: int) -> Connection:
        try:
            limits = self._limits.but(connect_timeout_ms=budget_ms)
            slot.connection = Connection(
                address,
                self._credentials,
                limits,
                self._clock,
                self._on_request,
                self._on_lost,
                self._on_silent,
                self._tls,
            )
            slot.failure = None
        except RemotingError as error:
            slot.connection, slot.failure = None, error
            raise
        finally:
            slot.attempts += 1
        if self._closed or self._slots.get(address) is not slot:  # closed or dropped meanwhile
            slot.connection.close()
            raise ConnectFailed(
                f"no connection to {address}: it was dropped while it connected; nothing was sent",
                str(address),
            )
        return slot.connection
