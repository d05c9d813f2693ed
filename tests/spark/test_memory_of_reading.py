"""What a large read costs the driver: nothing that grows with the rows. ``python -m benchmarks
flat`` does the same with 20 million.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import rmq_ray as rmq
from rmq_ray import spark as mqs
from tests.support.outcomes import judging

pytestmark = pytest.mark.filterwarnings(
    "ignore:Exception ignored in. <socket"
)  # pyspark leaves the sockets of collect() to the garbage collector
ROWS, TIMES, SIZE = 25_000, 6, 1_024
GROWTH_MAX = 48 << 20
"""A third of what is read."""


def test_a_read_of_150_mb_leaves_the_drivers_memory_as_it_was(
    session: Any, mq: rmq.Cluster
) -> None:
    mq.admin.create_topic("many", queues=2)
    table = pa.table({"body": [b"%08d" % number * (SIZE // 8) for number in range(ROWS)]})
    with rmq.Producer("many", cluster=mq.name, send_timeout_ms=30_000) as p:
        for _ in range(TIMES):
            p.send_arrow("many", table, body="body")
    del table
    check_all_is_read(session, mq)
    before = driver_bytes(session)
    for _ in range(2):
        check_all_is_read(session, mq)
    assert driver_bytes(session) - before < GROWTH_MAX


@judging()
def check_all_is_read(session: Any, mq: rmq.Cluster) -> None:
    """The bytes of all bodies, each of which goes through a worker and the executor."""
    row: Any = (
        mqs.read_topic(session, "many", columns=["body"], cluster=mq.name)
        .selectExpr("sum(length(body)) as bytes")
        .first()
    )
    assert int(row["bytes"]) == ROWS * TIMES * SIZE


def driver_bytes(session: Any) -> int:
    """Private memory of this process, and what its JVM holds after a collection."""
    runtime = session.sparkContext._jvm.java.lang.Runtime.getRuntime()
    runtime.gc()
    lines = Path(f"/proc/{os.getpid()}/status").read_text().splitlines()
    own = next(int(line.split()[1]) << 10 for line in lines if line.startswith("RssAnon:"))
    return own + int(runtime.totalMemory() - runtime.freeMemory())
