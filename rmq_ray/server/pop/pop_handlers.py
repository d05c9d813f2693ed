"""POP_RECORDS and SETTLE_POPPED: workers take messages of any queue for a time, and say what became
of them (protocol-behaviour 26).

Decides: who may pop, from which queue first, how much, and what a pop that finds nothing is told.
Does not decide what is free or stale (``protocol.pop``), how it is written down (``pop_ledger``),
who waits (``pop_waiting``), what becomes of what expired (``pop_service``).

A pop looks at every queue of the topic and at those of the group's retry topic, each time beginning
with another one. Reads of what may lie on a cold disk leave the loop; meanwhile nobody else takes
from that queue.

Invariants: an answer with messages leaves after their lease was written down; a settlement is
answered after it was; both may be repeated.
"""

from __future__ import annotations

import contextlib
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from enum import Enum
from typing import Any

import numpy as np

from rmq_ray.codec.record import headers
from rmq_ray.config import BrokerConfig
from rmq_ray.errors import RmqError, TooManyRequests
from rmq_ray.model.groups import ConsumeType
from rmq_ray.model.pulling import GetMessageStatus
from rmq_ray.model.topics import Permission, retry_topic
from rmq_ray.ports import Peer
from rmq_ray.protocol.pop import Key, PopQueue, mask_bytes, mask_of
from rmq_ray.protocol.redelivery import is_last_try
from rmq_ray.remoting.wire.codes import ResponseCode
from rmq_ray.remoting.wire.frame import Command
from rmq_ray.remoting.wire.headers import FailedTry, GroupKnown
from rmq_ray.remoting.wire.pops import (
    INVISIBLE_MS_MAX,
    INVISIBLE_MS_MIN,
    SKIPPED_FIELD,
    UNTAKEN_FIELD,
    WITHDRAWN,
    LeaseHead,
    PopRecords,
    Settle,
    pack_popped,
    pack_stale,
    unpack_pop,
    unpack_settle,
)
from rmq_ray.remoting.wire.records import PullRecords
from rmq_ray.server.base.responses import Refused, Responder
from rmq_ray.server.base.runtime import BrokerRuntime
from rmq_ray.server.groups.beginning import first_offset
from rmq_ray.server.groups.membership import GroupMembership
from rmq_ray.server.pop.pop_ledger import PopLedger
from rmq_ray.server.pop.pop_waiting import PopWaiting, WaitingPop, Wish
from rmq_ray.server.pull.pull_filters import EVERYTHING, PullFilters, Wanted
from rmq_ray.server.pull.pull_handlers import PullHandlers
from rmq_ray.server.tables.storage import BrokerStorage
from rmq_ray.store.front.message_store import MessageStore
from rmq_ray.store.reading.filtered_reading import Condition
from rmq_ray.store.reading.log_reader import GetResult

WAIT_MS_MAX = 120_000
WITHDRAWN_MAX = 1_024
READS_A_QUEUE = 4  # of one pop, where nothing matches the filter; each looks at 8,192 messages


class Look(Enum):
    """How a pop went that got no messages."""

    EMPTY = "empty"
    FULL = "full"
    """There are messages, but as many are out at workers as may be."""
    READING = "reading"
    """The answer comes from a read beside the loop."""


class PopHandlers:
    """``pulls``: beside whose pulls pops wait. ``move()``: look for due messages soon."""

    def __init__(
        self,
        runtime: BrokerRuntime,
        storage: BrokerStorage,
        members: GroupMembership,
        pulls: PullHandlers,
        ledger: PopLedger,
        responder: Responder,
        *,
        move: Callable[[], None],
    ) -> None:
        tables = storage.tables
        self._config, self._identity = runtime.config, runtime.identity
        self._clock, self._counters = runtime.clock, runtime.counters
        self._reads = runtime.reads
        self._keeper, self._tables = storage.keeper, tables
        self._limiter = tables.settings.limiter
        self._members = members
        self._delayed = pulls.delayed
        self._ledger = ledger
        self._answer = responder.answer
        self._filters = PullFilters(members, tables.filters, runtime.config.property_filter)
        self._move = move
        self._turn = 0
        self._withdrawn: OrderedDict[int, None] = OrderedDict()
        """Attempts for which nobody waits any more, the newest last."""
        self.waiting = PopWaiting(
            pulls.parked,
            runtime.offload.post,
            self._serve_waiting,
            self._wishes,
            self._give_up,
            runtime.clock,
            runtime.config.parked_pulls_max,
        )

    def configure(self, config: BrokerConfig) -> None:
        """Settings were changed."""
        self._config = config
        self._filters.enabled = config.property_filter

    def pop_records(self, command: Command, peer: Peer) -> Command | None:
        """20030: messages at once where there are some, else the pop waits as long as it asked."""
        pop = unpack_pop(command.body)
        command.body = b""  # it is the connection's buffer; the command stays while the pop waits
        if (
            not INVISIBLE_MS_MIN <= pop.invisible_ms <= INVISIBLE_MS_MAX
            or not 0 <= pop.wait_ms <= WAIT_MS_MAX
            or pop.count_max < 0
        ):
            raise Refused(
                f"a pop of {pop.count_max} messages, invisible for {pop.invisible_ms} ms, "
                f"waiting {pop.wait_ms} ms: out of range",
                ResponseCode.SYSTEM_ERROR,
            )
        self._check(pop, peer)
        if pop.count_max == 0 and (skipped := self._begin(pop, command)):
            return command.answer(
                ResponseCode.PULL_RETRY_IMMEDIATELY, {SKIPPED_FIELD: str(skipped)}
            )
        if pop.count_max == 0 and UNTAKEN_FIELD in (command.fields or {}):
            return self._counted(pop, command)
        if pop.again == WITHDRAWN:
            return self._withdraw(pop, command)
        if pop.attempt in self._withdrawn:
            return self._nothing(command, Look.EMPTY)
        if pop.again and self._hand_out_again(pop, command, peer):
            return None
        found = self._look(pop, command, peer)
        if isinstance(found, Command):
            return found
        if found is Look.READING:
            return None
        if pop.wait_ms <= 0:
            return self._nothing(command, found)
        try:
            self.waiting.add(
                pop
                if self._config.long_polling
                else replace(pop, wait_ms=min(pop.wait_ms, self._config.short_polling_ms)),
                command,
                peer,
            )
        except TooManyRequests as error:
            raise Refused(error.message, ResponseCode.SYSTEM_BUSY) from error
        return None

    def settle(self, command: Command, peer: Peer) -> Command:
        """20031: what is to become of popped messages. No membership needed: whoever has a receipt
        may use it. What failed in its last try does not wait for its delay: it is dead now.
        """
        group, settlements = unpack_settle(command.body)
        failed = FailedTry.from_fields(command.fields).reconsume_times
        ledger, stale = self._ledger, []
        self._store()
        for one in settlements:
            key, mask = (group, one.topic, one.queue_id), mask_of(one.mask)
            if one.action == Settle.ACK:
                refused = ledger.ack(key, one.lease_id, mask)
            else:
                dead = one.action == Settle.REJECT or (
                    failed is not None and self._was_last(key, one.lease_id, failed)
                )
                delay_ms = 0 if dead else max(0, one.delay_ms)
                refused = ledger.change(key, one.lease_id, mask, delay_ms, dead)
                if delay_ms == 0:
                    self._move()
            stale.append(mask_bytes(refused))
        return command.answer(body=pack_stale(stale))

    def _was_last(self, key: Key, lease_id: int, failed: int) -> bool:
        """Whether messages of this lease that came again so often are dead when they fail."""
        group, queue = self._tables.groups.find(key[0]), self._ledger.find(key)
        lease = None if queue is None else queue.lease(lease_id)
        return (
            group is not None
            and lease is not None
            and is_last_try(group, failed, lease.retries_max)
        )

    def untaken(self, group: str, topic: str, written: int = 0) -> int:
        """How many messages nobody of the group has taken: of the topic, where its first queue
        ends at offset ``written`` or behind it (what is not visible yet), and of what comes again.
        """
        store, total = self._store(), 0
        for key in self._keys(group, topic):
            low, high = store.bounds(key[1], key[2])
            if key[1:] == (topic, 0):
                high = max(high, written)
            total += max(0, high - max(low, self._ledger.next_offset(key)))
        return total

    def closed(self, peer: Peer) -> None:
        """The connection is gone: what it waits for is dropped. What it has taken comes again at
        its deadlines.
        """
        self.waiting.closed(peer)

    # --- who may ----------------------------------------------------------------------------------

    def _check(self, pop: PopRecords, peer: Peer) -> None:
        tables = self._tables
        group = tables.groups.find(pop.group)
        if group is None:
            raise Refused(
                f"subscription group [{pop.group}] does not exist; create it",
                ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST,
            )
        if not self._identity.readable or not group.consume_enable:
            raise Refused(
                f"group {pop.group} may not consume from {self._identity.name}",
                ResponseCode.NO_PERMISSION,
            )
        topic = tables.topics.get(pop.topic)
        if topic is None:
            raise Refused(
                f"topic[{pop.topic}] not exist, apply first please", ResponseCode.TOPIC_NOT_EXIST
            )
        if not topic.permission & int(Permission.READ):
            raise Refused(
                f"the topic[{pop.topic}] pulling message is forbidden", ResponseCode.NO_PERMISSION
            )
        found = self._members.consumers.find(pop.group)
        if found is not None and found.consume_type is not ConsumeType.CONSUME_POP:
            raise Refused(
                f"group {pop.group} is used by push or pull consumers "
                f"({', '.join(found.client_ids[:3])}); receive as another group, or stop them",
                ResponseCode.GROUP_IN_OTHER_USE,
            )
        if found is None or not self._members.is_member(pop.group, peer):
            raise Refused(
                f"this client is no consumer of group {pop.group}; send a heartbeat first",
                ResponseCode.SUBSCRIPTION_NOT_EXIST,
            )
        subscription = found.subscriptions.get(pop.topic)
        if subscription is None or (subscription.expression_type, subscription.expression) != (
            pop.expression_type,
            pop.expression,
        ):
            told = "nothing" if subscription is None else repr(subscription.expression)
            raise Refused(
                f"group {pop.group} subscribes to {told} of {pop.topic}, this receive asks "
                f"for {pop.expression!r}: its consumers must use the same",
                ResponseCode.SUBSCRIPTION_NOT_EXIST
                if subscription is None
                else ResponseCode.GROUP_IN_OTHER_USE,
            )

    def _wanted(self, pop: PopRecords, topic: str) -> Wanted:
        """What the group's subscription lets pass. What lies in the retry topic has passed
        before.
        """
        group = self._tables.groups.find(pop.group)
        if topic != pop.topic or group is None:
            return EVERYTHING
        return self._filters.subscribed(PullRecords(pop.group, pop.topic, 0, 0, 0, 0), group)

    # --- looking ----------------------------------------------------------------------------------

    def _look(self, pop: PopRecords, command: Command, peer: Peer) -> Command | Look:
        """Take what there is now."""
        store, outcome, cold = self._store(), Look.EMPTY, None
        page = self._page(pop, peer)
        if page is None:
            return outcome
        for key, queue in self._queues(store, pop):
            if queue.reading or queue.next_offset >= store.bounds(key[1], key[2])[1]:
                continue
            if queue.in_flight >= self._config.pop_in_flight_max:
                outcome = Look.FULL
                self._ledger.full.add(key)
                continue
            if pop.count_max == 0:
                return command.answer(ResponseCode.PULL_RETRY_IMMEDIATELY)
            if store.is_cold_pull(key[1], key[2], queue.next_offset):
                cold = cold or (key, queue)
                continue
            try:
                self._take(store, pop, key, queue, page)
            except RmqError:
                if not page.heads:
                    raise
                break  # what was taken is handed out
            if page.complete:
                break
        if page.heads:
            return self._page_answer(command, page)
        if cold is None:
            return outcome
        self._read_cold(store, pop, *cold, page, command, peer)
        return Look.READING

    def _page(self, pop: PopRecords, peer: Peer) -> PopPage | None:
        """How much the pop may take. None where its group or account was handed out enough for
        now: the group's waiting pops are looked at again when it may have more.
        """
        count = min(pop.count_max, self._config.pull_records_max)
        size = max(1, min(pop.bytes_max, self._config.pull_bytes_max))
        if not self._limiter.active or not pop.count_max:
            return PopPage(count, size, peer.account)
        wait_ms = self._limiter.hand_out_wait_ms(
            pop.group, peer.account, self._clock.monotonic_ms()
        )
        room = (pop.group, pop.topic)
        if wait_ms:
            with contextlib.suppress(TooManyRequests):  # they are looked at when they end
                self._delayed.add(wait_ms, lambda: self.waiting.wake(room), key=room)
            return None
        return PopPage(*self._limiter.page(pop.group, peer.account, count, size), peer.account)

    def _queues(self, store: MessageStore, pop: PopRecords) -> Iterator[tuple[Key, PopQueue]]:
        """Every queue that the group may pop from, beginning with another one each time."""
        keys = self._keys(pop.group, pop.topic)
        self._turn += 1
        turn = self._turn % max(1, len(keys))
        for key in keys[turn:] + keys[:turn]:
            yield key, self._ledger.queue(key, lambda key=key: self._first(store, key, pop))  # type: ignore[misc]

    def _keys(self, group: str, topic: str) -> list[Key]:
        topics = self._tables.topics
        both = dict.fromkeys((retry_topic(group), topic))
        names = [
            (name, config.read_queues) for name in both if (config := topics.get(name)) is not None
        ]
        return [(group, name, queue_id) for name, count in names for queue_id in range(count)]

    def _begin(self, pop: PopRecords, command: Command) -> int:
        """A group that is new begins in every queue now, not where each is when it is looked at
        first; how many messages it does not read.
        """
        store, begun = self._store(), []
        elsewhere_ms = GroupKnown.from_fields(command.fields).known_ms
        for key in self._keys(pop.group, pop.topic):

            def first(key: Key = key) -> int:
                begun.append((key, self._first(store, key, pop, elsewhere_ms)))
                return begun[-1][1]

            self._ledger.queue(key, first)
        return sum(offset - store.bounds(key[1], key[2])[0] for key, offset in begun)

    def _counted(self, pop: PopRecords, command: Command) -> Command:
        """How much there is that nobody has taken."""
        untaken = self.untaken(pop.group, pop.topic)
        code = ResponseCode.PULL_RETRY_IMMEDIATELY if untaken else ResponseCode.PULL_NOT_FOUND
        return command.answer(code, {UNTAKEN_FIELD: str(untaken)})

    def _first(
        self, store: MessageStore, key: Key, pop: PopRecords, elsewhere_ms: int | None = None
    ) -> int:
        group, topic, queue_id = key
        low, high = store.bounds(topic, queue_id)
        if pop.from_first or topic != pop.topic:
            return low
        first = first_offset(
            store, self._tables.offsets, self._clock, topic, group, queue_id, elsewhere_ms
        )
        return high if first is None else first

    def _take(
        self, store: MessageStore, pop: PopRecords, key: Key, queue: PopQueue, page: PopPage
    ) -> None:
        wanted = self._wanted(pop, key[1])
        count = min(page.count, self._config.pop_in_flight_max - queue.in_flight)
        for _ in range(READS_A_QUEUE):
            before = queue.next_offset
            result = read_queue(store, key, before, count, page.size, wanted)
            if (
                self._granted(pop, key, queue, result, page)
                or not before < queue.next_offset < result.max_offset
            ):
                return

    def _granted(
        self, pop: PopRecords, key: Key, queue: PopQueue, result: GetResult, page: PopPage
    ) -> bool:
        """Lease what was read; False when there was nothing in it."""
        if result.status is not GetMessageStatus.FOUND or not result.count:
            if result.next_offset >= queue.next_offset:
                self._ledger.skip(key, queue, result.next_offset)
            else:
                self._ledger.restart_at(key, result.next_offset)
            return False
        offsets = offsets_of(result, queue.next_offset)
        lease_id, deadline_ms = self._ledger.grant(key, offsets, result.next_offset, pop)
        head = lease_head(key, lease_id, deadline_ms, result)
        page.add(head, result)
        self._counters.got(key[1], key[0], head.records, head.size)
        if self._limiter.active:
            self._limiter.handed_out(
                key[0], page.account, head.size, head.records, self._clock.monotonic_ms()
            )
        if self._keeper.store is not None:
            self._tables.offsets.behind.note(*key, result, self._keeper.store)
        return True

    def _read_cold(
        self,
        store: MessageStore,
        pop: PopRecords,
        key: Key,
        queue: PopQueue,
        page: PopPage,
        command: Command,
        peer: Peer,
    ) -> None:
        offset, wanted = queue.next_offset, self._wanted(pop, key[1])
        count = min(page.count, self._config.pop_in_flight_max - queue.in_flight)

        def read(outcome: GetResult | Exception) -> None:
            queue.reading = False
            self._answer(
                command,
                peer,
                lambda: self._conclude(pop, key, queue, offset, outcome, page, command),
            )
            self.waiting.wake((pop.group, pop.topic))

        queue.reading = True
        try:
            self._reads.submit(
                lambda: read_queue(store, key, offset, count, page.size, wanted), read
            )
        except RmqError:
            queue.reading = False
            raise

    def _withdraw(self, pop: PopRecords, command: Command) -> Command:
        """Nobody waits for this attempt any more, also if it comes only now: it leaves, and what it
        took comes again at once. ``Refused`` without an attempt: each pop without one is meant.
        """
        if not pop.attempt:
            raise Refused(
                "attempt 0 names no pop that could be withdrawn", ResponseCode.SYSTEM_ERROR
            )
        self._withdrawn[pop.attempt] = None
        while len(self._withdrawn) > WITHDRAWN_MAX:
            self._withdrawn.popitem(last=False)
        waiting = self.waiting.withdraw((pop.group, pop.topic), pop.attempt)
        if waiting is not None:
            self._answer(
                waiting.command, waiting.peer, lambda: self._nothing(waiting.command, Look.EMPTY)
            )
        for key in self._keys(pop.group, pop.topic):
            queue = self._ledger.find(key)
            lease = None if queue is None else queue.taken_by(pop.attempt)
            if lease is not None:
                self._ledger.change(key, lease.id, lease.open, 0, False)
                self._move()
        return command.answer(ResponseCode.PULL_NOT_FOUND)

    def _hand_out_again(self, pop: PopRecords, command: Command, peer: Peer) -> bool:
        """The messages that this attempt took before; its answer got lost. False when it took none,
        or something became of them.
        """
        store = self._store()
        taken = [
            (key, lease)
            for key, queue in self._queues(store, pop)
            if (lease := queue.taken_by(pop.attempt)) is not None
        ]
        if not taken:
            return False
        wanted = {key: self._wanted(pop, key[1]) for key, _ in taken}
        size = self._config.pull_bytes_max

        def read() -> list[GetResult]:
            return [
                read_queue(store, key, lease.offsets[0], len(lease.offsets), size, wanted[key])
                for key, lease in taken
            ]

        def answer(outcome: list[GetResult] | Exception) -> Command:
            if isinstance(outcome, Exception):
                raise outcome
            page = PopPage(0, 0)
            for (key, lease), result in zip(taken, outcome, strict=True):
                if (
                    lease.untouched
                    and result.count == len(lease.offsets)
                    and list(offsets_of(result, lease.offsets[0])) == list(lease.offsets)
                ):
                    page.add(lease_head(key, lease.id, lease.deadline_ms, result), result)
            return (
                self._page_answer(command, page)
                if page.heads
                else command.answer(ResponseCode.PULL_RETRY_IMMEDIATELY)
            )

        self._reads.submit(
            read, lambda outcome: self._answer(command, peer, lambda: answer(outcome))
        )
        return True

    def _conclude(
        self,
        pop: PopRecords,
        key: Key,
        queue: PopQueue,
        offset: int,
        outcome: GetResult | Exception,
        page: PopPage,
        command: Command,
    ) -> Command:
        if isinstance(outcome, Exception):
            raise outcome
        unchanged = self._ledger.find(key) is queue and queue.next_offset == offset
        wanted = pop.attempt not in self._withdrawn
        if wanted and unchanged and self._granted(pop, key, queue, outcome, page):
            return self._page_answer(command, page)
        return command.answer(ResponseCode.PULL_RETRY_IMMEDIATELY)

    # --- answering --------------------------------------------------------------------------------

    def _page_answer(self, command: Command, page: PopPage) -> Command:
        self._counters.pulls += 1
        return command.answer(ResponseCode.SUCCESS, None, page.body())

    def _nothing(self, command: Command, outcome: Look) -> Command:
        self._counters.pulls_missed += 1
        if outcome is Look.FULL:
            limit = self._config.pop_in_flight_max
            return command.answer(
                ResponseCode.FLOW_CONTROL,
                remark=(
                    f"{limit} messages of a queue are out at workers already; acknowledge some, "
                    f"or raise pop_in_flight_max"
                ),
            )
        return command.answer(ResponseCode.PULL_NOT_FOUND)

    def _serve_waiting(self, waiting: WaitingPop) -> bool:
        """True when the pop was answered, or will be."""
        served = True

        def run() -> Command | None:
            nonlocal served
            self._check(waiting.pop, waiting.peer)
            found = self._look(waiting.pop, waiting.command, waiting.peer)
            if isinstance(found, Command):
                return found
            served = found is Look.READING
            return None

        self._answer(waiting.command, waiting.peer, run)
        return served

    def _give_up(self, waiting: WaitingPop) -> None:
        """Its time is over: a last look, so that nothing depends on having been woken."""

        def run() -> Command | None:
            self._check(waiting.pop, waiting.peer)
            found = self._look(waiting.pop, waiting.command, waiting.peer)
            if isinstance(found, Command):
                return found
            return None if found is Look.READING else self._nothing(waiting.command, found)

        self._answer(waiting.command, waiting.peer, run)

    def _wishes(self, pop: PopRecords) -> Sequence[Wish]:
        """Where this pop's next message may come from; nothing while the broker has no store."""
        store = self._keeper.store
        if store is None:
            return ()
        try:
            found, codes = list(self._queues(store, pop)), self._wanted(pop, pop.topic).codes
        except RmqError:
            return ()
        limit = self._config.pop_in_flight_max
        return [
            (key[1], key[2], queue.next_offset, codes if key[1] == pop.topic else None)
            for key, queue in found
            if not queue.reading and queue.in_flight < limit
        ]

    def _store(self) -> MessageStore:
        store = self._keeper.store
        if store is None:
            raise self._keeper.refusal()
        return store


class PopPage:
    """What one pop has taken so far; ``count`` and ``size``: how much more it may take."""

    def __init__(self, count: int, size: int, account: str = "") -> None:
        self.count, self.size, self.account = count, size, account
        self.heads: list[LeaseHead] = []
        self.sizes: list[Any] = []
        self.parts: list[Any] = []

    def add(self, head: LeaseHead, result: GetResult) -> None:
        """One lease and its records."""
        self.heads.append(head)
        self.sizes.append(result.sizes)
        self.parts += result.parts
        self.count -= head.records
        self.size -= head.size

    @property
    def complete(self) -> bool:
        """Nothing more fits in."""
        return self.count <= 0 or self.size <= 0

    def body(self) -> Any:
        """The answer's body."""
        return pack_popped(self.heads, self.sizes, self.parts)


def read_queue(
    store: MessageStore, key: Key, offset: int, count: int, size: int, wanted: Wanted
) -> GetResult:
    """Records from queue offset ``offset`` on that the group wants; at most ``count``, and ``size``
    bytes but for the first.
    """
    if wanted.matches is not None:
        return store.get_matching(key[1], key[2], offset, count, size, Condition(wanted.matches))
    return store.get_messages(key[1], key[2], offset, count, size, wanted.codes)


def lease_head(key: Key, lease_id: int, deadline_ms: int, result: GetResult) -> LeaseHead:
    """How the answer tells a lease."""
    size = int(result.sizes.sum(dtype=np.int64))
    return LeaseHead(
        key[1],
        key[2],
        lease_id,
        deadline_ms,
        result.min_offset,
        result.max_offset,
        result.count,
        size,
    )


def offsets_of(result: GetResult, first: int) -> Sequence[int]:
    """Queue offsets of the records; a range where none was left out."""
    if result.next_offset - first == result.count:
        return range(first, result.next_offset)
    raw = result.parts[0] if len(result.parts) == 1 else b"".join(result.parts)
    starts = np.cumsum(result.sizes, dtype=np.int64) - result.sizes
    found: list[int] = headers(raw)[starts]["queue_offset"].tolist()
    return range(found[0], found[-1] + 1) if found[-1] - found[0] + 1 == len(found) else found
