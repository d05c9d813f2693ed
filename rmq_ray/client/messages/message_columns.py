"""Messages of a page as Arrow columns, without an object per message (columns: ``model.arrow``).

    page:  record 0 | record 1 | record 2 | ...
             └─ a run of records ──> codec.arrow.arrow_reader ──> pyarrow.RecordBatch

Decides which bytes of a page become rows, and what a row of a retry topic says: its topic is the
original one, and what this client has tried again by itself counts as reconsumed. How bytes become
columns is ``codec.arrow.arrow_reader``'s.

Called by the push consumer with ``batch="arrow"`` and by ``PulledBatch.to_arrow``. Imported by
those who want columns only: pyarrow takes 0.15 s to load. Invariant: row i is message i of the same
batch.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from rmq_ray.client.messages.received import MessageExt, PulledPage
from rmq_ray.codec.arrow.arrow_reader import to_batch
from rmq_ray.model.arrow import SCHEMA
from rmq_ray.model.namespaces import without_namespace

TOPIC = "topic"
RECONSUME_TIMES = "reconsume_times"


def rows(page: PulledPage, indices: Sequence[int], columns: Sequence[str] | None = None) -> Any:
    """``pyarrow.RecordBatch`` of these records of a page, in this order. ``ClientError`` for a
    column that there is not.
    """
    if isinstance(indices, range) and 0 < len(indices) < len(page):
        found = _whole(page, columns).slice(indices[0], len(indices))
    else:
        found = _decoded(page, indices, columns)
    return (
        _replaced(found, TOPIC, [message.topic for message in page.messages(indices)])
        if page.retry and TOPIC in found.schema.names
        else found
    )


def rows_of(messages: Sequence[MessageExt], columns: Sequence[str] | None = None) -> Any:
    """``pyarrow.RecordBatch`` of messages of one page that were tried before: their own count of
    tries is told.
    """
    found = rows(messages[0].place[0], [message.place[1] for message in messages], columns)
    return (
        _replaced(found, RECONSUME_TIMES, [message.reconsume_times for message in messages])
        if RECONSUME_TIMES in found.schema.names
        else found
    )


def table(
    pieces: Iterable[tuple[PulledPage, Sequence[int]]], columns: Sequence[str] | None = None
) -> Any:
    """``pyarrow.Table`` of records of several pages, one after the other; no row is copied
    twice.
    """
    batches = [rows(page, indices, columns) for page, indices in pieces]
    return pa.Table.from_batches(batches or [to_batch("", "", b"", [], columns)])


def _whole(page: PulledPage, columns: Sequence[str] | None) -> Any:
    """All records of a page, decoded once, however small the parts are that listeners get, and
    however many threads begin with it at once.
    """
    with page.arrow_lock:
        if page.arrow is None or page.arrow[0] != columns:
            page.arrow = columns, _decoded(page, range(len(page)), columns)
        return page.arrow[1]


def _decoded(page: PulledPage, indices: Sequence[int], columns: Sequence[str] | None) -> Any:
    records, sizes = _records(page, indices)
    return to_batch(
        without_namespace(page.namespace, page.queue.topic),
        page.queue.broker_name,
        records,
        sizes,
        columns,
    )


def _records(page: PulledPage, indices: Sequence[int]) -> tuple[Any, Any]:
    """(records back to back, their sizes): a view of the page when they lie together, as they do
    unless a filter or a retry chose.
    """
    if not indices:
        return b"", []
    first, last = indices[0], indices[-1]
    if last - first + 1 == len(indices):
        return memoryview(page.raw)[page.at[first] : page.at[last + 1]], page.sizes[
            first : last + 1
        ]
    raw, at = page.raw, page.at
    return b"".join([raw[at[i] : at[i + 1]] for i in indices]), page.sizes[np.asarray(indices)]


def _replaced(batch: Any, name: str, values: list[Any]) -> Any:
    place = batch.schema.get_field_index(name)
    columns = [
        pa.array(values, SCHEMA.field(name).type) if i == place else column
        for i, column in enumerate(batch.columns)
    ]
    return pa.RecordBatch.from_arrays(columns, schema=batch.schema)
