"""A topic as a Ray Data dataset: one read task for each split of a plan, Arrow blocks, no object
per row.

Decides: how a plan becomes read tasks. Does not decide where a split is read
(``client.scan.scan_plan``: beside the log where the worker sits on the broker's host, else through
the broker's scan stream). Invariant: the rows of a dataset are fixed when it is made; every
execution reads them again from the log.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import ray
from ray.data import Datasource, ReadTask

from rmq_ray.actors.access_keys import SecretKey
from rmq_ray.actors.discovery import discovery_for
from rmq_ray.actors.gateway import require_driver
from rmq_ray.actors.ray_versions import block_metadata
from rmq_ray.client.scan.bulk_arguments import checked_columns, topic_or_pattern
from rmq_ray.client.scan.kafka_offsets import KafkaOffset, kafka_range
from rmq_ray.client.scan.scan_plan import ScanOptions, ScanPlan, open_reader
from rmq_ray.codec.arrow.arrow_rows import RAY_KAFKA_NEEDS, Rows, ray_kafka_columns
from rmq_ray.config import Tls
from rmq_ray.data.offset_ids import OFFSET_ID, check_apart, with_ids
from rmq_ray.errors import ClientError
from rmq_ray.model.arrow import SCHEMA
from rmq_ray.model.ids import MessageQueue
from rmq_ray.ports import Split
from rmq_ray.protocol.filters.filter_tag import tags_of_rows
from rmq_ray.protocol.scan.scan_positions import Where
from rmq_ray.table.reading import TablePiece, plan_source

CHUNK_BYTES = 8 << 20
SPLITS_PER_CPU = 2
KAFKA = ("kafka",)
Columns = tuple[str, ...] | None
ROW_BYTES_GUESS = 512
"""Ray Data only wants an order of magnitude; the log's density of other topics is not known."""


def read_topic(  # noqa: PLR0913 - the settings of the outermost call
    topic: str | Sequence[str] | None = None,
    *,
    pattern: str | None = None,
    start: Where = "earliest",
    end: Where = "latest",
    start_offset: KafkaOffset | None = None,
    end_offset: KafkaOffset | None = None,
    columns: Sequence[str] | None = None,
    kafka_compat: bool = False,
    tags: Any = None,
    key: str | None = None,
    fail_on_data_loss: bool = True,
    source: str = "log",
    cluster: str | None = None,
    name_servers: Sequence[str] | str | None = None,
    secret: bytes = b"",
    tls: Tls | None = None,
    access_key: str = "",
    secret_key: SecretKey = "",
    splits: int | None = None,
    override_num_blocks: int | None = None,
    **options: Any,
) -> ray.data.Dataset:
    """What one or several topics hold now, as a dataset with the columns of
    ``rmq_ray.model.arrow.SCHEMA``.

    ``topic``: a name or several; or ``pattern``: a regular expression that whole names must match.
    ``start``, ``end``: "earliest", "latest", a time, a group's position or offsets, see
    ``rmq_ray.protocol.scan.scan_positions``; or ``start_offset``, ``end_offset`` as
    ``ray.data.read_kafka`` has them, see ``rmq_ray.client.scan.kafka_offsets``; ends are exclusive.
    ``columns``: only these are decoded, and "offset_id" for ``offset_checkpoint``;
    ``kafka_compat``: those of ``ray.data.read_kafka``. ``tags``: only messages with one of these
    tags ("a || b"); ``key``: only messages with this key; both are applied where the rows are read.
    ``fail_on_data_loss`` False: where retention has overtaken the start, what is left is read.
    ``source``: "table+log", "table": of a topic that is a table (docs/tables.md). ``splits``, or
    Ray's ``override_num_blocks``: how many read tasks at least, of which several read one queue;
    default two for each CPU of the Ray cluster. ``options`` go to ``ray.data.read_datasource``. The
    segments are kept from retention for an hour. Raises what ``rmq_ray.spark.read_topic`` raises.
    """
    require_driver("Ray Data")
    name = topic_or_pattern(topic, pattern, ClientError)
    discovery = discovery_for(cluster, name_servers, secret, tls, access_key, secret_key)
    _check_choice(kafka_compat, columns, splits, override_num_blocks)
    names, out = _needed(columns, kafka_compat)
    rows = Rows(names, tags_of_rows(tags), key)
    check_options(options)
    if start_offset is not None or end_offset is not None:
        if pattern is not None or (start, end) != ("earliest", "latest"):
            raise ClientError("give start_offset and end_offset with topic=, or start and end")
        first = "earliest" if start_offset is None else start_offset
        last = "latest" if end_offset is None else end_offset
        start, end = kafka_range(discovery, name, first, last)
    options_of_plan = ScanOptions(fail_on_data_loss=fail_on_data_loss, pattern=pattern is not None)
    wanted = splits_for(splits or override_num_blocks)
    asked = (discovery, name, start, end, wanted, discovery.broker_names(), options_of_plan)
    pieces, plan = plan_source(source, *asked)
    if pieces and out is not None:
        raise ClientError("kafka_compat and offset_id are columns of the log; leave source= out")
    return dataset_of(plan, rows, options, out, pieces)


def splits_for(splits: int | None) -> int:
    """How many pieces a read has at least: what was asked for, or two for each CPU of Ray's."""
    if splits is not None:
        return splits
    resources = ray.cluster_resources()  # type: ignore[no-untyped-call]
    return SPLITS_PER_CPU * max(1, int(resources.get("CPU", 1)))


def _check_choice(
    kafka_compat: bool, columns: object, splits: int | None, blocks: int | None
) -> None:
    if kafka_compat and columns is not None:
        raise ClientError(
            "kafka_compat has the columns of ray.data.read_kafka; choose among them with "
            "select_columns()",
            repr(columns)[:80],
        )
    if splits is not None and blocks is not None:
        raise ClientError("splits and override_num_blocks mean the same: give one", splits, blocks)


def _needed(columns: Sequence[str] | None, kafka_compat: bool) -> tuple[tuple[str, ...], Columns]:
    """(columns to decode, what becomes of them: None = as they are, ``KAFKA``, or the columns to
    hand out, among them ids that follow from the offsets).
    """
    if kafka_compat:
        return RAY_KAFKA_NEEDS, KAFKA
    if columns is None or isinstance(columns, str) or OFFSET_ID not in columns:
        return tuple(checked_columns(columns, ClientError)), None
    others = [name for name in columns if name != OFFSET_ID]
    decoded = checked_columns(others, ClientError) if others else []
    return tuple(dict.fromkeys([*decoded, "queue_offset"])), tuple(columns)


def shaped(table: Any, queue: MessageQueue, out: Columns) -> Any:
    """The columns of a table of one queue as they are handed out; see ``_needed``."""
    import pyarrow as pa

    if out is None:
        return table
    if out != KAFKA:
        return with_ids(table, queue, out)
    whole = table.combine_chunks().to_batches() or [pa.RecordBatch.from_pylist([], table.schema)]
    return pa.Table.from_batches([ray_kafka_columns(batch) for batch in whole])


def check_options(options: Mapping[str, Any]) -> None:
    """``ClientError`` for one that ``ray.data.read_datasource`` has not."""
    unknown = sorted(options.keys() - inspect.signature(ray.data.read_datasource).parameters.keys())
    if unknown:
        raise ClientError(
            f"read_topic of Ray Data has no argument {unknown[0]!r}; "
            f"ray.data.read_datasource has none of that name, either",
            unknown[0],
        )


def dataset_of(
    plan: ScanPlan,
    rows: Rows,
    options: Mapping[str, Any],
    out: Columns = None,
    pieces: Sequence[TablePiece] = (),
) -> ray.data.Dataset:
    """The rows of a plan. ``options``: of ``ray.data.read_datasource``. ``out``: what becomes of
    the columns of ``rows``, see ``_needed``. ``pieces``: of the topic's table, in front of them.
    """
    source = TopicDatasource(plan, rows, out, pieces)
    blocks = max(1, len(plan.splits) + len(pieces))
    dataset: ray.data.Dataset = ray.data.read_datasource(
        source, override_num_blocks=blocks, **options
    )
    return dataset


class TopicDatasource(Datasource):
    """What Ray Data asks of a source. The plan pickles: read tasks need no name server.
    ``pieces``: of the topic's table, in front of the plan's rows.
    """

    def __init__(
        self,
        plan: ScanPlan,
        rows: Rows,
        out: Columns = None,
        pieces: Sequence[TablePiece] = (),
    ) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._plan = plan
        self._rows = rows
        self._out = out
        self._pieces = pieces
        if out is not None and out != KAFKA:
            check_apart({split.queue for split in plan.splits})

    def get_name(self) -> str:
        """Shown in Ray Data's progress."""
        return f"Topic({self._plan.topic})"

    def estimate_inmemory_data_size(self) -> int:
        """A guess in bytes."""
        rows = self._plan.rows + sum(piece.rows for piece in self._pieces)
        return rows * ROW_BYTES_GUESS

    def get_read_tasks(
        self, parallelism: int, per_task_row_limit: int | None = None, data_context: Any = None
    ) -> list[ReadTask]:
        """One task for each split; the splits were cut for the parallelism that was asked for."""
        import pyarrow as pa

        schema = pa.schema([SCHEMA.field(name) for name in self._rows.columns])
        nowhere = MessageQueue("", "", 0)
        schema = shaped(schema.empty_table(), nowhere, self._out).schema
        chosen = self._rows.tags is not None or self._rows.key is not None
        tasks = []
        for piece in self._pieces:
            metadata = block_metadata(None, piece.rows * ROW_BYTES_GUESS)
            read = partial(_read_piece, piece, self._rows)
            tasks.append(ReadTask(read, metadata, schema, per_task_row_limit))
        for number, split in enumerate(self._plan.splits):
            rows = split.end - split.start
            # Ray Data counts by what is said here
            metadata = block_metadata(None if chosen else rows, rows * ROW_BYTES_GUESS)
            tasks.append(
                ReadTask(
                    _reader(self._plan, number, self._rows, self._out),
                    metadata,
                    schema,
                    per_task_row_limit,
                )
            )
        if not tasks:
            empty = schema.empty_table()
            tasks.append(ReadTask(lambda: [empty], block_metadata(0, 0), schema))
        return tasks


def _read_piece(piece: TablePiece, rows: Rows) -> Iterator[Any]:
    import pyarrow as pa

    for batch in piece.read(rows):
        yield pa.Table.from_batches([batch])


def _reader(plan: ScanPlan, number: int, rows: Rows, out: Columns) -> Any:
    split: Split = plan.splits[number]

    def read() -> Iterator[Any]:
        import pyarrow as pa

        from rmq_ray.codec.arrow.arrow_rows import to_rows

        reader = open_reader(plan)
        try:
            for records, sizes in reader.read(split, CHUNK_BYTES):
                batch = to_rows(split.queue.topic, split.queue.broker_name, records, sizes, rows)
                yield shaped(pa.Table.from_batches([batch]), split.queue, out)
        finally:
            reader.close()

    return read
