"""Structured Streaming over topics on RayDP: joins, windows and watermarks as Spark defines them,
over restarts and several batches.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

import rmq_ray as rmq
from rmq_ray import spark as mqs
from rmq_ray.cli.main import main
from tests.support.outcomes import judging
from tests.support.waiting import eventually

pytestmark = pytest.mark.filterwarnings(
    "ignore:Exception ignored in. <socket"
)  # pyspark leaves the sockets of collect() to the garbage collector
WAIT_S = 120
# s; at 0 stands the watermark of a join that has seen nothing, and what is not later than that is
# late
T0 = 1_000


def send(topic: str, events: list[tuple[int, int]]) -> None:
    """Each event: (id, s since the epoch)."""
    with rmq.Producer("events") as p:
        p.send_batch([rmq.Message(topic, b"%d@%d" % event) for event in events])


def events(session: Any, topic: str, prefix: str, **settings: Any) -> Any:
    """A stream of (id, at) of a topic; the columns begin with ``prefix``."""
    raw = mqs.read_stream(session, topic, columns=["body"], **settings).dataframe()
    return raw.selectExpr("split(string(body), '@') as p").selectExpr(
        f"int(p[0]) as {prefix}_id", f"timestamp_seconds(int(p[1])) as {prefix}_at"
    )


def drained(query: Any) -> list[dict[str, Any]]:
    """The progress of all its batches, when a query that was started with available-now has
    ended.
    """
    assert query.awaitTermination(WAIT_S)
    return [
        json.loads(progress) if isinstance(progress, str) else progress
        for progress in query.recentProgress
    ]


def lag(group: str) -> int:
    """As the command line shows it."""
    done = CliRunner().invoke(main, ["--format", "json", "group", "lag", group])
    if done.exit_code and "no broker knows the consumer group" in done.output:
        return 1_000_000  # it has not begun
    assert done.exit_code == 0, done.output
    return sum(row["lag"] for row in json.loads(done.stdout))


def test_two_topics_are_joined_in_time_and_rows_without_a_partner_come_when_the_watermark_passed(
    session: Any, mq: rmq.Cluster, tmp_path: Path
) -> None:
    from pyspark.sql import functions as f

    for topic in ("views", "clicks"):
        mq.admin.create_topic(topic, queues=2)

    def join(rows_max: int | None) -> list[dict[str, Any]]:
        """Views with the clicks of the next 10 s; what is new since the last call."""
        views = events(session, "views", "v", max_rows_per_trigger=rows_max).withWatermark(
            "v_at", "20 seconds"
        )
        clicks = events(session, "clicks", "c", group="clicks-joined").withWatermark(
            "c_at", "20 seconds"
        )
        near = f.expr("c_id = v_id and c_at >= v_at and c_at <= v_at + interval 10 seconds")
        found = views.join(clicks, near, "leftOuter").select("v_id", "c_at")
        writer = (
            found.writeStream.format("parquet")
            .option("path", str(tmp_path / "joined"))
            .option("checkpointLocation", str(tmp_path / "checkpoint"))
        )
        return drained(writer.trigger(availableNow=True).start())

    # of 100 views the even ones are clicked after 5 s, of the others every third too late
    send("views", [(n, T0 + n) for n in range(60)])
    send("clicks", [(n, T0 + n + 5) for n in range(0, 30, 2)])
    first = join(40)
    sizes = [
        source["numInputRows"]
        for batch in first
        for source in batch["sources"]
        if "views" in source["description"]
    ]
    assert sum(sizes) == 60 and max(sizes) <= 40
    send(
        "clicks",
        [(n, T0 + n + 5) for n in range(30, 100, 2)] + [(n, T0 + n + 15) for n in range(1, 100, 6)],
    )
    send("views", [(n, T0 + n) for n in range(60, 100)])
    for topic in ("views", "clicks"):  # time goes on, on both sides
        send(topic, [(10_000, T0 + 1_000)])
    join(None)
    rows = [
        (row.v_id, row.c_at and int(row.c_at.timestamp()))
        for row in session.read.parquet(str(tmp_path / "joined")).where("v_id < 10000").collect()
    ]
    with judging():
        assert sorted(rows) == [(n, T0 + n + 5 if n % 2 == 0 else None) for n in range(100)]
    assert lag("clicks-joined") == 0


def test_windows_are_complete_when_the_watermark_passed_and_later_rows_are_dropped_as_spark_says(
    session: Any, mq: rmq.Cluster, tmp_path: Path
) -> None:
    from pyspark.sql import functions as f

    for topic in ("ticks", "per-window"):
        mq.admin.create_topic(topic, queues=2)

    def count() -> int:
        """Windows of 10 s, 10 s late at most, into a topic; how many rows were dropped."""
        ticks = events(session, "ticks", "t").withWatermark("t_at", "10 seconds")
        windows = ticks.groupBy(f.window("t_at", "10 seconds")).count()
        lines = windows.selectExpr("concat(unix_timestamp(window.start), ':', count) as body")
        batches = drained(
            mqs.write_stream_topic(
                lines, "per-window", checkpoint=tmp_path, available_now=True, partitions=1
            )
        )
        return sum(
            operator["numRowsDroppedByWatermark"]
            for batch in batches
            for operator in batch["stateOperators"]
        )

    send("ticks", [(n, n) for n in range(30)] + [(0, 100)])
    assert count() == 0
    send(
        "ticks", [(1, 5), (2, 95), (3, 200)]
    )  # the watermark is 90: the first is late, the second is not
    assert count() == 1
    send("ticks", [(4, 300)])
    assert count() == 0
    found = [
        bytes(row[0]).decode()
        for row in mqs.read_topic(session, "per-window", columns=["body"]).collect()
    ]
    with judging():
        assert sorted(found) == ["0:10", "100:1", "10:10", "200:1", "20:10", "90:1"]


def test_queues_that_are_added_are_read_and_the_lag_is_seen_while_the_stream_runs(
    session: Any, mq: rmq.Cluster, tmp_path: Path
) -> None:
    import threading

    mq.admin.create_topic("widened", queues=1)
    send("widened", [(n, n) for n in range(100)])
    go_on, seen = threading.Event(), []

    def keep(df: Any, number: int) -> None:
        assert go_on.wait(WAIT_S)
        seen.extend(int(bytes(row.body).split(b"@")[0]) for row in df.collect())

    running = mqs.read_stream(session, "widened", group="widening", columns=["body"]).foreach_batch(
        keep, checkpoint=tmp_path / "loop", trigger_seconds=0.2
    )
    query = (
        events(session, "widened", "w", group="widening-too")
        .writeStream.format("memory")
        .queryName("widened")
        .start()
    )
    try:
        eventually(lambda: lag("widening-too") == 0, WAIT_S)
        eventually(lambda: lag("widening") == 100, WAIT_S)  # nothing was through yet
        go_on.set()
        eventually(lambda: lag("widening") == 0, WAIT_S)
        mq.admin.create_topic("widened", queues=3)
        with rmq.Producer("events") as p:
            for n in range(100, 112):
                p.send(
                    "widened",
                    b"%d@%d" % (n, n),
                    queue=rmq.MessageQueue("widened", ("broker-a", "broker-b")[n % 2], n % 3),
                )
        eventually(lambda: len(seen) >= 112, WAIT_S)
        eventually(lambda: session.sql("select count(*) from widened").first()[0] >= 112, WAIT_S)
    finally:
        go_on.set()
        query.stop()
        running.stop()
    queried = sorted(row.w_id for row in session.sql("select w_id from widened").collect())
    with judging():
        assert sorted(seen) == queried == list(range(112))


def test_a_streaming_frame_can_be_queried_again_when_its_query_has_ended(
    session: Any, mq: rmq.Cluster, tmp_path: Path
) -> None:
    mq.admin.create_topic("again", queues=1)
    frame = events(session, "again", "a")
    for low in (0, 10):
        send("again", [(n, n) for n in range(low, low + 10)])
        query = (
            frame.writeStream.format("parquet")
            .option("path", str(tmp_path / "rows"))
            .option("checkpointLocation", str(tmp_path / "checkpoint"))
        )
        drained(query.trigger(availableNow=True).start())
        with judging():
            assert session.read.parquet(str(tmp_path / "rows")).count() == low + 10
    with pytest.raises(rmq.TopicNotFound, match="nobody-sent-to-it"):
        events(session, "nobody-sent-to-it", "x")
    with pytest.raises(rmq.TopicNotFound, match="nobody-made-it"):
        mqs.write_stream_topic(
            frame.selectExpr("string(a_id) as body"), "nobody-made-it", checkpoint=tmp_path / "c"
        )
