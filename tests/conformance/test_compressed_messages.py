"""Compressed bodies on their whole way: every way to send, the log, consumers, retries, delays,
bulk reads and queries.
"""

from __future__ import annotations

import asyncio
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from rmq_ray.client.admin.admin import Admin
from rmq_ray.client.messages.listener import RECONSUME_LATER
from rmq_ray.client.outgoing.send_payload import flag_word
from rmq_ray.client.outgoing.send_request import SendRequest
from rmq_ray.client.producer.async_producer import AsyncProducer
from rmq_ray.client.producer.producer import Producer
from rmq_ray.client.push.push_consumer import PushConsumer
from rmq_ray.client.scan.scan_plan import open_reader, plan_scan
from rmq_ray.codec.arrow.arrow_reader import to_batch
from rmq_ray.codec.compression import CODECS, sys_flag_of
from rmq_ray.errors import BodyUnreadable
from rmq_ray.model.message import Message, SysFlag
from tests.support.brokers.live_cluster import LiveCluster
from tests.support.clients.collecting import Collector
from tests.support.faults.chaos import read_log
from tests.support.waiting import eventually

LONG = b"a body that is long enough to be worth it " * 500


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[LiveCluster]:
    with LiveCluster(tmp_path, segment_bytes=1 << 20) as running:
        admin = Admin(running)
        admin.create_topic("orders", queues=1)
        admin.close()
        yield running


def bodies(prefix: bytes) -> list[bytes]:
    return [prefix + LONG, prefix + b" short"]


@pytest.mark.parametrize("codec", CODECS)
def test_every_way_to_send_compresses_and_every_way_to_read_restores(
    cluster: LiveCluster, codec: str
) -> None:
    settings: dict[str, Any] = {"discovery": cluster, "compression": codec}
    sent: list[bytes] = []
    with Producer("web", **settings) as producer:
        for name, send in (
            ("send", producer.send),
            ("async", lambda *a, **k: producer.send_async(*a, **k).result(5)),
            ("oneway", producer.send_oneway),
        ):
            for body in bodies(name.encode()):
                send("orders", body, tag="t", keys=["k"])
                sent.append(body)
        sent += (batch := bodies(b"batch") + bodies(b"more"))
        producer.send_batch([Message("orders", body, flag=-n) for n, body in enumerate(batch)])
        producer.send("orders", b"ordered" + LONG, message_group="g")
        producer.send(Message("orders", b"special" + LONG, wait_store_ok=False, flag=9))

    async def run() -> None:
        async with AsyncProducer("loop", **settings) as looped:
            await asyncio.gather(*(looped.send("orders", body) for body in bodies(b"loop")))
            await looped.send_batch([Message("orders", body) for body in bodies(b"loop batch")])

    asyncio.run(run())
    sent += [b"ordered" + LONG, b"special" + LONG, *bodies(b"loop"), *bodies(b"loop batch")]
    collector = Collector()
    with PushConsumer(
        "billing",
        listener=collector,
        subscriptions={"orders": "*"},
        discovery=cluster,
        start_from="first",
    ):
        found = collector.wait_for(len(sent))
    assert sorted(found) == sorted(sent)
    by_body = {bytes(message.body): message for message in collector.messages}
    assert (
        by_body[batch[2]].flag == -2
        and by_body[b"special" + LONG].flag == 9
        and by_body[b"send" + LONG].tag == "t"
    )
    stored = list(read_log(cluster, "orders").values())
    assert {record.sys_flag for record in stored} == {0, sys_flag_of(codec)} and sum(
        bool(record.sys_flag) for record in stored
    ) == 9
    assert all(len(record.body) < 3_000 for record in stored)
    plan = plan_scan(cluster, "orders", "earliest", "latest", 1)
    reader = open_reader(plan)
    batches = [
        to_batch("orders", "broker-a", *chunk, ["body"])
        for split in plan.splits
        for chunk in reader.read(split, 1 << 20)
    ]
    reader.close()
    assert sorted(body for batch in batches for body in batch["body"].to_pylist()) == sorted(sent)
    admin = Admin(cluster)
    assert [
        row["body"]
        for row in admin.find_messages("orders", "k")
        if row["body"].startswith(b"oneway" + LONG)
    ] == [b"oneway" + LONG]
    admin.close()


def test_a_delayed_message_and_a_retried_one_stay_compressed_and_readable(
    cluster: LiveCluster,
) -> None:
    seen: list[tuple[bytes, int]] = []

    def listener(messages: list[Any], ctx: Any) -> Any:
        seen.extend((message.body, message.reconsume_times) for message in messages)
        ctx.delay_level_when_next_consume = 1
        return RECONSUME_LATER if messages[0].reconsume_times == 0 else None

    with (
        PushConsumer(
            "billing",
            listener=listener,
            subscriptions={"orders": "*"},
            discovery=cluster,
            start_from="first",
        ),
        Producer("web", discovery=cluster, compression="zstd") as producer,
    ):
        producer.send("orders", b"now" + LONG)
        producer.send("orders", b"later" + LONG, delay_level=1)
        eventually(lambda: len(seen) == 4, 15)
    assert sorted(seen) == [
        (b"later" + LONG, 0),
        (b"later" + LONG, 1),
        (b"now" + LONG, 0),
        (b"now" + LONG, 1),
    ]


def test_a_body_that_cannot_be_restored_is_the_listeners_error_and_the_consumer_goes_on(
    cluster: LiveCluster,
) -> None:
    errors: list[Exception] = []
    good = Collector()

    def listener(messages: list[Any], ctx: Any) -> None:
        try:
            good([message for message in messages if message.body], ctx)
        except BodyUnreadable as error:
            errors.append(error)
            raise

    with Producer("web", discovery=cluster) as producer:
        producer.send("orders", b"before")
        core = producer._core
        assert core is not None
        core.send(SendRequest("orders", b"junk", "", flag_word(0, SysFlag.COMPRESSED)), 3_000)
        core.send(
            SendRequest(
                "orders", zlib.compress(LONG)[:-9], "", flag_word(0, SysFlag.COMPRESSED | 3 << 8)
            ),
            3_000,
        )
        producer.send("orders", b"after")
    with PushConsumer(
        "billing",
        listener=listener,
        subscriptions={"orders": "*"},
        discovery=cluster,
        start_from="first",
    ):
        assert sorted(good.wait_for(2)) == [b"after", b"before"]
        eventually(lambda: len(errors) == 2)
