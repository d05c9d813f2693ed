"""Strategies that look at where queues and consumers are: by configuration, by machine room, on
some hosts only (protocol-behaviour 14).

    ByConfig             this consumer's queues are written down
    ByMachineRoom        queues of brokers named "<room>@<name>" in some rooms, in equal shares
    MachineRoomNearby    another strategy within each room; a room without consumers is everybody's
    OnlyHosts            another strategy among the consumers of some hosts

Invariants: MachineRoomNearby and OnlyHosts give each queue to exactly one consumer, if the strategy
within does. ByConfig and ByMachineRoom give what their settings say, as in RocketMQ: a queue that
no setting names has no owner, and one that two consumers' settings name has two.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from rmq_ray.errors import ClientError, ConfigError
from rmq_ray.model.ids import MessageQueue
from rmq_ray.model.topics import RETRY_PREFIX
from rmq_ray.protocol.allocation.even import AllocationStrategy, Averagely, host_of, index_of

ROOM_MARK = "@"


@dataclass(frozen=True, slots=True)
class ByConfig:
    """RocketMQ's CONFIG: exactly these queues, of whichever topics, whoever else is in the group.

    Two departures, both so that messages find a consumer: the group's retry topic, which nobody
    writes into such a list, is divided by ``otherwise``; a queue that the topic does not have (yet)
    is left out.
    """

    queues: tuple[MessageQueue, ...]
    otherwise: AllocationStrategy = field(default_factory=Averagely)
    name: str = "CONFIG"

    def __init__(
        self, queues: Iterable[MessageQueue], otherwise: AllocationStrategy | None = None
    ) -> None:
        listed = tuple(queues)
        for queue in listed:
            if not isinstance(queue, MessageQueue):
                raise ConfigError(
                    f"ByConfig needs MessageQueue(topic, broker_name, queue_id) values, not "
                    f"{queue!r:.80}",
                    repr(queue)[:80],
                )
        object.__setattr__(self, "queues", listed)
        object.__setattr__(self, "otherwise", otherwise or Averagely())
        object.__setattr__(self, "name", "CONFIG")

    def allocate(
        self, group: str, client_id: str, queues: Sequence[MessageQueue], client_ids: Sequence[str]
    ) -> list[MessageQueue]:
        """See the protocol."""
        index_of(client_id, queues, client_ids)
        if queues[0].topic.startswith(RETRY_PREFIX):
            return self.otherwise.allocate(group, client_id, queues, client_ids)
        present = frozenset(queues)
        return [queue for queue in self.queues if queue in present]


@dataclass(frozen=True, slots=True)
class ByMachineRoom:
    """RocketMQ's MACHINE_ROOM: queues of brokers named ``room@name`` whose room is one of
    ``rooms``, in equal shares; what is over goes one by one to the first consumers. Queues
    elsewhere have no owner here: another group member's rooms must name them.
    """

    rooms: frozenset[str]
    name: str = "MACHINE_ROOM"

    def __init__(self, rooms: Iterable[str]) -> None:
        object.__setattr__(self, "rooms", _names(rooms, "rooms", "no queue would have an owner"))
        object.__setattr__(self, "name", "MACHINE_ROOM")

    def allocate(
        self, group: str, client_id: str, queues: Sequence[MessageQueue], client_ids: Sequence[str]
    ) -> list[MessageQueue]:
        """See the protocol."""
        index = index_of(client_id, queues, client_ids)
        if index is None:
            return []
        near = [queue for queue in queues if room_in_name(queue.broker_name) in self.rooms]
        share, over = divmod(len(near), len(client_ids))
        mine = near[share * index : share * (index + 1)]
        return [*mine, near[index + share * len(client_ids)]] if index < over else mine


class MachineRooms(Protocol):
    """Who is where: RocketMQ's ``MachineRoomResolver``. An empty answer means that nobody knows,
    and the division fails.
    """

    def broker_room(self, queue: MessageQueue) -> str:
        """The room of the broker that has the queue."""
        ...

    def consumer_room(self, client_id: str) -> str:
        """The room of a consumer."""
        ...


@dataclass(frozen=True, slots=True)
class RoomTable:
    """Rooms written down: ``hosts`` by the address that a client id begins with, ``brokers`` by
    broker name. A broker that is not in the table may have its room in its name, ``room@name``.

    >>> rooms = RoomTable({"10.0.0.6": "east"}, {"broker-b": "west"})
    >>> rooms.consumer_room("10.0.0.6@77")
    'east'
    >>> [rooms.broker_room(MessageQueue("t", name, 0)) for name in ("broker-b", "east@a")]
    ['west', 'east']
    """

    hosts: Mapping[str, str]
    brokers: Mapping[str, str] = field(default_factory=dict)

    def broker_room(self, queue: MessageQueue) -> str:
        """See the protocol."""
        return self.brokers.get(queue.broker_name) or room_in_name(queue.broker_name)

    def consumer_room(self, client_id: str) -> str:
        """See the protocol."""
        return self.hosts.get(host_of(client_id), "")


@dataclass(frozen=True, slots=True)
class MachineRoomNearby:
    """RocketMQ's MACHINE_ROOM_NEARBY: ``inner`` divides a room's queues among the room's consumers;
    the queues of a room without any consumer are divided among all.
    """

    inner: AllocationStrategy
    rooms: MachineRooms

    def __post_init__(self) -> None:
        _strategy(self.inner)
        if not callable(getattr(self.rooms, "broker_room", None)) or not callable(
            getattr(self.rooms, "consumer_room", None)
        ):
            raise ConfigError(
                f"rooms must have broker_room(queue) and consumer_room(client_id), as "
                f"RoomTable has; not {self.rooms!r:.80}",
                repr(self.rooms)[:80],
            )

    @property
    def name(self) -> str:
        """The inner name behind RocketMQ's."""
        return f"MACHINE_ROOM_NEARBY-{self.inner.name}"

    def allocate(
        self, group: str, client_id: str, queues: Sequence[MessageQueue], client_ids: Sequence[str]
    ) -> list[MessageQueue]:
        """See the protocol. ``ClientError`` when the room of any queue or consumer is not known:
        then nothing may move.
        """
        if index_of(client_id, queues, client_ids) is None:
            return []
        queues_in: dict[str, list[MessageQueue]] = {}
        for queue in queues:
            queues_in.setdefault(_known(self.rooms.broker_room(queue), queue), []).append(queue)
        consumers_in: dict[str, list[str]] = {}
        for other in client_ids:
            consumers_in.setdefault(_known(self.rooms.consumer_room(other), other), []).append(
                other
            )
        here = self.rooms.consumer_room(client_id)
        near = queues_in.pop(here, None)
        found = self.inner.allocate(group, client_id, near, consumers_in[here]) if near else []
        for room in sorted(queues_in.keys() - consumers_in.keys()):
            found = [*found, *self.inner.allocate(group, client_id, queues_in[room], client_ids)]
        return found


@dataclass(frozen=True, slots=True)
class OnlyHosts:
    """Another strategy among the consumers of some hosts only; consumers elsewhere get nothing (a
    client id begins with its host).

    The consumer list is filtered before the division, so that every queue still has an owner. While
    no consumer of these hosts lives, the queues wait for one; with ``else_all`` all consumers share
    them meanwhile, so that no queue is ever without an owner.
    """

    inner: AllocationStrategy
    hosts: frozenset[str]
    else_all: bool = False

    def __init__(
        self, inner: AllocationStrategy, hosts: Iterable[str], else_all: bool = False
    ) -> None:
        object.__setattr__(self, "inner", _strategy(inner))
        object.__setattr__(
            self, "hosts", _names(hosts, "hosts", "no consumer could ever own a queue")
        )
        object.__setattr__(self, "else_all", else_all)

    @property
    def name(self) -> str:
        """The inner name with the restriction."""
        return f"{self.inner.name}-ONLY_HOSTS"

    def allocate(
        self, group: str, client_id: str, queues: Sequence[MessageQueue], client_ids: Sequence[str]
    ) -> list[MessageQueue]:
        """See the protocol."""
        index_of(client_id, queues, client_ids)
        allowed = [other for other in client_ids if host_of(other) in self.hosts]
        if not allowed and self.else_all:
            allowed = list(client_ids)
        return (
            self.inner.allocate(group, client_id, queues, allowed) if client_id in allowed else []
        )


def room_in_name(broker_name: str) -> str:
    """The room of a broker named ``room@name``; empty for other names.

    >>> [room_in_name(name) for name in ("east@broker-a", "broker-a", "a@b@c", "east@")]
    ['east', '', '', '']
    """
    parts = broker_name.rstrip(ROOM_MARK).split(ROOM_MARK)
    return parts[0] if len(parts) == 2 else ""


def _known(room: str, whose: object) -> str:
    if not room:
        raise ClientError(
            f"the machine room of {whose} is not known; add it to the table of rooms, or "
            f"every consumer keeps the queues that it has",
            str(whose),
        )
    return room


def _strategy(inner: AllocationStrategy) -> AllocationStrategy:
    if isinstance(inner, type) or not callable(getattr(inner, "allocate", None)):
        raise ConfigError(
            f"inner must be an allocation strategy such as Averagely(), not {inner!r:.80}",
            repr(inner)[:80],
        )
    return inner


def _names(values: Iterable[str], what: str, why: str) -> frozenset[str]:
    if isinstance(values, str):
        raise ConfigError(
            f"{what} must be a list of names, not the text {values!r}; write [{values!r}]", values
        )
    found = frozenset(values)
    if not found:
        raise ConfigError(f"{what} is empty: {why}; name at least one", ())
    return found
