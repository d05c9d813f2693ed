"""Halves that come by the frame and ends that come by the list, in a broker without sockets."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from rmq_ray.codec.frame_encoder import encode_frame
from rmq_ray.config import FlushMode
from rmq_ray.model.ids import FrameId
from rmq_ray.model.message import decode_properties
from rmq_ray.model.topics import HALF_TOPIC, OP_HALF_TOPIC
from rmq_ray.protocol.transaction import half_prefix
from rmq_ray.remoting.wire.codes import RequestCode as Code
from rmq_ray.remoting.wire.codes import ResponseCode
from rmq_ray.remoting.wire.frame import Command
from rmq_ray.remoting.wire.halves import End, HalvesHeader, pack_ends, unpack_end_answers
from rmq_ray.remoting.wire.records import pack_send, unpack_send_answer
from rmq_ray.server.transaction import transaction_handlers
from rmq_ray.store.log.commit_log import CommitLog
from tests.support.brokers.broker_bench import Bench
from tests.support.faults.fake_peer import FakePeer
from tests.unit.server.transaction.test_transactions import (
    Killed,
    check_of,
    orders,
    producer,
    records,
    restarted,
    round_of_checks,
    tear_writes,
)

COMMIT, ROLLBACK = 8, 12
HEADER = HalvesHeader("orders", 2, "web")


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    bench = Bench(tmp_path).open()
    yield bench
    bench.close()


def request(
    bodies: Sequence[bytes],
    header: HalvesHeader = HEADER,
    sequence: int = 0,
    prefix: str | None = None,
    topic: str = HALF_TOPIC,
    rest: str = "",
) -> Any:
    prefix = half_prefix(*header) if prefix is None else prefix
    texts = [f"{prefix}{rest}UNIQ_KEY\x01{n:032X}" for n in range(len(bodies))]
    return header.to_fields(), pack_send(
        *encode_frame(topic, 0, bodies, texts, 1_700_000_000_000, FrameId(b"p" * 16, sequence))
    )


def halves(bench: Bench, bodies: Sequence[bytes], **how: Any) -> list[End]:
    """Send them; the ends that commit them."""
    fields, body = request(bodies, **how)
    answer = bench.ask(Code.SEND_HALVES, fields, body)
    assert answer.code == 0, answer.remark
    offset, log_offset, _, _ = unpack_send_answer(answer.body)
    found = []
    for record in records(bench, HALF_TOPIC)[offset : offset + len(bodies)]:
        found.append(End(record.queue_offset, record.log_offset, COMMIT))
    assert found[0].log_offset == log_offset
    return found


def ends(
    bench: Bench, these: Sequence[End], group: str = "web", peer: FakePeer | None = None
) -> list[int]:
    answer = bench.ask(Code.END_TRANSACTIONS, None, pack_ends(group, these), peer)
    assert answer.code == 0, answer.remark
    return [code for code, _ in unpack_end_answers(answer.body, len(these))]


def test_a_frame_of_halves_is_what_single_halves_are_and_a_list_of_ends_commits_it(
    bench: Bench,
) -> None:
    three = halves(bench, [b"1", b"2", b"3"], rest="TAGS\x01paid\x02KEYS\x01k\x02")
    stored = records(bench, HALF_TOPIC)[1]
    properties = decode_properties(stored.properties)
    assert {
        name: properties[name]
        for name in ("TRAN_MSG", "REAL_TOPIC", "REAL_QID", "PGROUP", "TAGS", "KEYS")
    } == {
        "TRAN_MSG": "true",
        "REAL_TOPIC": "orders",
        "REAL_QID": "2",
        "PGROUP": "web",
        "TAGS": "paid",
        "KEYS": "k",
    }
    assert (
        stored.sys_flag == 0 and orders(bench) == [] and bench.core.status()["half_messages"] == 3
    )
    assert ends(bench, [three[2], three[0], three[1]._replace(state=ROLLBACK)]) == [0, 0, 0]
    assert orders(bench) == [b"3", b"1"] and [op.body for op in records(bench, OP_HALF_TOPIC)] == [
        b"2",
        b"0",
        b"1",
    ]
    final = decode_properties(records(bench, "orders", 2)[0].properties)
    assert final == {"PGROUP": "web", "TAGS": "paid", "KEYS": "k", "UNIQ_KEY": f"{2:032X}"}
    assert bench.core.status()["half_messages"] == 0 and bench.core.counters.half_committed == 2


def test_each_end_is_answered_for_itself_and_those_that_come_again_change_nothing(
    bench: Bench,
) -> None:
    two = halves(bench, [b"1", b"2"])
    rolled_back, nonsense, foreign = (
        two[0]._replace(state=ROLLBACK),
        two[0]._replace(state=3),
        End(0, 5, COMMIT),
    )
    assert ends(bench, [two[0], two[0], rolled_back, nonsense, foreign, two[1]]) == [
        0,
        0,
        ResponseCode.TRANSACTION_FAILED,
        1,
        1,
        0,
    ]
    assert ends(bench, [*two, rolled_back]) == [0, 0, ResponseCode.TRANSACTION_FAILED]
    assert ends(bench, two, group="other") == [1, 1]
    assert orders(bench) == [b"1", b"2"] and len(records(bench, OP_HALF_TOPIC)) == 2


def test_a_frame_that_comes_again_is_stored_once(bench: Bench) -> None:
    assert halves(bench, [b"1", b"2"], sequence=5) == halves(bench, [b"1", b"2"], sequence=5)
    assert bench.core.status()["half_messages"] == 2


def test_ends_beyond_what_one_request_may_have_read_are_told_to_come_again(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    three = halves(bench, [b"1" * 500, b"2" * 500, b"3" * 500])
    monkeypatch.setattr(transaction_handlers, "READ_BYTES_MAX", 1_000)
    assert ends(bench, three) == [0, 0, ResponseCode.SYSTEM_BUSY]
    assert ends(bench, three) == [0, 0, ResponseCode.SYSTEM_BUSY] and ends(bench, three[2:]) == [0]


def test_a_body_that_is_too_large_by_now_refuses_its_own_end_only(tmp_path: Path) -> None:
    before = Bench(tmp_path).open()
    small, large = halves(before, [b"1"])[0], halves(before, [b"2" * 5_000], sequence=1)[0]
    restarted(before, tmp_path).core.close()()
    settings = before.config.store.but(body_bytes_max=4_096)
    after = Bench(tmp_path, clock=before.clock, store=settings).open(create=False)
    assert ends(after, [small, large]) == [0, ResponseCode.MESSAGE_ILLEGAL]
    assert orders(after) == [b"1"] and ends(after, [large._replace(state=ROLLBACK)]) == [0]
    after.close()


def test_a_half_of_a_frame_is_asked_about_and_its_copy_ends_like_any(bench: Bench) -> None:
    peer = producer(bench)
    (one,) = halves(bench, [b"1"])
    round_of_checks(bench)
    asked, record = check_of(peer)
    assert record.topic == "orders" and record.body == b"1"
    copy = End(asked.state_table_offset, asked.commit_log_offset, COMMIT)
    assert ends(bench, [copy, one]) == [0, 0] and orders(bench) == [b"1"], "both name the same half"


@pytest.mark.parametrize(
    ("how", "code"),
    [
        ({"prefix": ""}, ResponseCode.BAD_RECORDS),
        ({"prefix": half_prefix("other", 2, "web", None)}, ResponseCode.BAD_RECORDS),
        ({"prefix": half_prefix("orders", 2, "thief", None)}, ResponseCode.BAD_RECORDS),
        ({"rest": "DELAY\x013\x02"}, ResponseCode.BAD_RECORDS),
        ({"rest": "REAL_TOPIC\x01other\x02"}, ResponseCode.BAD_RECORDS),
        ({"rest": "a\x01" + "b" * 32_000 + "\x02"}, ResponseCode.BAD_RECORDS),
        ({"topic": "orders"}, ResponseCode.BAD_RECORDS),
        ({"header": HalvesHeader(HALF_TOPIC, 0, "web")}, ResponseCode.NO_PERMISSION),
        ({"header": HalvesHeader("%RETRY%g", 0, "web")}, ResponseCode.NO_PERMISSION),
        ({"header": HalvesHeader("orders", 99, "web")}, ResponseCode.SYSTEM_ERROR),
        ({"header": HalvesHeader("orders", 2, "bad group!")}, ResponseCode.SYSTEM_ERROR),
        ({"header": HalvesHeader("orders", 2, "web", 10_000_000)}, ResponseCode.SYSTEM_ERROR),
    ],
    ids=repr,
)
def test_what_a_half_may_not_say_is_refused_and_nothing_is_written(
    bench: Bench, how: dict[str, Any], code: int
) -> None:
    bench.send()
    store = bench.core.keeper.store
    assert store is not None
    before = store.end_offset
    answer = bench.ask(Code.SEND_HALVES, *request([b"1", b"2"], **how))
    assert answer.code == code, answer.remark
    assert store.end_offset == before


def test_a_broker_that_takes_no_transactions_takes_no_frames_of_them(tmp_path: Path) -> None:
    bench = Bench(tmp_path, reject_transactions=True).open()
    assert bench.ask(Code.SEND_HALVES, *request([b"1"])).code == ResponseCode.NO_PERMISSION
    bench.close()


@pytest.mark.parametrize("code", [Code.END_TRANSACTIONS, Code.SEND_HALVES])
def test_what_cannot_be_read_is_refused(bench: Bench, code: int) -> None:
    assert bench.ask(code, None, b"\xc1").code != 0


@pytest.mark.parametrize("kept", [1, 2, 3])
def test_a_crash_in_the_middle_of_many_ends_repeats_and_loses_nothing(
    bench: Bench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kept: int
) -> None:
    three = halves(bench, [b"1", b"2", b"3"])
    with monkeypatch.context() as patch, pytest.raises(Killed):
        tear_writes(patch, kept)
        ends(bench, three)
    bench = restarted(bench, tmp_path)
    assert bench.core.status()["half_messages"] == 3 - (kept + 1) // 2
    assert ends(bench, three) == [0, 0, 0], "the producer asks again"
    assert orders(bench) == [b"1", b"2", b"3"] and sorted(
        op.body for op in records(bench, OP_HALF_TOPIC)
    ) == [b"0", b"1", b"2"]
    bench.close()


def test_many_ends_are_one_write_and_very_many_a_few(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    many = halves(bench, [b"%d" % n for n in range(600)])
    writes: list[int] = []
    write = CommitLog.write
    monkeypatch.setattr(
        CommitLog,
        "write",
        lambda self, data, log_offset, length: (
            writes.append(length),
            write(self, data, log_offset, length),
        )[1],
    )
    assert ends(bench, many[:50]) == [0] * 50 and len(writes) == 1
    assert ends(bench, many) == [0] * 600 and len(writes) == 4
    assert sorted(orders(bench)) == sorted(b"%d" % n for n in range(600))


def test_under_sync_flush_halves_and_ends_are_answered_when_they_are_durable(
    tmp_path: Path,
) -> None:
    bench = Bench(tmp_path, flush=FlushMode.SYNC_FLUSH).open()
    peer = FakePeer()

    def answered(code: int, fields: dict[str, str] | None, body: Any) -> Command:
        assert bench.core.handle(bench.command(code, fields, body), peer) is None
        bench.offload.run_until(lambda: len(peer.sent) == 1)
        store = bench.core.keeper.store
        assert store is not None and store.durable_offset == store.end_offset
        return peer.take()[0]

    offset, log_offset, _, _ = unpack_send_answer(answered(Code.SEND_HALVES, *request([b"1"])).body)
    one = End(offset, log_offset, COMMIT)
    for _ in range(2):
        assert (
            unpack_end_answers(
                answered(Code.END_TRANSACTIONS, None, pack_ends("web", [one, one])).body, 2
            )
            == [(0, None)] * 2
        )
    assert orders(bench) == [b"1"]
    bench.close()


def test_hooks_of_the_broker_see_frames_of_halves_with_their_real_topic(tmp_path: Path) -> None:
    seen: list[Any] = []

    class Audit:
        def before(self, ctx: Any) -> None:
            seen.append((ctx.topic, ctx.queue_id, ctx.group, ctx.count, ctx.code))

        def after(self, ctx: Any) -> None:
            seen.append(ctx.code)

    bench = Bench(tmp_path, send_hooks=(Audit(),)).open()
    halves(bench, [b"1", b"2"])
    assert seen == [("orders", 2, "web", 2, None), 0]
    assert bench.ask(Code.SEND_HALVES, {"t": "orders"}, b"junk").code != 0 and len(seen) == 2
    bench.close()
