"""A topic as a batch DataFrame, read in parallel by Spark's Python workers.

The driver plans: offsets of every queue now, pinned against retention, cut into splits. Each worker takes splits and reads
them beside the log where it sits on the broker's host (local files), else through a scan stream. Rows travel as Arrow
batches; there is no Python object per row, and no Ray connection in the workers.

Decides: the Spark types of the columns (``model.arrow`` has the names) and how a plan becomes a DataFrame. Invariant: the rows of a
DataFrame are fixed when it is made; every action reads them again from the log.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from rmq_ray.actors.discovery import discovery_for
from rmq_ray.client.scan_plan import ScanPlan, plan_scan
from rmq_ray.config import DEFAULT_CLUSTER
from rmq_ray.errors import SparkError
from rmq_ray.protocol.scan_splits import Position

if TYPE_CHECKING:
    import pyarrow
    from pyspark.sql import DataFrame, SparkSession

CHUNK_BYTES = 4 << 20
SPLITS_PER_CORE = 3
FIELDS = {
    "topic": "string",
    "broker": "string",
    "queue_id": "int",
    "queue_offset": "long",
    "message_id": "string",
    "keys": "array<string>",
    "tag": "string",
    "properties": "map<string,string>",
    "body": "binary",
    "born_ts": "timestamp",
    "store_ts": "timestamp",
    "reconsume_times": "int",
}
"""Columns and their Spark types; the same names and order as in Arrow, pandas and Ray Data."""


def read_topic(  # noqa: PLR0913 - the settings of the outermost call
    session: SparkSession,
    topic: str,
    *,
    start: Position = "earliest",
    end: Position = "latest",
    columns: Sequence[str] | None = None,
    cluster: str = DEFAULT_CLUSTER,
    name_servers: Sequence[str] | str | None = None,
    secret: bytes = b"",
    splits: int | None = None,
) -> DataFrame:
    """What the topic holds now, as a DataFrame with the columns of ``FIELDS``.

    ``start``, ``end``: "earliest", "latest", or a queue offset for each ``MessageQueue`` (queues not named: earliest, latest).
    The end is fixed when this is called: messages sent later are not in it. ``columns``: only these are decoded (Spark does not pass its
    own pruning on: ``select`` behind this saves nothing). ``splits``: how many pieces at least; default three for each core of the session.
    ``cluster`` names one of this Ray cluster; ``name_servers`` and ``secret`` reach one without Ray.

    The segments are kept from retention for an hour, which is how long the DataFrame may be used. Raises ``TopicNotFound``,
    ``OffsetOutOfRange`` (an offset outside of the queue), ``ClientError`` for other wrong positions, ``SparkError`` for wrong columns and
    ``ClusterError`` where a broker of the cluster stays away for 30 s: the queues that it holds would be missing.
    """
    chosen = check_columns(columns)
    wanted = session.sparkContext.defaultParallelism * SPLITS_PER_CORE if splits is None else splits
    discovery = discovery_for(cluster, name_servers, secret)
    plan = plan_scan(discovery, topic, start, end, wanted, discovery.broker_names())
    return frame_of(session, plan, chosen)


def frame_of(session: SparkSession, plan: ScanPlan, columns: Sequence[str] = tuple(FIELDS)) -> DataFrame:
    """The rows of a plan as a DataFrame: one task for each split."""
    numbers = session.range(0, len(plan.splits), 1, max(1, len(plan.splits)))
    ddl = ", ".join(f"{name} {FIELDS[name]}" for name in columns)
    return numbers.mapInArrow(_reader(plan, list(columns)), ddl)


def check_columns(columns: Sequence[str] | None) -> list[str]:
    """The columns as asked for, all for None; ``SparkError`` for none, unknown ones and repeats."""
    if columns is None:
        return list(FIELDS)
    for name in columns:
        if name not in FIELDS:
            raise SparkError(f"unknown column {name!r}; a topic has {', '.join(FIELDS)}", name)
    if isinstance(columns, str) or not columns or len(set(columns)) < len(columns):
        raise SparkError(f"columns must be a list of different names, not {columns!r}; a topic has {', '.join(FIELDS)}", repr(columns))
    return list(columns)


def _reader(plan: ScanPlan, columns: list[str]) -> Callable[[Iterator[pyarrow.RecordBatch]], Iterator[pyarrow.RecordBatch]]:
    """The function that Spark ships to its workers: split numbers in, rows out."""

    def read(batches: Iterator[Any]) -> Iterator[Any]:
        from rmq_ray.client.scan_plan import open_reader
        from rmq_ray.store.arrow_reader import to_batch

        reader = open_reader(plan)
        try:
            for batch in batches:
                for number in batch.column(0).to_pylist():
                    split = plan.splits[number]
                    for records, sizes in reader.read(split, CHUNK_BYTES):
                        yield to_batch(split.queue.topic, split.queue.broker_name, records, sizes, columns)
        finally:
            reader.close()

    return read
