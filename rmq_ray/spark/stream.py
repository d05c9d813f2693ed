"""Topics as streams in Spark, and streams into topics: the calls of users.

    read_stream(session, "orders", group="s").dataframe()        Structured Streaming: windows,
                                                                 watermarks, joins, writeStream;
                                                                 Spark's checkpoint
                                             .foreach_batch(fn)   a loop of ours around a function;
                                                                  our checkpoint; no internals of
                                                                  Spark
    write_stream_topic(df, "totals", checkpoint=...)              a streaming DataFrame into a topic

Decides: what the settings mean. Batches are made by ``batches``, run by Spark (``source``) or by
``micro_batches``.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from os import PathLike
from typing import TYPE_CHECKING, Any

from rmq_ray.actors.access_keys import SecretKey, keywords
from rmq_ray.actors.discovery import (
    RayDiscovery,
    StaticDiscovery,
    discovery_for,
    meant_cluster,
)
from rmq_ray.client.scan.partition_sink import write_queues
from rmq_ray.client.scan.stream_checkpoint import Checkpoint
from rmq_ray.client.sending.arrow_columns import Columns
from rmq_ray.config import Tls
from rmq_ray.errors import SparkError
from rmq_ray.protocol.scan.scan_positions import Where
from rmq_ray.protocol.validators import check_bulk_topic, check_group
from rmq_ray.spark.batches import Batches, Reading, topics_of
from rmq_ray.spark.checkpoint import Directory
from rmq_ray.spark.micro_batches import BatchFunction, BatchQuery, Trigger
from rmq_ray.spark.read import wanted_rows
from rmq_ray.spark.source import TopicSource, check_version
from rmq_ray.spark.write import PARTITIONS_ONCE, Once, check_schema, write_topic

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming import StreamingQuery

ID_WAIT_S = 60.0


class TopicStream:
    """Topics that are read batch by batch; made by ``read_stream``. Each call of a method begins a
    stream of its own.
    """

    def __init__(
        self, session: SparkSession, discovery: RayDiscovery | StaticDiscovery, reading: Reading
    ) -> None:
        self._session = session
        self._discovery = discovery
        self._reading = reading

    def dataframe(self) -> DataFrame:
        """A streaming DataFrame for one query at a time: windows, watermarks, joins,
        ``writeStream`` with Spark's own checkpoint and triggers.

        Call again for a query beside the first one. A ``start`` counts when the checkpoint is new.
        ``SparkError`` for versions of Spark other than 3.5, ``TopicNotFound``. What goes wrong
        later is the query's exception, with our error in its text.
        """
        check_version(str(self._session.version))
        batches = Batches(self._session, self._discovery, self._reading)
        try:
            batches.ends(partial=True)  # the topics exist
        finally:
            batches.close()
        return TopicSource(batches).frame()

    def foreach_batch(
        self,
        fn: BatchFunction,
        *,
        checkpoint: str | PathLike[str],
        trigger_seconds: float = 10.0,
        available_now: bool = False,
    ) -> BatchQuery:
        """Call ``fn(df, number)`` with batch after batch, in a thread of this process; ``df`` is an
        ordinary DataFrame.

        ``checkpoint``: a directory of its own that outlives the driver (any file system that Spark
        knows). ``trigger_seconds``: from the begin of one batch to the next. ``available_now``: end
        behind what there is now. A batch that was begun when the driver died comes again with the
        same number and rows: a sink that overwrites by number, or remembers it in the transaction
        of its rows, has every row once. An error of ``fn`` ends the query; ``await_termination``
        raises it.
        """
        trigger = Trigger(trigger_seconds, available_now)
        if not callable(fn):
            raise SparkError(
                f"foreach_batch takes a function of a DataFrame and a number, not {fn!r:.80}",
                repr(fn)[:80],
            )
        batches = Batches(self._session, self._discovery, self._reading)
        try:
            kept = Checkpoint(
                Directory(self._session, str(checkpoint)),
                self._reading.topics,
                batches.begin,
                error=SparkError,
            )
        except BaseException:
            batches.close()
            raise
        return BatchQuery(batches, kept, fn, trigger).start()


def read_stream(  # noqa: PLR0913 - the settings of the outermost call
    session: SparkSession,
    topic: str | Sequence[str],
    *,
    group: str | None = None,
    start: Where = "earliest",
    columns: Sequence[str] | None = None,
    tags: Any = None,
    key: str | None = None,
    kafka_compat: bool = False,
    max_rows_per_trigger: int | None = None,
    fail_on_data_loss: bool = True,
    source: str = "log",
    cluster: str | None = None,
    name_servers: Sequence[str] | str | None = None,
    secret: bytes = b"",
    tls: Tls | None = None,
    access_key: str = "",
    secret_key: SecretKey = "",
    splits: int | None = None,
) -> TopicStream:
    """One or several topics as a stream: ``.dataframe()`` for Structured Streaming,
    ``.foreach_batch(fn, checkpoint=...)`` for a function.

    ``start``: as for ``read_topic``; it counts while the checkpoint is new. ``group``: told after
    each batch how far the stream is, so that ``rmq-ray group lag`` shows it; the checkpoint decides
    where it goes on. Use a group that nobody consumes with. ``max_rows_per_trigger``: of a batch,
    shared among the queues. ``fail_on_data_loss`` False: messages that retention or a cut of a log
    took are passed over and counted, else they are an error. ``source`` "table+log": of a topic
    that is a table, begin with the table's oldest row and go on in the log; a checkpoint is good
    for either source. The other settings are those of ``read_topic``.

    Raises ``SparkError`` and ``ClientError`` for wrong settings; topics are looked up when the
    stream begins.
    """
    if group is not None:
        check_group(group)
    require_driver(session)
    rows = wanted_rows(columns, tags, key, kafka_compat)
    reading = Reading(
        topics_of(topic),
        rows,
        group,
        start,
        kafka_compat,
        fail_on_data_loss,
        max_rows_per_trigger,
        splits,
        source,
    )
    reading.check()
    return TopicStream(
        session, discovery_for(cluster, name_servers, secret, tls, access_key, secret_key), reading
    )


def write_stream_topic(  # noqa: PLR0913 - the settings of the outermost call
    df: DataFrame,
    topic: str,
    *,
    checkpoint: str | PathLike[str],
    body: str = "body",
    key: str | None = None,
    tag: str | None = None,
    properties: str | Sequence[str] = (),
    output_mode: str = "append",
    trigger_seconds: float = 0.0,
    available_now: bool = False,
    query_name: str | None = None,
    partitions: int = PARTITIONS_ONCE,
    timeout: float = 30.0,
    cluster: str | None = None,
    name_servers: Sequence[str] | str | None = None,
    secret: bytes = b"",
    tls: Tls | None = None,
    access_key: str = "",
    secret_key: SecretKey = "",
) -> StreamingQuery:
    """Send the rows of a streaming DataFrame to a topic, batch by batch, and return Spark's query.

    Columns as for ``write_topic``. Every batch is written under the query's id and its number, so
    that a batch which comes again within 10 minutes stores nothing twice; later it is stored again
    (at least once). ``output_mode``, ``checkpoint``, ``trigger_seconds``, ``available_now``: of
    Spark's query. ``partitions`` must not change between a batch and its repeat. The topic must
    exist. Raises as ``write_topic``; errors of a batch are the query's exception.
    """
    if not getattr(df, "isStreaming", False):
        raise SparkError(
            "write_stream_topic takes a streaming DataFrame; write_topic takes others", topic
        )
    check_bulk_topic(topic)
    columns = Columns.kept(body, key, tag, properties)
    check_schema(df, columns)
    trigger = Trigger(trigger_seconds, available_now)
    # batches are written later, when this process may use other clusters as well
    meant = meant_cluster(cluster, name_servers)
    discovery = discovery_for(meant, name_servers, secret, tls, access_key, secret_key)
    write_queues(discovery, topic, discovery.broker_names())  # it exists
    query_id: list[str] = []
    started = threading.Event()

    def write(rows: DataFrame, number: int) -> None:
        if not started.wait(ID_WAIT_S):
            raise SparkError("the query's id is not known; start it again", topic)
        write_topic(
            rows,
            topic,
            body=body,
            key=key,
            tag=tag,
            properties=columns.properties,
            once=Once(f"{query_id[0]}/{number}", partitions),
            timeout=timeout,
            cluster=meant,
            name_servers=name_servers,
            secret=secret,
            tls=tls,
            **keywords(discovery.account),
        )

    writer = df.writeStream.foreachBatch(write).outputMode(output_mode)
    writer = writer.option("checkpointLocation", str(checkpoint)).trigger(**trigger.for_spark())
    query = (writer.queryName(query_name) if query_name else writer).start()
    query_id.append(str(query.id))
    started.set()
    return query


def require_driver(session: Any) -> None:
    """``SparkError`` for sessions that have no JVM behind them (Spark Connect)."""
    if getattr(session, "_jvm", None) is None:
        raise SparkError(
            "this session has no JVM of its own (Spark Connect, or it was stopped): streams "
            "need a driver's session, see rmq_ray.spark.session"
        )
