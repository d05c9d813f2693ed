"""Who is master of a broker name, and what each copy of its log says of itself: what controller,
master and slaves tell one another.

The terms are RocketMQ 5's: the *sync state set* holds the replicas that may be elected,
``master_epoch`` rises with every election. Under a controller the epoch of an election is the epoch
of the log that the elected master writes: no other event begins one.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

MASTER_ID = 0


class Role(Enum):
    """What a replica does now."""

    WAITING = "waiting"
    """Its disk is still read, or cannot be."""
    SLAVE = "slave"
    MASTER = "master"


@dataclass(frozen=True, slots=True)
class Assignment:
    """What the controller has decided of one broker name and keeps on its disk. ``replica``: a
    number from 0 on, for ever the same store.

    ``master`` None: there is no master now, slaves follow nobody. ``version`` rises with every
    change of ``sync_state_set`` within an epoch.
    """

    broker_name: str
    master_epoch: int
    master: int | None
    master_address: str | None
    sync_state_set: tuple[int, ...]
    version: int = 0

    def newer_than(self, other: Assignment) -> bool:
        """Whether this was decided later."""
        return (self.master_epoch, self.version) > (other.master_epoch, other.version)


@dataclass(frozen=True, slots=True)
class Standing:
    """What the controller's ledger keeps of one broker name. ``former``: who was master before the
    election that runs or ran last; None = nobody knows.
    """

    assignment: Assignment
    former: int | None


@dataclass(frozen=True, slots=True)
class ReplicaReport:
    """What one replica says of itself. Log offsets in bytes. ``role`` MASTER: it serves sends under
    ``master_epoch``.

    ``sound``: its log has all that it ever wrote or, with flush="sync", synced. ``promise_ms``: so
    long it still may not be promoted, because the master that it reported to counts on it.
    ``error``: why it is WAITING, empty while its disk is read.
    """

    replica: int
    role: Role
    address: str
    store: str
    """Identity of its store."""
    log_epoch: int
    end: int
    flushed: int
    sound: bool
    promise_ms: int
    master_epoch: int = 0
    error: str = ""
    newest_epoch: int = 0
    """The greatest epoch that its log has ever named: an election takes a greater one.
    ``log_epoch`` is the newest that begins within the log.
    """
    broken: int = 0
    """How many stretches of its log are in quarantine."""


def slave_id(replica: int, master: int) -> int:
    """The broker id of a replica: 0 for the master, dense numbers from 1 on for the others.

    >>> [slave_id(replica, 1) for replica in range(3)]
    [1, 0, 2]
    """
    if replica == master:
        return MASTER_ID
    return replica if replica > master else replica + 1


def replica_of(broker_id: int, master: int) -> int:
    """The replica that ``slave_id`` gave this broker id while ``master`` is the master.

    >>> [replica_of(slave_id(replica, 1), 1) for replica in range(3)]
    [0, 1, 2]
    """
    if broker_id == MASTER_ID:
        return master
    return broker_id if broker_id > master else broker_id - 1
