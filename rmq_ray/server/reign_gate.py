"""What a broker under a controller serves now: a master while it may lead, a follower what its master has confirmed.

Decides: which requests are refused until then, with an answer after which clients ask again (``StoreNotReady``); that nothing is appended without the right
to lead. Does not decide who leads (``reign``) or what is confirmed (``protocol.replication``). Called by the broker's core, in its loop.

Invariant: between the moment in which a master may not lead any more and the end of its process nothing is written to its log and nothing acknowledged.
"""

from __future__ import annotations

from rmq_ray.clock import Clock
from rmq_ray.errors import StoreNotReady
from rmq_ray.remoting.codes import RequestCode as Code
from rmq_ray.server.broker_roles import MASTER_ONLY
from rmq_ray.server.identity import Identity
from rmq_ray.server.reign import Reign
from rmq_ray.server.replication import Replication
from rmq_ray.server.store_keeper import StoreKeeper
from rmq_ray.store.message_store import MessageStore

WRITES = MASTER_ONLY | {Code.SEND_RECORDS, Code.SEND_MESSAGE, Code.SEND_MESSAGE_V2, Code.SEND_BATCH_MESSAGE, Code.END_TRANSACTION}


class ReignGate:
    """Of one core: of a master in ``epoch``, or (None) of a follower."""

    def __init__(self, reign: Reign, epoch: int | None, identity: Identity, keeper: StoreKeeper, replication: Replication, clock: Clock) -> None:
        self.reign = reign
        self.epoch = epoch
        self._identity = identity
        self._keeper = keeper
        self._replication = replication
        self._clock = clock

    def serving(self, store: MessageStore) -> None:
        """The store is recovered and about to serve."""
        if self.epoch is not None:
            store.admit = self.check_append

    def lost(self) -> bool:
        """The store failed. True for a master's: it is deposed, and nobody who waits is told anything."""
        if self.epoch is None:
            return False
        self.reign.store_lost()
        return True

    def check(self, code: int) -> None:
        """Raises ``StoreNotReady`` for a request that cannot be served now."""
        if code in WRITES:
            if self.epoch is None:
                raise StoreNotReady(f"broker {self._identity.name} at {self._identity.address} is no master now; ask the name servers and send again")
            self.check_append()

    def check_append(self) -> None:
        """Raises ``StoreNotReady`` for a master that may not lead now; called before anything is written."""
        if self.epoch is None or not self.reign.leads(self.epoch):
            raise StoreNotReady(f"broker {self._identity.name} at {self._identity.address} is not master any more; ask the name servers and send again")
