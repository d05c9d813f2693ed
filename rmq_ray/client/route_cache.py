"""What a client knows of topics and brokers: routes, the queue lists made from them, broker addresses (protocol-behaviour 6, 7).

Decides when a fetched route is a change and what follows from it. Does not talk to name servers (``fetch`` does) and runs no
timer (``ClientInstance`` does). Readers take no lock: every table entry is an immutable value, replaced as a whole.

Invariants: a route that cannot be fetched, or is gone at the name server, leaves the old one in place: clients with a route
go on while all name servers are dead. At most one fetch runs at a time; who waits longer than 3 s for it gives up.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

from rmq_ray.errors import NoRoute, RemotingError
from rmq_ray.model.ids import MASTER_ID, Address, MessageQueue
from rmq_ray.model.topics import DEFAULT_TOPIC, TopicRoute
from rmq_ray.protocol.publish_info import PublishInfo, default_route, normalized, publish_info, subscribe_queues

LOCK_TIMEOUT_MS = 3_000
DEFAULT_TOPIC_QUEUES = 4

log = logging.getLogger("rmq_ray.client.routes")


class RouteCache:
    """Routes by topic, and the addresses of all brokers in them.

    ``fetch(topic)``: the route as a name server tells it, None when it knows none, ``RemotingError`` when none answers.
    ``on_changed(topic)``: called, without a lock, after the cache took a different route. ``on_replaced(address)``: before that, with a master's
    address that another one has taken the place of.
    """

    def __init__(
        self, fetch: Callable[[str], TopicRoute | None], on_changed: Callable[[str], None] = lambda _topic: None,
        on_replaced: Callable[[Address], None] = lambda _address: None,
    ) -> None:  # fmt: skip
        self._fetch = fetch
        self._on_changed = on_changed
        self._on_replaced = on_replaced
        self._replaced: list[Address] = []
        self._lock = threading.Lock()
        self._routes: dict[str, TopicRoute] = {}
        self._publish: dict[str, PublishInfo] = {}
        self._subscribe: dict[str, tuple[MessageQueue, ...]] = {}
        self._brokers: dict[str, dict[int, Address]] = {}
        self._avoided: frozenset[Address] = frozenset()
        self._unreached = False
        self._written: set[str] = set()

    # --- reading -------------------------------------------------------------------------------------------------------

    def route(self, topic: str) -> TopicRoute | None:
        """The cached route, as the name server told it (or the template's, for a topic not created yet)."""
        return self._routes.get(topic)

    def publish(self, topic: str) -> PublishInfo | None:
        """The cached list of queues to write; None when the topic was never looked up."""
        return self._publish.get(topic)

    def is_between_masters(self, topic: str) -> bool:
        """Whether a topic without queues to write may have some in a moment: it had some before (its master died or is drained), or a master is missing."""
        route = self._routes.get(topic)
        return topic in self._written or (route is not None and any(MASTER_ID not in data.addresses for data in route.brokers))

    def subscribe(self, topic: str) -> tuple[MessageQueue, ...]:
        """The cached list of queues to read; empty when there is none."""
        return self._subscribe.get(topic, ())

    def addresses(self, broker_name: str) -> dict[int, Address]:
        """Broker id -> address; empty when the name is unknown. Not to be changed by the caller."""
        return self._brokers.get(broker_name, {})

    def broker_address(self, broker_name: str, broker_id: int = MASTER_ID) -> Address | None:
        """The address of exactly this broker, None when the cache has none."""
        return self.addresses(broker_name).get(broker_id)

    def subscribe_address(self, broker_name: str, broker_id: int = MASTER_ID, only_this: bool = False) -> tuple[int, Address] | None:
        """(id, address) to read from: the asked one; a missing slave -> the next id; else, unless ``only_this``, the first there is."""
        known = self.addresses(broker_name)
        if self._avoided and not self._avoided.issuperset(known.values()):
            known = {number: address for number, address in known.items() if address not in self._avoided}
        found = broker_id if broker_id in known else None
        if found is None and broker_id != MASTER_ID and broker_id + 1 in known:
            found = broker_id + 1
        if found is None and known and not only_this:
            found = next(iter(known))
        return None if found is None else (found, known[found])

    def avoid(self, address: Address) -> None:
        """Nobody answers there: read from another broker of the name, where there is one, until ``forgive``."""
        with self._lock:
            self._avoided |= {address}

    def forgive(self, address: Address) -> None:
        """The end of ``avoid``."""
        with self._lock:
            self._avoided -= {address}

    def all_addresses(self, masters_only: bool) -> list[Address]:
        """Every known broker's address, each once, in the order of broker names."""
        pairs = [(broker_id, address) for name in sorted(self._brokers) for broker_id, address in self._brokers[name].items()]
        return list(dict.fromkeys(address for broker_id, address in pairs if broker_id == MASTER_ID or not masters_only))

    def topic_of_copies(self, address: Address) -> str | None:
        """A topic in whose route the broker at this address has other copies, too; None when there are none."""
        names = {name for name, known in self._brokers.copy().items() if len(known) > 1 and address in known.values()}
        return next((topic for topic, route in self._routes.copy().items() for data in route.brokers if data.broker_name in names), None) if names else None

    def topics(self) -> list[str]:
        """Topics with a cached route."""
        return list(self._routes)

    # --- looking up ----------------------------------------------------------------------------------------------------

    def find_publish(self, topic: str, default_queues: int = DEFAULT_TOPIC_QUEUES) -> PublishInfo:
        """The queues to write: from the cache, else the topic's route, else the template topic's (min(``default_queues``, its queues)).

        Raises ``NoRoute`` when none of them has a writable queue, ``RemotingError`` when no name server answers.
        """
        info = self._publish.get(topic)
        if info is not None and info.queues:
            return info
        self._locked(topic, lambda: self._look_up(topic, default_queues))
        info = self._publish.get(topic)
        if info is None or not info.queues:
            raise NoRoute(f"no route info of topic {topic!r}: no broker serves it for writing; create it, or start a broker that creates topics", topic)
        return info

    def find_subscribe(self, topic: str) -> tuple[MessageQueue, ...]:
        """The queues to read: from the cache, else the topic's route; empty when the topic does not exist (yet)."""
        if topic not in self._routes:
            self.refresh(topic)
        return self.subscribe(topic)

    def refresh(self, topic: str) -> bool:
        """Fetch the topic's route now; True when it differs from the cached one. ``RemotingError`` when no name server answers."""
        return self._locked(topic, lambda: self._update(topic, self._fetch(topic)))

    def refresh_default(self, topic: str, default_queues: int = DEFAULT_TOPIC_QUEUES) -> bool:
        """Take the template topic's route for ``topic``; True when that changed something."""
        return self._locked(topic, lambda: self._update_default(topic, default_queues))

    def refresh_all(self, topics: set[str]) -> None:
        """Refresh each; a failure leaves the cached route. The first one of an outage is logged, and its end: sends ask 20 times a second meanwhile."""
        for topic in sorted(topics):
            try:
                self.refresh(topic)
            except RemotingError as error:
                level, self._unreached = logging.DEBUG if self._unreached else logging.WARNING, True
                log.log(level, "route of %s not refreshed, the known ones stay: %s", topic, error)
                return
            if self._unreached:
                self._unreached = False
                log.warning("route of %s refreshed: a name server answers again", topic)

    def drop_offline(self) -> list[Address]:
        """Forget addresses that no cached route contains any more; returns them."""
        with self._lock:
            living = {address for route in self._routes.values() for data in route.brokers for address in data.addresses.values()}
            dropped: list[Address] = []
            for name, known in self._brokers.copy().items():
                kept = {broker_id: address for broker_id, address in known.items() if str(address) in living}
                dropped += [address for address in known.values() if str(address) not in living]
                if kept:
                    self._brokers[name] = kept
                else:
                    del self._brokers[name]
            return dropped

    # --- inside --------------------------------------------------------------------------------------------------------

    def _locked(self, topic: str, action: Callable[[], bool]) -> bool:
        if not self._lock.acquire(timeout=LOCK_TIMEOUT_MS / 1000):
            log.warning("route of %s not refreshed: another refresh holds the lock for more than %d ms", topic, LOCK_TIMEOUT_MS)
            return False
        try:
            changed = action()
        finally:
            replaced, self._replaced = self._replaced, []
            self._lock.release()
            for address in replaced:
                self._on_replaced(address)
        if changed:
            self._on_changed(topic)
        return changed

    def _look_up(self, topic: str, default_queues: int) -> bool:
        """Under the lock: another thread may have found it meanwhile; then the topic itself, then the template."""
        if (info := self._publish.get(topic)) is not None and info.ok:
            return False
        changed = self._update(topic, self._fetch(topic))
        if (info := self._publish.get(topic)) is not None and info.ok:
            return changed
        return self._update_default(topic, default_queues) or changed

    def _update_default(self, topic: str, default_queues: int) -> bool:
        template = self._fetch(DEFAULT_TOPIC)
        return self._update(topic, None if template is None else default_route(template, default_queues))

    def _update(self, topic: str, route: TopicRoute | None) -> bool:
        if route is None:
            return False
        route = normalized(route)
        for data in route.brokers:  # also where this topic's route is the known one: another topic's may have been fetched while a broker was away
            before = self.broker_address(data.broker_name)
            known = self._brokers[data.broker_name] = {broker_id: Address.parse(text) for broker_id, text in sorted(data.addresses.items())}
            if before is not None and known.get(MASTER_ID, before) != before:
                self._replaced.append(before)
        if route == self._routes.get(topic):
            return False
        self._publish[topic] = info = publish_info(topic, route)
        if info.ok:
            self._written.add(topic)
        self._subscribe[topic] = subscribe_queues(topic, route)
        self._routes[topic] = route
        return True
