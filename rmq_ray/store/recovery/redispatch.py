"""After a crash: records that were found valid in the log go into consume queues and index again,
many at a time.

Decides: the grouping (per queue for the consume queues, log order for the index) and what a queue
is that starts again at 0 (its topic was deleted and made anew: the old entries go). Does not
decide: which records (``recovery``), the rules of who is queued and indexed under what
(``dispatcher``, whose rules these are). Invariant: entries and items that exist already change
nothing.
"""

from __future__ import annotations

import logging

import numpy as np

from rmq_ray.codec.record_batch import Array
from rmq_ray.codec.record_properties import ManyFacts, collect_facts, stored_facts
from rmq_ray.codec.store_files import ENTRIES
from rmq_ray.model.message import SysFlag
from rmq_ray.model.topics import CODED_TOPICS, is_storable
from rmq_ray.store.frames.frame_tracker import without_marks
from rmq_ray.store.frames.log_scan import ScannedRecords
from rmq_ray.store.queue.dispatcher import Dispatcher
from rmq_ray.store.queue.index_service import (
    IndexService,
    hash_hashed_keys,
    hash_keys,
    hash_unique_keys,
)
from rmq_ray.store.queue.queue_table import QueueTable

logger = logging.getLogger("rmq_ray.store")


class Redispatcher:
    """``index``: None when keys are not indexed."""

    def __init__(
        self, queues: QueueTable, index: IndexService | None, dispatcher: Dispatcher
    ) -> None:
        self._queues = queues
        self._index = index
        self._dispatcher = dispatcher

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
            group = records.select(members)
            topic = topic_bytes.decode("utf-8", "replace")
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
        if not len(offsets):
            return
        breaks = np.flatnonzero(np.diff(offsets) != 1) + 1
        for begin, end in zip([0, *breaks.tolist()], [*breaks.tolist(), len(offsets)], strict=True):
            queue = self._queues.get_or_create(topic, queue_id)
            first = int(offsets[begin])
            if (
                first == 0
                and queue.max_offset > 0
                and int(entries["log_offset"][begin]) >= queue.max_log_offset
            ):
                logger.warning(
                    "queue %s/%d starts again at 0: its topic was deleted and made anew",
                    topic,
                    queue_id,
                )
                queue.delete()
            queue.append(first, entries[begin:end].tobytes(), store_ms[begin:end])

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
