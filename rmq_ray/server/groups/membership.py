"""Who is connected as what: consumer and producer groups, holders of queue locks, and whose word a
request is (protocol-behaviour 12).

    GroupMembership   the tables of one broker, and by which name a connection is known: its client
                      id once it sent a heartbeat, else the connection itself
    ConsumerTable     group -> ConsumerGroup (channelInfoTable: connection -> client,
                      subscriptionTable: topic -> Subscription, how it consumes)
    ProducerTable     group -> {connection -> client}

Decides: how heartbeats merge, which connections must be told that a group changed
(NOTIFY_CONSUMER_IDS_CHANGED), who has gone, who counts as an administrator for offsets. Does not
decide: whether a group may exist, what its settings are, how a notice travels.

A group is consumed in one way at a time: by push and pull consumers, which own queues, or by simple
ones, which pop from all; both at once would each move the group's offsets past what the other has
in hand. Who comes second is refused.

A connection is anything hashable (the listener's peer). Every change of the tables returns a
``GroupChange``; ``notify`` holds the connections to tell, in the order they came, empty where
nobody is to be told. The two tables are pure: time is an argument. Used in the broker's loop only.

Invariants: a group without connections is not in the table; ``clients`` lists each client id once,
in order of arrival.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Set
from dataclasses import dataclass, field

from rmq_ray.clock import Clock
from rmq_ray.model.groups import (
    ConsumeFromWhere,
    ConsumerData,
    ConsumeType,
    Heartbeat,
    MessageModel,
    Subscription,
)
from rmq_ray.model.ids import MessageQueue
from rmq_ray.ports import Peer
from rmq_ray.protocol.filters.subscription_conflicts import Conflicts, Declarations
from rmq_ray.protocol.queue_locks import LOCK_LIFE_MS, QueueLocks

CHANNEL_EXPIRY_MS = 120_000  # without heartbeat

POP = ConsumeType.CONSUME_POP
CLIENT_ID = "client_id"
CONSUMER_GROUPS = "consumer_groups"
CLIENT_ID_CHARS_MAX = 1_024
GROUP_NAME_CHARS_MAX = 255
"""What Apache RocketMQ's clients allow, more than ours."""
GROUPS_PER_CONNECTION_MAX = 1_024


Connection = object


@dataclass(slots=True)
class Client:
    """One client on one connection; ``heard_ms``: its last heartbeat."""

    client_id: str
    heard_ms: int
    language: int = 3
    version: int = 407


@dataclass(frozen=True, slots=True)
class GroupChange:
    """What a call changed in one group. ``changed``: members or topics differ (a newer version of a
    subscription alone does not count).
    """

    group: str
    changed: bool
    notify: tuple[Connection, ...] = ()
    removed: bool = False
    """The group has no members left and is gone."""


@dataclass(frozen=True, slots=True)
class ExpiredMembers:
    """What housekeeping found: connections to close, groups that changed by it."""

    connections: tuple[Connection, ...]
    changes: tuple[GroupChange, ...]


@dataclass(slots=True)
class ConsumerGroup:
    """One group as its newest heartbeat describes it; mixed subscriptions of one group overwrite
    each other, as in RocketMQ, and are told.
    """

    name: str
    consume_type: ConsumeType
    model: MessageModel
    from_where: ConsumeFromWhere
    channels: dict[Connection, Client] = field(default_factory=dict)
    subscriptions: dict[str, Subscription] = field(default_factory=dict)
    declared: Declarations = field(default_factory=Declarations)

    def conflicts(self) -> Conflicts:
        """Topics that the members subscribe to differently, and who says what; empty where all
        agree.
        """
        return self.declared.conflicts(
            {connection: client.client_id for connection, client in self.channels.items()}
        )

    def leave(self, connection: Connection) -> bool:
        """The member at this connection is gone; False when there was none."""
        self.declared.forget(connection)
        return self.channels.pop(connection, None) is not None

    @property
    def client_ids(self) -> list[str]:
        """Each id once: a client that reconnected is there twice until its old connection is seen
        to be closed.
        """
        return list(dict.fromkeys(client.client_id for client in self.channels.values()))

    def join(self, connection: Connection, client: Client) -> bool:
        """A heartbeat of ``client``; True when the connection is new to the group."""
        known = self.channels.get(connection)
        if known is not None and known.client_id == client.client_id:
            known.heard_ms = client.heard_ms
            return False
        self.channels[connection] = client
        return known is None or known.client_id != client.client_id

    def merge(self, subscriptions: Iterable[Subscription]) -> bool:
        """New topics are added, higher versions replace, absent topics go; True when the set of
        topics changed.
        """
        told = {subscription.topic: subscription for subscription in subscriptions}
        changed = told.keys() != self.subscriptions.keys()
        for topic in self.subscriptions.keys() - told.keys():
            del self.subscriptions[topic]
        for topic, subscription in told.items():
            known = self.subscriptions.get(topic)
            if known is None or subscription.version > known.version:
                self.subscriptions[topic] = subscription
        return changed


class ConsumerTable:
    """Consumer groups by name."""

    def __init__(self) -> None:
        self._groups: dict[str, ConsumerGroup] = {}

    def __contains__(self, group: str) -> bool:
        return group in self._groups

    def find(self, group: str) -> ConsumerGroup | None:
        """The group, None without members."""
        return self._groups.get(group)

    def groups(self) -> list[str]:
        """Names of the groups that have members, sorted."""
        return sorted(self._groups)

    def client_ids(self, group: str) -> list[str]:
        """Client ids of a group, each once; empty without members (GET_CONSUMER_LIST_BY_GROUP then
        answers SYSTEM_ERROR).
        """
        found = self._groups.get(group)
        return found.client_ids if found else []

    def subscription(self, group: str, topic: str) -> Subscription | None:
        """How the group's newest heartbeat filters the topic."""
        found = self._groups.get(group)
        return found.subscriptions.get(topic) if found else None

    def groups_of_topic(self, topic: str) -> list[str]:
        """Groups whose members subscribe to the topic, sorted (QUERY_TOPIC_CONSUME_BY_WHO)."""
        return sorted(name for name, group in self._groups.items() if topic in group.subscriptions)

    def connection_of(self, group: str, client_id: str) -> Connection | None:
        """The newest connection of one client, for requests that are meant for it alone (307,
        309).
        """
        found = self._groups.get(group)
        matching = (
            [
                connection
                for connection, client in found.channels.items()
                if client.client_id == client_id
            ]
            if found
            else []
        )
        return matching[-1] if matching else None

    def register(
        self, data: ConsumerData, connection: Connection, client: Client, notify: bool = True
    ) -> GroupChange:
        """One group of a heartbeat. All connections of the group are told when a member or the set
        of topics is new.

        ``notify``: the group's notifyConsumerIdsChangedEnable.
        """
        group = self._groups.get(data.group)
        if group is None:
            group = self._groups[data.group] = ConsumerGroup(
                data.group, data.consume_type, data.model, data.from_where
            )
        group.consume_type, group.model, group.from_where = (
            data.consume_type,
            data.model,
            data.from_where,
        )
        joined = group.join(connection, client)
        resubscribed = group.merge(data.subscriptions)
        group.declared.hear(connection, data.subscriptions)
        changed = joined or resubscribed
        return GroupChange(data.group, changed, tuple(group.channels) if changed and notify else ())

    def unregister(self, group: str, connection: Connection, notify: bool = True) -> GroupChange:
        """UNREGISTER_CLIENT for one consumer group; those that stay are told."""
        found = self._groups.get(group)
        if found is None or not found.leave(connection):
            return GroupChange(group, False)
        return self._after_removal(found, notify)

    def closed(self, connection: Connection) -> list[GroupChange]:
        """The connection is gone: it leaves all its groups at once, no waiting for the expiry."""
        changes = []
        for group in list(self._groups.values()):
            if group.leave(connection):
                changes.append(self._after_removal(group, True))
        return changes

    def expire(self, now_ms: int, expiry_ms: int = CHANNEL_EXPIRY_MS) -> ExpiredMembers:
        """Members without a heartbeat for longer than ``expiry_ms`` leave; their connections are to
        be closed.
        """
        gone: dict[Connection, None] = {}
        changes = []
        for group in list(self._groups.values()):
            silent = _silent(group.channels, now_ms, expiry_ms)
            for connection in silent:
                group.leave(connection)
            if silent:
                changes.append(self._after_removal(group, True))
            gone.update(dict.fromkeys(silent))
        return ExpiredMembers(tuple(gone), tuple(changes))

    def _after_removal(self, group: ConsumerGroup, notify: bool) -> GroupChange:
        if not group.channels:
            del self._groups[group.name]
        return GroupChange(
            group.name, True, tuple(group.channels) if notify else (), removed=not group.channels
        )


class ProducerTable:
    """Producer groups by name: whom the broker can ask about a half message. Who announced that it
    has no checker is a member, but is not asked.
    """

    def __init__(self) -> None:
        self._groups: dict[str, dict[Connection, Client]] = {}
        self._of: dict[Connection, dict[str, None]] = {}
        self._without_checker: set[tuple[str, Connection]] = set()
        self._turn = 0

    def groups(self) -> dict[str, dict[Connection, Client]]:
        """A copy of the table (GET_ALL_PRODUCER_INFO)."""
        return {name: dict(channels) for name, channels in self._groups.items()}

    def channels(self, group: str) -> dict[Connection, Client]:
        """The group's connections, empty without members."""
        return dict(self._groups.get(group, ()))

    def groups_of(self, connection: Connection) -> Set[str]:
        """The groups that a connection is in."""
        return self._of.get(connection, {}).keys()

    def register(
        self, group: str, connection: Connection, client: Client, without_checker: bool = False
    ) -> bool:
        """One producer group of a heartbeat; True when the connection is new to it."""
        channels = self._groups.setdefault(group, {})
        if without_checker:
            self._without_checker.add((group, connection))
        else:
            self._without_checker.discard((group, connection))
        self._of.setdefault(connection, {})[group] = None
        known = channels.get(connection)
        if known is None or known.client_id != client.client_id:
            channels[connection] = client
            return known is None
        known.heard_ms = client.heard_ms
        return False

    def unregister(self, group: str, connection: Connection) -> bool:
        """UNREGISTER_CLIENT for one producer group; False when it was not there."""
        channels = self._groups.get(group, {})
        if channels.pop(connection, None) is None:
            return False
        self._without_checker.discard((group, connection))
        if not channels:
            del self._groups[group]
        mine = self._of[connection]
        del mine[group]
        if not mine:
            del self._of[connection]
        return True

    def closed(self, connection: Connection) -> list[str]:
        """The connection is gone; the groups it left."""
        left = list(self.groups_of(connection))
        for group in left:
            self.unregister(group, connection)
        return left

    def expire(self, now_ms: int, expiry_ms: int = CHANNEL_EXPIRY_MS) -> list[Connection]:
        """Members that were silent too long leave; their connections, to be closed."""
        gone: dict[Connection, None] = {}
        for group, channels in list(self._groups.items()):
            for connection in _silent(channels, now_ms, expiry_ms):
                self.unregister(group, connection)
                gone[connection] = None
        return list(gone)

    def next_connection(
        self, group: str, is_open: Callable[[Connection], bool] = lambda _connection: True
    ) -> Connection | None:
        """A live connection of the group, in turn; any member that has a checker can answer for a
        crashed one (check-back).
        """
        channels = [
            member
            for member in self._groups.get(group, ())
            if (group, member) not in self._without_checker
        ]
        for step in range(len(channels)):
            connection = channels[(self._turn + step) % len(channels)]
            if is_open(connection):
                self._turn += step + 1
                return connection
        return None


def _silent(channels: dict[Connection, Client], now_ms: int, expiry_ms: int) -> list[Connection]:
    return [
        connection
        for connection, client in channels.items()
        if now_ms - client.heard_ms > expiry_ms
    ]


class GroupMembership:
    """The tables of one broker that connections fill."""

    def __init__(self, broker_name: str, clock: Clock, lock_life_ms: int = LOCK_LIFE_MS) -> None:
        self._broker_name = broker_name
        self._clock = clock
        self.consumers = ConsumerTable()
        self.producers = ProducerTable()
        self._channels: dict[str, Peer] = {}
        self._connections: dict[str, set[Peer]] = {}
        self.locks = QueueLocks(lock_life_ms)

    def introduce(self, peer: Peer, client_id: str, group: str | None = None) -> None:
        """A heartbeat says who is at the other end, and in which consumer group."""
        before = peer.attributes.get(CLIENT_ID)
        if before is not None and before != client_id:
            self._disconnect(peer, before)
            if self._channels.get(before) is peer:
                del self._channels[before]
        peer.attributes[CLIENT_ID] = client_id
        held = self._channels.get(client_id)
        if (
            held is None
            or held.closed
            or (held.account, held.member) == (peer.account, peer.member)
        ):
            self._channels[client_id] = peer  # of others' accounts nobody takes the replies
        self._connections.setdefault(client_id, set()).add(peer)
        self.locks.returned(client_id)
        if group is not None:
            peer.attributes.setdefault(CONSUMER_GROUPS, set()).add(group)

    def refusal_to_know(self, beat: Heartbeat, peer: Peer) -> str | None:
        """Why a heartbeat is not taken in, with all that this connection's earlier ones said; None
        when it is.
        """
        if len(beat.client_id) > CLIENT_ID_CHARS_MAX:
            return f"a client id has at most {CLIENT_ID_CHARS_MAX} characters"
        consumed = {data.group for data in beat.consumers}
        produced = set(beat.producer_groups)
        for group in consumed | produced:
            if len(group) > GROUP_NAME_CHARS_MAX:
                return f"the group {group[:40]}... has more than {GROUP_NAME_CHARS_MAX} characters"
        consumed |= peer.attributes.get(CONSUMER_GROUPS, set())
        produced |= self.producers.groups_of(peer)
        if len(consumed) + len(produced) > GROUPS_PER_CONNECTION_MAX:
            return (
                f"more than {GROUPS_PER_CONNECTION_MAX} groups over one connection; use several "
                f"client instances"
            )
        return None

    def channel(self, client_id: str) -> Peer | None:
        """The connection whose heartbeat gave this id last; None when it is gone."""
        return self._channels.get(client_id)

    def forget(self, peer: Peer) -> None:
        """The connection is gone. A client that closed its last one has left, and its queue locks
        end soon; what this broker closed, or the network lost, may still be somebody who works.
        """
        client_id = peer.attributes.get(CLIENT_ID)
        if client_id is None:
            return
        if self._channels.get(client_id) is peer:
            del self._channels[client_id]
        if self._disconnect(peer, client_id) and peer.hung_up:
            self.locks.left(client_id, self._clock.monotonic_ms())

    def _disconnect(self, peer: Peer, client_id: str) -> bool:
        """True when that was the client's last connection."""
        connections = self._connections.get(client_id, set())
        connections.discard(peer)
        if connections:
            return False
        self._connections.pop(client_id, None)
        return True

    def client_of(self, peer: Peer) -> Hashable:
        """The client id, or the connection where it never told one."""
        known: Hashable = peer.attributes.get(CLIENT_ID) or id(peer)
        return known

    def is_member(self, group: str, peer: Peer) -> bool:
        """Whether the connection is in the consumer group now."""
        found = self.consumers.find(group)
        return found is not None and peer in found.channels

    def is_administrator(self, group: str, peer: Peer, oneway: bool) -> bool:
        """A connection that asks for an answer and never was a consumer of the group: a tool, not a
        consumer that was left behind.
        """
        return not oneway and group not in peer.attributes.get(CONSUMER_GROUPS, ())

    def lock_holder(self, group: str, topic: str, queue_id: int) -> Hashable | None:
        """Client id that holds the queue for ordered consumption."""
        if not len(self.locks):
            return None
        return self.locks.holder(
            group, MessageQueue(topic, self._broker_name, queue_id), self._clock.monotonic_ms()
        )

    def committing(
        self,
        peer: Peer,
        group: str,
        topic: str,
        queue_id: int,
        lock_epoch: int,
        client_id: str | None = None,
    ) -> tuple[Hashable, Hashable | None]:
        """(who commits, who holds the queue). An epoch that is in force is its holder's proof, and
        a client id in the commit says who it is, also before the connection's first heartbeat.
        """
        if lock_epoch:
            return lock_epoch, lock_epoch
        return client_id or self.client_of(peer), self.lock_holder(group, topic, queue_id)

    def is_fenced(self, group: str, topic: str, queue_id: int, lock_epoch: int) -> bool:
        """Whether somebody else has had the queue since the lock of this epoch (> 0) was
        granted.
        """
        return not self.locks.admits(
            group, MessageQueue(topic, self._broker_name, queue_id), lock_epoch
        )


def divides_queues(data: ConsumerData) -> bool:
    """Whether the members divide the queues among them, so that each must hear of every other."""
    return data.consume_type is not POP


def refusal_to_join(
    found: ConsumerGroup | None, data: ConsumerData, connection: Connection
) -> str | None:
    """Why ``data`` cannot join ``found`` over this connection; None when it can."""
    if found is None or (found.consume_type is POP) == (data.consume_type is POP):
        return None
    others = list(
        dict.fromkeys(
            client.client_id for peer, client in found.channels.items() if peer is not connection
        )
    )
    if not others:
        return None
    used, wanted = (
        ("simple", "push or pull") if found.consume_type is POP else ("push or pull", "simple")
    )
    return (
        f"group {data.group} is used by {used} consumers ({', '.join(others[:3])}); {wanted} "
        f"consumers need another group, or stop those first"
    )


def refusal_to_pull(found: ConsumerGroup | None) -> str | None:
    """Why a member's pull is not served; None when it is."""
    if found is None or found.consume_type is not POP:
        return None
    return (
        f"group {found.name} is used by simple consumers ({', '.join(found.client_ids[:3])}); "
        f"pull as another group, or stop them"
    )
