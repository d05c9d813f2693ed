"""What a broker answers while its store is opened, after it failed, and when it cannot be had."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from rmq_ray.config import FlushMode
from rmq_ray.errors import RmqError, StoreCorrupt, StoreFailed, StoreFull, StoreInUse, StoreMissing
from rmq_ray.model.topics import TopicConfig
from rmq_ray.remoting.wire.codes import RequestCode as Code
from rmq_ray.remoting.wire.codes import ResponseCode
from rmq_ray.remoting.wire.records import unpack_send_answer
from rmq_ray.store.front.message_store import MessageStore
from rmq_ray.store.queue.consume_queue import ConsumeQueue
from tests.support.brokers.broker_bench import Bench, bodies_of, unpacked
from tests.support.faults.fake_peer import FakePeer


def test_until_it_is_recovered_ours_are_told_so_and_foreign_clients_get_not_available(
    tmp_path: Path,
) -> None:
    bench = Bench(tmp_path)
    bench.offload.held = True
    started: list[RmqError | None] = []
    bench.core.open(True, None, started.append)
    for code in (
        Code.SEND_RECORDS,
        Code.PULL_RECORDS,
        Code.HEART_BEAT,
        Code.GET_MAX_OFFSET,
        Code.UPDATE_AND_CREATE_TOPIC,
    ):
        assert bench.ask(code).code == ResponseCode.STILL_RECOVERING
        assert (
            bench.ask(code, peer=FakePeer(trusted=False)).code == ResponseCode.SERVICE_NOT_AVAILABLE
        )
    assert unpacked(bench.ask(Code.BROKER_STATUS))["state"] == "starting"
    bench.offload.held = False
    bench.offload.run()
    bench.offload.drain()
    assert started == [None] and bench.send().base_queue_offset == 0
    bench.close()


def test_a_store_that_is_missing_is_a_typed_error_and_nothing_is_created(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    bench.core.open(False, None, bench.started.append)
    assert [type(error) for error in bench.started] == [StoreMissing]
    assert bench.ask(Code.SEND_RECORDS).code == ResponseCode.SERVICE_NOT_AVAILABLE
    assert (
        unpacked(bench.ask(Code.BROKER_STATUS))["state"] == "broken"
        and list(tmp_path.iterdir()) == []
    )
    bench.close()


def test_a_store_that_another_process_holds_is_tried_again(tmp_path: Path) -> None:
    first = Bench(tmp_path).open()
    second = Bench(tmp_path)
    second.core.open(False, None, second.started.append)
    assert second.started == [] and isinstance(second.core.keeper.error, StoreInUse)
    first.close()
    for _ in range(4):
        second.clock.advance_ms(1_000)
        second.core.tick()
        second.offload.drain()
    assert second.started == [None] and second.core.status()["state"] == "serving"
    second.close()


def test_unreadable_tables_stop_the_start_instead_of_being_replaced(tmp_path: Path) -> None:
    bench = Bench(tmp_path).open()
    bench.send()
    bench.close()
    config = Path(bench.config.store.path) / "config"
    for path in config.glob("topics.json*"):
        path.write_text("{broken")
    again = Bench(tmp_path)
    again.core.open(False, None, again.started.append)
    assert [type(error) for error in again.started] == [StoreCorrupt]
    again.close()
    assert (config / "topics.json").read_text() == "{broken"


def test_a_full_disk_refuses_sends_and_serves_pulls(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench = Bench(tmp_path).open()
    bench.send()

    def full(self: MessageStore, *args: object) -> None:
        raise StoreFull("no room; free space")

    with monkeypatch.context() as patch:
        patch.setattr(MessageStore, "append_frame", full)
        answer = bench.ask(Code.SEND_RECORDS, None, bench.frame("orders"))
        assert (answer.code, answer.remark) == (
            ResponseCode.SERVICE_NOT_AVAILABLE,
            "no room; free space",
        )
        assert bodies_of(bench.pull()[1]) == [b"hello"]
    assert bench.send().base_queue_offset == 1, "it recovers by itself"
    bench.close()


def test_after_a_failed_write_nothing_is_acknowledged_until_the_disk_was_read_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench = Bench(tmp_path, FlushMode.SYNC_FLUSH).open()
    bench.core.tables.topics.put(TopicConfig("orders", 4, 4))
    peer = FakePeer()
    bench.core.handle(
        bench.command(Code.SEND_RECORDS, None, bench.frame("orders", 0, [b"kept"])), peer
    )
    bench.offload.run_until(lambda: bool(peer.sent))
    peer.take()
    bench.offload.held = True

    def broken(self: MessageStore, *args: object) -> None:
        raise StoreFailed("the disk answered EIO")

    bench.core.acks.wait(
        1 << 40, 0, 10, bench.clock.monotonic_ms(), lambda code: peer.sent.append(code)
    )
    with monkeypatch.context() as patch:
        patch.setattr(MessageStore, "append_frame", broken)
        answer = bench.ask(Code.SEND_RECORDS, None, bench.frame("orders"))
    assert answer.code == ResponseCode.SERVICE_NOT_AVAILABLE and peer.take() == [
        ResponseCode.FLUSH_DISK_TIMEOUT
    ], "what waited may be stored"
    assert (
        bench.ask(Code.SEND_RECORDS, None, bench.frame("orders")).code
        == ResponseCode.STILL_RECOVERING
    )
    assert (
        bench.ask(Code.PULL_RECORDS, None, bench.pull_command().body).code
        == ResponseCode.STILL_RECOVERING
    )
    assert bench.heartbeat(FakePeer()).code == 0, "members are served meanwhile"
    assert unpacked(bench.ask(Code.BROKER_STATUS))["state"] == "failed"
    bench.offload.held = False
    bench.offload.run()
    assert bench.core.status()["state"] == "serving" and bench.core.keeper.reopened == 1
    assert bodies_of(bench.pull()[1]) == [b"kept"]
    bench.core.handle(
        bench.command(Code.SEND_RECORDS, None, bench.frame("orders", 0, [b"more"])), peer
    )
    bench.offload.run_until(lambda: bool(peer.sent))
    assert peer.take()[0].code == 0
    bench.close()


def test_a_message_that_may_be_stored_is_not_refused_and_its_repeat_is_recognised(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every code stands for "not stored"; a producer would send the message to another broker, or
    give it up, and it would come all the same.
    """
    bench = Bench(tmp_path).open()
    bench.send()
    peer, frame = FakePeer(), bench.frame("orders", 0, [b"in the log"])

    def broken(self: ConsumeQueue, *args: object) -> int:
        raise StoreFailed("the disk answered EIO")

    with monkeypatch.context() as patch:
        patch.setattr(ConsumeQueue, "append", broken)
        bench.offload.held = True
        assert bench.core.handle(bench.command(Code.SEND_RECORDS, None, frame), peer) is None
    assert peer.closed and peer.sent == [] and bench.core.status()["state"] == "failed"
    bench.offload.held = False
    bench.offload.run()
    assert bodies_of(bench.pull()[1]) == [b"hello", b"in the log"]
    again = unpack_send_answer(bench.ask(Code.SEND_RECORDS, None, frame).body)
    assert (again.base_queue_offset, again.repeat) == (1, True)
    bench.close()


def test_a_bad_sector_refuses_those_who_read_it_and_nobody_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench = Bench(tmp_path).open()
    bench.send("orders", 0, [b"on the bad sector"])
    bench.send("orders", 2)  # what was written last would come from memory
    pread = os.pread

    def broken(fd: int, count: int, position: int) -> bytes:
        if "commitlog" in os.readlink(f"/proc/self/fd/{fd}"):
            raise OSError(errno.EIO, "Input/output error")
        return pread(fd, count, position)

    with monkeypatch.context() as patch:
        patch.setattr(os, "pread", broken)
        code, page = bench.pull()
        assert (code, page) == (ResponseCode.SERVICE_NOT_AVAILABLE, None)
        assert bench.core.status()["state"] == "serving" and bench.core.keeper.reopened == 0
        assert bench.send("orders", 1).base_queue_offset == 0
    assert bodies_of(bench.pull()[1]) == [b"on the bad sector"]
    bench.close()


@pytest.mark.parametrize("readable", [True, False])
def test_a_stop_while_the_store_is_read_again_keeps_its_lock_until_that_has_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, readable: bool
) -> None:
    bench = Bench(tmp_path).open()
    bench.send()
    bench.offload.held = True
    bench.core.keeper.check(StoreFailed("the disk answered EIO"))
    bench.core.close()()
    second = Bench(tmp_path)
    second.core.open(False, None, second.started.append)
    assert isinstance(second.core.keeper.error, StoreInUse), (
        "a thread of the first one is about to write there"
    )
    with monkeypatch.context() as patch:
        if not readable:
            patch.setattr(
                MessageStore,
                "recover",
                lambda self: (_ for _ in ()).throw(StoreFailed("still bad")),
            )
        bench.offload.run()
    assert bench.core.status()["state"] == "closed"
    for _ in range(4):
        second.clock.advance_ms(1_000)
        second.core.tick()
        second.offload.drain()
    assert second.started == [None] and bodies_of(second.pull()[1]) == [b"hello"]
    second.close()


def test_a_store_that_fails_while_it_is_read_again_is_tried_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench = Bench(tmp_path).open()

    def broken(self: MessageStore, *args: object) -> None:
        raise StoreFailed("the disk answers EIO")

    with monkeypatch.context() as patch:
        patch.setattr(MessageStore, "reopen", broken)
        bench.core.keeper.check(StoreFailed("first"))
        assert bench.core.status()["state"] == "failed"
    for _ in range(4):
        bench.clock.advance_ms(1_000)
        bench.core.tick()
        bench.offload.drain()
    assert bench.core.status()["state"] == "serving" and bench.send().base_queue_offset == 0
    bench.close()


def test_requests_after_the_stop_are_told_to_go_elsewhere(tmp_path: Path) -> None:
    bench = Bench(tmp_path).open()
    bench.send()
    finish = bench.core.close()
    assert (
        bench.ask(Code.SEND_RECORDS, None, bench.frame("orders")).code
        == ResponseCode.STILL_RECOVERING
    )
    finish()
    assert unpacked(bench.ask(Code.BROKER_STATUS))["state"] == "closed"


def test_offsets_that_could_not_be_written_are_written_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench = Bench(tmp_path).open()
    for offset in (1, 2):  # the first one is written at once
        bench.core.tables.offsets.commit("orders", "billing", 0, offset, "c")
    saver = bench.core.tables._offsets_saver

    def full(table: object) -> None:
        raise StoreFull("no room")

    with monkeypatch.context() as patch:
        patch.setattr(saver, "_write", full)
        bench.core.tables.save_offsets()
    assert bench.core.tables.offsets.dirty and saver.failures == 1
    bench.core.tables.save_offsets()
    assert not bench.core.tables.offsets.dirty
    bench.close()
