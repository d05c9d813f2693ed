"""A topic's table in a Spark where rmq_ray cannot be imported, plain Parquet and Iceberg, by the
nightly job and by a query; and in ours with the log behind it. RMQ_RAY_SPARK_PYTHON: the
interpreter of another Spark (``tools.window``).
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

import rmq_ray as rmq
from rmq_ray import spark as mqs
from rmq_ray.clock import SYSTEM_CLOCK
from rmq_ray.errors import SparkError
from rmq_ray.spark.java import ensure_java
from rmq_ray.table.actor import open_target
from tests.support.outcomes import judging

pytestmark = pytest.mark.filterwarnings("ignore:Exception ignored in. <socket")
NIGHTLY = (Path(__file__).parents[2] / "examples" / "nightly_spark.py").read_text("utf-8")
SUM = """
import sys
from pyspark.sql import SparkSession
from pyspark.sql import functions as f
rows = SparkSession.builder.getOrCreate().read.parquet(sys.argv[1] + "/day=*")
bodies = f.sum(f.col("body").cast("string").cast("long"))
found = rows.agg(f.count("*"), bodies, f.countDistinct("broker", "queue_id", "queue_offset"))
print("FOUND", *found.first(), rows.schema["store_ts"].dataType.simpleString())
"""
REWRITE = """
import sys
from pyspark.sql import SparkSession
spark = SparkSession.builder.getOrCreate()
iceberg = spark._jvm.org.apache.iceberg
name = ".".join(f"`{word}`" for word in sys.argv[1].split("."))
table = iceberg.spark.Spark3Util.loadIcebergTable(spark._jsparkSession, name)
action = iceberg.spark.actions.SparkActions.get(spark._jsparkSession).rewriteDataFiles(table)
done = action.option("rewrite-all", "true").execute()
print("REWRITTEN", done.rewrittenDataFilesCount(), done.addedDataFilesCount())
"""
CLEAN = """
import contextlib, io, json, os, sys
sys.modules["rmq_ray"] = None  # to import it is an error
answers = os.fdopen(os.dup(1), "w")
os.dup2(2, 1)  # whatever else the JVM writes
for line in sys.stdin:
    program, *sys.argv[1:] = json.loads(line)
    with contextlib.redirect_stdout(io.StringIO()) as said:
        exec(program, {"__name__": "__main__"})
    print(json.dumps(said.getvalue()), file=answers, flush=True)
"""
COLUMNS = {"shop": "string", "cents": "long"}
TWO_DAYS_MS = 2 * 86_400_000


class Elsewhere:
    """An interpreter without our code that runs one program after the other, over one JVM."""

    def __init__(self, errors: Path) -> None:
        self._errors = errors
        self._process: subprocess.Popen[str] | None = None

    def run(self, program: str, *words: str) -> str:
        """What it prints. Skipped without Java, or where its packages cannot be fetched."""
        required = os.environ.get("RMQ_RAY_JAVA_REQUIRED")
        try:
            ensure_java()
        except SparkError as error:
            if required:
                raise
            pytest.skip(str(error))
        process = self._process = self._process or self._start()
        assert process.stdin and process.stdout
        process.stdin.write(json.dumps([program, *words]) + "\n")
        process.stdin.flush()
        said = process.stdout.readline()
        if not said:
            self.close()
            told = self._errors.read_text()
            if "unresolved dependency" in told and not required:
                pytest.skip("Iceberg's package for Spark cannot be fetched here")
            pytest.fail(told[-3_000:])
        return str(json.loads(said))

    def _start(self) -> subprocess.Popen[str]:
        with self._errors.open("w") as errors:
            return subprocess.Popen(
                [os.environ.get("RMQ_RAY_SPARK_PYTHON", sys.executable), "-I", "-c", CLEAN],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
                env={
                    **os.environ,
                    "SPARK_LOCAL_IP": "127.0.0.1",
                    "PYSPARK_SUBMIT_ARGS": "--conf spark.ui.enabled=false pyspark-shell",
                },
            )

    def close(self) -> None:
        """It ends when it can read no more."""
        if self._process is not None:
            self._process.communicate(timeout=60)
            self._process = None


@pytest.fixture(scope="module")
def elsewhere(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Elsewhere]:
    """The first job that names packages for the JVM must be the first at all."""
    made = Elsewhere(tmp_path_factory.mktemp("elsewhere") / "errors")
    yield made
    made.close()


def sell(mq: rmq.Cluster, topic: str) -> None:
    """50 things in each of 3 shops, and what is no sale."""
    with mq.producer() as producer:
        for shop in range(3):
            body = json.dumps({"shop": f"shop-{shop}", "cents": shop + 1}).encode()
            producer.send_batch(topic, [body] * 50)
        producer.send(topic, b"no sale")
    mq.tables.flush(topic)


def check_after_a_compaction_of_sparks(mq: rmq.Cluster, topic: str) -> None:
    """Its files are the table's: they are read, compared, and not swept when they are old."""
    target = open_target(mq.tables.spec(topic), "sweeper")
    theirs = [one for one in target.files() if one.queue_id < 0]
    with judging():
        target.sweep(SYSTEM_CLOCK.now_ms() + TWO_DAYS_MS)
        assert theirs and all(target.storage.read_whole(one.path) for one in theirs)
        assert mq.tables.to_arrow(topic, source="table").num_rows == 302
        assert all(row["equal"] for row in mq.tables.verify(topic))


@pytest.mark.parametrize("catalog", [True, False], ids=["iceberg", "parquet"])
def test_a_spark_without_our_code_reports_each_sale_once_and_again_the_same(
    mq: rmq.Cluster, elsewhere: Elsewhere, tmp_path: Path, catalog: bool
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
        assert "shop-2" in elsewhere.run(NIGHTLY, day, str(report), *where)
    found = pq.read_table(report).group_by("shop").aggregate([("sales", "sum"), ("cents", "sum")])
    with judging():
        assert sorted(tuple(row.values()) for row in found.to_pylist()) == [
            (f"shop-{shop}", 100, 100 * (shop + 1)) for shop in range(3)
        ]
    if catalog:
        rewritten = elsewhere.run(REWRITE, where[0]).split()
        assert rewritten[0] == "REWRITTEN" and int(rewritten[1]) >= int(rewritten[2]) > 0
        check_after_a_compaction_of_sparks(mq, topic)
    mq.tables.drop(topic)


def test_spark_without_our_code_and_with_it_sum_the_same_rows(
    session: Any, mq: rmq.Cluster, elsewhere: Elsewhere, tmp_path: Path
) -> None:
    mq.admin.create_topic("summed", queues=2)
    mq.tables.create("summed", str(tmp_path / "t"))
    with mq.producer() as producer:
        producer.send_batch("summed", [b"%d" % n for n in range(400)])
        producer.send_batch("summed", [b"%d" % n for n in range(400, 800)])
        mq.tables.flush("summed")
        mq.tables.pause("summed")
        producer.send_batch("summed", [b"%d" % n for n in range(800, 1_000)])
    said = elsewhere.run(SUM, str(tmp_path / "t"))
    both = mqs.read_topic(session, "summed", source="table+log", cluster=mq.name)
    tables = mqs.read_topic(session, "summed", source="table", kafka_compat=True, cluster=mq.name)
    with judging():
        assert "FOUND 800 319600 800 timestamp" in said
        assert sorted(int(row.body) for row in both.select("body").collect()) == list(range(1_000))
        assert tables.count() == 800
    mq.tables.drop("summed")
