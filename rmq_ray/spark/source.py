"""A topic as a real Structured Streaming source, without any Java of ours: Spark 3.5 calls this
Python object through py4j.

    MicroBatchExecution ─latestOffset──> Batches.next    text of a position, which Spark writes into
                                                         its checkpoint before the batch runs
                        ─getBatch─────>  Batches.frame   the rows between two positions
                        ─commit───────>  Batches.commit  the batch before is through

Implements ``org.apache.spark.sql.execution.streaming.Source``, ``SupportsTriggerAvailableNow`` and
``ReportsSourceMetrics``: names and signatures are Spark's, and internal to it (checked for 3.5).
Decides nothing about rows. Called by JVM threads, for one query at a time.

Invariant: ``getBatch`` never fails for a batch that Spark only asks for to tell where it was (it
does so at a restart, when retention may have taken the rows): such an error is raised by the rows
when they are read, and rows that are gone are counted then.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, ClassVar

from rmq_ray.errors import RmqError, SparkError
from rmq_ray.model.ids import MessageQueue
from rmq_ray.protocol.scan.stream_offsets import StreamPosition
from rmq_ray.spark.batches import Batches
from rmq_ray.spark.read import FIELDS, KAFKA_FIELDS

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

log = logging.getLogger("rmq_ray.spark")
STREAMING = "org.apache.spark.sql.execution.streaming"
CONNECTOR = "org.apache.spark.sql.connector.read.streaming"
VERSION = "3.5."


class TopicSource:
    """See the module. Method names are Spark's."""

    def __init__(self, batches: Batches) -> None:
        self._batches = batches
        self._session = batches.session
        self._jvm: Any = self._session._jvm
        self._jsession: Any = self._session._jsparkSession
        reading = batches.reading
        fields = (
            KAFKA_FIELDS
            if reading.kafka_compat
            else {name: FIELDS[name] for name in reading.rows.columns}
        )
        self._ddl = ", ".join(f"{name} {kind}" for name, kind in fields.items())
        self._schema = self._jvm.org.apache.spark.sql.types.StructType.fromDDL(self._ddl)
        self._begin: StreamPosition | None = None
        self._target: dict[MessageQueue, int] | None = None
        self._lost: Any = self._session.sparkContext.accumulator(0)

    def frame(self) -> DataFrame:
        """The streaming DataFrame over this source."""
        from pyspark.java_gateway import ensure_callback_server_started
        from pyspark.sql import DataFrame

        ensure_callback_server_started(self._session.sparkContext._gateway)
        attributes = (
            self._session.createDataFrame([], self._ddl)._jdf.queryExecution().analyzed().output()
        )
        streaming = self._jvm.org.apache.spark.sql.execution.streaming
        relation = streaming.StreamingExecutionRelation(
            self, attributes, self._jvm.scala.Option.empty(), self._jsession
        )
        return DataFrame(
            self._jvm.org.apache.spark.sql.Dataset.ofRows(self._jsession, relation), self._session
        )

    # --- Source -----------------------------------------------------------------------------------

    def schema(self) -> Any:
        """Columns and types."""
        return self._schema

    def getOffset(self) -> Any:  # noqa: N802
        """Not called where ``latestOffset`` is there."""
        return self._jvm.scala.Option.apply(self.latestOffset(None, None))

    def getBatch(self, start: Any, end: Any) -> Any:  # noqa: N802
        """The rows behind ``start`` (an Option) up to ``end``, as a streaming DataFrame of
        the JVM.
        """
        before = _position(start.get()) if start.isDefined() else None
        counted = self._batches.rows_lost
        try:
            frame = self._batches.frame(before, _position(end))
        except RmqError as error:
            log.warning("a batch cannot be read: %s", error)
            frame = self._session.range(0, 1, 1, 1).mapInArrow(_raising(error), self._ddl)
        if lost := self._batches.rows_lost - counted:
            self._batches.rows_lost = counted
            frame = frame.mapInArrow(_counting(self._lost, lost), self._ddl)
        rows = frame._jdf.queryExecution().toRdd()
        return self._jsession.internalCreateDataFrame(rows, frame._jdf.schema(), True)

    def commit(self, end: Any) -> None:
        """Everything up to ``end`` is through."""
        self._batches.commit(_position(end))

    def stop(self) -> None:
        """The query has ended; another one may begin anew."""
        self._begin = self._target = None
        self._batches.rows_lost, self._lost = 0, self._session.sparkContext.accumulator(0)
        self._batches.close()

    def deserializeOffset(self, text: str) -> Any:  # noqa: N802
        """An offset out of Spark's checkpoint."""
        return self._offset(text)

    def initialOffset(self) -> Any:  # noqa: N802
        """Of sources of another kind."""
        raise SparkError(
            "Spark asked this source for an initial offset: this version of Spark is not 3.5"
        )

    # --- SupportsTriggerAvailableNow, SupportsAdmissionControl ------------------------------------

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        """This query ends at what is there now."""
        self._target = self._batches.ends()

    def getDefaultReadLimit(self) -> Any:  # noqa: N802
        """How many rows a batch may have."""
        limit = self._jvm.org.apache.spark.sql.connector.read.streaming.ReadLimit
        rows = self._batches.reading.rows_max
        return limit.allAvailable() if rows is None else limit.maxRows(rows)

    def latestOffset(self, start: Any, _limit: Any) -> Any:  # noqa: N802
        """Where the next batch ends; the same as ``start`` when there is nothing new. The first one
        says where the stream begins.
        """
        if start is None:
            if self._begin is None:
                self._begin = self._batches.begin()
                self._batches.commit(
                    self._begin
                )  # so that the lag is seen while the first batch runs
            end = self._batches.next(self._begin, self._target)
            merged = StreamPosition(end.offsets, end.epochs, {**self._begin.offsets, **end.starts})
            return self._offset(merged.to_json())
        before = _position(start)
        self._batches.commit(
            before
        )  # Spark marks a batch before it asks for the next, and tells commit() one batch late
        end = self._batches.next(before, self._target)
        return start if end is before else self._offset(end.to_json())

    def reportLatestOffset(self) -> Any:  # noqa: N802
        """What there is beyond the limit, for Spark's progress reports."""
        return self._offset(StreamPosition(self._batches.ends(partial=True)).to_json())

    # --- ReportsSourceMetrics ---------------------------------------------------------------------

    def metrics(self, _latest: Any) -> Any:
        """For Spark's progress reports, since this query began: ``rowsLost`` of
        ``fail_on_data_loss=False``. Text, as Spark wants it.
        """
        found = self._jvm.java.util.HashMap()
        found.put("rowsLost", str(self._batches.rows_lost + self._lost.value))
        return found

    def _offset(self, text: str) -> Any:
        return self._jvm.org.apache.spark.sql.execution.streaming.SerializedOffset(text)

    # --- java.lang.Object -------------------------------------------------------------------------

    def toString(self) -> str:  # noqa: N802
        """Shown in Spark's reports and plans."""
        return f"Topic[{', '.join(self._batches.reading.topics)}]"

    def hashCode(self) -> int:  # noqa: N802
        """Of this object."""
        return id(self) & 0x7FFFFFFF

    def equals(self, other: object) -> bool:
        """This object only."""
        return other is self

    class Java:
        """For py4j."""

        implements: ClassVar[list[str]] = [
            f"{STREAMING}.Source",
            f"{CONNECTOR}.SupportsTriggerAvailableNow",
            f"{CONNECTOR}.ReportsSourceMetrics",
        ]


def check_version(version: str) -> None:
    """``SparkError`` for versions whose internals differ."""
    if not version.startswith(VERSION):
        raise SparkError(
            f"dataframe() works with Spark {VERSION}x, this is {version}: use foreach_batch, "
            f"which needs no internals of Spark",
            version,
        )


def _position(offset: Any) -> StreamPosition:
    return StreamPosition.from_json(str(offset.json()))


def _counting(counted: Any, lost: int) -> Callable[[Iterator[Any]], Iterator[Any]]:
    """The rows as they are; the task of the first partition counts."""

    def count(batches: Iterator[Any]) -> Iterator[Any]:
        from pyspark import TaskContext

        context = TaskContext.get()
        if context is None or context.partitionId() == 0:
            counted.add(lost)
        yield from batches

    return count


def _raising(error: RmqError) -> Callable[[Iterator[Any]], Iterator[Any]]:
    kind, values = type(error), error.args

    def fail(_batches: Iterator[Any]) -> Iterator[Any]:
        raise kind(*values)

    return fail
