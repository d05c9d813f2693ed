"""Pulls through a whole broker core over a real store: checks in order, statuses, holding,
committing.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from msgspec.structs import replace

from rmq_ray.clock import SYSTEM_CLOCK, ManualClock
from rmq_ray.codec.record import decode_record
from rmq_ray.config import FlushMode
from rmq_ray.errors import StoreFailed
from rmq_ray.model.groups import (
    ConsumeFromWhere,
    ConsumerData,
    ConsumeType,
    Heartbeat,
    MessageModel,
)
from rmq_ray.model.topics import GroupConfig, TopicConfig
from rmq_ray.protocol.filters.filter_tag import tag_subscription
from rmq_ray.remoting.wire import bodies
from rmq_ray.remoting.wire.codes import RequestCode as Code
from rmq_ray.remoting.wire.codes import ResponseCode
from rmq_ray.remoting.wire.frame import Command
from rmq_ray.remoting.wire.headers import PullHeader
from rmq_ray.remoting.wire.records import ScanRecords, pack_scan
from rmq_ray.server.core.broker_core import TICK_MS
from rmq_ray.store.front import message_store
from tests.support.brokers.broker_bench import Bench, bodies_of, page_of
from tests.support.faults.fake_peer import FakePeer

COMMIT, SUSPEND, INLINE = 1, 2, 4


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    made = Bench(tmp_path).open()
    yield made
    made.close()


def foreign_pull(bench: Bench, peer: FakePeer | None = None, **changes: object) -> Command | None:
    header = PullHeader("billing", "orders", 0, 0, 32, INLINE, 0, 15_000, 0, "*", "TAG")
    return bench.core.handle(
        bench.command(Code.PULL_MESSAGE, replace(header, **changes).to_fields()), peer or FakePeer()
    )  # type: ignore[arg-type]


# --- checks, in their order (10.2) ---


def test_checks_come_in_rocketmqs_order(bench: Bench) -> None:
    """Everything is wrong at first; each repair uncovers the next refusal."""
    core, peer = bench.core, FakePeer()
    codes: list[int] = []

    def ask(flags: int = 0, queue_id: int = 9) -> None:
        codes.append(
            bench.pull("orders", queue_id, 0, "billing", flags, peer=peer, sub_version=5)[0]
        )

    core.identity.permission = 2
    ask()
    core.identity.permission = 6
    core.tables.groups.put(GroupConfig("billing", consume_enable=False))
    ask()
    core.tables.groups.put(GroupConfig("billing"))
    ask()
    core.tables.topics.put(TopicConfig("orders", 4, 4, 2))
    ask()
    core.tables.topics.put(TopicConfig("orders", 4, 4, 6))
    ask()
    ask(queue_id=0)
    bench.heartbeat(peer, topics=("other",))
    ask(queue_id=0)
    bench.heartbeat(peer, version=4)
    ask(queue_id=0)
    bench.heartbeat(peer, version=5)
    ask(queue_id=0)
    assert codes == [16, 16, 17, 16, 1, 24, 24, 25, 19]


def test_a_group_that_is_not_made_automatically_must_exist(tmp_path: Path) -> None:
    bench = Bench(tmp_path, auto_create_groups=False).open()
    assert bench.pull()[0] == ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST
    bench.close()


def test_broadcasting_can_be_forbidden(bench: Bench) -> None:
    bench.send()
    bench.core.tables.groups.put(GroupConfig("billing", consume_broadcast_enable=False))
    data = ConsumerData(
        "billing",
        ConsumeType.CONSUME_PASSIVELY,
        MessageModel.BROADCASTING,
        ConsumeFromWhere.CONSUME_FROM_LAST_OFFSET,
        (tag_subscription("orders", "*", 1),),
    )
    bench.ask(Code.HEART_BEAT, None, bodies.encode_heartbeat(Heartbeat("c", (), (data,))))
    assert bench.pull(flags=0)[0] == ResponseCode.NO_PERMISSION


def test_a_lower_subscription_version_than_the_heartbeats_is_fine(bench: Bench) -> None:
    bench.send()
    peer = FakePeer()
    bench.heartbeat(peer, version=9)
    assert bench.pull(flags=0, sub_version=3, peer=peer)[0] == 0


def test_a_broken_inline_expression_is_refused(bench: Bench) -> None:
    bench.send()
    assert bench.pull(expression="||")[0] == ResponseCode.SUBSCRIPTION_PARSE_FAILED
    assert (
        bench.pull(expression="a >", expression_type="SQL92")[0]
        == ResponseCode.SUBSCRIPTION_PARSE_FAILED
    )


# --- statuses (10.3, 10.4) ---


@pytest.mark.seed("S4-087", "S4-108")
def test_an_empty_queue_is_no_message_at_zero_and_moved_elsewhere(bench: Bench) -> None:
    bench.core.tables.topics.put(TopicConfig("orders", 4, 4))
    code, page = bench.pull(offset=0)
    assert code == 19 and page is not None and page.next_offset == 0
    code, page = bench.pull(offset=5)
    assert code == 21 and page is not None and page.next_offset == 0


@pytest.mark.seed("S4-089", "S4-090", "S4-102", "S4-104")
def test_offsets_at_and_beyond_the_end(bench: Bench) -> None:
    bench.send(bodies_=[b"a", b"b", b"c"])
    for offset, expected in ((0, (0, 3)), (2, (0, 3)), (3, (19, 3)), (4, (21, 3)), (100, (21, 3))):
        code, page = bench.pull(offset=offset)
        assert page is not None and (code, page.next_offset, page.min_offset, page.max_offset) == (
            *expected,
            0,
            3,
        )


@pytest.mark.seed("S4-097", "S4-100")
def test_only_matching_tags_are_handed_out_and_the_offset_moves_over_the_rest(bench: Bench) -> None:
    for tag, body in (("paid", b"1"), ("open", b"2"), ("paid", b"3")):
        bench.send(bodies_=[body], tag=tag)
    assert bodies_of(bench.pull(expression="paid")[1]) == [b"1", b"3"]
    code, page = bench.pull(expression="absent")
    assert code == 20 and page is not None and page.next_offset == 3


def test_our_pulls_keep_to_count_and_bytes_but_take_one_record_always(bench: Bench) -> None:
    bench.send(bodies_=[b"x" * 1_000] * 10)
    assert len(bodies_of(bench.pull(count_max=3)[1])) == 3
    assert len(bodies_of(bench.pull(bytes_max=2_500)[1])) == 2
    assert len(bodies_of(bench.pull(bytes_max=1)[1])) == 1


# --- Apache RocketMQ's form ---


@pytest.mark.seed("S4-085", "S4-106")
def test_a_foreign_pull_gets_records_and_four_fields(bench: Bench) -> None:
    bench.send(bodies_=[b"a", b"b"])
    answer = foreign_pull(bench)
    assert answer is not None and answer.code == 0 and answer.remark == "FOUND"
    assert answer.fields == {
        "maxOffset": "2",
        "minOffset": "0",
        "nextBeginOffset": "2",
        "suggestWhichBrokerId": "0",
    }
    data = b"".join(bytes(part) for part in answer.body)  # type: ignore[union-attr]
    first = decode_record(data)
    assert first.body == b"a" and decode_record(data, first.size).body == b"b"


def test_a_foreign_pull_gets_at_most_32_records(bench: Bench) -> None:
    bench.send(bodies_=[b"x"] * 100)
    answer = foreign_pull(bench, max_count=100)
    assert (
        answer is not None
        and answer.fields is not None
        and answer.fields["nextBeginOffset"] == "32"
    )


@pytest.mark.parametrize(
    ("offset", "code", "remark"), [(1, 19, "OFFSET_OVERFLOW_ONE"), (2, 21, "OFFSET_OVERFLOW_BADLY")]
)
def test_a_foreign_pull_is_told_the_stores_status(
    bench: Bench, offset: int, code: int, remark: str
) -> None:
    bench.send()
    answer = foreign_pull(bench, queue_offset=offset)
    assert answer is not None and (answer.code, answer.remark) == (code, remark)


# --- holding (11) ---


@pytest.mark.seed("S4-133")
def test_the_second_look_at_a_held_pull_does_not_hold_it_again(bench: Bench) -> None:
    bench.send()
    peer = FakePeer()
    assert bench.core.handle(bench.pull_command(offset=1, flags=INLINE | SUSPEND), peer) is None
    bench.core.pulls.parked.wake_all()
    assert [answer.code for answer in peer.sent] == [19], "nothing has come, and it is answered"
    assert len(bench.core.pulls.parked) == 0


@pytest.mark.seed("S4-134", "S4-135", "S4-145", "S4-147")
def test_a_pull_that_finds_nothing_is_held_and_answered_when_a_message_arrives(
    bench: Bench,
) -> None:
    bench.send()
    peer = FakePeer()
    command = bench.pull_command(offset=1, flags=INLINE | SUSPEND)
    assert bench.core.handle(command, peer) is None and peer.sent == []
    bench.send(bodies_=[b"new"])
    assert [answer.opaque for answer in peer.sent] == [command.opaque]
    assert bodies_of(page_of(peer.sent[0])) == [b"new"]
    assert len(bench.core.pulls.parked) == 0


@pytest.mark.seed("S4-141", "S4-144", "S4-146")
def test_arrivals_with_other_tags_do_not_wake(bench: Bench) -> None:
    bench.send()
    peer = FakePeer()
    assert (
        bench.core.handle(
            bench.pull_command(offset=1, flags=INLINE | SUSPEND, expression="paid"), peer
        )
        is None
    )
    bench.send(tag="open")
    assert peer.sent == []
    bench.send(bodies_=[b"!"], tag="paid")
    assert bodies_of(page_of(peer.sent[0])) == [b"!"]


@pytest.mark.seed("S4-131", "S4-143")
def test_a_held_pull_ends_with_its_time(bench: Bench) -> None:
    bench.send()
    peer = FakePeer()
    bench.core.handle(bench.pull_command(offset=1, flags=INLINE | SUSPEND, suspend_ms=15_000), peer)
    bench.clock.advance_ms(14_999)
    bench.core.tick()
    assert peer.sent == []
    bench.clock.advance_ms(TICK_MS)
    bench.core.tick()
    assert [answer.code for answer in peer.sent] == [19]


@pytest.mark.seed("S4-129", "S4-132")
def test_with_long_polling_off_a_pull_waits_one_second_and_no_arrival_wakes_it(
    tmp_path: Path,
) -> None:
    bench = Bench(tmp_path, long_polling=False).open()
    bench.send()
    peer = FakePeer()
    bench.core.handle(bench.pull_command(offset=1, flags=INLINE | SUSPEND), peer)
    bench.send(bodies_=[b"new"])
    assert peer.sent == []
    bench.clock.advance_ms(1_000)
    bench.core.tick()
    assert bodies_of(page_of(peer.sent[0])) == [b"new"]
    bench.close()


def test_pulls_are_answered_at_once_without_the_flag_or_without_time_to_wait(bench: Bench) -> None:
    bench.send()
    assert bench.pull(offset=1, flags=INLINE)[0] == 19
    assert bench.pull(offset=1, flags=INLINE | SUSPEND, suspend_ms=0)[0] == 19


def test_a_closed_connections_pull_is_forgotten(bench: Bench) -> None:
    bench.send()
    peer = FakePeer()
    bench.core.handle(bench.pull_command(offset=1, flags=INLINE | SUSPEND), peer)
    peer.closed = True
    bench.core.closed(peer)
    assert len(bench.core.pulls.parked) == 0
    bench.send()
    assert peer.sent == []


def test_too_many_held_pulls_are_refused_as_busy(tmp_path: Path) -> None:
    bench = Bench(tmp_path, parked_pulls_max=1).open()
    bench.send()
    first = bench.core.handle(bench.pull_command(offset=1, flags=INLINE | SUSPEND), FakePeer())
    second = bench.core.handle(bench.pull_command(offset=1, flags=INLINE | SUSPEND), FakePeer())
    assert first is None and second is not None and second.code == ResponseCode.SYSTEM_BUSY
    bench.close()


def test_a_held_pull_whose_topic_was_deleted_is_refused(bench: Bench) -> None:
    bench.send()
    peer = FakePeer()
    bench.core.handle(bench.pull_command(offset=1, flags=INLINE | SUSPEND), peer)
    assert bench.ask(Code.DELETE_TOPIC_IN_BROKER, {"topic": "orders"}).code == 0
    bench.clock.advance_ms(15_000)
    bench.core.tick()
    assert [answer.code for answer in peer.sent] == [ResponseCode.TOPIC_NOT_EXIST]


def test_under_sync_flush_a_held_pull_wakes_when_the_message_is_durable(tmp_path: Path) -> None:
    bench = Bench(tmp_path, FlushMode.SYNC_FLUSH).open()
    bench.core.tables.topics.put(TopicConfig("orders", 4, 4))
    consumer, producer = FakePeer(), FakePeer()
    assert bench.core.handle(bench.pull_command(flags=INLINE | SUSPEND), consumer) is None
    bench.core.handle(bench.command(Code.SEND_RECORDS, None, bench.frame("orders")), producer)
    assert consumer.sent == []
    bench.offload.run_until(lambda: bool(consumer.sent))
    assert bodies_of(page_of(consumer.sent[0])) == [b"hello"]
    bench.close()


# --- committing on the way, zombies (10.6; promises) ---


@pytest.mark.seed("S4-112", "S4-113")
def test_the_first_pass_commits_even_when_the_pull_is_held(bench: Bench) -> None:
    bench.send()
    peer = FakePeer()
    bench.core.handle(
        bench.pull_command(offset=1, flags=INLINE | SUSPEND | COMMIT, commit_offset=1), peer
    )
    assert bench.core.tables.offsets.query("orders", "billing", 0) == 1
    bench.core.tables.offsets.commit("orders", "billing", 0, 0, None, administrator=True)
    bench.send()
    assert len(peer.sent) == 1 and bench.core.tables.offsets.query("orders", "billing", 0) == 0, (
        "the second pass commits nothing, though it would take the group forward"
    )


@pytest.mark.seed("S4-112")
def test_without_the_flag_nothing_is_committed(bench: Bench) -> None:
    bench.send()
    bench.pull(commit_offset=1)
    assert bench.core.tables.offsets.query("orders", "billing", 0) is None


def test_a_zombie_that_wakes_up_cannot_take_the_offset_back(bench: Bench) -> None:
    bench.send(bodies_=[b"x"] * 10)
    old, new = FakePeer(port=1), FakePeer(port=2)
    bench.heartbeat(old)
    bench.heartbeat(new)
    bench.pull(offset=5, flags=COMMIT, commit_offset=5, peer=old)
    bench.pull(offset=5, flags=COMMIT, commit_offset=5, peer=new)
    bench.pull(offset=8, flags=COMMIT, commit_offset=8, peer=new)
    bench.pull(offset=2, flags=COMMIT, commit_offset=2, peer=old)
    assert (
        bench.core.tables.offsets.query("orders", "billing", 0) == 8
        and bench.core.tables.offsets.refused == 1
    )


def test_the_puller_itself_may_go_back(bench: Bench) -> None:
    bench.send(bodies_=[b"x"] * 10)
    peer = FakePeer()
    bench.heartbeat(peer)
    bench.pull(offset=8, flags=COMMIT, commit_offset=8, peer=peer)
    fields = {"consumerGroup": "billing", "topic": "orders", "queueId": "0", "commitOffset": "3"}
    assert (
        bench.core.handle(bench.command(Code.UPDATE_CONSUMER_OFFSET, fields, oneway=True), peer)
        is None
    )
    assert (
        bench.core.tables.offsets.query("orders", "billing", 0) == 3
        and bench.core.tables.offsets.lowered == 1
    )


@pytest.mark.parametrize("known_epoch", [0, 1])
def test_what_a_reader_consumed_before_a_cut_does_not_count_for_what_was_stored_behind_it(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, known_epoch: int
) -> None:
    """The reader had consumed 8 messages, the log was cut to 5, and others follow: 5, 6 and 7 were
    not consumed by anyone.
    """
    bench.send(bodies_=[b"x"] * 5)
    store = bench.core.keeper.store
    assert store is not None
    monkeypatch.setattr(type(store), "epochs", ((1, 0), (2, store.end_offset)))
    monkeypatch.setattr(type(store), "epoch", 2)
    bench.send(bodies_=[b"y"] * (5 if known_epoch else 2))
    bench.pull(offset=8, flags=INLINE | COMMIT, commit_offset=8, epoch=known_epoch)
    assert (
        bench.core.tables.offsets.query("orders", "billing", 0) is None
        and bench.core.tables.offsets.refused == 1
    )
    bench.pull(offset=5, flags=INLINE | COMMIT, commit_offset=5, epoch=known_epoch)
    assert bench.core.tables.offsets.query("orders", "billing", 0) == 5


# --- moved offsets, scans ---


def test_a_moved_offset_leaves_an_event_for_operators_once_a_second(bench: Bench) -> None:
    bench.send()
    for _ in range(3):
        assert bench.pull(offset=50)[0] == 21
    assert bench.core.counters.offset_moved == 3
    code, page = bench.pull("OFFSET_MOVED_EVENT", 0, 0)
    assert code == 0 and bodies_of(page) == [
        b'{"consumerGroup":"billing","messageQueue":{"brokerName":"broker-a","queueId":0,'
        b'"topic":"orders"},"offsetNew":1,"offsetRequest":50}'
    ]
    bench.clock.advance_ms(1_000)
    bench.pull(offset=50)
    assert len(bodies_of(bench.pull("OFFSET_MOVED_EVENT", 0, 0, expression="billing")[1])) == 2


def test_scans_read_ranges_without_a_group(bench: Bench) -> None:
    bench.send(bodies_=[b"%d" % n for n in range(10)])

    def scan(start: int, end: int, bytes_max: int = 1 << 20) -> Command:
        return bench.ask(
            Code.SCAN_RECORDS, None, pack_scan(ScanRecords("orders", 0, start, end, bytes_max))
        )

    assert bodies_of(page_of(scan(2, 5))) == [b"2", b"3", b"4"]
    assert bodies_of(page_of(scan(8, 100))) == [b"8", b"9"]
    assert len(bodies_of(page_of(scan(0, 10, 1)))) == 1
    assert scan(5, 5).code == 19 and scan(11, 12).code == 21
    assert (
        bench.ask(Code.SCAN_RECORDS, None, pack_scan(ScanRecords("absent", 0, 0, 1, 1))).code == 17
    )


def test_a_reader_from_before_a_cut_is_sent_back_to_the_cut(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Five messages of epoch 1, an unclean start, then others: a reader that had seen more of epoch
    1 must not skip any of epoch 2.
    """
    bench.send(bodies_=[b"old"] * 5)
    store = bench.core.keeper.store
    assert store is not None and store.epoch == 1
    monkeypatch.setattr(type(store), "epochs", ((1, 0), (2, store.end_offset)))
    monkeypatch.setattr(type(store), "epoch", 2)
    bench.send(bodies_=[b"new"] * 3)
    for offset, next_offset, code in ((5, 8, 0), (6, 5, 21), (8, 5, 21), (20, 5, 21), (3, 8, 0)):
        found, page = bench.pull(offset=offset, epoch=1)
        assert page is not None and (found, page.next_offset, page.epoch) == (code, next_offset, 2)
    assert bench.pull(offset=8, epoch=2)[0] == 19
    answer = bench.ask(
        Code.SCAN_RECORDS, None, pack_scan(ScanRecords("orders", 0, 7, 8, 1 << 20, 1))
    )
    page = page_of(answer)
    assert answer.code == 21 and page is not None and page.next_offset == 5
    assert bench.core.counters.offset_moved == 3


def test_malformed_requests_are_refused(bench: Bench) -> None:
    for code in (Code.PULL_RECORDS, Code.SCAN_RECORDS):
        assert bench.ask(code, None, b"\xc1").code == ResponseCode.SYSTEM_ERROR
    answer = foreign_pull(bench)
    assert answer is not None
    refused = bench.ask(Code.PULL_MESSAGE, {"topic": "orders"})
    assert refused.code == ResponseCode.SYSTEM_ERROR and "consumerGroup" in (refused.remark or "")


# --- cold reads ---


def test_reads_far_behind_the_logs_end_leave_the_loop(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(message_store, "WARM_BYTES", 2_000)
    monkeypatch.setattr(message_store, "TAIL_RECORDS", 4)
    for n in range(30):
        bench.send(bodies_=[b"%d" % n])
    bench.offload.held = True
    peer = FakePeer()
    assert (
        bench.core.handle(
            bench.pull_command(offset=0, count_max=2, flags=INLINE | COMMIT, commit_offset=1), peer
        )
        is None
        and peer.sent == []
    )
    assert bodies_of(bench.pull(offset=28)[1]) == [b"28", b"29"], (
        "near the end nothing is offloaded"
    )
    bench.offload.run()
    assert (
        bodies_of(page_of(peer.sent[0])) == [b"0", b"1"]
        and bench.core.tables.offsets.query("orders", "billing", 0) == 1
    )


def test_a_store_that_fails_during_a_cold_read_refuses_the_pull(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(message_store, "WARM_BYTES", 2_000)
    monkeypatch.setattr(message_store, "TAIL_RECORDS", 4)
    bench.send(bodies_=[b"x" * 100] * 30)
    bench.offload.held = True
    peer = FakePeer()
    assert bench.core.handle(bench.pull_command(offset=0), peer) is None
    bench.core.keeper.check(StoreFailed("EIO"))
    bench.offload.run()
    assert [answer.code for answer in peer.sent] == [ResponseCode.STILL_RECOVERING]


# --- what retention took, what a scan covers ---


@pytest.mark.seed("S4-088")
def test_an_offset_that_retention_took_is_moved_to_the_minimum(tmp_path: Path) -> None:
    clock = ManualClock(SYSTEM_CLOCK.now_ms())
    store_settings = Bench(tmp_path).config.store.but(reserved_hours=1)
    bench = Bench(tmp_path, clock=clock, store=store_settings).open()
    for _ in range(4):
        bench.send(bodies_=[b"x" * 10_000] * 50)
    store = bench.core.keeper.store
    assert store is not None
    store.flush()
    clock.advance_ms(2 * 3_600_000)
    store.request_cleaning()
    store.clean(clock.now_ms())
    low, high = store.bounds("orders", 0)
    assert 0 < low < high == 200
    code, page = bench.pull(offset=0)
    assert page is not None and (code, page.next_offset, page.min_offset) == (21, low, low)
    assert (
        bench.ask(
            Code.QUERY_CONSUMER_OFFSET, {"consumerGroup": "new", "topic": "orders", "queueId": "0"}
        ).code
        == ResponseCode.QUERY_NOT_FOUND
    )
    bench.close()


@pytest.mark.seed("S4-091")
def test_a_foreign_pull_looks_at_800_entries_and_no_further(bench: Bench) -> None:
    for _ in range(10):
        bench.send(bodies_=[b"x"] * 100, tag="open")
    answer = foreign_pull(bench, subscription="absent")
    assert (
        answer is not None
        and answer.code == 20
        and answer.fields is not None
        and answer.fields["nextBeginOffset"] == "800"
    )


@pytest.mark.seed("S4-084")
def test_retry_messages_are_filtered_by_the_subscription_of_the_retry_topic(bench: Bench) -> None:
    peer = FakePeer()
    bench.heartbeat(peer, topics=("orders", "%RETRY%billing"))
    bench.core.writer.put("%RETRY%billing", 0, b"again", {"TAGS": "whatever"})
    code, page = bench.pull("%RETRY%billing", 0, 0, flags=0, peer=peer)
    assert code == 0 and bodies_of(page) == [b"again"]
