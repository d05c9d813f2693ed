"""What becomes of a pop whose answer got lost: the next one asks for it again, once; and of what
many brokers are told of while one is away.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest

from rmq_ray.client.instance.timers import DelayedCalls
from rmq_ray.client.pop import ack_sender
from rmq_ray.client.pop.ack_sender import GATHER_MS, AckSender
from rmq_ray.client.pop.patience import Patience
from rmq_ray.client.pop.pop_client import PopClient
from rmq_ray.client.pop.receipts import ClientLease, SettleTask
from rmq_ray.errors import ConnectFailed, ConsumeError, RequestTimeout
from rmq_ray.protocol.filters.subscriptions import parse_subscription
from rmq_ray.remoting.wire.codes import RequestCode, ResponseCode
from rmq_ray.remoting.wire.frame import Command
from rmq_ray.remoting.wire.pops import (
    LOST,
    SETTLEMENTS_MAX,
    UNTAKEN_FIELD,
    PopRecords,
    Settle,
    pack_stale,
    unpack_pop,
)
from tests.support.clients.scripted_client import ScriptedClient
from tests.support.waiting import eventually

POP = PopRecords("g", "orders", 1, 1 << 20, 30_000, 0, 0, 16, "TAG", "*")


class Rig:
    def __init__(self) -> None:
        self.client = ScriptedClient()
        self.client.add_topic("orders")
        self.delayed = DelayedCalls(self.client.clock, "later")
        settler: Any = None  # nothing is handed out here
        self.pops = PopClient(
            self.client, "g", parse_subscription("orders", "*", 0), settler, self.delayed
        )

    def answer(self, said: Any) -> None:
        self.client.answer(
            RequestCode.POP_RECORDS,
            lambda command, _: said if isinstance(said, Exception) else command.answer(said),
        )

    def asked(self) -> list[tuple[int, int]]:
        """Attempt and whether it was asked for again, of every pop."""
        pops = [unpack_pop(body_of(c)) for c in self.client.requests(RequestCode.POP_RECORDS)]
        return [(pop.attempt, pop.again) for pop in pops]

    def lose_one(self) -> int:
        """The attempt of a pop whose answer got lost."""
        self.answer(RequestTimeout("no answer"))
        with pytest.raises(RequestTimeout):
            self.pops.pop("broker-a", POP)
        return self.asked()[-1][0]


def body_of(command: Command) -> Any:
    return command.body


@pytest.mark.parametrize(
    ("said", "error"),
    [
        (ResponseCode.STILL_RECOVERING, ConnectFailed),
        (ResponseCode.SYSTEM_BUSY, ConnectFailed),
        (ResponseCode.SYSTEM_ERROR, ConsumeError),
        (RequestTimeout("no answer"), RequestTimeout),
        (ConnectFailed("no connection"), ConnectFailed),
    ],
)
def test_a_lost_pop_is_asked_for_until_it_is_answered_and_then_no_more(
    said: Any, error: type[Exception]
) -> None:
    rig = Rig()
    lost = rig.lose_one()
    rig.answer(said)
    for _ in range(3):
        with pytest.raises(error):
            rig.pops.pop("broker-a", POP)
        assert rig.asked()[-1] == (lost, LOST)
    rig.answer(ResponseCode.PULL_NOT_FOUND)
    for _ in range(3):
        assert rig.pops.pop("broker-a", POP) == []
    again = [asked[1] for asked in rig.asked()[-3:]]
    assert again == [LOST, 0, 0]


def test_one_that_is_refused_is_not_asked_for_again() -> None:
    rig = Rig()
    rig.answer(ResponseCode.SYSTEM_BUSY)
    with pytest.raises(ConnectFailed):
        rig.pops.pop("broker-a", POP)
    rig.answer(ResponseCode.PULL_NOT_FOUND)
    assert rig.pops.pop("broker-a", POP) == []
    assert [again for _, again in rig.asked()] == [0, 0]


def test_a_broker_that_counts_is_believed_and_one_that_does_not_is_told_apart() -> None:
    rig = Rig()
    for told, count in (({UNTAKEN_FIELD: "7"}, 7), ({UNTAKEN_FIELD: "0"}, 0), (None, None)):
        rig.client.answer(
            RequestCode.POP_RECORDS,
            lambda command, _, told=told: command.answer(ResponseCode.PULL_NOT_FOUND, told),
        )
        assert rig.pops.untaken("broker-a", POP) == count
    pops = [unpack_pop(body_of(c)) for c in rig.client.requests(RequestCode.POP_RECORDS)]
    assert {(pop.count_max, pop.wait_ms, pop.attempt) for pop in pops} == {(0, 0, 0)}
    rig.answer(ResponseCode.STILL_RECOVERING)
    with pytest.raises(ConnectFailed):
        rig.pops.untaken("broker-a", POP)


def test_who_gives_a_wait_up_is_not_held_up_by_telling_the_broker() -> None:
    rig, patience = Rig(), Patience()
    withdrawn: list[int] = []

    def give_up(command: Command, _address: Any) -> Command:
        rig.pops.withdraw = withdrawn.append  # type: ignore[method-assign]
        assert patience.give_up()
        assert withdrawn == []
        rig.delayed.run_due()
        return command.answer(ResponseCode.PULL_NOT_FOUND)

    rig.client.answer(RequestCode.POP_RECORDS, give_up)
    assert rig.pops.pop("broker-a", POP, patience) == []
    assert withdrawn == [attempt for attempt, _ in rig.asked()]


SETTLED = RequestCode.SETTLE_POPPED
Told = list[tuple[str, int, float]]


@pytest.fixture
def away() -> Iterator[threading.Event]:
    """What keeps broker-b silent until it is set."""
    event = threading.Event()
    yield event
    event.set()


def told_by(acks: AckSender, away: threading.Event, monkeypatch: pytest.MonkeyPatch) -> Told:
    """Broker, number of leases and milliseconds left, of each request that was answered."""
    told: Told = []
    now_ms = acks._clock.monotonic_ms

    def settle(name: str, tasks: Any, deadline_ms: float) -> int:
        left_ms = deadline_ms - now_ms()
        if name == "broker-b":
            assert away.wait(20)
        told.append((name, len(tasks), left_ms))
        return 0

    monkeypatch.setattr(acks, "_settle_at", settle)
    return told


def settling() -> Rig:
    """Of three brokers that take every settlement of one lease."""
    rig = Rig()
    rig.client.add_topic("orders", brokers=("broker-a", "broker-b", "broker-c"))
    rig.client.answer(SETTLED, lambda command, _: command.answer(body=pack_stale([b""])))
    return rig


def acks_of(rig: Rig) -> AckSender:
    return AckSender(rig.client, "g", 60_000)


def ended(thread: threading.Thread) -> None:
    thread.join(20)
    assert not thread.is_alive()


def brokers(told: Told) -> Counter[str]:
    return Counter(name for name, _, _ in told)


def test_a_broker_that_is_silent_keeps_no_other_from_being_told(
    away: threading.Event, monkeypatch: pytest.MonkeyPatch
) -> None:
    rig = Rig()
    acks = acks_of(rig)
    told = told_by(acks, away, monkeypatch)
    waits = threading.Thread(target=acks.settle, args=(tasks_of(acks),))
    waits.start()
    eventually(lambda: brokers(told) == {"broker-a": 1, "broker-c": 1})
    assert waits.is_alive() and {left for *_, left in told} == {60_000}
    away.set()
    ended(waits)
    assert brokers(told)["broker-b"] == 1
    acks.close()


@pytest.mark.parametrize(("span_ms", "tried_ms"), [(30_000, 10_000), (50, 500)])
def test_who_extends_waits_no_longer_than_a_third_of_it(
    span_ms: int, tried_ms: float, away: threading.Event, monkeypatch: pytest.MonkeyPatch
) -> None:
    rig = Rig()
    acks = acks_of(rig)
    away.set()
    told = told_by(acks, away, monkeypatch)
    acks.settle(tasks_of(acks, Settle.CHANGE, span_ms))
    acks.settle(tasks_of(acks, Settle.CHANGE, span_ms)[:1])
    assert [left for *_, left in told] == [tried_ms] * 4
    acks.close()


def test_what_a_silent_broker_was_not_asked_is_told_as_not_sent_and_asked_no_more(
    away: threading.Event, monkeypatch: pytest.MonkeyPatch
) -> None:
    rig = Rig()
    acks = acks_of(rig)
    told = told_by(acks, away, monkeypatch)
    acks.give_back_later(tasks_of(acks)[1:2])

    def wait(*_: Any) -> None:
        eventually(lambda: brokers(told) == {"broker-a": 1, "broker-c": 1})

    with monkeypatch.context() as patched:
        patched.setattr(ack_sender, "wait", wait)
        with pytest.raises(ConnectFailed, match="broker-b did not answer in time"):
            acks.settle(tasks_of(acks))
    away.set()
    acks.flush()
    assert brokers(told) == {"broker-a": 1, "broker-b": 1, "broker-c": 1}
    acks.close()


def test_acknowledgements_that_nobody_waits_for_wait_for_no_other_broker(
    away: threading.Event, monkeypatch: pytest.MonkeyPatch
) -> None:
    rig = Rig()
    acks = acks_of(rig)
    told = told_by(acks, away, monkeypatch)
    for turn in range(1, 4):
        acks.settle_later(tasks_of(acks))
        rig.client.clock.advance_ms(GATHER_MS)
        eventually(lambda turn=turn: brokers(told) == {"broker-a": turn, "broker-c": turn})
        if turn == 1:
            eventually(lambda: not acks._gathered, "the lane has it in its hands")
    away.set()
    eventually(lambda: [count for name, count, _ in told if name == "broker-b"] == [1, 2])
    acks.close()


def test_flush_waits_for_what_a_lane_has_in_its_hands_and_no_longer_than_its_own_time(
    away: threading.Event, monkeypatch: pytest.MonkeyPatch
) -> None:
    rig = Rig()
    acks = acks_of(rig)
    told = told_by(acks, away, monkeypatch)
    acks.settle_later(tasks_of(acks)[1:2])
    rig.client.clock.advance_ms(GATHER_MS)
    eventually(lambda: not acks._gathered)
    acks.settle_later(tasks_of(acks)[1:2])
    flushes = threading.Thread(target=acks.flush)
    flushes.start()
    eventually(lambda: len(acks._lanes["broker-b"]._heap) == 2)
    assert flushes.is_alive() and not told
    rig.client.clock.advance_ms(60_000)
    away.set()
    ended(flushes)
    assert [left for *_, left in told] == [60_000, 0]
    acks.close()


def test_what_was_given_back_while_its_extension_waited_is_not_extended(
    away: threading.Event, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its delay would be the extension."""
    rig = Rig()
    acks = acks_of(rig)
    told = told_by(acks, away, monkeypatch)
    acks.give_back_later(tasks_of(acks)[1:2])
    tasks = tasks_of(acks, Settle.CHANGE, 30_000)
    extends = threading.Thread(target=acks.settle, args=(tasks,))
    extends.start()
    eventually(lambda: brokers(told) == {"broker-a": 1, "broker-c": 1})
    tasks[1].lease.returned |= 1
    away.set()
    ended(extends)
    assert brokers(told) == {"broker-a": 1, "broker-b": 1, "broker-c": 1}
    acks.close()


@pytest.mark.parametrize(("count", "sent", "unanswered"), [(5_000, 2, 904), (10_000, 3, 4_096)])
def test_what_is_answered_of_very_many_counts_and_the_rest_is_told(
    count: int, sent: int, unanswered: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    rig, calls = Rig(), list[int]()
    acks = acks_of(rig)

    def settle(_name: str, tasks: Any, _deadline_ms: float) -> int:
        calls.append(len(tasks))
        if len(calls) == 2:
            raise ConsumeError("refused")
        return 0

    monkeypatch.setattr(acks, "_settle_at", settle)
    acks.settle_later(many(acks, count))
    acks.flush()
    assert len(calls) == sent and acks.counters.unanswered == unanswered
    acks.close()


def test_ctrl_c_while_a_lane_begins_leaves_what_was_gathered_to_the_next_one(
    away: threading.Event, monkeypatch: pytest.MonkeyPatch
) -> None:
    rig = Rig()
    acks = acks_of(rig)
    away.set()
    told = told_by(acks, away, monkeypatch)

    def interrupted(_lane: DelayedCalls) -> None:
        assert acks._lock.acquire(blocking=False), "a signal handler may close the consumer here"
        acks._lock.release()
        raise KeyboardInterrupt

    with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
        patched.setattr(DelayedCalls, "start", interrupted)
        acks.settle_later(many(acks, 1))
    acks.settle_later(many(acks, 1))
    rig.client.clock.advance_ms(GATHER_MS)
    eventually(lambda: [count for _, count, _ in told] == [2])
    acks.close()


def test_acknowledgements_leave_after_very_many_too(
    away: threading.Event, monkeypatch: pytest.MonkeyPatch
) -> None:
    rig = Rig()
    acks = acks_of(rig)
    told = told_by(acks, away, monkeypatch)
    for count in (10_000, 1):
        acks.settle_later(many(acks, count))
        rig.client.clock.advance_ms(GATHER_MS)
        eventually(lambda count=count: told and told[-1][1] == count % SETTLEMENTS_MAX)
    acks.close()


@pytest.mark.parametrize("error", [ConnectFailed("no connection"), RequestTimeout("no answer")])
def test_what_is_acknowledged_behind_the_end_is_told_at_once_or_counted(error: Exception) -> None:
    rig = settling()
    acks = acks_of(rig)
    acks.settle_later(tasks_of(acks))
    acks.close()
    assert len(rig.client.requests(SETTLED)) == 3
    acks.settle_later(tasks_of(acks))
    assert len(rig.client.requests(SETTLED)) == 6 and acks.counters.acknowledged == 6
    rig.client.answer(SETTLED, lambda *_: error)
    acks.settle_later(tasks_of(acks))
    assert acks.counters.unanswered == 3 and len(rig.client.requests(SETTLED)) == 9


def test_without_another_thread_a_lane_is_the_callers(monkeypatch: pytest.MonkeyPatch) -> None:
    rig = settling()

    def refuse(_lane: DelayedCalls) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(DelayedCalls, "start", refuse)
    acks = acks_of(rig)
    acks.settle_later(tasks_of(acks))
    acks.settle(tasks_of(acks))
    acks.give_back_later(tasks_of(acks))
    assert len(rig.client.requests(SETTLED)) == 9
    acks.close()


def many(acks: AckSender, count: int) -> list[SettleTask]:
    return [
        SettleTask(ClientLease("broker-a", "orders", 0, n, 1, 0, acks), Settle.ACK, 1)
        for n in range(count)
    ]


def tasks_of(acks: AckSender, action: Settle = Settle.ACK, delay_ms: int = 0) -> list[SettleTask]:
    leases = [ClientLease(f"broker-{n}", "orders", 0, 1, 1, 0, acks) for n in "abc"]
    return [SettleTask(lease, action, 1, delay_ms) for lease in leases]
