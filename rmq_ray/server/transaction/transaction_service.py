"""Half messages of one broker: stored, ended, asked about (protocol-behaviour 20).

    half        record in the half queue
    commit      final message, then its op, back to back in the log
                of halves that end together: all of it in one write
    rollback    op
    check       copy of the half, then the op of the old one;
                CHECK_TRANSACTION_STATE to a member of the producer group, and to the next
                where that one says that it cannot tell
    given up    copy in TRANS_CHECK_MAX_TIME_TOPIC, then the op

Decides: order of writes, what a restart makes good. Does not decide about single halves
(``protocol.transaction``) or how requests are answered (``transaction_handlers``). Runs in the
broker's loop.

Invariants: an end takes effect once, over restarts too: whatever takes a half's place is followed
by its op in the same turn, so a crash can part the two only at the log's end, and ``load`` writes
the op that is missing there. What the op says is true in memory before it is written.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple, Protocol

from rmq_ray.codec.record import Record, RecordParts, decode_record
from rmq_ray.config import BrokerConfig
from rmq_ray.errors import AppendUnknown, RmqError, StoreError, StoreUnreadable
from rmq_ray.model.message import (
    HALF_FROM,
    PRODUCER_GROUP,
    REAL_TOPIC,
    UNIQUE_KEY,
    SysFlag,
    decode_properties,
    encode_properties,
)
from rmq_ray.model.topics import HALF_TOPIC, OP_HALF_TOPIC, TRANS_CHECK_MAX_TIME_TOPIC
from rmq_ray.ports import Peer
from rmq_ray.protocol.transaction import (
    SYSTEM_GROUP,
    CheckRules,
    EndState,
    HalfWindow,
    Op,
    Verdict,
    copy_for_check,
    copy_for_immunity,
    decode_op,
    judge,
    op_text,
    real_target,
)
from rmq_ray.server.base.runtime import BrokerRuntime
from rmq_ray.server.groups.membership import CLIENT_ID
from rmq_ray.server.send.message_writer import Origin
from rmq_ray.server.send.writers import Writers
from rmq_ray.server.tables.storage import BrokerStorage
from rmq_ray.server.tables.waiting_counts import Budget, Look, WaitingCounts, Waits
from rmq_ray.store.front.message_store import AppendResult, MessageStore, StoredMessage

log = logging.getLogger("rmq_ray.server")
PAGE_RECORDS, PAGE_BYTES = 1_024, 1 << 20
TURN_HALVES_MAX = 64  # looked at in one turn of the loop
OWED_MAX = 10_000
UNABLE_MAX = 10_000  # halves of a round for which a second producer is looked for
WRITE_BYTES, WRITE_ENDINGS = 1 << 20, 256  # of bodies, of halves that are ended in one write


class HalfEnding(NamedTuple):
    """How one half ends. ``half``: any of its copies; ``offset``: queue offset of the one that
    stands for it; ``target``: topic and queue of its final message; ``text``: the final's
    properties.
    """

    half: RecordParts
    offset: int
    state: EndState
    target: tuple[str, int]
    text: str


class CheckSender(Protocol):
    """Who asks producers."""

    def find(self, group: str, topic: str, but: Collection[Peer] = ()) -> Peer | None:
        """A connected member of the group that may have a checker, may send to the half's topic and
        is none of ``but``, None while there is none.
        """
        ...

    def ask(self, peer: Peer, copy: Record, properties: dict[str, str]) -> None:
        """Send CHECK_TRANSACTION_STATE about the half for which ``copy`` with ``properties``
        stands.
        """
        ...


class Transactions:
    """Of one broker."""

    def __init__(
        self, runtime: BrokerRuntime, storage: BrokerStorage, writers: Writers, asker: CheckSender
    ) -> None:
        self.configure(runtime.config)
        self._counters = runtime.counters
        self._keeper = storage.keeper
        self._topics, self._offsets = storage.tables.topics, storage.tables.offsets
        self._writer, self._own = writers.writer, writers.own
        self._asker = asker
        self._owed: deque[Op] = deque()  # true in memory, not written for want of room
        self._round_ms = -1
        self._next_round_ms: float | None = None
        self._cursor = 0
        self._unable: dict[int, set[Peer]] = {}  # of this round: who cannot say, or was asked next
        self._told: set[tuple[str, Peer | None]] = set()  # of this round: what was logged
        self._saved: tuple[int, int, int] | None = None
        self._by_topic = WaitingCounts(HALF_TOPIC, 0, writers.own.is_gone)
        self.window = HalfWindow(0, 0)

    def configure(self, config: BrokerConfig) -> None:
        """The settings of checks, from now on."""
        self._rules = CheckRules(
            config.transaction_timeout_ms,
            config.transaction_check_max,
            config.store.reserved_hours * 3_600_000,
        )
        self._interval_ms = config.transaction_check_interval_ms

    # --- life -------------------------------------------------------------------------------------

    def load(self, store: MessageStore) -> None:
        """The store was recovered: read the ops behind the saved offset, write the one that a crash
        left out.
        """
        start, op_start = (
            self._saved_offset(store, topic) for topic in (HALF_TOPIC, OP_HALF_TOPIC)
        )
        self.window = HalfWindow(start, op_start)
        self._by_topic.reset()
        self._owed.clear()
        self._saved = None
        self._round_ms = -1
        offset, end = op_start, store.bounds(OP_HALF_TOPIC, 0)[1]
        while offset < end:
            found = store.get_messages(OP_HALF_TOPIC, 0, offset, PAGE_RECORDS, PAGE_BYTES, None)
            data, at = b"".join(found.parts), 0
            for size in found.sizes.tolist():
                record = decode_record(data, at)
                self.window.apply(decode_op(record.body, decode_properties(record.properties)))
                at += size
            if found.next_offset <= offset:
                break
            offset = found.next_offset
        self._mend(store)

    def save(self) -> None:
        """Hand the offsets of both queues to the offset table, as far as what they leave out is on
        disk.
        """
        store = self._keeper.store
        if store is None or self._owed:
            return
        if self._saved is not None and self._keeper.covered(store.flushed_offset) >= self._saved[2]:
            for topic, offset in zip((HALF_TOPIC, OP_HALF_TOPIC), self._saved, strict=False):
                if offset:
                    self._offsets.commit(topic, SYSTEM_GROUP, 0, offset, None, administrator=True)
            self._saved = None
        if self._saved is None:
            self._saved = (*self.window.trim(store.bounds(HALF_TOPIC, 0)[1]), store.end_offset)

    @property
    def pending(self) -> int:
        """Half messages that have not ended."""
        store = self._keeper.store
        return 0 if store is None else self.window.pending(store.bounds(HALF_TOPIC, 0)[1])

    def counting(self, store: MessageStore, budget: Budget) -> Look:
        """Half messages that have not ended, by the topic that they are for."""

        def waiting(begin: int) -> Waits:
            ended = self.window.ended_from(begin)
            return lambda low, high: {
                at for at in range(low, high) if at - begin >= len(ended) or not ended[at - begin]
            }

        return self._by_topic.look(store, self.window.start, waiting, budget)

    def pending_offsets(self, count: int) -> list[int]:
        """Queue offsets of the first halves that have not ended, ``count`` at most."""
        store = self._keeper.store
        found: list[int] = []
        high = 0 if store is None else store.bounds(HALF_TOPIC, 0)[1]
        at = self.window.next_pending(self.window.start)
        while at < high and len(found) < count:
            found.append(at)
            at = self.window.next_pending(at + 1)
        return found

    # --- ends -------------------------------------------------------------------------------------

    def target(self, ending: HalfEnding) -> tuple[str, int] | None:
        """Topic and queue of the final message as they are now; None where the topic is gone."""
        topic, queue_id = ending.target
        queue = self._own.queue(topic, queue_id, ending.half.log_offset)
        return None if queue is None else (topic, queue)

    def finish(self, endings: Sequence[HalfEnding]) -> int:
        """End pending halves, each of which is in it once; returns the log offset behind what was
        written.

        Raises the store's errors; what was written before stays ended, of the rest nothing has
        happened, but for ``AppendUnknown``.
        """
        if self._owed:
            self.pay()
        self._topics.create_internal(OP_HALF_TOPIC, 1)
        end = first = size = 0
        for number, ending in enumerate(endings, 1):
            size += len(ending.half.body)
            if size >= WRITE_BYTES or number - first >= WRITE_ENDINGS or number == len(endings):
                end = self._finish_together(endings[first:number])
                first, size = number, 0
        return end

    def _finish_together(self, endings: Sequence[HalfEnding]) -> int:
        """Each final with its op behind it, all in one write: a crash can leave the last final
        alone, and ``load`` mends that.
        """
        now_ms, store = self._writer.now_ms(), self._store()
        messages: list[StoredMessage] = []
        for ending in endings:
            if ending.state is EndState.COMMITTED:
                messages.append(self._final(store, ending))
            messages.append(
                self._writer.stored(
                    OP_HALF_TOPIC, b"%d" % ending.offset, op_text(ending.state), now_ms
                )
            )
        end = store.append_mixed(messages).end_log_offset
        for ending in endings:
            self.window.ended(ending.offset, ending.state)
            self._by_topic.left(ending.offset, ending.target[0], ending.half.log_offset)
            if ending.state is EndState.COMMITTED:
                self._counters.finished(ending.target[0], now_ms - ending.half.born_ms)
        committed = len(messages) - len(endings)
        self._counters.half_committed += committed
        self._counters.half_rolled_back += len(endings) - committed
        return end

    def _final(self, store: MessageStore, ending: HalfEnding) -> StoredMessage:
        half = ending.half
        prepared = (
            half.log_offset
            if ending.offset == half.queue_offset
            else store.log_offset_of(HALF_TOPIC, 0, ending.offset)
        )
        sys_flag = half.sys_flag & ~SysFlag.TRANSACTION_MASK | SysFlag.TRANSACTION_COMMIT
        return StoredMessage(
            *ending.target,
            half.body,
            ending.text,
            half.flag,
            sys_flag,
            half.born_ms,
            half.born_host,
            half.reconsume_times,
            prepared,
        )

    def _end(self, op: Op, *, owe: bool) -> int:
        """Note and write an op. ``owe``: what it stands for has happened, so where there is no room
        for it it is written later.
        """
        if owe:
            self.window.end(op)
        try:
            end = self._write_op(op)
        except AppendUnknown:
            raise
        except StoreError as error:
            if not owe or len(self._owed) >= OWED_MAX:
                raise
            log.warning("the op of half message %d is written later: %s", op.half_offset, error)
            self._owed.append(op)
            self._keeper.check(error)
            return 0
        self.window.end(op)
        return end

    def _write_op(self, op: Op) -> int:
        self._topics.create_internal(OP_HALF_TOPIC, 1)
        end = self._writer.put_encoded(
            OP_HALF_TOPIC, 0, b"%d" % op.half_offset, op_text(op.state, op.copy, op.before)
        ).end_log_offset
        self.window.written(max(op.half_offset, op.copy))
        return end

    def pay(self) -> None:
        """Write the ops that could not be written when they became true."""
        try:
            while self._owed:  # ends: one less each round
                self._write_op(self._owed[0])
                self._owed.popleft()
        except StoreError as error:
            self._keeper.check(error)

    # --- checks -----------------------------------------------------------------------------------

    def tick(self, now_ms: int) -> bool:
        """Go on with a round of checks, or begin one when it is time. True when more is to be done
        now.
        """
        store = self._keeper.store
        if store is None:
            return False
        if self._owed:
            self.pay()
        if self._next_round_ms is None or self._next_round_ms > now_ms + self._interval_ms:
            self._next_round_ms = now_ms + self._interval_ms
        if self._round_ms < 0:
            if now_ms < self._next_round_ms:
                return False
            self._round_ms, self._next_round_ms, self._cursor = (
                now_ms,
                now_ms + self._interval_ms,
                self.window.start,
            )
            self._unable.clear()
            self._told.clear()
        try:
            more = self._go_on(store, now_ms)
        except StoreError as error:
            log.warning("checks of half messages stop until the next round: %s", error)
            self._keeper.check(error)
            more = False
        if not more:
            self._round_ms = -1
        return more

    def _go_on(self, store: MessageStore, now_ms: int) -> bool:
        end = store.bounds(HALF_TOPIC, 0)[1]
        for _ in range(TURN_HALVES_MAX):
            offset = self._cursor = self.window.next_pending(self._cursor)
            if offset >= end or not self._look_at(store, offset, now_ms):
                return False
            self._cursor = offset + 1
        return True

    def _look_at(self, store: MessageStore, offset: int, now_ms: int) -> bool:
        """One pending half. False: the round is over."""
        log_offset = store.log_offset_of(HALF_TOPIC, 0, offset)
        try:
            raw = store.record_at(log_offset) if log_offset >= 0 else None
        except StoreUnreadable as error:
            log.error(
                "half message %d cannot be read now, the next round tries again: %s", offset, error
            )
            return True
        if raw is None:
            if log_offset >= store.visible_offset:
                return False
            log.error(
                "half message %d is not readable any more, its transaction is given up", offset
            )
            self._drop(offset)
            self._by_topic.left(offset, None)
            return True
        half = decode_record(raw)
        properties = decode_properties(half.properties)
        topic, _ = half_target(half, properties)
        if self._own.is_gone(topic, log_offset):
            self._own.dropped(topic)
            self._drop(offset)
            return True
        verdict = judge(
            self._rules, properties, (half.born_ms, half.store_ms), self._round_ms, now_ms
        )
        if verdict is Verdict.STOP:
            return False
        try:
            self._treat(verdict, half, properties, offset)
        except StoreError:
            self._by_topic.reset()  # it may have ended
            raise
        except (
            RmqError
        ) as error:  # a record of another broker that cannot be copied: the others go on
            log.error("half message %d stays as it is: %s", offset, error)
        else:
            self._by_topic.left(offset, properties.get(REAL_TOPIC, ""))
        return True

    def _drop(self, offset: int) -> None:
        """No final message can come of this half: it has ended."""
        self._counters.half_discarded += 1
        self._end(Op(offset, EndState.DISCARDED), owe=False)

    def _treat(
        self, verdict: Verdict, half: Record, properties: dict[str, str], offset: int
    ) -> None:
        if verdict is Verdict.DISCARD:
            self._discard(half, properties, offset)
        elif verdict is Verdict.PUT_BACK:
            self._move(half, copy_for_immunity(properties, offset), offset)
        else:
            self._check(half, properties, offset)

    def _check(self, half: Record, properties: dict[str, str], offset: int) -> None:
        """Ask somebody. While nobody of the group is connected the half only moves to the end of
        its queue: that is no check, it is not counted.
        """
        group = properties.get(PRODUCER_GROUP, "")
        peer = self._asker.find(group, half_target(half, properties)[0])
        asked = copy_for_check(properties, offset, counted=peer is not None)
        copy = self._move(half, asked, offset)
        if peer is None:
            self._tell(
                (group, None),
                f"half messages of producer group {group} wait: nobody of it who can say what "
                f"became of them is connected; start a producer of it with checker=",
            )
            return
        record = replace(
            half,
            queue_offset=copy.base_queue_offset,
            log_offset=copy.base_log_offset,
            store_ms=copy.store_ms,
            properties=encode_properties(asked),
        )
        self._ask(peer, record, asked)

    def _ask(self, peer: Peer, copy: Record, properties: dict[str, str]) -> None:
        self._counters.half_checks += 1
        self._asker.ask(peer, copy, properties)

    def hand_on(self, copy: Record, peer: Peer, reason: str) -> None:
        """``peer`` was asked about the half for which ``copy`` stands and cannot say: the next of
        the group is asked, each once in a round.
        """
        offset, window = copy.queue_offset, self.window
        if window.current(offset) != offset or window.state(offset) is not EndState.PENDING:
            return
        if offset not in self._unable and len(self._unable) >= UNABLE_MAX:
            return
        unable = self._unable.setdefault(offset, set())
        unable.add(peer)
        properties = decode_properties(copy.properties)
        group = properties.get(PRODUCER_GROUP, "")
        following = self._asker.find(group, half_target(copy, properties)[0], unable)
        self._tell(
            (group, peer),
            f"producer {peer.attributes.get(CLIENT_ID) or peer.host} of group {group} cannot say "
            f"what became of half message {offset} ({reason}); "
            + ("the next one is asked" if following else "no other is left before the next round"),
        )
        if following is not None:
            unable.add(following)
            self._ask(following, copy, properties)

    def _tell(self, about: tuple[str, Peer | None], text: str) -> None:
        """Once in a round: many halves may have the same trouble."""
        if about not in self._told:
            self._told.add(about)
            log.warning("%s", text)

    def _move(self, half: Record, properties: dict[str, str], offset: int) -> AppendResult:
        """A copy at the end of the half queue stands for the half from now on."""
        before = int(decode_properties(half.properties).get(HALF_FROM, offset))
        result = self._put_copy(half, HALF_TOPIC, properties)
        self._end(Op(offset, EndState.MOVED, result.base_queue_offset, before), owe=True)
        return result

    def _discard(self, half: Record, properties: dict[str, str], offset: int) -> None:
        self._put_copy(half, TRANS_CHECK_MAX_TIME_TOPIC, {**properties, HALF_FROM: str(offset)})
        self._counters.half_discarded += 1
        log.warning(
            "half message %d of group %s is given up and moved to %s",
            offset,
            properties.get("PGROUP"),
            TRANS_CHECK_MAX_TIME_TOPIC,
        )
        self._end(Op(offset, EndState.DISCARDED), owe=True)

    def _put_copy(self, half: Record, topic: str, properties: dict[str, str]) -> AppendResult:
        self._topics.create_internal(topic, 1)
        origin = Origin(
            half.born_ms,
            half.born_host,
            half.flag,
            half.sys_flag & ~SysFlag.TRANSACTION_MASK,
            half.reconsume_times,
        )
        return self._writer.put(topic, 0, half.body, properties, origin)

    # --- inside -----------------------------------------------------------------------------------

    def _mend(self, store: MessageStore) -> None:
        """The log's last record took a half's place and its op is missing: write it."""
        raw = store.record_at(store.report.last_record) if store.report.last_record >= 0 else None
        if raw is None:
            return
        record = decode_record(raw)
        op = self._op_of(store, record)
        if op is not None and self.window.state(op.half_offset) is EndState.PENDING:
            log.warning(
                "the op of half message %d was not written before the crash and is written now",
                op.half_offset,
            )
            self.window.end(op)
            self._owed.append(op)

    def _op_of(self, store: MessageStore, record: Record) -> Op | None:
        """The op that must follow ``record``; None when none must."""
        properties = decode_properties(record.properties)
        if record.sys_flag & SysFlag.TRANSACTION_MASK == SysFlag.TRANSACTION_COMMIT:
            raw = store.record_at(record.prepared_offset)
            half = decode_record(raw) if raw is not None else None
            if (
                half is None
                or half.topic != HALF_TOPIC
                or decode_properties(half.properties).get(UNIQUE_KEY) != properties.get(UNIQUE_KEY)
            ):
                return None  # a copy made of a committed message has no half of its own
            return Op(half.queue_offset, EndState.COMMITTED)
        old = properties.get(HALF_FROM, "")
        if not old.isdigit():
            return None
        if record.topic == HALF_TOPIC:
            return Op(int(old), EndState.MOVED, record.queue_offset, int(old))
        return (
            Op(int(old), EndState.DISCARDED) if record.topic == TRANS_CHECK_MAX_TIME_TOPIC else None
        )

    def _saved_offset(self, store: MessageStore, topic: str) -> int:
        low, high = store.bounds(topic, 0)
        return min(max(self._offsets.query(topic, SYSTEM_GROUP, 0) or 0, low), high)

    def _store(self) -> MessageStore:
        store = self._keeper.store
        if store is None:
            raise self._keeper.refusal()
        return store


def half_target(half: Record, properties: Mapping[str, str]) -> tuple[str, int]:
    """Topic and queue where the half message will be."""
    return real_target(properties) or (half.topic, half.queue_id)
