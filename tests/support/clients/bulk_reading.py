"""Bulk reads without Spark: a plan's rows as an Arrow table, the same through the scan stream
alone, and a foreign client's send.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pyarrow as pa

from rmq_ray.client.scan.scan_plan import ScanPlan, open_reader
from rmq_ray.clock import SYSTEM_CLOCK
from rmq_ray.codec.arrow.arrow_reader import to_batch
from rmq_ray.config import RemotingLimits
from rmq_ray.model.arrow import COLUMNS, SCHEMA
from rmq_ray.model.ids import Address
from rmq_ray.model.message import SysFlag
from rmq_ray.remoting.connection import Connection
from rmq_ray.remoting.handshake import Credentials
from rmq_ray.remoting.wire.codes import RequestCode
from rmq_ray.remoting.wire.frame import Command
from rmq_ray.remoting.wire.headers import SendHeader

CHUNK_BYTES = 50_000


def elsewhere(plan: ScanPlan) -> ScanPlan:
    """The plan as a reader on another machine sees it: nothing lies beside it, the stream
    must do.
    """
    return replace(
        plan, splits=tuple(replace(split, host_id="another host") for split in plan.splits)
    )


def table_of(
    plan: ScanPlan,
    columns: Sequence[str] = COLUMNS,
    chunk_bytes: int = CHUNK_BYTES,
    after_chunk: Callable[[], None] = lambda: None,
) -> pa.Table:
    """All rows, by one reader, splits in their order."""
    reader = open_reader(plan)
    batches = []
    try:
        for split in plan.splits:
            for records, sizes in reader.read(split, chunk_bytes):
                batches.append(
                    to_batch(split.queue.topic, split.queue.broker_name, records, sizes, columns)
                )
                after_chunk()
    finally:
        reader.close()
    return pa.Table.from_batches(batches, pa.schema([SCHEMA.field(name) for name in columns]))


def offsets(table: pa.Table) -> dict[tuple[str, int], list[int]]:
    """(broker, queue id) -> queue offsets in the order in which they came."""
    found: dict[tuple[str, int], list[int]] = {}
    for broker, queue_id, offset in zip(
        *(table[name].to_pylist() for name in ("broker", "queue_id", "queue_offset")), strict=True
    ):
        found.setdefault((broker, queue_id), []).append(offset)
    return found


def send_compressed(
    address: Address, cluster: str, secret: bytes, topic: str, body: bytes, queue_id: int = 0
) -> Command:
    """SEND_MESSAGE (10) of a body that the client compressed, as Apache RocketMQ's Java client does
    above 4 KiB.
    """
    connection = Connection(
        address, Credentials(cluster, "broker", secret), RemotingLimits(), SYSTEM_CLOCK
    )
    try:
        header = SendHeader(
            producer_group="foreign",
            topic=topic,
            default_topic="TBW102",
            default_topic_queues=4,
            queue_id=queue_id,
            sys_flag=SysFlag.COMPRESSED,
            born_ms=SYSTEM_CLOCK.now_ms(),
            flag=0,
            properties="UNIQ_KEY\x01" + "F" * 32 + "\x02TAGS\x01zipped",
        )
        answer: Any = connection.request(
            Command(RequestCode.SEND_MESSAGE, fields=header.to_fields(), body=zlib.compress(body)),
            10_000,
        )
        assert answer.code == 0, answer.remark
        return answer
    finally:
        connection.close()
