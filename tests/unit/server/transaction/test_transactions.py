"""Half messages, ends and checks in a broker, without sockets."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgpack
import pytest

from rmq_ray.codec.record import Record, decode_record, parse_offset_message_id
from rmq_ray.config import FlushMode
from rmq_ray.errors import MessageIllegal, StoreUnreadable
from rmq_ray.model.groups import Heartbeat
from rmq_ray.model.ids import FrameId
from rmq_ray.model.message import SysFlag, decode_properties
from rmq_ray.model.topics import HALF_TOPIC, OP_HALF_TOPIC, TRANS_CHECK_MAX_TIME_TOPIC
from rmq_ray.protocol.transaction import EndState
from rmq_ray.remoting.wire import bodies
from rmq_ray.remoting.wire.codes import RequestCode as Code
from rmq_ray.remoting.wire.codes import ResponseCode
from rmq_ray.remoting.wire.frame import FLAG_ONEWAY, Command
from rmq_ray.remoting.wire.headers import CheckTransactionHeader, EndTransactionHeader, SendHeader
from rmq_ray.store.log.commit_log import CommitLog
from tests.support.brokers.broker_bench import Bench
from tests.support.faults.fake_peer import FakePeer

COMMIT, ROLLBACK, UNKNOWN = 8, 12, 0


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    bench = Bench(tmp_path).open()
    yield bench
    bench.close()


def half(
    bench: Bench,
    body: bytes = b"hello",
    group: str = "web",
    frame_id: FrameId | None = None,
    **more: str,
) -> EndTransactionHeader:
    """Send a half as Apache RocketMQ's producer does; the header that commits it."""
    properties = {"TRAN_MSG": "true", "PGROUP": group, "UNIQ_KEY": "K" * 32, **more}
    text = "\x02".join(f"{name}\x01{value}" for name, value in properties.items())
    header = SendHeader(
        group, "orders", 2, 4, bench.clock.now_ms(), 0, properties=text, frame_id=frame_id
    )
    answer = bench.ask(Code.SEND_MESSAGE_V2, header.to_v2(), body)
    assert answer.code == 0, answer.remark
    fields = answer.fields or {}
    assert fields["queueId"] == "2"
    return EndTransactionHeader(
        group,
        int(fields["queueOffset"]),
        parse_offset_message_id(fields["msgId"])[2],
        COMMIT,
        "K" * 32,
    )


def end(bench: Bench, header: EndTransactionHeader, how: int = COMMIT) -> Command:
    fields = header.to_fields() | {"commitOrRollback": str(how)}
    return bench.ask(Code.END_TRANSACTION, fields)


def records(bench: Bench, topic: str, queue_id: int = 0) -> list[Record]:
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


def orders(bench: Bench) -> list[bytes]:
    return [record.body for record in records(bench, "orders", 2)]


def restarted(bench: Bench, directory: Path) -> Bench:
    """As after kill -9: what was in memory is gone, the files stay. (The store of the killed one
    only lets go of its locks.)
    """
    store = bench.core.keeper.store
    assert store is not None
    bench.core.tables._offsets_saver.save_now()
    store.shutdown()
    bench.core.keeper.store = None
    return Bench(directory, clock=bench.clock).open(create=False)


def round_of_checks(bench: Bench, after_ms: int = 60_000) -> None:
    bench.core._check_halves()
    bench.clock.advance_ms(after_ms)
    bench.core._check_halves()
    bench.offload.drain()


def producer(bench: Bench, group: str = "web", **told: Any) -> FakePeer:
    peer = FakePeer(port=40_000 + len(bench.core.members.producers.channels(group)))
    beat(bench, peer, group, **told)
    return peer


def beat(bench: Bench, peer: FakePeer, group: str = "web", has_checker: bool = True) -> None:
    without = frozenset() if has_checker else frozenset((group,))
    body = bodies.encode_heartbeat(Heartbeat(f"c@{peer.port}", (group,), (), without))
    bench.ask(Code.HEART_BEAT, None, body, peer)
    peer.take()


def says_ask_another(bench: Bench, peer: FakePeer, asked: CheckTransactionHeader) -> None:
    """The answer of a producer that cannot say."""
    header = EndTransactionHeader(
        "web",
        asked.state_table_offset,
        asked.commit_log_offset,
        UNKNOWN,
        asked.message_id or "",
        True,
        asked.transaction_id,
        True,
    )
    command = bench.command(Code.END_TRANSACTION, header.to_fields())
    command.flag, command.remark = FLAG_ONEWAY, "it has no checker"
    bench.core.handle(command, peer)


def check_of(peer: FakePeer) -> tuple[CheckTransactionHeader, Record]:
    (command,) = peer.take()
    assert command.code == Code.CHECK_TRANSACTION_STATE and command.is_oneway
    return CheckTransactionHeader.from_fields(command.fields), decode_record(bytes(command.body))


def test_a_half_is_invisible_until_it_is_committed(bench: Bench) -> None:
    bench.send()
    header = half(bench, TAGS="paid")
    assert orders(bench) == [] and bench.core.status()["half_messages"] == 1
    assert end(bench, header).code == 0
    (record,) = records(bench, "orders", 2)
    (stored,) = records(bench, HALF_TOPIC)
    assert (record.body, record.queue_id, record.sys_flag) == (
        b"hello",
        2,
        SysFlag.TRANSACTION_COMMIT,
    )
    assert (record.born_ms, record.born_host, record.prepared_offset) == (
        stored.born_ms,
        stored.born_host,
        stored.log_offset,
    )
    assert decode_properties(record.properties) == {
        "PGROUP": "web",
        "UNIQ_KEY": "K" * 32,
        "TAGS": "paid",
        "CLUSTER": "default",
    }
    assert bench.core.status()["half_messages"] == 0 and bench.core.counters.half_committed == 1


def test_half_and_op_have_the_form_that_apache_rocketmq_reads(bench: Bench) -> None:
    end(bench, half(bench))
    (stored,) = records(bench, HALF_TOPIC)
    properties = decode_properties(stored.properties)
    assert (
        properties["REAL_TOPIC"],
        properties["REAL_QID"],
        properties["TRAN_MSG"],
        properties["PGROUP"],
    ) == ("orders", "2", "true", "web")
    assert stored.sys_flag == 0, "else it would not be queued"
    (op,) = records(bench, OP_HALF_TOPIC)
    assert op.body == b"0" and decode_properties(op.properties)["TAGS"] == "d"


def test_a_rolled_back_half_is_never_delivered_and_cannot_be_committed_later(bench: Bench) -> None:
    header = half(bench)
    assert end(bench, header, ROLLBACK).code == 0
    assert end(bench, header, ROLLBACK).code == 0
    refused = end(bench, header)
    assert refused.code == ResponseCode.TRANSACTION_FAILED and "rolled back" in (
        refused.remark or ""
    )
    assert orders(bench) == [] and bench.core.status()["half_messages"] == 0


def test_a_commit_that_comes_again_stores_nothing_again(bench: Bench) -> None:
    header = half(bench)
    assert [end(bench, header).code for _ in range(3)] == [0, 0, 0]
    assert end(bench, header, ROLLBACK).code == ResponseCode.TRANSACTION_FAILED
    assert orders(bench) == [b"hello"] and len(records(bench, OP_HALF_TOPIC)) == 1


def test_an_unknown_end_changes_nothing(bench: Bench) -> None:
    header = half(bench)
    assert end(bench, header, UNKNOWN).code == 0
    assert bench.core.status()["half_messages"] == 1 and bench.core.counters.half_unknown == 1


@pytest.mark.parametrize(
    "wrong",
    [
        {"tranStateTableOffset": "5"},
        {"commitLogOffset": "1"},
        {"commitLogOffset": "99999"},
        {"producerGroup": "other"},
        {"commitOrRollback": "3"},
    ],
)
def test_an_end_that_names_no_half_of_its_group_is_refused(
    bench: Bench, wrong: dict[str, str]
) -> None:
    bench.send()
    answer = bench.ask(Code.END_TRANSACTION, half(bench).to_fields() | wrong)
    assert answer.code == ResponseCode.SYSTEM_ERROR and answer.remark
    assert orders(bench) == []


def test_an_ordinary_record_cannot_be_committed(bench: Bench) -> None:
    answer = bench.send("orders", 0)
    header = EndTransactionHeader(
        "web", answer.base_queue_offset, answer.base_log_offset, COMMIT, "x"
    )
    assert end(bench, header).code == ResponseCode.SYSTEM_ERROR


def test_transactions_can_be_switched_off(tmp_path: Path) -> None:
    bench = Bench(tmp_path, reject_transactions=True).open()
    header = SendHeader("web", "orders", 0, 4, 1, 0, properties="TRAN_MSG\x01true")
    assert bench.ask(Code.SEND_MESSAGE_V2, header.to_v2(), b"x").code == ResponseCode.NO_PERMISSION
    bench.close()


def test_a_half_that_is_sent_again_after_a_crash_is_known(bench: Bench, tmp_path: Path) -> None:
    first = half(bench, frame_id=FrameId(b"p" * 16, 1))
    bench = restarted(bench, tmp_path)
    again = half(bench, frame_id=FrameId(b"p" * 16, 1))
    assert again == first and bench.core.status()["half_messages"] == 1
    bench.close()


@pytest.mark.seed("S0-012")
def test_any_member_of_the_group_is_asked_and_may_end_the_transaction_of_a_dead_one(
    bench: Bench,
) -> None:
    sender = producer(bench)
    half(bench, b"paid")
    bench.core.closed(sender)
    other, stranger = producer(bench), producer(bench, "another-group")
    round_of_checks(bench)
    asked, record = check_of(other)
    assert not stranger.take() and not sender.take()
    assert (record.topic, record.queue_id, record.body) == ("orders", 2, b"paid")
    assert (record.queue_offset, record.log_offset) == (
        asked.state_table_offset,
        asked.commit_log_offset,
    ) and asked.transaction_id == "K" * 32
    assert (
        end(
            bench,
            EndTransactionHeader(
                "web", asked.state_table_offset, asked.commit_log_offset, COMMIT, "", True
            ),
        ).code
        == 0
    )
    assert orders(bench) == [b"paid"] and bench.core.status()["half_messages"] == 0


def test_nobody_is_asked_about_a_half_that_is_younger_than_the_immunity(bench: Bench) -> None:
    peer = producer(bench)
    bench.core._check_halves()
    bench.clock.advance_ms(54_001)
    half(bench)
    bench.clock.advance_ms(5_999)
    bench.core._check_halves()
    assert not peer.take() and len(records(bench, HALF_TOPIC)) == 1
    bench.clock.advance_ms(60_000)
    bench.core._check_halves()
    check_of(peer)


def test_its_own_immunity_puts_a_half_back_without_asking(bench: Bench) -> None:
    peer = producer(bench)
    header = half(bench, CHECK_IMMUNITY_TIME_IN_SECONDS="100")
    round_of_checks(bench)
    assert not peer.take()
    copy = records(bench, HALF_TOPIC)[-1]
    assert (
        decode_properties(copy.properties)["TRAN_PREPARED_QUEUE_OFFSET"] == "0"
        and bench.core.status()["half_messages"] == 1
    )
    round_of_checks(bench)
    check_of(peer)
    assert end(bench, header).code == 0 and orders(bench) == [b"hello"], (
        "the sender's own offsets still work"
    )
    assert bench.core.status()["half_messages"] == 0


def test_an_answer_to_an_old_check_ends_the_newest_copy_once(bench: Bench) -> None:
    peer = producer(bench)
    header = half(bench)
    asked = []
    for _ in range(3):
        round_of_checks(bench)
        asked.append(check_of(peer)[0])
    assert bench.core.status()["half_messages"] == 1
    for old in asked:
        assert (
            end(
                bench,
                EndTransactionHeader(
                    "web", old.state_table_offset, old.commit_log_offset, COMMIT, "", True
                ),
            ).code
            == 0
        )
    assert end(bench, header).code == 0
    assert orders(bench) == [b"hello"] and bench.core.status()["half_messages"] == 0


def test_after_the_last_check_a_half_is_given_up_visibly(tmp_path: Path) -> None:
    bench = Bench(tmp_path, transaction_check_max=2).open()
    peer = producer(bench)
    header = half(bench)
    for _ in range(4):
        round_of_checks(bench)
    assert len(peer.take()) == 2 and bench.core.counters.half_checks == 2
    (given_up,) = records(bench, TRANS_CHECK_MAX_TIME_TOPIC)
    assert (
        given_up.body == b"hello"
        and decode_properties(given_up.properties)["REAL_TOPIC"] == "orders"
    )
    assert bench.core.counters.half_discarded == 1 and bench.core.status()["half_messages"] == 0
    refused = end(bench, header)
    assert refused.code == ResponseCode.TRANSACTION_FAILED and "discarded" in (refused.remark or "")
    bench.close()


def test_while_nobody_of_the_group_is_there_a_half_waits_and_is_not_given_up(
    tmp_path: Path,
) -> None:
    bench = Bench(tmp_path, transaction_check_max=2).open()
    header = half(bench)
    for _ in range(5):
        round_of_checks(bench)
    assert bench.core.status()["half_messages"] == 1 and bench.core.counters.half_checks == 0
    peer = producer(bench)
    round_of_checks(bench)
    check_of(peer)
    assert end(bench, header).code == 0 and orders(bench) == [b"hello"]
    bench.close()


def test_who_announces_that_it_has_no_checker_is_not_asked_until_it_has_one(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    bench = Bench(tmp_path, transaction_check_max=2).open()
    unable, able = producer(bench, has_checker=False), producer(bench)
    for number in range(4):
        half(bench, b"%d" % number)
    round_of_checks(bench)
    assert not unable.take() and len(able.take()) == 4
    assert not [line for line in caplog.messages if "transaction" in line]
    bench.core.closed(able)
    for _ in range(3):
        round_of_checks(bench)
    assert not unable.take() and bench.core.status()["half_messages"] == 4
    waits = [text for text in caplog.messages if "half messages of producer group web wait" in text]
    assert len(waits) == 3 and "checker=" in waits[0], "once in a round"
    beat(bench, unable)
    round_of_checks(bench)
    assert len(unable.take()) == 4
    bench.close()


def test_who_cannot_say_is_passed_over_and_the_next_is_asked_at_once(
    bench: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    peers = [producer(bench) for _ in range(3)]
    half(bench)
    round_of_checks(bench)
    before = bench.core.status()["half_messages"], len(records(bench, HALF_TOPIC))
    asked = []
    for _ in peers:
        (peer,) = [peer for peer in peers if peer.sent]
        header, record = check_of(peer)
        asked.append(peer)
        assert record.topic == "orders" and record.body == b"hello"
        says_ask_another(bench, peer, header)
    assert set(map(id, asked)) == set(map(id, peers)), "each once"
    assert not any(peer.sent for peer in peers), "and then nobody before the next round"
    assert (bench.core.status()["half_messages"], len(records(bench, HALF_TOPIC))) == before
    told = [text for text in caplog.messages if "cannot say what became of half" in text]
    assert len(told) == 3 and f"producer c@{asked[0].port} of group web" in told[0]
    assert "(it has no checker); the next one is asked" in told[0]
    assert "no other is left before the next round" in told[2]
    properties = decode_properties(records(bench, HALF_TOPIC)[-1].properties)
    assert properties["TRANSACTION_CHECK_TIMES"] == "1" and bench.core.counters.half_checks == 3
    round_of_checks(bench)
    (peer,) = [peer for peer in peers if peer.sent]
    header, _ = check_of(peer)
    ending = EndTransactionHeader(
        "web", header.state_table_offset, header.commit_log_offset, COMMIT, "", True
    )
    assert end(bench, ending).code == 0 and orders(bench) == [b"hello"]
    says_ask_another(bench, peer, header)
    assert not any(peer.sent for peer in peers), "it has ended"


def test_a_plain_unknown_and_a_question_that_is_over_are_not_handed_on(bench: Bench) -> None:
    one, other = producer(bench), producer(bench)
    half(bench)
    round_of_checks(bench)
    header, _ = check_of(one)
    unknown = EndTransactionHeader(
        "web", header.state_table_offset, header.commit_log_offset, UNKNOWN, "", True
    )
    assert end(bench, unknown, UNKNOWN).code == 0 and not one.sent and not other.sent
    round_of_checks(bench)
    check_of(other)
    says_ask_another(bench, one, header)
    assert not one.sent and not other.sent, "a newer copy stands for it, which was asked about"
    strange = bench.ask(
        Code.END_TRANSACTION,
        unknown.to_fields() | {"rmqAskAnother": "true", "producerGroup": "thief"},
    )
    assert strange.code == ResponseCode.SYSTEM_ERROR and "not of producer group" in (
        strange.remark or ""
    )


def test_under_sync_flush_the_next_is_asked_when_the_copy_can_be_read(tmp_path: Path) -> None:
    bench = Bench(tmp_path, flush=FlushMode.SYNC_FLUSH).open()
    one, other = producer(bench), producer(bench)
    properties = "TRAN_MSG\x01true\x02PGROUP\x01web\x02UNIQ_KEY\x01" + "K" * 32
    header = SendHeader("web", "orders", 2, 4, bench.clock.now_ms(), 0, properties=properties)
    sender = FakePeer()
    bench.core.handle(bench.command(Code.SEND_MESSAGE_V2, header.to_v2(), b"x"), sender)
    bench.offload.run_until(lambda: len(sender.sent) == 1)
    bench.core._check_halves()
    bench.clock.advance_ms(60_000)
    bench.core._check_halves()
    says_ask_another(bench, one, check_of(one)[0])
    bench.offload.run_until(lambda: len(other.sent) == 1)
    assert check_of(other)[1].body == b"x"
    bench.close()


def test_many_halves_are_looked_at_in_several_turns(bench: Bench) -> None:
    peer = producer(bench)
    for number in range(150):
        half(bench, b"%d" % number)
    bench.core._check_halves()
    bench.clock.advance_ms(60_000)
    bench.core._check_halves()
    assert len(peer.take()) == 64, "others are served in between"
    bench.offload.run_until(lambda: not bench.core._more_checks)
    assert len(peer.take()) == 86 and bench.core.status()["half_messages"] == 150


@pytest.mark.parametrize("save", [True, False], ids=["offsets saved", "offsets older"])
def test_a_restart_knows_what_ended_and_what_did_not(
    bench: Bench, tmp_path: Path, save: bool
) -> None:
    peer = producer(bench)
    committed, rolled_back, moved = half(bench, b"1"), half(bench, b"2"), half(bench, b"3")
    end(bench, committed)
    end(bench, rolled_back, ROLLBACK)
    round_of_checks(bench)
    asked, _ = check_of(peer)
    if save:
        store = bench.core.keeper.store
        assert store is not None
        store.flush()
        bench.core.transactions.save()
        bench.core.transactions.save()
    bench = restarted(bench, tmp_path)
    assert bench.core.status()["half_messages"] == 1
    assert (
        end(bench, committed).code == 0
        and end(bench, rolled_back).code == ResponseCode.TRANSACTION_FAILED
    )
    assert orders(bench) == [b"1"]
    assert (
        end(
            bench,
            EndTransactionHeader(
                "web", asked.state_table_offset, asked.commit_log_offset, COMMIT, ""
            ),
        ).code
        == 0
    )
    assert end(bench, moved).code == 0 and orders(bench) == [b"1", b"3"]
    bench.close()


class Killed(BaseException):
    """The process ends here."""


def tear_writes(patch: pytest.MonkeyPatch, count: int) -> None:
    """Of the next write the log gets so many records, then the process ends."""
    write = CommitLog.write

    def torn(self: CommitLog, data: Any, log_offset: int, _length: int) -> None:
        end = 0
        for _ in range(count):
            end += decode_record(bytes(data), end).size
        write(self, bytes(data)[:end], log_offset, end)
        raise Killed

    patch.setattr(CommitLog, "write", torn)


def kill_before_op(bench: Bench) -> None:
    def killed(*_args: Any) -> int:
        raise Killed

    bench.core.transactions._write_op = killed  # type: ignore[method-assign]


def test_a_crash_between_the_final_message_and_its_op_does_not_deliver_twice(
    bench: Bench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench.send()
    header = half(bench)
    with monkeypatch.context() as patch, pytest.raises(Killed):
        tear_writes(patch, 1)
        end(bench, header)
    bench = restarted(bench, tmp_path)
    assert orders(bench) == [b"hello"] and bench.core.status()["half_messages"] == 0
    assert end(bench, header).code == 0, "the producer asks again"
    assert orders(bench) == [b"hello"] and [op.body for op in records(bench, OP_HALF_TOPIC)] == [
        b"0"
    ]
    bench.close()


def test_a_crash_between_a_copy_for_a_check_and_its_op_leaves_one_pending_half(
    bench: Bench, tmp_path: Path
) -> None:
    header = half(bench)
    kill_before_op(bench)
    with pytest.raises(Killed):
        round_of_checks(bench)
    bench = restarted(bench, tmp_path)
    assert (
        bench.core.status()["half_messages"] == 1
        and bench.core.transactions.window.state(0) is EndState.MOVED
    )
    assert end(bench, header).code == 0 and orders(bench) == [b"hello"]
    assert bench.core.status()["half_messages"] == 0
    bench.close()


def test_a_crash_while_a_half_is_given_up_gives_it_up_once(tmp_path: Path) -> None:
    bench = Bench(tmp_path, transaction_check_max=0).open()
    half(bench)
    kill_before_op(bench)
    with pytest.raises(Killed):
        round_of_checks(bench)
    bench = restarted(bench, tmp_path)
    round_of_checks(bench)
    assert (
        len(records(bench, TRANS_CHECK_MAX_TIME_TOPIC)) == 1
        and bench.core.status()["half_messages"] == 0
    )
    bench.close()


def test_under_sync_flush_an_end_is_answered_when_it_is_durable(tmp_path: Path) -> None:
    bench = Bench(tmp_path, flush=FlushMode.SYNC_FLUSH).open()
    peer = FakePeer()
    properties = "TRAN_MSG\x01true\x02PGROUP\x01web\x02UNIQ_KEY\x01" + "K" * 32
    header = SendHeader("web", "orders", 2, 4, bench.clock.now_ms(), 0, properties=properties)
    assert (
        bench.core.handle(bench.command(Code.SEND_MESSAGE_V2, header.to_v2(), b"x"), peer) is None
    )
    bench.offload.run_until(lambda: len(peer.sent) == 1)
    fields = peer.take()[0].fields
    ending = EndTransactionHeader(
        "web", int(fields["queueOffset"]), parse_offset_message_id(fields["msgId"])[2], COMMIT, ""
    )
    assert bench.core.handle(bench.command(Code.END_TRANSACTION, ending.to_fields()), peer) is None
    bench.offload.run_until(lambda: len(peer.sent) == 1)
    store = bench.core.keeper.store
    assert (
        store is not None and peer.take()[0].code == 0 and store.durable_offset == store.end_offset
    )
    bench.close()


def test_a_store_with_transactions_is_sound(bench: Bench) -> None:
    from rmq_ray.store.fsck.inspect import verify

    producer(bench)
    end(bench, half(bench, b"1"))
    end(bench, half(bench, b"2"), ROLLBACK)
    half(bench, b"3")
    round_of_checks(bench)
    bench.close()
    assert not verify(bench.config.store.path, index_slots=997).faults


def test_properties_leave_room_for_what_copies_add(bench: Bench) -> None:
    """Else a check could not copy the half, again and again."""
    producer(bench)
    header = SendHeader(
        "web",
        "orders",
        2,
        4,
        1,
        0,
        properties="TRAN_MSG\x01true\x02PGROUP\x01web\x02a\x01" + "x" * 31_990,
    )
    assert (
        bench.ask(Code.SEND_MESSAGE_V2, header.to_v2(), b"x").code == ResponseCode.MESSAGE_ILLEGAL
    )
    half(bench, a="x" * 31_900)
    for _ in range(3):
        round_of_checks(bench)
    assert bench.core.counters.half_checks == 3


@pytest.mark.parametrize("error", [StoreUnreadable("bad sector"), MessageIllegal("too long")])
def test_a_half_that_cannot_be_read_or_copied_does_not_hold_up_the_others(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    peer = producer(bench)
    half(bench, b"bad")
    half(bench, b"good")
    store = bench.core.keeper.store
    assert store is not None
    with monkeypatch.context() as patch:
        if isinstance(error, StoreUnreadable):
            whole, first = type(store).record_at, store.log_offset_of(HALF_TOPIC, 0, 0)

            def record_at(self: Any, log_offset: int) -> bytes | None:
                if log_offset == first:
                    raise error
                return whole(self, log_offset)

            patch.setattr(type(store), "record_at", record_at)
        else:
            put = bench.core.writer.put

            def failing(topic: str, queue_id: int, body: bytes, *rest: Any) -> Any:
                if body == b"bad":
                    raise error
                return put(topic, queue_id, body, *rest)

            patch.setattr(bench.core.writer, "put", failing)
        round_of_checks(bench)
    assert check_of(peer)[1].body == b"good" and bench.core.status()["half_messages"] == 2


def bundle(bench: Bench, parts: list[Any], peer: FakePeer | None = None) -> Command:
    return bench.ask(Code.BUNDLE, None, msgpack.packb(parts), peer)


def test_the_parts_of_a_bundle_are_answered_in_their_order_each_by_itself(bench: Bench) -> None:
    headers = [half(bench, b"%d" % number) for number in range(3)]
    wrong = headers[1].to_fields() | {"producerGroup": "other"}
    sending = SendHeader(
        "web", "orders", 0, 4, 1, 0, properties="TRAN_MSG\x01true\x02PGROUP\x01web"
    ).to_v2()
    parts = [
        (37, headers[0].to_fields(), b""),
        (37, wrong, b""),
        (310, sending, b"new"),
        (37, headers[2].to_fields(), b""),
    ]
    answers = msgpack.unpackb(
        bundle(bench, [[code, fields, body] for code, fields, body in parts]).body
    )
    assert (
        [answer[0] for answer in answers] == [0, 1, 0, 0]
        and "not of producer group" in answers[1][2]
        and answers[2][1]["queueOffset"] == "3"
    )
    assert orders(bench) == [b"0", b"2"]


@pytest.mark.parametrize(
    "parts",
    [
        [],
        [[37]],
        [[Code.PULL_MESSAGE, {}, b""]],
        [[Code.BUNDLE, {}, b""]],
        "text",
        7,
        [[37, {}, b""]] * 1_025,
    ],
    ids=lambda parts: repr(parts)[:20],
)
def test_what_is_no_bundle_is_refused(bench: Bench, parts: Any) -> None:
    assert bundle(bench, parts).code == ResponseCode.SYSTEM_ERROR


def test_bundles_are_for_our_own_clients(bench: Bench) -> None:
    assert (
        bundle(bench, [[37, {}, b""]], FakePeer(trusted=False)).code == ResponseCode.NO_PERMISSION
    )


def test_a_bundle_waits_for_the_disk_under_sync_flush(tmp_path: Path) -> None:
    bench = Bench(tmp_path, flush=FlushMode.SYNC_FLUSH).open()
    peer = FakePeer()
    sending = SendHeader(
        "web", "orders", 0, 4, 1, 0, properties="TRAN_MSG\x01true\x02PGROUP\x01web"
    ).to_v2()
    body = msgpack.packb([[310, sending, b"%d" % number] for number in range(5)])
    assert bench.core.handle(bench.command(Code.BUNDLE, None, body), peer) is None
    bench.offload.run_until(lambda: len(peer.sent) == 1)
    store = bench.core.keeper.store
    assert store is not None and store.durable_offset == store.end_offset
    assert [answer[0] for answer in msgpack.unpackb(peer.take()[0].body)] == [0] * 5
    bench.close()


def test_messages_go_back_in_a_bundle_each_with_its_own_answer(bench: Bench) -> None:
    bench.send(bodies_=[b"1", b"2", b"3"])
    bench.heartbeat(FakePeer(), "g")
    offsets = [record.log_offset for record in records(bench, "orders")]
    parts = [
        [
            36,
            {
                "offset": str(at),
                "group": "g",
                "delayLevel": "0",
                "originMsgId": "",
                "originTopic": "orders",
            },
            b"",
        ]
        for at in [*offsets, 1 << 40]
    ]
    codes = [code for code, _, _ in msgpack.unpackb(bundle(bench, parts).body)]
    assert codes == [0, 0, 0, 1] and bench.core.counters.sent_back == 3
