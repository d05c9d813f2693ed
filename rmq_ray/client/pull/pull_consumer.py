"""The pull consumer: messages are fetched when the program asks for them (protocol-behaviour 24,
lite pull).

    with PullConsumer("reader", discovery=...) as pc:
        pc.assign(pc.fetch_message_queues("orders"))    # or pc.subscribe("orders", "paid")
        while batch := pc.poll(1_000, timeout=1.0):
            ...
            pc.commit(batch)

Decides what may be asked when, what a commit covers and what closing commits. Pulling ahead is in
``client.pull.pull_engine``, questions to brokers in ``client.pull.queue_queries``.

Invariants: a queue's messages come in order; what no poll returned is never committed. Auto-commit
covers what was returned by polls before the latest one, so that a killed program gets its last
batch again. ``assign`` and ``subscribe`` exclude each other.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Mapping
from datetime import datetime
from functools import partial
from typing import Any, Unpack

from rmq_ray.client.consumer.assigned_queue import AssignedQueue
from rmq_ray.client.consumer.consumer_lifecycle import GroupConsumer
from rmq_ray.client.consumer.consumer_options import PullOptions, as_ms, pull_settings
from rmq_ray.client.consumer.flow_control import Pausable
from rmq_ray.client.consumer.offset_store import ReadOffset
from rmq_ray.client.consumer.subscriptions import check_sql_filters, check_subscriptions
from rmq_ray.client.instance.client_instance import ClientInstance
from rmq_ray.client.instance.managed import ServiceState
from rmq_ray.client.instance.settling import HandOver
from rmq_ray.client.outgoing.send_request import TIMEOUT_S_MAX
from rmq_ray.client.pull.pull_engine import PullEngine
from rmq_ray.client.pull.pulled_batch import PulledBatch
from rmq_ray.client.pull.queue_queries import OnePull, PullResult, QueueQueries
from rmq_ray.clock import SYSTEM_CLOCK, Clock
from rmq_ray.config import ConsumerConfig
from rmq_ray.errors import ClientError, CommitFailed, ConsumeError, NotAssigned, OffsetOutOfRange
from rmq_ray.model.groups import ConsumerData, ConsumeType, MessageModel
from rmq_ray.model.ids import MessageQueue
from rmq_ray.model.namespaces import queue_with_namespace
from rmq_ray.ports import Discovery
from rmq_ray.protocol.filters.subscriptions import parse_subscription

CLOSE_TIMEOUT_MS = 30_000
POLL_MAX = 65_536
RESOLVE_TIMEOUT_MS = 10_000.0
PULL_WAIT_MAX_S = 60.0


class PullConsumer(GroupConsumer[PullEngine]):
    """Reads topics at its own pace, as a member of a group or queue by queue. Use it as a context
    manager, or ``start`` and ``close``.

    ``config`` has the rarer settings; options (``PullOptions``) are put over it. Any thread may
    call it; with several polling threads commit by ``commit(batch)``. Raises ``ConfigError`` or
    ``ClientError`` for wrong arguments.
    """

    def __init__(
        self,
        group: str,
        *,
        discovery: Discovery,
        config: ConsumerConfig | None = None,
        client_id: str | None = None,
        clock: Clock = SYSTEM_CLOCK,
        **options: Unpack[PullOptions],
    ) -> None:
        self._settings = pull_settings(group, config, options)
        anew = partial(
            PullConsumer,
            group,
            discovery=discovery,
            config=config,
            client_id=client_id,
            **options,
        )
        config = self._settings.config
        group, namespace = config.group, config.namespace
        super().__init__("pull consumer", group, discovery, client_id, clock, namespace, anew)
        # a signal handler that closes may have interrupted a poll
        self._polling = threading.RLock()
        self._commits = True
        self._halted = False
        self._subscribing = False
        self._assigned: frozenset[MessageQueue] = frozenset()
        self._returned: list[AssignedQueue] = []  # queues of the latest poll
        self._auto_due_ms = clock.monotonic_ms()

    # --- life -------------------------------------------------------------------------------------

    def close(self, *, commit: bool = True) -> None:
        """Leave the group. With auto-commit everything that was polled counts as consumed, unless
        ``commit`` is false. A ``start`` of another thread is waited for up to 30 s, one that a
        signal handler interrupts is not: it ends by itself.
        """
        self._commits = self._commits and commit
        self._life.stop(CLOSE_TIMEOUT_MS)

    def __exit__(self, kind: type[BaseException] | None, *_exception: object) -> None:
        self.close(commit=kind is None)

    def _make_engine(self, client: ClientInstance) -> PullEngine:
        return PullEngine(client, self._settings, self._subscriptions, self.consumer_data)

    def _begin(self) -> None:
        super()._begin()
        assert self._engine is not None
        if self._subscribing:
            self._engine.subscribed()
        elif self._assigned:
            self._engine.assign(self._assigned)

    def halt(self) -> HandOver:
        """See ``ManagedConsumer``: polls of threads that go on commit nothing by themselves."""
        self._halted = True
        return super().halt()

    def _end(self, timeout_ms: int) -> bool:
        engine = self._engine
        assert engine is not None
        engine.ready.close()
        with self._polling:
            if self._settings.auto_commit and self._commits:
                self._commit_polled(engine, engine.parts.assigned.snapshot().values())
        return super()._end(timeout_ms)

    def consumer_data(self) -> ConsumerData:
        """See ``ManagedConsumer``. Assigned queues are no subscription: nobody divides them."""
        subscriptions = self._subscriptions.all() if self._subscribing else ()
        return ConsumerData(
            self._group,
            ConsumeType.CONSUME_ACTIVELY,
            MessageModel.CLUSTERING,
            self._settings.start_from,
            subscriptions,
        )

    # --- which queues -----------------------------------------------------------------------------

    def fetch_message_queues(self, topic: str) -> list[MessageQueue]:
        """The topic's queues. ``TopicNotFound`` when no name server knows it."""
        return self._queries().queues(self._full_name(topic))

    def assign(self, queues: Iterable[MessageQueue], expression: Any = "*") -> None:
        """Read exactly these queues, each from its committed offset, else from where ``start_from``
        says, until a ``seek``.

        ``expression`` filters the queues' topics, as in ``subscribe``. ``ClientError`` after
        ``subscribe``.
        """
        if not isinstance(queues, Iterable):
            raise ClientError(
                f"assign() takes a list of MessageQueue, not {queues!r:.80}; take them from "
                f"fetch_message_queues(topic)",
                repr(queues)[:80],
            )
        chosen = frozenset(map(self._full_queue, queues))
        if self._subscribing:
            raise ClientError(
                "assign() after subscribe(): a pull consumer does one or the other; make "
                "another one",
                self._group,
            )
        topics = {queue.topic for queue in chosen}
        if topics:
            self._put(dict.fromkeys(topics, expression))
        self._assigned = chosen
        if self._engine is not None:
            self._running().assign(chosen)

    def subscribe(self, topic: str, expression: Any = "*") -> None:
        """Read a topic together with the other subscribed members of the group, who divide its
        queues. ``ClientError`` after ``assign``.
        """
        if self._assigned:
            raise ClientError(
                "subscribe() after assign(): a pull consumer does one or the other; make "
                "another one",
                self._group,
            )
        self._put({self._full_name(topic): expression})
        self._subscribing = True
        if self._engine is not None:
            self._running().subscribed()

    def unsubscribe(self, topic: str) -> None:
        """Give a topic up; its queues leave at the rebalance, which comes at once."""
        if not self._subscribing or not self._subscriptions.remove(self._full_name(topic)):
            raise ClientError(f"group {self._group!r} is not subscribed to {topic!r}", topic)
        self.rebalance_now()

    def assignment(self) -> list[MessageQueue]:
        """The queues assigned, or held by rebalance now."""
        if not self._subscribing:
            return sorted(self._assigned)
        return sorted(self._engine.parts.assigned.snapshot()) if self._engine is not None else []

    # --- messages ---------------------------------------------------------------------------------

    def poll(self, max_messages: int = 1_000, timeout: float = 5.0) -> PulledBatch:
        """Up to ``max_messages`` messages: at once when some are here, else the first to come
        within ``timeout`` seconds; may be empty.

        ``NotAssigned`` before ``assign`` or ``subscribe``.
        """
        _check_whole("max_messages", max_messages)
        if not 1 <= max_messages <= POLL_MAX:
            raise ClientError(
                f"max_messages must be 1 to {POLL_MAX}, not {max_messages}", max_messages
            )
        _check_wait(timeout)
        engine = self._running()
        if not self._subscribing and not self._assigned:
            raise NotAssigned(
                f"pull consumer of group {self._group!r} has no queues: assign([...]) or "
                f"subscribe(topic) first",
                self._group,
            )
        with self._polling:
            if self._settings.auto_commit and not self._halted:
                self._auto_commit(engine)
            batch, returned = engine.ready.take(max_messages, max(0.0, timeout) * 1000)
            self._returned = returned
        engine.unblock(returned)
        if engine.ready.closed and not returned:
            self._running()
        return batch

    def pull(
        self,
        queue: MessageQueue,
        expression: Any = "*",
        offset: int = 0,
        max_messages: int = 32,
        *,
        wait: float = 0.0,
    ) -> PullResult:
        """One pull of any queue, without assignment: what lies at ``offset`` now, or comes within
        ``wait`` seconds.

        The result's ``status`` says what was found, its ``next_offset`` where to go on: behind what
        was looked at, or, for OFFSET_ILLEGAL, where the queue can be read. Raises
        ``TopicNotFound``, ``SubscriptionInvalid``, ``ResponseError``, ``RemotingError``.
        """
        _check_whole("offset", offset)
        if offset < 0 or not 1 <= max_messages <= POLL_MAX or not 0 <= wait <= PULL_WAIT_MAX_S:
            what = f"offset {offset}, max_messages {max_messages}, wait {wait}"
            raise ClientError(
                f"{what}: offset must be 0 or more, max_messages 1 to {POLL_MAX}, wait 0 to "
                f"{PULL_WAIT_MAX_S} s",
                offset,
            )
        queue = self._full_queue(queue)
        subscription = parse_subscription(
            queue.topic,
            check_subscriptions({queue.topic: expression})[queue.topic],
            self._clock.now_ms(),
        )
        return self._queries().pull(
            queue,
            subscription,
            OnePull(offset, max_messages, self._settings.config.pull_bytes, int(wait * 1000)),
        )

    # --- where ------------------------------------------------------------------------------------

    def position(self, queue: MessageQueue) -> int:
        """Offset of the next message that ``poll`` returns. ``NotAssigned``; ``ConsumeError`` when
        the broker tells no start within 10 s.
        """
        return self._held(queue).position

    def seek(self, queue: MessageQueue, offset: int) -> None:
        """Go on at ``offset``. ``OffsetOutOfRange`` outside the queue's bounds (its end included),
        ``NotAssigned`` for others' queues.
        """
        self._must_hold(queue)
        _check_whole("offset", offset)
        low, high = self._queries().bounds(queue)
        if not low <= offset <= high:
            raise OffsetOutOfRange(
                f"offset {offset} of {queue} lies outside {low}..{high}; seek within",
                offset,
                low,
                high,
            )
        self._running().seek(queue, offset)

    def seek_to_begin(self, queue: MessageQueue) -> None:
        """Go on at the first message that is there."""
        self._must_hold(queue)
        self._running().seek(queue, self._queries().bounds(queue)[0])

    def seek_to_end(self, queue: MessageQueue) -> None:
        """Go on with the next message to come."""
        self._must_hold(queue)
        self._running().seek(queue, self._queries().bounds(queue)[1])

    def watermark_offsets(self, queue: MessageQueue) -> tuple[int, int]:
        """(offset of the first message that is there, offset of the next one to come), of any
        queue.
        """
        return self._queries().bounds(queue)

    def offsets_for_times(
        self, times: Mapping[MessageQueue, datetime | int]
    ) -> dict[MessageQueue, int]:
        """Of each queue the first message stored at or after its time (datetime, or ms since
        1970).
        """
        if not isinstance(times, Mapping):
            raise ClientError(
                f"offsets_for_times() takes {{queue: time}}, not {times!r:.80}", repr(times)[:80]
            )
        asked = {queue: as_ms(moment) for queue, moment in times.items()}
        return {
            queue: self._queries().offset_at(queue, store_ms) for queue, store_ms in asked.items()
        }

    # --- commits ----------------------------------------------------------------------------------

    def commit(
        self, batch: PulledBatch | Mapping[MessageQueue, int] | None = None, *, wait: bool = True
    ) -> dict[MessageQueue, int]:
        """Tell the brokers that the group has consumed ``batch`` (None = everything polled; or
        queue -> next offset), and wait. With ``wait`` False they hear of it from the queue's next
        pull, every ``offset_persist_ms``, or from ``close``: who dies before gets those messages
        again.

        Returns what was committed; a queue that left this consumer meanwhile is not in it: its
        messages come again to its new owner. An offset below what was committed before is not taken
        (after a ``seek`` it is). ``OffsetOutOfRange`` beyond a queue's end (nothing is committed
        then), ``CommitFailed`` when a broker did not take it.
        """
        engine = self._running()
        held = engine.parts.assigned.snapshot()
        if batch is None:
            offsets = {queue: work.position for queue, work in held.items()}
        elif isinstance(batch, PulledBatch | Mapping):
            offsets = dict(batch.next_offsets if isinstance(batch, PulledBatch) else batch)
        else:
            raise ClientError(
                f"commit() takes what poll() returned, or {{queue: next offset}}, not "
                f"{batch!r:.80}",
                repr(batch)[:80],
            )
        taken = {queue: offset for queue, offset in offsets.items() if queue in held}
        if isinstance(batch, Mapping):
            for queue, offset in taken.items():
                self._check_bounds(queue, offset, held[queue].process.next_offset)
        for queue, offset in taken.items():
            engine.offsets.commit(queue, offset)
        failed = engine.persist(taken) if wait else []
        if failed:
            raise CommitFailed(
                f"{len(failed)} of {len(taken)} offsets were not taken, like that of "
                f"{failed[0]}; commit again",
                *map(str, failed),
            )
        return taken

    def committed(self, queue: MessageQueue) -> int | None:
        """The group's committed offset of any queue, from this consumer's memory or else the
        broker; None when there is none.
        """
        known = self._running().offsets.read(queue, ReadOffset.MEMORY)
        return known if known >= 0 else self._queries().committed(queue)

    # --- pausing ----------------------------------------------------------------------------------

    def pause(self, queues: Iterable[Pausable] | Pausable) -> None:
        """No messages of these queues (or topics) until ``resume``. What was pulled of them is
        given back and pulled again then.
        """
        engine = self._running()
        engine.parts.pauses.add(self._full_names(queues))
        for queue in engine.parts.assigned.snapshot():
            if engine.parts.pauses.covers(queue):
                engine.rewind(queue)

    def resume(self, queues: Iterable[Pausable] | Pausable | None = None) -> None:
        """Go on with these, None = with all."""
        engine = self._running()
        paused = [
            queue for queue in engine.parts.assigned.snapshot() if engine.parts.pauses.covers(queue)
        ]
        if queues is None:
            engine.parts.pauses.clear()
        else:
            engine.parts.pauses.remove(self._full_names(queues))
        engine.pull_soon(paused)

    def paused(self) -> list[Pausable]:
        """Topics and queues that are paused."""
        return self._running().parts.pauses.all()

    # --- inside -----------------------------------------------------------------------------------

    def _auto_commit(self, engine: PullEngine) -> None:
        """A poll begins: what earlier ones returned is done. All queues, and word to the brokers,
        every ``auto_commit_interval_ms``.
        """
        now = self._clock.monotonic_ms()
        if now < self._auto_due_ms:
            self._commit_polled(engine, self._returned)
            return
        self._auto_due_ms = now + self._settings.auto_commit_interval_ms
        held = engine.parts.assigned.snapshot()
        self._commit_polled(engine, held.values())
        engine.offsets.persist_all(held)

    def _commit_polled(self, engine: PullEngine, works: Iterable[AssignedQueue]) -> None:
        for work in works:
            if not work.process.dropped:
                engine.offsets.commit(work.queue, work.position)

    def _running(self) -> PullEngine:
        if self._engine is None or self._life.state is not ServiceState.RUNNING:
            what = (
                "start it, or use it as a context manager"
                if self._life.state is ServiceState.CREATE_JUST
                else "make a new one"
            )
            raise ClientError(
                f"pull consumer of group {self._group!r} is {self._life.state.value}: {what}",
                self._group,
            )
        return self._engine

    def _put(self, expressions: dict[str, Any]) -> None:
        """New filters, which a broker checks if they are SQL and this consumer runs."""
        checked = check_subscriptions(expressions)
        if self._engine is not None:
            self._running()
            check_sql_filters(
                self._engine.client,
                self._group,
                [parse_subscription(topic, given) for topic, given in checked.items()],
            )
        for topic, given in checked.items():
            self._subscriptions.put(topic, given, self._clock.now_ms())

    def _full_queue(self, queue: MessageQueue) -> MessageQueue:
        if not isinstance(queue, MessageQueue):
            raise ClientError(
                f"{queue!r:.80} is no MessageQueue; take them from fetch_message_queues(topic)",
                repr(queue)[:80],
            )
        return queue_with_namespace(self._namespace, queue)

    def _queries(self) -> QueueQueries:
        return QueueQueries(self._running().client, self._group)

    def _must_hold(self, queue: MessageQueue) -> None:
        engine = self._running()
        if queue not in engine.wanted() and queue not in engine.parts.assigned.snapshot():
            raise NotAssigned(
                f"{queue} is not assigned to this consumer; its queues are those of assignment()",
                str(queue),
            )

    def _check_bounds(self, queue: MessageQueue, offset: int, pulled: int) -> None:
        """An offset to commit; what was ``pulled`` is there, further ones are asked for."""
        _check_whole("offset", offset)
        high = pulled if 0 <= offset <= pulled else self._queries().bounds(queue)[1]
        if not 0 <= offset <= high:
            raise OffsetOutOfRange(
                f"offset {offset} of {queue} cannot be committed: it lies outside 0..{high}",
                offset,
                0,
                high,
            )

    def _held(self, queue: MessageQueue) -> AssignedQueue:
        self._must_hold(queue)
        found = self._running().work_of(queue, RESOLVE_TIMEOUT_MS)
        if found is None:
            raise ConsumeError(
                f"no broker told where the group begins in {queue} in time; is "
                f"{queue.broker_name} up?",
                str(queue),
            )
        return found


def _check_wait(timeout: object) -> None:
    if (
        isinstance(timeout, bool)
        or not isinstance(timeout, int | float)
        or not timeout < TIMEOUT_S_MAX
    ):
        raise ClientError(
            f"timeout must be 0 to {TIMEOUT_S_MAX:.0f} seconds, not {timeout!r:.80}; poll "
            f"again to wait on",
            repr(timeout)[:80],
        )


def _check_whole(name: str, value: object) -> None:
    if not isinstance(value, int) or isinstance(value, bool):
        raise ClientError(f"{name} must be a whole number, not {value!r:.80}", repr(value)[:80])
