"""Topics as DataFrames: the rows that were sent, whatever way they are read, whatever dies
meanwhile.
"""

from __future__ import annotations

import importlib
import os
import random
import re
import signal
import threading
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

import rmq_ray as rmq
from rmq_ray import spark as mqs
from rmq_ray.client.scan.scan_plan import plan_scan
from rmq_ray.codec.arrow.arrow_rows import Rows
from rmq_ray.model.ids import Address
from rmq_ray.spark.read import frame_of
from tests.support.clients.bulk_reading import elsewhere, send_compressed
from tests.support.outcomes import judging
from tests.support.waiting import eventually

pytestmark = pytest.mark.filterwarnings(
    "ignore:Exception ignored in. <socket"
)  # pyspark leaves the sockets of collect() to the garbage collector
PLACE = ("broker", "queue_id", "queue_offset")


@pytest.fixture(scope="module")
def sent(mq: rmq.Cluster) -> dict[tuple[str, int, int], dict[str, Any]]:
    """400 messages of many kinds in 2 x 2 queues, and one that a foreign client compressed: place
    -> columns that the sender knows.
    """
    mq.admin.create_topic("kinds", queues=2)
    chance = random.Random(3)
    expected = {}
    with rmq.Producer("kinds", cluster=mq.name) as p:
        for number in range(400):
            keys, tag = (
                [f"k-{number}-{part}" for part in range(chance.randrange(3))],
                chance.choice((None, "paid", "früh")),
            )
            properties = {f"p{n}": f"wert ä {n}" for n in range(chance.randrange(3))}
            body = chance.randbytes(chance.choice((1, 50, 3_000)))
            result = p.send("kinds", body, tag=tag, keys=keys, properties=properties)
            place = (result.queue.broker_name, result.queue.queue_id, result.queue_offset)
            expected[place] = {
                "message_id": result.message_id,
                "keys": keys,
                "tag": tag,
                "properties": properties,
                "body": body,
            }
    found = mq.discovery.lookup()
    body = b"to be compressed " * 1_000
    answer = send_compressed(
        Address.parse(mq.addresses["broker-a"][0]), mq.name, found.secret, "kinds", body
    )
    assert answer.fields
    place = ("broker-a", 0, int(answer.fields["queueOffset"]))
    expected[place] = {
        "message_id": "F" * 32,
        "keys": [],
        "tag": "zipped",
        "properties": {},
        "body": body,
    }
    return expected


def plain(rows: list[Any]) -> dict[tuple[str, int, int], dict[str, Any]]:
    """Rows by their place, each place once."""
    found = {}
    for row in (row.asDict() for row in rows):
        row["body"] = bytes(row["body"])
        place = tuple(row.pop(name) for name in PLACE)
        with judging():
            assert place not in found
        found[place] = row
    return found


def test_the_schema_is_the_public_one(session: Any, mq: rmq.Cluster, sent: dict) -> None:
    from pyspark.sql import types as t

    text, number, time = t.StringType(), t.IntegerType(), t.TimestampType()
    assert [
        (field.name, field.dataType)
        for field in mqs.read_topic(session, "kinds", cluster=mq.name).schema
    ] == [
        ("topic", text),
        ("broker", text),
        ("queue_id", number),
        ("queue_offset", t.LongType()),
        ("message_id", text),
        ("keys", t.ArrayType(text)),
        ("tag", text),
        ("properties", t.MapType(text, text)),
        ("body", t.BinaryType()),
        ("born_ts", time),
        ("store_ts", time),
        ("reconsume_times", number),
    ]


def test_rows_are_what_was_sent_read_from_files_as_well_as_through_the_stream(
    session: Any, mq: rmq.Cluster, sent: dict
) -> None:
    beside = plain(mqs.read_topic(session, "kinds", cluster=mq.name).collect())
    now = datetime.now(UTC).replace(tzinfo=None)
    plan = plan_scan(mq.discovery, "kinds", "earliest", "latest", 6)
    assert plain(frame_of(session, elsewhere(plan)).collect()) == beside
    for place, row in beside.items():
        born, stored = row.pop("born_ts"), row.pop("store_ts")
        assert now - timedelta(minutes=5) < born <= stored <= now
        with judging():
            assert row == {"topic": "kinds", "reconsume_times": 0, **sent[place]}
    with judging():
        assert len(beside) == len(sent)


def test_positions_columns_and_queries_over_them(session: Any, mq: rmq.Cluster, sent: dict) -> None:
    queue = rmq.MessageQueue("kinds", "broker-b", 1)
    high = (
        max(offset for broker, queue_id, offset in sent if (broker, queue_id) == ("broker-b", 1))
        + 1
    )
    others = sum((broker, queue_id) != ("broker-b", 1) for broker, queue_id, _ in sent)
    df = mqs.read_topic(
        session,
        "kinds",
        start={queue: high - 5},
        end={queue: high - 2},
        columns=["tag", "queue_offset"],
        cluster=mq.name,
    )
    assert df.columns == ["tag", "queue_offset"] and df.count() == others + 3
    counted = {
        row["tag"]: row["count"]
        for row in mqs.read_topic(session, "kinds", columns=["tag"], cluster=mq.name)
        .groupBy("tag")
        .count()
        .collect()
    }
    assert counted == {
        tag: sum(row["tag"] == tag for row in sent.values())
        for tag in (None, "paid", "früh", "zipped")
    }
    assert mqs.read_topic(session, "kinds", start="latest", cluster=mq.name).count() == 0


def test_the_end_is_fixed_when_the_frame_is_made(session: Any, mq: rmq.Cluster) -> None:
    with rmq.Producer("growing", cluster=mq.name) as p:
        p.send_batch([rmq.Message("growing", b"%d" % n) for n in range(100)])
        df = mqs.read_topic(session, "growing", columns=["body"], cluster=mq.name)
        assert df.count() == 100
        p.send_batch([rmq.Message("growing", b"later") for _ in range(50)])
    assert df.count() == 100 and not df.where("cast(body as string) = 'later'").count()


def test_the_snippet_of_the_readme_runs_verbatim(
    session: Any,
    mq: rmq.Cluster,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    with rmq.Producer() as p:
        p.send_batch([rmq.Message("orders", b"x", tag=tag) for tag in ("paid", "paid", "open")])
    stopped: list[bool] = []
    monkeypatch.setattr(mqs, "session", lambda **_options: session)
    monkeypatch.setattr(mqs, "stop", lambda: stopped.append(True))
    readme = (Path(__file__).resolve().parents[2] / "README.md").read_text("utf-8")
    (code,) = [
        block
        for block in re.findall(r"^```python\n(.*?)^```", readme, re.MULTILINE | re.DOTALL)
        if "mqs.session" in block
    ]
    exec(code, {})  # our own page
    said = capsys.readouterr().out
    assert re.search(r"\|paid\| +2\|", said) and re.search(r"\|open\| +1\|", said) and stopped


def test_an_empty_topic_is_an_empty_frame(session: Any, mq: rmq.Cluster) -> None:
    mq.admin.create_topic("empty")
    df = mqs.read_topic(session, "empty", cluster=mq.name)
    assert df.count() == 0 and df.columns[:2] == ["topic", "broker"]


def test_wrong_requests_are_typed_errors_of_the_driver(
    session: Any, mq: rmq.Cluster, sent: dict
) -> None:
    with pytest.raises(rmq.TopicNotFound, match="'nobody-has-it'"):
        mqs.read_topic(session, "nobody-has-it", cluster=mq.name)
    with pytest.raises(rmq.OffsetOutOfRange):
        mqs.read_topic(
            session,
            "kinds",
            start={rmq.MessageQueue("kinds", "broker-a", 0): 10_000},
            cluster=mq.name,
        )
    with pytest.raises(rmq.SparkError, match="unknown column 'value'"):
        mqs.read_topic(session, "kinds", columns=["value"], cluster=mq.name)
    with pytest.raises(rmq.ClusterError, match="no cluster 'elsewhere' runs here"):
        mqs.read_topic(session, "kinds", cluster="elsewhere")
    with pytest.raises(rmq.SparkError, match="runs in this process already"):
        mqs.session()


def test_a_query_goes_on_when_a_broker_is_killed_in_the_middle_of_its_stream(
    session: Any, mq: rmq.Cluster, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    mq.admin.create_topic("killed", queues=1)
    queue = rmq.MessageQueue("killed", "broker-a", 0)
    with rmq.Producer("killed", cluster=mq.name) as p:
        for low in range(0, 4_000, 500):
            p.send_batch(
                [rmq.Message("killed", b"%06d" % n + bytes(1_000)) for n in range(low, low + 500)],
                queue,
            )
    reading = importlib.import_module("rmq_ray.spark.read")
    monkeypatch.setattr(reading, "CHUNK_BYTES", 100_000)  # travels to the workers with the function
    plan = plan_scan(mq.discovery, "killed", "earliest", "latest", 1)
    read, seen, go_on = (
        reading._reader(elsewhere(plan), [[0]], Rows(("body",)), False),
        tmp_path / "seen",
        tmp_path / "go-on",
    )

    def paused(batches: Iterator[Any]) -> Iterator[Any]:
        """In the worker: after the fifth chunk nothing more is asked for until the broker is
        dead.
        """
        import time
        from pathlib import Path as Place

        for number, batch in enumerate(read(batches)):
            yield batch
            if number == 4:
                Place(seen).touch()
                for _ in range(600):
                    if Place(go_on).exists():
                        break
                    time.sleep(0.05)

    found: list[Any] = []
    df = (
        session.range(0, 1, 1, 1)
        .mapInArrow(paused, "body binary")
        .selectExpr("int(string(substring(body, 1, 6))) as n")
    )
    query = threading.Thread(
        target=lambda: found.extend(
            df.selectExpr("count(*)", "count(distinct n)", "min(n)", "max(n)").collect()
        ),
        daemon=True,
    )
    query.start()
    eventually(seen.exists, 60)
    os.kill(eventually(lambda: mq.status()["broker-a/0"].get("pid")), signal.SIGKILL)
    go_on.touch()
    query.join(90)
    assert found, "the query did not end"
    with judging():
        assert [tuple(row) for row in found] == [(4_000, 4_000, 0, 3_999)]
    assert mq.status()["broker-a/0"]["scans"] > 20, "most was read from the broker's next process"


def test_predicates_patterns_and_times_choose_rows_where_they_are_read(
    session: Any, mq: rmq.Cluster, sent: dict
) -> None:
    paid = {place for place, row in sent.items() if row["tag"] == "paid"}
    frame = mqs.read_topic(
        session,
        "kinds",
        tags="paid",
        columns=["broker", "queue_id", "queue_offset"],
        cluster=mq.name,
    )
    assert {tuple(row) for row in frame.collect()} == paid
    (keyed,) = mqs.read_topic(
        session,
        pattern="ki.ds",
        key=next(row["keys"][0] for row in sent.values() if row["keys"]),
        cluster=mq.name,
    ).collect()
    assert keyed["keys"][0].startswith("k-")
    assert (
        mqs.read_topic(
            session, "kinds", start=datetime.now(UTC) + timedelta(hours=1), cluster=mq.name
        ).count()
        == 0
    )
    ends = '{"kinds":{"broker-a":{"0":3,"1":0},"broker-b":{"0":0,"1":0}}}'
    assert mqs.read_topic(session, "kinds", end=ends, cluster=mq.name).count() == 3


def test_the_columns_of_sparks_kafka_source(session: Any, mq: rmq.Cluster, sent: dict) -> None:
    frame = mqs.read_topic(session, "kinds", kafka_compat=True, cluster=mq.name)
    assert frame.columns == [
        "key",
        "value",
        "topic",
        "partition",
        "offset",
        "timestamp",
        "timestampType",
    ]
    rows = frame.collect()
    expected = sorted(
        (row["keys"][0].encode() if row["keys"] else b"", row["body"]) for row in sent.values()
    )
    assert sorted((bytes(row["key"] or b""), bytes(row["value"])) for row in rows) == expected


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, "either topic= .* or pattern="),
        ({"topic": "kinds", "pattern": "k.*"}, "either topic= .* or pattern="),
        (
            {"topic": "kinds", "kafka_compat": True, "columns": ["body"]},
            "choose among them with select",
        ),
        ({"topic": "kinds", "tags": 5}, "tags must be an expression"),
        ({"topic": "kinds", "start": '{"kinds":{"broker-a":{"0":'}, "no JSON"),
        ({"topic": "kinds", "start": {"other": {"broker-a": {"0": 1}}}}, "no queue of this topic"),
    ],
)
def test_reads_that_make_no_sense_are_refused_in_words(
    session: Any, mq: rmq.Cluster, sent: dict, options: dict[str, Any], message: str
) -> None:
    with pytest.raises(rmq.RmqError, match=message):
        mqs.read_topic(session, **options, cluster=mq.name)
