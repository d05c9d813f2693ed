"""A topic's table in Spark: by a session of its own that has none of our code, and by ours with the
log behind it.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import rmq_ray as rmq
from rmq_ray import spark as mqs
from tests.support.outcomes import judging

pytestmark = pytest.mark.filterwarnings("ignore:Exception ignored in. <socket")
FOREIGN = """
import sys
from pyspark.sql import SparkSession
from pyspark.sql import functions as f
assert "rmq_ray" not in sys.modules
session = (
    SparkSession.builder.master("local[1]")
    .config("spark.ui.enabled", False)
    .config("spark.driver.bindAddress", "127.0.0.1")
    .config("spark.driver.host", "127.0.0.1")
    .getOrCreate()
)
rows = session.read.parquet(sys.argv[1] + "/day=*")
bodies = f.sum(f.col("body").cast("string").cast("long"))
found = rows.agg(f.count("*"), bodies, f.countDistinct("broker", "queue_id", "queue_offset"))
print("FOUND", *found.first(), rows.schema["store_ts"].dataType.simpleString())
"""


def test_spark_without_our_code_and_with_it_sum_the_same_rows(
    session: Any, mq: rmq.Cluster, tmp_path: Path
) -> None:
    mq.admin.create_topic("summed", queues=2)
    mq.tables.create("summed", str(tmp_path / "t"))
    with mq.producer() as producer:
        producer.send_batch("summed", [b"%d" % n for n in range(400)])
        producer.send_batch("summed", [b"%d" % n for n in range(400, 800)])
        mq.tables.flush("summed")
        mq.tables.pause("summed")
        producer.send_batch("summed", [b"%d" % n for n in range(800, 1_000)])
    done = subprocess.run(
        [sys.executable, "-I", "-c", FOREIGN, str(tmp_path / "t")],
        capture_output=True,
        text=True,
        timeout=300,
        env=dict(os.environ),
        check=False,
    )
    assert "FOUND" in done.stdout, done.stderr[-2_000:]
    both = mqs.read_topic(session, "summed", source="table+log", cluster=mq.name)
    tables = mqs.read_topic(session, "summed", source="table", kafka_compat=True, cluster=mq.name)
    with judging():
        assert "FOUND 800 319600 800 timestamp" in done.stdout
        assert sorted(int(row.body) for row in both.select("body").collect()) == list(range(1_000))
        assert tables.count() == 800
    mq.tables.drop("summed")
