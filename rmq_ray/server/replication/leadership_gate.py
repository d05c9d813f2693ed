"""What a broker under a controller serves now: a master while it may lead, a follower what its
master has confirmed.

Decides: which requests are refused until then, with an answer after which clients ask again
(``StoreNotReady``); that nothing is appended without the right to lead. Does not decide who leads
(``leadership``) or what is confirmed (``protocol.election.replication``). Called by the broker's
core, in its loop.

Invariant: between the moment in which a master may not lead any more and the end of its process
nothing is written to its log and nothing acknowledged.
"""

from __future__ import annotations

from rmq_ray.config import ReplicationMode
from rmq_ray.errors import StoreNotReady
from rmq_ray.remoting.request_table import Fence
from rmq_ray.server.base.identity import Identity
from rmq_ray.server.base.runtime import BrokerRuntime
from rmq_ray.server.replication.leadership import Leadership
from rmq_ray.server.replication.replication import Replication
from rmq_ray.store.front.message_store import MessageStore


class ConfirmedGate:
    """Of a broker whose role is fixed: readers see nothing of what a SYNC_MASTER found on its disk
    before enough slaves have it.
    """

    def __init__(self, identity: Identity, replication: Replication) -> None:
        self._identity = identity
        self._replication = replication

    def check(self, fence: Fence) -> None:
        """Raises ``StoreNotReady`` for a request that cannot be served now."""
        if fence in (Fence.CONFIRMED, Fence.HANDS_OUT) and not self._replication.has_begun:
            raise StoreNotReady(
                f"broker {self._identity.name} at {self._identity.address} waits for slaves that "
                f"have what it found on its disk; ask again, or set copies_min=1"
            )


class LeadershipGate:
    """Of one core: of a master in ``epoch``, or (None) of a follower."""

    def __init__(
        self,
        runtime: BrokerRuntime,
        replication: Replication,
        leadership: Leadership,
        epoch: int | None,
    ) -> None:
        self.leadership = leadership
        self.epoch = epoch
        self._identity = runtime.identity
        self._replication = replication
        self._waits = runtime.config.replication is ReplicationMode.SYNC_MASTER
        self._told = False

    def serving(self, store: MessageStore) -> None:
        """The store is recovered and about to serve."""
        if self.epoch is not None:
            store.admit = self.check_append
        elif not store.end_offset:
            self._told = True

    def lost(self) -> bool:
        """The store failed. True for a master's: it is deposed, and nobody who waits is told
        anything.
        """
        if self.epoch is None:
            return False
        self.leadership.store_lost()
        return True

    def check(self, fence: Fence) -> None:
        """Raises ``StoreNotReady`` for a request that cannot be served now."""
        if fence in (Fence.LEADS, Fence.HANDS_OUT):
            if self.epoch is None:
                raise StoreNotReady(
                    f"broker {self._identity.name} at {self._identity.address} is no master "
                    f"now; ask the name servers and send again"
                )
            self.check_append()
        if fence in (Fence.CONFIRMED, Fence.HANDS_OUT) and not self.shows:
            raise StoreNotReady(
                f"broker {self._identity.name} at {self._identity.address} does not know yet "
                f"what was confirmed of its log; ask again"
            )

    @property
    def shows(self) -> bool:
        """Whether readers may see what the log had when it was opened: all who may be elected have
        it, as far as this broker knows.
        """
        if not self._told:
            self._told = self._replication.has_begun if self.epoch is not None else not self._waits
        return self._told

    def confirmed(self, log_offset: int, opened_end: int) -> None:
        """A follower hears from its master up to where the log is confirmed; ``opened_end``: of
        what it had when it was opened and has still.
        """
        self._told = self._told or log_offset >= opened_end

    def check_append(self) -> None:
        """Raises ``StoreNotReady`` for a master that may not lead now; called before anything is
        written.
        """
        if not self._replication.leads or self.leadership.holds:
            raise StoreNotReady(
                f"broker {self._identity.name} at {self._identity.address} may not lead now; "
                f"ask the name servers and send again"
            )
