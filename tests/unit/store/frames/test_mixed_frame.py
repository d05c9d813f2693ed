"""Messages for several queues in one write: what readers, the index and a restart find of them."""

from __future__ import annotations

import pytest

from rmq_ray.codec.record import decode_record
from rmq_ray.config import FlushMode
from rmq_ray.errors import AppendUnknown, MessageIllegal, MessageTooLarge, StoreFull
from rmq_ray.model.message import SysFlag
from rmq_ray.store.front.message_store import StoredMessage, StoreState
from rmq_ray.store.log.commit_log import CommitLog
from tests.support.brokers.store_rig import BORN, HOST, ROOT, StoreRig, small_config
from tests.support.faults.crash_fs import keep_none


def final(n: int, queue_id: int = 0, host: tuple[str, int] = BORN) -> StoredMessage:
    text = f"TAGS\x01t{n}\x02KEYS\x01key{n}\x02UNIQ_KEY\x01{n:032X}"
    return StoredMessage(
        "orders",
        queue_id,
        b"body %d" % n,
        text,
        n,
        SysFlag.TRANSACTION_COMMIT,
        1_000 + n,
        host,
        2,
        77,
    )


def op(n: int) -> StoredMessage:
    return StoredMessage("ops", 0, b"%d" % n, "TAGS\x01d", born_ms=5, born_host=HOST)


def group(count: int) -> list[StoredMessage]:
    """Finals of two queues in turn, each with its op behind it."""
    return [message for n in range(count) for message in (final(n, n % 2), op(n))]


def bodies(rig: StoreRig, topic: str, queue_id: int = 0) -> list[bytes]:
    return rig.bodies(queue_id, topic)


def test_each_queue_gets_its_own_in_order_and_the_log_holds_them_in_the_order_of_the_call() -> None:
    rig = StoreRig()
    rig.store.append_message(final(90))
    writes = len(rig.disk.unsynced("commitlog"))
    result = rig.store.append_mixed(group(40))
    assert len(rig.disk.unsynced("commitlog")) == writes + 1
    assert bodies(rig, "orders") == [b"body 90"] + [b"body %d" % n for n in range(0, 40, 2)]
    assert bodies(rig, "orders", 1) == [b"body %d" % n for n in range(1, 40, 2)] and bodies(
        rig, "ops"
    ) == [b"%d" % n for n in range(40)]
    raw = rig.store.record_at(result.log_offset + result.starts[2])
    assert raw is not None
    record = decode_record(raw)
    assert (
        record.topic,
        record.queue_id,
        record.queue_offset,
        record.flag,
        record.born_ms,
        record.born_host,
    ) == ("orders", 1, 0, 1, 1_001, BORN)
    assert (record.sys_flag, record.reconsume_times, record.prepared_offset, record.store_host) == (
        SysFlag.TRANSACTION_COMMIT,
        2,
        77,
        HOST,
    )
    assert (
        result.offsets[:4] == [1, 0, 0, 1]
        and result.end_log_offset == rig.store.end_offset == rig.store.visible_offset
    )
    assert {(topic, queue_id): maximum for topic, queue_id, maximum, _ in rig.arrivals} == {
        ("orders", 0): 21,
        ("orders", 1): 20,
        ("ops", 0): 40,
    }


def test_every_key_is_found_whatever_queue_its_message_went_to() -> None:
    rig = StoreRig()
    rig.store.append_mixed(group(30))
    for n in range(30):
        for key in (f"key{n}", f"{n:032X}"):
            (raw,) = rig.store.query("orders", key, 10, 0, 1 << 60)
            assert decode_record(raw).body == b"body %d" % n


@pytest.mark.parametrize("kept", range(5))
def test_a_crash_leaves_a_beginning_of_the_write(
    monkeypatch: pytest.MonkeyPatch, kept: int
) -> None:
    rig = StoreRig()
    write = CommitLog.write

    def torn(self: CommitLog, data: bytes, log_offset: int, length: int) -> None:
        end = 0
        for _ in range(kept):
            end += decode_record(data, end).size
        part = data[: end + 30]  # and a piece of the next one
        write(self, part, log_offset, len(part))
        raise KeyboardInterrupt

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(CommitLog, "write", torn)
        rig.store.append_mixed(group(3))
    again = rig.next_life(rig.disk.after_kill())
    found = [bodies(again, "orders", 0), bodies(again, "orders", 1), bodies(again, "ops")]
    assert found == [[b"body 0"][:kept], [b"body 1"] if kept > 2 else [], [b"0", b"1"][: kept // 2]]


@pytest.mark.parametrize("waits", ["sync", "pool", "slaves"])
def test_nothing_of_it_is_visible_before_all_of_it_may_be(waits: str) -> None:
    changes = {
        "sync": {"flush": FlushMode.SYNC_FLUSH},
        "pool": {"transient_store_pool": True, "transient_buffer_bytes": 8_192},
        "slaves": {},
    }[waits]
    rig = StoreRig(config=small_config(**changes))
    if waits == "slaves":
        rig.store.set_replicated(0)
    result = rig.store.append_mixed(group(2))
    rig.store.dispatch_durable()
    assert bodies(rig, "orders") == bodies(rig, "ops") == [] and rig.arrivals == []
    if waits == "slaves":
        rig.store.set_replicated(result.end_log_offset - 1)
        assert rig.store.dispatch_durable() == 0
        rig.store.set_replicated(result.end_log_offset)
    rig.settle()
    assert (
        bodies(rig, "orders") == [b"body 0"]
        and bodies(rig, "ops") == [b"0", b"1"]
        and rig.store.visible_offset == result.end_log_offset
    )


def test_a_topic_deleted_meanwhile_gets_nothing_and_the_others_do() -> None:
    rig = StoreRig(config=small_config(flush=FlushMode.SYNC_FLUSH))
    rig.store.append_mixed(group(2))
    rig.delete("orders")
    rig.settle()
    assert (
        bodies(rig, "orders") == []
        and bodies(rig, "ops") == [b"0", b"1"]
        and rig.store.query("orders", "key0", 10, 0, 1 << 60) == []
    )


def test_an_address_of_the_sixth_version_is_kept() -> None:
    rig = StoreRig()
    result = rig.store.append_mixed([final(1, host=("2001:db8::1", 5_000)), op(1)])
    raw = rig.store.record_at(result.log_offset)
    assert (
        raw is not None
        and decode_record(raw).born_host == ("2001:db8::1", 5_000)
        and bodies(rig, "ops") == [b"1"]
    )


@pytest.mark.parametrize(
    ("message", "error"),
    [
        (StoredMessage("bad topic!", 0, b"x"), MessageIllegal),
        (StoredMessage("orders", 70_000, b"x"), MessageIllegal),
        (StoredMessage("orders", 0, b"x", "a\x01\0"), MessageIllegal),
        (StoredMessage("orders", 0, b"x", "a\x01" + "b" * 32_766), MessageIllegal),
        (StoredMessage("orders", 0, b"x", sys_flag=SysFlag.TRANSACTION_PREPARED), MessageIllegal),
        (StoredMessage("orders", 0, bytes((1 << 22) + 1)), MessageTooLarge),
    ],
    ids=["topic", "queue", "zero", "properties", "prepared", "body"],
)
def test_what_cannot_be_stored_is_refused_before_anything_is_written(
    message: StoredMessage, error: type[Exception]
) -> None:
    rig = StoreRig()
    with pytest.raises(error):
        rig.store.append_mixed([op(1), message])
    with pytest.raises(MessageIllegal):
        rig.store.append_mixed([])
    assert rig.store.end_offset == 0


def test_a_full_disk_leaves_nothing_and_a_broken_one_leaves_it_open() -> None:
    rig = StoreRig()
    rig.store.append_mixed(group(1))
    end = rig.store.end_offset
    for error, expected in (("ENOSPC", StoreFull), ("EIO", AppendUnknown)):
        rig.disk.fail_next("pwrite", "commitlog", error)
        with pytest.raises(expected):
            rig.store.append_mixed(group(2))
        assert rig.store.end_offset == end
        if error == "ENOSPC":
            rig.store.append_mixed(group(1))
            assert bodies(rig, "ops") == [b"0", b"0"]
            end = rig.store.end_offset
    assert rig.store.state is StoreState.FAILED


def test_after_a_power_loss_it_is_whole_where_it_was_synced() -> None:
    rig = StoreRig(config=small_config(flush=FlushMode.SYNC_FLUSH))
    rig.store.append_mixed(group(3))
    rig.settle()
    again = rig.next_life(rig.disk.survivor(keep_none, "boot-2"))
    assert bodies(again, "ops") == [b"0", b"1", b"2"] and bodies(again, "orders") == [
        b"body 0",
        b"body 2",
    ]


def test_records_that_are_read_together_are_those_that_are_read_one_by_one() -> None:
    rig = StoreRig()
    result = rig.store.append_mixed(group(40))
    far = rig.store.append_message(StoredMessage("orders", 0, bytes(60_000)))
    places = [result.log_offset + start for start in result.starts]
    asked = [
        places[7],
        places[3],
        places[3] + 1,
        far.base_log_offset - 1,
        rig.store.end_offset + 5,
        *places,
    ]
    for offsets in (asked, [*asked, far.end_log_offset], places[:1], [1 << 60, 0]):
        assert rig.store.records_at(offsets, 1 << 20) == [
            rig.store.record_at(offset) for offset in offsets
        ]
    assert rig.store.records_at(places, 1) == [rig.store.record_at(places[0])]
    rig.disk.flip(f"{ROOT}/commitlog/{0:020d}", places[2] + 90)
    assert rig.store.records_at(places, 1 << 20) == [
        rig.store.record_at(offset) for offset in places
    ]
    assert rig.store.records_at(places, 1 << 20)[2] is None
