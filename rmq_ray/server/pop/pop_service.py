"""Everything about popping in one broker, as its core sees it: which parts there are and when each
of them runs.

    PopHandlers ── grants, settlements ──> PopLedger ──> journal, commit offsets
        └ PopWaiting ── woken by the hold      └── due ── PopMover ──> retry topic, dead letters

Decides nothing about messages. Called by ``broker_core``, in its loop; ``read`` in a thread.
"""

from __future__ import annotations

from typing import Any

from rmq_ray.clock import Clock
from rmq_ray.config import BrokerConfig
from rmq_ray.files import FileSystem
from rmq_ray.ports import Peer
from rmq_ray.server.base.deferred_response import Answer
from rmq_ray.server.base.offload import Offload
from rmq_ray.server.pop.pop_handlers import PopHandlers
from rmq_ray.server.pop.pop_ledger import PopLedger
from rmq_ray.server.pop.pop_mover import PopMover
from rmq_ray.server.pull.parked_pulls import ParkedPulls
from rmq_ray.server.pull.pull_handlers import PullTables
from rmq_ray.server.send.message_writer import MessageWriter
from rmq_ray.server.send.records_handlers import SendPath
from rmq_ray.store.front.message_store import MessageStore
from rmq_ray.store.tables.pop_journal import PopJournal


class PopService:
    """See the module. ``offload``: threads for the journal; ``reads``: threads for cold records."""

    def __init__(  # noqa: PLR0913 - what popping touches
        self,
        config: BrokerConfig,
        files: FileSystem,
        path: SendPath,
        writer: MessageWriter,
        tables: PullTables,
        parked: ParkedPulls[Any],
        clock: Clock,
        answer: Answer,
        offload: Offload,
        reads: Offload,
    ) -> None:
        self._clock = clock
        self._offload = offload
        self._planned = False
        self.ledger = PopLedger(
            PopJournal(f"{config.store.path}/rmq_ray/pop.journal", files),
            tables.offsets,
            clock,
            offload,
        )
        self._mover = PopMover(self.ledger, path, writer, tables.groups.find, reads)
        self.handlers = PopHandlers(
            path.keeper,
            tables,
            self.ledger,
            parked,
            path.counters,
            clock,
            config,
            answer,
            offload,
            reads,
            self._move_soon,
        )

    def read(self) -> None:
        """Before the store serves; in a thread."""
        self.ledger.read()

    def serving(self, store: MessageStore) -> None:
        """The store is recovered, the offsets are loaded."""
        self._mover.lost()
        self.ledger.serving(store)

    def tick(self) -> None:
        """Some times a second: what is due is moved, who has waited long enough is told."""
        self.handlers.waiting.tick(self._clock.now_ms())
        if not self._planned:
            self._move()

    def each_second(self) -> None:
        """Once a second: see ``PopLedger.tick``."""
        self.ledger.tick()

    def closed(self, peer: Peer) -> None:
        """A connection ended."""
        self.handlers.closed(peer)

    def close(self) -> None:
        """No further pops."""
        self.ledger.close()

    def status(self) -> dict[str, int]:
        """Counts; see ``PopLedger.status``."""
        return {"waiting": len(self.handlers.waiting), **self.ledger.status()}

    def _move_soon(self) -> None:
        if not self._planned:
            self._planned = True
            self._offload.post(self._move)

    def _move(self) -> None:
        """A long list goes on in the next turns of the loop, so that requests are served in
        between.
        """
        self._planned = False
        if self._mover.tick(self._clock.now_ms()):
            self._move_soon()
