"""What waits for a topic, counted: against a model of everything that was sent, over deliveries,
recalls, ends, checks, deleted topics and restarts.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from rmq_ray.codec.record import decode_record, parse_offset_message_id
from rmq_ray.errors import StoreFailed
from rmq_ray.model.topics import SCHEDULE_TOPIC, TopicConfig
from rmq_ray.protocol.access.accounts import Account, Right
from rmq_ray.remoting.wire.codes import RequestCode as Code
from rmq_ray.remoting.wire.headers import EndTransactionHeader, SendBackHeader, SendHeader
from rmq_ray.remoting.wire.overview import ask_overview, read_overview
from rmq_ray.server.admin.overview import _Sight
from rmq_ray.server.tables import waiting_counts
from rmq_ray.server.tables.waiting_counts import PASSED_MAX, WaitingCounts
from rmq_ray.store.front.message_store import MessageStore
from tests.support.brokers.broker_bench import Bench

TOPICS = ("orders", "refunds")
COMMIT, ROLLBACK = 8, 12
Found = dict[str, dict[str, int]]


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    made = Bench(tmp_path).open()
    for topic in TOPICS:
        made.core.tables.topics.put(TopicConfig(topic, 1, 1))
    yield made
    made.close()


def look(bench: Bench) -> Callable[[], dict[str, Counter[str]]]:
    return bench.core.waiting.look(bench.core.keeper.store)


def counts(bench: Bench) -> Found:
    return {part: dict(found) for part, found in look(bench)().items()}


def delayed(bench: Bench) -> dict[str, int]:
    return counts(bench)["delayed"]


def send(bench: Bench, body: bytes, topic: str = "orders", **properties: Any) -> dict[str, str]:
    properties = {"UNIQ_KEY": f"{body.decode():K>32}", **properties}
    text = "\x02".join(f"{name}\x01{value}" for name, value in properties.items())
    half = 4 if "TRAN_MSG" in properties else 0
    header = SendHeader("web", topic, 0, half, bench.clock.now_ms(), 0, properties=text)
    answer = bench.ask(Code.SEND_MESSAGE_V2, header.to_v2(), body)
    assert answer.code == 0 and answer.fields, answer.remark
    return answer.fields


def end(bench: Bench, half: dict[str, str], body: bytes, how: int) -> None:
    log_offset = parse_offset_message_id(half["msgId"])[2]
    key = f"{body.decode():K>32}"
    header = EndTransactionHeader("web", int(half["queueOffset"]), log_offset, how, key)
    assert bench.ask(Code.END_TRANSACTION, header.to_fields()).code == 0


def send_back(bench: Bench, body: bytes, level: int = 3) -> None:
    sent = bench.send(bodies_=[body])
    header = SendBackHeader(sent.base_log_offset, "billing", level, "U", "orders", False, None)
    assert bench.ask(Code.CONSUMER_SEND_MSG_BACK, header.to_fields()).code == 0


def go(bench: Bench, ms: int) -> None:
    bench.clock.advance_ms(ms)
    for _ in range(3):
        bench.core._often()
        bench.offload.drain()


def delete(bench: Bench, topic: str) -> None:
    assert bench.ask(Code.DELETE_TOPIC_IN_BROKER, {"topic": topic}).code == 0


def stored(bench: Bench) -> MessageStore:
    assert bench.core.keeper.store is not None
    return bench.core.keeper.store


def restarted(bench: Bench, directory: Path) -> Bench:
    """After a clean stop, or as after kill -9 where nothing was saved: what was in memory is
    gone.
    """
    bench.close()
    return Bench(directory, clock=bench.clock).open(create=False)


class Model:
    """All that was sent and has not come, been taken back, ended or gone with its topic."""

    def __init__(self, bench: Bench, seed: int) -> None:
        self.bench = bench
        self.random = random.Random(seed)
        self.number = self.remade = 0
        self.delayed: dict[bytes, str] = {}
        self.halves: dict[bytes, str] = {}
        self.handles: dict[bytes, str] = {}
        self.answers: dict[bytes, dict[str, str]] = {}

    def step(self) -> None:
        """Something happens."""
        self.number += 1
        body, topic = b"m%d" % self.number, self.random.choice(TOPICS)
        kind = self.random.randrange(12)
        if kind < 3:
            send(self.bench, body, topic, DELAY=self.random.choice((1, 2, 3)))
            self.delayed[body] = topic
        elif kind < 6:
            after = self.random.choice((500, 4_000, 60_000))
            self.handles[body] = send(self.bench, body, topic, TIMER_DELAY_MS=after)["recallHandle"]
            self.delayed[body] = topic
        elif kind < 8:
            self.answers[body] = send(self.bench, body, topic, TRAN_MSG="true", PGROUP="web")
            self.halves[body] = topic
        elif kind == 8 and self.halves:
            body = self.random.choice(list(self.halves))
            end(self.bench, self.answers[body], body, self.random.choice((COMMIT, ROLLBACK)))
            del self.halves[body]
        elif kind == 9:
            self.recall()
        elif kind == 10 and self.number % 5 == 0:
            self.remake(topic)
        else:
            go(self.bench, self.random.choice((50, 700, 3_000, 30_000)))
            self.bench.core._check_halves()
        self.see()

    def recall(self) -> None:
        waiting = [body for body in self.delayed if body in self.handles]
        if waiting:
            body = self.random.choice(waiting)
            fields = {"topic": self.delayed[body], "recallHandle": self.handles[body]}
            assert self.bench.ask(Code.RECALL_MESSAGE, fields).code == 0
            del self.delayed[body]

    def remake(self, topic: str) -> None:
        """Deleted, and made again under its name."""
        self.remade += 1
        delete(self.bench, topic)
        self.bench.core.tables.topics.put(TopicConfig(topic, 1, 1))
        for waiting in (self.delayed, self.halves):
            for body in [body for body, its in waiting.items() if its == topic]:
                del waiting[body]

    def see(self) -> None:
        """What has come waits no more."""
        store = stored(self.bench)
        for topic in TOPICS:
            found = store.get_messages(topic, 0, store.bounds(topic, 0)[0], 1_000, 1 << 20, None)
            data, at = b"".join(found.parts), 0
            for size in found.sizes.tolist():
                self.delayed.pop(bytes(decode_record(data, at).body), None)
                at += size

    def expected(self) -> Found:
        return {
            "delayed": dict(Counter(self.delayed.values())),
            "uncommitted": dict(Counter(self.halves.values())),
        }


@pytest.mark.parametrize("seed", range(4))
def test_every_look_tells_what_waited_at_its_moment(
    bench: Bench, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Looks are read later, not at all, and in another order than they were taken."""
    monkeypatch.setattr(waiting_counts, "PAGE_RECORDS", 7)
    model, chance = Model(bench, seed), random.Random(-seed)
    taken: list[tuple[Callable[[], dict[str, Counter[str]]], Found, int]] = []
    exact = 0
    for _ in range(150):
        model.step()
        if chance.random() < 0.4:
            taken.append((look(bench), model.expected(), model.remade))
        if taken and chance.random() < 0.5:
            read, expected, remade = taken.pop(chance.randrange(len(taken)))
            # of a topic that was deleted since the look nothing is read any more
            if remade == model.remade and chance.random() < 0.9:
                assert {part: dict(found) for part, found in read().items()} == expected
                exact += 1
        if chance.random() < 0.3:
            assert counts(bench) == model.expected()
            exact += 1
    assert exact > 40


def test_what_waits_is_counted_anew_after_a_restart(bench: Bench, tmp_path: Path) -> None:
    model = Model(bench, 7)
    for _ in range(120):
        model.step()
    assert counts(bench) == model.expected()
    again = model.bench = restarted(bench, tmp_path)
    try:
        assert counts(again) == model.expected() != {"delayed": {}, "uncommitted": {}}
        for _ in range(60):
            model.step()
        assert counts(again) == model.expected()
    finally:
        again.close()
        bench.core.keeper.store = None


def test_a_failed_message_waits_for_its_group_until_its_retry(bench: Bench) -> None:
    for number in range(3):
        send_back(bench, b"f%d" % number)
    answer = bench.ask(Code.BROKER_OVERVIEW, None, ask_overview(["groups"]).body)
    assert read_overview(answer.body)["delayed"] == {"%RETRY%billing": 3}
    go(bench, 11_000)
    assert delayed(bench) == {}


def test_a_retry_goes_with_the_topic_that_it_came_from(bench: Bench) -> None:
    send_back(bench, b"f")
    assert delayed(bench) == {"%RETRY%billing": 1}
    delete(bench, "orders")
    assert delayed(bench) == {}
    go(bench, 11_000)
    bench.core.tables.topics.put(TopicConfig("orders", 1, 1))
    send_back(bench, b"g")
    assert delayed(bench) == {"%RETRY%billing": 1}


def test_more_than_one_question_reads_is_unknown_until_all_is_read(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(waiting_counts, "READ_MAX", 4)
    for number in range(10):
        send(bench, b"d%d" % number, DELAY=5)
    assert [("delayed" in counts(bench)) for _ in range(4)] == [False, False, True, True]
    assert delayed(bench) == {"orders": 10}


def counted_reads(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """One entry for each record whose topic was read."""
    topic_of, seen = WaitingCounts._topic_of, []

    def counted(one: WaitingCounts, text: bytes, log_offset: int) -> str | None:
        seen.append(log_offset)
        return topic_of(one, text, log_offset)

    monkeypatch.setattr(WaitingCounts, "_topic_of", counted)
    return seen


def test_one_question_reads_so_many_records_of_all_queues_together(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(waiting_counts, "READ_MAX", 4)
    read = counted_reads(monkeypatch)
    for number in range(4):
        for level in (4, 5):
            send(bench, b"d%d-%d" % (level, number), DELAY=level)
        send(bench, b"t%d" % number, TIMER_DELAY_MS=60_000)
        send(bench, b"h%d" % number, TRAN_MSG="true", PGROUP="web")
    for asked in range(1, 5):
        found = counts(bench)
        assert len(read) == 4 * asked
        assert ("delayed" in found) is (asked == 4)
    assert found == {"delayed": {"orders": 12}, "uncommitted": {"orders": 4}}


def test_a_question_that_comes_during_a_long_reading_is_told_that_nobody_knows(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(waiting_counts, "SHORT", 4)
    read = counted_reads(monkeypatch)
    for number in range(5):
        send(bench, b"d%d" % number, DELAY=5)
    first, second = look(bench), look(bench)
    assert "delayed" not in second() and not read
    assert first()["delayed"] == {"orders": 5} and delayed(bench) == {"orders": 5}
    assert len(read) == 5


def test_a_reading_that_never_begins_keeps_nobody_from_counting(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(waiting_counts, "READ_MAX", 4)
    for number in range(10):
        send(bench, b"d%d" % number, DELAY=5)
    look(bench)
    for _ in range(PASSED_MAX + 3):
        counts(bench)
    assert delayed(bench) == {"orders": 10}


def test_what_cannot_be_read_is_unknown(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    send(bench, b"d", DELAY=5)
    send(bench, b"h", TRAN_MSG="true", PGROUP="web")
    real = MessageStore.get_messages

    def failing(store: MessageStore, topic: str, *more: Any) -> Any:
        if topic == SCHEDULE_TOPIC:
            raise StoreFailed("planted")
        return real(store, topic, *more)

    with monkeypatch.context() as planted:
        planted.setattr(MessageStore, "get_messages", failing)
        assert counts(bench) == {"uncommitted": {"orders": 1}}
    assert counts(bench) == {"delayed": {"orders": 1}, "uncommitted": {"orders": 1}}


def test_a_slave_does_not_tell(bench: Bench) -> None:
    send(bench, b"d", DELAY=5)
    bench.identity.broker_id = 1
    assert counts(bench) == {}
    bench.identity.broker_id = 0
    assert delayed(bench) == {"orders": 1}


def test_metrics_tell_topics_and_groups_apart(bench: Bench) -> None:
    send_back(bench, b"f")
    send(bench, b"d", DELAY=5)
    send(bench, b"h", "refunds", TRAN_MSG="true", PGROUP="web")
    families = {one.name: one for one in bench.core.metrics.snapshot(bench.core.status())()}

    def shown(name: str, label: str) -> dict[str, float]:
        return {sample.labels[label]: sample.value for sample in families[name].samples}

    assert shown("rmq_ray_waiting_retries", "consumer_group") == {"billing": 1}
    assert shown("rmq_ray_delayed_messages", "topic") == {"orders": 1, "refunds": 0}
    assert shown("rmq_ray_uncommitted_messages", "topic") == {"orders": 0, "refunds": 1}


def test_an_account_is_told_of_its_own_topics_only() -> None:
    account = Account(
        "web-shop", "s" * 16, topics={"orders": Right.PUB}, groups={"billing": Right.SUB}
    )
    told = {"orders": 1, "refunds": 2, "%RETRY%billing": 3, "%RETRY%other": 4}
    found = _Sight(account).limited({"delayed": told, "uncommitted": told})
    assert found["delayed"] == found["uncommitted"] == {"orders": 1, "%RETRY%billing": 3}
