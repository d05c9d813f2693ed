"""The broker's end of the hold service: parked pulls and arrivals go there, wakes come back.

Decides: what is sent when, and when the service counts as dead. Does not decide who wakes a pull
(``parked_pulls``), which pulls an arrival wakes (``protocol.hold_table``, here and in the service
alike). Never blocks, never waits.

    park ─────> once per turn of the loop ─────────────> service
    arrived ──> at once, behind the parks before it ───> service
    on_woken <── at once ── service: fan-out, deadlines, the safety net

Invariants:
- No lost wake-up: events leave in their order, so an arrival never overtakes the park before it;
  ``park`` carries the queue's greatest offset of that moment; after a reconnect every pull of the
  broker's table is parked anew with the offset of then.
- The safety net: every ``scan_ms`` the greatest offsets of all parked queues are sent (RocketMQ's
  checkHoldRequest).
- A service that is dead or stopped costs little: pings go unanswered, ``alive`` turns False within
  3 s, unsent bytes are bounded.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Sequence, Set
from typing import TypeVar, cast

from rmq_ray.clock import Clock
from rmq_ray.errors import MalformedFrame
from rmq_ray.protocol.hold_table import HoldTable, Queue
from rmq_ray.server.pull import hold_wire as wire

log = logging.getLogger("rmq_ray.hold")

PING_MS = 1_000
SILENCE_MAX_MS = 3_000  # three pings without an answer: the service hangs
CONNECT_TIMEOUT_S = 2.0
RECONNECT_MIN_S, RECONNECT_MAX_S = 0.02, 0.5
EVENTS_A_SLICE = 500  # of a scan or of parking anew; the loop serves others between slices

MaxOffset = Callable[[str, int], int]
"""Greatest visible offset + 1 of (topic, queue id), 0 for an unknown queue; quick, without disk."""
T = TypeVar("T")


class HoldLink:
    """One connection to the service at ``path``, made again whenever it breaks. ``table``: the
    broker's parked pulls, only read here. ``on_woken(tokens)``: the service wakes them.
    """

    def __init__(
        self,
        path: str,
        broker_name: str,
        table: HoldTable,
        max_offset: MaxOffset,
        on_woken: Callable[[Iterable[int]], None],
        clock: Clock,
        scan_ms: int,
    ) -> None:
        self._path = path
        self._broker_name = broker_name
        self._table = table
        self._max_offset = max_offset
        self.on_woken = on_woken
        self._clock = clock
        self._scan_ms = scan_ms
        self._out: list[wire.Event] = []
        self._flush_due = False
        self._connection: _Connection | None = None
        self._task: asyncio.Task[None] | None = None

    @property
    def alive(self) -> bool:
        """Connected, welcomed, and the last pings were answered."""
        connection = self._connection
        return (
            connection is not None
            and connection.welcomed
            and connection.silence_ms(self._clock.monotonic_ms()) < SILENCE_MAX_MS
        )

    def start(self) -> None:
        """Begin to connect, on the running event loop."""
        if self._task is None:
            self._task = asyncio.get_running_loop().create_task(self._run(), name="hold link")

    async def close(self) -> None:
        """Close the connection."""
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    def park(self, token: int, max_offset: int) -> None:
        """The table has this pull since now; ``max_offset``: its queue's greatest offset."""
        if self._connection is not None:
            self._tell_park(token, max_offset)
            self._flush_soon()

    def forget(self, tokens: Sequence[int]) -> None:
        """The table has them no more."""
        if tokens and self._connection is not None:
            self._out += [(wire.FORGET, token) for token in tokens]
            self._flush_soon()

    def arrived(self, queue: Queue, max_offset: int, codes: Set[int] | None) -> None:
        """The service wakes whom it concerns; ``codes`` None = unknown tags."""
        wanted = None
        if codes is not None and not self._table.has_filters(queue):
            wanted = []  # nobody filters here: codes would not be read
        elif codes is not None and len(codes) <= wire.CODES_MAX:
            wanted = list(codes)
        self._out.append((wire.ARRIVED, *queue, max_offset, wanted))
        self._flush()

    # --- the connection's side ---

    async def _run(self) -> None:
        delay_s = RECONNECT_MIN_S
        while True:  # until ``close`` cancels; paced by the delay
            try:
                connection = await self._connect()
                delay_s = RECONNECT_MIN_S if await self._keep(connection) else delay_s
            except (TimeoutError, OSError) as error:
                log.debug("hold service at %s cannot be reached: %s", self._path, error)
            except Exception as error:  # noqa: BLE001
                asyncio.get_running_loop().call_exception_handler(
                    {"message": "the hold link failed and connects anew", "exception": error}
                )
            await asyncio.sleep(delay_s)
            delay_s = min(2 * delay_s, RECONNECT_MAX_S)

    async def _connect(self) -> _Connection:
        loop = asyncio.get_running_loop()
        opening = loop.create_unix_connection(
            lambda: _Connection(self, loop.create_future(), self._clock), self._path
        )
        async with asyncio.timeout(CONNECT_TIMEOUT_S):
            _transport, connection = await opening
        return connection

    async def _keep(self, connection: _Connection) -> bool:
        """Serve one connection until it breaks or stays silent; True when the service had answered
        on it.
        """
        self._connection = connection
        self._out = [(wire.HELLO, wire.VERSION, self._broker_name)]
        self._flush()
        try:
            await self._in_slices(self._table.tokens(), self._park_anew)
            scanned_ms = self._clock.monotonic_ms()
            while not connection.lost.done():  # paced by the wait
                now_ms = self._clock.monotonic_ms()
                if connection.silence_ms(now_ms) >= SILENCE_MAX_MS:
                    log.warning(
                        "hold service of %s does not answer; its connection is given up",
                        self._broker_name,
                    )
                    break
                self._send_ping(connection, now_ms)
                if now_ms - scanned_ms >= self._scan_ms:
                    scanned_ms = now_ms
                    await self._in_slices(self._table.queues(), self._send_maxima)
                await asyncio.wait((connection.lost,), timeout=min(PING_MS, self._scan_ms) / 1000)
        finally:
            self._connection = None
            self._out.clear()
            connection.close()
        return connection.welcomed

    async def _in_slices(self, items: list[T], send: Callable[[list[T]], None]) -> None:
        for start in range(0, len(items), EVENTS_A_SLICE):
            if self._connection is None or self._connection.lost.done():
                return
            send(items[start : start + EVENTS_A_SLICE])
            self._flush()
            await asyncio.sleep(0)

    def _park_anew(self, tokens: list[int]) -> None:
        for token in tokens:
            self._tell_park(token)

    def _send_maxima(self, queues: list[Queue]) -> None:
        maxima = [(*queue, int(self._max_offset(*queue))) for queue in queues]
        self._out.append((wire.MAXIMA, maxima))

    def _send_ping(self, connection: _Connection, now_ms: float) -> None:
        connection.pinged(now_ms)
        self._out.append((wire.PING, 0))
        self._flush()

    def _tell_park(self, token: int, max_offset: int | None = None) -> None:
        pull = self._table.find(token)
        if pull is None:  # woken meanwhile
            return
        if max_offset is None:
            max_offset = int(self._max_offset(*pull.queue))
        wait_ms = max(0.0, pull.deadline_ms - self._clock.monotonic_ms())
        codes = None if pull.codes is None else list(pull.codes)
        self._out.append(
            (wire.PARK, token, *pull.queue, pull.from_offset, wait_ms, max_offset, codes)
        )

    def _flush_soon(self) -> None:
        if not self._flush_due:
            self._flush_due = True
            asyncio.get_running_loop().call_soon(self._flush)

    def _flush(self) -> None:
        self._flush_due = False
        events, self._out = self._out, []
        if self._connection is not None:
            for start in range(0, len(events), wire.EVENTS_MAX):
                self._connection.write(wire.encode_events(events[start : start + wire.EVENTS_MAX]))


class _Connection(asyncio.Protocol):
    """One connection to the service."""

    def __init__(self, link: HoldLink, lost: asyncio.Future[None], clock: Clock) -> None:
        self._link = link
        self._clock = clock
        self._reader = wire.EventReader()
        self._transport: asyncio.Transport | None = None
        self._unanswered_ms: float | None = None  # when the oldest ping without an answer left
        self.lost = lost
        self.welcomed = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        self._unanswered_ms = None
        try:
            for event in self._reader.feed(data):
                if event[0] == wire.WAKE:
                    self._link.on_woken(event[1])
                elif event[0] == wire.WELCOME:
                    self.welcomed = True
        except MalformedFrame as error:
            log.warning("connection to the hold service is closed: %s", error)
            self.close()

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        if not self.lost.done():
            self.lost.set_result(None)

    def write(self, data: bytes) -> None:
        """Hand bytes to the kernel or the transport's buffer; a service that does not read is given
        up.
        """
        if self._transport is None:
            return
        self._transport.write(data)
        if self._transport.get_write_buffer_size() > wire.UNSENT_BYTES_MAX:
            log.warning("the hold service does not read; its connection is closed")
            self.close()

    def pinged(self, now_ms: float) -> None:
        """A ping leaves."""
        if self._unanswered_ms is None:
            self._unanswered_ms = now_ms

    def silence_ms(self, now_ms: float) -> float:
        """How long the oldest unanswered ping has waited."""
        return 0.0 if self._unanswered_ms is None else now_ms - self._unanswered_ms

    def close(self) -> None:
        """Close at once; ``lost`` follows."""
        if self._transport is not None:
            self._transport.abort()
