"""A nightly job on a topic that is a table: everything in, small files into large ones, old days
out, compared with the log; then a report by DuckDB, which knows nothing of brokers.

    python -m examples.nightly

Run it from cron or as a Ray job. A message that is sent while it runs is in the next night's report
at the latest; each is in one report only, because a report is "as of" the flush.
"""

from __future__ import annotations

import json
import tempfile
from pathlib import Path

import duckdb
import ray

import rmq_ray as rmq

SALES = "sales"
COLUMNS = {"shop": "string", "cents": "long"}
KEEP_DAYS = 90
Report = list[tuple[str, int, int]]


def sell(mq: rmq.Cluster, shops: int, each: int) -> None:
    """Shop n sells ``each`` things for n cents, and one body is a mistake."""
    with mq.producer("till") as producer:
        for shop in range(shops):
            body = json.dumps({"shop": f"shop-{shop}", "cents": shop}).encode()
            producer.send_batch(SALES, [body] * each)
        producer.send(SALES, b"the till was on fire")


def night(mq: rmq.Cluster, topic: str, folder: Path) -> Report:
    """(shop, sales, cents) of all that is in the table now. ``SystemExit`` where table and log
    differ.
    """
    mq.tables.flush(topic)
    mq.tables.compact(topic)
    mq.tables.expire(topic, KEEP_DAYS * 86_400)
    if not all(row["equal"] for row in mq.tables.verify(topic)):
        raise SystemExit(f"the table of {topic} has not what its log has")
    query = f"""select shop, count(*), sum(cents)::bigint from '{folder}/day=*/*.parquet'
                group by shop order by shop"""
    return duckdb.sql(query).fetchall()


def main(cluster: str, shops: int = 3, each: int = 200) -> tuple[Report, int]:
    """The report of the second night, and how many bodies were no sale."""
    mq = rmq.connect(cluster)
    mq.admin.create_topic(SALES, queues=2)
    with tempfile.TemporaryDirectory(prefix="rmq-ray-nightly-") as directory:
        folder = Path(directory) / SALES
        mq.tables.create(SALES, str(folder), decode="json", columns=COLUMNS)
        for _ in range(2):
            sell(mq, shops, each)
            report = night(mq, SALES, folder)
        rejected = mq.tables.describe(SALES)["rejected_rows"]
        mq.tables.drop(SALES)
    for shop, sales, cents in report:
        print(f"{shop}: {sales} sales, {cents} cents")
    print(f"{rejected} bodies were no sale, kept with their reasons")
    return report, rejected


if __name__ == "__main__":
    ray.init(address="local", include_dashboard=False, log_to_driver=False)
    with tempfile.TemporaryDirectory(prefix="rmq-ray-nightly-") as store:
        started = rmq.start("nightly", store_path=store)
        main(started.name)
        started.stop()
