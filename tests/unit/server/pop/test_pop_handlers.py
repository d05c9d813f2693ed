"""Popping at a broker without sockets: leases, settlements, redelivery, waiting, restarts, and who
may pop.
"""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

from rmq_ray.clock import ManualClock
from rmq_ray.codec.record import Record, decode_record
from rmq_ray.config import FlushMode
from rmq_ray.model.groups import (
    ConsumeFromWhere,
    ConsumerData,
    ConsumeType,
    Heartbeat,
    MessageModel,
)
from rmq_ray.model.ids import MessageQueue
from rmq_ray.model.topics import GroupConfig
from rmq_ray.protocol.filters.filter_tag import tag_subscription
from rmq_ray.remoting.wire import bodies
from rmq_ray.remoting.wire.bodies_admin import decode_consume_stats
from rmq_ray.remoting.wire.bodies_groups import encode_offsets
from rmq_ray.remoting.wire.codes import RequestCode as Code
from rmq_ray.remoting.wire.codes import ResponseCode
from rmq_ray.remoting.wire.frame import Command
from rmq_ray.remoting.wire.group_headers import ResetOffsetHeader
from rmq_ray.remoting.wire.headers import FailedTry
from rmq_ray.remoting.wire.pops import (
    UNTAKEN_FIELD,
    WITHDRAWN,
    LeasedRecords,
    PopRecords,
    Settle,
    Settlement,
    pack_pop,
    pack_settle,
    unpack_popped,
    unpack_stale,
)
from rmq_ray.store.front.message_store import MessageStore
from rmq_ray.store.reading import log_reader
from tests.support.brokers.broker_bench import Bench
from tests.support.faults.fake_peer import FakePeer

GROUP, TOPIC = "workers", "jobs"
RETRY, DEAD = f"%RETRY%{GROUP}", f"%DLQ%{GROUP}"


class Worker(FakePeer):
    """A member of the group at a bench."""

    def __init__(
        self,
        bench: Bench,
        port: int = 50_001,
        expression: str = "*",
        kind: ConsumeType = ConsumeType.CONSUME_POP,
    ) -> None:
        super().__init__(port=port)
        self.bench = bench
        self.expression = expression
        self.kind = kind

    def beat(self, version: int = 1) -> Command:
        subscription = tag_subscription(TOPIC, self.expression, version)
        data = ConsumerData(
            GROUP,
            self.kind,
            MessageModel.CLUSTERING,
            ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET,
            (subscription,),
        )
        return self.bench.ask(
            Code.HEART_BEAT,
            None,
            bodies.encode_heartbeat(Heartbeat(f"w{self.port}", (), (data,))),
            self,
        )

    def pop_command(self, count: int = 32, **more: Any) -> Command:
        asked: dict[str, Any] = {
            "bytes_max": 1 << 20,
            "invisible_ms": 30_000,
            "expression": self.expression,
        } | more
        return self.bench.command(
            Code.POP_RECORDS, None, pack_pop(PopRecords(GROUP, TOPIC, count, **asked))
        )

    def ask(self, count: int = 32, **more: Any) -> Command:
        answer = self.bench.core.handle(self.pop_command(count, **more), self)
        assert answer is not None, "the pop waits"
        return answer

    def pop(self, count: int = 32, **more: Any) -> list[LeasedRecords]:
        answer = self.ask(count, **more)
        assert answer.code in (0, ResponseCode.PULL_NOT_FOUND), (answer.code, answer.remark)
        return unpack_popped(answer.body) if answer.code == 0 else []

    def settle(
        self,
        leased: LeasedRecords,
        mask: int,
        action: Settle = Settle.ACK,
        delay_ms: int = 0,
        failed: int | None = None,
    ) -> int:
        head = leased.head
        row = Settlement(
            head.topic,
            head.queue_id,
            head.lease_id,
            int(action),
            mask.to_bytes(8, "little"),
            delay_ms,
        )
        fields = FailedTry(failed).to_fields()
        answer = self.bench.ask(Code.SETTLE_POPPED, fields, pack_settle(GROUP, [row]), self)
        assert answer.code == 0, answer.remark
        return int.from_bytes(unpack_stale(answer.body, 1)[0], "little")


def records(leased: LeasedRecords) -> list[Record]:
    found, at = [], 0
    for size in leased.sizes.tolist():
        found.append(decode_record(bytes(leased.records), at))
        at += size
    return found


def texts(leases: list[LeasedRecords]) -> list[bytes]:
    return sorted(bytes(record.body) for leased in leases for record in records(leased))


def pass_ms(bench: Bench, ms: int) -> None:
    """Time passes, and what was posted runs; the disk is flushed in between."""
    bench.clock.advance_ms(ms)
    for _ in range(4):
        store = bench.core.keeper.store
        assert store is not None
        store.flush()
        bench.core.tick()
        bench.offload.drain()
        bench.clock.advance_ms(50)


def commits(bench: Bench) -> dict[str, dict[int, int]]:
    return bench.core.tables.offsets.of_group(GROUP)


@pytest.fixture
def bench(tmp_path: Path) -> Any:
    bench = Bench(tmp_path, default_topic_queues=1).open()
    yield bench
    bench.close()


@pytest.fixture
def worker(bench: Bench) -> Worker:
    worker = Worker(bench)
    assert worker.beat().code == 0
    return worker


def test_a_message_that_is_out_is_given_to_nobody_else(bench: Bench, worker: Worker) -> None:
    bench.send(TOPIC, 0, [b"a", b"b", b"c"])
    other = Worker(bench, 50_002)
    other.beat()
    assert texts(worker.pop(2)) == [b"a", b"b"]
    assert texts(other.pop()) == [b"c"]
    assert other.pop() == []


def untaken(worker: Worker, **more: Any) -> int:
    """What the broker counts."""
    command = worker.pop_command(0, **more)
    command.fields = {UNTAKEN_FIELD: "1"}
    answer = worker.bench.core.handle(command, worker)
    assert answer is not None, "who counts does not wait"
    count = int((answer.fields or {})[UNTAKEN_FIELD])
    assert (answer.code == ResponseCode.PULL_NOT_FOUND) == (count == 0)
    return count


def test_what_nobody_has_taken_is_counted_at_once_and_what_comes_again_too(
    bench: Bench, worker: Worker
) -> None:
    bench.send(TOPIC, 0, [b"seen"])
    assert untaken(worker, wait_ms=20_000) == 1
    bench.send(TOPIC, 0, [b"a", b"b", b"c"])
    assert untaken(worker) == 4
    (leased,) = worker.pop(3)
    assert untaken(worker) == 1, "whether it is settled does not matter"
    worker.settle(leased, 0b010)
    assert untaken(worker) == 1
    worker.settle(leased, 0b101, Settle.CHANGE)
    pass_ms(bench, 100)
    assert untaken(worker) == 3
    assert texts(worker.pop()) == [b"b", b"c", b"seen"]
    assert untaken(worker) == 0


def test_a_worker_that_missed_the_answer_gets_the_same_messages_once_more(
    bench: Bench, worker: Worker
) -> None:
    bench.send(TOPIC, 0, [b"a", b"b", b"c"])
    (missed,) = worker.pop(2, attempt=71)
    peer_answers = len(worker.sent)
    assert bench.core.handle(worker.pop_command(8, attempt=71, again=1), worker) is None
    (again,) = unpack_popped(worker.sent[peer_answers].body)
    assert (again.head, texts([again])) == (missed.head, [b"a", b"b"])
    worker.settle(missed, 0b01)
    assert texts(worker.pop(8, attempt=71, again=1)) == [b"c"], (
        "something became of them: nobody missed the answer"
    )


def test_who_missed_an_empty_answer_gets_what_there_is(bench: Bench, worker: Worker) -> None:
    bench.send(TOPIC, 0, [b"a"])
    assert texts(worker.pop(attempt=72, again=1)) == [b"a"]


def test_a_missed_answer_is_known_after_a_restart_and_with_a_filter(tmp_path: Path) -> None:
    first = Bench(tmp_path, default_topic_queues=1).open()
    worker = Worker(first, expression="paid")
    worker.beat()
    for tag in ("paid", "open", "paid", "open"):
        first.send(TOPIC, 0, [tag.encode()], tag)
    (missed,) = worker.pop(attempt=73)
    first.close()
    second = Bench(tmp_path, clock=first.clock, default_topic_queues=1).open(create=False)
    worker = Worker(second, expression="paid")
    worker.beat()
    assert second.core.handle(worker.pop_command(attempt=73, again=1), worker) is None
    (again,) = unpack_popped(worker.sent[-1].body)
    assert (again.head, texts([again])) == (missed.head, [b"paid", b"paid"])
    second.close()


def test_the_commit_offset_follows_acknowledgements_and_a_repeat_changes_nothing(
    bench: Bench, worker: Worker
) -> None:
    bench.send(TOPIC, 0, [b"a", b"b", b"c"])
    (leased,) = worker.pop()
    assert worker.settle(leased, 0b110) == 0
    assert commits(bench)[TOPIC] == {0: 0}
    assert worker.settle(leased, 0b001) == 0
    assert commits(bench)[TOPIC] == {0: 3}
    assert worker.settle(leased, 0b111) == 0
    assert bench.core.pops.status()["acknowledged"] == 3


def test_what_is_not_settled_in_time_comes_again_with_one_more_try_and_its_old_receipt_is_stale(
    bench: Bench, worker: Worker
) -> None:
    bench.send(TOPIC, 0, [b"a"])
    (leased,) = worker.pop(invisible_ms=1_000)
    pass_ms(bench, 700)
    assert worker.pop() == []
    pass_ms(bench, 300)
    (again,) = worker.pop()
    assert (again.head.topic, records(again)[0].reconsume_times, texts([again])) == (
        RETRY,
        1,
        [b"a"],
    )
    assert worker.settle(leased, 1) == 1
    assert worker.settle(again, 1) == 0
    assert commits(bench) == {TOPIC: {0: 1}, RETRY: {0: 1}}


def test_progress_tells_what_was_taken_beyond_the_first_message_that_is_not_done(
    bench: Bench, worker: Worker
) -> None:
    bench.send(TOPIC, 0, [b"out", b"done", b"out", b"waits"])
    (leased,) = worker.pop(3)
    worker.settle(leased, 0b010)

    def told() -> tuple[int, int, int | None]:
        body = bench.ask(Code.GET_CONSUME_STATS, {"consumerGroup": GROUP, "topic": TOPIC}).body
        found = decode_consume_stats(body)[MessageQueue(TOPIC, "broker-a", 0)]
        return found.broker_offset, found.consumer_offset, found.pull_offset

    assert told() == (4, 0, 3)
    worker.settle(leased, 0b101)
    assert told() == (4, 3, 3)
    bench.core.tables.offsets.commit(TOPIC, GROUP, 0, 1, "an administrator", administrator=True)
    assert told() == (4, 1, None), "the group was moved"


def test_extended_time_counts_from_the_request(bench: Bench, worker: Worker) -> None:
    bench.send(TOPIC, 0, [b"a"])
    (leased,) = worker.pop(invisible_ms=1_000)
    pass_ms(bench, 500)
    worker.settle(leased, 1, Settle.CHANGE, 5_000)
    pass_ms(bench, 4_000)
    assert worker.pop() == []
    assert worker.settle(leased, 1) == 0


def test_a_message_given_back_comes_at_once_and_one_given_back_with_delay_later(
    bench: Bench, worker: Worker
) -> None:
    bench.send(TOPIC, 0, [b"now", b"later"])
    (leased,) = worker.pop()
    worker.settle(leased, 0b01, Settle.CHANGE, 0)
    worker.settle(leased, 0b10, Settle.CHANGE, 3_000)
    pass_ms(bench, 300)
    assert texts(worker.pop()) == [b"now"]
    pass_ms(bench, 3_000)
    assert texts(worker.pop()) == [b"later"]


def test_a_rejected_message_lies_in_the_dead_letters(bench: Bench, worker: Worker) -> None:
    bench.send(TOPIC, 0, [b"bad", b"good"])
    (leased,) = worker.pop()
    worker.settle(leased, 0b01, Settle.REJECT)
    pass_ms(bench, 300)
    store = bench.core.keeper.store
    assert store is not None and store.bounds(DEAD, 0) == (0, 1)
    assert worker.settle(leased, 0b10) == 0
    assert commits(bench)[TOPIC] == {0: 2}
    assert bench.core.pops.status()["dead"] == 1


@pytest.mark.parametrize("limit", [0, 2])
def test_after_its_last_retry_a_message_is_a_dead_letter(
    bench: Bench, worker: Worker, limit: int
) -> None:
    bench.send(TOPIC, 0, [b"a"])
    deliveries = 0
    for _ in range(limit + 3):
        for leased in worker.pop(retries_max=limit):
            deliveries += 1
            worker.settle(leased, 1, Settle.CHANGE, 0)
        pass_ms(bench, 300)
    assert deliveries == 1 + limit
    store = bench.core.keeper.store
    assert store is not None and store.bounds(DEAD, 0) == (0, 1)


@pytest.mark.parametrize(
    ("failed", "limit", "dead_now"),
    [(2, 2, True), (3, 2, True), (1, 2, False), (0, 0, True), (16, -1, True), (None, 0, False)],
)
def test_what_fails_in_its_last_try_is_dead_before_its_delay_is_over(
    bench: Bench, worker: Worker, failed: int | None, limit: int, dead_now: bool
) -> None:
    """None: its worker wants more time, or is older than the field; that decides nothing."""
    bench.send(TOPIC, 0, [b"a"])
    (leased,) = worker.pop(retries_max=limit)
    assert worker.settle(leased, 1, Settle.CHANGE, 60_000, failed) == 0
    pass_ms(bench, 300)
    store = bench.core.keeper.store
    assert store is not None and store.bounds(DEAD, 0) == (0, int(dead_now))
    assert commits(bench)[TOPIC] == {0: int(dead_now)}
    assert worker.settle(leased, 1) == int(dead_now), "who has more time may still acknowledge"


def test_a_group_without_a_retry_topic_waits_for_no_delay(bench: Bench, worker: Worker) -> None:
    bench.core.tables.groups.put(GroupConfig(GROUP, retry_queues=0))
    bench.send(TOPIC, 0, [b"a"])
    (leased,) = worker.pop()
    worker.settle(leased, 1, Settle.CHANGE, 60_000, 0)
    pass_ms(bench, 300)
    assert bench.core.pops.status()["dead"] == 1


def test_only_messages_with_the_groups_tags_are_handed_out_and_the_others_count_as_done(
    bench: Bench,
) -> None:
    worker = Worker(bench, expression="paid")
    worker.beat()
    for tag in ("paid", "open", "open", "paid", "open"):
        bench.send(TOPIC, 0, [tag.encode()], tag)
    (leased,) = worker.pop()
    assert texts([leased]) == [b"paid", b"paid"]
    worker.settle(leased, 0b11)
    assert commits(bench)[TOPIC] == {0: 5}
    bench.send(TOPIC, 0, [b"open"], "open")
    assert worker.pop() == []
    assert commits(bench)[TOPIC] == {0: 6}


def test_a_pop_looks_at_every_queue_and_begins_with_another_one_each_time(tmp_path: Path) -> None:
    bench = Bench(tmp_path, default_topic_queues=4).open()
    worker = Worker(bench)
    worker.beat()
    for queue_id in range(4):
        bench.send(TOPIC, queue_id, [b"%d" % queue_id] * 2)
    assert len(texts(worker.pop(5))) == 5
    assert len(texts(worker.pop(32))) == 3
    bench.close()


def test_waiting_pops_are_served_in_turn_and_get_nothing_twice(
    bench: Bench, worker: Worker
) -> None:
    bench.send(TOPIC, 0, [b"first"])
    worker.pop()
    others = [Worker(bench, 50_010 + number) for number in range(3)]
    for other in others:
        other.beat()
        assert bench.core.handle(other.pop_command(1, wait_ms=10_000), other) is None
        other.take()
    bench.send(TOPIC, 0, [b"a", b"b"])
    bench.offload.drain()
    answers = [[answer for answer in other.take() if answer.is_response] for other in others]
    assert [texts(unpack_popped(answer[0].body)) if answer else None for answer in answers] == [
        [b"a"],
        [b"b"],
        None,
    ]
    pass_ms(bench, 10_001)
    late = [[answer.code for answer in other.take() if answer.is_response] for other in others]
    assert late == [[], [], [ResponseCode.PULL_NOT_FOUND]], "each is answered once"
    assert bench.core.pops.status()["waiting"] == 0


def test_without_long_polling_a_pop_looks_again_after_a_second(tmp_path: Path) -> None:
    bench = Bench(tmp_path, default_topic_queues=1, long_polling=False).open()
    worker = Worker(bench)
    worker.beat()
    bench.send(TOPIC, 0, [b"a"])
    worker.pop()
    assert bench.core.handle(worker.pop_command(wait_ms=10_000), worker) is None
    bench.send(TOPIC, 0, [b"b"])
    worker.take()
    pass_ms(bench, 1_000)
    assert [
        texts(unpack_popped(answer.body)) for answer in worker.take() if answer.is_response
    ] == [[b"b"]]
    bench.close()


def test_a_message_that_comes_again_wakes_who_waits(bench: Bench, worker: Worker) -> None:
    bench.send(TOPIC, 0, [b"a"])
    worker.pop(invisible_ms=1_000)
    pass_ms(bench, 300)
    assert bench.core.handle(worker.pop_command(wait_ms=10_000), worker) is None
    worker.take()
    pass_ms(bench, 1_000)
    assert [
        texts(unpack_popped(answer.body)) for answer in worker.take() if answer.is_response
    ] == [[b"a"]]


def test_a_closed_connection_waits_no_longer_and_loses_nothing(
    bench: Bench, worker: Worker
) -> None:
    bench.send(TOPIC, 0, [b"old"])
    worker.pop()
    gone = Worker(bench, 50_002)
    gone.beat()
    assert bench.core.handle(gone.pop_command(wait_ms=10_000), gone) is None
    bench.core.closed(gone)
    assert bench.core.pops.status()["waiting"] == 0
    bench.send(TOPIC, 0, [b"new"])
    bench.offload.drain()
    assert texts(worker.pop()) == [b"new"]


def test_asking_only_whether_there_is_something_takes_nothing(bench: Bench, worker: Worker) -> None:
    assert bench.core.handle(worker.pop_command(), worker) is not None
    assert worker.ask(0).code in (ResponseCode.PULL_NOT_FOUND, ResponseCode.TOPIC_NOT_EXIST)
    bench.send(TOPIC, 0, [b"a"])
    assert worker.ask(0).code == ResponseCode.PULL_RETRY_IMMEDIATELY
    assert texts(worker.pop()) == [b"a"]


def test_a_full_queue_is_told_and_goes_on_when_something_is_settled(tmp_path: Path) -> None:
    bench = Bench(tmp_path, default_topic_queues=1, pop_in_flight_max=2).open()
    worker = Worker(bench)
    worker.beat()
    bench.send(TOPIC, 0, [b"a", b"b", b"c"])
    (leased,) = worker.pop()
    assert texts([leased]) == [b"a", b"b"]
    refused = worker.ask()
    assert (refused.code, "2 messages" in str(refused.remark)) == (ResponseCode.FLOW_CONTROL, True)
    assert bench.core.handle(worker.pop_command(wait_ms=5_000), worker) is None
    worker.take()
    worker.settle(leased, 0b01)
    bench.offload.drain()
    woken = [answer for answer in worker.take() if answer.is_response and answer.code == 0]
    assert [texts(unpack_popped(answer.body)) for answer in woken if len(answer.body) > 1] == [
        [b"c"]
    ]
    bench.close()


def test_a_restarted_broker_knows_who_has_what_and_what_was_acknowledged(tmp_path: Path) -> None:
    first = Bench(tmp_path, default_topic_queues=1).open()
    worker = Worker(first)
    worker.beat()
    first.send(TOPIC, 0, [b"a", b"b", b"c", b"d"])
    (leased,) = worker.pop(3, invisible_ms=60_000)
    worker.settle(leased, 0b010)
    worker.settle(leased, 0b001, Settle.CHANGE, 5_000)
    first.close()
    second = Bench(tmp_path, clock=first.clock, default_topic_queues=1).open(create=False)
    worker = Worker(second)
    worker.beat()
    assert texts(worker.pop()) == [b"d"], "what is out stays out"
    assert worker.settle(leased, 0b110) == 0, "receipts of before count"
    pass_ms(second, 5_300)
    assert texts(worker.pop()) == [b"a"]
    second.close()


def restarted(first: Bench, directory: Path) -> tuple[Bench, Worker]:
    first.close()
    second = Bench(directory, clock=first.clock, default_topic_queues=1).open(create=False)
    second._sequence = first._sequence
    worker = Worker(second)
    worker.beat()
    return second, worker


def test_what_was_acknowledged_behind_a_message_that_is_out_stays_so_over_every_restart(
    tmp_path: Path,
) -> None:
    """Each start writes the journal anew."""
    bench = Bench(tmp_path, default_topic_queues=1).open()
    worker = Worker(bench)
    worker.beat()
    bench.send(TOPIC, 0, [b"a", b"b", b"c"])
    worker.pop(1)
    (leased,) = worker.pop(2)
    worker.settle(leased, 0b11)
    for _ in range(3):
        bench, worker = restarted(bench, tmp_path)
        assert worker.pop() == []
    pass_ms(bench, 31_000)
    assert texts(worker.pop()) == [b"a"]
    bench.close()


def test_a_lease_that_a_cut_of_the_log_went_through_skips_nothing_after_the_next_restart(
    tmp_path: Path,
) -> None:
    bench = Bench(tmp_path, default_topic_queues=1).open()
    worker = Worker(bench)
    worker.beat()
    bench.send(TOPIC, 0, [b"kept"])
    ledger, key = bench.core.pops.ledger, (GROUP, TOPIC, 0)
    ledger.queue(key, lambda: 0)
    ledger.grant(key, range(4), 4, PopRecords(GROUP, TOPIC, 8, 1 << 20, 30_000))
    bench, worker = restarted(bench, tmp_path)
    bench.send(TOPIC, 0, [b"new", b"newer"])
    bench, worker = restarted(bench, tmp_path)
    assert texts(worker.pop()) == [b"new", b"newer"]
    pass_ms(bench, 31_000)
    assert b"kept" in texts(worker.pop())
    bench.close()


def test_without_its_journal_a_broker_hands_out_all_from_the_commit_offset_on(
    tmp_path: Path,
) -> None:
    first = Bench(tmp_path, default_topic_queues=1).open()
    worker = Worker(first)
    worker.beat()
    first.send(TOPIC, 0, [b"a", b"b", b"c"])
    (leased,) = worker.pop()
    worker.settle(leased, 0b101)
    first.close()
    journal = tmp_path / "store" / "rmq_ray" / "pop.journal"
    journal.write_bytes(journal.read_bytes()[:7])
    first.clock.advance_ms(1)
    second = Bench(tmp_path, clock=first.clock, default_topic_queues=1).open(create=False)
    worker = Worker(second)
    worker.beat()
    assert texts(worker.pop()) == [b"b", b"c"]
    assert worker.settle(leased, 0b010) == 0b010, "a receipt that nobody knows is stale"
    second.close()


def test_a_journal_that_lost_its_end_makes_messages_come_again_but_never_vanish(
    tmp_path: Path,
) -> None:
    first = Bench(tmp_path, default_topic_queues=1).open()
    worker = Worker(first)
    worker.beat()
    first.send(TOPIC, 0, [b"%d" % n for n in range(8)])
    one, other = worker.pop(3), worker.pop(3)
    worker.settle(one[0], 0b010)
    worker.settle(other[0], 0b100)
    worker.settle(one[0], 0b001, Settle.CHANGE, 1_000)
    worker.pop(1)
    first.close()
    journal = tmp_path / "store" / "rmq_ray" / "pop.journal"
    whole = journal.read_bytes()
    unsettled = {b"0", b"2", b"3", b"4", b"6", b"7"}
    for length in range(8, len(whole), 89):
        journal.write_bytes(whole[:length])
        copy = tmp_path / f"cut-{length}"
        shutil.copytree(tmp_path / "store", copy / "store")
        again = Bench(
            copy, clock=ManualClock(first.clock.now_ms() + 1), default_topic_queues=1
        ).open(create=False)
        worker = Worker(again)
        worker.beat()
        found = set(texts(worker.pop()))
        pass_ms(again, 31_000)
        found |= set(texts(worker.pop()))
        assert unsettled <= found, (length, found)
        again.close()


def test_what_a_cut_log_lost_is_not_skipped_when_other_messages_come_in_its_place(
    tmp_path: Path,
) -> None:
    first = Bench(tmp_path, default_topic_queues=1).open()
    worker = Worker(first)
    worker.beat()
    first.send(TOPIC, 0, [b"kept"])
    ledger = first.core.pops.ledger
    (leased,) = worker.pop()
    key = (GROUP, TOPIC, 0)
    ledger.grant(key, range(1, 4), 4, PopRecords(GROUP, TOPIC, 8, 1 << 20, 30_000))
    first.close()
    second = Bench(tmp_path, clock=first.clock, default_topic_queues=1).open(create=False)
    queue = second.core.pops.ledger.find(key)
    assert queue is not None and (queue.next_offset, queue.in_flight) == (1, 1)
    worker = Worker(second)
    worker.beat()
    second._sequence = first._sequence
    second.send(TOPIC, 0, [b"new"])
    assert texts(worker.pop()) == [b"new"]
    assert worker.settle(leased, 1) == 0
    second.close()


def test_a_queue_that_is_read_from_a_cold_disk_is_left_alone_meanwhile(
    bench: Bench, worker: Worker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(MessageStore, "is_cold_pull", lambda *_: True)
    other = Worker(bench, 50_002)
    other.beat()
    bench.send(TOPIC, 0, [b"a", b"b"])
    bench.offload.held = True
    worker.take()
    assert bench.core.handle(worker.pop_command(1), worker) is None
    assert other.pop() == []
    bench.offload.held = False
    bench.offload.run()
    assert [
        texts(unpack_popped(answer.body)) for answer in worker.take() if answer.is_response
    ] == [[b"a"]]
    assert bench.core.handle(other.pop_command(), other) is None
    assert texts(unpack_popped(other.sent[-1].body)) == [b"b"]


def test_a_cold_message_comes_again_as_any_other(
    bench: Bench, worker: Worker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(MessageStore, "is_cold", lambda *_: True)
    bench.send(TOPIC, 0, [b"a"])
    (leased,) = worker.pop()
    worker.settle(leased, 1, Settle.CHANGE, 0)
    pass_ms(bench, 300)
    assert texts(worker.pop()) == [b"a"]


def test_nothing_is_granted_while_it_cannot_be_written_down(bench: Bench, worker: Worker) -> None:
    bench.send(TOPIC, 0, [b"a"])
    bench.core.pops.ledger._journal.close()
    assert worker.ask().code == ResponseCode.SYSTEM_BUSY
    pass_ms(bench, 1_000)
    assert texts(worker.pop()) == [b"a"]


def test_an_administrator_who_moves_the_offset_voids_what_is_out(
    bench: Bench, worker: Worker
) -> None:
    bench.send(TOPIC, 0, [b"a", b"b", b"c"])
    (leased,) = worker.pop()
    fields = {"consumerGroup": GROUP, "topic": TOPIC, "queueId": "0", "commitOffset": "1"}
    assert bench.ask(Code.UPDATE_CONSUMER_OFFSET, fields).code == 0
    assert texts(worker.pop()) == [b"b", b"c"]
    assert worker.settle(leased, 0b111) == 0b111
    assert commits(bench)[TOPIC] == {0: 1}


def test_an_offset_that_was_set_stays_where_a_message_of_before_comes_again(
    bench: Bench, worker: Worker
) -> None:
    bench.send(TOPIC, 0, [b"a", b"b", b"c"])
    (leased,) = worker.pop()
    worker.settle(leased, 0b001)
    worker.settle(leased, 0b010, Settle.CHANGE, 0)
    for _ in range(8):  # its copy is in the log, not on the disk
        bench.clock.advance_ms(50)
        bench.core.tick()
        bench.offload.drain()
    fields = {"consumerGroup": GROUP, "topic": TOPIC, "queueId": "0", "commitOffset": "0"}
    assert bench.ask(Code.UPDATE_CONSUMER_OFFSET, fields).code == 0
    store = bench.core.keeper.store
    assert store is not None
    store.flush()
    bench.clock.advance_ms(50)
    bench.core.tick()
    assert commits(bench)[TOPIC] == {0: 0}


def test_a_group_is_moved_while_its_workers_run_and_those_who_wait_are_served(
    bench: Bench, worker: Worker
) -> None:
    bench.send(TOPIC, 0, [b"a", b"b", b"c"])
    (leased,) = worker.pop()
    worker.settle(leased, 0b111)
    assert bench.core.handle(worker.pop_command(wait_ms=10_000), worker) is None
    worker.take()
    fields = ResetOffsetHeader(TOPIC, GROUP, -1, force=True).to_fields()
    body = encode_offsets({MessageQueue(TOPIC, "broker-a", 0): 1})
    assert bench.ask(Code.INVOKE_BROKER_TO_RESET_OFFSET, fields, body).code == 0
    assert commits(bench)[TOPIC] == {0: 1}
    pass_ms(bench, 1_000)
    assert [
        texts(unpack_popped(answer.body)) for answer in worker.take() if answer.is_response
    ] == [[b"b", b"c"]]


def test_push_consumers_cannot_join_a_group_that_pops_and_are_told_by_whom_it_is_used(
    bench: Bench, worker: Worker
) -> None:
    pusher = Worker(bench, 50_002, kind=ConsumeType.CONSUME_PASSIVELY)
    refused = pusher.beat()
    assert (refused.code, "w50001" in str(refused.remark)) == (
        ResponseCode.GROUP_IN_OTHER_USE,
        True,
    )
    answer = bench.ask(
        Code.PULL_RECORDS, None, bench.pull_command(TOPIC, group=GROUP, flags=0).body, pusher
    )
    assert answer.code in (ResponseCode.GROUP_IN_OTHER_USE, ResponseCode.TOPIC_NOT_EXIST)
    assert worker.beat().code == 0


def test_a_pull_of_a_group_that_pops_is_refused(bench: Bench, worker: Worker) -> None:
    bench.send(TOPIC, 0, [b"a"])
    answer = bench.ask(
        Code.PULL_RECORDS, None, bench.pull_command(TOPIC, group=GROUP, flags=0).body, worker
    )
    assert answer.code == ResponseCode.GROUP_IN_OTHER_USE


def test_workers_cannot_pop_as_a_group_of_push_consumers_until_those_have_gone(
    bench: Bench,
) -> None:
    pusher = Worker(bench, 50_002, kind=ConsumeType.CONSUME_PASSIVELY)
    pusher.beat()
    bench.send(TOPIC, 0, [b"a"])
    worker = Worker(bench)
    assert worker.beat().code == ResponseCode.GROUP_IN_OTHER_USE
    assert worker.ask().code == ResponseCode.GROUP_IN_OTHER_USE
    bench.core.closed(pusher)
    assert worker.beat().code == 0
    assert texts(worker.pop()) == [b"a"]


def test_two_subscriptions_in_one_group_are_told(bench: Bench, worker: Worker) -> None:
    bench.send(TOPIC, 0, [b"a"])
    other = Worker(bench, 50_002, expression="paid")
    other.beat(version=2)
    assert texts(other.pop()) == []
    refused = worker.ask()
    assert (refused.code, "'paid'" in str(refused.remark)) == (
        ResponseCode.GROUP_IN_OTHER_USE,
        True,
    )


def test_a_stranger_must_send_a_heartbeat_first(bench: Bench, worker: Worker) -> None:
    bench.send(TOPIC, 0, [b"a"])
    assert Worker(bench, 50_002).ask().code == ResponseCode.SUBSCRIPTION_NOT_EXIST


def test_a_group_that_begins_at_the_end_of_a_young_topic_gets_what_it_holds(
    bench: Bench, worker: Worker
) -> None:
    bench.send(TOPIC, 0, [b"old"])
    begun = worker.ask(0, from_first=0)
    assert begun.code == ResponseCode.PULL_RETRY_IMMEDIATELY and not begun.fields
    assert texts(worker.pop(from_first=0)) == [b"old"]


@pytest.mark.parametrize("is_told", [True, False])
def test_a_group_that_begins_at_the_end_of_an_old_topic_gets_what_comes_after_its_beginning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_told: bool
) -> None:
    monkeypatch.setattr(log_reader, "IN_MEMORY_RATIO", 0.0)
    bench = Bench(tmp_path, default_topic_queues=3).open()
    worker = Worker(bench)
    assert worker.beat().code == 0
    for queue_id in (1, 2):
        bench.send(TOPIC, queue_id, [b"old"] * queue_id)
    if is_told:
        assert (worker.ask(0, from_first=0).fields or {})["skipped"] == "3"
    assert worker.pop(from_first=0) == []
    assert not worker.ask(0, from_first=0).fields, "it is not new any more"
    for queue_id in range(3):
        bench.send(TOPIC, queue_id, [b"new%d" % queue_id])
    assert texts(worker.pop(from_first=0)) == [b"new0", b"new1", b"new2"]
    bench.close()


def test_the_original_of_a_copy_that_is_not_on_the_disk_is_not_done(
    bench: Bench, worker: Worker
) -> None:
    bench.send(TOPIC, 0, [b"a"])
    (leased,) = worker.pop()
    worker.settle(leased, 1, Settle.CHANGE, 0)
    for _ in range(8):
        bench.clock.advance_ms(50)
        bench.core.tick()
        bench.offload.drain()
    store = bench.core.keeper.store
    assert store is not None and store.bounds(RETRY, 0) == (0, 1)
    assert commits(bench)[TOPIC] == {0: 0}
    pass_ms(bench, 50)
    assert commits(bench)[TOPIC] == {0: 1}


def test_a_message_that_retention_took_is_not_waited_for(bench: Bench, worker: Worker) -> None:
    bench.send(TOPIC, 0, [b"a"])
    worker.pop(invisible_ms=1_000)
    store = bench.core.keeper.store
    assert store is not None
    store.record_at = lambda _offset: None  # type: ignore[method-assign]
    pass_ms(bench, 1_000)
    assert commits(bench)[TOPIC] == {0: 1}


@pytest.mark.parametrize(
    "wrong", [{"invisible_ms": 0}, {"invisible_ms": 13 * 3_600_000}, {"wait_ms": 500_000}]
)
def test_times_out_of_range_are_refused(
    bench: Bench, worker: Worker, wrong: dict[str, int]
) -> None:
    answer = worker.ask(**wrong)
    assert (answer.code, "out of range" in str(answer.remark)) == (ResponseCode.SYSTEM_ERROR, True)


def test_under_sync_flush_a_copy_moves_the_commit_when_it_is_durable(tmp_path: Path) -> None:
    bench = Bench(tmp_path, FlushMode.SYNC_FLUSH, default_topic_queues=1).open()
    worker = Worker(bench)
    worker.beat()
    peer = FakePeer()
    assert (
        bench.core.handle(
            bench.command(Code.SEND_RECORDS, None, bench.frame(TOPIC, 0, [b"a"])), peer
        )
        is None
    )
    bench.offload.run_until(lambda: bool(peer.sent))
    (leased,) = worker.pop()
    worker.settle(leased, 1, Settle.REJECT)
    pass_ms(bench, 300)
    assert commits(bench)[TOPIC] == {0: 1}
    bench.close()


def test_a_pop_for_which_nobody_waits_any_more_takes_nothing(bench: Bench, worker: Worker) -> None:
    bench.send(TOPIC, 0, [b"old"])
    worker.pop()
    worker.take()
    assert bench.core.handle(worker.pop_command(wait_ms=10_000, attempt=81), worker) is None
    assert worker.ask(attempt=81, again=WITHDRAWN).code == ResponseCode.PULL_NOT_FOUND
    (left,) = [answer.code for answer in worker.take() if answer.is_response]
    assert (left, bench.core.pops.status()["waiting"]) == (ResponseCode.PULL_NOT_FOUND, 0)
    bench.send(TOPIC, 0, [b"new"])
    bench.offload.drain()
    assert texts(worker.pop()) == [b"new"]


def test_a_withdrawal_that_names_no_pop_is_refused_and_stops_none(
    bench: Bench, worker: Worker
) -> None:
    bench.send(TOPIC, 0, [b"a"])
    assert worker.ask(again=WITHDRAWN).code == ResponseCode.SYSTEM_ERROR
    assert texts(worker.pop()) == [b"a"]


def test_what_it_had_taken_comes_again_at_once_unless_something_became_of_it(
    bench: Bench, worker: Worker
) -> None:
    bench.send(TOPIC, 0, [b"a", b"b"])
    (first,) = worker.pop(1, attempt=82, invisible_ms=3_600_000)
    worker.pop(1, attempt=83, invisible_ms=3_600_000)
    worker.settle(first, 1)
    for attempt in (82, 83):
        assert worker.ask(attempt=attempt, again=WITHDRAWN).code == ResponseCode.PULL_NOT_FOUND
    pass_ms(bench, 300)
    assert texts(worker.pop()) == [b"b"]


def test_a_pop_that_is_read_from_a_cold_disk_or_comes_late_is_withdrawn_too(
    bench: Bench, worker: Worker, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench.send(TOPIC, 0, [b"a"])
    with monkeypatch.context() as cold:
        cold.setattr(MessageStore, "is_cold_pull", lambda *_: True)
        bench.offload.held = True
        worker.take()
        assert bench.core.handle(worker.pop_command(attempt=84), worker) is None
        worker.ask(attempt=84, again=WITHDRAWN)
        bench.offload.held = False
        bench.offload.run()
        (late,) = [answer.code for answer in worker.take() if answer.is_response]
        assert late == ResponseCode.PULL_RETRY_IMMEDIATELY
    worker.ask(attempt=85, again=WITHDRAWN)
    assert worker.pop(attempt=85) == [], "its withdrawal overtook it"
    assert texts(worker.pop()) == [b"a"]
