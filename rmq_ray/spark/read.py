"""A topic as a batch DataFrame, read in parallel by Spark's Python workers.

The driver plans: offsets of every queue now, pinned against retention, cut into splits. Each worker
takes splits and reads them beside the log where it sits on the broker's host (local files), else
through a scan stream. Rows travel as Arrow batches; there is no Python object per row, and no Ray
connection in the workers.

Decides: the Spark types of the columns (``model.arrow`` has the names) and how a plan becomes a
DataFrame. Invariant: the rows of a DataFrame are fixed when it is made; every action reads them
again from the log.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from rmq_ray.actors.access_keys import SecretKey
from rmq_ray.actors.discovery import discovery_for
from rmq_ray.client.scan.bulk_arguments import checked_columns, topic_or_pattern
from rmq_ray.client.scan.scan_plan import ScanOptions, ScanPlan
from rmq_ray.codec.arrow.arrow_rows import KAFKA_NEEDS, Rows
from rmq_ray.config import Tls
from rmq_ray.errors import SparkError
from rmq_ray.protocol.filters.filter_tag import tags_of_rows
from rmq_ray.protocol.scan.scan_positions import Where
from rmq_ray.protocol.scan.scan_splits import ROWS_PER_SPLIT_MAX, bundled
from rmq_ray.table.reading import TablePiece, plan_source

if TYPE_CHECKING:
    import pyarrow
    from pyspark.sql import DataFrame, SparkSession

CHUNK_BYTES = 4 << 20
SPLITS_PER_CORE = 2  # a task costs 30 ms before its first row
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
KAFKA_FIELDS = {
    "key": "binary",
    "value": "binary",
    "topic": "string",
    "partition": "int",
    "offset": "long",
    "timestamp": "timestamp",
    "timestampType": "int",
}
"""The columns of Spark's Kafka source: key = the first of a message's keys, partition = queue id
(of one broker: several brokers repeat them), timestamp = store time, timestampType 1 (log append
time).
"""


def read_topic(  # noqa: PLR0913 - the settings of the outermost call
    session: SparkSession,
    topic: str | Sequence[str] | None = None,
    *,
    pattern: str | None = None,
    start: Where = "earliest",
    end: Where = "latest",
    columns: Sequence[str] | None = None,
    tags: Any = None,
    key: str | None = None,
    kafka_compat: bool = False,
    fail_on_data_loss: bool = True,
    source: str = "log",
    cluster: str | None = None,
    name_servers: Sequence[str] | str | None = None,
    secret: bytes = b"",
    tls: Tls | None = None,
    access_key: str = "",
    secret_key: SecretKey = "",
    splits: int | None = None,
    rows_min: int = 1,
    rows_max: int = ROWS_PER_SPLIT_MAX,
) -> DataFrame:
    """What one or several topics hold now, as a DataFrame with the columns of ``FIELDS``.

    ``topic``: a name or several; or ``pattern``: a regular expression that whole names must match.
    ``start``, ``end``: "earliest", "latest", a time (``datetime`` or ms since the epoch: the first
    message stored then or later), ``rmq.LikeGroup(name)`` (where a consumer group is), or offsets:
    for each ``MessageQueue``, or as JSON text ``{"orders": {"broker-a": {"0": 23, "1": -1}}}`` (-1
    latest, -2 earliest; queues not named: earliest, latest). The end is fixed when this is called:
    messages sent later are not in it.

    ``columns``: only these are decoded (Spark does not pass its own pruning on: ``select`` behind
    this saves nothing). ``tags``: only messages with one of these tags ("a || b"); ``key``: only
    messages with this key; both are applied where the rows are read. ``kafka_compat``: the columns
    of Spark's Kafka source instead (``KAFKA_FIELDS``). ``splits``: about how many tasks; default
    two for each core of the session; ``rows_min``, ``rows_max``: of one (small queues share one).
    ``fail_on_data_loss`` False: where retention has overtaken the start, what is left is read.
    ``source``: "table+log" = a table up to where that is, the log behind it; "table" = its files
    alone (docs/tables.md).
    ``cluster`` names one of this Ray cluster; ``name_servers`` and ``secret`` reach one without
    Ray, over TLS with ``tls``; ``access_key`` and ``secret_key``: as an account, see ``Producer``.

    The segments are kept from retention for an hour, which is how long the DataFrame may be used.
    Raises ``TopicNotFound``, ``GroupNotFound``, ``OffsetOutOfRange`` (an offset outside of the
    queue), ``ClientError`` for other wrong positions, ``SparkError`` for wrong columns and
    ``ClusterError`` where a broker of the cluster stays away for 30 s: the queues that it holds
    would be missing.
    """
    name = topic_or_pattern(topic, pattern, SparkError)
    wanted = wanted_rows(columns, tags, key, kafka_compat)
    require_session(session)
    count = session.sparkContext.defaultParallelism * SPLITS_PER_CORE if splits is None else splits
    discovery = discovery_for(cluster, name_servers, secret, tls, access_key, secret_key)
    options = ScanOptions(rows_min, rows_max, fail_on_data_loss, pattern is not None)
    asked = (discovery, name, start, end, count, discovery.broker_names(), options)
    pieces, plan = plan_source(source, *asked)
    bundles = bundled(plan.sizes, count, rows_max)
    return frame_of(session, plan, wanted, kafka_compat, bundles, pieces)


def frame_of(
    session: SparkSession,
    plan: ScanPlan,
    rows: Rows | None = None,
    kafka_compat: bool = False,
    bundles: list[list[int]] | None = None,
    pieces: Sequence[TablePiece] = (),
) -> DataFrame:
    """The rows of a plan as a DataFrame. ``bundles``: the numbers of the splits of each task; None:
    one for each split. ``pieces``: of the topic's table, a task each.
    """
    wanted = rows or Rows(tuple(FIELDS))
    bundles = [[number] for number in range(len(plan.splits))] if bundles is None else bundles
    tasks = len(bundles) + len(pieces)
    numbers = session.range(0, tasks, 1, max(1, tasks))
    fields = KAFKA_FIELDS if kafka_compat else {name: FIELDS[name] for name in wanted.columns}
    ddl = ", ".join(f"{name} {kind}" for name, kind in fields.items())
    return numbers.mapInArrow(_reader(plan, bundles, wanted, kafka_compat, tuple(pieces)), ddl)


def wanted_rows(columns: Sequence[str] | None, tags: Any, key: Any, kafka_compat: bool) -> Rows:
    """Which rows and columns are read. ``SparkError`` for what makes no sense."""
    if kafka_compat and columns is not None:
        raise SparkError(
            "kafka_compat has the columns of Spark's Kafka source; choose among them with select()",
            repr(columns),
        )
    if key is not None and (not isinstance(key, str) or not key):
        raise SparkError(
            f"key must be one of the messages' keys, a string, not {key!r:.80}", repr(key)[:80]
        )
    return Rows(
        tuple(KAFKA_NEEDS) if kafka_compat else tuple(checked_columns(columns, SparkError)),
        tags_of_rows(tags),
        key,
    )


def require_session(session: Any) -> None:
    """``SparkError`` for what is none, such as a topic in its place, and for one that was
    stopped.
    """
    context = getattr(session, "sparkContext", None)
    if context is None or context._jsc is None:
        what = "one that was stopped" if context is not None else f"{session!r:.80}"
        raise SparkError(
            f"the first argument must be a running SparkSession of this process, like that "
            f"of rmq_ray.spark.session(), not {what}",
            what,
        )


def _reader(
    plan: ScanPlan,
    bundles: list[list[int]],
    rows: Rows,
    kafka_compat: bool,
    pieces: tuple[TablePiece, ...] = (),
) -> Callable[[Iterator[pyarrow.RecordBatch]], Iterator[pyarrow.RecordBatch]]:
    """The function that Spark ships to its workers: numbers of bundles in, rows out."""

    def read(batches: Iterator[Any]) -> Iterator[Any]:
        from rmq_ray.client.scan.scan_plan import open_reader
        from rmq_ray.codec.arrow.arrow_rows import kafka_columns, to_rows

        reader = open_reader(plan)
        try:
            for batch in batches:
                tasks = batch.column(0).to_pylist()
                for piece in [
                    pieces[task - len(bundles)] for task in tasks if task >= len(bundles)
                ]:
                    for found in piece.read(rows):
                        yield kafka_columns(found) if kafka_compat else found
                for split in [
                    plan.splits[number]
                    for task in tasks
                    if task < len(bundles)
                    for number in bundles[task]
                ]:
                    for records, sizes in reader.read(split, CHUNK_BYTES):
                        found = to_rows(
                            split.queue.topic, split.queue.broker_name, records, sizes, rows
                        )
                        yield kafka_columns(found) if kafka_compat else found
        finally:
            reader.close()

    return read
