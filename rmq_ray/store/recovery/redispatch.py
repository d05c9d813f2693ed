"""After a crash: records that were found valid in the log go into consume queues and index again,
many at a time.

    records ─by queue─> runs ─┬─ go on, behind a gap ──> appended; what lies around an unexplained
                              │                          gap is listed, so that a copy is asked
                              ├─ anew ─────────────────> the old entries go
                              ├─ stray ────────────────> where a blank entry waits for it, if any
                              └─ open ─────────────────> held until the queue's next records come

Decides: the grouping (per queue for the consume queues, log order for the index) and what becomes
of each run. Does not decide: which records (``recovery``), what a run is (``queue_runs``), the
rules of who is queued and indexed under what (``dispatcher``, whose rules these are). Invariants:
entries and items that exist already change nothing; no record, whatever place it names, keeps
others out of theirs.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass

import numpy as np

from rmq_ray.arrays import Array
from rmq_ray.codec.record_properties import ManyFacts, collect_facts, stored_facts
from rmq_ray.codec.store_files import BLANK_SIZE, ENTRIES, ENTRY, ENTRY_BYTES
from rmq_ray.model.message import SysFlag
from rmq_ray.model.topics import CODED_TOPICS, is_storable
from rmq_ray.store.frames.frame_marks import without_marks
from rmq_ray.store.frames.log_scan import ScannedRecords
from rmq_ray.store.log.quarantine import Quarantine
from rmq_ray.store.queue.consume_queue import ConsumeQueue
from rmq_ray.store.queue.dispatcher import Dispatcher
from rmq_ray.store.queue.index_service import (
    IndexService,
    hash_hashed_keys,
    hash_keys,
    hash_unique_keys,
)
from rmq_ray.store.queue.queue_table import QueueTable
from rmq_ray.store.recovery.queue_runs import Run, judge_first_run, judge_run
from rmq_ray.store.tables.topic_lives import TopicLives

logger = logging.getLogger("rmq_ray.store")
HELD_MAX = 1_000
"""Records of a run that is open: longer ones belong where they say."""
LISTED_BYTES_MAX = 64 << 20
"""Of a log, around a gap: more is not compared with a copy."""


@dataclass(frozen=True, slots=True)
class QueuedRows:
    """Records of one queue in log order: their entries, queue offsets, store times."""

    entries: Array
    offsets: Array
    store_ms: Array

    @property
    def first(self) -> int:
        """Queue offset of the first."""
        return int(self.offsets[0])

    @property
    def begin(self) -> int:
        """Log offset of the first."""
        return int(self.entries["log_offset"][0])

    def end(self, row: int) -> int:
        """Log offset behind a record."""
        return int(self.entries["log_offset"][row]) + int(self.entries["size"][row])

    def part(self, begin: int, end: int) -> QueuedRows:
        """Rows [begin, end)."""
        return QueuedRows(
            self.entries[begin:end], self.offsets[begin:end], self.store_ms[begin:end]
        )

    def joined(self, more: QueuedRows) -> QueuedRows:
        """These and what came later."""
        return QueuedRows(
            np.concatenate((self.entries, more.entries), dtype=ENTRIES),
            np.concatenate((self.offsets, more.offsets)),
            np.concatenate((self.store_ms, more.store_ms)),
        )


class Redispatcher:
    """``index``: None when keys are not indexed. ``holds``: open runs wait for the records of later
    calls, until ``settle``. Records of topics that were deleted since (``lives``) are left out.
    """

    def __init__(
        self,
        queues: QueueTable,
        index: IndexService | None,
        dispatcher: Dispatcher,
        quarantine: Quarantine,
        lives: TopicLives,
        *,
        holds: bool = False,
    ) -> None:
        self._lives = lives
        self._queues = queues
        self._index = index
        self._dispatcher = dispatcher
        self._quarantine = quarantine
        self._holds = holds
        self._held: dict[tuple[str, int], QueuedRows] = {}

    def add(self, records: ScannedRecords) -> None:
        """Queue and index valid records. On return readers see them; durable after the next
        flush.
        """
        if not len(records):
            return
        kind = records.sys_flags & SysFlag.TRANSACTION_MASK
        queued = (kind == SysFlag.TRANSACTION_NOT) | (kind == SysFlag.TRANSACTION_COMMIT)
        topics, begins = records.topics(), without_marks(records)
        hashes: list[Array] = []
        rows: list[Array] = []
        for (topic_bytes, queue_id), members in rows_by_queue(topics, records.queue_ids).items():
            topic = topic_bytes.decode("utf-8", "replace")
            since = self._lives.since(topic)
            if since > records.base + records.starts[members[0]]:  # of one that was deleted
                members = members[records.base + records.starts[members] >= since]
                if not len(members):
                    continue
            group = records.select(members)
            if not is_storable(topic, queue_id):
                logger.error(
                    "records of topic %r queue %d are not queued: no directory can be made "
                    "for them",
                    topic,
                    queue_id,
                )
                continue
            facts = collect_facts(group.view, begins[members], group.ends, stored_facts)
            self._queue(topic, queue_id, group, self._codes(topic, facts, group), queued[members])
            if self._index is not None:
                collect_hashes(topic, facts, members, hashes, rows)
        self._dispatcher.store_ms = int(records.store_ms[-1])
        if self._index is not None and hashes:
            self._put(
                self._index,
                records,
                np.concatenate(hashes),
                np.concatenate(rows),
                kind != SysFlag.TRANSACTION_ROLLBACK,
            )

    def _codes(self, topic: str, facts: ManyFacts, group: ScannedRecords) -> Array:
        if topic in CODED_TOPICS:
            for row, text in facts.delays:
                code = self._dispatcher.own_code(topic, text, int(group.store_ms[row]))
                facts.tag_codes[row] = code or facts.tag_codes[row]
        return facts.tag_codes

    def _queue(
        self, topic: str, queue_id: int, group: ScannedRecords, codes: Array, queued: Array
    ) -> None:
        entries = np.empty(len(group), ENTRIES)
        entries["log_offset"] = group.starts + group.base
        entries["size"] = group.ends - group.starts
        entries["code"] = codes
        offsets, store_ms = group.queue_offsets, group.store_ms
        if not queued.all():
            entries, offsets, store_ms = entries[queued], offsets[queued], store_ms[queued]
        if len(offsets):
            held = self._held.pop((topic, queue_id), None)
            rows = QueuedRows(entries, offsets, store_ms)
            self._take(
                topic, queue_id, rows if held is None else held.joined(rows), not self._holds
            )

    def settle(self) -> None:
        """No more records will come: what is held goes where it belongs."""
        for (topic, queue_id), rows in self._held.items():
            self._take(topic, queue_id, rows, is_last=True)
        self._held.clear()

    def _take(self, topic: str, queue_id: int, rows: QueuedRows, is_last: bool) -> None:
        """Run after run of one queue."""
        offsets = rows.offsets
        breaks = (np.flatnonzero(np.diff(offsets) != 1) + 1).tolist()
        for begin, end in zip([0, *breaks], [*breaks, len(offsets)], strict=True):
            run = rows.part(begin, end)
            queue = self._queues.get_or_create(topic, queue_id)
            following = int(offsets[end]) if end < len(offsets) else None
            since = self._lives.since(topic)
            is_left = 0 < since >= queue.max_log_offset  # by a topic that was deleted
            kind = self._kind(queue, run, following, is_last, is_left=is_left)
            if kind is Run.OPEN:
                self._held[topic, queue_id] = run
            elif kind is Run.STRAY:
                self._put_stray(topic, queue_id, queue, run)
            else:
                if kind is Run.GAP:
                    self._list_gap(topic, queue_id, queue, run)
                if kind is Run.ANEW:
                    logger.warning(
                        "queue %s/%d starts again at %d: its topic was deleted and made anew",
                        topic,
                        queue_id,
                        run.first,
                    )
                    queue.delete()
                elif queue.max_offset > run.first and run.begin >= queue.max_log_offset:
                    self._contest(topic, queue_id, queue, run)
                queue.append(run.first, run.entries.tobytes(), run.store_ms)

    def _kind(
        self,
        queue: ConsumeQueue,
        run: QueuedRows,
        following: int | None,
        is_last: bool,
        *,
        is_left: bool,
    ) -> Run:
        expected, count = queue.max_offset, len(run.offsets)
        is_last = is_last or count > HELD_MAX
        if queue.is_new or (is_left and run.first != expected):
            kind = judge_first_run(run.first, count, following, is_last=is_last)
            return Run.ANEW if kind is Run.GOES_ON and not queue.is_new else kind
        if run.first == expected or run.begin < queue.max_log_offset:
            return Run.GOES_ON
        if 0 < run.first < expected < run.first + count:
            return Run.GOES_ON
        explained = self._quarantine.count_in(queue.max_log_offset, run.begin) > 0
        return judge_run(expected, run.first, following, explained=explained, is_last=is_last)

    def _list_gap(self, topic: str, queue_id: int, queue: ConsumeQueue, run: QueuedRows) -> None:
        """Somewhere between the queue's last record and this one, this one included, a record names
        a wrong place; unless as many are known to be broken there.
        """
        missing = run.first - queue.max_offset
        if self._quarantine.count_in(queue.max_log_offset, run.begin) < missing:
            fault = f"in it {missing} records of queue {topic}/{queue_id} are missing"
            self._list(queue.max_log_offset, run.end(0), fault)

    def _contest(self, topic: str, queue_id: int, queue: ConsumeQueue, run: QueuedRows) -> None:
        """The first records of a run name offsets that others had before them: blank ones are
        filled, and of two records a copy tells which is right.
        """
        last = queue.max_offset - run.first - 1
        self._put_stray(topic, queue_id, queue, run.part(0, last + 1))
        entry = queue.read(run.first, 1)
        log_offset, size, _ = ENTRY.unpack(entry) if entry else (run.begin, 0, 0)
        if log_offset < run.begin and size != BLANK_SIZE:
            fault = f"in it two records name offset {run.first} of queue {topic}/{queue_id}"
            self._list(log_offset, run.end(last), fault)

    def _list(self, begin: int, end: int, fault: str) -> None:
        if end - begin <= LISTED_BYTES_MAX:
            self._quarantine.add(begin, end - begin, fault)
        else:
            logger.error("log offsets %d to %d are not compared with a copy: %s", begin, end, fault)

    def _put_stray(self, topic: str, queue_id: int, queue: ConsumeQueue, run: QueuedRows) -> None:
        data = run.entries.tobytes()
        filled = sum(
            queue.fill_blank(offset, data[at * ENTRY_BYTES : (at + 1) * ENTRY_BYTES])
            for at, offset in enumerate(run.offsets.tolist())
        )
        if filled < len(run.offsets):
            logger.error(
                "%d records from log offset %d on name queue %s/%d from %d on, which goes on at %d",
                len(run.offsets) - filled,
                run.begin,
                topic,
                queue_id,
                run.first,
                queue.max_offset,
            )

    def _put(
        self,
        index: IndexService,
        records: ScannedRecords,
        hashes: Array,
        rows: Array,
        indexed: Array,
    ) -> None:
        """In log order."""
        order = np.argsort(rows, kind="stable")
        hashes, rows = hashes[order], rows[order]
        offsets = records.starts[rows] + records.base
        wanted = indexed[rows] & (offsets >= index.end_offset)
        hashes, rows, offsets = hashes[wanted], rows[wanted], offsets[wanted]
        if not len(rows):
            return
        index.put_many(hashes, offsets, records.store_ms[rows])


def rows_by_queue(topics: list[bytes], queue_ids: Array) -> dict[tuple[bytes, int], Array]:
    """Rows of every (topic, queue id), in log order."""
    numbers: dict[bytes, int] = {}
    alike = topics.count(topics[0]) == len(topics)
    codes: Array = (
        np.zeros(len(topics), np.int64)
        if alike
        else np.array([numbers.setdefault(topic, len(numbers)) for topic in topics], np.int64)
    )
    keys = (codes << 32) | (queue_ids & 0xFFFFFFFF)
    order = np.argsort(keys, kind="stable")
    breaks = (np.flatnonzero(np.diff(keys[order])) + 1).tolist()
    found: dict[tuple[bytes, int], Array] = {}
    for begin, end in zip([0, *breaks], [*breaks, len(order)], strict=True):
        rows = order[begin:end]
        first = int(rows[0])
        found[topics[first], int(queue_ids[first])] = rows
    return found


def collect_hashes(
    topic: str, facts: ManyFacts, members: Array, hashes: list[Array], rows: list[Array]
) -> None:
    """Append the hashes of all keys of one queue's records, and the row (out of ``members``) that
    each belongs to.
    """
    if facts.unique is not None and len(facts.unique):
        hashes.append(hash_unique_keys(topic, facts.unique))
        rows.append(members if facts.unique_rows is None else members[facts.unique_rows])
    for keys in facts.hashed:
        hashes.append(hash_hashed_keys(topic, keys))
        rows.append(members[keys.rows])
    if facts.keys:
        hashes.append(hash_keys(topic, [key for _, key in facts.keys]))
        rows.append(members[np.array([row for row, _ in facts.keys], np.int64)])
