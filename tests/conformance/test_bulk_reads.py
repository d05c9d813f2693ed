"""Plans and readers of bulk reads on real brokers: what was sent comes out, each row once, beside
the log as through the stream.
"""

from __future__ import annotations

import os
import pickle
import random
import threading
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from rmq_ray.client.admin.admin import Admin
from rmq_ray.client.instance import outage
from rmq_ray.client.producer.producer import Producer
from rmq_ray.client.scan import scan_plan
from rmq_ray.client.scan.scan_plan import plan_scan
from rmq_ray.clock import SYSTEM_CLOCK, SystemClock
from rmq_ray.errors import ClientError, ClusterError, OffsetOutOfRange, TopicNotFound
from rmq_ray.model.arrow import SCHEMA
from rmq_ray.model.ids import MessageQueue
from rmq_ray.model.message import Message
from rmq_ray.ports import Discovery
from tests.support.brokers.live_cluster import CLUSTER, SECRET, LiveCluster, LiveProcess
from tests.support.clients.bulk_reading import elsewhere, offsets, send_compressed, table_of
from tests.support.waiting import eventually

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class Later(SystemClock):
    """So much later, by both clocks."""

    def __init__(self, after_ms: int) -> None:
        self._after_ms = after_ms

    def now_ms(self) -> int:
        return super().now_ms() + self._after_ms

    def monotonic_ms(self) -> float:
        return super().monotonic_ms() + self._after_ms


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveCluster]:
    with LiveCluster(tmp_path_factory.mktemp("live"), brokers=2) as running:
        yield running


@pytest.fixture(scope="module")
def admin(cluster: LiveCluster) -> Iterator[Admin]:
    found = Admin(cluster)
    yield found
    found.close()


def fill(
    cluster: Discovery, topic: str, count: int, size: int = 20, queue: MessageQueue | None = None
) -> MessageQueue:
    """Numbered messages in one queue, ten a frame."""
    queue = queue or MessageQueue(topic, "broker-a", 0)
    with Producer(f"fill-{topic}", discovery=cluster) as p:
        for low in range(0, count, 10):
            p.send_batch(
                [
                    Message(topic, b"%06d" % n + b"." * size)
                    for n in range(low, min(count, low + 10))
                ],
                queue,
            )
    return queue


def numbers(table: Any) -> list[int]:
    return [int(body[:6]) for body in table["body"].to_pylist()]


@pytest.fixture(scope="module")
def sent(cluster: LiveCluster, admin: Admin) -> dict[tuple[str, int, int], dict[str, Any]]:
    """900 messages of every kind in 2 x 3 queues, over several segments and consume queue files:
    place -> row as the api says.
    """
    admin.create_topic("kinds", queues=3)
    chance = random.Random(7)
    expected = {}
    with Producer("kinds", discovery=cluster) as p:
        for number in range(900):
            keys = [f"k-{number}-{part}" for part in range(chance.randrange(3))]
            tag = chance.choice((None, "paid", "früh"))
            properties = {
                f"p{n}": f"wert ä {chance.randrange(99)}" for n in range(chance.randrange(3))
            }
            body = chance.randbytes(chance.choice((1, 50, 3_000)))
            before = SYSTEM_CLOCK.now_ms()
            result = p.send("kinds", body, tag=tag, keys=keys, properties=properties)
            row = {
                "topic": "kinds",
                "broker": result.queue.broker_name,
                "queue_id": result.queue.queue_id,
                "queue_offset": result.queue_offset,
            }
            row |= {
                "message_id": result.message_id,
                "keys": keys,
                "tag": tag,
                "properties": sorted(properties.items()),
                "body": body,
                "reconsume_times": 0,
            }
            expected[result.queue.broker_name, result.queue.queue_id, result.queue_offset] = row | {
                "times": (before, SYSTEM_CLOCK.now_ms())
            }
    return expected


def test_rows_are_what_was_sent_with_both_timestamps_within_the_send(
    cluster: LiveCluster, sent: dict
) -> None:
    plan = plan_scan(cluster, "kinds", "earliest", "latest", 10)
    assert plan.rows == 900 and len(plan.splits) > 10
    table = table_of(plan)
    assert table.schema.equals(SCHEMA) and table.num_rows == 900
    for row in table.to_pylist():
        expected = dict(sent[row["broker"], row["queue_id"], row["queue_offset"]])
        before, after = (EPOCH + timedelta(milliseconds=ms) for ms in expected.pop("times"))
        assert before <= row.pop("born_ts") <= row.pop("store_ts") <= after
        row["properties"] = sorted(row["properties"])
        assert row == expected


@pytest.mark.parametrize("chunk_bytes", [1, 7_000, 1 << 20])
@pytest.mark.parametrize("splits", [1, 7])
def test_the_stream_gives_the_same_rows_in_the_same_order_as_the_files(
    cluster: LiveCluster, sent: dict, splits: int, chunk_bytes: int
) -> None:
    plan = plan_scan(cluster, "kinds", "earliest", "latest", splits)
    beside = table_of(plan, chunk_bytes=chunk_bytes)
    assert beside.num_rows == len(sent) and table_of(
        elsewhere(plan), chunk_bytes=chunk_bytes
    ).equals(beside)
    assert (
        all(found == list(range(len(found))) for found in offsets(beside).values())
        and len(offsets(beside)) == 6
    )


def test_a_plan_pickles_without_showing_its_secret(cluster: LiveCluster, sent: dict) -> None:
    plan = plan_scan(cluster, "kinds", "earliest", "latest", 4)
    assert (
        pickle.loads(pickle.dumps(plan)) == plan
        and plan.secret == SECRET
        and "secret" not in repr(plan)
    )


def test_positions_choose_the_rows_of_each_queue(cluster: LiveCluster, admin: Admin) -> None:
    admin.create_topic("positions", queues=1)
    a, b = (MessageQueue("positions", f"broker-{letter}", 0) for letter in "ab")
    fill(cluster, "positions", 20)
    fill(cluster, "positions", 10, queue=b)
    for start, end, expected in (
        ("earliest", "latest", {a: range(20), b: range(10)}),
        ("latest", "latest", {}),
        ({a: 15}, {b: 0}, {a: range(15, 20)}),
        ({a: 3, b: 10}, {a: 5}, {a: range(3, 5)}),
    ):
        for plan in (found := plan_scan(cluster, "positions", start, end, 3), elsewhere(found)):
            assert offsets(table_of(plan)) == {
                (queue.broker_name, 0): list(span) for queue, span in expected.items()
            }
    with pytest.raises(OffsetOutOfRange, match=r"21 .* outside of \[0, 20\]"):
        plan_scan(cluster, "positions", {a: 21}, "latest", 3)
    with pytest.raises(ClientError, match="no queue of this topic"):
        plan_scan(cluster, "positions", {replace(a, queue_id=9): 0}, "latest", 3)


def test_a_topic_that_nobody_has_is_not_found_and_an_empty_one_has_no_splits(
    cluster: LiveCluster, admin: Admin
) -> None:
    with pytest.raises(TopicNotFound, match="'nobody-has-it' does not exist"):
        plan_scan(cluster, "nobody-has-it", "earliest", "latest", 4)
    admin.create_topic("empty", queues=2)
    plan = plan_scan(cluster, "empty", "earliest", "latest", 4)
    assert plan.splits == () and plan.rows == 0 and table_of(plan).num_rows == 0


def test_the_end_is_fixed_when_the_plan_is_made_while_a_producer_goes_on(
    cluster: LiveCluster, admin: Admin
) -> None:
    admin.create_topic("going-on", queues=1)
    a = fill(cluster, "going-on", 10)
    stop, sending = threading.Event(), threading.Event()

    def send() -> None:
        with Producer("going-on", discovery=cluster) as p:
            while not stop.wait(0.002):
                p.send_batch([Message("going-on", b"999999") for _ in range(20)], a)
                sending.set()

    thread = threading.Thread(target=send, daemon=True)
    thread.start()
    try:
        assert sending.wait(10)
        for _ in range(10):
            plan = plan_scan(cluster, "going-on", "earliest", "latest", 2)
            eventually(lambda end=plan.rows: cluster.store().bounds("going-on", 0)[1] > end)
            for table in (table_of(plan), table_of(elsewhere(plan))):
                assert offsets(table) == {("broker-a", 0): list(range(plan.rows))}
    finally:
        stop.set()
        thread.join(10)


def test_a_foreign_clients_compressed_body_comes_out_uncompressed(
    cluster: LiveCluster, admin: Admin
) -> None:
    admin.create_topic("zipped", queues=1)
    body = b"to be compressed " * 1_000
    address = cluster.brokers[0].address
    assert address is not None
    send_compressed(address, CLUSTER, SECRET, "zipped", body)
    fill(cluster, "zipped", 1)
    plan = plan_scan(cluster, "zipped", "earliest", "latest", 1)
    for table in (table_of(plan), table_of(elsewhere(plan))):
        assert table["body"].to_pylist()[0] == body and table["tag"].to_pylist() == ["zipped", None]
        assert table["message_id"].to_pylist()[0] == "F" * 32


def test_columns_that_were_not_asked_for_are_not_decoded(cluster: LiveCluster, sent: dict) -> None:
    plan = plan_scan(cluster, "kinds", "earliest", "latest", 4)
    table = table_of(plan, ["queue_offset", "tag"])
    assert table.column_names == ["queue_offset", "tag"] and table.num_rows == len(sent)


def test_files_that_are_not_the_planned_store_are_left_alone_and_the_broker_is_asked(
    cluster: LiveCluster, admin: Admin, caplog: pytest.LogCaptureFixture
) -> None:
    admin.create_topic("moved", queues=1)
    fill(cluster, "moved", 50)
    plan = plan_scan(cluster, "moved", "earliest", "latest", 1)
    for change in (
        {"store_path": "/nowhere"},
        {"identity": "0" * 32},
        {"visible_end": plan.splits[0].visible_end // 2},
    ):
        changed = replace(plan, splits=tuple(replace(split, **change) for split in plan.splits))
        assert numbers(table_of(changed)) == list(range(50)), change
    assert caplog.text.count("going on through the broker") == 2, (
        "an early visible end is no fault of the files"
    )


def test_files_that_fail_in_the_middle_are_left_for_the_stream_at_the_row_behind_the_last_one(
    cluster: LiveCluster, admin: Admin, caplog: pytest.LogCaptureFixture
) -> None:
    admin.create_topic("half", queues=1)
    fill(cluster, "half", 100, size=1_000)
    plan = plan_scan(cluster, "half", "earliest", "latest", 1)
    epochs = cluster.store_path() / "rmq_ray" / "epochs"
    before = epochs.read_bytes()

    def another_epoch() -> None:
        epochs.write_bytes(before + b"99 %d\n" % (1 << 40))

    try:
        assert numbers(table_of(plan, chunk_bytes=20_000, after_chunk=another_epoch)) == list(
            range(100)
        )
    finally:
        epochs.write_bytes(before)
    assert "ended at offset" in caplog.text and "epoch 99" in caplog.text


def test_a_damaged_record_costs_exactly_itself_on_both_ways_even_at_the_end(tmp_path: Path) -> None:
    with LiveCluster(tmp_path) as cluster:
        queue = MessageQueue("damaged", "broker-a", 0)
        with Producer("p", discovery=cluster) as p:
            results = [
                p.send("damaged", b"%06d" % n + bytes(2_000), queue=queue) for n in range(30)
            ]
            p.send("another", b"what was written last is answered from memory")
        store = cluster.store()
        for number in (10, 27, 28, 29):
            at = store.log_offset_of("damaged", 0, results[number].queue_offset)
            with (cluster.store_path() / "commitlog" / f"{0:020d}").open("r+b") as file:
                file.seek(at + 500)
                file.write(b"\xff")
        plan = plan_scan(cluster, "damaged", "earliest", "latest", 1)
        assert plan.rows == 30
        for one in (plan, elsewhere(plan)):
            for chunk_bytes in (1, 5_000, 1 << 20):
                assert numbers(table_of(one, chunk_bytes=chunk_bytes)) == [
                    n for n in range(27) if n != 10
                ]


def test_pins_are_given_back_when_the_reader_says_so(tmp_path: Path) -> None:
    with LiveCluster(tmp_path, brokers=2) as cluster:
        admin = Admin(cluster)
        admin.create_topic("released", queues=1)
        for broker in ("broker-a", "broker-b"):
            fill(cluster, "released", 20, queue=MessageQueue("released", broker, 0))
        stores = [cluster.store(number) for number in range(2)]

        def pinned() -> list[int]:
            return [len(store.opened.retention.pins) for store in stores]

        with plan_scan(cluster, "released", "earliest", "latest", 1) as plan:
            assert pinned() == [1, 1] and len(numbers(table_of(plan))) == 40
            travelled = pickle.loads(
                pickle.dumps(plan)
            )  # given back by another process than the one that planned
        assert pinned() == [0, 0]
        other = plan_scan(cluster, "released", "earliest", "latest", 1)
        travelled.release()
        assert pinned() == [1, 1], "the ids of a plan are its own"
        other.release()
        assert admin.to_arrow("released").num_rows == 40 and pinned() == [0, 0]
        with pytest.raises(ClientError, match="rows_max"):
            admin.to_arrow("released", rows_max=3)
        assert pinned() == [0, 0]
        left = plan_scan(cluster, "released", "earliest", "latest", 1)
        admin.close()
    left.release()  # nobody is there: told in the log at most


def test_planned_segments_are_kept_and_a_read_after_the_pins_deadline_says_what_is_left(
    tmp_path: Path,
) -> None:
    with LiveCluster(tmp_path, reserved_hours=1) as cluster:
        queue = fill(cluster, "expiring", 100, size=10_000)
        plan = plan_scan(cluster, "expiring", "earliest", "latest", 1)
        store = cluster.store()
        store.flush()
        for file in (cluster.store_path() / "commitlog").iterdir():
            os.utime(file, (0, 0))  # old enough to go at once

        async def clean(after_ms: int) -> None:
            store.request_cleaning()
            store.opened.retention._clock = Later(after_ms)
            store.clean(SYSTEM_CLOCK.now_ms() + after_ms)

        cluster.run(clean(scan_plan.PIN_MS - 60_000))
        assert store.bounds(queue.topic, queue.queue_id)[0] == 0
        assert numbers(table_of(plan)) == numbers(table_of(elsewhere(plan))) == list(range(100))
        cluster.run(clean(scan_plan.PIN_MS + 60_000))
        low, high = store.bounds(queue.topic, queue.queue_id)
        assert 0 < low < high == 100
        for late in (plan, elsewhere(plan)):
            with pytest.raises(
                OffsetOutOfRange, match=rf"no longer holds offset 0 .*\[{low}, 100\)"
            ) as caught:
                table_of(late)
            assert caught.value.args[1:] == (0, low, high)


def test_a_read_goes_on_when_the_broker_is_killed_in_the_middle_of_the_stream(
    tmp_path: Path,
) -> None:
    first = LiveProcess(tmp_path)
    lives = [first]
    try:
        fill(first, "killed", 200, size=1_000)
        plan = plan_scan(first, "killed", "earliest", "latest", 1)
        chunks: list[int] = []

        def kill_once() -> None:
            chunks.append(1)
            if len(chunks) == 2:
                first.kill()
                lives.append(LiveProcess(tmp_path))

        assert numbers(
            table_of(elsewhere(plan), chunk_bytes=20_000, after_chunk=kill_once)
        ) == list(range(200))
        assert len(chunks) > 5
        epoch = plan_scan(lives[1], "killed", "earliest", "latest", 1).splits[0].epoch
        assert epoch == plan.splits[0].epoch + 1, "an unclean start; the read above crossed it"
        assert numbers(table_of(plan)) == list(range(200)), (
            "files of a later epoch are left to the broker"
        )
    finally:
        for life in lives:
            life.kill()


def test_a_broker_that_is_down_is_waited_for_and_its_queues_never_missing(
    cluster: LiveCluster, sent: dict, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert plan_scan(
        cluster, "kinds", "earliest", "latest", 4, ("broker-a", "broker-b")
    ).rows == len(sent)
    monkeypatch.setattr(outage, "PATIENCE_MS", 1_000)
    with pytest.raises(
        ClusterError, match="broker-c did not come back within 1 s.*see `rmq-ray st"
    ):
        plan_scan(cluster, "kinds", "earliest", "latest", 4, ("broker-a", "broker-b", "broker-c"))


class Told:
    """A discovery that knows that broker-c was stopped on purpose."""

    def __init__(self, cluster: LiveCluster) -> None:
        self.lookup = cluster.lookup

    def stopped_brokers(self) -> dict[str, bool]:
        return {"broker-a": False, "broker-b": False, "broker-c": True}


def test_a_read_that_waits_for_a_stopped_broker_says_how_it_is_started(
    cluster: LiveCluster, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(outage, "PATIENCE_MS", 2_000)
    helps = "broker-c stopped: start it with `rmq-ray broker start broker-c`"
    with pytest.raises(ClusterError, match=f"would lack its queues; {helps}"):
        plan_scan(
            Told(cluster), "kinds", "earliest", "latest", 4, ("broker-a", "broker-b", "broker-c")
        )
    assert caplog.text.count(f"{helps}; waited for up to 2 s") == 1
