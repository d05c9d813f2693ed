"""A nightly Spark job in an environment of its own, which has pyspark and nothing of rmq_ray: what
each shop sold on a day, from the table of a topic, read as plain Parquet or through its Iceberg
catalog.

    pip install pyspark==3.5.7    # or 4.0.1
    python nightly_spark.py 2026-11-25 /data/report /data/sales
    python nightly_spark.py 2026-11-25 /data/report lake.default.sales \
        --catalog jdbc:sqlite:/data/catalog.db

A day that is run again replaces its report. The table has all of a day when `rmq-ray table flush`
returned after its end (UTC), or `max_lag_s` later. ``sales`` is a table as ``examples/nightly.py``
makes it: declared columns ``shop`` and ``cents``.
"""

from __future__ import annotations

import argparse
import json
from typing import Any

from pyspark import __version__
from pyspark.sql import SparkSession
from pyspark.sql import functions as f

RUNTIME = "iceberg-spark-runtime-" + ("3.5_2.12" if __version__ < "4" else "4.0_2.13")
PACKAGES = f"org.apache.iceberg:{RUNTIME}:1.10.0,org.xerial:sqlite-jdbc:3.50.3.0"
REJECTED = 8
"""Field of a file's row in ``_rmq/offsets.json``: rows that did not fit the declared columns."""


def session(catalog: str, table: str) -> SparkSession:
    """With the Iceberg catalog where one is named: the table's first word is its name there, too,
    as it is in the catalog that `rmq-ray table create --catalog name=lake,...` was given.
    """
    builder = SparkSession.builder.appName("nightly").config("spark.sql.session.timeZone", "UTC")
    if catalog:
        name = f"spark.sql.catalog.{table.partition('.')[0]}"
        builder = builder.config("spark.jars.packages", PACKAGES)
        builder = builder.config(name, "org.apache.iceberg.spark.SparkCatalog")
        builder = builder.config(f"{name}.type", "jdbc").config(f"{name}.uri", catalog)
        builder = builder.config(f"{name}.warehouse", "unused")  # tables have their own locations
    return builder.getOrCreate()


def sold(spark: SparkSession, table: str, day: str, catalog: str) -> Any:
    """The rows that were stored on a day; None where there are none."""
    if catalog:  # the catalog's partitions are days of store_ts, so other days are not read
        begin = f.lit(f"{day} 00:00:00").cast("timestamp")
        end = begin + f.expr("interval 1 day")
        quoted = ".".join(f"`{word}`" for word in table.split("."))  # topics may have a "-"
        return spark.table(quoted).where((f.col("store_ts") >= begin) & (f.col("store_ts") < end))
    # what counts is said by the manifest; a glob over day=*/ may see a file too early or too late
    manifest = spark.read.text(f"{table}/_rmq/offsets.json", wholetext=True).first()
    assert manifest is not None  # it has one row
    files = json.loads(manifest.value)["files"]
    paths = [f"{table}/{row[0]}" for row in files if row[1] == day and not row[REJECTED]]
    return spark.read.option("mergeSchema", True).parquet(*paths) if paths else None


def main() -> None:
    """See the module."""
    asked = argparse.ArgumentParser(description="What each shop sold on a day.")
    asked.add_argument("day", help="UTC, like 2026-11-25")
    asked.add_argument("report", help="folder; day=... in it is replaced")
    asked.add_argument("table", help="a folder, or catalog.namespace.table with --catalog")
    asked.add_argument("--catalog", default="", help="of Iceberg, like jdbc:sqlite:/data/c.db")
    given = asked.parse_args()
    spark = session(given.catalog, given.table)
    rows = sold(spark, given.table, given.day, given.catalog)
    if rows is None:
        print(f"nothing was sold on {given.day}")
        return
    shops = rows.groupBy("shop").agg(f.count("*").alias("sales"), f.sum("cents").alias("cents"))
    out = f"{given.report}/day={given.day}"
    shops.coalesce(1).write.mode("overwrite").parquet(out)
    spark.read.parquet(out).orderBy("shop").show()


if __name__ == "__main__":
    main()
