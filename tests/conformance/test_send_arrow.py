"""A table sent by columns against real ports: what arrives, in which frames, and what is told when
some of it fails.
"""

from __future__ import annotations

import random
from collections.abc import Iterator

import pyarrow as pa
import pytest

from rmq_ray.client.producer.producer import Producer
from rmq_ray.errors import ClientError, MessageIllegal, SendError, TopicNotWritable
from rmq_ray.model.ids import MessageQueue
from rmq_ray.model.message import SendStatus, decode_properties
from tests.support.brokers.tiny_cluster import TinyCluster

ORDERS = pa.table(
    {
        "body": [b"body %d" % n for n in range(1_000)],
        "id": [f"o-{n}" for n in range(1_000)],
        "origin": pa.array(["eu" if n % 3 else None for n in range(1_000)]),
        "region": [f"r{n % 5}" for n in range(1_000)],
    }
)


@pytest.fixture
def cluster() -> Iterator[TinyCluster]:
    with TinyCluster(topics={"orders": 4}) as running:
        yield running


def test_rows_arrive_as_messages_with_their_labels_and_unique_keys(cluster: TinyCluster) -> None:
    with Producer("web", discovery=cluster) as producer:
        (result,) = producer.send_arrow(
            "orders", ORDERS, body="body", key="id", tag="origin", properties=["region"]
        )
    assert (result.status, result.count, result.queue_offset) == (SendStatus.SEND_OK, 1_000, 0)
    ids = result.message_id.split(",")
    records = cluster.broker.stored["orders", result.queue.queue_id]
    assert len(set(ids)) == len(records) == 1_000
    for number, (record, unique) in enumerate(zip(records, ids, strict=True)):
        found = decode_properties(record.properties)
        assert record.body == b"body %d" % number and found["UNIQ_KEY"] == unique
        assert (found["KEYS"], found.get("TAGS"), found["region"]) == (
            f"o-{number}",
            "eu" if number % 3 else None,
            f"r{number % 5}",
        )


def test_a_long_table_is_cut_into_frames_that_go_round_the_queues(cluster: TinyCluster) -> None:
    with Producer("web", discovery=cluster, batch_bytes_max=20_000) as producer:
        results = producer.send_arrow("orders", ORDERS, key="id")
    assert len(results) > 4 and sum(result.count for result in results) == 1_000
    assert {result.queue.queue_id for result in results} == {0, 1, 2, 3}
    by_queue = {
        key: [record.body for record in records] for key, records in cluster.broker.stored.items()
    }
    found = [
        body
        for r in results
        for body in by_queue["orders", r.queue.queue_id][r.queue_offset : r.queue_offset + r.count]
    ]
    assert found == ORDERS["body"].to_pylist()


def test_all_rows_for_a_given_queue_keep_their_order_though_answers_are_lost(
    cluster: TinyCluster,
) -> None:
    chance = random.Random(5)
    cluster.broker.fault = lambda _arrival, _number: "drop" if chance.random() < 0.3 else None
    with Producer(
        "web", discovery=cluster, batch_bytes_max=20_000, retries=16, send_timeout_ms=10_000
    ) as producer:
        producer.send_arrow("orders", ORDERS, queue=MessageQueue("orders", cluster.broker.name, 2))
    assert [record.body for record in cluster.broker.stored["orders", 2]] == ORDERS[
        "body"
    ].to_pylist()
    assert cluster.broker.messages == 1_000


def test_frames_are_out_together_and_answers_that_are_lost_store_nothing_twice(
    cluster: TinyCluster,
) -> None:
    chance = random.Random(7)
    cluster.broker.fault = lambda _arrival, _number: "drop" if chance.random() < 0.2 else None
    with Producer(
        "web", discovery=cluster, batch_bytes_max=20_000, retries=16, send_timeout_ms=10_000
    ) as producer:
        results = producer.send_arrow("orders", ORDERS)
    assert sum(result.count for result in results) == cluster.broker.messages == 1_000


def test_an_error_tells_which_rows_are_stored(cluster: TinyCluster) -> None:
    cluster.broker.fault = lambda arrival, _number: (
        1_009 if any(record.body == b"body 500" for record in arrival.records) else None
    )
    with (
        Producer("web", discovery=cluster, batch_bytes_max=20_000) as producer,
        pytest.raises(SendError) as caught,
    ):
        producer.send_arrow("orders", ORDERS)
    stored = caught.value.args[2]
    bodies = sorted(
        int(record.body[5:]) for records in cluster.broker.stored.values() for record in records
    )
    assert (
        stored[0][0] == 0
        and bodies == sorted(row for begin, end in stored for row in range(begin, end))
        and 500 not in bodies
    )


def test_a_given_queue_gets_a_beginning_of_the_table_and_nothing_behind_a_failure(
    cluster: TinyCluster,
) -> None:
    cluster.broker.fault = lambda _arrival, number: 1_009 if number == 3 else None
    with (
        Producer("web", discovery=cluster, batch_bytes_max=20_000) as producer,
        pytest.raises(SendError) as caught,
    ):
        producer.send_arrow("orders", ORDERS, queue=MessageQueue("orders", cluster.broker.name, 0))
    ranges = caught.value.args[2]
    assert (
        len(ranges) == 3
        and ranges[0][0] == 0
        and all(left[1] == right[0] for left, right in zip(ranges, ranges[1:], strict=False))
    )
    assert [record.body for record in cluster.broker.stored["orders", 0]] == ORDERS[
        "body"
    ].to_pylist()[: ranges[-1][1]]


@pytest.mark.parametrize(
    "wrong",
    [
        MessageQueue("orders", None, 0),
        MessageQueue("orders", "broker-a", 1 << 40),
        MessageQueue("orders", "broker-a", -1),
    ],
)  # type: ignore[arg-type]
def test_a_queue_that_cannot_be_is_refused_at_once(
    cluster: TinyCluster, wrong: MessageQueue
) -> None:
    with Producer("web", discovery=cluster) as producer:
        for send in (
            lambda: producer.send_arrow("orders", ORDERS, queue=wrong),
            lambda: producer.send("orders", b"x", queue=wrong),
        ):
            with pytest.raises(ClientError, match="is not a queue of topic 'orders'"):
                send()


def test_nothing_is_sent_while_any_row_is_bad(cluster: TinyCluster) -> None:
    bad = pa.concat_tables(
        [pa.table({"body": ORDERS["body"]}), pa.table({"body": pa.array([None], pa.binary())})]
    )
    with Producer("web", discovery=cluster, batch_bytes_max=20_000) as producer:
        with pytest.raises(MessageIllegal, match="column 'body', row 1000 is null"):
            producer.send_arrow("orders", bad)
        with pytest.raises(ClientError, match="no columns named 'payload'"):
            producer.send_arrow("orders", ORDERS, body="payload")
        with pytest.raises(ClientError, match="topic"):
            producer.send_arrow("or ders", ORDERS)
        with pytest.raises(TopicNotWritable):
            producer.send_arrow("SCHEDULE_TOPIC_XXXX", ORDERS)
        with pytest.raises(ClientError, match="not a queue of topic"):
            producer.send_arrow("orders", ORDERS, queue=MessageQueue("other", "broker-a", 0))
        assert producer.send_arrow("orders", ORDERS.slice(0, 0)) == []
    assert not cluster.broker.arrivals


def test_compression_and_namespaces_apply_to_rows_too(cluster: TinyCluster) -> None:
    table = pa.table({"body": [b"a" * 5_000, b"short"], "id": ["k1", "k2"]})
    with (
        TinyCluster(topics={"ns%orders": 4}) as other,
        Producer("web", discovery=other, compression="zlib", namespace="ns") as producer,
    ):
        (result,) = producer.send_arrow("orders", table, key="id")
        long, short = other.broker.stored["ns%orders", result.queue.queue_id]
    assert (
        long.sys_flag & 1
        and len(long.body) < 1_000
        and decode_properties(long.properties)["KEYS"] == "k1"
    )
    assert (short.sys_flag, short.body) == (0, b"short")


def test_after_close_a_table_is_refused(cluster: TinyCluster) -> None:
    producer = Producer("web", discovery=cluster)
    producer.close()
    with pytest.raises(ClientError, match="make a new one"):
        producer.send_arrow("orders", ORDERS)
