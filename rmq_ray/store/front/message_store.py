"""The store of one broker: its commit log and everything derived from it, to append, read, query
and recover.

    CLOSED --open--> OPEN --recover--> RECOVERED --start--> READY --shutdown--> CLOSED
    READY --failed write or sync--> FAILED --reopen--> READY

    appender      the order of things in an append
    dispatcher    queues and index, and what readers may see, and when
    log_reader    records by queue offset and log offset
    retention     which old segments go
    checkpoint    how little a recovery has to read
    restart       from the bytes on disk to all of these

Decides: the order of the parts' lives, which calls a state allows, and that nothing invisible is
answered, and nothing at all after the log has failed. Does not decide: permissions, topics,
acknowledgements to producers (a broker compares ``end_log_offset`` with ``durable_offset``).
``append_*`` and ``dispatch_durable`` belong to one thread (the broker's loop), reads to any.

Invariants: nothing is appended after a failure until the disk was read again; ``visible_offset <=
durable_offset`` under SYNC_FLUSH.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from enum import Enum
from typing import Any, ClassVar

import numpy as np

from rmq_ray.arrays import Array
from rmq_ray.clock import Clock
from rmq_ray.codec.record_properties import split_facts
from rmq_ray.codec.store_files import ENTRIES
from rmq_ray.config import StoreConfig
from rmq_ray.errors import StoreError, StoreFailed, StoreFull, StoreNotReady
from rmq_ray.files import FileSystem
from rmq_ray.model.ids import FrameId
from rmq_ray.store.frames.frame_check import PartsOf
from rmq_ray.store.frames.single_message import StoredMessage
from rmq_ray.store.front.appender import Admit, AppendCounters, Appender, AppendResult, MixedResult
from rmq_ray.store.log.flusher import LogFlusher
from rmq_ray.store.queue.dispatcher import NO_RULES, DispatchRules
from rmq_ray.store.queue.visibility import WAITING_FRAMES_MAX, ArrivalListener
from rmq_ray.store.reading.filtered_reading import Condition, get_matching
from rmq_ray.store.reading.log_reader import GetResult, Recent
from rmq_ray.store.reading.record_lookup import (
    alive,
    first_since,
    log_offset_at,
    offset_by_time,
    query_by_key,
    store_ms_of,
)
from rmq_ray.store.reading.retention import RetentionReport, expire_topics
from rmq_ray.store.recovery.checkpoint import Checkpointer
from rmq_ray.store.recovery.recovery import RecoveryReport
from rmq_ray.store.recovery.restart import finish_truncation, give_up_unsynced, restart
from rmq_ray.store.recovery.store_parts import StoreParts, Surroundings
from rmq_ray.store.tables.store_lock import StoreLock
from rmq_ray.store.tables.topic_lives import TopicLives

__all__ = [
    "AppendResult",
    "GetResult",
    "MessageStore",
    "MixedResult",
    "StoreState",
    "StoredMessage",
]

logger = logging.getLogger("rmq_ray.store")


WARM_BYTES = 256 << 20  # the newest part of the log counts as being in memory
# a pull this close to its queue's end is not looked at further: nearly all are
TAIL_RECORDS = 1_024


class StoreState(Enum):
    """CLOSED --open--> OPEN --recover--> RECOVERED --start--> READY --shutdown--> CLOSED;
    READY --failed write or sync--> FAILED --reopen--> READY.
    """

    CLOSED = "closed"
    OPEN = "open"
    RECOVERED = "recovered"
    READY = "ready"
    FAILED = "failed"


class MessageStore:
    """``store_host``: (address, port) that goes into records. ``new_epoch``: begun at the log's end
    when it is recovered.
    """

    follows: ClassVar[bool] = False  # the log is a copy of a master's

    def __init__(
        self,
        config: StoreConfig,
        clock: Clock,
        *,
        broker_name: str,
        store_host: tuple[str, int],
        files: FileSystem | None = None,
        rules: DispatchRules = NO_RULES,
        new_epoch: int | None = None,
        lives: TopicLives | None = None,
    ) -> None:
        files = files or FileSystem()
        self.lives = TopicLives(config.path, files) if lives is None else lives
        """Which records belong to the topics that are there now."""
        self._around = Surroundings(
            config, files, clock, files.boot_id(), rules, self.lives, self.follows, new_epoch
        )
        self._config = config
        self._clock = clock
        self._broker_name = broker_name
        self._lock_file = StoreLock(config.path, files)
        # called after each append: the log is longer than before
        self.on_written: Callable[[], None] = lambda: None
        # called before each append; what it raises is raised, and nothing is written
        self.admit: Callable[[], None] | None = None
        self._store_host = store_host
        self.identity = ""
        self._state = StoreState.CLOSED
        self._parts: StoreParts | None = None
        self._flusher: LogFlusher | None = None
        self._checkpointer: Checkpointer | None = None
        self._appender: Appender | None = None
        self._counters = AppendCounters()
        self._listener: ArrivalListener | None = None
        self._replicated: int | None = None
        self._on_durable: Callable[[int], None] = lambda _position: None
        self._threads = True
        self.report = RecoveryReport()
        """Of the last recovery."""

    # --- life -------------------------------------------------------------------------------------

    def open(self, create: bool, expected_identity: str | None = None) -> None:
        """Lock the directory and identify it. Raises ``StoreInUse``, ``StoreMissing``,
        ``StoreForeign``, ``StoreUnwritable``; nothing is held then.
        """
        if self._state is not StoreState.CLOSED:
            raise StoreError(
                f"the store at {self._config.path} is {self._state.value}; shut it down "
                f"before it is opened again",
                self._config.path,
            )
        self._lock_file.acquire(create)
        try:
            self.identity = self._lock_file.identify(
                create, expected_identity, self._broker_name, self._clock.now_ms()
            )
        except BaseException:
            self._lock_file.release()
            raise
        self._state = StoreState.OPEN

    def recover(self) -> RecoveryReport:
        """Read what the last life left (slow: seconds a GB without our checkpoint). On return
        everything recovered is durable and visible.
        """
        if self._state is not StoreState.OPEN:
            raise StoreError(
                f"recover() follows open(); the store at {self._config.path} is "
                f"{self._state.value}",
                self._config.path,
            )
        unclean = self._lock_file.mark_running()
        parts, self.report = restart(self._around, self.identity, unclean)
        self._parts = parts
        parts.visibility.begin(self._listener, self._replicated, self._fail)
        self._checkpointer = Checkpointer(self._around, parts, self.identity, self._fail)
        self._checkpointer.write(thorough=True)
        finish_truncation(self._around.files, self._config.path)
        self._state = StoreState.RECOVERED
        return self.report

    def start(self, on_durable: Callable[[int], None], *, threads: bool = True) -> None:
        """Start the flush threads; appends are accepted on return. ``on_durable(log offset)`` is
        called from the flush thread, after every sync and once when the log has failed. ``threads``
        False: a simulation calls ``flush_step`` and ``flush`` instead.
        """
        if self._state is not StoreState.RECOVERED or self._checkpointer is None:
            raise StoreError(
                f"start() follows recover(); the store at {self._config.path} is "
                f"{self._state.value}",
                self._config.path,
            )
        self._on_durable = on_durable
        parts = self.opened
        self._flusher = LogFlusher(parts.log, self._config, self._clock, on_durable)
        self._appender = Appender(
            parts,
            self._config,
            self._clock,
            self._store_host,
            self._counters,
            self._flusher,
            self._checkpointer,
            lambda: self.on_written(),
        )
        if threads:
            self._flusher.start()
            self._checkpointer.start()
        self._threads = threads
        self._state = StoreState.READY

    def configure(self, config: StoreConfig) -> None:
        """Settings were changed: how long and how much is kept, how long a body may be."""
        self._config = config
        if self._parts is not None:
            self._parts.retention.configure(config)
        if self._appender is not None:
            self._appender.configure(config)

    def shutdown(self) -> bool:
        """Flush, write the last checkpoint, give the locks back. False: the log failed, its tail is
        not durable; else the next start is clean.
        """
        if self._state is StoreState.CLOSED:
            return True
        durable = True
        if self._parts is not None:
            clean = durable = self._stop_threads()
            if clean and self._checkpointer is not None:
                clean = self._checkpointer.write_last()
            if self._parts.log.failure is not None:
                # this host may open it again, as a follower's: what was not synced must not look as
                # if it was
                give_up_unsynced(self._around, self._parts)
            self._parts.close()
            if clean:
                self._lock_file.mark_stopped()
            self._parts = None
        self._lock_file.release()
        self._state = StoreState.CLOSED
        return durable

    def reopen(self) -> RecoveryReport:
        """After a failure: forget what the page cache says of unsynced bytes, read the disk again,
        go on. Slow as ``recover``.
        """
        if self._parts is not None:
            self._stop_threads()
            give_up_unsynced(self._around, self._parts)
            self._parts.close()
            self._parts = None
        self._state = StoreState.OPEN
        report = self.recover()
        self.start(self._on_durable, threads=self._threads)
        return report

    def set_store_host(self, store_host: tuple[str, int]) -> None:
        """The address that records written from now on carry (a broker learns its port after the
        store was made).
        """
        self._store_host = store_host
        if self._appender is not None:
            self._appender.set_store_host(store_host)

    # --- append -----------------------------------------------------------------------------------

    def append_frame(
        self,
        records: bytearray | memoryview,
        sizes: Array | Sequence[int],
        born_host: tuple[str, int],
        parts_of: PartsOf = split_facts,
        admit: Admit | None = None,
    ) -> AppendResult:
        """Check, patch in place and write a frame. On return the kernel has all of it; durable at
        ``end_log_offset``. ``parts_of``: see ``check_frame``. ``admit``: see ``Admit``.

        Raises ``MessageIllegal``, ``MessageTooLarge``, ``DuplicateMismatch``, ``StoreFull``,
        ``StoreFailed`` (nothing is stored), ``AppendUnknown`` (the disk failed while it was written
        or queued).
        """
        return self._writable().append_frame(records, sizes, born_host, parts_of, admit)

    def append_message(
        self, message: StoredMessage, frame_id: FrameId | None = None
    ) -> AppendResult:
        """Encode and write one message of any kind. ``frame_id``: the record is marked as a frame
        of one, so that a repeat is answered with the first result, after a crash too. Raises as
        ``append_frame``.
        """
        return self._writable().append_message(message, frame_id)

    def append_batch_body(self, batch: StoredMessage) -> AppendResult:
        """RocketMQ's batch: ``batch.body`` as clients send it, stored as records with consecutive
        queue offsets (docs/file-format.md#batch-body).
        """
        return self._writable().append_batch_body(batch)

    def append_mixed(self, messages: Sequence[StoredMessage]) -> MixedResult:
        """Write ordinary or committed messages for any queues with one call, in this order: a crash
        leaves all of them or a beginning. No repeats are recognised. Raises as ``append_frame``.
        """
        return self._writable().append_mixed(messages)

    def set_arrival_listener(self, listener: ArrivalListener) -> None:
        """``listener(topic, queue id, new maximum, tags codes)``: called where frames are
        dispatched, from that thread.
        """
        self._listener = listener
        if self._parts is not None:
            self._parts.visibility.set_listener(listener)

    def dispatch_durable(self) -> int:
        """Make visible what is durable (and replicated) by now; returns ``visible_offset``. Raises
        ``StoreFailed``; after ``StoreFull`` the rest waits for the next call.
        """
        return self.opened.visibility.dispatch_durable()

    def set_replicated(self, log_offset: int | None) -> None:
        """Nothing behind ``log_offset`` becomes visible (slaves have not confirmed it); None = no
        such limit.
        """
        self._replicated = log_offset
        if self._parts is not None:
            self._parts.visibility.set_replicated(log_offset)

    @property
    def durable_offset(self) -> int:
        """Log offset up to which an acknowledgement may be given: synced (SYNC_FLUSH), or in the
        kernel (ASYNC_FLUSH). What is on the disk: ``flushed_offset``.
        """
        return self.opened.visibility.acknowledgeable

    # --- read -------------------------------------------------------------------------------------

    @property
    def counters(self) -> dict[str, int]:
        """What was appended since the store was made, and how many repeats were answered."""
        return asdict(self._counters)

    @property
    def state(self) -> StoreState:
        """Where it is in its life; ``FAILED`` after a failed write or sync."""
        if self._parts is not None and self._parts.log.failure is not None:
            return StoreState.FAILED
        return self._state

    @property
    def epoch(self) -> int:
        """The log's newest epoch."""
        return self.opened.epochs.current

    @property
    def epochs(self) -> tuple[tuple[int, int], ...]:
        """All (epoch, log offset where it starts)."""
        return self.opened.epochs.entries

    @property
    def flushed_offset(self) -> int:
        """Log offset up to which everything is fdatasynced, in either mode."""
        return self.opened.log.durable

    @property
    def visible_offset(self) -> int:
        """Log offset up to which readers see."""
        return self._parts.visibility.offset if self._parts is not None else 0

    @property
    def end_offset(self) -> int:
        """Log offset behind the last written byte."""
        return self.opened.log.end

    @property
    def written_offset(self) -> int:
        """Log offset behind the last byte that the kernel has: what slaves may be given."""
        return self.opened.log.committed

    def bounds(self, topic: str, queue_id: int) -> tuple[int, int]:
        """(minimum, maximum) queue offset; alike for a queue that holds nothing."""
        return self.opened.queues.bounds(topic, queue_id)

    def entries(self, topic: str, queue_id: int, offset: int, count: int) -> Array:
        """Up to ``count`` consume queue entries from ``offset`` on, as ``ENTRIES``; fewer at the
        queue's end or at the end of what is there.
        """
        queue = self.readable().queues.find(topic, queue_id)
        return np.frombuffer(queue.read(offset, count) if queue is not None else b"", ENTRIES)

    def get_messages(
        self,
        topic: str,
        queue_id: int,
        offset: int,
        max_count: int,
        max_bytes: int,
        codes: frozenset[int] | None,
        foreign: bool = False,
    ) -> GetResult:
        """See ``LogReader.get_messages``. ``StoreFailed`` after a failure: what lies behind it is
        not known.
        """
        return self.readable().reader.get_messages(
            topic, queue_id, offset, max_count, max_bytes, codes, foreign
        )

    def just_written(
        self, topic: str, queue_id: int, offset: int, max_count: int, max_bytes: int
    ) -> tuple[Recent, int, int] | None:
        """See ``LogReader.recent_from``. ``StoreFailed`` after a failure."""
        return self.readable().reader.recent_from(topic, queue_id, offset, max_count, max_bytes)

    def get_matching(
        self,
        topic: str,
        queue_id: int,
        offset: int,
        max_count: int,
        max_bytes: int,
        condition: Condition,
        foreign: bool = False,
    ) -> GetResult:
        """See ``filtered_reading.get_matching``."""
        reader = self.readable().reader
        return get_matching(
            reader, topic, queue_id, offset, max_count, max_bytes, condition, foreign
        )

    def record_at(self, log_offset: int) -> bytes | None:
        """The visible record that begins at ``log_offset``; None when there is none, its CRC is
        wrong, or the topic that it is for was deleted since.
        """
        parts = self.readable()
        return alive(self.lives, parts.reader.record_at(log_offset, parts.visibility.offset))

    def records_at(self, log_offsets: Sequence[int], bytes_max: int) -> list[bytes | None]:
        """The same of each, until ``bytes_max`` bytes were read: the list ends there."""
        parts = self.readable()
        found = parts.reader.records_at(log_offsets, parts.visibility.offset, bytes_max)
        return [alive(self.lives, record) for record in found]

    def query(self, topic: str, key: str, max_num: int, begin_ms: int, end_ms: int) -> list[bytes]:
        """See ``query_by_key``. Slow on a cold disk."""
        parts, stored = self.readable(), (begin_ms, end_ms)
        index, visible = parts.index, parts.visibility.offset
        if index is None:
            return []
        return query_by_key(parts.reader, index, self.lives, visible, topic, key, max_num, stored)

    def first_since(self, topic: str, queue_id: int, at_ms: int) -> int:
        """Queue offset of the first message stored then or later, the queue's end without one."""
        parts = self.readable()
        queue = parts.queues.find(topic, queue_id)
        if queue is None:
            return self.bounds(topic, queue_id)[1]
        return first_since(parts.reader, queue, parts.visibility.offset, at_ms)

    def offset_by_time(self, topic: str, queue_id: int, at_ms: int) -> int:
        """RocketMQ's answer for a store time, the message nearest to it
        (docs/file-format.md#consume-queue); 0 for an empty queue.
        """
        parts = self.readable()
        queue = parts.queues.find(topic, queue_id)
        if queue is None:
            return 0
        return offset_by_time(parts.reader, queue, parts.visibility.offset, at_ms)

    def earliest_store_ms(self, topic: str | None = None, queue_id: int = 0) -> int:
        """Store time of the first record of the log, or of a queue; -1 when there is none."""
        parts = self.readable()
        log_offset = parts.log.begin
        if topic is not None:
            queue = parts.queues.find(topic, queue_id)
            log_offset = log_offset_at(queue, queue.min_offset if queue is not None else 0)
        visible = parts.visibility.offset
        record = parts.reader.record_at(log_offset, visible) if log_offset >= 0 else None
        return -1 if record is None else store_ms_of(record)

    def log_offset_of(self, topic: str, queue_id: int, offset: int) -> int:
        """Where the record of a queue offset begins in the log; -1: the queue does not have it."""
        return log_offset_at(self.opened.queues.find(topic, queue_id), offset)

    def is_cold(self, log_offset: int) -> bool:
        """Whether a read there may wait for a disk: decided by distance from the log's end alone,
        as RocketMQ does (its 40 % of RAM), with a fixed and smaller bound.
        """
        return self.end_offset - log_offset > WARM_BYTES

    def is_cold_pull(self, topic: str, queue_id: int, offset: int) -> bool:
        """The same of a queue offset; cheap for consumers that keep up."""
        if (
            self.end_offset <= WARM_BYTES
            or self.bounds(topic, queue_id)[1] - offset <= TAIL_RECORDS
        ):
            return False
        log_offset = self.log_offset_of(topic, queue_id, offset)
        return 0 <= log_offset < self.end_offset - WARM_BYTES

    def is_young(self, topic: str, queue_id: int) -> bool:
        """Whether retention has taken nothing of the queue, and its first message lies no further
        back than what RocketMQ takes to be in memory (40 % of RAM): a new group that begins at the
        end begins with that message then.
        """
        low = self.bounds(topic, queue_id)[0]
        return (
            low <= self.lives.begin(topic, queue_id)
            and not self.get_messages(topic, queue_id, low, 1, 1, None).suggest_slave
        )

    def topics(self) -> set[str]:
        """Topics that have a queue."""
        return self.opened.queues.topics()

    def queues(self) -> dict[tuple[str, int], tuple[int, int]]:
        """(topic, queue id) -> (minimum, maximum) of every queue."""
        return {
            (topic, queue_id): (queue.min_offset, queue.max_offset)
            for topic, queue_id, queue in self.opened.queues.all()
        }

    @property
    def begin_offset(self) -> int:
        """Log offset of the first byte that is still there."""
        return self.opened.log.begin

    def pin(self, from_log_offset: int, deadline_ms: float, owner: str = "") -> int:
        """Keep the log from there on until ``deadline_ms`` (monotonic); returns the pin's id; see
        ``Pins``.
        """
        return self.opened.retention.pins.pin(from_log_offset, deadline_ms, owner)

    def unpin(self, pin_id: int, owner: str = "") -> None:
        """Give a pin back; see ``Pins``."""
        self.opened.retention.pins.unpin(pin_id, owner)

    def request_cleaning(self) -> None:
        """Expired segments go with the next cycles, whatever the hour."""
        self.opened.retention.request()

    def clean(self, now_ms: int) -> RetentionReport:
        """One cycle of retention; slow, in a thread of the caller. What was not synced stays: the
        file that a sync is about to open must be there.
        """
        parts = self.readable()
        return parts.retention.run(now_ms, parts.log.durable)

    def expire_topics(self, now_ms: int, hours: Mapping[str, int]) -> int:
        """Of topics that keep only so many hours: hand out nothing older. Returns how many queues
        begin elsewhere now; slow, in a thread of the caller.
        """
        parts = self.readable()
        return expire_topics(
            parts.reader,
            parts.queues,
            parts.visibility.offset,
            now_ms,
            hours,
            parts.retention.pinned_from(),
        )

    def status(self) -> dict[str, Any]:
        """Plain values for administration."""
        parts = self.opened
        disk = parts.retention.disk
        return {
            "state": self.state.value,
            "identity": self.identity,
            "epoch": parts.epochs.current,
            "begin": parts.log.begin,
            "end": parts.log.end,
            "durable": parts.log.durable,
            "visible": parts.visibility.offset,
            "quarantined": parts.quarantine.count,
            "producers": len(parts.windows),
            "disk_full": parts.retention.disk_full,
            "disk_used_ratio": None if disk is None else round(disk.used_ratio, 4),
            "disk_free_bytes": None if disk is None else disk.free_bytes,
            **self.counters,
        }

    @property
    def opened(self) -> StoreParts:
        """The parts; ``StoreNotReady`` before recovery is done."""
        if self._parts is None:
            raise StoreNotReady(
                f"the store at {self._config.path} is {self._state.value}; try again when it "
                f"is recovered",
                self._config.path,
            )
        return self._parts

    def readable(self) -> StoreParts:
        """The same; ``StoreFailed`` after a failure."""
        parts = self.opened
        if parts.log.failure is not None:
            raise StoreFailed(
                f"the log failed and must be read again: {parts.log.failure.message}",
                self._config.path,
            )
        return parts

    # --- upkeep -----------------------------------------------------------------------------------

    def end_topic(self, topic: str) -> None:
        """The topic is deleted: from now on nothing that was written to it is found, by any way;
        its records stay in the log until retention takes them. Durable when ``lives`` are saved,
        after which ``delete_topic`` frees the disk: until then nothing is removed.
        """
        parts, appender = self.readable(), self._appender
        assert appender is not None, "a store that was started"
        with parts.visibility.lock:
            appender.end_topic(topic)
            parts.queues.begin_anew(topic)
            parts.reader.forget()

    def delete_topic(self, topic: str) -> int:
        """Remove the queues of a topic that was deleted, unless it is there again and has messages.
        Quick: the files go with the next checkpoint, after which a power loss does not bring the
        queues back either. Returns how many queues.
        """
        parts = self.readable()
        with parts.visibility.lock:
            if topic in self.lives and not parts.queues.begin_anew(topic):
                return 0
            parts.visibility.forget_topic(topic, self.lives.since(topic))
            deleted = parts.queues.detach_topic(topic)
            parts.reader.forget()
        if deleted and self._checkpointer is not None:
            self._checkpointer.request()
        return deleted

    def flush_step(self) -> bool:
        """What the flush thread does once: sync the log if that is due. False when it has
        failed.
        """
        return self._flusher is not None and self._flusher.step()

    def flush(self) -> None:
        """On return everything written is durable, and derived files are too. Any thread."""
        self.opened.log.sync()
        if self._checkpointer is not None:
            self._checkpointer.write()

    # --- inside -----------------------------------------------------------------------------------

    def _writable(self) -> Appender:
        if self._state is not StoreState.READY or self._parts is None or self._appender is None:
            raise StoreNotReady(
                f"the store at {self._config.path} is {self._state.value}; try again when it "
                f"is ready",
                self._config.path,
            )
        self.readable()  # a repeat of what is in no queue is not to be answered either
        if self.admit is not None:
            self.admit()
        if self._parts.retention.disk_full:
            raise self._parts.retention.refusal()
        if self._parts.visibility.waiting >= WAITING_FRAMES_MAX:
            self.dispatch_durable()
            if self._parts.visibility.waiting >= WAITING_FRAMES_MAX:
                raise StoreFull(
                    f"{WAITING_FRAMES_MAX} frames wait to become visible; the disk is too "
                    f"slow or full",
                    self._config.path,
                )
        return self._appender

    def _fail(self, error: StoreError) -> None:
        log = self.opened.log
        if log.failure is None:
            log.failure = error
        logger.error("the store has failed, nothing more is acknowledged: %s", error)
        # a sync that failed in the checkpoint's thread has set the failure and told nobody
        self._on_durable(log.durable)

    def _stop_threads(self) -> bool:
        """True when everything written is durable and visible."""
        if self._checkpointer is not None:
            self._checkpointer.stop()
        if self._flusher is None:
            return True
        self._flusher.stop()
        self._flusher = None
        parts = self.opened
        if parts.log.failure is not None:
            return False
        self.set_replicated(None)
        try:
            self.dispatch_durable()
        except StoreError as error:
            logger.error("not everything is in its queue, the next start puts it there: %s", error)
            return False
        return not parts.visibility.waiting
