"""A DataFrame into a topic: every partition is sent by its own Python worker, by columns, over a
connection of its own.

    partition ─mapInArrow─> RecordBatch of up to 10,000 rows ─Producer.send_arrow─> frames
        ─> brokers

Decides: which columns may be what, and how rows are laid out so that a repeat finds the same frames
(``once``). Does not decide how rows become messages (``client.sending.arrow_columns``) or what a
worker does (``client.scan.partition_sink``). Workers need no Ray: name servers and the secret
travel with the task.

Invariants: at least once: the count is returned when every row is stored; with ``once`` a write
that is repeated under the same name within the brokers' 10 minutes stores every row once.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from rmq_ray.actors.access_keys import SecretKey
from rmq_ray.actors.discovery import discovery_for
from rmq_ray.client.scan.bulk_arguments import frame_timeout_ms
from rmq_ray.client.scan.partition_sink import WriteTarget, write_queues
from rmq_ray.client.sending.arrow_columns import Columns
from rmq_ray.config import Tls
from rmq_ray.errors import SparkError
from rmq_ray.guard import attempt, tell_failure
from rmq_ray.protocol.validators import check_bulk_topic

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

PARTITIONS_ONCE = 8
PROGRESS_S = 0.5
_BODY, _KEY, _TAG, _MAP = (
    ("string", "binary"),
    ("string", "array<string>"),
    ("string",),
    "map<string,string>",
)

log = logging.getLogger("rmq_ray.spark")


@dataclass(frozen=True, slots=True)
class Once:
    """Names a write: ``write`` is the same for every repeat of one batch and for nothing else.
    ``partitions``: must not change between repeats.
    """

    write: str
    partitions: int = PARTITIONS_ONCE

    def __post_init__(self) -> None:
        name: object = self.write
        if not isinstance(name, str) or not name or not 1 <= self.partitions <= 10_000:
            raise SparkError(
                f"a write that counts once needs a name and 1 to 10,000 partitions, not "
                f"{self.write!r} and {self.partitions}",
                self.write,
            )


def write_topic(  # noqa: PLR0913 - the settings of the outermost call
    df: DataFrame,
    topic: str,
    *,
    body: str = "body",
    key: str | None = None,
    tag: str | None = None,
    properties: str | Sequence[str] = (),
    once: Once | str | None = None,
    progress: Callable[[int], None] | None = None,
    timeout: float = 30.0,
    cluster: str | None = None,
    name_servers: Sequence[str] | str | None = None,
    secret: bytes = b"",
    tls: Tls | None = None,
    access_key: str = "",
    secret_key: SecretKey = "",
) -> int:
    """Send every row of a DataFrame as a message and wait; returns how many were stored.

    ``body``: a string or binary column without nulls. ``key``: string or array of strings; ``tag``:
    string; ``properties``: one column of type map<string,string>, or names of string columns. Null
    means none. ``timeout``: s, for each frame of up to 1 MiB. ``progress(rows)`` is called about
    twice a second with the rows of the tasks that have ended.

    At least once: a task that Spark repeats sends its rows again. ``once``: a name for this write,
    the same when it is repeated and used for nothing else (such as "totals/17", job and batch): the
    brokers recognise the frames of a repeat within 10 minutes and store nothing twice. The rows are
    shuffled and sorted for it, so that a repeat is cut into the same frames; the topic must exist
    and keep its queues, and rows must be the same.

    Raises ``SparkError`` for wrong columns and where a worker failed, ``ClientError`` for wrong
    names, ``TopicNotFound``, ``ClusterError``.
    """
    check_bulk_topic(topic)
    _check_ends(df, topic)
    if progress is not None and not callable(progress):
        raise SparkError(
            f"progress must be a function of the number of rows, not {progress!r:.80}",
            repr(progress)[:80],
        )
    columns = Columns.kept(body, key, tag, properties)
    check_schema(df, columns)
    discovery = discovery_for(cluster, name_servers, secret, tls, access_key, secret_key)
    target = WriteTarget(topic, columns, discovery.lookup(), frame_timeout_ms(timeout, SparkError))
    rows = df.select(*(f"`{name}`" for name in columns.names()))
    if once is not None:
        named = once if isinstance(once, Once) else Once(once)
        queues = write_queues(discovery, topic, discovery.broker_names())
        target = replace(target, write=named.write, queues=tuple(queues))
        rows = settled(rows, columns, named.partitions)
    return send(rows, target, progress)


def _check_ends(df: DataFrame, topic: str) -> None:
    """``SparkError`` for what is no DataFrame, or one that never ends."""
    if getattr(df, "isStreaming", False):
        raise SparkError(
            "write_topic takes a DataFrame that ends; write_stream_topic takes streaming ones",
            topic,
        )
    if not hasattr(df, "schema"):
        raise SparkError(
            f"write_topic takes a Spark DataFrame, not a {type(df).__module__} "
            f"{type(df).__name__}; session.createDataFrame makes one of it"
        )


def check_schema(df: DataFrame, columns: Columns) -> None:
    """``SparkError`` naming the column that is missing or of a wrong type, and what it may be."""
    found: dict[str, list[str]] = {}
    for field in df.schema.fields:
        found.setdefault(field.name, []).append(field.dataType.simpleString())
    one_map = isinstance(columns.properties, str)
    wanted = [("body", columns.body, _BODY), ("key", columns.key, _KEY), ("tag", columns.tag, _TAG)]
    wanted += [
        ("properties", name, (_MAP,) if one_map else _TAG)
        for name in (
            [columns.properties] if isinstance(columns.properties, str) else columns.properties
        )
    ]
    for role, name, kinds in wanted:
        if name is None:
            continue
        types = found.get(name, [])
        if len(types) != 1:
            how = "no column" if not types else f"{len(types)} columns"
            raise SparkError(
                f"{role}={name!r}: the DataFrame has {how} of that name; it has "
                f"{', '.join(df.columns[:20])}",
                name,
            )
        if types[0] not in kinds:
            raise SparkError(
                f"{role}={name!r} is of type {types[0]}; it must be {' or '.join(kinds)}: "
                f"cast it, or to_json() what has structure",
                name,
                types[0],
            )


def settled(rows: DataFrame, columns: Columns, partitions: int) -> DataFrame:
    """The same rows in partitions and an order that follow from their values alone."""
    from pyspark.sql import functions as f

    def ordered(name: str) -> Column:
        is_map = name == columns.properties
        return f.array_sort(f.map_entries(f"`{name}`")) if is_map else f.col(f"`{name}`")

    by = [ordered(name) for name in columns.names()]
    return rows.repartition(partitions, *by).sortWithinPartitions(*by)


def send(
    rows: DataFrame, target: WriteTarget, progress: Callable[[int], None] | None = None
) -> int:
    """Run the job; the number of rows stored."""
    from pyspark.errors import PySparkException

    counted = rows.sparkSession.sparkContext.accumulator(0) if progress is not None else None
    job = rows.mapInArrow(_writer(target, counted), "stored long")
    watched = _Progress(counted, progress)
    try:
        return sum(int(row[0]) for row in job.collect())
    except PySparkException as error:
        hint = ": the rows of a repeated write must be the same" * (
            "DuplicateMismatch" in str(error)
        )
        text = (
            f"writing to topic {target.topic!r} failed{hint}; part of the rows may be stored. "
            f"The worker said: {_cause(error)}"
        )
        raise SparkError(text, target.topic) from error
    finally:
        watched.end()


def _writer(target: WriteTarget, counted: Any) -> Callable[[Iterator[Any]], Iterator[Any]]:
    """The function that Spark ships to its workers: rows in, one count out."""

    def write(batches: Iterator[Any]) -> Iterator[Any]:
        import pyarrow as pa
        from pyspark import TaskContext

        from rmq_ray.client.scan.partition_sink import send_partition

        context = TaskContext.get()
        told = counted.add if counted is not None else lambda _rows: None
        stored = send_partition(target, context.partitionId() if context else 0, batches, told)
        yield pa.RecordBatch.from_pydict({"stored": pa.array([stored], pa.int64())})

    return write


class _Progress:
    """Tells the caller twice a second, while the job runs; and once at its end."""

    def __init__(self, counted: Any, tell: Callable[[int], None] | None) -> None:
        self._over = threading.Event()
        self._counted, self._tell = counted, tell
        self._thread = threading.Thread(target=self._run, name="rmq-spark-progress", daemon=True)
        if tell is not None:
            self._thread.start()

    def end(self) -> None:
        """The last call is over when this returns."""
        self._over.set()
        if self._tell is not None:
            self._thread.join()

    def _run(self) -> None:
        assert self._tell is not None
        over = False
        while not over:  # ends: with the job
            over = self._over.wait(PROGRESS_S)
            _, error = attempt(self._tell, int(self._counted.value))
            if error is not None:
                tell_failure(log, "progress=", error, "rows go on, it is told no more")
                return


def _cause(error: Exception) -> str:
    """The last line of a worker's traceback."""
    lines = [
        line.strip()
        for line in str(error).splitlines()
        if line.strip() and not line.startswith(("\tat ", "    at ", "  at "))
    ]
    told = [line for line in lines if line.startswith("rmq_ray.errors.")]
    return (told or lines or [repr(error)])[0][:500]
