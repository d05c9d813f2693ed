"""Messages with exact delivery times in a broker, time moved by hand."""

from __future__ import annotations

import random
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from rmq_ray.clock import ManualClock
from rmq_ray.codec.record import Record, decode_record
from rmq_ray.config import FlushMode
from rmq_ray.errors import StoreFull, StoreUnreadable
from rmq_ray.model.ids import FrameId
from rmq_ray.model.message import decode_properties
from rmq_ray.model.topics import TIMER_TOPIC
from rmq_ray.protocol.timer import RecallHandle
from rmq_ray.remoting.wire.codes import RequestCode as Code
from rmq_ray.remoting.wire.codes import ResponseCode
from rmq_ray.remoting.wire.frame import Command
from rmq_ray.remoting.wire.headers import SendHeader
from rmq_ray.server.delay.timer_service import HOUR_MS, TURN_MAX
from tests.support.brokers.broker_bench import Bench
from tests.support.faults.fake_peer import FakePeer

TICK = 50


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    bench = Bench(tmp_path).open()
    bench.core._deliver()
    yield bench
    bench.close()


def header(bench: Bench, key: str, frame_id: FrameId | None, **timer: int) -> SendHeader:
    text = "\x02".join(
        [f"UNIQ_KEY\x01{key:K>32}", *(f"TIMER_{name}\x01{value}" for name, value in timer.items())]
    )
    return SendHeader(
        "web", "orders", 2, 0, bench.clock.now_ms(), 0, properties=text, frame_id=frame_id
    )


def send(
    bench: Bench, body: bytes = b"x", frame_id: FrameId | None = None, **timer: int
) -> Command:
    """``DELAY_MS=5`` and the like."""
    return bench.ask(
        Code.SEND_MESSAGE_V2, header(bench, body.decode(), frame_id, **timer).to_v2(), body
    )


def handle_of(answer: Command) -> str:
    assert answer.code == 0 and answer.fields
    return answer.fields["recallHandle"]


def recall(bench: Bench, handle: str, topic: str = "orders") -> Command:
    return bench.ask(Code.RECALL_MESSAGE, {"topic": topic, "recallHandle": handle})


def go(bench: Bench, ms: int) -> None:
    """Time passes, looked at each 50 ms as a broker does."""
    for _ in range(0, ms, TICK):
        bench.clock.advance_ms(min(TICK, ms))
        bench.core._often()
        bench.offload.drain()


def jump(bench: Bench, ms: int) -> None:
    """Time passes at once; then a few turns."""
    bench.clock.advance_ms(ms)
    for _ in range(3):
        bench.core._often()
        bench.offload.drain()


def records(bench: Bench, topic: str = "orders", queue_id: int = 2) -> list[Record]:
    store = bench.core.keeper.store
    assert store is not None
    found = store.get_messages(
        topic, queue_id, store.bounds(topic, queue_id)[0], 1_000, 1 << 20, None
    )
    data, at, decoded = b"".join(found.parts), 0, []
    for size in found.sizes.tolist():
        decoded.append(decode_record(data, at))
        at += size
    return decoded


def bodies(bench: Bench) -> list[bytes]:
    return [record.body for record in records(bench)]


def restarted(bench: Bench, directory: Path, *, save: bool = True, **settings: Any) -> Bench:
    """As after kill -9; ``save``: the last checkpoint is fresh."""
    store = bench.core.keeper.store
    assert store is not None
    if save:
        store.flush()
        bench.core.timed.save()
    store.shutdown()
    bench.core.keeper.store = None
    again = Bench(directory, clock=bench.clock, **settings).open(create=False)
    again.core._deliver()
    again.offload.drain()
    return again


def test_a_message_comes_when_it_is_due_and_not_before(bench: Bench) -> None:
    due = bench.clock.now_ms() + 12_345
    send(bench, b"a", DELIVER_MS=due)
    go(bench, 12_300)
    assert bodies(bench) == [] and bench.core.status()["timing_messages"] == 1
    go(bench, 100)
    (record,) = records(bench)
    assert (
        record.body == b"a"
        and due <= record.store_ms <= due + 100
        and bench.core.status()["timing_messages"] == 0
    )
    assert decode_properties(record.properties) == {"UNIQ_KEY": f"{'a':K>32}", "CLUSTER": "default"}


def test_messages_come_in_the_order_in_which_they_are_due(bench: Bench) -> None:
    rng = random.Random(3)
    delays = [rng.randrange(1, 3_000) for _ in range(300)]
    for delay in delays:
        send(bench, b"%04d" % delay, DELAY_MS=delay)
    go(bench, 3_100)
    assert bodies(bench) == [b"%04d" % delay for delay in sorted(delays)]


def test_a_thousand_that_are_due_together_come_within_a_second_of_it(bench: Bench) -> None:
    """The promised second, in time moved by hand: no limit grows with the machine."""
    due = bench.clock.now_ms() + 2_000
    for number in range(1_000):
        send(bench, b"%04d" % number, DELIVER_MS=due)
    go(bench, 3_000)
    found = records(bench)
    assert len(found) == 1_000
    assert all(due <= record.store_ms <= due + 1_000 for record in found)


def test_a_time_in_the_past_is_now_and_one_too_far_is_refused(bench: Bench) -> None:
    send(bench, b"a", DELIVER_MS=1)
    go(bench, 50)
    assert bodies(bench) == [b"a"]
    refused = send(bench, b"b", DELAY_SEC=366 * 86_400)
    assert refused.code == ResponseCode.MESSAGE_ILLEGAL and "timer_max_delay_hours" in (
        refused.remark or ""
    )


def test_what_is_behind_the_window_is_found_by_a_later_scan(tmp_path: Path) -> None:
    bench = Bench(tmp_path, timer_window_ms=1_000, timer_window_messages=20).open()
    delays = [250 * n for n in range(1, 41)]
    for delay in delays:
        send(bench, b"%05d" % delay, DELAY_MS=delay)
    for delay in delays[:10]:
        send(bench, b"%05d" % delay, DELAY_MS=delay)
    go(bench, 500)
    assert len(bench.core.timed.window) <= 20 and bench.core.status()["timing_messages"] == 46
    go(bench, 9_700)
    assert bodies(bench) == sorted(b"%05d" % delay for delay in (*delays, *delays[:10]))
    assert bench.core.status()["timing_messages"] == 0
    bench.close()


@pytest.mark.parametrize("save", [True, False], ids=["fresh checkpoint", "no checkpoint"])
def test_after_a_crash_nothing_is_lost_nothing_early_and_only_the_last_second_comes_again(
    bench: Bench, tmp_path: Path, save: bool
) -> None:
    for delay in range(100, 4_100, 100):
        send(bench, b"%04d" % delay, DELAY_MS=delay)
    go(bench, 2_000)
    assert len(bodies(bench)) == 20
    bench = restarted(bench, tmp_path, save=save)
    go(bench, 2_000)
    found = bodies(bench)
    assert sorted(set(found)) == [b"%04d" % delay for delay in range(100, 4_100, 100)]
    assert len(found) == (40 if save else 60), "what was delivered since the checkpoint comes again"
    for record in records(bench):
        assert record.store_ms >= record.born_ms + int(record.body)
    bench.close()


def test_the_queue_of_waiting_messages_survives_being_built_anew(
    bench: Bench, tmp_path: Path
) -> None:
    """Due times are in the records: consume queues are derived files."""
    send(bench, b"a", DELAY_MS=60_000)
    recalled = handle_of(send(bench, b"b", DELAY_MS=60_000))
    assert recall(bench, recalled).code == 0
    store = bench.core.keeper.store
    assert store is not None
    store.shutdown()
    bench.core.keeper.store = None
    shutil.rmtree(tmp_path / "store" / "consumequeue")
    (tmp_path / "store" / "rmq_ray" / "checkpoint").unlink(missing_ok=True)
    bench = Bench(tmp_path, clock=bench.clock).open(create=False)
    jump(bench, 59_900)
    assert bodies(bench) == []
    jump(bench, 200)
    assert bodies(bench) == [b"a"]
    bench.close()


def test_a_recalled_message_never_comes_over_a_restart_too(bench: Bench, tmp_path: Path) -> None:
    handle = handle_of(send(bench, b"a", DELAY_MS=5_000))
    send(bench, b"b", DELAY_MS=5_000)
    assert recall(bench, handle).code == 0 and bench.core.status()["timing_messages"] == 1
    assert recall(bench, handle).code == 0, "again changes nothing"
    bench = restarted(bench, tmp_path)
    assert recall(bench, handle).code == 0
    go(bench, 5_100)
    assert bodies(bench) == [b"b"] and bench.core.status()["timing_messages"] == 0
    bench.close()


def test_what_was_due_cannot_be_recalled(bench: Bench) -> None:
    handle = handle_of(send(bench, b"a", DELAY_MS=1_000))
    go(bench, 1_100)
    answer = recall(bench, handle)
    assert (
        answer.code == ResponseCode.QUERY_NOT_FOUND
        and "due already" in (answer.remark or "")
        and bodies(bench) == [b"a"]
    )


def test_handles_of_others_recall_nothing(bench: Bench) -> None:
    handle = RecallHandle.decode(handle_of(send(bench, b"a", DELAY_MS=1_000)))
    ordinary = bench.send("orders", 0)
    forged = [
        RecallHandle("orders", "broker-a", "x", handle.queue_offset, handle.log_offset),
        RecallHandle(
            "orders",
            "broker-a",
            handle.unique_key[:-1] + "Z",
            ordinary.base_queue_offset,
            ordinary.base_log_offset,
        ),
        RecallHandle(
            "orders", "broker-b", handle.unique_key, handle.queue_offset, handle.log_offset
        ),
        RecallHandle(
            "other", "broker-a", handle.unique_key, handle.queue_offset, handle.log_offset
        ),
    ]
    assert [recall(bench, fake.encode()).code for fake in forged] == [22, 22, 1, 1]
    assert recall(bench, "nonsense").code == ResponseCode.SYSTEM_ERROR
    go(bench, 1_100)
    assert bodies(bench) == [b"a"]


def test_who_waits_longer_than_the_log_is_kept_gets_a_new_record_and_comes_once(
    tmp_path: Path,
) -> None:
    bench = Bench(tmp_path, timer_roll_hours=1, timer_window_ms=600_000).open()
    handle = handle_of(send(bench, b"a", DELAY_SEC=5 * 3_600))
    recalled = handle_of(send(bench, b"b", DELAY_SEC=5 * 3_600))
    for _ in range(4 * 12):
        jump(bench, 300_000)
        waiting = bench.core.waiting.look(bench.core.keeper.store)()
        assert waiting["delayed"] == {"orders": 2}, "a copy is no second message"
    for body in (b"a", b"b"):  # b is the last message of the queue
        copies = [record for record in records(bench, TIMER_TOPIC, 0) if record.body == body]
        assert len(copies) >= 4 and decode_properties(copies[-1].properties)[
            "TIMER_ROLL_TIMES"
        ] == str(len(copies) - 1)
    assert recall(bench, recalled).code == 0, "the handle of the first copy"
    bench = restarted(bench, tmp_path, timer_roll_hours=1)
    assert bench.core.status()["timing_messages"] == 1
    for _ in range(11):
        jump(bench, 300_000)
    assert bodies(bench) == []
    jump(bench, 310_000)
    assert bodies(bench) == [b"a"] and recall(bench, handle).code == 22
    bench.close()


def test_a_crash_in_the_middle_of_rolling_delivers_once(tmp_path: Path) -> None:
    bench = Bench(tmp_path, timer_roll_hours=1).open()
    send(bench, b"a", DELAY_SEC=2 * 3_600)

    def killed(_offset: int) -> int:
        raise KeyError("killed here")

    bench.core.timed._write_cancel = killed  # type: ignore[method-assign]
    with pytest.raises(KeyError):
        for _ in range(15):
            jump(bench, 300_000)
    bench = restarted(bench, tmp_path, save=False)
    for _ in range(15):
        jump(bench, 300_000)
    assert bodies(bench) == [b"a"]
    bench.close()


def test_a_full_disk_delays_and_loses_nothing(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(5):
        send(bench, b"%d" % number, DELAY_MS=1_000)
    with monkeypatch.context() as patch:

        def full(*_args: Any) -> None:
            raise StoreFull("no room")

        patch.setattr(bench.core.writer, "put", full)
        go(bench, 2_000)
        assert bodies(bench) == []
    go(bench, 300)
    assert bodies(bench) == [b"%d" % number for number in range(5)]


def test_a_send_that_comes_again_after_a_crash_waits_once(bench: Bench, tmp_path: Path) -> None:
    frame = FrameId(b"p" * 16, 1)
    first = send(bench, b"a", frame, DELAY_MS=2_000)
    bench = restarted(bench, tmp_path)
    go(bench, 500)
    again = send(bench, b"a", frame, DELAY_MS=2_000)
    assert handle_of(again) == handle_of(first)
    go(bench, 2_600)
    assert bodies(bench) == [b"a"]
    bench.close()


def test_a_clock_that_is_set_back_neither_loses_nor_repeats(bench: Bench) -> None:
    send(bench, b"a", DELAY_MS=1_000)
    go(bench, 1_100)
    bench.clock.advance_ms(-60_000)
    assert send(bench, b"b", DELAY_MS=1_000).code == ResponseCode.STILL_RECOVERING
    go(bench, 50)
    send(bench, b"b", DELAY_MS=1_000)
    go(bench, 950)
    assert bodies(bench) == [b"a"]
    go(bench, 150)
    assert bodies(bench) == [b"a", b"b"]
    go(bench, 61_000)
    assert bodies(bench) == [b"a", b"b"]


@pytest.mark.parametrize("dies", [False, True])
def test_a_clock_that_was_an_hour_ahead_for_a_moment_makes_nothing_late_that_is_sent_later(
    bench: Bench, tmp_path: Path, dies: bool
) -> None:
    """More is delivered meanwhile than is noted in one turn."""
    before = bench.clock.now_ms()
    send(bench, b"long", DELAY_MS=1_800_000)
    jump(bench, HOUR_MS)
    ahead = {b"%03d" % n for n in range(TURN_MAX + 40)}
    for body in sorted(ahead):
        send(bench, body, DELAY_MS=1_000)
    go(bench, 2_000)
    assert set(bodies(bench)) == {b"long"} | ahead
    bench.clock.advance_ms(-HOUR_MS)
    go(bench, 100)
    send(bench, b"after", DELAY_MS=1_000)
    if dies:
        bench = restarted(bench, tmp_path)
    go(bench, 1_000)
    assert bench.clock.now_ms() < before + 10_000
    go(bench, 200)
    assert bodies(bench)[-1] == b"after"
    if not dies:
        bench = restarted(bench, tmp_path)
    jump(bench, HOUR_MS)
    go(bench, 2_000)
    assert sorted(bodies(bench)) == sorted({b"long", b"after"} | ahead), "none comes again"


def test_under_sync_flush_nothing_overtakes_what_is_not_visible_yet(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A message that waits for its fdatasync while later ones are due must not count as
    delivered.
    """
    bench = Bench(tmp_path, flush=FlushMode.SYNC_FLUSH, clock=ManualClock()).open()
    store = bench.core.keeper.store
    assert store is not None
    peer = FakePeer()
    timed = bench.core.timed
    bench.core._often()
    late = header(bench, "late", None, DELAY_MS=200)
    sent_ms = bench.clock.now_ms()
    assert (
        bench.core.handle(bench.command(Code.SEND_MESSAGE_V2, late.to_v2(), b"late"), peer) is None
    )
    with monkeypatch.context() as patch:
        patch.setattr(type(store), "visible_offset", property(lambda self: 0))
        for _ in range(20):
            bench.clock.advance_ms(50)
            timed.tick(bench.clock.now_ms())
            assert timed._cap_ms <= sent_ms and timed._progress == (0, -1)
    bench.offload.run_until(lambda: len(peer.sent) == 1)
    bench.core._often()
    bench.offload.run_until(lambda: store.bounds("orders", 2)[1] == 1)
    assert bodies(bench) == [b"late"]
    bench.close()


def test_batches_with_a_delivery_time_are_refused(bench: Bench) -> None:
    import struct

    text = b"TIMER_DELAY_MS\x0110"
    body = (
        struct.pack(">iiiii", 22 + 1 + len(text), 0, 0, 0, 1)
        + b"x"
        + struct.pack(">h", len(text))
        + text
    )
    answer = bench.ask(Code.SEND_BATCH_MESSAGE, header(bench, "k", None).to_v2(), body)
    assert answer.code == ResponseCode.MESSAGE_ILLEGAL


def test_a_hundred_random_lives_lose_nothing_and_are_never_early(tmp_path: Path) -> None:
    """Sends, recalls, time, crashes with and without a fresh checkpoint."""
    rng = random.Random(11)
    clock = ManualClock()
    bench = Bench(tmp_path, clock=clock, timer_window_ms=800, timer_window_messages=30).open()
    sent: dict[bytes, int] = {}
    taken_back: set[bytes] = set()
    handles: dict[bytes, str] = {}
    for life in range(30):
        for _ in range(rng.randrange(5, 25)):
            body = b"%d" % len(sent)
            delay = rng.choice([1, 40, 300, 700, 1_500, 4_000])
            handles[body] = handle_of(send(bench, body, DELAY_MS=delay))
            sent[body] = clock.now_ms() + delay
            if rng.random() < 0.15:
                victim = rng.choice(list(sent))
                if recall(bench, handles[victim]).code == 0:
                    taken_back.add(victim)
            go(bench, rng.choice([0, 50, 200]))
        if life % 3 == 2:
            bench = restarted(
                bench,
                tmp_path,
                save=rng.random() < 0.7,
                timer_window_ms=800,
                timer_window_messages=30,
            )
    go(bench, 4_200)
    found = records(bench)
    early = [record.body for record in found if record.store_ms < sent[record.body]]
    assert not early and {record.body for record in found} == sent.keys() - taken_back, (
        "recalled = never, all others come"
    )
    assert bench.core.status()["timing_messages"] == 0
    bench.close()


def test_a_store_with_waiting_recalled_and_delivered_messages_is_sound(
    bench: Bench, tmp_path: Path
) -> None:
    from rmq_ray.store.fsck.inspect import verify

    handle = handle_of(send(bench, b"a", DELAY_MS=1_000))
    for number in range(20):
        send(bench, b"%d" % number, DELAY_MS=100 * number)
    recall(bench, handle)
    go(bench, 1_100)
    store = bench.core.keeper.store
    assert store is not None
    bench.close()
    assert not verify(bench.config.store.path, index_slots=997).faults
    bench.core.keeper.store = None


def test_a_waiting_message_on_a_bad_sector_is_dropped_visibly_and_holds_up_nobody(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    bad = RecallHandle.decode(handle_of(send(bench, b"bad", DELAY_MS=1_000)))
    send(bench, b"good", DELAY_MS=1_000)
    store = bench.core.keeper.store
    assert store is not None
    whole = type(store).record_at

    def record_at(self: Any, log_offset: int) -> bytes | None:
        if log_offset == bad.log_offset:
            raise StoreUnreadable("bad sector")
        return whole(self, log_offset)

    monkeypatch.setattr(type(store), "record_at", record_at)
    go(bench, 1_100)
    assert bodies(bench) == [b"good"] and bench.core.counters.timed_dropped == 1


def test_progress_is_saved_only_as_far_as_copies_are_on_disk(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    send(bench, b"a", DELAY_MS=100)
    store = bench.core.keeper.store
    assert store is not None
    before = store.end_offset
    go(bench, 200)
    assert bodies(bench) == [b"a"]
    with monkeypatch.context() as patch:
        patch.setattr(type(store), "flushed_offset", property(lambda self: before))
        bench.core.timed.save()
        assert bench.core.timed._snapshot().due_ms == 0
    store.flush()
    bench.core.timed.save()
    assert bench.core.timed._snapshot().due_ms > 0


@pytest.mark.parametrize("delay_ms", [100, 5 * HOUR_MS], ids=["delivered", "rolled"])
def test_a_power_loss_loses_no_message_whose_copy_was_not_on_disk_behind_a_scan(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, delay_ms: int
) -> None:
    settings: Any = {"timer_roll_hours": 1, "timer_window_ms": 600_000}
    bench = Bench(tmp_path / "before", **settings).open()
    send(bench, b"a", DELAY_MS=delay_ms)
    recalled = handle_of(send(bench, b"b", DELAY_MS=delay_ms))
    assert recall(bench, recalled).code == 0
    store = bench.core.keeper.store
    assert store is not None
    store.flush()
    on_disk = store.end_offset
    shutil.copytree(tmp_path / "before", tmp_path / "after")
    with monkeypatch.context() as patch:
        patch.setattr(type(store), "flushed_offset", property(lambda self: on_disk))
        for _ in range(14):
            jump(bench, 300_000)
        bench.core.timed.save()
        saved = bench.core.timed.saved
    store.flush()
    bench.core.timed.save()
    assert bench.core.timed.saved.first == 2
    bench.close()
    after = Bench(tmp_path / "after", clock=bench.clock, **settings)
    after.core.timed._file.save(saved)
    after.open(create=False)
    for _ in range(50):
        jump(after, 300_000)
    assert bodies(after) == [b"a"]
    after.close()
