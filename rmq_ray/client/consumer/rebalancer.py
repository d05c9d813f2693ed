"""Takes and leaves queues as ``protocol.rebalance`` plans it, in one thread per consumer
(protocol-behaviour 13).

    wake: start, notice of a broker (40), route change, subscription change
          │ 20 s, or 1 s while not balanced
      └─> per topic: queues from the route cache, consumer ids from a broker, allot, plan
            drop:  mark, hand the offset over, forget
                   (ordered: when the listener has ended; then unlock)
            add:   where to begin, process queue, first pull
                   (ordered: lock first; what is not granted is tried again in 500 ms)
            changed: newer subscription, thresholds divided anew, heartbeat to all brokers

Decides the order of these steps and whom to ask. Does not decide what is allotted (rules) and
consumes nothing. The thread also gives up messages whose listener takes too long, because both may
block on brokers.

Invariants: only this thread adds queues. A topic that fails leaves the others alone. Nothing is
dropped because a broker or name server could not be asked.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Collection
from contextlib import suppress

from rmq_ray.client.consumer.assigned_queue import AssignedQueue, QueueLease
from rmq_ray.client.consumer.consumer_options import tell_beginning
from rmq_ray.client.consumer.consumer_parts import ConsumerParts, is_retry_topic
from rmq_ray.client.consumer.offset_store import ReadOffset
from rmq_ray.client.consumer.queue_leases import QueueLeases
from rmq_ray.client.instance.time_search import first_since
from rmq_ray.errors import RemotingError, RmqError
from rmq_ray.guard import tell_failure
from rmq_ray.model.groups import ConsumeFromWhere
from rmq_ray.model.ids import Address, MessageQueue
from rmq_ray.protocol.rebalance import (
    NO_STORED_OFFSET,
    Allotment,
    AllotmentOutcome,
    Membership,
    RebalancePlan,
    StartRule,
    allot,
    first_offset_rule,
    foreign_queues,
    is_balanced,
    plan,
)
from rmq_ray.protocol.routing.similar_topics import did_you_mean
from rmq_ray.remoting.wire.bodies import decode_consumer_ids
from rmq_ray.remoting.wire.codes import RequestCode, ResponseCode
from rmq_ray.remoting.wire.frame import Command
from rmq_ray.remoting.wire.headers import (
    ConsumerGroupHeader,
    GroupKnown,
    OffsetAnswer,
    QueryOffsetHeader,
    QueueHeader,
)

UNBALANCED_MS = 1_000  # rocketmq.client.rebalance.minInterval
UNLOCKED_MS = 500  # RocketMQ 5's rebalanceLater after a lock was refused
SAY_FIRST_MS, SAY_LAST_MS = 2_000.0, 60_000.0
"""Pauses between two lines about a topic of which nothing comes."""
SEARCH_BACK_MS = 30 * 60_000  # start_from="timestamp" without a time: half an hour ago
JOIN_TIMEOUT_S = 10.0

log = logging.getLogger("rmq_ray.client.rebalance")


class Rebalancer:
    """Of one consumer. ``taken(work)``: begin to pull; ``clean()``: give up overdue messages;
    ``passive``: a push consumer, whose pulls may break;

    ``leases``: the locks of ordered consumption.
    """

    def __init__(
        self,
        parts: ConsumerParts,
        member: Membership,
        start_from: ConsumeFromWhere,
        taken: Callable[[AssignedQueue], None],
        clean: Callable[[], int],
        passive: bool = True,
        leases: QueueLeases | None = None,
    ) -> None:
        self._parts = parts
        self._passive = passive
        self._member = member
        self._start_from = start_from
        self._taken = taken
        self._clean = clean
        self._leases = leases
        self._refused = False
        self._wake = threading.Condition()
        self._wanted = False
        self._beat_wanted = False
        self._stopping = False
        self._thread: threading.Thread | None = None
        self._skipped: dict[str, int] = {}
        """Queues and messages by topic that a new group leaves unread; not told yet."""
        self._said: dict[str, tuple[float, float]] = {}
        """Topics of which nothing comes: when that is said again, and the pause after it."""
        self.balanced = False
        """True when the last rebalance left this consumer with exactly its share of every topic."""
        self.runs = 0

    # --- the thread -------------------------------------------------------------------------------

    def start(self) -> None:
        """Start the thread; the first rebalance comes at once."""
        self._wanted = True
        self._thread = threading.Thread(
            target=self._run, name=f"rmq-rebalance-{self._parts.group}", daemon=True
        )
        self._thread.start()

    def wake(self) -> None:
        """Rebalance now. Any thread; returns at once."""
        with self._wake:
            self._wanted = True
            self._wake.notify()

    def beat(self) -> None:
        """A heartbeat now: a broker does not know the group's subscription. Any thread; returns at
        once.
        """
        with self._wake:
            self._beat_wanted = True
            self._wake.notify()

    def halt(self) -> None:
        """No rebalance begins after this."""
        with self._wake:
            self._stopping = True
            self._wake.notify()

    def stop(self) -> None:
        """The same; waits for the running one."""
        self.halt()
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join(JOIN_TIMEOUT_S)

    def _run(self) -> None:
        config, clock = self._parts.config, self._parts.clock
        clean_every_ms = config.consume_timeout_minutes * 60_000
        rebalance_at, clean_at = clock.monotonic_ms(), clock.monotonic_ms() + clean_every_ms
        while self._wait_until(min(rebalance_at, clean_at)):
            with self._wake:
                wanted, beat = self._wanted, self._beat_wanted
                self._wanted = self._beat_wanted = False
            now = clock.monotonic_ms()
            try:
                if beat:
                    self._parts.client.heartbeat()
                if wanted or now >= rebalance_at:
                    rebalance_at = now + (
                        config.rebalance_ms
                        if self.rebalance()
                        else UNLOCKED_MS
                        if self._refused
                        else UNBALANCED_MS
                    )
                if now >= clean_at:
                    clean_at = now + clean_every_ms
                    self._clean()
            except BaseException as error:  # noqa: BLE001 - no other thread would take queues
                rebalance_at = now + UNBALANCED_MS
                kind = f"rebalance of group {self._parts.group}"
                tell_failure(log, kind, error, f"once more in {UNBALANCED_MS} ms")

    def _wait_until(self, due_ms: float) -> bool:
        """True when there is something to do, False when stopping."""
        with self._wake:
            while not self._stopping and not self._wanted and not self._beat_wanted:
                left_ms = due_ms - self._parts.clock.monotonic_ms()
                if left_ms <= 0:
                    break
                self._wake.wait(min(left_ms, 1_000) / 1000)
            return not self._stopping

    # --- one rebalance ----------------------------------------------------------------------------

    def rebalance(self) -> bool:
        """All topics, in the calling thread; True when balanced."""
        parts = self._parts
        balanced, self._refused = True, False
        subscribed = parts.subscriptions.topics()
        for topic in sorted(subscribed):
            try:
                balanced = self._by_topic(topic) and balanced
            except RmqError as error:
                balanced = False
                if not is_retry_topic(topic):
                    log.warning(
                        "rebalance of group %s, topic %s failed: %s", parts.group, topic, error
                    )
        held = parts.assigned.snapshot()
        foreign = foreign_queues(subscribed, held.keys())
        if self._drop([held[queue] for queue in foreign]):
            parts.client.heartbeat()
        self.balanced = balanced
        self.runs += 1
        return balanced

    def _by_topic(self, topic: str) -> bool:
        parts = self._parts
        queues = parts.client.routes.find_subscribe(topic)
        allotment = allot(self._member, queues, self._members(topic) if queues else None)
        if allotment.outcome is not AllotmentOutcome.ALLOTTED:
            self._explain(topic, allotment)
            return False
        held = {
            queue: work for queue, work in parts.assigned.snapshot().items() if queue.topic == topic
        }
        processes = {queue: work.process for queue, work in held.items()}
        steps = plan(
            allotment.queues,
            processes,
            parts.clock.now_ms(),
            parts.config.pull_idle_ms,
            self._passive,
        )
        if self._leases is not None:
            self._leases.give_up(topic, steps.add)
        dropped = self._drop([held[queue] for queue in steps.drop])
        added = self._add(steps.add)
        self.tell_beginnings()
        if dropped or added or (steps.changed and self._leases is None):
            self._changed(topic, steps, len(added))
        stayed = (
            []
            if self._leases is None
            else [held[queue] for queue in steps.keep if self._leases.stay(held[queue])]
        )
        for work in (*stayed, *added):
            self._taken(work)
        working = [
            queue
            for queue, work in parts.assigned.snapshot().items()
            if queue.topic == topic and not work.process.dropped
        ]
        return is_balanced(allotment, working)

    def _explain(self, topic: str, allotment: Allotment) -> None:
        if allotment.outcome is AllotmentOutcome.STRATEGY_FAILED:
            assert allotment.error is not None
            kind = f"allocation strategy {self._member.strategy.name} for topic {topic}"
            tell_failure(log, kind, allotment.error, "queues stay as they are")
        elif not is_retry_topic(topic) and self._is_time_to_say(topic):
            unknown = self._parts.client.routes.route(topic) is None
            log.warning(
                "group %s gets nothing of topic %s: %s%s",
                self._parts.group,
                topic,
                "no name server knows it" if unknown else allotment.outcome.value,
                did_you_mean(self._parts.client.similar_topics(topic)) if unknown else "",
            )

    def _is_time_to_say(self, topic: str) -> bool:
        """At once, and after pauses that double up to a minute."""
        now_ms = self._parts.clock.monotonic_ms()
        again_ms, pause_ms = self._said.get(topic, (now_ms, SAY_FIRST_MS))
        if now_ms < again_ms:
            return False
        self._said[topic] = (now_ms + pause_ms, min(2 * pause_ms, SAY_LAST_MS))
        return True

    def _changed(self, topic: str, steps: RebalancePlan, added: int) -> None:
        parts = self._parts
        log.info(
            "group %s, topic %s: %d queues kept, %d dropped, %d of %d added",
            parts.group,
            topic,
            len(steps.keep),
            len(steps.drop),
            added,
            len(steps.add),
        )
        parts.subscriptions.touch(topic, parts.clock.now_ms())
        parts.flow.divide(topic, len(steps.keep) + added)
        parts.client.heartbeat()

    def _drop(self, works: Collection[AssignedQueue]) -> int:
        """Let go of these; how many it were. A queue of ordered consumption whose listener runs
        stays until it has ended.
        """
        if self._leases is not None:
            return self._leases.leave(works, self._let_go)
        for work in works:
            self._let_go(work)
        return len(works)

    def _let_go(self, work: AssignedQueue) -> None:
        """From here on its messages are another consumer's: hand the offset over before that one
        asks for it.
        """
        with work.lock:
            work.process.drop()
        self._parts.offsets.persist(work.queue)
        self._parts.offsets.remove(work.queue)
        self._parts.assigned.remove(work)

    def _add(self, queues: Collection[MessageQueue]) -> list[AssignedQueue]:
        """Take these; those that could be taken."""
        if self._leases is None:
            return [work for queue in queues if (work := self._take(queue, None)) is not None]
        wanted = [
            queue
            for queue in queues
            if self._parts.assigned.get(queue) is None and not self._stopping
        ]
        leases = self._leases.lock(wanted)
        self._refused = self._refused or len(leases) < len(wanted)
        added = [
            work
            for queue, lease in leases.items()
            if (work := self._take(queue, lease)) is not None
        ]
        taken = {work.queue for work in added}
        self._leases.unlock(
            {queue: lease.epoch for queue, lease in leases.items() if queue not in taken}
        )
        return added

    def _take(self, queue: MessageQueue, lease: QueueLease | None) -> AssignedQueue | None:
        """Hold the queue; None when it is not known where to begin (the next rebalance tries
        again).
        """
        parts = self._parts
        if self._stopping:
            return None
        parts.offsets.remove(queue)
        try:
            offset = self.first_offset(queue)
        except RemotingError as error:
            log.info("no start offset of %s: %s", queue, error)
            offset = None
        if offset is None:
            return None
        work = AssignedQueue(queue, offset, parts.clock.now_ms())
        work.epoch = parts.offsets.epoch(queue)
        work.lease = lease
        if not parts.assigned.put(work):
            log.info("queue %s is held already", queue)
            return None
        return work

    # --- asking brokers ---------------------------------------------------------------------------

    def first_offset(self, queue: MessageQueue) -> int | None:
        """Where to begin: the group's stored offset; in a queue that is young, or that came to a
        topic which the group consumes, its first message; else what the start rule says. None when
        no broker told (computePullFromWhere).
        """
        offsets = self._parts.offsets
        stored = offsets.read(queue, ReadOffset.STORE)
        if stored >= 0:
            return stored
        if stored != NO_STORED_OFFSET:
            return None
        rule = first_offset_rule(self._start_from, queue.topic)
        if rule is StartRule.MINIMUM:
            return self._ask_bound(queue, RequestCode.GET_MIN_OFFSET)
        # a broker that keeps the offsets has just said that the queue is not young
        first = stored if offsets.at_brokers else self._first_if_young(queue, rule)
        if first == NO_STORED_OFFSET and (known_ms := offsets.known_ms(queue)) is not None:
            first = self._first_of_known(queue, known_ms)
        if by_rule := first == NO_STORED_OFFSET:
            first = self._begin_by(rule, queue)
        if first is not None and (by_rule or not offsets.at_brokers):
            offsets.begin(queue, first)
        return first

    def _first_if_young(self, queue: MessageQueue, rule: StartRule) -> int | None:
        """The first message of a young queue, for who keeps his offsets himself; no position is
        stored. Where the group has positions at the broker, which are other members' or of another
        time, what ``rule`` says. ``NO_STORED_OFFSET``: it is not young. None when no broker told.
        """
        header = QueryOffsetHeader(self._parts.group, queue.topic, queue.queue_id, with_epoch=True)
        answer = self._answer(
            queue, Command(RequestCode.QUERY_CONSUMER_OFFSET, fields=header.to_fields())
        )
        if answer is None:
            return None
        known_ms = GroupKnown.from_fields(answer.fields).known_ms
        return self._told(queue, answer) if known_ms is None else self._begin_by(rule, queue)

    def _first_of_known(self, queue: MessageQueue, known_ms: int) -> int | None:
        """Where a group begins that has been in the topic for so long; ``NO_STORED_OFFSET``: the
        queue is no new one. None when no broker told.
        """
        header = QueryOffsetHeader(
            self._parts.group, queue.topic, queue.queue_id, known_ms=known_ms
        )
        command = Command(RequestCode.QUERY_CONSUMER_OFFSET, fields=header.to_fields())
        return self._ask_offset(queue, command)

    def _begin_by(self, rule: StartRule, queue: MessageQueue) -> int | None:
        """Where a new group begins; what it leaves out is counted."""
        if rule is StartRule.TIMESTAMP:
            return self._ask_offset(queue, first_since(queue, self._start_ms()))
        end = self._ask_bound(queue, RequestCode.GET_MAX_OFFSET)
        if end:
            begin = None
            with suppress(RmqError):  # for a line in the log only
                begin = self._ask_bound(queue, RequestCode.GET_MIN_OFFSET)
            unread = 0 if begin is None else max(0, end - begin)
            self._skipped[queue.topic] = self._skipped.get(queue.topic, 0) + unread
        return end

    def tell_beginnings(self) -> None:
        """Say what a group that is new does not read; called after queues were taken."""
        skipped, self._skipped = self._skipped, {}
        for topic, messages in sorted(skipped.items()):
            tell_beginning(self._parts.group, topic, messages)

    def _ask_bound(self, queue: MessageQueue, code: RequestCode) -> int | None:
        header = QueueHeader(queue.topic, queue.queue_id)
        return self._ask_offset(queue, Command(code, fields=header.to_fields()))

    def _start_ms(self) -> int:
        configured = self._parts.config.consume_timestamp_ms
        return self._parts.clock.now_ms() - SEARCH_BACK_MS if configured is None else configured

    def _ask_offset(self, queue: MessageQueue, command: Command) -> int | None:
        answer = self._answer(queue, command)
        return None if answer is None else self._told(queue, answer)

    def _answer(self, queue: MessageQueue, command: Command) -> Command | None:
        found = self._parts.client.routes.subscribe_address(queue.broker_name)
        return None if found is None else self._parts.client.invoke(found[1], command)

    def _told(self, queue: MessageQueue, answer: Command) -> int | None:
        if answer.code == ResponseCode.QUERY_NOT_FOUND:
            return NO_STORED_OFFSET
        if answer.code != ResponseCode.SUCCESS:
            log.warning(
                "no start offset of %s: code %d %s", queue, answer.code, answer.remark or ""
            )
            return None
        return max(0, OffsetAnswer.from_fields(answer.fields).offset)

    def _members(self, topic: str) -> list[str] | None:
        """The group's consumers; a broker that does not know this one yet (it is new, or has
        restarted) is told first.
        """
        found = self._consumer_ids(topic)
        if found is None or self._member.client_id not in found:
            self._parts.client.heartbeat()
            found = self._consumer_ids(topic)
        return found

    def _consumer_ids(self, topic: str) -> list[str] | None:
        """From the first broker of the topic that answers; None when none does, or when the group
        is not known yet.
        """
        for address in self._brokers_of(topic):
            command = Command(
                RequestCode.GET_CONSUMER_LIST_BY_GROUP,
                fields=ConsumerGroupHeader(self._parts.group).to_fields(),
            )
            try:
                answer = self._parts.client.invoke(address, command)
            except RemotingError as error:
                log.info(
                    "consumers of group %s not told by %s: %s", self._parts.group, address, error
                )
                continue
            if answer.code == ResponseCode.SUCCESS:
                return decode_consumer_ids(answer.body_bytes())
        return None

    def _brokers_of(self, topic: str) -> list[Address]:
        """One address per broker name, beginning at a different one each time."""
        routes = self._parts.client.routes
        names = sorted({queue.broker_name for queue in routes.subscribe(topic)})
        turn = self.runs % len(names) if names else 0
        found = [routes.subscribe_address(name) for name in names[turn:] + names[:turn]]
        return [pair[1] for pair in found if pair is not None]
