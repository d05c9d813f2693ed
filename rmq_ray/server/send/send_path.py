"""What every send passes, whatever its form: may it be written now, and when is it answered
(protocol-behaviour 9; remoting 3.1; promises: modes).

    TopicGate          which topic and queue it may go to, created where that is allowed
    PendingTopics      a new topic is on disk before anything is written to it (``topic_table``)
    Acknowledgements   bytes that wait for the disk are bounded; answers wait for fdatasync, slaves
    FastFailure        a disk that cannot keep up: refuse rather than queue
    Replication        enough slaves are in sync

Decides: refusals that have nothing to do with what a message holds, and the moment of the answer.
Does not decide what a message may hold (``records_handlers``, ``send_handlers``) nor what durable
means: the store says up to which log offset.

Invariants: a refused send wrote nothing. Each waiter is told once, or, where a master was replaced,
never: its connection ends. It is told 0 when the log is settled that far (durable; under
SYNC_MASTER on the slaves, too), 10 (FLUSH_DISK_TIMEOUT) when its time is over or the log failed, 12
(FLUSH_SLAVE_TIMEOUT) when its time is over and only slaves are missing. Waiters are told in the
order of their arrival, so the answers of one connection keep their order.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable
from dataclasses import replace

from rmq_ray.clock import Clock
from rmq_ray.config import BrokerConfig
from rmq_ray.errors import BrokerBusy, ClientError, TopicNotWritable
from rmq_ray.model.topics import (
    DEFAULT_TOPIC,
    FORBIDDEN_SEND_TOPICS,
    REPLY_SUFFIX,
    Permission,
    TopicConfig,
)
from rmq_ray.ports import Peer
from rmq_ray.protocol.redelivery import group_of_retry_topic
from rmq_ray.protocol.routing.similar_topics import is_own_topic
from rmq_ray.protocol.validators import check_topic
from rmq_ray.remoting.wire.codes import ResponseCode
from rmq_ray.remoting.wire.frame import FLAG_ONEWAY, Command
from rmq_ray.server.base.identity import Identity
from rmq_ray.server.base.responses import Refused, Responder
from rmq_ray.server.base.runtime import BrokerRuntime
from rmq_ray.server.replication.replication import Replication
from rmq_ray.server.send.slot_gate import SlotGate
from rmq_ray.server.tables.group_table import GroupTable
from rmq_ray.server.tables.storage import BrokerStorage
from rmq_ray.server.tables.topic_table import CLIENT_DEFAULT_QUEUES, TopicTable
from rmq_ray.store.front.message_store import MessageStore

log = logging.getLogger("rmq_ray.broker.send")

WRITE = int(Permission.WRITE)
SLOW_MS = 20.0
"""An append below this is not slow: it takes 0.05 ms for a frame of 1 MiB in the page cache."""
OK, NOT_FLUSHED, NOT_COPIED = (
    int(ResponseCode.SUCCESS),
    int(ResponseCode.FLUSH_DISK_TIMEOUT),
    int(ResponseCode.FLUSH_SLAVE_TIMEOUT),
)

Told = Callable[[int], None]
Soon = Callable[[Callable[[], None]], None]
"""Run a call in the loop's next turn."""


class SendPath:
    """What every send touches."""

    def __init__(
        self,
        runtime: BrokerRuntime,
        storage: BrokerStorage,
        acks: Acknowledgements,
        replication: Replication,
        responder: Responder,
    ) -> None:
        config, tables = runtime.config, storage.tables
        self.keeper = storage.keeper
        self.topics = tables.topics
        self.gate = TopicGate(runtime.identity, tables.topics, tables.groups)
        self.pending_topics = tables.pending_topics
        self.acks = acks
        self.counters = runtime.counters
        self.clock = runtime.clock
        self.sync = config.store.acknowledges_later or replication.sync
        """Answers wait for fdatasync, or for slaves."""
        self.fast = FastFailure(
            runtime.clock, runtime.offload.post, config.stale_send_ms, config.disk_busy_ms
        )
        self.replication = replication
        self.slots = SlotGate(storage, runtime.clock)
        self.limiter = tables.settings.limiter
        self.serve = responder.serve

    def limit(self, topic: str, peer: Peer, size: int, count: int) -> None:
        """Where there are limits (``limiter.active``). Raises ``BrokerBusy`` when the topic or the
        account is over its own; else the messages count.
        """
        wait_ms, whose = self.limiter.send(
            topic, peer.account, size, count, self.clock.monotonic_ms()
        )
        if wait_ms:
            raise BrokerBusy(
                f"[FLOW_CONTROL]{whose} is over its limit on this broker, retry after "
                f"{wait_ms:.0f} ms; nothing was written",
                wait_ms,
            )

    def admit(self, size: int) -> None:
        """Raises ``BrokerBusy`` when ``size`` more bytes are too many now, or the disk is too slow,
        ``Refused`` while the broker drains.

        Nothing is written then.
        """
        self.gate.check_open()
        if self.sync:
            self.acks.check_room(size)
            self.replication.admit()
            store = self.keeper.store
            self.fast.check_disk(
                self.acks.oldest_wait_ms(
                    self.clock.monotonic_ms(), 0 if store is None else store.durable_offset
                )
            )
        else:
            self.fast.check_disk()

    def later(self, command: Command, peer: Peer, topic: str) -> None:
        """Run ``command`` again when its new topic is on disk; its body is copied, the connection
        reuses its buffer.
        """
        body = bytearray(command.body_bytes())
        copy = replace(command, body=body)

        def resume(error: Exception | None) -> None:
            if error is None:
                self.serve(copy, peer)
            elif not command.flag & FLAG_ONEWAY:
                peer.send(
                    command.answer(
                        ResponseCode.SERVICE_NOT_AVAILABLE,
                        remark=f"topic {topic} could not be created: {error}",
                    )
                )

        self.pending_topics.wait(topic, len(body), resume)

    def settled(self, store: MessageStore) -> int:
        """Log offset up to which a send may be acknowledged now. A master that was started again
        shows more than that: no slave may have the end of what it found.
        """
        return min(store.visible_offset, self.replication.settled(store.durable_offset))

    def when_durable(
        self, command: Command, end_offset: int, size: int, told: Callable[[int], None]
    ) -> None:
        """``told(status code)`` once the log is durable up to ``end_offset`` (and replicated, as
        SYNC_MASTER demands), or the time is over; at once with SLAVE_NOT_AVAILABLE where too few
        slaves are in sync. Nobody waits for a oneway send.
        """
        if command.flag & FLAG_ONEWAY:
            return
        store = self.keeper.store
        settled = 0 if store is None else self.settled(store)
        if end_offset > settled and not self.replication.enough:
            told(int(ResponseCode.SLAVE_NOT_AVAILABLE))
            return
        self.acks.wait(end_offset, settled, size, self.clock.monotonic_ms(), told)


class TopicGate:
    """Whether a send may go to a topic and queue of this broker: permissions, automatic creation,
    the queue.

    The answers are codes with remarks, because that is what leaves the broker.
    """

    def __init__(self, identity: Identity, topics: TopicTable, groups: GroupTable) -> None:
        self._identity = identity
        self._topics = topics
        self._groups = groups
        self._turn = 0

    def admit(
        self,
        topic: str,
        default_topic: str = DEFAULT_TOPIC,
        default_queues: int = CLIENT_DEFAULT_QUEUES,
    ) -> TopicConfig:
        """The topic's settings; made from ``default_topic`` where it is missing.

        Raises ``TopicNotWritable`` (16), ``TopicNotFound`` (17), ``AdminError`` or ``ClientError``
        for a bad name (1), what ``check_open`` raises (14).
        """
        if self._identity.is_slave:
            raise TopicNotWritable(
                f"broker {self._identity.name} is a slave and takes no sends; send to the master",
                topic,
            )
        if not topic.endswith(
            REPLY_SUFFIX
        ):  # a reply goes to the broker that its asker is connected to, no other one
            self.check_open()
        config = self._topics.get(topic)
        if config is None:
            check_topic(topic)
            config = self._create(topic, default_topic, default_queues)
        if topic in FORBIDDEN_SEND_TOPICS:
            raise TopicNotWritable(f"Sending message to topic[{topic}] is forbidden.", topic)
        if not config.permission & WRITE or (config.order and not self._identity.writable):
            raise TopicNotWritable(
                f"the broker[{self._identity.address}] sending message to topic[{topic}] is "
                f"forbidden: it is not writable",
                topic,
            )
        return config

    def check_open(self) -> None:
        """Raises ``Refused`` (14, SERVICE_NOT_AVAILABLE) while the broker drains: producers ask
        another broker, or this one again later.
        """
        if self._identity.draining:
            raise Refused(
                f"broker {self._identity.name} is drained and takes no messages; nothing was "
                f"written",
                ResponseCode.SERVICE_NOT_AVAILABLE,
            )

    def writable(self, config: TopicConfig, queue_id: int) -> TopicConfig:
        """The topic, which has this queue for writing. Raises ``ClientError`` (1) beyond the last
        one.
        """
        if queue_id >= config.write_queues:
            config = self._topics.widen(config, queue_id)
        if not 0 <= queue_id < config.write_queues:
            raise ClientError(
                f"request queueId[{queue_id}] is illegal, topic {config.name} has "
                f"{config.write_queues} write queues; refresh the route",
                queue_id,
            )
        return config

    def queue(self, config: TopicConfig, queue_id: int) -> int:
        """The queue to write: the given one, or for a negative one the next in turn. Raises
        ``ClientError`` (1) beyond the last.
        """
        if queue_id < 0:
            self._turn += 1
            return self._turn % max(1, config.write_queues)
        if queue_id >= max(config.read_queues, config.write_queues):
            config = self._topics.widen(config, queue_id)
        if queue_id >= max(config.read_queues, config.write_queues):
            raise ClientError(
                f"request queueId[{queue_id}] is illegal, topic {config.name} has "
                f"{config.write_queues} write and {config.read_queues} read queues; "
                "refresh the route",
                queue_id,
            )
        return queue_id

    def _create(self, topic: str, default_topic: str, default_queues: int) -> TopicConfig:
        group = group_of_retry_topic(topic)
        if group is not None and self._groups.find(group) is not None:
            return self._topics.create_internal(topic, 1)
        created = self._topics.create_by_send(topic, default_topic, default_queues)
        if not is_own_topic(topic):
            log.warning(
                "topic %r was created automatically with %d queues on broker %s, by a send to it; "
                "if that was a typing error, delete it: rmq-ray topic delete %s",
                topic,
                created.write_queues,
                self._identity.name,
                topic,
            )
        return created


class FastFailure:
    """Sends are refused rather than queued when the disk cannot keep up: Apache RocketMQ's
    BrokerFastFailure.

        an append took long: what gathered meanwhile waited as long   > 200 ms ──> SYSTEM_BUSY
        SYNC_FLUSH: the oldest send waits for its fdatasync           > 1 s    ──> SYSTEM_BUSY

    Requests wait in sockets, not in a queue of ours, while the loop is held up by a write; so the
    time that slow writes took since the turn before is the age of what is read now. It counts until
    the loop has been through once more. What else held the loop up is not counted: a refusal would
    make nothing faster.

    Of one broker; loop only. ``stale_ms``: waitTimeMillsInSendQueue; ``disk_busy_ms``:
    osPageCacheBusyTimeOutMills; 0 = off.
    """

    def __init__(self, clock: Clock, soon: Soon, stale_ms: int, disk_busy_ms: int) -> None:
        self.now: Callable[[], float] = clock.monotonic_ms
        self._soon = soon
        self._stale_ms = stale_ms
        self._disk_busy_ms = disk_busy_ms
        self._lost_ms = 0.0
        self._turns_left = 0

    @property
    def lost_ms(self) -> float:
        """How long slow writes held up what is read now."""
        return self._lost_ms

    def configure(self, config: BrokerConfig) -> None:
        """Settings were changed."""
        self._stale_ms, self._disk_busy_ms = config.stale_send_ms, config.disk_busy_ms

    def check_disk(self, oldest_wait_ms: float = 0.0) -> None:
        """Raises ``BrokerBusy`` when sends are to be refused now. ``oldest_wait_ms``: how long the
        oldest send waits for its flush.
        """
        if self._lost_ms > self._stale_ms > 0:
            raise BrokerBusy(
                f"[TIMEOUT_CLEAN_QUEUE]broker busy, start flow control for a while, period "
                f"in queue: {self._lost_ms:.0f}ms: the disk holds up writes"
            )
        if oldest_wait_ms > self._disk_busy_ms > 0:
            raise BrokerBusy(
                f"[PCBUSY_CLEAN_QUEUE]broker busy, start flow control for a while, period in "
                f"queue: {oldest_wait_ms:.0f}ms: the disk holds up flushes"
            )

    def ended(self, began_ms: float) -> None:
        """An append ended that began at ``now()`` then, whether it worked or not."""
        took = self.now() - began_ms
        if took > SLOW_MS:
            self._lost_ms += took
            if not self._turns_left:
                self._soon(self._turned)
            self._turns_left = 2

    def _turned(self) -> None:
        """The loop begins another turn: what it reads now came while the writes lasted, what it
        reads in the next did not.
        """
        self._turns_left -= 1
        if self._turns_left:
            self._soon(self._turned)
        else:
            self._lost_ms = 0.0


class Acknowledgements:
    """Sends that are written but not yet durable: whose answers wait, and how many bytes that are.

    ``timeout_ms``: how long an answer waits (syncFlushTimeout, slaveTimeout). ``bytes_max``:
    unacknowledged bytes before new sends are refused.
    """

    def __init__(self, timeout_ms: int, bytes_max: int) -> None:
        self._timeout_ms = timeout_ms
        self._bytes_max = bytes_max
        self._waiting: deque[tuple[int, float, int, Told]] = deque()
        self.in_flight_bytes = 0
        self.timeouts = 0
        self.slave_timeouts = 0

    def configure(self, config: BrokerConfig) -> None:
        """Settings were changed."""
        self._bytes_max = config.in_flight_bytes_max

    def check_room(self, size: int) -> None:
        """Raises ``BrokerBusy`` when ``size`` more bytes would exceed the limit; called before
        anything is written.
        """
        if self.in_flight_bytes + size > self._bytes_max:
            raise BrokerBusy(
                f"[REJECTREQUEST]system busy: {self.in_flight_bytes} bytes wait for the "
                f"disk, the limit is {self._bytes_max}; send again later",
                size,
            )

    def oldest_wait_ms(self, now_ms: float, flushed: int = 0) -> float:
        """How long the send that waits longest for the disk has waited; 0 when the log is
        ``flushed`` that far. ``now_ms`` is monotonic.
        """
        return (
            now_ms - self._waiting[0][1] + self._timeout_ms
            if self._waiting and self._waiting[0][0] > flushed
            else 0.0
        )

    def wait(
        self, end_offset: int, settled_offset: int, size: int, now_ms: float, told: Told
    ) -> None:
        """``told(0)`` at once when the log is durable and visible up to ``end_offset``, else when
        it becomes so. ``now_ms`` is monotonic.
        """
        if end_offset <= settled_offset and not self._waiting:
            told(OK)
            return
        self._waiting.append((end_offset, now_ms + self._timeout_ms, size, told))
        self.in_flight_bytes += size

    def durable(self, log_offset: int) -> None:
        """The log is durable up to ``log_offset``."""
        waiting = self._waiting
        while waiting and waiting[0][0] <= log_offset:
            _, _, size, told = waiting.popleft()
            self.in_flight_bytes -= size
            told(OK)

    def expire(self, now_ms: float, flushed: int = 0) -> None:
        """Tell those whose time is over; below log offset ``flushed`` it is slaves that are
        missing.
        """
        waiting = self._waiting
        while waiting and waiting[0][1] <= now_ms:
            self._give_up(NOT_COPIED if waiting[0][0] <= flushed else NOT_FLUSHED)

    def fail_all(self) -> None:
        """The log failed: what waits may or may not be stored."""
        while self._waiting:
            self._give_up(NOT_FLUSHED)

    def abandon(self) -> None:
        """Nobody is told anything: their connections are closed, which leaves open what became of
        their messages.
        """
        self._waiting.clear()
        self.in_flight_bytes = 0

    def __len__(self) -> int:
        return len(self._waiting)

    def _give_up(self, code: int) -> None:
        _, _, size, told = self._waiting.popleft()
        self.in_flight_bytes -= size
        self.timeouts += code == NOT_FLUSHED
        self.slave_timeouts += code == NOT_COPIED
        told(code)
