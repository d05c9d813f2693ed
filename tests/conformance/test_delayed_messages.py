"""Exact delivery times over sockets, and a broker that dies while messages wait."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from rmq_ray.client.admin.admin import Admin
from rmq_ray.client.producer.async_producer import AsyncProducer
from rmq_ray.client.producer.producer import Producer
from rmq_ray.clock import SYSTEM_CLOCK
from rmq_ray.codec.record import Record
from rmq_ray.errors import ClientError, MessageIllegal, RecallFailed
from rmq_ray.model.message import Message
from tests.support.brokers.live_cluster import LiveCluster, LiveProcess
from tests.support.brokers.tiny_cluster import FixedDiscovery
from tests.support.faults.chaos import read_log
from tests.support.faults.stopwatch import Stopwatch
from tests.support.waiting import eventually

SHORT = timedelta(milliseconds=300)
LATER = timedelta(seconds=3)  # time to look at what waits, also where a machine stops for a while


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveCluster]:
    with LiveCluster(tmp_path_factory.mktemp("live")) as running:
        yield running


def arrived(cluster: Any, topic: str) -> dict[bytes, Record]:
    return {bytes(record.body): record for record in read_log(cluster, topic).values()}


@pytest.mark.alone
def test_every_way_to_send_takes_a_delay_or_a_time(cluster: LiveCluster) -> None:
    begun, watch = SYSTEM_CLOCK.now_ms(), Stopwatch()
    at = datetime.now(UTC) + LATER
    with Producer("d-ways", discovery=cluster) as producer:
        results = [
            producer.send("d-ways", b"1", delay=LATER),
            producer.send("d-ways", b"2", deliver_at=at),
            producer.send("d-ways", b"3", deliver_at=at.astimezone().replace(tzinfo=None)),
            producer.send(Message("d-ways", b"4", delay=LATER)),
            producer.send(Message("d-ways", b"5", deliver_at=at)),
            producer.send_async("d-ways", b"6", delay=LATER).result(5),
        ]
        producer.send_oneway("d-ways", b"7", delay=LATER)

    async def asynchronous() -> None:
        async with AsyncProducer("d-ways", discovery=cluster) as sender:
            results.append(await sender.send("d-ways", b"8", delay=LATER))

    asyncio.run(asynchronous())
    assert all(result.recall_handle for result in results)
    assert not arrived(cluster, "d-ways")
    sent_ms = SYSTEM_CLOCK.now_ms()
    found = eventually(lambda: len(now := arrived(cluster, "d-ways")) == 8 and now)
    assert all(
        begun + 3_000 <= record.store_ms <= sent_ms + 4_000 + 1_000 * watch.stopped_s
        for record in found.values()
    )


@pytest.mark.parametrize(
    "given",
    [
        {"delay": SHORT, "delay_level": 3},
        {"delay": SHORT, "deliver_at": datetime(2026, 1, 1, tzinfo=UTC)},
        {"delay": -SHORT},
        {"delay": 5},
        {"deliver_at": 1_700_000_000},
    ],
    ids=str,
)
def test_contradictions_and_nonsense_are_refused(
    cluster: LiveCluster, given: dict[str, Any]
) -> None:
    with Producer("d-bad", discovery=cluster) as producer, pytest.raises(ClientError):
        producer.send("d-bad", b"x", **given)


def test_too_far_ahead_and_batches_are_refused(cluster: LiveCluster) -> None:
    with Producer("d-far", discovery=cluster) as producer:
        with pytest.raises(MessageIllegal, match="timer_max_delay_hours"):
            producer.send("d-far", b"x", delay=timedelta(days=366))
        with pytest.raises(MessageIllegal, match="a batch holds no message with"):
            producer.send_batch([Message("d-far", b"x", delay=SHORT)])
        producer.send("d-far", b"x", delay=timedelta(days=364))


def test_a_message_is_taken_back_while_it_waits_by_another_producer_too(
    cluster: LiveCluster,
) -> None:
    with (
        Producer("d-recall", discovery=cluster) as producer,
        Producer("d-recall-2", discovery=cluster) as other,
    ):
        kept, gone = (
            producer.send("d-recall", b"kept", delay=LATER),
            producer.send("d-recall", b"gone", delay=LATER),
        )
        assert kept.recall_handle and gone.recall_handle
        assert other.recall_message("d-recall", gone.recall_handle) == gone.message_id
        eventually(lambda: arrived(cluster, "d-recall"))
        with pytest.raises(RecallFailed, match="due already"):
            producer.recall_message("d-recall", kept.recall_handle)
        with pytest.raises(ClientError, match="is no recall handle"):
            producer.recall_message("d-recall", "nonsense")
        assert producer.send("d-recall", b"now").recall_handle is None
    assert arrived(cluster, "d-recall").keys() == {b"kept", b"now"}


@pytest.mark.alone
def test_many_that_are_due_together_are_a_second_late_at_most(cluster: LiveCluster) -> None:
    watch = Stopwatch()
    with Producer("d-many", discovery=cluster, send_timeout_ms=20_000) as producer:
        at = datetime.now(UTC) + timedelta(seconds=5)
        futures = [
            producer.send_async("d-many", b"%d" % number, deliver_at=at) for number in range(1_000)
        ]
        for future in futures:
            future.result(30)
    found = eventually(lambda: len(now := arrived(cluster, "d-many")) == 1_000 and now)
    due = at.timestamp() * 1_000
    assert all(
        due <= record.store_ms <= due + 1_000 + 1_000 * watch.stopped_s for record in found.values()
    )


def test_a_broker_killed_while_messages_wait_loses_none_and_delivers_none_early(
    tmp_path: Path,
) -> None:
    """Killed twice, once with messages that fall due while nobody is there; one of them was taken
    back.
    """
    living = LiveProcess(tmp_path)
    discovery = FixedDiscovery(living.lookup())
    admin = Admin(discovery)
    admin.create_topic("orders", queues=2)
    admin.close()
    sent: dict[bytes, float] = {}
    with Producer("web", discovery=discovery, send_timeout_ms=20_000) as producer:
        for number in range(60):
            body, delay = b"%d" % number, timedelta(milliseconds=50 * number)
            sent[body] = SYSTEM_CLOCK.now_ms() + delay.total_seconds() * 1_000
            result = producer.send("orders", body, delay=delay)
        assert result.recall_handle
        producer.recall_message("orders", result.recall_handle)
        living.kill()
        threading.Event().wait(0.3)
        living = LiveProcess(tmp_path)
        eventually(lambda: len(arrived(discovery, "orders")) > 20)
        living.kill()
        living = LiveProcess(tmp_path)
        try:
            found = eventually(
                lambda: (
                    len(now := read_log(discovery, "orders")) >= 59
                    and len({r.body for r in now.values()}) == 59
                    and now
                )
            )
        finally:
            living.kill()
    assert {record.body for record in found.values()} == sent.keys() - {b"59"}
    assert all(record.store_ms >= sent[record.body] for record in found.values()), "never early"


def test_a_message_in_a_namespace_is_taken_back_by_its_short_name(cluster: LiveCluster) -> None:
    with Producer("d-space", discovery=cluster, namespace="shop") as producer:
        result = producer.send("d-space", b"x", delay=LATER)
        assert (
            result.recall_handle
            and producer.recall_message("d-space", result.recall_handle) == result.message_id
        )


def test_a_transaction_in_a_namespace_commits(cluster: LiveCluster) -> None:
    with Producer("d-space-tx", discovery=cluster, namespace="shop") as producer:
        with producer.transaction(lambda _message: None) as tx:
            tx.send("d-space-tx", b"x")
        assert list(arrived(cluster, "shop%d-space-tx")) == [b"x"]
