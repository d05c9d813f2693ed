"""The puller: when it pulls, what it asks, what it makes of each answer."""

from __future__ import annotations

import pytest

from rmq_ray.client.consumer.puller import PullPace
from rmq_ray.errors import ConfigError, ConnectionLost, RequestTimeout
from rmq_ray.model.pulling import PullSysFlag
from rmq_ray.remoting.wire.codes import RequestCode
from rmq_ray.remoting.wire.records import PullRecords
from tests.support.clients.consumer_rig import ConsumerRig
from tests.support.clients.scripted_client import ADDRESS, SLAVE, record

COMMIT, SUSPEND = int(PullSysFlag.COMMIT_OFFSET), int(PullSysFlag.SUSPEND)


@pytest.mark.seed("S4-076", "S4-083", "S4-045")
def test_a_pull_says_group_queue_offset_limits_flags_version_and_no_expression() -> None:
    rig = ConsumerRig(expression="paid")
    work = rig.take(offset=42)
    subscription = rig.parts.subscriptions.get("orders")
    assert subscription is not None
    pull = rig.pull(work)
    assert pull.command.code == RequestCode.PULL_RECORDS
    assert pull.request == PullRecords(
        "g", "orders", 0, 42, 256, 1 << 20, SUSPEND, 0, 15_000, subscription.version, "TAG", None, 0
    )
    assert pull.timeout_ms == 30_000


@pytest.mark.seed("S4-073", "S4-027", "S4-075")
def test_a_known_offset_travels_with_the_pull_under_the_commit_flag() -> None:
    rig = ConsumerRig()
    work = rig.take()
    rig.parts.offsets.update(work.queue, 17)
    request = rig.pull(work).request
    assert (request.commit_offset, request.sys_flag) == (17, COMMIT | SUSPEND)
    assert (
        COMMIT,
        SUSPEND,
        int(PullSysFlag.SUBSCRIPTION),
        int(PullSysFlag.CLASS_FILTER),
        int(PullSysFlag.LITE_PULL),
    ) == (1, 2, 4, 8, 16)


def test_who_begins_at_the_first_message_of_all_says_so_with_the_first_pull() -> None:
    rig = ConsumerRig()
    work = rig.take()
    rig.parts.offsets.update(work.queue, 0)
    request = rig.pull(work).request
    assert (request.commit_offset, request.sys_flag) == (0, COMMIT | SUSPEND)


@pytest.mark.seed("S4-078", "S4-079", "S4-082")
def test_the_suggested_slave_is_asked_next_and_gets_no_commit_flag() -> None:
    rig = ConsumerRig()
    work = rig.take(slave=True)
    rig.parts.offsets.update(work.queue, 5)
    rig.pull(work).reply(19, 9, suggested=1)
    rig.advance(0)
    assert (rig.client.pulls[-1].address, rig.client.pulls[-1].request.sys_flag) == (SLAVE, SUSPEND)
    rig.client.pulls[-1].reply(19, 9, suggested=0)
    rig.advance(0)
    assert (rig.client.pulls[-1].address, rig.client.pulls[-1].request.sys_flag) == (
        ADDRESS,
        COMMIT | SUSPEND,
    )


@pytest.mark.seed("S4-065", "S4-066")
def test_a_dropped_queue_is_not_pulled_and_a_pull_notes_its_time() -> None:
    rig = ConsumerRig()
    work = rig.take()
    rig.clock.advance_ms(5_000)
    rig.pull(work)
    assert work.process.last_pull_ms == rig.clock.now_ms()
    other = rig.take(queue_id=1)
    other.process.drop()
    rig.puller.pull(other)
    assert len(rig.client.pulls) == 1


@pytest.mark.seed("S4-058", "S1-001", "S4-004", "S4-128")
def test_there_is_one_pull_at_a_time_and_the_next_follows_its_answer() -> None:
    rig = ConsumerRig()
    work = rig.take()
    rig.pull(work)
    rig.puller.pull(work)
    assert len(rig.client.pulls) == 1
    rig.found(work, [0, 1, 2])
    assert [pull.request.offset for pull in rig.client.pulls] == [0, 3]


@pytest.mark.seed("S4-068", "S4-057")
def test_a_paused_consumer_looks_again_after_a_second() -> None:
    rig = ConsumerRig()
    work = rig.take()
    rig.puller.pace = PullPace.PAUSED
    rig.puller.pull(work)
    rig.puller.pace = PullPace.RUNNING
    assert rig.advance(999) == 0
    assert rig.advance(1) == 1
    assert len(rig.client.pulls) == 1


def test_a_stopped_consumer_pulls_no_more_and_throws_answers_away() -> None:
    rig = ConsumerRig()
    work = rig.take()
    rig.pull(work)
    rig.puller.pace = PullPace.STOPPED
    assert rig.found(work, [0]) == []
    rig.puller.pull(work)
    assert len(rig.client.pulls) == 1


@pytest.mark.seed("S4-069", "S4-040")
def test_more_than_a_thousand_unfinished_messages_hold_the_pull_back_for_fifty_ms() -> None:
    rig = ConsumerRig(batch_size=1024, max_span=65_535)
    work = rig.take()
    rig.pull(work)
    rig.found(work, range(1_000))
    assert len(rig.client.pulls) == 2
    rig.found(work, [1_000])
    assert len(rig.client.pulls) == 2
    assert rig.advance(49) == 0
    assert rig.advance(1) == 1
    assert (len(rig.client.pulls), rig.parts.flow.held_back.total()) == (2, 2)


@pytest.mark.seed("S4-070", "S4-041")
def test_more_than_the_bytes_allowed_hold_the_pull_back_counting_bodies_only() -> None:
    rig = ConsumerRig(threshold_mib=1)
    work = rig.take()
    rig.pull(work)
    rig.found(work, [0], body=b"x" * (1 << 20))
    assert len(rig.client.pulls) == 2
    rig.found(work, [1], body=b"x")
    assert len(rig.client.pulls) == 2


@pytest.mark.seed("S4-071", "S4-039")
def test_a_span_of_more_than_two_thousand_holds_the_pull_back() -> None:
    rig = ConsumerRig()
    work = rig.take()
    rig.pull(work)
    rig.found(work, [0], next_offset=2_000)
    rig.found(work, [2_000])
    assert len(rig.client.pulls) == 3
    rig.found(work, [2_001])
    assert len(rig.client.pulls) == 3


def test_a_queue_held_back_is_pulled_as_soon_as_enough_is_finished() -> None:
    rig = ConsumerRig(batch_size=501)
    work = rig.take()
    rig.pull(work)
    batches = rig.found(work, range(1_002))
    assert len(rig.client.pulls) == 1
    rig.consume(batches[0])
    assert len(rig.client.pulls) == 2
    assert rig.advance(50) == 1
    assert len(rig.client.pulls) == 2


def test_a_threshold_for_the_topic_is_divided_among_its_queues() -> None:
    rig = ConsumerRig(threshold_messages_topic=10)
    rig.parts.flow.divide("orders", 4)
    work = rig.take()
    rig.pull(work)
    rig.found(work, [0, 1])
    assert len(rig.client.pulls) == 2
    rig.found(work, [2])
    assert len(rig.client.pulls) == 2


@pytest.mark.seed("S4-072")
def test_a_queue_without_subscription_is_looked_at_again_after_a_second() -> None:
    rig = ConsumerRig()
    work = rig.take()
    rig.parts.subscriptions.remove("orders")
    rig.puller.pull(work)
    assert (rig.client.pulls, rig.advance(999), rig.advance(1)) == ([], 0, 1)


@pytest.mark.seed("S4-116", "S4-118", "S4-169", "S4-171", "S4-114")
def test_found_messages_go_on_in_batches_of_the_size_asked() -> None:
    rig = ConsumerRig(batch_size=3)
    work = rig.take()
    rig.pull(work)
    batches = rig.found(work, range(8))
    assert [(batch.first, batch.last, batch.count) for batch in batches] == [
        (0, 2, 3),
        (3, 5, 3),
        (6, 7, 2),
    ]
    assert (work.process.count, work.process.next_offset, work.process.body_bytes) == (8, 8, 32)


@pytest.mark.seed("S4-169")
def test_by_default_a_batch_is_one_message() -> None:
    rig = ConsumerRig()
    work = rig.take()
    rig.pull(work)
    assert [(batch.first, batch.count) for batch in rig.found(work, range(32))] == [
        (offset, 1) for offset in range(32)
    ]


@pytest.mark.seed("S4-115", "S4-117")
def test_messages_whose_tag_only_shares_the_hash_are_dropped_and_pulling_goes_on_at_once() -> None:
    rig = ConsumerRig(expression="Aa")
    work = rig.take()
    rig.pull(work)
    assert rig.found(work, [0, 1], properties="TAGS\x01BB") == []
    assert [pull.request.offset for pull in rig.client.pulls] == [0, 2]
    assert (rig.offset(work.queue), work.counters.filtered) == (2, 2)
    (batch,) = rig.found(work, [2], properties="TAGS\x01Aa")
    assert batch.take(0)[0].tag == "Aa"


def test_the_next_pull_begins_behind_what_the_broker_scanned_not_behind_the_last_message() -> None:
    rig = ConsumerRig()
    work = rig.take()
    rig.pull(work)
    batches = rig.found(work, [3, 5], next_offset=90)
    assert rig.client.pulls[-1].request.offset == 90
    rig.consume(*batches)
    assert rig.offset(work.queue) == 90


@pytest.mark.seed("S4-119")
def test_a_pull_interval_delays_the_next_pull() -> None:
    rig = ConsumerRig(pull_interval_ms=200)
    work = rig.take()
    rig.pull(work)
    rig.found(work, [0])
    assert (len(rig.client.pulls), rig.advance(199), rig.advance(1), len(rig.client.pulls)) == (
        1,
        0,
        1,
        2,
    )


@pytest.mark.seed("S4-120")
def test_offsets_below_what_was_asked_are_reported_and_not_delivered_twice(
    caplog: pytest.LogCaptureFixture,
) -> None:
    rig = ConsumerRig()
    work = rig.take(offset=5)
    rig.pull(work)
    with caplog.at_level("WARNING"):
        batches = rig.found(work, [3, 4, 5, 6])
    assert [batch.first for batch in batches] == [5, 6]
    assert "asked from offset 5, got 3" in caplog.text


@pytest.mark.seed("S4-121", "S4-114")
@pytest.mark.parametrize("code", [19, 20])
def test_no_message_moves_the_offset_on_and_pulls_at_once(code: int) -> None:
    rig = ConsumerRig()
    work = rig.take(offset=4)
    rig.pull(work).reply(code, 9)
    assert [pull.request.offset for pull in rig.client.pulls] == [4, 9]
    assert rig.offset(work.queue) == 9


def test_no_message_does_not_move_the_offset_past_unfinished_ones() -> None:
    rig = ConsumerRig()
    work = rig.take()
    rig.pull(work)
    (batch,) = rig.found(work, [0])
    rig.client.pulls[-1].reply(20, 50)
    assert rig.offset(work.queue) is None
    rig.consume(batch)
    assert rig.offset(work.queue) == 50


def test_a_broker_that_answers_nothing_at_once_is_not_asked_in_a_tight_loop() -> None:
    rig = ConsumerRig()
    work = rig.take()
    rig.pull(work)
    for _ in range(20):
        if work.pulling:
            rig.client.pulls[-1].reply(19, 0)
    assert len(rig.client.pulls) == 9
    assert rig.advance(50) == 1
    assert len(rig.client.pulls) == 10


@pytest.mark.seed("S4-125", "S4-127", "S4-114")
def test_an_illegal_offset_drops_the_queue_and_reports_the_corrected_one() -> None:
    rig = ConsumerRig()
    work = rig.take(offset=900)
    rig.pull(work).reply(21, 30, low=30, high=40)
    assert rig.moved == [(work, 30)]
    assert work.process.dropped
    assert (len(rig.client.pulls), rig.advance(10_000)) == (1, 0)


def test_an_offset_that_was_moved_keeps_the_epoch_that_it_was_reached_in() -> None:
    rig = ConsumerRig()
    work = rig.take()
    rig.pull(work).reply(0, 1, [record(work.queue, 0)], epoch=1)
    rig.client.pulls[-1].reply(21, 0, epoch=2)
    assert rig.moved == [(work, 0)] and work.epoch == 1


@pytest.mark.seed("S4-114")
def test_any_other_code_is_a_failure_that_is_tried_again_after_a_second() -> None:
    rig = ConsumerRig()
    work = rig.take()
    rig.pull(work).refuse(1)
    assert (len(rig.client.pulls), rig.advance(999), rig.advance(1), len(rig.client.pulls)) == (
        1,
        0,
        1,
        2,
    )


def test_flow_control_of_the_broker_is_tried_again_after_twenty_ms() -> None:
    rig = ConsumerRig()
    rig.pull(rig.take()).refuse(215)
    assert (rig.advance(19), rig.advance(1), len(rig.client.pulls)) == (0, 1, 2)


@pytest.mark.parametrize("code", [24, 25])
def test_an_unknown_or_old_subscription_asks_for_a_heartbeat_and_waits_a_second(code: int) -> None:
    rig = ConsumerRig()
    rig.pull(rig.take()).refuse(code)
    assert (rig.told, rig.advance(999), rig.advance(1), len(rig.client.pulls)) == (1, 0, 1, 2)


def test_a_lost_connection_is_reported_and_pulls_wait_until_it_is_back() -> None:
    rig = ConsumerRig()
    work = rig.take()
    pull = rig.pull(work)
    rig.down.add("broker-a")
    pull.fail(ConnectionLost("gone", "a"))
    assert rig.lost == ["broker-a"]
    rig.advance(1_000)
    assert len(rig.client.pulls) == 1
    rig.down.clear()
    rig.puller.pull(work)
    assert len(rig.client.pulls) == 2


def test_a_refused_connection_and_a_recovering_broker_are_lost_brokers_a_time_out_is_not() -> None:
    rig = ConsumerRig()
    work = rig.take()
    rig.client.down.add(ADDRESS)
    rig.puller.pull(work)
    assert rig.lost == ["broker-a"]
    rig.client.down.clear()
    rig.advance(1_000)
    rig.client.pulls[-1].refuse(20_002)
    assert rig.lost == ["broker-a"] * 2
    rig.advance(1_000)
    rig.client.pulls[-1].fail(RequestTimeout("slow", "a"))
    assert rig.lost == ["broker-a"] * 2


def test_a_broken_answer_is_tried_again_and_delivers_nothing() -> None:
    rig = ConsumerRig()
    work = rig.take()
    broken = bytearray(record(work.queue, 0))
    broken[4] ^= 1
    rig.pull(work).reply(0, 1, [bytes(broken)])
    assert (rig.submitted, work.process.next_offset) == ([], 0)
    assert (rig.advance(1_000), len(rig.client.pulls)) == (1, 2)


def test_the_epoch_of_the_last_answer_goes_with_the_next_pull() -> None:
    rig = ConsumerRig()
    work = rig.take()
    rig.pull(work).reply(19, 0, epoch=7)
    assert rig.client.pulls[-1].request.epoch == 7


@pytest.mark.parametrize(
    "error", [ConfigError("the key cannot be read"), MemoryError(), RuntimeError("no thread")]
)
def test_whatever_keeps_a_pull_from_going_out_the_next_one_is_tried(
    monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    rig = ConsumerRig()
    work = rig.take(offset=42)

    def fails(*_arguments: object) -> None:
        raise error

    with monkeypatch.context() as patch:
        patch.setattr(rig.client, "invoke_async", fails)
        rig.puller.pull(work)
    assert not rig.client.pulls
    rig.advance(rig.parts.config.exception_delay_ms)
    assert [pull.request.offset for pull in rig.client.pulls] == [42]


def test_an_answer_for_which_there_is_no_memory_is_asked_for_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rig = ConsumerRig()
    work = rig.take(offset=42)
    pull = rig.pull(work)

    def fails(*_arguments: object) -> None:
        raise MemoryError

    with monkeypatch.context() as patch:
        patch.setattr(rig.puller, "_put", fails)
        pull.reply(0, 43, [record(work.queue, 42, b"body", "")])
    rig.advance(rig.parts.config.exception_delay_ms)
    assert [pull.request.offset for pull in rig.client.pulls] == [42, 42]
    assert rig.found(work, [42])
