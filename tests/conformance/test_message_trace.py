"""Message trace end to end: a traced producer, a traced consumer, and what is found of a message
afterwards.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Iterator
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import pytest

from rmq_ray.client.admin.admin import Admin
from rmq_ray.client.interceptors.message_trace import ConsumeTrace
from rmq_ray.client.messages.listener import RECONSUME_LATER
from rmq_ray.client.producer.async_producer import AsyncProducer
from rmq_ray.client.producer.producer import Producer
from rmq_ray.client.push.push_consumer import PushConsumer
from rmq_ray.model.message import Message
from tests.support.brokers.live_cluster import LiveCluster
from tests.support.waiting import eventually


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[LiveCluster]:
    with LiveCluster(tmp_path) as running:
        admin = Admin(running)
        admin.create_topic("orders", queues=1)
        admin.close()
        yield running


@pytest.fixture
def admin(cluster: LiveCluster) -> Iterator[Admin]:
    made = Admin(cluster)
    yield made
    made.close()


@pytest.mark.seed("S3-006", "S4-173")
def test_a_message_can_be_followed_from_its_send_to_its_listener(
    cluster: LiveCluster, admin: Admin
) -> None:
    def listener(messages: list[Any], ctx: Any) -> Any:
        ctx.delay_level_when_next_consume = 1
        return RECONSUME_LATER if messages[0].reconsume_times == 0 else None

    hook = ConsumeTrace()
    with PushConsumer(
        "billing",
        listener=listener,
        subscriptions={"orders": "*"},
        discovery=cluster,
        start_from="first",
        hooks=[hook],
    ):
        with Producer("web", discovery=cluster, trace=True) as producer:
            result = producer.send("orders", b"body", tag="paid", keys=["o-1", "o-2"])
        eventually(lambda: len(rows_of(admin, result.message_id)) == 5)
    found = admin.message_trace("o-2")
    assert [row["kind"] for row in found] == [
        "Pub",
        "SubBefore",
        "SubAfter",
        "SubBefore",
        "SubAfter",
    ]
    pub, _, failed, again, done = found
    assert (
        pub["group"],
        pub["topic"],
        pub["tag"],
        pub["keys"],
        pub["body_bytes"],
        pub["success"],
    ) == ("web", "orders", "paid", "o-1 o-2", 4, True)
    assert (
        pub["store_host"] == str(cluster.brokers[0].address)
        and pub["offset_message_id"] == result.offset_message_id
    )
    assert (failed["success"], failed["code"], failed["group"]) == (False, 4, "billing")
    assert (again["retries"], done["success"], done["code"]) == (1, True, 0) and again[
        "request_id"
    ] == done["request_id"] != failed["request_id"]


def rows_of(admin: Admin, message_id: str) -> list[dict[str, Any]]:
    try:
        return admin.message_trace(message_id)
    except Exception:  # noqa: BLE001 - the trace topic is not there before the first record
        return []


def test_every_way_to_send_is_traced_and_its_last_records_leave_with_the_close(
    cluster: LiveCluster, admin: Admin
) -> None:
    with Producer("web", discovery=cluster, trace=True, linger_ms=50.0) as producer:
        ids = [producer.send("orders", b"1").message_id]
        ids += producer.send_batch(
            [
                Message("orders", b"2", tag="A", keys=["ka"]),
                Message("orders", b"33", tag="B", keys=["kb"]),
            ]
        )[0].message_id.split(",")
        ids.append(producer.send("orders", b"4", delay_level=18).message_id)
        future = producer.send_async("orders", b"5")
        producer.send_oneway("orders", b"6")
    ids.append(future.result(5).message_id)

    async def run() -> None:
        async with AsyncProducer("loop", discovery=cluster, trace=True) as looped:
            ids.append((await looped.send("orders", b"7")).message_id)

    asyncio.run(run())
    eventually(lambda: all(len(rows_of(admin, message_id)) == 1 for message_id in ids))
    assert [admin.message_trace(message_id)[0]["message_type"] for message_id in ids] == [
        0,
        0,
        0,
        3,
        0,
        0,
    ]
    batch = [
        (row["message_id"], row["tag"], row["keys"], row["body_bytes"])
        for key in ("ka", "kb")
        for row in admin.message_trace(key)
    ]
    assert batch == [(ids[1], "A", "ka", 1), (ids[2], "B", "kb", 2)]
    eventually(
        lambda: not any(thread.name.startswith("rmq-trace") for thread in threading.enumerate())
    )


def test_the_ends_of_traced_transactions_are_traced_also_where_a_broker_asked(
    tmp_path: Path,
) -> None:
    def ends(key: str) -> tuple[tuple[Any, ...], ...]:
        eventually(lambda: len(rows_of(admin, key)) == 2)
        sent, end = admin.message_trace(key)
        return (sent["kind"], sent["message_type"]), (end["kind"], end["state"], end["from_check"])

    quick = {"transaction_timeout_ms": 2_000, "transaction_check_interval_ms": 200}
    with LiveCluster(tmp_path, broker=quick) as cluster, closing(Admin(cluster)) as admin:
        admin.create_topic("orders", queues=1)
        with Producer("pay", discovery=cluster, trace=True, namespace="ns") as producer:
            with producer.transaction(lambda message: True) as tx:
                tx.send("orders", b"1", tag="paid", keys=["committed"])
            producer.transaction(lambda message: True).send("orders", b"2", keys=["asked"])
            with suppress(KeyError), producer.transaction(lambda message: True) as tx:
                tx.send("orders", b"3", keys=["rolled-back"])
                raise KeyError

        async def run() -> None:
            async with (
                AsyncProducer("loop", discovery=cluster, trace=True) as looped,
                looped.transaction(lambda message: True) as tx,
            ):
                await tx.send("orders", b"4", keys=["looped"])

        asyncio.run(run())
        with Producer("pay", discovery=cluster, trace=True, namespace="ns") as other:
            other.transaction(lambda message: True)
            assert ends("asked") == (("Pub", 1), ("EndTransaction", "COMMIT_MESSAGE", True))
        assert (
            ends("committed")
            == ends("looped")
            == (("Pub", 1), ("EndTransaction", "COMMIT_MESSAGE", False))
        )
        assert ends("rolled-back")[1] == ("EndTransaction", "ROLLBACK_MESSAGE", False)
        row = admin.message_trace("committed")[-1]
        assert (
            row["group"],
            row["topic"],
            row["tag"],
            row["transaction_id"],
            row["message_type"],
        ) == ("pay", "orders", "paid", row["message_id"], 2)
        assert row["store_host"] == str(cluster.brokers[0].address)


def test_tracing_never_fails_a_send(cluster: LiveCluster, caplog: pytest.LogCaptureFixture) -> None:
    with Producer(
        "web", discovery=cluster, trace=True, trace_topic="SCHEDULE_TOPIC_XXXX"
    ) as producer:
        assert producer.send("orders", b"x").queue_offset == 0
        steps = producer._steps
        assert steps is not None
        dispatcher = steps.hooks[-1].dispatcher  # type: ignore[attr-defined]
        eventually(lambda: dispatcher.dropped == 1)


def test_callbacks_of_asynchronous_sends_run_before_the_producer_is_closed(
    cluster: LiveCluster,
) -> None:
    ended: list[int] = []

    def late(n: int) -> None:
        time.sleep(0.02)
        ended.append(n)

    producer = Producer("web", discovery=cluster, linger_ms=0.0)
    for n in range(20):
        producer.send_async("orders", b"x").add_done_callback(lambda _future, n=n: late(n))
    producer.close()
    assert sorted(ended) == list(range(20))
