"""The routes a name server knows: RocketMQ's RouteInfoManager (protocol-behaviour 4).

Decides: what a registration, a silence, a closed connection, an administrator's order do to the
routes, and what is answered from them. Does not decide: what travels, when time passes. Called by
``server.namesrv.name_server``; not safe for threads.

    topicQueueTable      topic -> {broker name -> QueueData}
    brokerAddrTable      broker name -> BrokerData{cluster, broker name, {id -> address}}
    clusterAddrTable     cluster -> {broker names}
    brokerLiveTable      address -> Live{last heard, data version, connection, HA address}

RocketMQ's fifth table, of filter servers, is always empty here: class filters run uploaded code and
are left out.

Nothing is persisted and nothing exchanged with other name servers: routes come back with the next
registrations.

Invariants: an address stands under one id of one broker name; a broker name without addresses is in
no table; a cluster without broker names is not listed; topics are taken from masters only, and only
with a new data version or a first registration; a master never replaces one of a later epoch.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from rmq_ray.errors import MasterReplaced
from rmq_ray.model.ids import MASTER_ID
from rmq_ray.model.topics import (
    SYSTEM_TOPICS,
    BrokerData,
    DataVersion,
    Permission,
    QueueData,
    TopicConfig,
    TopicRoute,
)

BROKER_EXPIRY_MS = 120_000  # since the last registration
EPOCHS_MAX = 100_000  # broker names whose epoch is remembered, also after they left

Connection = object
Digest = tuple[int, int]
"""CRC-32 and length of a table as it was sent."""

UNIT = 1  # bits of a topic's sysFlag
UNIT_SUB = 2


@dataclass(frozen=True, slots=True)
class Registration:
    """One REGISTER_BROKER. ``topics`` None = the request brought no topic table. Addresses are
    ``host:port``.
    """

    cluster: str
    broker_name: str
    broker_id: int
    address: str
    ha_address: str = ""
    version: DataVersion = DataVersion()
    topics: Mapping[str, TopicConfig] | None = None
    epoch: int | None = None
    """Of a master that a controller elected: the epoch of its election."""
    digest: Digest | None = None


@dataclass(frozen=True, slots=True)
class Registered:
    """The answer. A slave learns its master, if one is registered. ``first``: nothing stood under
    this name and id before.
    """

    first: bool
    master_address: str | None = None
    master_ha_address: str | None = None


@dataclass(frozen=True, slots=True)
class Removed:
    """One address that left by silence or by its connection, and the connection to close."""

    address: str
    connection: Connection


@dataclass(slots=True)
class _Live:
    heard_ms: int
    version: DataVersion
    connection: Connection
    ha_address: str
    digest: Digest | None


class RouteTable:
    """All routes of one name server. Every answer is a copy, in a stable order."""

    def __init__(self) -> None:
        self._topics: dict[str, dict[str, QueueData]] = {}
        self._brokers: dict[str, BrokerData] = {}
        self._clusters: dict[str, set[str]] = {}
        self._live: dict[str, _Live] = {}
        self._epochs: dict[str, int] = {}

    # --- brokers come and go ---

    def register(
        self, registration: Registration, connection: Connection, now_ms: int
    ) -> Registered:
        """Steps 1 to 8 of protocol-behaviour 4.2 (without filter servers). On return routes show
        the broker.

        Raises ``MasterReplaced``, and nothing has changed, for a master of an older epoch than one
        that was registered under this name before.
        """
        r = registration
        self._check_epoch(r)
        self._leave_other_places(r)
        self._clusters.setdefault(r.cluster, set()).add(r.broker_name)
        broker = self._brokers.setdefault(r.broker_name, BrokerData(r.cluster, r.broker_name, {}))
        first = broker.addresses.get(r.broker_id) is None
        broker.addresses[r.broker_id] = r.address
        if (
            r.broker_id == MASTER_ID
            and r.topics is not None
            and (first or self.data_version(r.address) != r.version)
        ):
            for config in r.topics.values():
                self._put_queues(r.broker_name, config)
        self._live[r.address] = _Live(now_ms, r.version, connection, r.ha_address, r.digest)
        return self._answer(r, first)

    def unregister(self, broker_name: str, broker_id: int, address: str) -> bool:
        """UNREGISTER_BROKER; False when that address does not stand there (any more): a late one
        harms nobody's successor.
        """
        broker = self._brokers.get(broker_name)
        stands_there = broker is not None and broker.addresses.get(broker_id) == address
        if broker is not None and stands_there:
            self._remove_address(broker, broker_id)
        if not any(address in other.addresses.values() for other in self._brokers.values()):
            self._live.pop(address, None)
        return stands_there

    def expire(self, now_ms: int, expiry_ms: int = BROKER_EXPIRY_MS) -> list[Removed]:
        """Brokers that were silent for more than ``expiry_ms`` leave; their connections are to be
        closed.
        """
        return self._destroy(
            [address for address, live in self._live.items() if live.heard_ms + expiry_ms < now_ms]
        )

    def connection_closed(self, connection: Connection) -> list[Removed]:
        """Brokers whose newest registration came by this connection leave at once."""
        return self._destroy(
            [address for address, live in self._live.items() if live.connection == connection]
        )

    def version_of(
        self, broker_name: str, broker_id: int, address: str, digest: Digest | None
    ) -> DataVersion | None:
        """Of the table that this broker sends again, byte by byte, as it does each 30 s while
        nothing changes: it need not be read. None where it has to be.
        """
        live, broker = self._live.get(address), self._brokers.get(broker_name)
        stands = broker is not None and broker.addresses.get(broker_id) == address
        return live.version if stands and live and digest and live.digest == digest else None

    def data_version(self, address: str) -> DataVersion | None:
        """What the address registered last; None when it is not here (QUERY_DATA_VERSION)."""
        live = self._live.get(address)
        return live.version if live else None

    def refresh(self, address: str, version: DataVersion, now_ms: int) -> bool:
        """QUERY_DATA_VERSION: True when ``version`` is news; else the address counts as heard of
        now.
        """
        live = self._live.get(address)
        if live is None or live.version != version:
            return True
        live.heard_ms = now_ms
        return False

    # --- questions ---

    def route(self, topic: str) -> TopicRoute | None:
        """Queues and brokers of a topic, sorted by broker name; None unless there is at least one
        of each.
        """
        queues = self._topics.get(topic, {})
        brokers = tuple(
            _copy(self._brokers[name]) for name in sorted(queues) if name in self._brokers
        )
        if not brokers:
            return None
        return TopicRoute(tuple(queues[name] for name in sorted(queues)), brokers)

    def brokers(self) -> dict[str, BrokerData]:
        """Broker name -> addresses (GET_BROKER_CLUSTER_INFO)."""
        return {name: _copy(self._brokers[name]) for name in sorted(self._brokers)}

    def clusters(self) -> dict[str, tuple[str, ...]]:
        """Cluster -> broker names."""
        return {name: tuple(sorted(self._clusters[name])) for name in sorted(self._clusters)}

    def topics(self) -> list[str]:
        """Every topic, retry and dead-letter topics included."""
        return sorted(self._topics)

    def topics_of_cluster(self, cluster: str) -> list[str]:
        """Topics with queues on the cluster's brokers."""
        names = self._clusters.get(cluster, set())
        return sorted(
            topic for topic, queues in self._topics.items() if not names.isdisjoint(queues)
        )

    def system_topics(self) -> list[str]:
        """Names that users cannot take: clusters, broker names, built-in topics."""
        return sorted({*self._clusters, *self._brokers, *SYSTEM_TOPICS})

    @property
    def address_count(self) -> int:
        """Brokers heard of and not yet expired."""
        return len(self._live)

    def any_address(self) -> str | None:
        """Some broker's address, the master's if it has one."""
        for name in sorted(self._brokers):
            addresses = self._brokers[name].addresses
            return addresses[min(addresses)]
        return None

    def unit_topics(self, with_bits: int, without_bits: int = 0) -> list[str]:
        """Topics whose sysFlag has all of ``with_bits`` and none of ``without_bits`` (311 to
        313).
        """
        flags = {
            topic: next(iter(queues.values())).sys_flag for topic, queues in self._topics.items()
        }
        return sorted(
            topic
            for topic, flag in flags.items()
            if flag & with_bits == with_bits and not flag & without_bits
        )

    # --- orders ---

    def wipe_write_permission(self, broker_name: str) -> int:
        """Producers stop choosing this broker's queues; the number of topics touched, 0 for an
        unknown broker.
        """
        return self._change_permission(
            broker_name, lambda permission: permission & ~int(Permission.WRITE)
        )

    def add_write_permission(self, broker_name: str) -> int:
        """Undo a wipe: read and write for every topic of the broker; the number of topics
        touched.
        """
        return self._change_permission(broker_name, lambda _permission: int(Permission.READ_WRITE))

    def delete_topic(self, topic: str, cluster: str | None = None) -> None:
        """Forget a topic, or only its queues on one cluster's brokers. A master that still has it
        brings it back with its next data version.
        """
        if cluster is None:
            self._topics.pop(topic, None)
            return
        queues = self._topics.get(topic, {})
        for name in self._clusters.get(cluster, set()) & queues.keys():
            del queues[name]
        if topic in self._topics and not queues:
            del self._topics[topic]

    # --- inside ---

    def _check_epoch(self, r: Registration) -> None:
        """A master that was replaced may not know it yet. RocketMQ's own brokers, and those without
        a controller, name no epoch: they come and go as ever.
        """
        if r.epoch is None or r.broker_id != MASTER_ID:
            return
        known = self._epochs.pop(r.broker_name, 0)
        self._epochs[r.broker_name] = max(known, r.epoch)
        if len(self._epochs) > EPOCHS_MAX:
            del self._epochs[next(iter(self._epochs))]
        if r.epoch < known:
            raise MasterReplaced(
                f"the master of {r.broker_name} at {r.address} has epoch {r.epoch}, one of "
                f"epoch {known} was elected since",
                r.epoch,
            )

    def _leave_other_places(self, r: Registration) -> None:
        """A slave that became master keeps its address: the old id must go, or the route would show
        one process twice.
        """
        for broker in list(self._brokers.values()):
            same_name = broker.broker_name == r.broker_name
            for broker_id in [
                i
                for i, address in broker.addresses.items()
                if address == r.address and not (same_name and i == r.broker_id)
            ]:
                del broker.addresses[broker_id]
                self._live.pop(
                    r.address, None
                )  # what it registered elsewhere says nothing about its topics here
            if not broker.addresses and not same_name:
                self._remove_broker(broker)
            elif same_name and broker.cluster != r.cluster:
                self._leave_cluster(broker)
                self._brokers[r.broker_name] = replace(broker, cluster=r.cluster)

    def _put_queues(self, broker_name: str, config: TopicConfig) -> None:
        queues = QueueData(
            broker_name, config.read_queues, config.write_queues, config.permission, config.sys_flag
        )
        self._topics.setdefault(config.name, {})[broker_name] = queues

    def _answer(self, r: Registration, first: bool) -> Registered:
        master = (
            None
            if r.broker_id == MASTER_ID
            else self._brokers[r.broker_name].addresses.get(MASTER_ID)
        )
        live = self._live.get(master) if master else None
        return Registered(first, master, live.ha_address) if live else Registered(first)

    def _destroy(self, addresses: list[str]) -> list[Removed]:
        removed = []
        for address in addresses:
            removed.append(Removed(address, self._live.pop(address).connection))
            for broker in list(self._brokers.values()):
                for broker_id in [i for i, stands in broker.addresses.items() if stands == address]:
                    self._remove_address(broker, broker_id)
        return removed

    def _remove_address(self, broker: BrokerData, broker_id: int) -> None:
        """The last address takes its broker name and that one's queues along; before that, topics
        stay (routes without master).
        """
        del broker.addresses[broker_id]
        if not broker.addresses:
            self._remove_broker(broker)

    def _remove_broker(self, broker: BrokerData) -> None:
        del self._brokers[broker.broker_name]
        self._leave_cluster(broker)
        for topic, queues in list(self._topics.items()):
            queues.pop(broker.broker_name, None)
            if not queues:
                del self._topics[topic]

    def _leave_cluster(self, broker: BrokerData) -> None:
        names = self._clusters[broker.cluster]
        names.discard(broker.broker_name)
        if not names:
            del self._clusters[broker.cluster]

    def _change_permission(self, broker_name: str, change: Callable[[int], int]) -> int:
        touched = [queues for queues in self._topics.values() if broker_name in queues]
        for queues in touched:
            queues[broker_name] = replace(
                queues[broker_name], permission=change(queues[broker_name].permission)
            )
        return len(touched)


def _copy(broker: BrokerData) -> BrokerData:
    return replace(broker, addresses=dict(sorted(broker.addresses.items())))
