"""Which old segments of the log go, and removing them together with what was derived from them
(docs/file-format.md#retention).

    why a cycle deletes                  which segments it may take, oldest first, at most 10
    the hour is one of delete_when       older than reserved_hours
    the disk is fuller than 0.75         older than reserved_hours
    an administrator asked (20 cycles)   older than reserved_hours
    the disk runs out of room            any
    the disk is full                     any; and writes are refused until it is emptier

    runs out    fuller than 0.85, and less than twice disk_free_bytes_min is free
    full        fuller than 0.90, and less than disk_free_bytes_min is free

Never the segment that is written to or one behind it; never one that a bulk read has pinned, until
the pin's deadline; the first segment that stays ends the cycle. Decides that (``decide`` is pure),
and the order: log first, then consume queues and index below the log's new beginning.

A topic may keep less than the store does: its messages are not handed out any more once they are
older.

    entries of a queue    gone with the log | expired, still in the log | handed out
    offsets               0                 log_min_offset              min_offset        max_offset

The queues of such a topic begin at the first message that is younger than the topic's hours
(``expire_topics``). Only what readers see moves; entries and records stay until their segment goes,
so that Apache RocketMQ finds the store as it knows it. What a topic keeps is decided elsewhere.

Invariants: a beginning is a function of the log, the time and the hours, nothing is written: after
a restart it is found anew, and a topic that keeps more again shows what the log still has. A bulk
read's pin holds a beginning where it is, until the pin's deadline. Deadlines are of the monotonic
clock: a time of day that is set forward ends no pin. Pins are in memory: a store that is opened
again has none, and who wants them for longer asks again before the first cycle
(``server.core.upkeep``).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import Enum
from typing import NamedTuple

from rmq_ray.clock import Clock
from rmq_ray.config import GIB, StoreConfig
from rmq_ray.errors import StoreError, StoreFull
from rmq_ray.files import DiskSpace, FileSystem
from rmq_ray.store.log.segment_chain import SegmentChain
from rmq_ray.store.queue.consume_queue import ConsumeQueue
from rmq_ray.store.queue.index_service import IndexService
from rmq_ray.store.queue.queue_table import QueueTable
from rmq_ray.store.reading.log_reader import LogReader
from rmq_ray.store.reading.record_lookup import first_stored_since, store_ms_at

MANUAL_CYCLES = 20  # RocketMQ's MAX_MANUAL_DELETE_FILE_TIMES
DELETE_PAUSE_MS = 100  # deleteCommitLogFilesInterval: unlinking 1 GiB blocks some file systems
PINS_MAX = 10_000
PINS_OF_OWNER_MAX = 1_000
WARN_TIMES, FORCE_TIMES = 4, 2
"""How many times ``disk_free_bytes_min`` are still free when the log warns, and when segments of
any age begin to go."""
_HOUR_MS = 3_600_000


class Reason(Enum):
    """Why a cycle deletes, the strongest reason that holds."""

    NONE = "none"
    TIME = "time"
    MANUAL = "manual"
    SPACE = "space"
    FORCED = "forced"


class Room(Enum):
    """Whether the disk has room: ``SHORT`` is told to operators, ``FULL`` refuses writes."""

    ENOUGH = "enough"
    SHORT = "short"
    FULL = "full"


@dataclass(frozen=True, slots=True)
class SegmentFacts:
    """What the decision needs of one segment: log offsets [start, end), and when it was last
    written to.
    """

    start: int
    end: int
    modified_ms: int


@dataclass(frozen=True, slots=True)
class RetentionPlan:
    """Outcome of a decision: starts of the segments to remove, oldest first; ``Room.FULL``: writes
    must be refused.
    """

    delete: tuple[int, ...]
    room: Room
    reason: Reason


@dataclass(frozen=True, slots=True)
class RetentionReport:
    """What a cycle did. ``begin``: the log offset where the log begins now; ``disk``: the room
    that there was before it.
    """

    begin: int
    segments: int
    queue_files: int
    index_files: int
    room: Room
    reason: Reason
    disk: DiskSpace


def decide(
    segments: Sequence[SegmentFacts],
    now_ms: int,
    disk: DiskSpace,
    config: StoreConfig,
    *,
    log_end: int,
    manual: bool = False,
    pinned_from: int | None = None,
) -> RetentionPlan:
    """The cycle's plan. ``segments`` oldest first; ``log_end``: where the next record goes;
    ``pinned_from``: the lowest log offset that a bulk read still needs.
    """
    reason = _reason(now_ms, disk, config, manual)
    delete: list[int] = []
    if reason is not Reason.NONE:
        old_ms = now_ms - config.reserved_hours * _HOUR_MS
        for segment in segments[: config.delete_files_max]:
            expired = segment.modified_ms <= old_ms or reason is Reason.FORCED
            if (
                not expired
                or segment.end > log_end
                or (pinned_from is not None and segment.end > pinned_from)
            ):
                break
            delete.append(segment.start)
    return RetentionPlan(tuple(delete), room_on(disk, config), reason)


def is_delete_hour(now_ms: int, delete_when: str) -> bool:
    """Whether the local hour is one of a ``;``-separated list."""
    hour = datetime.fromtimestamp(now_ms // 1000, UTC).astimezone().hour
    return any(part.strip().isdigit() and int(part) == hour for part in delete_when.split(";"))


def room_on(disk: DiskSpace, config: StoreConfig) -> Room:
    """How much room there is, as the settings see it."""
    used, free, least = disk.used_ratio, disk.free_bytes, config.disk_free_bytes_min
    if used > config.disk_full_ratio and free < least:
        return Room.FULL
    if used > config.disk_delete_ratio and free < WARN_TIMES * least:
        return Room.SHORT
    return Room.ENOUGH


def _reason(now_ms: int, disk: DiskSpace, config: StoreConfig, manual: bool) -> Reason:
    short = disk.free_bytes < FORCE_TIMES * config.disk_free_bytes_min
    if short and disk.used_ratio > config.disk_force_ratio:
        return Reason.FORCED
    if disk.used_ratio > config.disk_delete_ratio:
        return Reason.SPACE
    if manual:
        return Reason.MANUAL
    return Reason.TIME if is_delete_hour(now_ms, config.delete_when) else Reason.NONE


class _Pin(NamedTuple):
    log_offset: int
    deadline_ms: float
    owner: str


class Pins:
    """Ranges of the log that bulk reads need, each until a deadline (monotonic). Not thread-safe:
    the broker's loop asks.

    ``first_id``: ids rise from there; a start of the broker must not give out those of the one
    before, which readers may still give back.
    """

    def __init__(self, first_id: int = 1) -> None:
        self._pins: dict[int, _Pin] = {}
        self._next = first_id

    def __len__(self) -> int:
        return len(self._pins)

    def pin(self, from_log_offset: int, deadline_ms: float, owner: str = "") -> int:
        """Keep everything from ``from_log_offset`` on until ``deadline_ms``; returns the pin's id.
        ``owner``: whose it is; "" = the cluster's own parts. ``StoreError`` if there are too many.
        """
        if len(self._pins) >= PINS_MAX:
            raise StoreError(
                f"{PINS_MAX} bulk reads have pinned segments of this store; end some or wait "
                f"for their deadlines"
            )
        if owner and sum(one.owner == owner for one in self._pins.values()) >= PINS_OF_OWNER_MAX:
            raise StoreError(
                f"{owner} has {PINS_OF_OWNER_MAX} bulk reads of this store under way; end some or "
                f"wait for their deadlines"
            )
        pin_id, self._next = self._next, self._next + 1
        self._pins[pin_id] = _Pin(from_log_offset, deadline_ms, owner)
        return pin_id

    def unpin(self, pin_id: int, owner: str = "") -> None:
        """Give a pin back: one of ``owner``'s, "" = of anybody's. An unknown one is fine."""
        found = self._pins.get(pin_id)
        if found is not None and owner in ("", found.owner):
            del self._pins[pin_id]

    def lowest(self, now_ms: float) -> int | None:
        """The lowest pinned log offset; pins past their deadline are dropped. None = nothing is
        pinned.
        """
        pins = dict(self._pins)
        for pin_id, one in pins.items():
            if one.deadline_ms <= now_ms:
                self._pins.pop(pin_id, None)
        return min(
            (one.log_offset for one in pins.values() if one.deadline_ms > now_ms), default=None
        )


class Retention:
    """Executes cycles. ``path``: where the disk's usage is asked for."""

    def __init__(
        self,
        chain: SegmentChain,
        queues: QueueTable,
        index: IndexService | None,
        files: FileSystem,
        config: StoreConfig,
        clock: Clock,
    ) -> None:
        self.pins = Pins(clock.now_ms())
        self.disk_full = False
        self.disk: DiskSpace | None = None
        """The room that the last cycle found; None before the first."""
        self._chain = chain
        self._queues = queues
        self._index = index
        self._files = files
        self._config = config
        self._clock = clock
        self._manual_cycles = 0
        self._cleaned_to = -1

    def refusal(self) -> StoreFull:
        """Why nothing is written while the disk is full."""
        config = self._config
        return StoreFull(
            f"the disk of {config.path} is full: {self.disk}; sends are "
            f"refused over {config.disk_full_ratio:.0%} with less than "
            f"{config.disk_free_bytes_min / GIB:.1f} GiB free (disk_full_ratio, "
            f"disk_free_bytes_min); free space or add a larger disk",
            config.path,
        )

    def configure(self, config: StoreConfig) -> None:
        """Settings were changed: the next cycle goes by these."""
        self._config = config

    def request(self) -> None:
        """An administrator wants expired segments gone now, whatever the hour: the next 20 cycles
        delete.
        """
        self._manual_cycles = MANUAL_CYCLES

    def pinned_from(self) -> int | None:
        """The lowest log offset that a bulk read still needs; None = nothing is pinned."""
        return self.pins.lowest(self._clock.monotonic_ms())

    def run(self, now_ms: int, log_end: int) -> RetentionReport:
        """One cycle. On return the removed segments and what was derived from them alone are gone
        from disk.
        """
        manual, self._manual_cycles = self._manual_cycles > 0, max(0, self._manual_cycles - 1)
        facts = [
            SegmentFacts(s.start, s.end, self._files.modified_ms(s.path))
            for s in self._chain.segments()[: self._config.delete_files_max + 1]
        ]
        disk = self.disk = self._files.disk_space(self._config.path)
        plan = decide(
            facts,
            now_ms,
            disk,
            self._config,
            log_end=log_end,
            manual=manual,
            pinned_from=self.pinned_from(),
        )
        self.disk_full = plan.room is Room.FULL
        removed = self._remove(plan.delete)
        begin = self._chain.begin
        queue_files = index_files = 0
        if begin != self._cleaned_to:
            self._queues.set_min_log_offset(begin)
            queue_files = self._queues.delete_files_before_min()
            index_files = self._index.delete_before(begin) if self._index is not None else 0
            self._cleaned_to = begin
        return RetentionReport(
            begin, removed, queue_files, index_files, plan.room, plan.reason, disk
        )

    def _remove(self, starts: Sequence[int]) -> int:
        removed = 0
        for start in starts:
            if removed:
                self._clock.sleep_ms(DELETE_PAUSE_MS)
            if self._chain.begin != start or not self._chain.remove_first():
                break
            removed += 1
        return removed


def expire_topics(
    reader: LogReader,
    queues: QueueTable,
    visible: int,
    now_ms: int,
    hours: Mapping[str, int],
    pinned_from: int | None,
) -> int:
    """Bring every queue's beginning to where it belongs; returns how many of them moved. ``hours``:
    of each topic that keeps less than the store; ``pinned_from``: the lowest log offset that a bulk
    read still needs.
    """
    moved = 0
    for topic, _, queue in queues.all():
        if topic in hours:
            since_ms = now_ms - hours[topic] * _HOUR_MS
            begin = _begin(reader, queue, visible, since_ms)
            if begin > queue.min_offset and pinned_from is not None:
                begin = max(queue.min_offset, min(begin, queue.first_at(pinned_from)))
            moved += queue.hide_before(begin)
        elif queue.hides:
            moved += queue.hide_before(0)
    return moved


def _begin(reader: LogReader, queue: ConsumeQueue, visible: int, since_ms: int) -> int:
    """The first queue offset stored at ``since_ms`` or later. Nearly always it is where it was: two
    records tell. Where a record cannot be read it stays there.
    """
    low, at, high = queue.log_min_offset, queue.min_offset, queue.max_offset
    before = store_ms_at(reader, queue, visible, at - 1) if at > low else None
    here = store_ms_at(reader, queue, visible, at) if at < high else None
    older_before = at == low or (before is not None and before < since_ms)
    younger_here = at == high or (here is not None and here >= since_ms)
    if older_before and younger_here:
        return at
    found = first_stored_since(reader, queue, visible, since_ms, low, high)
    return at if found is None else found
