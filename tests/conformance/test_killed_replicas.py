"""kill -9 of master and slave in processes of their own: what was acknowledged is there, a copy is
a prefix, consumers go on.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from rmq_ray.client.producer.producer import Producer
from rmq_ray.client.push.push_consumer import PushConsumer
from rmq_ray.clock import SYSTEM_CLOCK
from rmq_ray.codec.record import decode_record
from rmq_ray.config import ConsumerConfig, StoreConfig
from rmq_ray.errors import RmqError
from rmq_ray.model.message import SendStatus
from rmq_ray.store.front.message_store import MessageStore
from rmq_ray.store.replication.follower_store import FollowerStore
from tests.support.brokers.live_cluster import SMALL
from tests.support.brokers.replicated_process import Party
from tests.support.clients.collecting import Collector
from tests.support.waiting import eventually

COUNT = 300


@pytest.fixture
def parties(tmp_path: Path) -> Iterator[dict[str, Party]]:
    found = {"ns": Party(tmp_path, "ns")}
    yield found
    for party in found.values():
        party.kill()


def opened(path: Path, kind: type[MessageStore]) -> MessageStore:
    """The store of a party that was killed."""
    store = kind(
        StoreConfig(str(path), **SMALL),
        SYSTEM_CLOCK,
        broker_name="broker-a",
        store_host=("127.0.0.1", 1),
    )
    store.open(False)
    store.recover()
    store.start(lambda _position: None, threads=False)
    return store


def stored(store: MessageStore) -> dict[tuple[int, int], bytes]:
    """(queue, offset) -> body of everything in topic orders."""
    found: dict[tuple[int, int], bytes] = {}
    for (topic, queue_id), (low, high) in store.queues().items():
        while topic == "orders" and low < high:
            result = store.get_messages(topic, queue_id, low, 1_000, 1 << 22, None)
            data, at = b"".join(result.parts), 0
            for size in result.sizes.tolist():
                record = decode_record(data, at)
                found[queue_id, record.queue_offset] = record.body
                at += size
            low = result.next_offset
    return found


def log_of(store: MessageStore) -> bytes:
    return b"".join(
        segment.read(segment.start, segment.end - segment.start)
        for segment in store.opened.chain.segments()
    )[: store.end_offset]


def test_a_killed_sync_master_leaves_everything_acknowledged_on_its_slave(
    tmp_path: Path, parties: dict[str, Party]
) -> None:
    parties["1"] = Party(tmp_path, "1", "sync")
    parties["master"] = Party(tmp_path, "master", "sync")
    acknowledged: dict[tuple[int, int], bytes] = {}
    with Producer(
        "p", discovery=parties["ns"], retries=0, send_timeout_ms=6_000, raise_on_status=False
    ) as producer:
        eventually(lambda: producer.send("orders", b"first").status is SendStatus.SEND_OK)
        for number in range(400):
            if len(acknowledged) == 300 and "master" in parties:
                parties.pop("master").kill()
            try:
                result = producer.send("orders", b"%d" % number * 20)
            except RmqError:
                break
            if result.status is SendStatus.SEND_OK:
                acknowledged[result.queue.queue_id, result.queue_offset] = b"%d" % number * 20
    assert len(acknowledged) >= 300
    parties.pop("1").kill()
    slave, master = (
        opened(tmp_path / "broker-a-slave-1", FollowerStore),
        opened(tmp_path / "broker-a", MessageStore),
    )
    assert acknowledged.items() <= stored(slave).items()
    assert log_of(master).startswith(log_of(slave))
    for store in (slave, master):
        store.shutdown()


def test_a_slave_that_is_killed_again_and_again_catches_up_each_time(
    tmp_path: Path, parties: dict[str, Party]
) -> None:
    parties["master"] = Party(tmp_path, "master")
    parties["1"] = Party(tmp_path, "1")
    with Producer("p", discovery=parties["ns"]) as producer:
        for round_ in range(3):
            for number in range(150):
                producer.send("orders", b"%d-%d" % (round_, number) * 40)
                if number == 100:
                    parties.pop("1").kill()
            parties["1"] = Party(tmp_path, "1")
    eventually(lambda: _used(tmp_path / "broker-a-slave-1") >= _used(tmp_path / "broker-a"))
    parties.pop("1").kill()
    parties.pop("master").kill()
    slave, master = (
        opened(tmp_path / "broker-a-slave-1", FollowerStore),
        opened(tmp_path / "broker-a", MessageStore),
    )
    assert (
        log_of(slave) == log_of(master)[: slave.end_offset]
        and slave.end_offset == master.end_offset
        and len(stored(slave)) == 450
    )
    for store in (slave, master):
        store.shutdown()


class Held(Collector):
    """Keeps its listener's threads until ``gate`` opens. ``begun``: it was given a message."""

    def __init__(self, gate: threading.Event) -> None:
        super().__init__()
        self._gate = gate
        self.begun = False

    def __call__(self, messages: list[Any], ctx: Any) -> None:
        self.begun = True
        assert self._gate.wait(60)
        super().__call__(messages, ctx)


def _used(store: Path) -> int:
    """Bytes up to the last one that is not zero."""
    files = sorted((store / "commitlog").iterdir())
    used = [(int(path.name), len(path.read_bytes().rstrip(b"\0"))) for path in files]
    return max((start + length for start, length in used if length), default=0)


@pytest.mark.seed("S3-135", "S3-144")
def test_consumers_go_on_from_the_slave_when_the_master_is_killed(
    tmp_path: Path, parties: dict[str, Party]
) -> None:
    """Most of it is still at the brokers then: consumers have at most eight messages of a queue."""
    parties["master"] = Party(tmp_path, "master")
    parties["1"] = Party(tmp_path, "1")
    gate = threading.Event()
    collector, everything = Held(gate), Held(gate)
    small = {"pull_records": 4, "threshold_messages": 4}
    local = ConsumerConfig("b", local_offset_dir=str(tmp_path / "offsets"), **small)
    with Producer("p", discovery=parties["ns"]) as producer:
        for number in range(COUNT):
            producer.send("orders", b"%d" % number)
    with (
        PushConsumer(
            "g",
            listener=collector,
            subscriptions={"orders": "*"},
            discovery=parties["ns"],
            start_from="first",
            config=ConsumerConfig("g", **small),
        ),
        PushConsumer(
            "b",
            listener=everything,
            subscriptions={"orders": "*"},
            discovery=parties["ns"],
            start_from="first",
            model="broadcasting",
            config=local,
        ),
    ):
        eventually(lambda: _used(tmp_path / "broker-a-slave-1") >= _used(tmp_path / "broker-a"))
        eventually(lambda: collector.begun and everything.begun)
        parties.pop("master").kill()
        gate.set()
        collector.wait_for(COUNT)
        everything.wait_for(COUNT)
        with (
            Producer("p", discovery=parties["ns"], send_timeout_ms=500) as producer,
            pytest.raises(RmqError),
        ):
            producer.send("orders", b"nobody takes it")
        parties["master"] = Party(tmp_path, "master")
        with Producer("p", discovery=parties["ns"]) as producer:
            producer.send("orders", b"%d" % COUNT)
        wanted = [b"%d" % number for number in range(COUNT + 1)]
        assert sorted(collector.wait_for(COUNT + 1), key=int) == wanted, (
            "once each, though the master was away"
        )
        assert sorted(everything.wait_for(COUNT + 1), key=int) == wanted
