"""Who is connected as what: consumer and producer groups, holders of queue locks, and whose word a
request is.

Decides: by which name a connection is known (its client id once it sent a heartbeat, else the
connection itself), and who counts as an administrator for offsets. Does not decide how groups merge
(``protocol.consumer_group``).

A group is consumed in one way at a time: by push and pull consumers, which own queues, or by simple
ones, which pop from all; both at once would each move the group's offsets past what the other has
in hand. Who comes second is refused.
"""

from __future__ import annotations

from collections.abc import Hashable

from rmq_ray.clock import Clock
from rmq_ray.model.groups import ConsumerData, ConsumeType, Heartbeat
from rmq_ray.model.ids import MessageQueue
from rmq_ray.ports import Peer
from rmq_ray.protocol.consumer_group import Connection, ConsumerGroup, ConsumerTable, ProducerTable
from rmq_ray.protocol.queue_locks import LOCK_LIFE_MS, QueueLocks

POP = ConsumeType.CONSUME_POP
CLIENT_ID = "client_id"
CONSUMER_GROUPS = "consumer_groups"
CLIENT_ID_CHARS_MAX = 1_024
GROUP_NAME_CHARS_MAX = 255
"""What Apache RocketMQ's clients allow, more than ours."""
GROUPS_PER_CONNECTION_MAX = 1_024


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

    def committing(  # noqa: PLR0913 - what a commit says of itself
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
