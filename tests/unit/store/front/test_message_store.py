"""A store from outside: appends, repeats, visibility, reads, failures
(docs/file-format.md#flushing, docs/file-format.md#reading).
"""

from __future__ import annotations

import struct
import threading

import pytest

from rmq_ray.codec.record import BLANK_MAGIC, decode_record
from rmq_ray.codec.record_batch import pack_mark
from rmq_ray.config import FlushMode
from rmq_ray.errors import (
    AppendUnknown,
    DuplicateMismatch,
    MessageIllegal,
    MessageTooLarge,
    StoreError,
    StoreFailed,
    StoreForeign,
    StoreFull,
    StoreInUse,
    StoreMissing,
    StoreNotReady,
)
from rmq_ray.model.hashing import java_hash
from rmq_ray.model.pulling import GetMessageStatus
from rmq_ray.model.topics import SCHEDULE_TOPIC
from rmq_ray.store.front.message_store import MessageStore, StoredMessage, StoreState
from rmq_ray.store.queue.dispatcher import Dispatcher, DispatchRules
from rmq_ray.store.reading.retention import Room
from rmq_ray.store.replication.follower_store import FollowerStore
from tests.support.brokers.store_rig import BORN, HOST, ROOT, StoreRig, make_frame, small_config
from tests.support.faults.crash_fs import CrashFileSystem, keep_all, keep_none

LOG = f"{ROOT}/commitlog/{0:020d}"
SYNC = small_config(flush=FlushMode.SYNC_FLUSH)


def batch_item(body: bytes, properties: str = "", flag: int = 0) -> bytes:
    text = properties.encode()
    return (
        struct.pack(">iiiii", 22 + len(body) + len(text), 0, 0, flag, len(body))
        + body
        + struct.pack(">h", len(text))
        + text
    )


# --- append ---------------------------------------------------------------------------------------


def test_a_frame_gets_dense_offsets_and_the_brokers_own_values() -> None:
    rig = StoreRig()
    first = rig.send([b"a", b"b"], 0)
    second = rig.send([b"c"], 1)
    assert (
        first.base_queue_offset,
        first.count,
        second.base_queue_offset,
        second.base_log_offset,
    ) == (0, 2, 2, first.end_log_offset)
    records = rig.records()
    assert [record.queue_offset for record in records] == [0, 1, 2]
    assert {(record.born_host, record.store_host, record.store_ms) for record in records} == {
        (BORN, HOST, rig.clock.now_ms())
    }
    assert records[2].log_offset == second.base_log_offset


def test_a_repeat_is_answered_with_the_first_result_and_not_stored() -> None:
    rig = StoreRig()
    records, sizes = make_frame([b"a", b"b"], sequence=5)
    first = rig.store.append_frame(bytearray(records), sizes, BORN)
    rig.send([b"other"], 6)
    again = rig.store.append_frame(bytearray(records), sizes, BORN)
    assert again.repeat and not first.repeat
    assert (
        again.base_queue_offset,
        again.base_log_offset,
        again.end_log_offset,
        again.store_ms,
    ) == (0, 0, first.end_log_offset, first.store_ms)
    assert rig.bodies() == [b"a", b"b", b"other"]


@pytest.mark.parametrize("jump_ms", [3_600_000, -3_600_000])
def test_a_repeat_is_known_though_the_clock_jumps(jump_ms: int) -> None:
    rig = StoreRig()
    rig.send([b"a"], producer=1)
    rig.clock.jump_ms(jump_ms)
    rig.send([b"b"], producer=2)
    rig.store.flush()
    assert rig.send([b"a"], producer=1).repeat and rig.send([b"b"], producer=2).repeat
    rig.clock.jump_ms(-jump_ms)
    rig.send([b"c"], producer=3)
    rig.store.flush()
    again = rig.next_life(rig.disk.survivor(keep_all))
    for life in (rig, again):
        assert life.send([b"a"], producer=1).repeat and life.send([b"b"], producer=2).repeat


def test_a_sequence_number_with_other_bytes_is_refused() -> None:
    rig = StoreRig()
    rig.send([b"a"], 5)
    for bodies in ([b"b"], [b"a", b"a"], [b"aa"]):
        with pytest.raises(DuplicateMismatch):
            rig.send(bodies, 5)
    assert rig.bodies() == [b"a"]
    assert not rig.send([b"b"], 5, producer=2).repeat


def test_a_refused_frame_leaves_no_byte() -> None:
    rig = StoreRig()
    records, sizes = make_frame([b"a"] * 40)
    records[-60] ^= 1
    with pytest.raises(MessageIllegal):
        rig.store.append_frame(records, sizes, BORN)
    assert rig.store.end_offset == 0
    with pytest.raises(MessageTooLarge, match="does not fit a segment"):
        rig.send([b"x" * 70_000])
    assert rig.send([b"b"], 1).base_log_offset == 0


def test_a_full_segment_ends_with_a_blank_record_of_at_least_8_bytes() -> None:
    for last in (0, 1, 7, 8, 9):
        rig = StoreRig(config=small_config(segment_bytes=4096))
        one = rig.send([b"x"], 0).end_log_offset
        room = 4096 - one
        overhead = one - 1
        rig.send([b"y" * (room - overhead - last)], 1)
        third = rig.send([b"z"], 2)
        data = rig.disk.names[LOG].current
        moved = last < 8
        begin = one if moved else 4096 - last
        if third.base_log_offset == 4096 or moved:
            size, magic = struct.unpack_from(">iI", data, begin)
            assert (size, magic) == (4096 - begin, BLANK_MAGIC) and size >= 8
        assert len(data) == 4096
        assert [len(body) for body in rig.bodies()] == [1, room - overhead - last, 1]


@pytest.mark.seed("S3-090", "S3-107")
def test_a_frame_never_crosses_a_segment() -> None:
    rig = StoreRig(config=small_config(segment_bytes=4096))
    rig.send([b"a" * 3000], 0)
    moved = rig.send([b"b" * 100] * 10, 1)
    assert moved.base_log_offset == 4096
    assert rig.disk.list_dir(f"{ROOT}/commitlog") == [f"{0:020d}", f"{4096:020d}"]
    assert len(rig.bodies()) == 11
    second = rig.disk.names[f"{ROOT}/commitlog/{4096:020d}"].current
    for record in rig.records()[1:]:
        assert decode_record(second, record.log_offset - 4096).log_offset == record.log_offset, (
            "the file's start and the position in it"
        )


@pytest.mark.seed("S3-086", "S3-088")
def test_the_single_message_path_stores_every_field() -> None:
    rig = StoreRig()
    mark = pack_mark(rig_frame_id(), 1).decode()
    message = StoredMessage(
        "Other",
        3,
        b"hello",
        f"{mark}\x02KEYS\x01k1\x02TAGS\x01TagA",
        7,
        1,
        123,
        ("10.9.8.7", 99),
        4,
        555,
    )
    result = rig.store.append_message(message)
    record = rig.records(3, "Other")[0]
    assert (
        record.body,
        record.properties,
        record.flag,
        record.sys_flag,
        record.born_ms,
        record.born_host,
    ) == (
        b"hello",
        "KEYS\x01k1\x02TAGS\x01TagA",
        7,
        1,
        123,
        ("10.9.8.7", 99),
    )
    assert (
        record.reconsume_times,
        record.prepared_offset,
        record.store_host,
        record.log_offset,
    ) == (4, 555, HOST, result.base_log_offset)
    assert rig.arrivals == [("Other", 3, 1, [java_hash("TagA")])]


def rig_frame_id() -> object:
    from rmq_ray.model.ids import FrameId

    return FrameId(bytes(16), 0)


def test_ipv6_hosts_fit_single_messages() -> None:
    rig = StoreRig()
    rig.store.append_message(StoredMessage("T", 0, b"x", born_host=("2001:db8::1", 7)))
    rig.store.set_store_host(("fe80::2", 10911))
    rig.store.append_message(StoredMessage("T", 0, b"y", born_host=("2001:db8::1", 8)))
    assert rig.store.earliest_store_ms("T") == rig.clock.now_ms()
    first, second = rig.records(0, "T")
    assert (first.born_host, first.store_host, first.store_ms) == (
        ("2001:db8::1", 7),
        HOST,
        rig.clock.now_ms(),
    )
    assert (second.store_host, second.queue_offset, second.store_ms) == (
        ("fe80::2", 10911),
        1,
        rig.clock.now_ms(),
    )


def test_prepared_and_rolled_back_records_get_no_queue_offset() -> None:
    rig = StoreRig()
    for sys_flag in (0, 4, 12, 8):
        rig.store.append_message(
            StoredMessage("T", 0, b"%d" % sys_flag, "KEYS\x01k", sys_flag=sys_flag)
        )
    assert rig.bodies(0, "T") == [b"0", b"8"]
    assert len(rig.store.query("T", "k", 32, 0, 1 << 60)) == 3, (
        "all but the rolled back one are indexed"
    )
    again = rig.next_life(rig.disk.survivor(keep_all))
    assert again.bodies(0, "T") == [b"0", b"8"]


def test_delayed_records_carry_their_delivery_time_as_tags_code() -> None:
    rig = StoreRig()
    store = MessageStore(
        rig.config,
        rig.clock,
        broker_name="b",
        store_host=HOST,
        files=CrashFileSystem(),
        rules=DispatchRules({3: 10_000}.get),
    )
    store.open(True)
    store.recover()
    store.start(lambda _position: None, threads=False)
    seen: list[list[int]] = []
    store.set_arrival_listener(lambda _topic, _queue, _maximum, codes: seen.append(list(codes)))
    for level in ("3", "99", "0"):
        store.append_message(
            StoredMessage(SCHEDULE_TOPIC, 2, b"x", f"DELAY\x01{level}\x02TAGS\x01a")
        )
    assert seen == [[rig.clock.now_ms() + 10_000], [rig.clock.now_ms() + 1_000], [java_hash("a")]]


def test_a_batch_body_becomes_records_with_consecutive_offsets() -> None:
    rig = StoreRig()
    body = (
        batch_item(b"one", "TAGS\x01a", 5)
        + batch_item(b"two", "TAGS\x01b\x02")
        + batch_item(b"three")
    )
    result = rig.store.append_batch_body(StoredMessage("T", 1, body, "KEYS\x01k", born_host=BORN))
    records = rig.records(1, "T")
    assert [(record.body, record.properties, record.flag) for record in records] == [
        (b"one", "TAGS\x01a\x02KEYS\x01k", 5),
        (b"two", "TAGS\x01b\x02KEYS\x01k", 0),
        (b"three", "KEYS\x01k", 0),
    ]
    assert result.log_offsets == tuple(record.log_offset for record in records) and (
        result.base_queue_offset,
        result.count,
    ) == (0, 3)


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"x",
        batch_item(b"one")[:-1],
        batch_item(b"one") + b"y",
        struct.pack(">iiiii", 22, 0, 0, 0, -1) + b"\0\0",
        struct.pack(">iiiii", 0, 0, 0, 0, 0) + b"\0\0",
    ],
)
def test_a_batch_body_that_is_not_in_form_is_refused(body: bytes) -> None:
    rig = StoreRig()
    with pytest.raises(MessageIllegal, match="batch"):
        rig.store.append_batch_body(StoredMessage("T", 0, body))
    assert rig.store.end_offset == 0


@pytest.mark.parametrize(
    ("message", "error"),
    [
        (StoredMessage("../T", 0, b"x"), MessageIllegal),
        (StoredMessage("T", -1, b"x"), MessageIllegal),
        (StoredMessage("T", 70_000, b"x"), MessageIllegal),
        (StoredMessage("T", 0, b"x", "a\x01" + "y" * 32_767), MessageIllegal),
        (StoredMessage("T", 0, b"x", "a\x01b\0"), MessageIllegal),
        (StoredMessage("T", 0, b"x" * 1001), MessageTooLarge),
    ],
)
def test_what_a_record_cannot_hold_is_refused(
    message: StoredMessage, error: type[Exception]
) -> None:
    rig = StoreRig(config=small_config(body_bytes_max=1000))
    with pytest.raises(error):
        rig.store.append_message(message)


# --- visible means durable ------------------------------------------------------------------------


@pytest.mark.seed("S4-137", "S4-146")
def test_under_async_flush_a_frame_is_visible_when_append_returns() -> None:
    rig = StoreRig()
    result = rig.send([b"a", b"b"], 0, head="TAGS\x01x")
    assert rig.store.visible_offset == rig.store.durable_offset == result.end_log_offset
    assert rig.arrivals == [("TopicTest", 0, 2, [java_hash("x")] * 2)]


@pytest.mark.seed("S3-092")
def test_an_append_reaches_the_page_cache_and_the_disk_only_with_a_flush() -> None:
    rig = StoreRig()
    rig.store.flush()
    assert rig.disk.unsynced("commitlog") == []
    rig.send([b"a"], 0)
    assert rig.disk.unsynced("commitlog") and rig.bodies() == [b"a"]
    assert rig.next_life(rig.disk.survivor(keep_none, "boot-2")).bodies() == []
    rig.store.flush()
    assert rig.disk.unsynced("commitlog") == [] and rig.next_life(
        rig.disk.survivor(keep_none, "boot-2")
    ).bodies() == [b"a"]


def test_under_sync_flush_nothing_is_visible_before_it_is_synced() -> None:
    rig = StoreRig(config=SYNC)
    results = [rig.send([b"a", b"b"], 0), rig.send([b"c"], 1)]
    single = rig.store.append_message(StoredMessage("TopicTest", 0, b"d", "KEYS\x01k"))
    assert (
        rig.store.visible_offset,
        rig.store.durable_offset,
        rig.store.bounds("TopicTest", 0),
        rig.arrivals,
    ) == (0, 0, (0, 0), [])
    assert (
        rig.store.record_at(0) is None and rig.store.query("TopicTest", "k", 10, 0, 1 << 60) == []
    )
    assert rig.store.dispatch_durable() == 0, "not synced yet"
    assert rig.store.flush_step()
    assert rig.durable == [single.end_log_offset] and rig.store.bounds("TopicTest", 0) == (0, 0)
    assert rig.store.dispatch_durable() == single.end_log_offset
    assert [arrival[2] for arrival in rig.arrivals] == [2, 3, 4]
    assert rig.store.record_at(results[1].base_log_offset) is not None


@pytest.mark.seed("S3-100")
def test_one_sync_covers_all_that_wait() -> None:
    rig = StoreRig(config=SYNC)
    for number in range(10):
        rig.send([b"x"], number)
    before = rig.disk.syncs
    rig.store.flush_step()
    assert rig.disk.syncs == before + 1
    rig.store.flush_step()
    assert rig.disk.syncs == before + 1, "nothing new, nothing to sync"


def test_nothing_behind_the_replicated_position_is_visible() -> None:
    rig = StoreRig()
    rig.store.set_replicated(0)
    first, second = rig.send([b"a"], 0), rig.send([b"b"], 1)
    assert rig.bodies() == []
    rig.store.set_replicated(first.end_log_offset)
    assert rig.store.dispatch_durable() == first.end_log_offset and rig.bodies() == [b"a"]
    rig.store.set_replicated(None)
    assert rig.store.dispatch_durable() == second.end_log_offset and rig.bodies() == [b"a", b"b"]
    rig.send([b"c"], 2)
    assert rig.bodies() == [b"a", b"b", b"c"]


# --- reads ----------------------------------------------------------------------------------------


def test_statuses_and_next_offsets_outside_of_a_queue() -> None:
    rig = StoreRig()
    rig.send([b"%d" % number for number in range(10)], 0)
    expected = {
        0: (GetMessageStatus.FOUND, 10),
        10: (GetMessageStatus.OFFSET_OVERFLOW_ONE, 10),
        11: (GetMessageStatus.OFFSET_OVERFLOW_BADLY, 10),
        -1: (GetMessageStatus.OFFSET_TOO_SMALL, 0),
        9: (GetMessageStatus.FOUND, 10),
    }
    for offset, (status, next_offset) in expected.items():
        result = rig.store.get_messages("TopicTest", 0, offset, 100, 1 << 20, None)
        assert (result.status, result.next_offset, result.min_offset, result.max_offset) == (
            status,
            next_offset,
            0,
            10,
        )
    nothing = rig.store.get_messages("TopicTest", 5, 0, 100, 1 << 20, None)
    assert (nothing.status, nothing.next_offset) == (GetMessageStatus.NO_MESSAGE_IN_QUEUE, 0)


@pytest.mark.parametrize("count", [10, 120])
def test_a_tag_filter_returns_matching_records_and_goes_past_the_others(count: int) -> None:
    rig = StoreRig()
    for number in range(count):
        rig.send([b"%d" % number], number, head=f"TAGS\x01{'AB'[number % 2]}")
    result = rig.store.get_messages("TopicTest", 0, 0, 1000, 1 << 20, frozenset([java_hash("A")]))
    assert (result.count, result.next_offset, result.status) == (
        count // 2,
        count,
        GetMessageStatus.FOUND,
    )
    nothing = rig.store.get_messages("TopicTest", 0, 0, 1000, 1 << 20, frozenset([java_hash("C")]))
    assert (nothing.count, nothing.next_offset, nothing.status) == (
        0,
        count,
        GetMessageStatus.NO_MATCHED_MESSAGE,
    )
    some = rig.store.get_messages("TopicTest", 0, 0, 3, 1 << 20, frozenset([java_hash("B")]))
    assert (some.count, some.next_offset) == (3, 7)


@pytest.mark.parametrize("count", [10, 100])
@pytest.mark.seed("S4-095")
def test_limits_of_count_and_bytes_bind_and_the_first_record_always_comes(count: int) -> None:
    rig = StoreRig()
    rig.send([b"x" * 100] * count, 0)
    sizes = [record.size for record in rig.records()]
    for limit, expected in (
        (0, 1),
        (sizes[0], 1),
        (sizes[0] + sizes[1], 2),
        (sum(sizes[:5]) + 1, 5),
    ):
        result = rig.store.get_messages("TopicTest", 0, 0, 1000, limit, None)
        assert (result.count, result.next_offset) == (expected, expected)
    assert rig.store.get_messages("TopicTest", 0, 4, 3, 1 << 20, None).next_offset == 7


def test_foreign_readers_get_at_most_32_records() -> None:
    rig = StoreRig()
    rig.send([b"x"] * 100, 0)
    assert rig.store.get_messages("TopicTest", 0, 0, 1000, 1 << 30, None, foreign=True).count == 32
    assert rig.store.get_messages("TopicTest", 0, 0, 1000, 1 << 30, None).count == 100


def test_adjacent_records_come_as_one_buffer_and_scattered_ones_in_order() -> None:
    rig = StoreRig()
    rig.send([b"x%d" % number for number in range(50)], 0)
    dense = rig.store.get_messages("TopicTest", 0, 5, 40, 1 << 20, None)
    assert len(dense.parts) == 1 and len(dense.parts[0]) == dense.sizes.sum()
    for number in range(20):
        rig.send([b"a%d" % number], 100 + number, queue_id=1)
        rig.send([b"gap" * 300], 200 + number, queue_id=2)
    assert rig.bodies(1) == [b"a%d" % number for number in range(20)]


def test_reads_go_on_over_segments() -> None:
    rig = StoreRig(config=small_config(segment_bytes=4096))
    sent = [b"%03d" % number * 30 for number in range(60)]
    for number, body in enumerate(sent):
        rig.send([body], number)
    assert rig.bodies() == sent and len(rig.disk.list_dir(f"{ROOT}/commitlog")) > 3


def test_records_are_found_by_unique_key_and_by_keys() -> None:
    rig = StoreRig()
    rig.send([b"a", b"b"], 0, head="KEYS\x01order-1 order-2")
    rig.send([b"c"] * 40, 1)
    unique = rig.records()[1].properties.split("\x01")[-1]
    found = rig.store.query("TopicTest", unique, 32, 0, 1 << 60)
    assert [decode_record(data).body for data in found] == [b"b"]
    assert [
        decode_record(data).body for data in rig.store.query("TopicTest", "order-2", 32, 0, 1 << 60)
    ] == [b"b", b"a"]
    assert (
        rig.store.query("TopicTest", "order", 32, 0, 1 << 60)
        == rig.store.query("Other", "order-1", 32, 0, 1 << 60)
        == []
    )
    assert rig.store.query("TopicTest", "order-1", 32, 0, rig.clock.now_ms() - 10_000) == []


def test_offsets_are_found_by_time() -> None:
    rig = StoreRig()
    base = rig.clock.now_ms()
    for number in range(5):
        rig.send([b"x"], number)
        rig.clock.advance_ms(100)
    expected = {-1000: 0, 0: 0, 100: 1, 149: 1, 150: 1, 151: 2, 400: 4, 9999: 4}
    assert {at: rig.store.offset_by_time("TopicTest", 0, base + at) for at in expected} == expected
    assert rig.store.offset_by_time("TopicTest", 9, base) == 0
    exact = {-1000: 0, 0: 0, 1: 1, 100: 1, 101: 2, 400: 4, 401: 5, 9999: 5}
    assert {at: rig.store.first_since("TopicTest", 0, base + at) for at in exact} == exact
    assert rig.store.first_since("TopicTest", 9, base) == 0
    assert rig.store.earliest_store_ms() == rig.store.earliest_store_ms("TopicTest", 0) == base
    assert rig.store.earliest_store_ms("TopicTest", 9) == -1


# --- failures -------------------------------------------------------------------------------------


def test_a_failed_write_stops_the_log_until_it_was_read_again() -> None:
    rig = StoreRig()
    kept = rig.send([b"a"], 0)
    rig.disk.fail_next("pwrite", "commitlog", partial=70)
    with pytest.raises(StoreFailed):
        rig.send([b"b"], 1)
    assert rig.store.state is StoreState.FAILED
    for attempt in (
        lambda: rig.send([b"c"], 2),
        lambda: rig.store.append_message(StoredMessage("T", 0, b"x")),
        lambda: rig.store.get_messages("TopicTest", 0, 0, 1, 100, None),
    ):
        with pytest.raises(StoreFailed, match="read again"):
            attempt()
    report = rig.store.reopen()
    assert (report.end, report.clean, rig.store.state) == (
        kept.end_log_offset,
        False,
        StoreState.READY,
    )
    assert rig.bodies() == [b"a"] and rig.send([b"b"], 1).base_queue_offset == 1


@pytest.mark.parametrize(("where", "partial"), [("commitlog", 70), ("consumequeue", 0)])
def test_a_disk_that_fails_in_the_middle_of_an_append_leaves_open_whether_it_is_stored(
    where: str, partial: int
) -> None:
    rig = StoreRig()
    rig.send([b"a"], 0)
    rig.disk.fail_next("pwrite", where, partial=partial)
    with pytest.raises(AppendUnknown):
        rig.send([b"b"], 1)
    with pytest.raises(StoreFailed) as refused:
        rig.send([b"c"], 2)
    assert not isinstance(refused.value, AppendUnknown), "of this one nothing was written"


def test_a_sync_that_fails_in_the_checkpoints_thread_is_told_too() -> None:
    rig = StoreRig(config=small_config(checkpoint_interval_ms=5))
    rig.store.shutdown()
    store, told = (
        MessageStore(
            rig.config, rig.clock, broker_name="broker-a", store_host=HOST, files=rig.disk
        ),
        threading.Event(),
    )
    store.open(create=False)
    store.recover()
    rig.disk.fail_next("datasync", "commitlog")
    store.start(lambda _position: told.set() if store.state is StoreState.FAILED else None)
    records, sizes = make_frame([b"a"])
    store.append_frame(records, sizes, BORN)
    assert told.wait(10), "a log that has failed must not go on serving until somebody sends"
    store.shutdown()


@pytest.mark.parametrize("flush", FlushMode)
@pytest.mark.parametrize("again", ["read again in the same process", "opened by the next one"])
def test_a_log_whose_sync_failed_is_not_sound_where_it_had_acknowledged_more(
    flush: FlushMode, again: str
) -> None:
    rig = StoreRig(config=small_config(flush=flush))
    rig.send([b"a"], 0)
    rig.settle()
    rig.store.flush()
    assert rig.report.sound
    rig.send([b"b"], 1)  # acknowledged at once under ASYNC_FLUSH, and not on disk
    rig.disk.fail_next("datasync", "commitlog")
    with pytest.raises(StoreFailed):
        rig.store.flush()
    if again == "read again in the same process":
        assert rig.store.reopen().sound is (flush is FlushMode.SYNC_FLUSH)
    else:
        rig.store.shutdown()
        assert rig.next_life(rig.disk).report.sound is (flush is FlushMode.SYNC_FLUSH)


def test_a_log_that_failed_with_everything_on_disk_stays_sound() -> None:
    rig = StoreRig()
    rig.send([b"a"], 0)
    rig.store.flush()
    rig.disk.fail_next("pwrite", "commitlog")
    with pytest.raises(StoreFailed):
        rig.send([b"b"], 1)
    assert rig.store.reopen().sound


def with_a_failed_sync() -> tuple[StoreRig, int]:
    """A store whose sync behind a second message has failed, and the log offset that is safe."""
    rig = StoreRig(config=SYNC)
    rig.send([b"a"], 0)
    rig.settle()
    rig.store.flush()
    safe = rig.store.durable_offset
    rig.send([b"b"], 1)
    rig.disk.fail_next("datasync", "commitlog")
    assert not rig.store.flush_step()
    return rig, safe


def test_after_a_failed_sync_nothing_is_acknowledged_and_the_sync_is_not_repeated() -> None:
    rig, safe = with_a_failed_sync()
    syncs = rig.disk.syncs
    assert rig.durable[-1] == safe == rig.store.durable_offset, "told, with nothing new"
    assert rig.store.state is StoreState.FAILED and not rig.store.flush_step()
    assert rig.store.dispatch_durable() == safe
    with pytest.raises(StoreFailed):
        rig.store.flush()
    assert rig.disk.syncs == syncs
    rig.store.reopen()
    assert rig.bodies() == [b"a"], (
        "what the failed sync lost is not believed because the page cache shows it"
    )
    again = rig.send([b"b"], 1)
    assert not again.repeat
    rig.settle()
    lost_power = rig.next_life(rig.disk.survivor(keep_none, "boot-2"))
    assert lost_power.bodies() == [b"a", b"b"]


def test_a_store_that_failed_and_is_opened_again_believes_the_disk_not_the_page_cache() -> None:
    """A master whose disk failed is deposed: closed, and opened in the same process as a copy of
    its heir's log.
    """
    rig, safe = with_a_failed_sync()
    assert not rig.store.shutdown(), "not durable"
    deposed = FollowerStore(
        rig.config, rig.clock, broker_name="broker-a", store_host=HOST, files=rig.disk
    )
    deposed.open(create=False)
    assert deposed.recover().end == safe, (
        "what the kernel shows, but never wrote, does not count as held"
    )
    deposed.shutdown()


def test_a_full_disk_refuses_and_recovers_by_itself() -> None:
    rig = StoreRig()
    rig.send([b"a"], 0)
    rig.disk.fail_next("pwrite", "commitlog", "ENOSPC", partial=600)
    with pytest.raises(StoreFull):
        rig.send([b"b" * 50] * 3, 1)
    assert rig.store.state is StoreState.READY and rig.bodies() == [b"a"]
    assert rig.send([b"c" * 50], 2).base_queue_offset == 1
    after = rig.next_life(rig.disk.survivor(keep_all, "boot-2"))
    assert after.bodies() == [b"a", b"c" * 50], (
        "the second record of the half-written frame left nothing behind the third frame's only one"
    )


def test_a_segment_that_cannot_be_made_is_tried_again_after_a_second() -> None:
    rig = StoreRig(config=small_config(segment_bytes=4096))
    rig.send([b"a" * 3000], 0)
    rig.disk.fail_next("truncate", "next-segment", "ENOSPC")
    for _ in range(3):
        with pytest.raises(StoreFull):
            rig.send([b"b" * 3000], 1)
    rig.clock.advance_ms(1_000)
    assert rig.send([b"b" * 3000], 1).base_log_offset == 4096
    assert rig.disk.list_dir(f"{ROOT}/rmq_ray") == ["checkpoint", "epochs", "identity"]


def test_a_consume_queue_without_room_delays_visibility_and_loses_nothing() -> None:
    rig = StoreRig()
    rig.send([b"a"], 0)
    rig.disk.fail_next("pwrite", "consumequeue", "ENOSPC")
    stored = rig.send([b"b"], 1)
    assert rig.bodies() == [b"a"] and rig.store.visible_offset < stored.end_log_offset
    rig.send([b"c"], 2)
    assert rig.bodies() == [b"a", b"b", b"c"], "the next append brings both"


def test_a_consume_queue_that_fails_stops_the_store() -> None:
    rig = StoreRig()
    rig.send([b"a"], 0)
    rig.disk.fail_next("pwrite", "consumequeue")
    with pytest.raises(StoreFailed):
        rig.send([b"b"], 1)
    assert rig.store.state is StoreState.FAILED
    rig.store.reopen()
    assert rig.bodies() == [b"a", b"b"], "it was in the log"
    assert rig.send([b"b"], 1).repeat, "and a repeat is known"


def test_a_disk_that_is_too_full_refuses_writes_and_serves_reads() -> None:
    rig = StoreRig()
    rig.send([b"a"], 0)
    rig.disk.ratio = 0.95
    assert rig.store.clean(rig.clock.now_ms()).room is Room.FULL and rig.store.status()["disk_full"]
    with pytest.raises(StoreFull, match=r"is full: 95% used, 0.0 GiB free; sends .* over 90%"):
        rig.send([b"b"], 1)
    assert rig.bodies() == [b"a"]
    rig.disk.ratio = 0.5
    rig.store.clean(rig.clock.now_ms())
    assert rig.send([b"b"], 1).base_queue_offset == 1


# --- life -----------------------------------------------------------------------------------------


def unopened(disk: CrashFileSystem, broker_name: str = "broker-a") -> MessageStore:
    rig_config = small_config()
    return MessageStore(
        rig_config,
        StoreRig(CrashFileSystem()).clock,
        broker_name=broker_name,
        store_host=HOST,
        files=disk,
    )


def test_an_expected_store_is_never_made_anew() -> None:
    disk = CrashFileSystem()
    for create, expected in ((False, None), (False, "ab"), (True, "ab")):
        with pytest.raises(StoreMissing):
            unopened(disk).open(create, expected)
    assert disk.locks == set()


def test_a_store_of_another_identity_or_broker_is_foreign() -> None:
    rig = StoreRig()
    rig.store.shutdown()
    with pytest.raises(StoreForeign, match="expected is 0badcafe"):
        unopened(rig.disk).open(False, "0badcafe")
    with pytest.raises(StoreForeign, match="belongs to broker 'broker-a'"):
        unopened(rig.disk, "broker-b").open(False)
    again = unopened(rig.disk)
    again.open(False, rig.store.identity)
    assert again.identity == rig.store.identity


def test_two_stores_cannot_hold_one_directory() -> None:
    rig = StoreRig()
    with pytest.raises(StoreInUse):
        unopened(rig.disk).open(False)
    rig.store.shutdown()
    unopened(rig.disk).open(False)


def test_nothing_is_accepted_before_recovery_and_after_shutdown() -> None:
    disk = CrashFileSystem()
    store = unopened(disk)
    records, sizes = make_frame([b"a"])
    for step in (lambda: None, lambda: store.open(True)):
        step()
        with pytest.raises(StoreNotReady):
            store.append_frame(records, sizes, BORN)
        with pytest.raises(StoreNotReady):
            store.get_messages("T", 0, 0, 1, 1, None)
    with pytest.raises(StoreError, match="start"):
        store.start(lambda _position: None)
    store.recover()
    store.start(lambda _position: None, threads=False)
    store.append_frame(records, sizes, BORN)
    with pytest.raises(StoreError):
        store.open(True)
    store.shutdown()
    assert (
        store.state is StoreState.CLOSED
        and disk.locks == set()
        and not disk.exists(f"{ROOT}/abort")
    )
    with pytest.raises(StoreNotReady):
        store.append_frame(records, sizes, BORN)


def test_the_abort_file_is_there_while_the_store_runs() -> None:
    rig = StoreRig()
    assert rig.disk.exists(f"{ROOT}/abort")
    rig.disk.fail_next("pwrite", "commitlog")
    with pytest.raises(StoreFailed):
        rig.send([b"a"])
    rig.store.shutdown()
    assert rig.disk.exists(f"{ROOT}/abort"), "a failed store did not stop cleanly"


def test_status_tells_what_an_operator_asks() -> None:
    rig = StoreRig()
    rig.send([b"a", b"b"], 0)
    status = rig.store.status()
    assert (
        status["state"],
        status["frames"],
        status["records"],
        status["end"],
        status["visible"],
    ) == (
        "ready",
        1,
        2,
        rig.store.end_offset,
        rig.store.end_offset,
    )
    assert rig.store.queues() == {("TopicTest", 0): (0, 2)} and rig.store.topics() == {"TopicTest"}


def test_retention_takes_old_segments_and_the_queues_follow() -> None:
    rig = StoreRig(config=small_config(segment_bytes=4096, reserved_hours=1))
    for number in range(40):
        rig.send([b"%03d" % number * 60], number)
    rig.store.flush()
    for name in rig.disk.list_dir(f"{ROOT}/commitlog"):
        rig.disk.set_modified_ms(f"{ROOT}/commitlog/{name}", rig.clock.now_ms())
    pin = rig.store.pin(4096, rig.clock.monotonic_ms() + 2 * 3_600_000 + 1)
    rig.clock.advance_ms(2 * 3_600_000)
    rig.store.request_cleaning()
    assert rig.store.clean(rig.clock.now_ms()).begin == 4096, "the rest is pinned"
    rig.store.unpin(pin)
    report = rig.store.clean(rig.clock.now_ms())
    low, high = rig.store.bounds("TopicTest", 0)
    assert rig.store.begin_offset == report.begin > 4096 and 0 < low < high == 40
    assert rig.bodies() == [b"%03d" % number * 60 for number in range(low, 40)]
    assert (
        rig.store.get_messages("TopicTest", 0, 0, 10, 100, None).status
        is GetMessageStatus.OFFSET_TOO_SMALL
    )
    after = rig.next_life(rig.disk.after_kill())
    assert (
        after.store.bounds("TopicTest", 0) == (low, high)
        and after.store.begin_offset == report.begin
    )
    assert after.send([b"more"], 99).base_queue_offset == 40


def test_what_was_not_synced_is_not_removed_however_full_the_disk_is() -> None:
    """A sync opens each file that it has to sync: one that had gone would fail the log."""
    rig = StoreRig(config=small_config(segment_bytes=4096))
    for number in range(12):
        rig.send([bytes(1_000)], number)
    rig.disk.ratio = 0.88
    store = rig.store
    assert store.clean(rig.clock.now_ms()).begin == 0
    store.flush()
    assert store.clean(rig.clock.now_ms()).begin > 0
    rig.send([b"goes on"], 12)
    store.flush()
    assert store.opened.log.durable == store.end_offset


# --- what is no fault of the disk, and what passes ------------------------------------------------


@pytest.mark.parametrize(("action", "part"), [("unlink", "abort"), ("pwrite", "consumequeue")])
def test_a_stop_that_the_disk_spoils_gives_the_locks_back(action: str, part: str) -> None:
    rig = StoreRig(config=SYNC)
    rig.send([b"a"], 0)
    rig.disk.fail_next(action, part)
    rig.store.shutdown()
    assert not rig.disk.faults, "the fault was met"
    again = StoreRig(rig.disk, config=SYNC, create=False)
    assert again.bodies() == [b"a"]
    again.store.shutdown()


def test_a_write_that_ended_half_way_for_want_of_memory_is_found_when_the_log_is_read_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It is in the log and in no queue: whoever asks again must not be told that it is stored."""
    rig = StoreRig()
    rig.send([b"a"], 0)
    records, sizes = make_frame([b"b"], sequence=1)

    def without_memory(*_arguments: object) -> bool:
        raise MemoryError

    def send() -> bool:
        return rig.store.append_frame(bytearray(records), sizes, BORN).repeat

    with monkeypatch.context() as patch, pytest.raises(AppendUnknown, match="MemoryError"):
        patch.setattr(Dispatcher, "dispatch", without_memory)
        send()
    assert rig.store.state is StoreState.FAILED
    with pytest.raises(StoreFailed):
        send()
    rig.store.reopen()
    assert send()
    rig.send([b"c"], 2)
    assert rig.bodies() == [b"a", b"b", b"c"]
