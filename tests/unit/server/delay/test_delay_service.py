"""Delayed messages: never early, in order, across restarts."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from rmq_ray.codec.record import Record, decode_record
from rmq_ray.errors import StoreFailed
from rmq_ray.model.fastjson import loads
from rmq_ray.model.message import decode_properties
from rmq_ray.remoting.wire import body_json
from rmq_ray.remoting.wire.codes import RequestCode as Code
from rmq_ray.remoting.wire.headers import SendHeader
from rmq_ray.store.front.message_store import MessageStore
from tests.support.brokers.broker_bench import Bench

SCHEDULE = "SCHEDULE_TOPIC_XXXX"


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    made = Bench(tmp_path).open()
    yield made
    made.close()


def send(bench: Bench, body: bytes, level: int, queue_id: int = 1) -> None:
    header = SendHeader(
        "web",
        "orders",
        queue_id,
        0,
        bench.clock.now_ms(),
        3,
        properties=f"KEYS\x01k\x02DELAY\x01{level}\x02UNIQ_KEY\x01U\x02WAIT\x01false",
    )
    assert bench.ask(Code.SEND_MESSAGE_V2, header.to_v2(), body).code == 0


def records(bench: Bench, topic: str = "orders", queue_id: int = 1) -> list[Record]:
    store = bench.core.keeper.store
    assert store is not None
    found = store.get_messages(topic, queue_id, 0, 1_000, 1 << 20, None)
    data, at, decoded = b"".join(found.parts), 0, []
    for size in found.sizes.tolist():
        decoded.append(decode_record(data, at))
        at += size
    return decoded


def advance(bench: Bench, ms: int) -> list[bytes]:
    bench.clock.advance_ms(ms)
    bench.core.tick()
    bench.offload.drain()
    return [record.body for record in records(bench)]


def test_a_delayed_message_lies_in_its_levels_queue_and_then_in_its_own(bench: Bench) -> None:
    send(bench, b"later", 3)
    parked = records(bench, SCHEDULE, 2)[0]
    assert decode_properties(parked.properties)["REAL_TOPIC"] == "orders" and parked.flag == 3
    assert advance(bench, 9_999) == []
    assert advance(bench, 50) == [b"later"]
    delivered = records(bench)[0]
    properties = decode_properties(delivered.properties)
    assert (
        "DELAY" not in properties
        and "WAIT" not in properties
        and properties["UNIQ_KEY"] == "U"
        and properties["KEYS"] == "k"
    )
    assert (delivered.flag, delivered.born_ms, delivered.born_host, delivered.store_ms) == (
        3,
        parked.born_ms,
        parked.born_host,
        bench.clock.now_ms(),
    )


@pytest.mark.parametrize(
    ("level", "delay_ms"), [(1, 1_000), (2, 5_000), (5, 60_000), (18, 7_200_000), (99, 7_200_000)]
)
def test_each_level_waits_its_time_and_never_less(bench: Bench, level: int, delay_ms: int) -> None:
    send(bench, b"x", level)
    assert advance(bench, delay_ms - 1) == []
    assert advance(bench, 100) == [b"x"]


def test_level_zero_and_below_are_not_delayed(bench: Bench) -> None:
    send(bench, b"a", 0)
    send(bench, b"b", -1)
    assert [record.body for record in records(bench)] == [b"a", b"b"]


def test_messages_of_a_level_keep_their_order_and_levels_do_not_wait_for_one_another(
    bench: Bench,
) -> None:
    for n in range(3):
        send(bench, b"slow%d" % n, 2)
        bench.clock.advance_ms(100)
    send(bench, b"fast", 1)
    assert advance(bench, 1_000) == [b"fast"]
    assert advance(bench, 3_750) == [b"fast", b"slow0"]
    assert advance(bench, 1_000) == [b"fast", b"slow0", b"slow1", b"slow2"]


def test_many_due_messages_are_delivered_in_slices(bench: Bench) -> None:
    for n in range(700):
        send(bench, b"%d" % n, 1)
    bench.clock.advance_ms(1_000)
    bench.core.tick()
    assert len(records(bench)) == 256, "the loop serves others in between"
    bench.offload.drain()
    bench.offload.drain()
    assert [int(record.body) for record in records(bench)] == list(range(700))


def test_a_clock_that_was_set_back_delivers_now_what_would_wait_longer_than_its_level(
    bench: Bench,
) -> None:
    send(bench, b"x", 1)
    bench.clock.advance_ms(-3_600_000)
    bench.core._deliver()
    assert [record.body for record in records(bench)] == [b"x"]


def test_what_was_stored_while_the_clock_was_ahead_keeps_nothing_behind_it_waiting(
    bench: Bench,
) -> None:
    bench.clock.advance_ms(3_600_000)
    send(bench, b"ahead", 1)
    bench.core._deliver()
    bench.clock.advance_ms(-3_600_000)
    send(bench, b"behind", 1)
    advance(bench, 1_000)
    assert [record.body for record in records(bench)] == [b"ahead", b"behind"]


def test_offsets_are_written_each_ten_seconds_and_continue_after_a_restart(tmp_path: Path) -> None:
    bench = Bench(tmp_path).open()
    send(bench, b"first", 1)
    advance(bench, 1_000)
    path = Path(bench.config.store.path) / "config" / "delayOffset.json"
    bench.core.keeper.store.flush()  # type: ignore[union-attr]
    advance(bench, 10_000)
    assert loads(path.read_text()) == {"offsetTable": {1: 1}}
    assert body_json.parse(bench.ask(Code.GET_ALL_DELAY_OFFSET).body) == {"offsetTable": {1: 1}}
    send(bench, b"second", 1)
    bench.close()
    again = Bench(tmp_path, clock=bench.clock).open(create=False)
    assert advance(again, 1_000) == [b"first", b"second"], "delivered once each"
    again.close()


def test_what_became_due_while_the_broker_was_down_is_delivered_at_its_start(
    tmp_path: Path,
) -> None:
    bench = Bench(tmp_path).open()
    send(bench, b"x", 4)
    bench.close()
    bench.clock.advance_ms(60_000)
    again = Bench(tmp_path, clock=bench.clock).open(create=False)
    assert advance(again, 50) == [b"x"]
    again.close()


def test_an_offset_is_saved_only_when_the_copy_is_on_disk(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = bench.core.keeper.store
    assert store is not None
    durable = {"durable": 0}
    monkeypatch.setattr(type(store), "status", lambda self: durable)
    send(bench, b"x", 1)
    assert advance(bench, 1_000) == [b"x"]
    assert bench.core.delays.offsets() == {}, "a crash now may deliver it twice, but cannot lose it"
    durable["durable"] = store.end_offset
    assert bench.core.delays.offsets() == {1: 1}
    monkeypatch.undo()


def test_a_parked_message_without_a_lawful_target_is_dropped_and_counted(bench: Bench) -> None:
    bench.core.writer.put(
        SCHEDULE, 0, b"lost", {"REAL_TOPIC": "RMQ_SYS_TRANS_HALF_TOPIC", "REAL_QID": "0"}
    )
    bench.core.writer.put(SCHEDULE, 0, b"found", {"REAL_TOPIC": "orders", "REAL_QID": "1"})
    assert advance(bench, 1_000) == [b"found"] and bench.core.counters.delayed_dropped == 1


def test_an_offset_outside_the_queue_becomes_its_bound(bench: Bench) -> None:
    send(bench, b"x", 1)
    bench.core.delays.load({1: 50})
    assert advance(bench, 1_000) == [] and bench.core.delays.settled() == {1: 1}
    send(bench, b"y", 1)
    assert advance(bench, 1_000) == [b"y"]


def test_a_log_that_failed_is_read_again_instead_of_ending_the_broker(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    send(bench, b"x", 1)
    bench.clock.advance_ms(1_000)

    def broken(self: MessageStore, *args: object) -> None:
        raise StoreFailed("a sync failed")

    with monkeypatch.context() as patch:
        patch.setattr(MessageStore, "get_messages", broken)
        bench.core.tick()
    bench.offload.drain()
    assert bench.core.keeper.reopened == 1
    assert advance(bench, 200) == [b"x"]


def test_levels_that_changed_at_a_restart_hold_for_what_waits_already(tmp_path: Path) -> None:
    """A level that became shorter delivers sooner, one that became longer later; what lies in a
    level that is gone waits for its return, and what it delivered before does not come again.
    """
    bench = Bench(tmp_path, delay_levels="10s 60s 1s").open()
    send(bench, b"before", 3)
    assert advance(bench, 1_000) == [b"before"]
    send(bench, b"longer", 1)
    send(bench, b"shorter", 2)
    send(bench, b"gone", 3)
    bench.close()
    again = Bench(tmp_path, clock=bench.clock, delay_levels="30s 5s").open(create=False)
    assert advance(again, 5_000) == [b"before", b"shorter"]
    assert advance(again, 24_900) == [b"before", b"shorter"]
    assert advance(again, 100) == [b"before", b"shorter", b"longer"]
    assert again.core.delays.offsets()[3] == 1, "slaves are told of it"
    again.close()
    third = Bench(tmp_path, clock=bench.clock, delay_levels="10s 60s 1s").open(create=False)
    assert advance(third, 50) == [b"before", b"shorter", b"longer", b"gone"]
    third.close()
