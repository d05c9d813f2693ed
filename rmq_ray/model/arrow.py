"""The columns of messages in Arrow, Spark, Ray Data and pandas. The one place that names them."""

from __future__ import annotations

import pyarrow as pa

TIME = pa.timestamp("us", "UTC")

SCHEMA = pa.schema(
    [
        ("topic", pa.string()),
        ("broker", pa.string()),
        ("queue_id", pa.int32()),
        ("queue_offset", pa.int64()),
        (
            "message_id",
            pa.string(),
        ),  # the producer's unique key, else store host and log offset as 32 hex digits
        ("keys", pa.list_(pa.string())),  # empty list without keys
        ("tag", pa.string()),  # null without a tag
        (
            "properties",
            pa.map_(pa.string(), pa.string()),
        ),  # the user's own; none of RocketMQ's reserved names
        ("body", pa.binary()),  # uncompressed; null where a compressed body cannot be read
        ("born_ts", TIME),
        ("store_ts", TIME),
        ("reconsume_times", pa.int32()),
    ]
)

COLUMNS: tuple[str, ...] = tuple(SCHEMA.names)
