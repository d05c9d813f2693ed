"""What a client knows of topics and brokers: routes, the queue lists made from them, broker
addresses (protocol-behaviour 6, 7).

Decides when a fetched route is a change and what follows from it. Does not talk to name servers
(``fetch`` does); ``RouteWatch`` has a failing topic looked at by the timers of ``ClientInstance``.
Readers take no lock: every table entry is an immutable value, replaced as a whole.

Invariants: a route that cannot be fetched, or is gone at the name server, leaves the old one in
place: clients with a route go on while all name servers are dead. At most one fetch runs at a time;
who waits longer than 3 s, or than it has time, for it gives up.
"""

from __future__ import annotations

import logging
import math
import threading
from collections import Counter
from collections.abc import Callable, Sequence

from rmq_ray.client.instance.timers import ClientTimers
from rmq_ray.clock import SYSTEM_CLOCK, Clock
from rmq_ray.errors import NoRoute, RemotingError, RequestTimeout, TopicNotWritable
from rmq_ray.model.ids import MASTER_ID, Address, MessageQueue
from rmq_ray.model.topics import DEFAULT_TOPIC, Permission, TopicRoute
from rmq_ray.protocol.routing.route_queues import (
    PublishInfo,
    default_route,
    normalized,
    publish_info,
    subscribe_queues,
)
from rmq_ray.protocol.routing.similar_topics import did_you_mean, is_own_topic

LOCK_TIMEOUT_MS = 3_000
WATCH_EVERY_MS = 50.0
WATCH_LASTING_MS = 1_000.0
DEFAULT_TOPIC_QUEUES = 4
WHENEVER = math.inf
READ_ONLY_MS = 50.0
"""How long a topic that was found read-only stays so unasked: sends to it fail at once, and as
often as a program likes.
"""

log = logging.getLogger("rmq_ray.client.routes")


class RouteCache:
    """Routes by topic, and the addresses of all brokers in them.

    ``fetch(topic, until_ms)``: the route as a name server tells it, None when it knows none,
    ``RemotingError`` when none answers until then (monotonic). ``on_changed(topic)``: called,
    without a lock, after the cache took a different route. ``on_replaced(address)``: before that,
    with a master's address that another one has taken the place of. ``similar(topic)``: topics that
    somebody may have meant who misspelt one; asks a name server.
    """

    def __init__(
        self,
        fetch: Callable[[str, float], TopicRoute | None],
        on_changed: Callable[[str], None] = lambda _topic: None,
        on_replaced: Callable[[Address], None] = lambda _address: None,
        clock: Clock = SYSTEM_CLOCK,
        similar: Callable[[str], list[str]] = lambda _topic: [],
    ) -> None:
        self._fetch = fetch
        self._similar = similar
        self._from_template: set[str] = set()
        """Topics that did not exist when they were looked up: the first send creates them."""
        self._told: set[str] = set()
        """Those of them that the log names, once each."""
        self._on_changed = on_changed
        self._on_replaced = on_replaced
        self._clock = clock
        self._replaced: list[Address] = []
        self._lock = threading.Lock()
        self._routes: dict[str, TopicRoute] = {}
        self._publish: dict[str, PublishInfo] = {}
        self._subscribe: dict[str, tuple[MessageQueue, ...]] = {}
        self._brokers: dict[str, dict[int, Address]] = {}
        self._avoided: frozenset[Address] = frozenset()
        self._unreached = False
        self._written: dict[str, set[str]] = {}
        self._read_only: dict[str, float] = {}
        """Topic -> until when it counts as read-only unasked, monotonic; 0 = it was not when it was
        looked up last.
        """

    # --- reading ----------------------------------------------------------------------------------

    def route(self, topic: str) -> TopicRoute | None:
        """The cached route, as the name server told it (or the template's, for a topic not created
        yet).
        """
        return self._routes.get(topic)

    def publish(self, topic: str) -> PublishInfo | None:
        """The cached list of queues to write; None when the topic was never looked up."""
        return self._publish.get(topic)

    def writable(self, topic: str) -> Sequence[MessageQueue] | None:
        """The queues of a topic that are written to, without asking anybody; None where none are
        known.
        """
        info = self._publish.get(topic)
        return info.queues if info is not None and info.queues else None

    def is_between_masters(self, topic: str) -> bool:
        """Whether a topic without queues to write may have some in a moment: it had some before
        (its master died or is drained), or a master is missing.
        """
        route = self._routes.get(topic)
        return topic in self._written or (
            route is not None and any(MASTER_ID not in data.addresses for data in route.brokers)
        )

    def brokers_missed(self, topic: str) -> set[str]:
        """Of a topic that is between masters: the brokers that may have queues to write again."""
        route = self._routes.get(topic)
        named = set() if route is None else {data.broker_name for data in route.brokers}
        return named | self._written.get(topic, set())

    def subscribe(self, topic: str) -> tuple[MessageQueue, ...]:
        """The cached list of queues to read; empty when there is none."""
        return self._subscribe.get(topic, ())

    def broker_names(self) -> list[str]:
        """Brokers with a known address."""
        return list(self._brokers)

    def addresses(self, broker_name: str) -> dict[int, Address]:
        """Broker id -> address; empty when the name is unknown. Not to be changed by the caller."""
        return self._brokers.get(broker_name, {})

    def broker_address(self, broker_name: str, broker_id: int = MASTER_ID) -> Address | None:
        """The address of exactly this broker, None when the cache has none."""
        return self.addresses(broker_name).get(broker_id)

    def subscribe_address(
        self, broker_name: str, broker_id: int = MASTER_ID, only_this: bool = False
    ) -> tuple[int, Address] | None:
        """(id, address) to read from: the asked one; a missing slave -> the next id; else, unless
        ``only_this``, the first there is.
        """
        known = self.addresses(broker_name)
        if self._avoided and not self._avoided.issuperset(known.values()):
            known = {
                number: address for number, address in known.items() if address not in self._avoided
            }
        found = broker_id if broker_id in known else None
        if found is None and broker_id != MASTER_ID and broker_id + 1 in known:
            found = broker_id + 1
        if found is None and known and not only_this:
            found = next(iter(known))
        return None if found is None else (found, known[found])

    def avoid(self, address: Address) -> None:
        """Nobody answers there: read from another broker of the name, where there is one, until
        ``forgive``.
        """
        with self._lock:
            self._avoided |= {address}

    def forgive(self, address: Address) -> None:
        """The end of ``avoid``."""
        with self._lock:
            self._avoided -= {address}

    def all_addresses(self, masters_only: bool) -> list[Address]:
        """Every known broker's address, each once, in the order of broker names."""
        pairs = [
            (broker_id, address)
            for name in sorted(self._brokers)
            for broker_id, address in self._brokers[name].items()
        ]
        return list(
            dict.fromkeys(
                address
                for broker_id, address in pairs
                if broker_id == MASTER_ID or not masters_only
            )
        )

    def topic_of_copies(self, address: Address) -> str | None:
        """A topic in whose route the broker at this address has other copies, too; None when there
        are none.
        """
        names = {
            name
            for name, known in self._brokers.copy().items()
            if len(known) > 1 and address in known.values()
        }
        return (
            next(
                (
                    topic
                    for topic, route in self._routes.copy().items()
                    for data in route.brokers
                    if data.broker_name in names
                ),
                None,
            )
            if names
            else None
        )

    def topics(self) -> list[str]:
        """Topics with a cached route."""
        return list(self._routes)

    # --- looking up -------------------------------------------------------------------------------

    def find_publish(
        self, topic: str, default_queues: int = DEFAULT_TOPIC_QUEUES, until_ms: float = WHENEVER
    ) -> PublishInfo:
        """The queues to write: from the cache, else the topic's route, else the template topic's
        (min(``default_queues``, its queues)).

        ``until_ms``: when to give up, monotonic. Raises ``TopicNotWritable`` for a topic that is
        read-only by its own permission, ``NoRoute`` when there is no writable queue for any other
        reason, ``RemotingError`` when no name server answers.
        """
        info = self._publish.get(topic)
        if info is not None and info.queues:
            return info
        asked = (
            self._locked(topic, lambda: self._look_up(topic, default_queues, until_ms), until_ms)
            is not None
        )
        info = self._publish.get(topic)
        if info is None or not info.queues:
            if not asked:
                raise RequestTimeout(
                    f"the route of topic {topic!r} was not asked for: another one's is "
                    f"waited for, and its name server does not answer",
                    topic,
                )
            if self._read_only.get(topic):
                raise self._not_writable(topic)
            raise self._no_route(topic)
        if topic in self._from_template and topic not in self._told:
            self._tell_creation(topic, info)
        return info

    def find_subscribe(self, topic: str) -> tuple[MessageQueue, ...]:
        """The queues to read: from the cache, else the topic's route; empty when the topic does not
        exist (yet).
        """
        if topic not in self._routes:
            self.refresh(topic)
        return self.subscribe(topic)

    def refresh(self, topic: str) -> bool:
        """Fetch the topic's route now; True when it differs from the cached one. ``RemotingError``
        when no name server answers.
        """
        return bool(self._locked(topic, lambda: self._update(topic, self._fetch(topic, WHENEVER))))

    def refresh_all(self, topics: set[str]) -> None:
        """Refresh each; a failure leaves the cached route. The first one of an outage is logged,
        and its end: sends ask 20 times a second meanwhile.
        """
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
            living = {
                address
                for route in self._routes.values()
                for data in route.brokers
                for address in data.addresses.values()
            }
            dropped: list[Address] = []
            for name, known in self._brokers.copy().items():
                kept = {
                    broker_id: address
                    for broker_id, address in known.items()
                    if str(address) in living
                }
                dropped += [address for address in known.values() if str(address) not in living]
                if kept:
                    self._brokers[name] = kept
                else:
                    del self._brokers[name]
            return dropped

    # --- inside -----------------------------------------------------------------------------------

    def _locked(
        self, topic: str, action: Callable[[], bool], until_ms: float = WHENEVER
    ) -> bool | None:
        """What ``action`` returns, alone; None when another one is at it for too long."""
        patience_ms = max(0.0, min(LOCK_TIMEOUT_MS, until_ms - self._clock.monotonic_ms()))
        if not self._lock.acquire(timeout=patience_ms / 1000):
            log.warning(
                "route of %s not refreshed: another refresh holds the lock for more than %d ms",
                topic,
                patience_ms,
            )
            return None
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

    def _look_up(self, topic: str, default_queues: int, until_ms: float) -> bool:
        """Under the lock: another thread may have found it meanwhile, or that it is read-only; then
        the topic itself, then the template.
        """
        if ((info := self._publish.get(topic)) is not None and info.ok) or self._read_only.get(
            topic, 0.0
        ) > self._clock.monotonic_ms():
            return False
        route = self._fetch(topic, until_ms)
        changed = self._update(topic, route)
        if (info := self._publish.get(topic)) is not None and info.ok:
            return changed
        if route is None and not is_own_topic(topic):
            self._from_template.add(topic)
        read_only = route is not None and self._is_read_only(topic, route, until_ms)
        if read_only:  # what closed it may have been a drain that has ended since, or one has begun
            again = self._fetch(topic, until_ms)
            changed = self._update(topic, again) or changed
            if (info := self._publish.get(topic)) is not None and info.ok:
                return changed
            read_only = again == route or (
                again is not None and self._is_read_only(topic, again, until_ms)
            )
        self._read_only[topic] = self._clock.monotonic_ms() + READ_ONLY_MS if read_only else 0.0
        return (
            changed
            if read_only
            else self._update_default(topic, default_queues, until_ms) or changed
        )

    def _is_read_only(self, topic: str, route: TopicRoute, until_ms: float) -> bool:
        """Whether the topic itself forbids what its brokers allow. Of a broker that is drained, or
        has lost its write permission, name servers show no topic as writable, that of its own name
        included; one that had queues to write and is away may have them again.
        """
        names = {data.broker_name for data in route.queues}
        masters = {data.broker_name for data in route.brokers if MASTER_ID in data.addresses}
        possible = bool(names) and self._written.get(topic, set()) <= names <= masters
        return possible and all(self._takes_writes(name, until_ms) for name in sorted(names))

    def _takes_writes(self, broker_name: str, until_ms: float) -> bool:
        route = self._fetch(broker_name, until_ms)
        return route is not None and any(
            data.broker_name == broker_name and data.permission & Permission.WRITE
            for data in route.queues
        )

    def _not_writable(self, topic: str) -> TopicNotWritable:
        queues = self._routes[topic].queues
        where = ", ".join(
            f"permission {data.permission} and {data.write_queues} write queues on "
            f"{data.broker_name}"
            for data in queues
        )
        remedy = (
            f"`rmq-ray topic create {topic} --queues "
            f"{max([1, *(data.read_queues for data in queues)])} --perm 6`"
        )
        return TopicNotWritable(
            f"topic {topic!r} takes no messages ({where}); nothing was sent: send to another "
            f"topic, or make it writable by {remedy}",
            topic,
        )

    def _no_route(self, topic: str) -> NoRoute:
        head = f"no route info of topic {topic!r}: no broker serves it for writing"
        before = ", ".join(sorted(self._written.get(topic, ())))
        if not before:
            remedy = f"create it with `rmq-ray topic create {topic} --queues 4`"
            meant = did_you_mean(self._similar(topic))
            return NoRoute(f"{head}; nothing was sent: {remedy}{meant}", topic)
        return NoRoute(
            f"{head} now, {before} did before: start what is away, end a drain, or give the "
            f"topic permission 6 where it has another",
            topic,
        )

    def _tell_creation(self, topic: str, info: PublishInfo) -> None:
        self._told.add(topic)
        counts = Counter(queue.broker_name for queue in info.queues)
        log.warning(
            "no name server knows topic %r: it is created automatically with %d queues on each "
            "broker that a message goes to%s",
            topic,
            max(counts.values()),
            did_you_mean(self._similar(topic)),
        )

    def _update_default(self, topic: str, default_queues: int, until_ms: float) -> bool:
        template = self._fetch(DEFAULT_TOPIC, until_ms)
        return self._update(
            topic, None if template is None else default_route(template, default_queues)
        )

    def _update(self, topic: str, route: TopicRoute | None) -> bool:
        if route is None:
            return False
        route = normalized(route)
        # also where this topic's route is the known one: another topic's may have been fetched
        # while a broker was away
        for data in route.brokers:
            before = self.broker_address(data.broker_name)
            known = self._brokers[data.broker_name] = {
                broker_id: Address.parse(text) for broker_id, text in sorted(data.addresses.items())
            }
            if before is not None and known.get(MASTER_ID, before) != before:
                self._replaced.append(before)
        if route == self._routes.get(topic):
            return False
        self._publish[topic] = info = publish_info(topic, route)
        if info.ok:
            self._written.setdefault(topic, set()).update(info.brokers)
        self._subscribe[topic] = subscribe_queues(topic, route)
        self._routes[topic] = route
        self._read_only.pop(topic, None)  # was said of the route before
        return True


class RouteWatch:
    """Looks at a topic's route again and again while sends to it fail: a broker that is promoted
    elsewhere is found within 50 ms of its registration.

    One of a client instance. ``refresh(topic)`` fetches one route, in the timers' thread. One look
    at a time for each topic, and none once no send has failed for a second.
    """

    def __init__(self, timers: ClientTimers, clock: Clock, refresh: Callable[[str], None]) -> None:
        self._timers = timers
        self._clock = clock
        self._refresh = refresh
        self._lock = threading.Lock()
        self._until: dict[str, float] = {}

    def look(self, topic: str) -> None:
        """A send to the topic failed and will be tried again: look now, and go on looking. Any
        thread; returns at once.
        """
        with self._lock:
            watched = topic in self._until
            self._until[topic] = self._clock.monotonic_ms() + WATCH_LASTING_MS
        if not watched:
            self._timers.soon(f"watch of {topic}", lambda: self._go_on(topic))

    def _go_on(self, topic: str) -> None:
        with self._lock:
            if self._clock.monotonic_ms() > self._until.get(topic, 0.0):
                self._until.pop(topic, None)
                return
        try:
            self._refresh(topic)
        finally:
            self._timers.after(WATCH_EVERY_MS, lambda: self._go_on(topic))
