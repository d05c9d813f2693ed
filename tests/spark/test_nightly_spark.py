"""The nightly Spark job runs where rmq_ray cannot be imported, on plain Parquet and on Iceberg."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pyarrow.parquet as pq
import pytest

import rmq_ray as rmq
from rmq_ray.errors import SparkError
from rmq_ray.spark.java import ensure_java
from tests.support.outcomes import judging

PROGRAM = Path(__file__).parents[2] / "examples" / "nightly_spark.py"
CLEAN = """
import runpy, sys
sys.modules["rmq_ray"] = None  # to import it is an error
runpy.run_path(sys.argv.pop(1), run_name="__main__")
"""
COLUMNS = {"shop": "string", "cents": "long"}


def run(*words: str) -> str:
    """What the job prints. Skipped without Java, or where its packages cannot be fetched."""
    required = os.environ.get("RMQ_RAY_JAVA_REQUIRED")
    try:
        ensure_java()
    except SparkError as error:
        if required:
            raise
        pytest.skip(str(error))
    done = subprocess.run(
        [sys.executable, "-I", "-c", CLEAN, str(PROGRAM), *words],
        capture_output=True,
        text=True,
        timeout=300,
        env={**os.environ, "SPARK_LOCAL_IP": "127.0.0.1"},
        check=False,
    )
    if "unresolved dependency" in done.stderr and not required:
        pytest.skip("Iceberg's package for Spark cannot be fetched here")
    assert done.returncode == 0, done.stderr[-3_000:]
    return done.stdout


def sell(mq: rmq.Cluster, topic: str) -> None:
    """50 things in each of 3 shops, and what is no sale."""
    with mq.producer() as producer:
        for shop in range(3):
            body = json.dumps({"shop": f"shop-{shop}", "cents": shop + 1}).encode()
            producer.send_batch(topic, [body] * 50)
        producer.send(topic, b"no sale")
    mq.tables.flush(topic)


@pytest.mark.parametrize("catalog", [False, True], ids=["parquet", "iceberg"])
def test_a_spark_without_our_code_reports_each_sale_once_and_again_the_same(
    mq: rmq.Cluster, tmp_path: Path, catalog: bool
) -> None:
    topic, report = f"sold-{catalog}", tmp_path / "report"
    mq.admin.create_topic(topic, queues=2)
    named = {"name": "lake", "type": "sql", "uri": f"sqlite:///{tmp_path}/catalog.db"}
    mq.tables.create(
        topic,
        str(tmp_path / "t"),
        decode="json",
        columns=COLUMNS,
        catalog=named if catalog else None,
    )
    sell(mq, topic)
    sell(mq, topic)
    mq.tables.compact(topic)
    stored = mq.tables.to_arrow(topic, columns=["store_ts"])["store_ts"].to_pylist()
    days = sorted({str(at.date()) for at in stored})
    where = [str(tmp_path / "t")]
    if catalog:
        where = [f"lake.default.{topic}", "--catalog", f"jdbc:sqlite:{tmp_path}/catalog.db"]
    for day in [*days, days[0]]:
        assert "shop-2" in run(day, str(report), *where)
    found = pq.read_table(report).group_by("shop").aggregate([("sales", "sum"), ("cents", "sum")])
    with judging():
        assert sorted(tuple(row.values()) for row in found.to_pylist()) == [
            (f"shop-{shop}", 100, 100 * (shop + 1)) for shop in range(3)
        ]
    mq.tables.drop(topic)
