"""Everything about popping in one broker: which parts there are and when each of them runs, and
what becomes of popped messages whose time is over.

    PopHandlers ── grants, settlements ──> PopLedger ──> journal, commit offsets
        └ PopWaiting ── woken by the hold      └── due ── PopMover ──> retry topic, dead letters

Runs in the broker's loop; ``read`` in a thread.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable

from rmq_ray.codec.record import Record, decode_record, offset_message_id
from rmq_ray.errors import RmqError
from rmq_ray.model.message import decode_properties
from rmq_ray.model.topics import GroupConfig, dlq_topic, retry_topic
from rmq_ray.ports import Peer
from rmq_ray.protocol.pop import Expired
from rmq_ray.protocol.redelivery import copy_properties, decide, max_times
from rmq_ray.server.base.responses import Responder
from rmq_ray.server.base.runtime import BrokerRuntime
from rmq_ray.server.groups.membership import GroupMembership
from rmq_ray.server.pop.pop_handlers import PopHandlers
from rmq_ray.server.pop.pop_ledger import PopLedger
from rmq_ray.server.pull.pull_handlers import PullHandlers
from rmq_ray.server.send.message_writer import Origin
from rmq_ray.server.send.writers import Writers
from rmq_ray.server.tables.storage import BrokerStorage
from rmq_ray.store.front.message_store import MessageStore
from rmq_ray.store.tables.pop_journal import PopJournal

log = logging.getLogger("rmq_ray.server.pop")
TURN_MAX = 128  # messages in one tick: each costs 0.1 ms of the loop
AGAIN_MS = 200  # after a copy could not be made
UNSETTLED_MAX = 50_000  # copies that wait for the disk
DEAD, BY_COUNT = -1, 0  # delay levels of a send-back


class PopService:
    """The parts of popping."""

    def __init__(
        self,
        runtime: BrokerRuntime,
        storage: BrokerStorage,
        writers: Writers,
        members: GroupMembership,
        pulls: PullHandlers,
        responder: Responder,
    ) -> None:
        self._clock = runtime.clock
        self._offload = runtime.offload
        self._planned = False
        self.ledger = PopLedger(
            PopJournal(f"{runtime.config.store.path}/rmq_ray/pop.journal", runtime.files),
            storage.tables.offsets,
            runtime.clock,
            runtime.offload,
            lambda group: self.handlers.waiting.wake_group(group),
        )
        self._mover = PopMover(runtime, storage, writers, self.ledger)
        self.handlers = PopHandlers(
            runtime, storage, members, pulls, self.ledger, responder, move=self._move_soon
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


class PopMover:
    """Popped messages whose time is over: a copy goes to the group's retry topic, or to its dead
    letters (protocol-behaviour 17, 26).

    Decides: how many in one turn, and when the original counts as done: when its copy is on the
    disk, so that no loss of power takes both. Does not decide what is due (``protocol.pop``) or
    whether it is a dead letter (``protocol.redelivery``).

    Invariants: a message that cannot be copied stays where it is and is tried again; a crash may
    leave two copies, never none.
    """

    def __init__(
        self, runtime: BrokerRuntime, storage: BrokerStorage, writers: Writers, ledger: PopLedger
    ) -> None:
        self._counters, self._reads = runtime.counters, runtime.reads
        self._keeper, self._tables = storage.keeper, storage.tables
        self._writer = writers.writer
        self._ledger = ledger
        self._turn = 0
        self._unsettled: deque[tuple[int, Expired]] = deque()

    def tick(self, now_ms: int) -> bool:
        """Move what is due at ``now_ms`` (wall clock). True when more is due already: call again
        soon.
        """
        store = self._keeper.store
        if store is None:
            return False
        self._settle(store)
        if len(self._unsettled) >= UNSETTLED_MAX:
            return False
        expired = self._ledger.table.expired(now_ms, TURN_MAX)
        for one in expired:
            self._guarded(one, now_ms, lambda one=one: self._look_up(store, one, now_ms))  # type: ignore[misc]
        return len(expired) == TURN_MAX

    def lost(self) -> None:
        """The log is read again: copies that were not on the disk may be gone."""
        for _, one in self._unsettled:
            self._ledger.table.not_moved(one.key, one.lease_id, 1 << one.index, 0)
        self._unsettled.clear()

    def _guarded(self, one: Expired, now_ms: int, work: Callable[[], None]) -> None:
        """Run ``work``; where it fails the message is due again a little later."""
        try:
            work()
        except RmqError as error:
            log.warning(
                "message %d of %s cannot be given to group %s again yet: %s",
                one.offset,
                one.key[1],
                one.key[0],
                error,
            )
            self._ledger.table.not_moved(one.key, one.lease_id, 1 << one.index, now_ms + AGAIN_MS)
            self._keeper.check(error)

    def _look_up(self, store: MessageStore, one: Expired, now_ms: int) -> None:
        _, topic, queue_id = one.key
        log_offset = store.log_offset_of(topic, queue_id, one.offset)
        if log_offset < 0 or not store.is_cold(log_offset):
            raw = None if log_offset < 0 else store.record_at(log_offset)
            self._copy(store, one, raw, now_ms)
            return

        def read(outcome: bytes | None | Exception) -> None:
            if isinstance(outcome, Exception) and not isinstance(outcome, RmqError):
                raise outcome
            self._guarded(one, now_ms, lambda: self._read(store, one, outcome, now_ms))

        self._reads.submit(lambda: store.record_at(log_offset), read)

    def _read(
        self, store: MessageStore, one: Expired, outcome: bytes | None | Exception, now_ms: int
    ) -> None:
        if isinstance(outcome, Exception):
            raise outcome
        self._copy(store, one, outcome, now_ms)

    def _copy(self, store: MessageStore, one: Expired, raw: bytes | None, now_ms: int) -> None:
        group = self._tables.groups.find(one.key[0])
        if raw is None or group is None:
            self._ledger.moved(one)  # retention took the record, or nobody is there to get it
            return
        record = decode_record(raw)
        plan = decide(
            group,
            record.reconsume_times,
            DEAD if one.rejected or group.retry_queues <= 0 else BY_COUNT,
            max_times(group, one.retries_max),
        )
        topic, queue_id = self._target(group, plan.dead)
        if topic in self._tables.pending_topics:  # not on disk yet: a crash would forget the topic
            self._ledger.table.not_moved(one.key, one.lease_id, 1 << one.index, now_ms + AGAIN_MS)
            return
        properties = copy_properties(
            decode_properties(record.properties), record.topic, _message_id(record), None
        )
        origin = Origin(
            record.born_ms, record.born_host, record.flag, record.sys_flag, plan.reconsume_times
        )
        if not plan.dead:
            self._ledger.expect((group.name, topic, queue_id), store.bounds(topic, queue_id)[0])
        result = self._writer.put(topic, queue_id, record.body, properties, origin)
        self._counters.sent_back += 1
        self._counters.dead_letters += plan.dead
        self._ledger.counters.dead += plan.dead
        self._ledger.counters.redelivered += not plan.dead
        self._unsettled.append((result.end_log_offset, one))

    def _target(self, group: GroupConfig, dead: bool) -> tuple[str, int]:
        topic = dlq_topic(group.name) if dead else retry_topic(group.name)
        queues = 1 if dead else group.retry_queues
        config = self._tables.topics.create_internal(topic, queues)
        self._turn += 1
        return topic, self._turn % max(1, min(config.write_queues, queues))

    def _settle(self, store: MessageStore) -> None:
        """Originals whose copies are on the disk, and at whoever is master next, are done."""
        durable, waiting = self._keeper.covered(store.flushed_offset), self._unsettled
        while waiting and waiting[0][0] <= durable:
            _, one = waiting.popleft()
            try:
                self._ledger.moved(one)
            except RmqError as error:  # the journal's: the next turn
                log.warning("a moved message cannot be written down yet: %s", error)
                waiting.appendleft((0, one))
                return


def _message_id(record: Record) -> str:
    return offset_message_id(*record.store_host, record.log_offset)
