"""A topic, or a part of it, as one Arrow table: for notebooks and scripts, without Spark, Ray Data
or a consumer group.

Decides nothing but the order of rows: queue by queue, each in the order of its offsets. Called by
``admin``; blocking.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rmq_ray.client.admin.admin_link import AdminLink
from rmq_ray.client.scan.scan_plan import open_reader, plan_scan
from rmq_ray.errors import ClientError
from rmq_ray.protocol.scan.scan_positions import Where
from rmq_ray.protocol.validators import check_topic

CHUNK_BYTES = 8 << 20
ROWS_MAX = 50_000_000


class AdminArrow(AdminLink):
    """The part of ``Admin`` that reads topics."""

    def to_arrow(
        self,
        topic: str,
        *,
        start: Where = "earliest",
        end: Where = "latest",
        columns: Sequence[str] | None = None,
        rows_max: int = ROWS_MAX,
    ) -> Any:
        """``pyarrow.Table`` of what the topic holds now (columns: ``rmq_ray.model.arrow.SCHEMA``);
        ``.to_pandas()`` makes a frame of it.

        ``start``, ``end``: "earliest", "latest", a time, a group's position or offsets, see
        ``rmq_ray.protocol.scan.scan_positions``. All of it lies in this process's memory: a plan of
        more than ``rows_max`` rows is refused with ``ClientError`` before anything is read. Raises
        ``TopicNotFound``, ``OffsetOutOfRange`` and ``ClusterError`` as reading into Spark does. The
        segments are kept from retention until it returns.
        """
        check_topic(topic)
        import pyarrow as pa

        from rmq_ray.codec.arrow_reader import to_batch

        empty = to_batch(
            topic, "", b"", [], columns
        )  # also checks the columns, before anything is asked for
        batches = []
        with plan_scan(
            self._discovery, topic, start, end, 1, getattr(self._discovery, "broker_names", tuple)()
        ) as plan:
            if plan.rows > rows_max:
                raise ClientError(
                    f"topic {topic!r} has {plan.rows} messages there, more than "
                    f"rows_max={rows_max}: read a part, or use Spark or Ray Data",
                    plan.rows,
                )
            reader = open_reader(plan)
            try:
                for split in plan.splits:
                    for records, sizes in reader.read(split, CHUNK_BYTES):
                        batches.append(
                            to_batch(topic, split.queue.broker_name, records, sizes, columns)
                        )
            finally:
                reader.close()
        return pa.Table.from_batches(batches or [empty])
