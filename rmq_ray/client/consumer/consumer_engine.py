"""What a running push and a running pull consumer share: their parts, and the events between them.

    Rebalancer ── takes, leaves queues ──> AssignedQueues
        │ taken                                 │
      Puller ── batches ──> push: the listener; pull: what the next poll returns
        │ lost        drained, resume │    │ done
    Reconnector                       └    OffsetStore

Decides what happens when a broker is lost or comes back. Each kind of consumer says what becomes of
batches, and of an offset that is not in the log. Implements ``PullEvents``, so that the puller
knows neither threads nor rebalancing.

``Reconnector`` brings the connection to a lost broker back: it asks again and again, and lets the
pulls go on the moment the broker answers.

    broker lost ─> thread: wait 20, 40, .. 200 ms, after 10 s .. 1000 ms
                     └─> heartbeat of this group ─ fails: wait again
                           └─ answered: pull every queue of this broker
    master silent, a slave answers ─> pull every queue from the slave; the thread goes on asking
                                      the master, each second, and pulls go back to it when it
                                      answers

The heartbeat comes first because a restarted broker remembers no consumer and would refuse the
pulls. The address is the one that is known, or what the routes say meanwhile: a restarted broker
keeps its port, so nothing waits for the route refresh.

One daemon thread asks for each lost broker, so that one that does not even refuse connections (3 s
each) delays no other; the thread ends with the broker's answer, or when the consumer stops, or
after 10 minutes without any queue of the broker.

Invariant: while ``is_down(name)`` a thread is at it; a master is avoided (``RouteCache.avoid``)
only while one asks it.
"""

from __future__ import annotations

import logging
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable
from functools import partial

from rmq_ray.client.consumer.assigned_queue import AssignedQueue
from rmq_ray.client.consumer.consumer_parts import ConsumerParts
from rmq_ray.client.consumer.operator_requests import OperatorRequests
from rmq_ray.client.consumer.puller import Puller, PullPace
from rmq_ray.client.consumer.rebalancer import Rebalancer
from rmq_ray.client.consumer.subscriptions import check_sql_filters
from rmq_ray.client.instance.client_instance import ClientInstance
from rmq_ray.client.instance.settling import HandOver
from rmq_ray.clock import Clock
from rmq_ray.errors import RemotingError
from rmq_ray.model.groups import ConsumerData, Heartbeat
from rmq_ray.model.ids import MASTER_ID, Address
from rmq_ray.remoting.wire.bodies import encode_heartbeat
from rmq_ray.remoting.wire.codes import RequestCode, ResponseCode
from rmq_ray.remoting.wire.frame import Command

FIRST_WAIT_MS = 20
SOON_MS = 10_000
# within the first SOON_MS of an outage: most are restarts, and a refused connect costs 0.1 ms
WAIT_MS_SOON = 200
WAIT_MS_MAX = 1_000
TIMEOUT_MS = 3_000
# the routes are looked at again this often: the broker may come back at another address
ROUTES_MS = 1_000
GIVE_UP_MS = 600_000
LOOKS_MIN, LOOKS_MAX = 3, 30  # at the routes, once the broker answers again
LOOKED_AT_MAX = 100  # topics, each time; the others wait for the timer
AGAIN_MS = 1_000

log = logging.getLogger("rmq_ray.client.consumer")


class ConsumerEngine(ABC):
    """Of one started consumer. ``data``: what the heartbeat says of it; ``inline``: see
    ``Puller``.
    """

    rebalancer: Rebalancer
    operator_requests: OperatorRequests

    def __init__(
        self, parts: ConsumerParts, data: Callable[[], ConsumerData], *, inline: bool = False
    ) -> None:
        self.client = parts.client
        self.parts = parts
        self.offsets_moved = 0
        self.puller = Puller(parts, self, inline=inline)
        self.reconnector = Reconnector(parts.client, data, self._topic_of, self._broker_back)

    def connect(self) -> None:
        """Start the client instance, and have brokers check SQL92 filters."""
        self.client.start()
        check_sql_filters(self.client, self.parts.group, self.parts.subscriptions.all())

    def rebalance_now(self) -> None:
        """Routes, members or subscriptions changed; returns at once."""
        self.rebalancer.wake()

    def persist_offsets(self) -> None:
        """Hand the offsets of the held queues over without waiting."""
        self.parts.offsets.persist_all(self.parts.assigned.snapshot().keys())

    def halt(self) -> HandOver:
        """See ``ManagedConsumer``."""
        self._halt_pulling()
        held = self.parts.assigned.snapshot()
        kept = {q: offset for q, offset in self.parts.offsets.clone().items() if q in held}
        return partial(self.parts.offsets.hand_over, kept)

    def handle_request(self, command: Command, address: Address) -> Command | None:
        """Of an operator; see ``OperatorRequests``."""
        return self.operator_requests.handle(command, address)

    @abstractmethod
    def reset_offset(self, work: AssignedQueue, offset: int) -> None:
        """An operator moves the group on this queue. In a reader thread: must be quick."""

    def _halt_pulling(self) -> None:
        self.puller.pace = PullPace.STOPPED
        self.reconnector.stop()
        self.rebalancer.halt()

    def _stop_pulling(self) -> None:
        self._halt_pulling()
        self.rebalancer.stop()

    def _leave_group(self) -> None:
        self.client.unregister_consumer(self.parts.group)
        self.client.release()

    # --- what the puller asks and tells (PullEvents) ----------------------------------------------

    @abstractmethod
    def offset_moved(self, work: AssignedQueue, offset: int) -> None:
        """See ``PullEvents``."""

    def broker_lost(self, broker_name: str) -> None:
        """See ``PullEvents``."""
        self.reconnector.lost(broker_name)

    def broker_down(self, broker_name: str) -> bool:
        """See ``PullEvents``."""
        return self.reconnector.is_down(broker_name)

    def tell_brokers(self) -> None:
        """See ``PullEvents``."""
        self.rebalancer.beat()

    # --- what the reconnector asks and tells ------------------------------------------------------

    def _topic_of(self, broker_name: str) -> str | None:
        return next((work.queue.topic for work in self.parts.assigned.of_broker(broker_name)), None)

    def _broker_back(self, broker_name: str) -> None:
        for work in self.parts.assigned.of_broker(broker_name):
            self.puller.pull(work)
        self.rebalance_now()


class Reconnector:
    """Of one consumer. ``wanted(name)``: a topic of that broker that is still held, None when there
    is none; ``back(name)``: it answers.
    """

    def __init__(
        self,
        client: ClientInstance,
        data: Callable[[], ConsumerData],
        wanted: Callable[[str], str | None],
        back: Callable[[str], None],
    ) -> None:
        self._client = client
        self._clock: Clock = client.clock
        self._data = data
        self._wanted = wanted
        self._back = back
        self._lock = threading.Lock()
        self._down: set[str] = set()
        self._asking: set[str] = set()
        # broker name -> (when it answered, how long was waited before)
        self._last: dict[str, tuple[float, float]] = {}
        self._stop = threading.Event()

    def lost(self, broker_name: str) -> None:
        """The connection broke or could not be made. Any thread; returns at once."""
        with self._lock:
            if self._stop.is_set() or broker_name in self._down:
                return
            self._down.add(broker_name)
            if broker_name in self._asking:
                # its slave is lost, too: the thread that asks for the master sees it
                return
            self._asking.add(broker_name)
        thread = threading.Thread(
            target=self._run, args=(broker_name,), name=f"rmq-reconnect-{broker_name}", daemon=True
        )
        try:
            thread.start()
        except RuntimeError as error:  # no more threads: its pulls find out by themselves
            log.warning("broker %s is not looked for: %s", broker_name, error)
            with self._lock:
                self._down.discard(broker_name)
                self._asking.discard(broker_name)

    def is_down(self, broker_name: str) -> bool:
        """True from ``lost`` until the broker answered."""
        return broker_name in self._down

    def stop(self) -> None:
        """Threads end within the request that they wait for."""
        self._stop.set()

    def _run(self, broker_name: str) -> None:
        wait_ms = self._first_wait_ms(broker_name)
        began = wanted_ms = self._clock.monotonic_ms()
        routes_ms = began - ROUTES_MS
        answered = False
        avoided: Address | None = None
        try:
            while not self._stop.wait(wait_ms / 1000):
                now, topic = self._clock.monotonic_ms(), self._wanted(broker_name)
                if topic is not None:
                    wanted_ms = now
                elif now - wanted_ms > GIVE_UP_MS:
                    return
                answered = self._answers(self._address(broker_name))
                if answered:
                    break
                if broker_name in self._down:
                    avoided = self._detour(broker_name) or avoided
                if topic is not None and now - routes_ms >= ROUTES_MS:
                    routes_ms = now
                    self._client.refresh_route_soon(topic)
                wait_ms = min(
                    2 * wait_ms,
                    WAIT_MS_SOON
                    if now - began < SOON_MS and broker_name in self._down
                    else WAIT_MS_MAX,
                )
        finally:
            if avoided is not None:
                self._client.routes.forgive(avoided)
            with self._lock:
                self._down.discard(broker_name)
                self._asking.discard(broker_name)
            if answered:
                self._last[broker_name] = (self._clock.monotonic_ms(), wait_ms)
                log.info("broker %s answers again", broker_name)
                self._back(broker_name)
        if answered:
            self._look_until_shown(broker_name)

    def _look_until_shown(self, broker_name: str) -> None:
        """A broker that stopped gracefully had left the routes, and with them the balance; it
        answers a little before name servers show it again.
        """
        routes = self._client.routes
        topics = [subscription.topic for subscription in self._data().subscriptions][:LOOKED_AT_MAX]
        for look in range(LOOKS_MAX):
            for topic in topics:
                self._client.refresh_route_soon(topic)
            if self._stop.wait(ROUTES_MS / 1000):
                return
            shown = {
                data.broker_name
                for topic in topics
                if (route := routes.route(topic)) is not None
                for data in route.brokers
            }
            if look + 1 >= LOOKS_MIN and (broker_name in shown or not topics):
                return

    def _first_wait_ms(self, broker_name: str) -> float:
        """20 ms; twice the last wait for a broker that was lost again within a second: it answers,
        but its connections break.
        """
        when_ms, waited_ms = self._last.get(broker_name, (float("-inf"), 0.0))
        again = self._clock.monotonic_ms() - when_ms < AGAIN_MS
        return min(2 * waited_ms, WAIT_MS_MAX) if again else FIRST_WAIT_MS

    def _address(self, broker_name: str) -> Address | None:
        """Of the master; of another broker of the name where the routes have no master."""
        routes = self._client.routes
        found = (
            routes.broker_address(broker_name)
            or (routes.subscribe_address(broker_name) or (0, None))[1]
        )
        return found

    def _detour(self, broker_name: str) -> Address | None:
        """The master's address when a slave answers in its place: pulls go there from now on."""
        routes = self._client.routes
        known = routes.addresses(broker_name)
        master = known.get(MASTER_ID)
        if master is None or not any(
            self._answers(address) for broker_id, address in known.items() if broker_id != MASTER_ID
        ):
            return None
        routes.avoid(master)
        with self._lock:
            self._down.discard(broker_name)
        log.info("broker %s is read from a slave while %s does not answer", broker_name, master)
        self._back(broker_name)
        return master

    def _answers(self, address: Address | None) -> bool:
        if address is None:
            return False
        body = encode_heartbeat(Heartbeat(self._client.client_id, (), (self._data(),)))
        try:
            return (
                self._client.invoke(
                    address, Command(RequestCode.HEART_BEAT, body=body), TIMEOUT_MS
                ).code
                == ResponseCode.SUCCESS
            )
        except RemotingError as error:
            log.debug("%s is still away: %s", address, error)
            return False
