"""A topic as a Ray Data dataset: one read task for each split of a plan, Arrow blocks, no object
per row.

Decides: how a plan becomes read tasks. Does not decide where a split is read
(``client.scan.scan_plan``: beside the log where the worker sits on the broker's host, else through
the broker's scan stream). Invariant: the rows of a dataset are fixed when it is made; every
execution reads them again from the log.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Sequence
from typing import Any

import ray
from ray.data import Datasource, ReadTask
from ray.data.block import BlockMetadata

from rmq_ray.actors.access_keys import SecretKey
from rmq_ray.actors.discovery import discovery_for
from rmq_ray.actors.gateway import require_ray
from rmq_ray.client.scan.bulk_arguments import checked_columns, topic_or_pattern
from rmq_ray.client.scan.scan_plan import ScanOptions, ScanPlan, open_reader, plan_scan
from rmq_ray.codec.arrow_reader import Rows
from rmq_ray.config import Tls
from rmq_ray.errors import ClientError
from rmq_ray.model.arrow import SCHEMA
from rmq_ray.ports import Split
from rmq_ray.protocol.filters.filter_tag import tags_of_rows
from rmq_ray.protocol.scan.scan_positions import Where

CHUNK_BYTES = 8 << 20
SPLITS_PER_CPU = 2
ROW_BYTES_GUESS = 512
"""Ray Data only wants an order of magnitude; the log's density of other topics is not known."""


def read_topic(  # noqa: PLR0913 - the settings of the outermost call
    topic: str | Sequence[str] | None = None,
    *,
    pattern: str | None = None,
    start: Where = "earliest",
    end: Where = "latest",
    columns: Sequence[str] | None = None,
    tags: Any = None,
    key: str | None = None,
    fail_on_data_loss: bool = True,
    cluster: str | None = None,
    name_servers: Sequence[str] | str | None = None,
    secret: bytes = b"",
    tls: Tls | None = None,
    access_key: str = "",
    secret_key: SecretKey = "",
    splits: int | None = None,
    **options: Any,
) -> ray.data.Dataset:
    """What one or several topics hold now, as a dataset with the columns of
    ``rmq_ray.model.arrow.SCHEMA``.

    ``topic``: a name or several; or ``pattern``: a regular expression that whole names must match.
    ``start``, ``end``: "earliest", "latest", a time, a group's position or offsets, see
    ``rmq_ray.protocol.scan.scan_positions``. ``columns``: only these are decoded. ``tags``: only
    messages with one of these tags ("a || b"); ``key``: only messages with this key; both are
    applied where the rows are read. ``fail_on_data_loss`` False: where retention has overtaken the
    start, what is left is read. ``splits``: how many pieces at least; default two for each CPU of
    the Ray cluster. ``options`` go to ``ray.data.read_datasource``. The segments are kept from
    retention for an hour. Raises ``TopicNotFound``, ``GroupNotFound``, ``OffsetOutOfRange``,
    ``ClientError``, ``ClusterError`` as ``rmq_ray.spark.read_topic`` does.
    """
    require_ray()
    unknown = sorted(options.keys() - inspect.signature(ray.data.read_datasource).parameters.keys())
    if unknown:
        raise ClientError(
            f"read_topic of Ray Data has no argument {unknown[0]!r}; "
            f"ray.data.read_datasource has none of that name, either",
            unknown[0],
        )
    name = topic_or_pattern(topic, pattern, ClientError)
    rows = Rows(tuple(checked_columns(columns, ClientError)), tags_of_rows(tags), key)
    if splits is None:
        resources = ray.cluster_resources()  # type: ignore[no-untyped-call]
        splits = SPLITS_PER_CPU * max(1, int(resources.get("CPU", 1)))
    discovery = discovery_for(cluster, name_servers, secret, tls, access_key, secret_key)
    options_of_plan = ScanOptions(fail_on_data_loss=fail_on_data_loss, pattern=pattern is not None)
    plan = plan_scan(discovery, name, start, end, splits, discovery.broker_names(), options_of_plan)
    dataset: ray.data.Dataset = ray.data.read_datasource(
        TopicDatasource(plan, rows), override_num_blocks=max(1, len(plan.splits)), **options
    )
    return dataset


class TopicDatasource(Datasource):
    """What Ray Data asks of a source. The plan pickles: read tasks need no name server."""

    def __init__(self, plan: ScanPlan, rows: Rows) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._plan = plan
        self._rows = rows

    def get_name(self) -> str:
        """Shown in Ray Data's progress."""
        return f"Topic({self._plan.topic})"

    def estimate_inmemory_data_size(self) -> int:
        """A guess in bytes."""
        return self._plan.rows * ROW_BYTES_GUESS

    def get_read_tasks(
        self, parallelism: int, per_task_row_limit: int | None = None, data_context: Any = None
    ) -> list[ReadTask]:
        """One task for each split; the splits were cut for the parallelism that was asked for."""
        import pyarrow as pa

        schema = pa.schema([SCHEMA.field(name) for name in self._rows.columns])
        chosen = self._rows.tags is not None or self._rows.key is not None
        tasks = []
        for number, split in enumerate(self._plan.splits):
            rows = split.end - split.start
            metadata = BlockMetadata(
                None if chosen else rows, rows * ROW_BYTES_GUESS, None
            )  # Ray Data counts by what is said here
            tasks.append(
                ReadTask(
                    _reader(self._plan, number, self._rows), metadata, schema, per_task_row_limit
                )
            )
        if not tasks:
            empty = schema.empty_table()
            tasks.append(ReadTask(lambda: [empty], BlockMetadata(0, 0, None), schema))
        return tasks


def _reader(plan: ScanPlan, number: int, rows: Rows) -> Any:
    split: Split = plan.splits[number]

    def read() -> Iterator[Any]:
        import pyarrow as pa

        from rmq_ray.codec.arrow_reader import to_rows

        reader = open_reader(plan)
        try:
            for records, sizes in reader.read(split, CHUNK_BYTES):
                yield pa.Table.from_batches(
                    [to_rows(split.queue.topic, split.queue.broker_name, records, sizes, rows)]
                )
        finally:
            reader.close()

    return read
