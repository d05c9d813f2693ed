"""What retention takes from groups that lag is counted, once; an administrator can ask for a cycle;
a drained broker refuses sends.
"""

from __future__ import annotations

import logging
from dataclasses import replace
from pathlib import Path

import msgpack
import pytest

from rmq_ray.clock import ManualClock
from rmq_ray.config import GIB, StoreConfig
from rmq_ray.errors import StoreFailed
from rmq_ray.files import DiskSpace, FileSystem
from rmq_ray.remoting.wire.codes import RequestCode as Code
from rmq_ray.remoting.wire.codes import ResponseCode
from rmq_ray.remoting.wire.headers import (
    CreateTopicHeader,
    SendBackHeader,
    UpdateOffsetHeader,
)
from rmq_ray.server.core.upkeep import CLEAN_MS, FIRST_CLEAN_MS
from rmq_ray.server.tables.offset_table import Commit
from rmq_ray.store.reading.retention import RetentionReport
from tests.support.brokers.broker_bench import Bench, unpacked
from tests.support.faults.fake_peer import FakePeer

HOUR_MS = 3_600_000
SEGMENT_BYTES = 4_096
BODY = b"x" * 900  # three records a segment


def aged(path: Path, hours: int = 100) -> Bench:
    """A broker whose files were written ``hours`` ago: its clock is that much ahead of the
    disk's.
    """
    import time

    clock = ManualClock(int(time.time() * 1000) + hours * HOUR_MS)
    store = StoreConfig(
        str(path / "store"),
        segment_bytes=SEGMENT_BYTES,
        consume_queue_entries=16,
        index_slots=97,
        index_items=400,
        preallocate=False,
        delete_when="",
    )
    return Bench(path, clock=clock, store=store).open()


def commit(bench: Bench, group: str, offset: int, queue_id: int = 0, topic: str = "orders") -> None:
    peer = FakePeer()
    bench.heartbeat(peer, group)
    bench.pull(topic, queue_id, 0, group, peer=peer)
    answer = bench.ask(
        Code.UPDATE_CONSUMER_OFFSET,
        UpdateOffsetHeader(group, topic, queue_id, offset).to_fields(),
        peer=peer,
    )
    assert answer.code == 0, answer.remark


def clean(bench: Bench) -> None:
    """Of what is synced: the rest is not removed."""
    assert bench.core.keeper.store is not None
    bench.core.keeper.store.flush()
    assert bench.ask(Code.DELETE_EXPIRED_COMMITLOG).code == 0
    bench.offload.drain()


def minimum(bench: Bench, queue_id: int = 0) -> int:
    assert bench.core.keeper.store is not None
    return bench.core.keeper.store.bounds("orders", queue_id)[0]


def test_messages_that_go_before_a_group_consumed_them_are_counted_once_and_told(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    bench = aged(tmp_path)
    for _ in range(20):
        bench.send(bodies_=[BODY])
    commit(bench, "slow", 2)
    commit(bench, "quick", 20)
    commit(bench, "middle", 16)
    with caplog.at_level(logging.WARNING, "rmq_ray.server"):
        clean(bench)
    low = minimum(bench)
    assert 10 < low < 20, "the segment that is written stays"
    expired = {("slow", low - 2), ("middle", max(0, low - 16))} - {("middle", 0)}
    status = bench.core.status()
    assert {(row["group"], row["messages"]) for row in status["expired"]} == expired
    assert status["expired_messages"] == sum(count for _, count in expired)
    assert (
        f"{low - 2} messages of orders expired before group slow consumed them" in caplog.text
        and "quick" not in caplog.text
    )
    clean(bench)
    assert bench.core.status()["expired_messages"] == status["expired_messages"]
    bench.close()


def test_the_accounts_of_a_group_add_up_over_several_cycles(tmp_path: Path) -> None:
    bench, stored, consumed = aged(tmp_path), 0, 0
    for life in range(4):
        for _ in range(12):
            bench.send(bodies_=[BODY])
        stored += 12
        if life == 0:
            commit(bench, "g", 1)
            consumed = 1
        if life == 2:  # it comes back: what is there is consumed, the rest was lost
            position, end = max(minimum(bench), 1), stored - 2
            consumed += end - position
            commit(bench, "g", end)
        clean(bench)
    low, (committed,) = minimum(bench), bench.core.tables.offsets.of_group("g")["orders"].values()
    backlog = stored - max(committed, low)
    assert stored == consumed + backlog + bench.core.upkeep.total and bench.core.upkeep.total > 20
    bench.close()


def test_a_thousand_groups_that_lag_are_counted_and_the_worst_are_named(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    bench = aged(tmp_path)
    for _ in range(20):
        bench.send(bodies_=[BODY])
    for number in range(1_000):
        assert (
            bench.core.tables.offsets.commit(
                "orders", f"g{number}", 0, number % 10, "x", administrator=True
            )
            is Commit.STORED
        )
    clean(bench)
    low, status = minimum(bench), bench.core.status()
    assert status["expired_messages"] == sum(low - number % 10 for number in range(1_000))
    assert [row["messages"] for row in status["expired"]] == [low] * 20 and caplog.text.count(
        "expired before group"
    ) == 20
    bench.close()
    bench = aged(tmp_path)
    assert len(bench.core.tables.offsets.groups_of("orders")) == 1_000
    bench.close()


def test_what_expired_before_the_start_and_for_groups_that_are_new_is_not_counted(
    tmp_path: Path,
) -> None:
    bench = aged(tmp_path)
    for _ in range(20):
        bench.send(bodies_=[BODY])
    commit(bench, "g", 1)
    clean(bench)
    before = bench.core.upkeep.total
    bench.close()
    bench = aged(tmp_path)
    bench._sequence = 100  # other frames than before
    for topic, group in (("bills", "new"), ("orders", "in another queue")):
        bench.core.tables.offsets.commit(topic, group, 3, 0, "x", administrator=True)
    assert before > 0 and bench.core.upkeep.total == 0
    for _ in range(6):
        bench.send(bodies_=[BODY])
    low = minimum(bench)
    clean(bench)
    assert bench.core.upkeep.total == 2 * (minimum(bench) - low) > 0
    bench.close()


def test_what_a_topic_keeps_less_long_expires_is_counted_and_stays_so_over_a_restart(
    tmp_path: Path,
) -> None:
    clock = ManualClock()
    bench = Bench(tmp_path, clock=clock).open()
    header = CreateTopicHeader("orders", "TBW102", 4, 4, 6, attributes="+reserve.time=2")
    assert bench.ask(Code.UPDATE_AND_CREATE_TOPIC, header.to_fields()).code == 0
    for _ in range(5):
        bench.send(bodies_=[b"x"])
        bench.send("bills", bodies_=[b"x"])
        clock.advance_ms(HOUR_MS)
    commit(bench, "slow", 1)
    bench.core.upkeep.clean()
    bench.offload.drain()
    assert minimum(bench) == 3 and bench.core.status()["expired_messages"] == 2
    code, page = bench.pull(offset=0)
    assert code == ResponseCode.PULL_OFFSET_MOVED and page is not None
    assert (page.next_offset, page.min_offset) == (3, 3)
    assert bench.core.keeper.store is not None
    assert bench.core.keeper.store.bounds("bills", 0) == (0, 5)
    bench.close()
    clock.advance_ms(HOUR_MS)
    bench = Bench(tmp_path, clock=clock).open()
    assert minimum(bench) == 4, "before anybody can ask"
    bench.core.keeper.failed(StoreFailed("a sync failed"))
    bench.offload.drain()
    assert minimum(bench) == 4
    bench.close()


def failing(_now_ms: int) -> RetentionReport:
    raise StoreFailed("the disk is gone")


def test_cycles_come_every_ten_seconds_one_at_a_time_and_a_failed_one_is_told(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench = aged(tmp_path)
    for _ in range(20):
        bench.send(bodies_=[BODY])
    assert bench.core.keeper.store is not None
    bench.core.keeper.store.flush()
    bench.offload.held = True
    bench.core.upkeep.clean()
    bench.core.upkeep.clean()
    bench.core.keeper.store.request_cleaning()
    bench.offload.run()
    bench.offload.held = False
    assert minimum(bench) > 0
    for _ in range(6):
        bench.send(bodies_=[BODY])
    bench.core.keeper.store.flush()
    low = minimum(bench)
    bench.clock.advance_ms(60_000 + CLEAN_MS)
    bench.core.tick()
    bench.offload.drain()
    assert minimum(bench) > low
    monkeypatch.setattr(bench.core.keeper.store, "clean", failing)
    bench.core.upkeep.clean()
    bench.offload.drain()
    assert "old files were not removed" in caplog.text and bench.core.keeper.reopened == 1
    bench.offload.drain()
    bench.close()


def test_a_store_that_took_long_to_recover_serves_for_a_minute_before_anything_is_removed(
    tmp_path: Path,
) -> None:
    bench = aged(tmp_path)
    for _ in range(20):
        bench.send(bodies_=[BODY])
    bench.close()
    clock = bench.clock
    hours = ";".join(f"{hour:02}" for hour in range(24))
    store = replace(bench.config.store, delete_when=hours)
    bench = Bench(tmp_path, clock=clock, store=store)
    clock.advance_ms(10 * FIRST_CLEAN_MS)  # of recovery
    bench.open(create=False)

    def tick() -> None:
        bench.core.tick()
        bench.offload.drain()

    for _ in range(FIRST_CLEAN_MS // CLEAN_MS):
        tick()
        assert minimum(bench) == 0
        clock.advance_ms(CLEAN_MS)
    tick()
    assert minimum(bench) > 0
    bench.close()


def test_a_disk_that_fills_up_is_told_early_when_it_is_full_and_when_that_ends(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench = aged(tmp_path, hours=1)
    store = bench.core.keeper.store
    assert store is not None and bench.core.status()["store"]["disk_free_bytes"] is None
    disks = [
        DiskSpace(0.95, 60 * GIB),  # a large disk: nothing is said
        DiskSpace(0.95, 10 * GIB),
        DiskSpace(0.96, 9 * GIB),  # said once
        DiskSpace(0.98, 3 * GIB),
        DiskSpace(0.5, 100 * GIB),
    ]
    found = iter(disks)
    monkeypatch.setattr(FileSystem, "disk_space", lambda _files, _path: next(found))
    told = []
    with caplog.at_level(logging.INFO, "rmq_ray.server"):
        for _ in disks:
            caplog.clear()
            bench.core.upkeep.clean()
            bench.offload.drain()
            told.append([record.getMessage() for record in caplog.records])
    assert [len(lines) for lines in told] == [0, 1, 0, 1, 1]
    assert "the disk fills up (95% used, 10.0 GiB free)" in told[1][0]
    assert "the disk is full (98% used, 3.0 GiB free): sends are refused" in told[3][0]
    assert "has room again (50% used, 100.0 GiB free)" in told[4][0]
    assert bench.core.status()["store"]["disk_free_bytes"] == 100 * GIB
    bench.close()


# --- a drained broker ---


def drain(bench: Bench, body: bytes, trusted: bool = True) -> int:
    return bench.ask(Code.DRAIN_BROKER, None, body, FakePeer(trusted=trusted)).code


def test_a_drained_broker_refuses_every_kind_of_send_and_serves_the_rest(tmp_path: Path) -> None:
    bench = Bench(tmp_path).open()
    offset = bench.send().base_log_offset
    commit(bench, "billing", 0)
    assert unpacked(bench.ask(Code.DRAIN_BROKER, None, msgpack.packb([True]))) == {
        "draining": True,
        "was": False,
    }
    refused = bench.ask(Code.SEND_RECORDS, None, bench.frame("orders"))
    assert refused.code == ResponseCode.SERVICE_NOT_AVAILABLE and "drained" in (
        refused.remark or ""
    )
    assert (
        bench.ask(Code.SEND_RECORDS, None, bench.frame("unknown-topic")).code
        == ResponseCode.SERVICE_NOT_AVAILABLE
    )
    assert bench.core.tables.topics.get("unknown-topic") is None
    back = SendBackHeader(offset, "billing", 0, "id", "orders", False, 16)
    assert (
        bench.ask(Code.CONSUMER_SEND_MSG_BACK, back.to_fields()).code == ResponseCode.NO_PERMISSION
    )
    assert bench.pull()[0] == 0 and bench.core.status()["draining"]
    assert {config.permission & 2 for config in bench.core.drain.snapshot()[0].values()} == {0}
    assert {
        config.permission & 2 for config in bench.core.tables.topics.snapshot()[0].values()
    } == {2}
    version = bench.core.tables.topics.version
    assert drain(bench, msgpack.packb([True])) == 0 and bench.core.tables.topics.version == version
    assert drain(bench, msgpack.packb([False])) == 0 and bench.core.tables.topics.version != version
    assert bench.send().base_queue_offset == 1
    bench.close()


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"\xc1",
        msgpack.packb([1]),
        msgpack.packb([]),
        msgpack.packb("yes"),
        msgpack.packb([True, True]),
    ],
)
def test_a_drain_that_makes_no_sense_is_refused(tmp_path: Path, body: bytes) -> None:
    bench = Bench(tmp_path).open()
    assert drain(bench, body) != 0 and not bench.core.identity.draining
    bench.close()


def test_strangers_and_slaves_do_not_drain(tmp_path: Path) -> None:
    bench = Bench(tmp_path).open()
    assert drain(bench, msgpack.packb([True]), trusted=False) == ResponseCode.NO_PERMISSION
    bench.core.identity.broker_id = 1
    assert drain(bench, msgpack.packb([True])) == ResponseCode.NO_PERMISSION
    bench.core.identity.broker_id = 0
    assert not bench.core.identity.draining
    bench.close()
