"""DataFrames into topics, batches of groups, streams both ways, on RayDP: each row once, restarts
included.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import rmq_ray as rmq
from rmq_ray import spark as mqs
from tests.support.outcomes import judging

pytestmark = pytest.mark.filterwarnings(
    "ignore:Exception ignored in. <socket"
)  # pyspark leaves the sockets of collect() to the garbage collector


def numbers(session: Any, low: int, high: int) -> Any:
    """Rows whose key, tag and properties follow from their body."""
    from pyspark.sql import functions as f

    number = f.col("id").cast("string")
    labels = f.create_map(
        f.lit("n"), number, f.lit("half"), (f.col("id") / 2).cast("int").cast("string")
    )
    return session.range(low, high, 1, 3).select(
        number.alias("body"),
        f.array(f.concat(f.lit("k"), number)).alias("k"),
        f.lit("even").alias("t"),
        labels.alias("p"),
    )


def bodies(session: Any, topic: str) -> list[int]:
    return sorted(
        int(bytes(row[0])) for row in mqs.read_topic(session, topic, columns=["body"]).collect()
    )


def send(topic: str, low: int, high: int) -> None:
    with rmq.Producer("streams") as p:
        p.send_batch([rmq.Message(topic, b"%d" % n) for n in range(low, high)])


def test_rows_arrive_with_key_tag_and_properties_and_a_repeated_write_of_one_name_counts_once(
    session: Any, mq: rmq.Cluster
) -> None:
    mq.admin.create_topic("written", queues=2)
    told: list[int] = []
    assert (
        mqs.write_topic(
            numbers(session, 0, 500),
            "written",
            key="k",
            tag="t",
            properties="p",
            progress=told.append,
        )
        == 500
    )
    assert told[-1] == 500
    rows = mqs.read_topic(session, "written").collect()
    with judging():
        assert {
            (bytes(row.body), *row["keys"], row.tag, row.properties["n"], row.properties["half"])
            for row in rows
        } == {(b"%d" % n, f"k{n}", "even", str(n), str(n // 2)) for n in range(500)}
    for partitions in (1, 5):  # the same rows, laid out in another way
        again = numbers(session, 500, 900).repartition(partitions)
        assert (
            mqs.write_topic(again, "written", key="k", tag="t", properties="p", once="job/1") == 400
        )
    with judging():
        assert bodies(session, "written") == list(range(900))


def test_wrong_columns_and_rows_are_typed_errors(session: Any, mq: rmq.Cluster) -> None:
    rows = numbers(session, 0, 10)
    with pytest.raises(rmq.SparkError, match="no column of that name; it has body, k, t, p"):
        mqs.write_topic(rows, "wrong", body="value")
    with pytest.raises(
        rmq.SparkError,
        match=r"key='p' is of type map<string,string>; it must be string or array<string>",
    ):
        mqs.write_topic(rows, "wrong", key="p")
    with pytest.raises(rmq.SparkError, match="properties='t' is of type string"):
        mqs.write_topic(rows, "wrong", properties="t")
    with pytest.raises(rmq.SparkError, match="MessageIllegal: column 'body', row 0 is null"):
        mqs.write_topic(session.sql("select cast(null as string) as body"), "wrong")
    with pytest.raises(rmq.TopicNotFound, match="nobody-made-it"):
        mqs.write_topic(rows, "nobody-made-it", once="job/2")
    with pytest.raises(rmq.SparkError, match="takes a streaming DataFrame"):
        mqs.write_stream_topic(rows, "wrong", checkpoint="x")


def test_a_batch_moves_its_group_when_the_block_succeeded_and_only_then(
    session: Any, mq: rmq.Cluster
) -> None:
    mq.admin.create_topic("nightly", queues=2)
    send("nightly", 0, 100)
    with (
        pytest.raises(ValueError, match="full"),
        mqs.batch(session, "nightly", group="night") as new,
    ):
        with judging():
            assert new.df.count() == new.rows == 100
        raise ValueError("the sink is full")
    for low, high in ((0, 100), (100, 150)):
        with mqs.batch(session, "nightly", group="night", columns=["body"]) as new:
            send("nightly", high, high + 50)  # later: of the next batch
            came = sorted(int(bytes(row[0])) for row in new.df.collect())
            with judging():
                assert came == list(range(low, high))
    assert sum(row["lag"] for row in mq.admin.group_lag("night")) == 50
    with mqs.batch(session, "nightly", group="night") as new:
        pass
    with mqs.batch(session, "nightly", group="night") as new:
        assert new.rows == 0 and new.df.count() == 0


def test_a_loop_over_batches_goes_on_where_it_was_and_its_lag_is_seen(
    session: Any, mq: rmq.Cluster, tmp_path: Path
) -> None:
    mq.admin.create_topic("looped", queues=2)
    send("looped", 0, 100)
    seen: list[tuple[int, list[int]]] = []

    def keep(df: Any, number: int) -> None:
        seen.append((number, sorted(int(bytes(row[0])) for row in df.collect())))

    stream = mqs.read_stream(
        session, "looped", group="loop", columns=["body"], max_rows_per_trigger=60
    )
    assert stream.foreach_batch(keep, checkpoint=tmp_path, available_now=True).await_termination(
        120
    )
    send("looped", 100, 130)
    running = stream.foreach_batch(keep, checkpoint=tmp_path, trigger_seconds=0.5)
    try:
        from tests.support.waiting import eventually

        eventually(lambda: len(seen) == 3, 60)
    finally:
        running.stop()
    with judging():
        assert sorted(n for _, rows in seen for n in rows) == list(range(130))
    assert [(number, len(rows)) for number, rows in seen] == [(0, 60), (1, 40), (2, 30)]
    assert {row["lag"] for row in mq.admin.group_lag("loop")} == {0}
    with pytest.raises(rmq.SparkError, match="belongs to a stream of looped"):
        mqs.read_stream(session, "nightly").foreach_batch(keep, checkpoint=tmp_path)
    (tmp_path / "file").touch()
    for wrong in (tmp_path / "file", "nosuchscheme://x/y"):
        with pytest.raises(
            rmq.SparkError, match=r"the checkpoint .* cannot be .*Exception.*; give a directory"
        ):
            mqs.read_stream(session, "nightly").foreach_batch(keep, checkpoint=wrong)


def test_a_streaming_sink_that_fails_behind_its_write_stores_every_row_once(
    session: Any, mq: rmq.Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from rmq_ray.spark import stream as streams

    for topic in ("source", "sink"):
        mq.admin.create_topic(topic, queues=2)
    send("source", 0, 300)
    write, calls = streams.write_topic, []

    def written_then_failing(df: Any, *arguments: Any, **settings: Any) -> int:
        count = write(df, *arguments, **settings)
        calls.append(settings["once"].write)
        if len(calls) == 2:
            raise OSError("the driver fell over")
        return count

    monkeypatch.setattr(streams, "write_topic", written_then_failing)

    def run() -> Any:
        df = mqs.read_stream(
            session, "source", columns=["body"], max_rows_per_trigger=100
        ).dataframe()
        query = mqs.write_stream_topic(
            df, "sink", checkpoint=str(tmp_path), available_now=True, partitions=2
        )
        return query.awaitTermination(120)

    with pytest.raises(Exception, match="the driver fell over"):
        run()
    assert run()
    with judging():
        assert bodies(session, "sink") == list(range(300))
    assert len(calls) == 4 and calls[1] == calls[2]
