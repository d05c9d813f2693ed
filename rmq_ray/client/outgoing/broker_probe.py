"""Asks isolated brokers whether they are there again, so that isolation ends with its cause and not
after ten minutes (protocol-behaviour 7.2).

    broker isolated ──> thread: every 3 s ask each isolated broker, wait 200 ms ── answered: it may be chosen again
                                none is isolated: the thread ends

Decides when to ask. Does not decide who is isolated (``protocol.routing.fault_latency``). One
daemon thread while there is somebody to ask; a broker that does not even refuse a connection delays
the others by one connect time-out. Called by the producer's core.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

from rmq_ray.clock import Clock
from rmq_ray.errors import RemotingError
from rmq_ray.model.ids import Address
from rmq_ray.model.topics import DEFAULT_TOPIC
from rmq_ray.protocol.routing.fault_latency import LatencyFaults
from rmq_ray.remoting.wire.codes import RequestCode
from rmq_ray.remoting.wire.frame import Command

PROBE_EVERY_MS = 3_000
PROBE_TIMEOUT_MS = 200.0

Ask = Callable[[Address, Command, float], Command]

log = logging.getLogger("rmq_ray.client")


class BrokerProbe:
    """Of one producer. ``address(name)``: a broker's master, None when no route tells it. ``ask``:
    ``ClientInstance.invoke``.
    """

    def __init__(
        self,
        name: str,
        clock: Clock,
        faults: LatencyFaults,
        address: Callable[[str], Address | None],
        ask: Ask,
    ) -> None:
        self._name = name
        self._clock = clock
        self._faults = faults
        self._address = address
        self._ask = ask
        self._lock = threading.Lock()
        self._running = False
        self._stop = threading.Event()

    def begin(self, _broker_name: str = "") -> None:
        """A broker is isolated: see to it. Any thread; returns at once."""
        with self._lock:
            if self._running or self._stop.is_set():
                return
            self._running = True
        threading.Thread(target=self._run, name=f"rmq-probe-{self._name}", daemon=True).start()

    def stop(self) -> None:
        """No probe begins after this."""
        self._stop.set()

    def probe_all(self) -> bool:
        """Ask every isolated broker once; False when there was none."""
        names = self._faults.isolated(self._clock.monotonic_ms())
        for name in names:
            if not self._stop.is_set():
                self._probe(name)
        return bool(names)

    def _probe(self, name: str) -> None:
        address = self._address(name)
        if address is None:
            return
        began = self._clock.monotonic_ms()
        question = Command(
            RequestCode.GET_MAX_OFFSET, fields={"topic": DEFAULT_TOPIC, "queueId": "0"}
        )
        try:
            self._ask(address, question, PROBE_TIMEOUT_MS)
        except RemotingError as error:
            log.debug("isolated broker %s is still away: %s", name, error)
            return
        now = self._clock.monotonic_ms()
        self._faults.reached(name, now - began, now)
        log.info("isolated broker %s answers again", name)

    def _run(self) -> None:
        while not self._stop.wait(PROBE_EVERY_MS / 1000):
            if self.probe_all():
                continue
            with self._lock:
                if not self._faults.isolated(self._clock.monotonic_ms()):
                    self._running = False
                    return
