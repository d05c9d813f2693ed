"""The broker's end of the hold: parked pulls and arrivals go to the hold service, wakes come back.

Decides: what is sent when, when the service counts as dead, and which pull an arrival wakes where
few are parked. Does not decide: which pull wakes otherwise (``protocol.hold_table`` in the
service), what it then answers. Called by the broker's pull code on the broker's event loop; never
blocks, never waits.

    park ─────> kept here (to park anew after a reconnect) ──once per turn of the loop──> service
    arrived ──> up to ``wake_here_max`` pulls are parked on the queue: woken from here, and forgotten ──> service
           └──> more: ──at once, behind the parks before it──> service
    on_wake <── at once ── service: fan-out, deadlines, the safety net

Invariants:
- No lost wake-up: events leave in their order, so an arrival never overtakes the park before it;
  ``park`` carries the queue's greatest offset of that moment; after a reconnect every pull still
  here is parked anew with the offset of then.
- The safety net: every ``scan_ms`` the greatest offsets of all parked queues are sent (RocketMQ's
  checkHoldRequest).
- A service that is dead or stopped costs little: pings go unanswered, ``alive`` turns False within
  3 s, unsent bytes are bounded. Then arrivals wake all pulls of their queue from here; deadlines
  that nobody fires are the caller's to watch.
- ``on_wake`` is never called from within ``park``, ``forget`` or ``arrived``; a woken token is no
  longer known here.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol, cast

from rmq_ray.clock import Clock
from rmq_ray.errors import MalformedFrame, TooManyRequests
from rmq_ray.server.pull import hold_wire as wire

log = logging.getLogger("rmq_ray.hold")

PING_MS = 1_000
SILENCE_MAX_MS = 3_000  # three pings without an answer: the service hangs
CONNECT_TIMEOUT_S = 2.0
RECONNECT_MIN_S, RECONNECT_MAX_S = 0.02, 0.5
EVENTS_A_SLICE = 500  # of a scan or of parking anew; the loop serves others between slices

OnWake = Callable[[int], None]
"""A parked pull must run again (once, without parking): token. On the loop; the token is no longer
known to the hold.
"""
MaxOffset = Callable[[str, int], int]
"""Greatest visible offset + 1 of (topic, queue id), 0 for an unknown queue; quick, without disk."""


class Hold(Protocol):
    """Where a broker keeps its parked pulls: ``HoldLink`` (own process) or ``LocalHold`` (in the
    broker).

    ``on_wake`` is never called from within these methods, always in a later turn of the loop.
    """

    @property
    def alive(self) -> bool:
        """False while nobody fires deadlines."""
        ...

    @property
    def parked(self) -> int:
        """Pulls parked now."""
        ...

    def start(self) -> None:
        """Begin, on the running event loop."""
        ...

    async def close(self) -> None:
        """End; parked pulls are forgotten."""
        ...

    def park(
        self,
        token: int,
        topic: str,
        queue_id: int,
        from_offset: int,
        deadline_ms: float,
        codes: frozenset[int] | None,
    ) -> None:
        """Hold a pull that found nothing; one that is behind already is woken soon.

        ``deadline_ms`` is on ``Clock.now_ms``'s scale; ``codes`` None = every tag.
        ``TooManyRequests`` at the limit.
        """
        ...

    def forget(self, token: int) -> None:
        """The pull was answered or its connection closed; unknown tokens do nothing."""
        ...

    def arrived(
        self, topic: str, queue_id: int, max_offset: int, codes: Sequence[int] | None
    ) -> None:
        """Messages below ``max_offset`` became visible; ``codes``: tag codes of all of them, None =
        unknown.
        """
        ...


@dataclass(frozen=True, slots=True)
class _Parked:
    token: int
    queue: tuple[str, int]
    from_offset: int
    deadline_ms: float  # monotonic: a wall clock that is set must not keep a pull asleep
    codes: frozenset[int] | None

    def wants(self, max_offset: int, codes: set[int] | None) -> bool:
        """Whether messages below ``max_offset`` with these tag codes (None = unknown) are worth
        another look.
        """
        return max_offset > self.from_offset and (
            codes is None or self.codes is None or not self.codes.isdisjoint(codes)
        )


class HoldLink:
    """The hold in a process of its own: one connection to the service at ``path``, made again
    whenever it breaks.
    """

    def __init__(
        self,
        path: str,
        on_wake: OnWake,
        max_offset: MaxOffset,
        clock: Clock,
        *,
        broker_name: str = "broker",
        scan_ms: int = 5_000,
        parked_max: int = 100_000,
        wake_here_max: int = 64,
    ) -> None:
        self._path = path
        self._on_wake = on_wake
        self._max_offset = max_offset
        self._clock = clock
        self._broker_name = broker_name
        self._scan_ms = scan_ms
        self._parked_max = parked_max
        self._wake_here_max = wake_here_max
        self._parked: dict[int, _Parked] = {}
        self._queues: dict[tuple[str, int], set[int]] = {}
        self._filtered: dict[tuple[str, int], int] = {}  # parked pulls with tag codes, per queue
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

    @property
    def parked(self) -> int:
        """Pulls parked now."""
        return len(self._parked)

    def start(self) -> None:
        """Begin to connect, on the running event loop."""
        if self._task is None:
            self._task = asyncio.get_running_loop().create_task(self._run(), name="hold link")

    async def close(self) -> None:
        """Close the connection; parked pulls are forgotten."""
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
        self._parked.clear()
        self._queues.clear()
        self._filtered.clear()

    def park(
        self,
        token: int,
        topic: str,
        queue_id: int,
        from_offset: int,
        deadline_ms: float,
        codes: frozenset[int] | None,
    ) -> None:
        """See ``Hold.park``. A pull that is behind is woken once the service has seen it."""
        if len(self._parked) >= self._parked_max and token not in self._parked:
            raise TooManyRequests(
                f"{len(self._parked)} pulls are parked, the limit is {self._parked_max}: "
                f"pull again later or raise parked_pulls_max"
            )
        self._drop(token)
        pull = _Parked(
            token,
            (topic, queue_id),
            int(from_offset),
            self._clock.monotonic_ms() + deadline_ms - self._clock.now_ms(),
            codes,
        )
        self._parked[token] = pull
        self._queues.setdefault(pull.queue, set()).add(token)
        if codes is not None:
            self._filtered[pull.queue] = self._filtered.get(pull.queue, 0) + 1
        if self._connection is not None:
            self._out.append(self._park_event(pull))
            self._flush_soon()

    def forget(self, token: int) -> None:
        """See ``Hold.forget``."""
        if self._drop(token) and self._connection is not None:
            self._out.append((wire.FORGET, token))
            self._flush_soon()

    def arrived(
        self, topic: str, queue_id: int, max_offset: int, codes: Sequence[int] | None
    ) -> None:
        """See ``Hold.arrived``. Costs one look-up for a queue without parked pulls."""
        queue = (topic, queue_id)
        if queue not in self._queues:
            return
        tokens = self._queues[queue]
        if not self.alive:
            asyncio.get_running_loop().call_soon(
                self.woken,
                [token for token in tokens if self._parked[token].from_offset < max_offset],
            )
            return
        if len(tokens) <= self._wake_here_max:
            self._wake_here(tokens, max_offset, codes)
            return
        wanted = None
        if codes is not None and self._filtered.get(queue):
            distinct = {int(code) for code in codes}
            wanted = list(distinct) if len(distinct) <= wire.CODES_MAX else None
        elif codes is not None:
            wanted = []  # nobody filters here: codes would not be read
        self._out.append((wire.ARRIVED, topic, queue_id, int(max_offset), wanted))
        self._flush()

    def _wake_here(self, tokens: set[int], max_offset: int, codes: Sequence[int] | None) -> None:
        """The rule of ``HoldTable.arrived`` for a few pulls: the way to the service and back would
        be most of what a lone message takes.
        """
        distinct = None if codes is None else {int(code) for code in codes}
        parked = self._parked
        woken = [token for token in tokens if parked[token].wants(max_offset, distinct)]
        if woken:
            asyncio.get_running_loop().call_soon(self._woken_here, sorted(woken))

    def _woken_here(self, tokens: list[int]) -> None:
        forgotten = [token for token in tokens if token in self._parked]
        self.woken(forgotten)  # the answers leave before the service hears of it
        if self._connection is not None and forgotten:
            self._out += [(wire.FORGET, token) for token in forgotten]
            self._flush_soon()

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
            await self._in_slices(list(self._parked), self._park_anew)
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
                    await self._in_slices(list(self._queues), self._send_maxima)
                await asyncio.wait((connection.lost,), timeout=min(PING_MS, self._scan_ms) / 1000)
        finally:
            self._connection = None
            self._out.clear()
            connection.close()
        return connection.welcomed

    async def _in_slices(
        self, items: Sequence[object], send: Callable[[Sequence[object]], None]
    ) -> None:
        for start in range(0, len(items), EVENTS_A_SLICE):
            if self._connection is None or self._connection.lost.done():
                return
            send(items[start : start + EVENTS_A_SLICE])
            self._flush()
            await asyncio.sleep(0)

    def _park_anew(self, tokens: Iterable[object]) -> None:
        for token in cast(Iterable[int], tokens):
            pull = self._parked.get(token)
            if pull is not None:
                self._out.append(self._park_event(pull))

    def _send_maxima(self, queues: Iterable[object]) -> None:
        still_parked = [
            queue for queue in cast(Iterable[tuple[str, int]], queues) if queue in self._queues
        ]
        self._out.append(
            (
                wire.MAXIMA,
                [
                    (topic, queue_id, int(self._max_offset(topic, queue_id)))
                    for topic, queue_id in still_parked
                ],
            )
        )

    def _send_ping(self, connection: _Connection, now_ms: float) -> None:
        connection.pinged(now_ms)
        self._out.append((wire.PING, 0))
        self._flush()

    def woken(self, tokens: Iterable[int]) -> None:
        """The service says so; tokens that were forgotten meanwhile are passed over."""
        for token in tokens:
            if self._drop(token):
                try:
                    self._on_wake(token)
                except Exception as error:  # noqa: BLE001
                    asyncio.get_running_loop().call_exception_handler(
                        {"message": f"running held pull {token} again failed", "exception": error}
                    )

    def _park_event(self, pull: _Parked) -> wire.Event:
        topic, queue_id = pull.queue
        wait_ms = max(0.0, pull.deadline_ms - self._clock.monotonic_ms())
        codes = None if pull.codes is None else list(pull.codes)
        return (
            wire.PARK,
            pull.token,
            topic,
            queue_id,
            pull.from_offset,
            wait_ms,
            int(self._max_offset(topic, queue_id)),
            codes,
        )

    def _drop(self, token: int) -> bool:
        pull = self._parked.pop(token, None)
        if pull is None:
            return False
        tokens = self._queues[pull.queue]
        tokens.discard(token)
        if pull.codes is not None:
            self._filtered[pull.queue] -= 1
        if not tokens:
            del self._queues[pull.queue]
            self._filtered.pop(pull.queue, None)
        return True

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
                    self._link.woken(event[1])
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
