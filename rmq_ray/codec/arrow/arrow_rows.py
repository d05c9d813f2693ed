"""Which rows and columns of a chunk a bulk read hands out: predicates where the rows are, and the
columns of Spark's Kafka source.

Decides nothing of where rows come from. Called in Spark's, Ray Data's and other readers' processes,
after ``arrow_reader`` has cut the columns. Pure. Invariant: a predicate's columns are decoded for
it and left out again where nobody asked for them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from rmq_ray.codec.arrow.arrow_reader import to_batch
from rmq_ray.model.arrow import TIME

KAFKA_NEEDS = ("keys", "body", "topic", "queue_id", "queue_offset", "store_ts")
RAY_KAFKA_NEEDS = (*KAFKA_NEEDS, "properties")
RAY_KAFKA_NAMES = ("offset", "key", "value", "topic", "partition")
LOG_APPEND_TIME = 1


@dataclass(frozen=True, slots=True)
class Rows:
    """What is wanted: columns in their order; messages with one of ``tags`` (None = any), with
    ``key`` among their keys (None = any).
    """

    columns: tuple[str, ...]
    tags: tuple[str, ...] | None = None
    key: str | None = None


def to_rows(
    topic: str, broker: str, records: bytes | bytearray | memoryview, sizes: Any, rows: Rows
) -> Any:
    """``pyarrow.RecordBatch`` of the wanted rows and columns of valid records of one topic of one
    broker.
    """
    return chosen(to_batch(topic, broker, records, sizes, needed_columns(rows)), rows)


def needed_columns(rows: Rows) -> list[str]:
    """The wanted columns, and those that the choice of rows looks at."""
    needed = [*rows.columns]
    needed += [
        name
        for name, asked in (("tag", rows.tags), ("keys", rows.key))
        if asked is not None and name not in needed
    ]
    return needed


def chosen(batch: Any, rows: Rows) -> Any:
    """The wanted rows and columns of a batch that has the ``needed_columns``."""
    if rows.tags is not None:
        batch = batch.filter(
            pc.fill_null(
                pc.is_in(batch.column("tag"), pa.array(list(rows.tags), pa.string())), False
            )
        )
    if rows.key is not None:
        batch = batch.filter(_has_key(batch.column("keys"), rows.key))
    return batch if batch.num_columns == len(rows.columns) else batch.select(list(rows.columns))


def kafka_columns(batch: Any) -> Any:
    """The columns of Spark's Kafka source from those of ``KAFKA_NEEDS``."""
    keys = batch.column("keys")
    empty = pc.equal(pc.list_value_length(keys), 0)
    first = (
        pc.list_element(pc.if_else(empty, pa.scalar([None], keys.type), keys), 0)
        if len(keys)
        else pa.array([], pa.string())
    )
    columns: dict[str, Any] = {
        "key": first.cast(pa.binary()),
        "value": batch.column("body"),
        "topic": batch.column("topic"),
        "partition": batch.column("queue_id"),
        "offset": batch.column("queue_offset"),
        "timestamp": batch.column("store_ts").cast(TIME),
        "timestampType": pa.array([LOG_APPEND_TIME] * batch.num_rows, pa.int32()),
    }
    return pa.RecordBatch.from_pydict(columns)


def ray_kafka_columns(batch: Any) -> Any:
    """The columns of Ray Data's ``read_kafka`` from those of ``RAY_KAFKA_NEEDS``."""
    found = kafka_columns(batch)
    headers = batch.column("properties")
    columns: dict[str, Any] = {name: found.column(name) for name in RAY_KAFKA_NAMES[:5]}
    columns["timestamp"] = found.column("timestamp").cast(pa.timestamp("ms")).cast(pa.int64())
    columns["timestamp_type"] = found.column("timestampType")
    columns["headers"] = pa.MapArray.from_arrays(
        headers.offsets, headers.keys, headers.items.cast(pa.binary())
    )
    return pa.RecordBatch.from_pydict(columns)


def _has_key(keys: Any, key: str) -> Any:
    parents = pc.list_parent_indices(keys)
    hits = pc.filter(parents, pc.equal(pc.list_flatten(keys), key))
    return pc.is_in(pa.array(range(len(keys)), pa.int64()), hits.cast(pa.int64()))
