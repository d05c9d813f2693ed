"""PULL_MESSAGE, PULL_RECORDS, SCAN_RECORDS: checks, reading, holding, committing on the way
(protocol-behaviour 10.2-10.6, 11).

Decides: whether a pull may be served, what its answer says, whether it is held. Does not decide
what lies at an offset (the store) or which arrival wakes a held pull (``parked_pulls``).

A pull runs on arrival (it may commit an offset and may be held) and, when it was held, once more
when it wakes; that answer is final, but for an SQL filter that lets nothing pass, a limit, or a
record that is awaited from a copy. Both forms of request become one
``PullRecords``; they differ in limits and in the form of the answer only.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from rmq_ray.arrays import MANY
from rmq_ray.clock import Clock
from rmq_ray.config import BrokerConfig
from rmq_ray.errors import RecordAwaited, StoreError, TooManyRequests
from rmq_ray.model.fastjson import dumps
from rmq_ray.model.groups import TAG
from rmq_ray.model.ids import MessageQueue
from rmq_ray.model.message import KEYS, TAGS
from rmq_ray.model.pulling import GetMessageStatus, PullSysFlag
from rmq_ray.model.topics import OFFSET_MOVED_TOPIC, GroupConfig, Permission
from rmq_ray.ports import Peer
from rmq_ray.remoting.wire import bodies
from rmq_ray.remoting.wire.codes import ResponseCode
from rmq_ray.remoting.wire.frame import Command
from rmq_ray.remoting.wire.headers import PullHeader
from rmq_ray.remoting.wire.records import (
    PullRecords,
    pack_found,
    pack_pull_answer,
    unpack_pull,
    unpack_scan,
)
from rmq_ray.server.base.responses import Refused, Responder
from rmq_ray.server.base.runtime import BrokerRuntime
from rmq_ray.server.groups.membership import GroupMembership, refusal_to_pull
from rmq_ray.server.pull.delayed_pulls import DelayedPulls
from rmq_ray.server.pull.parked_pulls import ParkedPulls
from rmq_ray.server.pull.pull_filters import EVERYTHING, PullFilters, Wanted
from rmq_ray.server.pull.pull_results import (
    PULL_NOT_FOUND,
    PULL_OFFSET_MOVED,
    PULL_RETRY_IMMEDIATELY,
    SUCCESS,
    response_code,
    suggested_broker,
)
from rmq_ray.server.send.message_writer import MessageWriter
from rmq_ray.server.tables.offset_table import cut_offset
from rmq_ray.server.tables.storage import BrokerStorage
from rmq_ray.store.front.message_store import MessageStore
from rmq_ray.store.reading.filtered_reading import Condition
from rmq_ray.store.reading.log_reader import GetResult

FOREIGN_RECORDS_MAX = 32
FOREIGN_BYTES_MAX = 256 << 10
# Pages of 4 MB double the p99 of the sends beside them: a page holds the loop's interpreter while
# its records are checked.
SCAN_BYTES_MAX = 1 << 20
SUSPEND_MS_MAX = 120_000
COMMIT, SUSPEND, INLINE = (
    int(PullSysFlag.COMMIT_OFFSET),
    int(PullSysFlag.SUSPEND),
    int(PullSysFlag.SUBSCRIPTION),
)

READ = int(Permission.READ)
PAUSE_MS = 1_000  # between two events of one group and queue
REMEMBERED_MAX = 10_000
AWAIT_MS = 20  # a slave's copy of a broken record is there after a few ms


@dataclass(frozen=True, slots=True)
class _Pull:
    """One pull; ``command`` without its body carries opaque and form of the answer. ``ours``:
    PULL_RECORDS. ``deadline_ms``: until when it is held, on the wall clock; 0 = it was not held
    yet.
    """

    asked: PullRecords
    command: Command
    ours: bool
    deadline_ms: int = 0


class PullHandlers:
    """Serves pulls, and parks those that find nothing (``parked``)."""

    def __init__(
        self,
        runtime: BrokerRuntime,
        storage: BrokerStorage,
        members: GroupMembership,
        writer: MessageWriter,
        responder: Responder,
    ) -> None:
        config, tables = runtime.config, storage.tables
        self._config, self._identity = config, runtime.identity
        self._clock, self._counters = runtime.clock, runtime.counters
        self._keeper, self._tables = storage.keeper, tables
        self._limiter = tables.settings.limiter
        self._members = members
        self._moved = MovedEvents(writer, runtime.clock)
        self._answer, self._answer_from = responder.answer, responder.answer_from
        self.delayed = DelayedPulls(runtime.clock, config.parked_pulls_max)
        """What waits for its limit, pops too."""
        self.filters = PullFilters(members, tables.filters, config.property_filter)
        self.parked: ParkedPulls[Any] = ParkedPulls(
            self._wake, self._max_offset, runtime.clock, runtime.offload, config
        )

    def _max_offset(self, topic: str, queue_id: int) -> int:
        store = self._keeper.store
        return 0 if store is None else store.bounds(topic, queue_id)[1]

    def configure(self, config: BrokerConfig) -> None:
        """Settings were changed."""
        self._config = config
        self.filters.enabled = config.property_filter

    def pull_message(self, command: Command, peer: Peer) -> Command | None:
        """Apache RocketMQ's pull: at most 32 records."""
        header = PullHeader.from_fields(command.fields)
        asked = PullRecords(
            header.consumer_group,
            header.topic,
            header.queue_id,
            header.queue_offset,
            min(header.max_count, FOREIGN_RECORDS_MAX),
            FOREIGN_BYTES_MAX,
            header.sys_flag,
            header.commit_offset,
            header.suspend_ms,
            header.sub_version,
            header.expression_type or TAG,
            header.subscription,
            0,
        )
        command.body = b""
        return self._run(_Pull(asked, command, False), peer, first=True)

    def pull_records(self, command: Command, peer: Peer) -> Command | None:
        """Our pull: as many records as the byte limit allows, with an array of their sizes."""
        asked = unpack_pull(command.body)
        command.body = (
            b""  # it is the connection's buffer; the command stays while the pull is held
        )
        return self._run(_Pull(asked, command, True), peer, first=True)

    def scan_records(self, command: Command, peer: Peer) -> Command | None:
        """A bulk read: queue offsets [start, end) without a group, never held. Reads beside the
        loop: pages are large and often cold.
        """
        scan = unpack_scan(command.body)
        store = self._store()
        self._check_topic(scan.topic, scan.queue_id)
        count = min(scan.end - scan.start, 65_536)
        if count <= 0:
            low, high = store.bounds(scan.topic, scan.queue_id)
            return command.answer(
                PULL_NOT_FOUND, body=pack_pull_answer(scan.start, low, high, store.epoch, 0)
            )
        self._counters.scans += 1
        command.body = b""

        def read() -> GetResult:
            # What lies behind a cut was not planned.
            first_new = cut_offset(store, scan.topic, scan.queue_id, scan.end, scan.epoch)
            if first_new is not None and first_new <= scan.start:
                return _moved(store, scan.topic, scan.queue_id, first_new)
            wanted = count if first_new is None else min(count, first_new - scan.start)
            return store.get_messages(
                scan.topic,
                scan.queue_id,
                scan.start,
                wanted,
                max(1, min(scan.bytes_max, SCAN_BYTES_MAX)),
                None,
            )

        def answer(result: GetResult) -> Command:
            return command.answer(
                response_code(result.status, scan.start), body=self._records_body(result, store, 0)
            )

        self._answer_from(command, peer, read, answer)
        return None

    def check_client(self, command: Command, peer: Peer) -> Command:
        """CHECK_CLIENT_CONFIG 46: whether a subscription can be served here."""
        self.filters.check(bodies.decode_client_check(command.body_bytes())[1])
        return command.answer()

    def closed(self, peer: Peer) -> None:
        """The connection is gone."""
        self.parked.closed(peer)

    def _wake(self, pull: Any, peer: Peer) -> None:
        """A pull of ours, or what others (``pop_waiting``) hold beside them."""
        if not isinstance(pull, _Pull):
            pull.rerun(peer)
            return
        self._answer(pull.command, peer, lambda: self._run(pull, peer, first=False))

    def _run(self, pull: _Pull, peer: Peer, first: bool) -> Command | None:
        store, asked = self._store(), pull.asked
        group = self._check_group(asked.group)
        if self._limiter.active:
            if self._delay(pull, peer, first):
                return None
            count, size = self._limiter.page(
                asked.group, peer.account, asked.count_max, asked.bytes_max
            )
            asked = replace(asked, count_max=count, bytes_max=size)
            pull = replace(pull, asked=asked)
        self._check_topic(asked.topic, asked.queue_id)
        wanted = self._filter(asked, group)
        if wanted is EVERYTHING and pull.ours and not first and not self._limiter.active:
            answer = self._just_written(store, pull, group)
            if answer is not None:
                return answer
        if store.is_cold_pull(asked.topic, asked.queue_id, asked.offset):
            self._answer_from(
                pull.command,
                peer,
                lambda: self._read(store, pull, wanted),
                lambda result: self._ended(pull, peer, group, wanted, result, first),
            )
            return None
        return self._ended(pull, peer, group, wanted, self._read(store, pull, wanted), first)

    def _just_written(self, store: MessageStore, pull: _Pull, group: GroupConfig) -> Command | None:
        """The answer to a held pull that was woken by the frame written last, which is all it
        finds; None where it is not so simple. What ``_read`` and ``_conclude`` do otherwise, in a
        fifth of the steps: after a pause of some ms each of them costs the better part of a
        microsecond.
        """
        asked, tables, config, epoch = pull.asked, self._tables, self._config, store.epoch
        if 0 < asked.epoch < epoch:
            return None
        count, size = (
            max(1, min(asked.count_max, config.pull_records_max)),
            max(1, min(asked.bytes_max, config.pull_bytes_max)),
        )
        found = store.just_written(asked.topic, asked.queue_id, asked.offset, count, size)
        if found is None or len(found[0].sizes) >= MANY:
            return None
        recent, low, high = found
        counters = self._counters
        counters.pulls += 1
        counters.got(asked.topic, asked.group, len(recent.sizes), len(recent.data))
        tables.offsets.behind.reached(
            asked.group, asked.topic, asked.queue_id, recent.last_log_offset, store.visible_offset
        )
        suggested = suggested_broker(
            False, config.slave_reads, group.broker_id, group.broker_when_slow
        )
        return pull.command.answer(
            SUCCESS, None, pack_found(high, low, epoch, suggested, recent.sizes, recent.data)
        )

    def _ended(
        self,
        pull: _Pull,
        peer: Peer,
        group: GroupConfig,
        wanted: Wanted,
        result: GetResult | RecordAwaited,
        first: bool,
    ) -> Command | None:
        if not isinstance(result, RecordAwaited):
            return self._conclude(pull, peer, group, wanted, result, first)
        self._come_again(AWAIT_MS, pull, peer, first)
        return None

    def _conclude(
        self,
        pull: _Pull,
        peer: Peer,
        group: GroupConfig,
        wanted: Wanted,
        result: GetResult,
        first: bool,
    ) -> Command | None:
        asked, tables = pull.asked, self._tables
        code = response_code(result.status, asked.offset)
        if code == PULL_OFFSET_MOVED and self._identity.is_slave:
            # Its master may have what is not here: the reader stays where it is.
            code, result = PULL_NOT_FOUND, replace(result, next_offset=asked.offset)
        if first:
            self._commit(asked, peer)
            if self._members.is_member(asked.group, peer):
                tables.offsets.pulled(
                    asked.topic, asked.group, asked.queue_id, self._members.client_of(peer)
                )
            if (
                code == PULL_NOT_FOUND
                and asked.sys_flag & SUSPEND
                and self._park(pull, peer, wanted)
            ):
                return None
        elif (
            code == PULL_RETRY_IMMEDIATELY
            and wanted.matches is not None
            and self._park_again(pull, peer, result)
        ):
            return None
        self._count(code, asked, result, peer)
        tables.offsets.behind.note(asked.group, asked.topic, asked.queue_id, result, self._store())
        if code == PULL_OFFSET_MOVED:
            self._counters.offset_moved += 1
            self._moved.tell(
                asked.group,
                MessageQueue(asked.topic, self._identity.name, asked.queue_id),
                asked.offset,
                result.next_offset,
            )
        suggested = suggested_broker(
            result.suggest_slave, self._config.slave_reads, group.broker_id, group.broker_when_slow
        )
        if pull.ours:
            return pull.command.answer(
                code, None, self._records_body(result, self._store(), suggested)
            )
        fields = {
            "maxOffset": str(result.max_offset),
            "minOffset": str(result.min_offset),
            "nextBeginOffset": str(result.next_offset),
            "suggestWhichBrokerId": str(suggested),
        }
        return pull.command.answer(code, fields, tuple(result.parts), result.status.value)

    def _read(self, store: MessageStore, pull: _Pull, wanted: Wanted) -> GetResult | RecordAwaited:
        try:
            return self._found(store, pull, wanted)
        except RecordAwaited as error:
            return error

    def _found(self, store: MessageStore, pull: _Pull, wanted: Wanted) -> GetResult:
        asked = pull.asked
        moved = (
            cut_offset(store, asked.topic, asked.queue_id, asked.offset, asked.epoch)
            if asked.epoch
            else None
        )
        if moved is not None:
            return _moved(store, asked.topic, asked.queue_id, moved)
        if pull.ours:
            count, size = (
                min(asked.count_max, self._config.pull_records_max),
                min(asked.bytes_max, self._config.pull_bytes_max),
            )
        else:
            count, size = asked.count_max, asked.bytes_max
        if wanted.matches is not None:
            return store.get_matching(
                asked.topic,
                asked.queue_id,
                asked.offset,
                max(1, count),
                max(1, size),
                Condition(wanted.matches, wanted.hit),
                not pull.ours,
            )
        return store.get_messages(
            asked.topic,
            asked.queue_id,
            asked.offset,
            max(1, count),
            max(1, size),
            wanted.codes,
            foreign=not pull.ours,
        )

    def _records_body(
        self, result: GetResult, store: MessageStore, suggested: int
    ) -> tuple[bytes | bytearray | memoryview, ...]:
        return pack_pull_answer(
            result.next_offset,
            result.min_offset,
            result.max_offset,
            store.epoch,
            suggested,
            result.sizes,
            tuple(result.parts),
        )

    def _park(self, pull: _Pull, peer: Peer, wanted: Wanted) -> bool:
        """Hold the pull; False when it is to be answered at once. Raises ``Refused`` at the limit,
        so that the client pauses.
        """
        asked = pull.asked
        hold_ms = (
            min(asked.suspend_ms, SUSPEND_MS_MAX)
            if self._config.long_polling
            else self._config.short_polling_ms
        )
        if hold_ms <= 0:
            return False
        self._hold(replace(pull, deadline_ms=self._clock.now_ms() + hold_ms), peer, wanted)
        self._counters.pulls_parked += 1
        return True

    def _park_again(self, pull: _Pull, peer: Peer, result: GetResult) -> bool:
        """A held pull was woken by messages that its SQL filter does not let pass: it sleeps on
        behind them, until its first deadline.
        """
        if not pull.deadline_ms - self._clock.now_ms() > 0:
            return False
        self._hold(
            replace(pull, asked=replace(pull.asked, offset=result.next_offset)), peer, EVERYTHING
        )
        return True

    def _hold(self, pull: _Pull, peer: Peer, wanted: Wanted) -> None:
        asked = pull.asked
        try:
            self.parked.park(
                pull,
                peer,
                (asked.topic, asked.queue_id),
                asked.offset,
                pull.deadline_ms,
                wanted.codes,
            )
        except TooManyRequests as error:
            raise Refused(error.message, ResponseCode.SYSTEM_BUSY) from error

    def _commit(self, asked: PullRecords, peer: Peer) -> None:
        tables = self._tables
        if asked.sys_flag & COMMIT and not self._identity.is_slave:
            if asked.lock_epoch and self._members.is_fenced(
                asked.group, asked.topic, asked.queue_id, asked.lock_epoch
            ):
                tables.offsets.fence()
                return
            if tables.offsets.is_behind(
                asked.topic, asked.group, asked.queue_id, asked.commit_offset
            ):
                return  # a pull goes on; who wants the group to go back commits that
            client, holder = self._members.committing(
                peer, asked.group, asked.topic, asked.queue_id, asked.lock_epoch
            )
            store = self._store()
            cut = (
                cut_offset(store, asked.topic, asked.queue_id, asked.commit_offset, asked.epoch)
                if asked.epoch
                else None
            )
            highest = store.bounds(asked.topic, asked.queue_id)[1] if cut is None else cut
            tables.offsets.commit(
                asked.topic,
                asked.group,
                asked.queue_id,
                asked.commit_offset,
                client,
                holder,
                highest=highest,
            )

    def _check_group(self, name: str) -> GroupConfig:
        identity = self._identity
        if not identity.readable:
            raise Refused(
                f"the broker[{identity.address}] pulling message is forbidden",
                ResponseCode.NO_PERMISSION,
            )
        group = self._tables.groups.find(name)
        if group is None:
            raise Refused(
                f"subscription group [{name}] does not exist; create it",
                ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST,
            )
        if not group.consume_enable:
            raise Refused(f"subscription group no permission, {name}", ResponseCode.NO_PERMISSION)
        return group

    def _check_topic(self, topic: str, queue_id: int) -> None:
        config = self._tables.topics.get(topic)
        if config is None:
            raise Refused(
                f"topic[{topic}] not exist, apply first please", ResponseCode.TOPIC_NOT_EXIST
            )
        if not config.permission & READ:
            raise Refused(
                f"the topic[{topic}] pulling message is forbidden", ResponseCode.NO_PERMISSION
            )
        if not 0 <= queue_id < config.read_queues:
            raise Refused(
                f"queueId[{queue_id}] is illegal, topic:[{topic}] "
                f"topicConfig.readQueueNums:[{config.read_queues}]",
                ResponseCode.SYSTEM_ERROR,
            )

    def _filter(self, asked: PullRecords, group: GroupConfig) -> Wanted:
        popped = refusal_to_pull(self._members.consumers.find(asked.group))
        if popped is not None:
            raise Refused(popped, ResponseCode.GROUP_IN_OTHER_USE)
        if asked.sys_flag & INLINE:
            return self.filters.inline(asked.topic, asked.expression, asked.expression_type)
        return self.filters.subscribed(asked, group)

    def _delay(self, pull: _Pull, peer: Peer, first: bool) -> bool:
        """Whether the pull waits for its group's or its account's limit; it comes again."""
        asked = pull.asked
        wait_ms = self._limiter.hand_out_wait_ms(
            asked.group, peer.account, self._clock.monotonic_ms()
        )
        if not wait_ms:
            return False
        self._come_again(wait_ms, pull, peer, first)
        return True

    def _come_again(self, wait_ms: float, pull: _Pull, peer: Peer, first: bool) -> None:
        def run() -> None:
            self._answer(pull.command, peer, lambda: self._run(pull, peer, first))

        try:
            self.delayed.add(wait_ms, run, peer)
        except TooManyRequests as error:
            raise Refused(error.message, ResponseCode.SYSTEM_BUSY) from error

    def _count(self, code: int, asked: PullRecords, result: GetResult, peer: Peer) -> None:
        counters = self._counters
        counters.pulls += 1
        if code == SUCCESS:
            size = sum(map(len, result.parts))
            counters.got(asked.topic, asked.group, len(result.sizes), size)
            if self._limiter.active:
                self._limiter.handed_out(
                    asked.group,
                    peer.account,
                    size,
                    len(result.sizes),
                    self._clock.monotonic_ms(),
                )
        else:
            counters.pulls_missed += 1

    def _store(self) -> MessageStore:
        store = self._keeper.store
        if store is None:
            raise self._keeper.refusal()
        return store


def _moved(store: MessageStore, topic: str, queue_id: int, offset: int) -> GetResult:
    """The result for a reader that lies beyond a cut of the log."""
    return GetResult(GetMessageStatus.OFFSET_OVERFLOW_BADLY, offset, *store.bounds(topic, queue_id))


class MovedEvents:
    """OFFSET_MOVED_EVENT: a message that tells operators that a consumer asked for an offset which
    is not there (protocol-behaviour 10.4).

    One event a second for a group and queue is enough: a consumer that asks in a loop must not fill
    the log. A store that cannot take them loses them: they are hints.
    """

    def __init__(self, writer: MessageWriter, clock: Clock) -> None:
        self._writer = writer
        self._clock = clock
        self._last_ms: dict[tuple[str, MessageQueue], float] = {}
        self.lost = 0

    def tell(self, group: str, queue: MessageQueue, asked: int, corrected: int) -> None:
        """``asked``: the offset of the request; ``corrected``: where the consumer is sent."""
        now_ms = self._clock.monotonic_ms()
        last_ms = self._last_ms.get((group, queue))
        if last_ms is not None and now_ms - last_ms < PAUSE_MS:
            return
        if len(self._last_ms) >= REMEMBERED_MAX:
            self._last_ms.clear()
        self._last_ms[group, queue] = now_ms
        place = {"brokerName": queue.broker_name, "queueId": queue.queue_id, "topic": queue.topic}
        body = dumps(
            {
                "consumerGroup": group,
                "messageQueue": place,
                "offsetNew": corrected,
                "offsetRequest": asked,
            }
        ).encode()
        try:
            self._writer.put(OFFSET_MOVED_TOPIC, 0, body, {KEYS: group, TAGS: group})
        except StoreError:
            self.lost += 1
