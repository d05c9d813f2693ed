"""SEND_RECORDS and PULL_RECORDS through a whole broker core over a real store."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from rmq_ray.config import FlushMode
from rmq_ray.model.ids import FrameId
from rmq_ray.model.topics import TopicConfig
from rmq_ray.remoting.wire.codes import RequestCode as Code
from rmq_ray.remoting.wire.codes import ResponseCode
from rmq_ray.remoting.wire.records import unpack_send_answer
from tests.support.brokers.broker_bench import Bench, bodies_of
from tests.support.faults.fake_peer import FakePeer


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    made = Bench(tmp_path).open()
    yield made
    made.close()


@pytest.mark.seed("S3-088")
def test_a_sent_frame_comes_back_by_a_pull(bench: Bench) -> None:
    first = bench.send(bodies_=[b"a", b"b"])
    second = bench.send(bodies_=[b"c"])
    assert (first.base_queue_offset, second.base_queue_offset) == (0, 2)
    assert first.base_log_offset == 0 < second.base_log_offset
    code, page = bench.pull()
    assert code == 0 and bodies_of(page) == [b"a", b"b", b"c"]
    assert page is not None and (
        page.next_offset,
        page.min_offset,
        page.max_offset,
        page.epoch,
    ) == (3, 0, 3, 1)


@pytest.mark.seed("S0-020", "S3-087")
def test_a_missing_topic_is_made_with_four_queues(bench: Bench) -> None:
    bench.send("fresh-topic", queue_id=3)
    assert bench.core.tables.topics.get("fresh-topic") == TopicConfig("fresh-topic", 4, 4, 6)


def test_the_first_send_to_a_new_topic_waits_until_the_topic_is_on_disk(bench: Bench) -> None:
    bench.offload.held = True
    peer = FakePeer()
    commands = [
        bench.command(Code.SEND_RECORDS, None, bench.frame("orders", 0, [body]))
        for body in (b"a", b"b")
    ]
    assert [bench.core.handle(command, peer) for command in commands] == [None, None]
    for command in commands:
        # the connection reuses its buffer
        command.body[:] = bytes(len(command.body))  # type: ignore[index]
    assert (
        peer.sent == []
        and bench.core.keeper.store is not None
        and bench.core.keeper.store.bounds("orders", 0) == (0, 0)
    )
    bench.offload.run()
    assert [answer.opaque for answer in peer.sent] == [command.opaque for command in commands]
    assert [unpack_send_answer(answer.body).base_queue_offset for answer in peer.sent] == [0, 1]
    assert "orders" in (Path(bench.config.store.path) / "config" / "topics.json").read_text()


@pytest.mark.parametrize(("queue_id", "code"), [(4, 1), (99, 1), (-1, 1)])
def test_a_queue_that_the_topic_does_not_have_is_refused(
    bench: Bench, queue_id: int, code: int
) -> None:
    bench.send("orders")
    answer = bench.ask(Code.SEND_RECORDS, None, bench.frame("orders", queue_id))
    assert answer.code == code and "queueId" in (answer.remark or "")


@pytest.mark.parametrize(
    ("topic", "code"),
    [
        ("SCHEDULE_TOPIC_XXXX", 16),
        ("RMQ_SYS_TRANS_HALF_TOPIC", 16),
        ("%RETRY%billing", 16),
        ("%DLQ%billing", 16),
        ("OFFSET_MOVED_EVENT", 16),
    ],
)
def test_system_topics_are_not_sent_to_in_frames(bench: Bench, topic: str, code: int) -> None:
    assert bench.ask(Code.SEND_RECORDS, None, bench.frame(topic)).code == code


def test_a_topic_without_write_permission_is_refused(bench: Bench) -> None:
    bench.core.tables.topics.put(TopicConfig("readonly", 4, 4, 4))
    assert (
        bench.ask(Code.SEND_RECORDS, None, bench.frame("readonly")).code
        == ResponseCode.NO_PERMISSION
    )


def test_permissions_are_looked_up_again_after_a_change(bench: Bench) -> None:
    bench.send("orders")
    bench.core.tables.topics.put(TopicConfig("orders", 4, 4, 4))
    assert (
        bench.ask(Code.SEND_RECORDS, None, bench.frame("orders")).code == ResponseCode.NO_PERMISSION
    )


def test_a_topic_that_a_send_creates_is_told_once(
    bench: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    for _ in range(2):
        bench.send("ordres")
    (line,) = [one.getMessage() for one in caplog.records if "automatically" in one.getMessage()]
    assert line.startswith("topic 'ordres' was created automatically with 4 queues on broker ")


def test_without_automatic_creation_the_topic_must_exist(tmp_path: Path) -> None:
    bench = Bench(tmp_path, auto_create_topics=False).open()
    assert (
        bench.ask(Code.SEND_RECORDS, None, bench.frame("orders")).code
        == ResponseCode.TOPIC_NOT_EXIST
    )
    bench.close()


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"\0\0\0\1",
        b"\xff\xff\xff\xff" * 4,
        b"\0\0\0\1\0\0\0\x05hello",
        b"\0\0\0\1\0\0\0\x64" + bytes(100),
    ],
)
def test_broken_frames_are_refused_and_nothing_is_written(bench: Bench, body: bytes) -> None:
    answer = bench.ask(Code.SEND_RECORDS, None, body)
    assert answer.code == ResponseCode.BAD_RECORDS and answer.remark
    assert bench.core.keeper.store is not None and bench.core.keeper.store.end_offset == 0


def test_every_flipped_bit_of_a_frame_is_refused_or_changes_nothing_of_the_log(
    bench: Bench,
) -> None:
    bench.send("orders")
    store = bench.core.keeper.store
    assert store is not None
    frame = bench.frame("orders", 0, [b"x" * 20])
    end = store.end_offset
    for at in range(8, 8 + 20):  # size, magic, crc, queue id, flag
        broken = bytearray(frame)
        broken[at] ^= 0x40
        answer = bench.ask(Code.SEND_RECORDS, None, broken)
        if answer.code == 0:
            assert 24 <= at < 28, "only the user's flag is free"
            end = store.end_offset
        assert store.end_offset == end


def test_a_repeat_is_answered_with_the_first_result(bench: Bench) -> None:
    frame = bench.frame("orders", 0, [b"a"], frame_id=FrameId(b"p" * 16, 7))
    first, second = (
        unpack_send_answer(bench.ask(Code.SEND_RECORDS, None, frame).body) for _ in range(2)
    )
    assert not first.repeat and second.repeat
    assert (first.base_queue_offset, first.base_log_offset, first.store_ms) == (
        second.base_queue_offset,
        second.base_log_offset,
        second.store_ms,
    )
    assert bench.core.counters.put_repeats == 1 and bench.core.counters.put_messages == 1


def test_a_sequence_that_stood_for_other_bytes_is_refused(bench: Bench) -> None:
    for body, code in ((b"a", 0), (b"b", ResponseCode.DUPLICATE_MISMATCH)):
        assert (
            bench.ask(
                Code.SEND_RECORDS,
                None,
                bench.frame("orders", 0, [body], frame_id=FrameId(b"p" * 16, 7)),
            ).code
            == code
        )


def test_sync_flush_answers_when_the_log_is_durable_and_shows_nothing_before(
    tmp_path: Path,
) -> None:
    bench = Bench(tmp_path, FlushMode.SYNC_FLUSH).open()
    bench.core.tables.topics.put(TopicConfig("orders", 4, 4))
    peer = FakePeer()
    assert (
        bench.core.handle(bench.command(Code.SEND_RECORDS, None, bench.frame("orders")), peer)
        is None
    )
    assert peer.sent == [] and bench.pull()[0] == ResponseCode.PULL_NOT_FOUND, (
        "visible means durable"
    )
    bench.offload.run_until(lambda: bool(peer.sent))
    assert peer.sent[0].code == 0 and unpack_send_answer(peer.sent[0].body).base_queue_offset == 0
    assert bodies_of(bench.pull()[1]) == [b"hello"]
    bench.close()


@pytest.mark.seed("S3-093")
def test_sync_flush_that_takes_five_seconds_is_answered_flush_disk_timeout(tmp_path: Path) -> None:
    bench = Bench(tmp_path, FlushMode.SYNC_FLUSH).open()
    bench.core.tables.topics.put(TopicConfig("orders", 4, 4))
    peer = FakePeer()
    bench.core.handle(bench.command(Code.SEND_RECORDS, None, bench.frame("orders")), peer)
    bench.clock.advance_ms(5_000)
    bench.core.acks.expire(bench.clock.monotonic_ms())
    assert [answer.code for answer in peer.sent] == [ResponseCode.FLUSH_DISK_TIMEOUT]
    bench.offload.run_until(
        lambda: (
            bench.core.keeper.store is not None
            and bench.core.keeper.store.bounds("orders", 0)[1] == 1
        )
    )
    assert len(peer.sent) == 1, "nobody is told twice"
    bench.close()


def test_more_unacknowledged_bytes_than_the_limit_are_refused_as_busy(tmp_path: Path) -> None:
    bench = Bench(tmp_path, FlushMode.SYNC_FLUSH, in_flight_bytes_max=1_200).open()
    bench.core.tables.topics.put(TopicConfig("orders", 4, 4))
    peer = FakePeer()
    answers = [
        bench.core.handle(
            bench.command(Code.SEND_RECORDS, None, bench.frame("orders", 0, [b"x" * 300])), peer
        )
        for _ in range(4)
    ]
    assert [answer.code for answer in answers if answer is not None] == [
        ResponseCode.SYSTEM_BUSY
    ] * 2
    bench.offload.run_until(lambda: len(peer.sent) == 2)
    assert bench.core.acks.in_flight_bytes == 0 and bench.core.counters.refused_busy == 2
    bench.close()


def test_what_was_sent_is_there_after_a_restart_and_so_are_topics_and_repeats(
    tmp_path: Path,
) -> None:
    bench = Bench(tmp_path).open()
    frame = bench.frame("orders", 1, [b"kept"], frame_id=FrameId(b"p" * 16, 1))
    first = unpack_send_answer(bench.ask(Code.SEND_RECORDS, None, frame).body)
    bench.close()
    again = Bench(tmp_path).open(create=False)
    assert bodies_of(again.pull("orders", 1)[1]) == [b"kept"]
    repeat = unpack_send_answer(again.ask(Code.SEND_RECORDS, None, frame).body)
    assert repeat.repeat and repeat.base_log_offset == first.base_log_offset
    again.close()


@pytest.mark.parametrize("flush", list(FlushMode))
def test_oneway_sends_are_stored_and_never_answered(tmp_path: Path, flush: FlushMode) -> None:
    bench = Bench(tmp_path, flush).open()
    peer = FakePeer()
    for _ in range(2):
        assert (
            bench.core.handle(
                bench.command(Code.SEND_RECORDS, None, bench.frame("orders"), oneway=True), peer
            )
            is None
        )
    assert (
        bench.core.handle(bench.command(Code.SEND_RECORDS, None, b"broken", oneway=True), peer)
        is None
    )
    store = bench.core.keeper.store
    assert store is not None
    bench.offload.run_until(
        lambda: store.bounds("orders", 0)[1] == 2
    ) if flush is FlushMode.SYNC_FLUSH else None
    assert store.bounds("orders", 0) == (0, 2) and peer.sent == [] and len(bench.core.acks) == 0
    bench.close()
