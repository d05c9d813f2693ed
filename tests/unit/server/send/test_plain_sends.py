"""Single sends that arrive in one read: stored and answered as if each had come alone."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from msgspec.structs import replace as changed

from rmq_ray.config import FlushMode, StoreConfig
from rmq_ray.errors import AppendUnknown, StoreFull
from rmq_ray.model.topics import GroupConfig, TopicBound, TopicConfig
from rmq_ray.remoting.wire.codes import RequestCode as Code
from rmq_ray.remoting.wire.codes import ResponseCode
from rmq_ray.remoting.wire.frame import BINARY, FLAG_ONEWAY, JSON, Command, decode, encode_bytes
from rmq_ray.remoting.wire.headers import SendHeader
from rmq_ray.store.front.appender import Appender
from tests.support.brokers.broker_bench import Bench
from tests.support.faults.fake_peer import FakePeer

HEADER = SendHeader(
    "web",
    "orders",
    1,
    0,
    1_699_999_999_000,
    5,
    properties="KEYS\x01k1\x02UNIQ_KEY\x01ABC\x02WAIT\x01true\x02TAGS\x01TagA",
    batch=False,
    unit_mode=False,
)
TEXTS = (
    *(HEADER.properties, None, "", "\x02", "a\x01\x02b\x01c", "TAGS\x01x\x02TAGS\x01y"),
    *("KEYS\x01a b  a\x02WAIT\x01false", "CLUSTER\x01mine\x02UNIQ_KEY\x01" + "A" * 32),
    *("DELAY\x012", "TIMER_DELAY_SEC\x015", "TRAN_MSG\x01true\x02PGROUP\x01web", "x\x01y\0"),
    *("RMQ_FRAME\x01" + "0" * 72, "TIMER_OUT_MS\x0117", "a\x01" + "y" * 40_000, "k\x01日本"),
    *("TRAN_MSG\x01false\x02k\x01v", "region\x01eu\x02a\x01" + "z" * 9_000),
)
CHANGES = {
    "topic": ("orders", "orders", "stock", "absent", "%RETRY%g", "%DLQ%g", "bad topic", "ordered")
    + ("SCHEDULE_TOPIC_XXXX", "read-only", "c_REPLY_TOPIC"),
    "queue_id": (0, 1, 2, 3, 99, -1),
    "sys_flag": (0, 0, 1, 4, 8, 0x10),
    "flag": (0, 7, -1),
    "reconsume_times": (None, 0, 3),
    "max_reconsume_times": (None, None, 2),
    "batch": (None, False, False, True),
}
SENDS = st.tuples(
    st.fixed_dictionaries({}, optional={name: st.sampled_from(of) for name, of in CHANGES.items()}),
    st.sampled_from(TEXTS) | st.just(HEADER.properties),
    st.sampled_from((b"", b"hello", b"x" * 2_000)),
    st.sampled_from((Code.SEND_MESSAGE_V2, Code.SEND_MESSAGE_V2, Code.SEND_MESSAGE)),
    st.sampled_from((JSON, JSON, BINARY)),
    st.sampled_from((*("", "") * 4, "g", "e", "d", "b", "a", "oneway")),
)


def new_bench(directory: Path, flush: FlushMode = FlushMode.ASYNC_FLUSH, **settings: Any) -> Bench:
    bench = Bench(directory, flush, **settings).open()
    topics = bench.core.tables.topics
    for topic, permission, order in (
        *(("orders", 6, False), ("stock", 6, False)),
        *(("ordered", 6, True), ("read-only", 4, False)),
    ):
        topics.put(TopicConfig(topic, 4, 4, permission, order=order))
    bench.core.tables.groups.put(GroupConfig("g"))
    bench.offload.drain()
    return bench


@pytest.fixture(scope="module")
def benches(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Bench, Bench]]:
    """Two brokers that are sent the same: one gets runs, the other one by one."""
    paths = [tmp_path_factory.mktemp(name) for name in ("runs", "singles")]
    # one segment: a run ends a full one earlier than its first message alone
    sizes = {"segment_bytes": 16 << 20, "consume_queue_entries": 5_000, "preallocate": False}
    sizes |= {"index_slots": 997, "index_items": 4_000}
    pair = tuple(
        new_bench(path, store=StoreConfig(str(path / "store"), **sizes))  # type: ignore[arg-type]
        for path in paths
    )
    yield pair  # type: ignore[misc]
    for bench in pair:
        bench.close()


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    made = new_bench(tmp_path)
    yield made
    made.close()


def command(opaque: int, body: bytes = b"hello", **changes: Any) -> Command:
    return Command(310, opaque, 0, changed(HEADER, **changes).to_v2(), bytearray(body))


def made_of(opaque: int, send: tuple[Any, ...]) -> Command:
    changes, text, body, code, serialize, spoilt = send
    header = changed(HEADER, properties=text, **changes)
    fields = header.to_fields() if code == Code.SEND_MESSAGE else header.to_v2()
    if spoilt and code == Code.SEND_MESSAGE_V2 and spoilt != "oneway":
        fields[spoilt] = "x" if opaque % 2 else ""
        if opaque % 3 == 0:
            del fields[spoilt]
    flag = FLAG_ONEWAY if spoilt == "oneway" else 0
    return Command(code, opaque, flag, fields, bytearray(body), serialize=serialize)


def as_bytes(answer: Command | bytes | None) -> bytes:
    if answer is None or isinstance(answer, bytes):
        return answer or b""
    return encode_bytes(answer)


def one_by_one(bench: Bench, commands: Sequence[Command], peer: FakePeer) -> list[bytes]:
    return [as_bytes(bench.core.handle(each, peer)) for each in commands]


def together(bench: Bench, commands: Sequence[Command], peer: FakePeer) -> list[bytes]:
    return [as_bytes(answer) for answer in bench.core.dispatch.handle_sends(commands, peer)]


def answered(bench: Bench, commands: Sequence[Command]) -> tuple[list[bytes], list[bytes]]:
    """(answers of the run, those that were sent later)."""
    peer = FakePeer(trusted=False)
    answers = together(bench, commands, peer)
    bench.offload.drain()
    return answers, [as_bytes(sent) for sent in peer.take()]


def files_of(bench: Bench) -> dict[str, bytes]:
    root = Path(bench.config.store.path)
    return {
        str(path.relative_to(root)): path.read_bytes().rstrip(b"\0")
        for name in ("commitlog", "consumequeue")
        for path in sorted((root / name).rglob("*"))
        if path.is_file()
    }


@settings(
    deadline=None,
    max_examples=200,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(st.lists(SENDS, min_size=1, max_size=8))
def test_a_run_is_stored_and_answered_as_its_sends_one_by_one(
    benches: tuple[Bench, Bench], sends: list[tuple[Any, ...]]
) -> None:
    runs, singles = benches
    commands = [made_of(number, send) for number, send in enumerate(sends)]
    copies = [replace(each, body=bytearray(each.body_bytes())) for each in commands]
    peers = FakePeer(trusted=False), FakePeer(trusted=False)
    found = together(runs, commands, peers[0])
    wanted = one_by_one(singles, copies, peers[1])
    for one in benches:
        one.offload.drain()
    assert found == wanted
    later = [[as_bytes(sent) for sent in peer.take()] for peer in peers]
    assert later[0] == later[1]
    stores = [one.core.keeper.store for one in benches]
    assert stores[0] is not None and stores[1] is not None
    assert stores[0].end_offset == stores[1].end_offset


def test_what_two_brokers_stored_is_the_same_on_disk(benches: tuple[Bench, Bench]) -> None:
    runs, singles = benches
    assert files_of(runs) == files_of(singles) and any(files_of(runs).values())
    found = []
    for bench in benches:
        store = bench.core.keeper.store
        assert store is not None
        found.append([store.query("orders", key, 64, 0, 1 << 62) for key in ("k1", "ABC", "b")])
    assert found[0] == found[1] and found[0][0], "k1 is the key of most of them"


def test_plain_sends_of_a_read_are_one_write(bench: Bench, monkeypatch: Any) -> None:
    groups: list[int] = []
    append = Appender.append_mixed

    def counted(appender: Appender, messages: Sequence[Any]) -> Any:
        groups.append(len(messages))
        return append(appender, messages)

    monkeypatch.setattr(Appender, "append_mixed", counted)
    commands = [command(number, queue_id=number % 4) for number in range(20)]
    commands[7] = command(7, properties="DELAY\x013")
    answers, _ = answered(bench, commands)
    assert groups == [7, 12], "a delayed message is stored in its turn"
    offsets = [decode(memoryview(answer)[4:]).fields["queueOffset"] for answer in answers]  # type: ignore[index]
    assert offsets[:9] == ["0", "0", "0", "0", "1", "1", "1", "0", "2"]
    counters = bench.core.counters
    assert counters.stored["orders"].messages == 19 and counters.put_messages == 20


def test_one_refusal_does_not_touch_the_others(bench: Bench) -> None:
    half = command(4, properties="k\x01\ud800")  # half of a surrogate pair has no bytes
    answers, _ = answered(bench, [command(1), command(2, queue_id=99), half, command(3)])
    codes = [decode(memoryview(answer)[4:]).code for answer in answers]
    assert codes == [0, ResponseCode.SYSTEM_ERROR, ResponseCode.SYSTEM_ERROR, 0]


def test_a_topic_that_becomes_read_only_takes_nothing_more(bench: Bench) -> None:
    assert decode(memoryview(answered(bench, [command(1)])[0][0])[4:]).code == 0
    bench.core.tables.topics.put(TopicConfig("orders", 4, 4, 4))
    answer = decode(memoryview(answered(bench, [command(2)])[0][0])[4:])
    assert answer.code == ResponseCode.NO_PERMISSION


def test_a_bounded_topic_takes_no_more_than_its_slots(bench: Bench) -> None:
    orders = bench.core.tables.topics.get("orders")
    assert orders is not None
    bench.core.tables.topics.put(replace(orders, bound=TopicBound(2)))
    answers = together(bench, [command(number) for number in range(3)], FakePeer(trusted=False))
    assert [b"is full" in answer for answer in answers] == [False, False, True]


def test_a_full_disk_refuses_each_of_a_run(bench: Bench, monkeypatch: Any) -> None:
    def full(*_: object) -> None:
        raise StoreFull("no room", "path")

    monkeypatch.setattr(Appender, "append_mixed", full)
    monkeypatch.setattr(Appender, "append_message", full)
    answers, _ = answered(bench, [command(1), command(2)])
    assert [decode(memoryview(answer)[4:]).code for answer in answers] == [StoreFull.code] * 2


def test_a_write_whose_end_is_not_known_closes_the_connection(
    bench: Bench, monkeypatch: Any
) -> None:
    def unknown(*_: object) -> None:
        raise AppendUnknown("may be in the log or not", "path")

    def never(*_: object) -> None:
        raise AssertionError("nothing is written again")

    monkeypatch.setattr(Appender, "append_mixed", unknown)
    monkeypatch.setattr(Appender, "append_message", never)
    peer = FakePeer(trusted=False)
    sends = [command(1), command(2), command(3, properties="DELAY\x011"), command(4)]
    assert together(bench, sends, peer) == [b""] * 4 and peer.closed


def test_a_run_larger_than_a_segment_is_stored_in_pieces(tmp_path: Path) -> None:
    bench = new_bench(tmp_path)
    body = b"x" * 400_000
    answers, _ = answered(bench, [command(number, body) for number in range(5)])
    assert [decode(memoryview(answer)[4:]).code for answer in answers] == [0] * 5
    bench.close()


@pytest.mark.parametrize("count", [1, 5])
def test_answers_wait_for_the_disk_in_the_order_of_their_sends(tmp_path: Path, count: int) -> None:
    bench = new_bench(tmp_path, FlushMode.SYNC_FLUSH)
    peer = FakePeer(trusted=False)
    commands = [command(number) for number in range(count)]
    commands.append(command(99, properties="WAIT\x01false"))
    answers = together(bench, commands, peer)
    assert answers[:-1] == [b""] * count and decode(memoryview(answers[-1])[4:]).opaque == 99
    bench.offload.run_until(lambda: len(peer.sent) == count)
    assert [(sent.opaque, sent.code) for sent in peer.sent] == [(n, 0) for n in range(count)]
    bench.close()
