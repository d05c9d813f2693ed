"""What becomes of a pop whose answer got lost: the next one asks for it again, once; and of what
many brokers are told of while one is away.
"""

from __future__ import annotations

import threading
from collections import Counter
from typing import Any

import pytest

from rmq_ray.client.instance.timers import DelayedCalls
from rmq_ray.client.pop.ack_sender import GATHER_MS, AckSender
from rmq_ray.client.pop.patience import Patience
from rmq_ray.client.pop.pop_client import PopClient
from rmq_ray.client.pop.receipts import ClientLease, SettleTask
from rmq_ray.errors import ConnectFailed, ConsumeError, RequestTimeout
from rmq_ray.protocol.filters.subscriptions import parse_subscription
from rmq_ray.remoting.wire.codes import RequestCode, ResponseCode
from rmq_ray.remoting.wire.frame import Command
from rmq_ray.remoting.wire.pops import LOST, UNTAKEN_FIELD, PopRecords, Settle, unpack_pop
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


def test_a_broker_that_is_away_keeps_no_other_from_being_told(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rig, told = Rig(), list[tuple[str, float]]()
    acks = AckSender(rig.client, "g", 60_000, rig.delayed)  # type: ignore[arg-type]
    now_ms = rig.client.clock.monotonic_ms

    def settle(name: str, _tasks: Any, deadline_ms: float) -> int:
        told.append((name, max(0, deadline_ms - now_ms())))
        if name == "broker-a":
            raise RequestTimeout("broker-a is away")
        return 0

    monkeypatch.setattr(acks, "_settle_at", settle)
    with pytest.raises(RequestTimeout, match="broker-a is away"):
        acks.settle(tasks_of(acks))
    assert told == [("broker-a", 0), ("broker-b", 0), ("broker-c", 0), ("broker-a", 60_000)], (
        "once, and again when all were asked"
    )
    once = told.copy()
    told.clear()
    acks.settle_later(tasks_of(acks))
    acks.flush()
    assert told == once, "flush waits for them in the same way"
    with pytest.raises(RequestTimeout):
        acks.settle(tasks_of(acks, Settle.CHANGE, 30_000))
    assert told[-1] == ("broker-a", 10_000), "a third of what they are extended by"


def test_acknowledgements_that_nobody_waits_for_wait_for_no_other_broker(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rig, back = Rig(), threading.Event()
    acks = AckSender(rig.client, "g", 60_000, rig.delayed)  # type: ignore[arg-type]
    told = list[str]()

    def settle(name: str, _tasks: Any, _deadline_ms: float) -> int:
        if name == "broker-b":
            assert back.wait(20)
        told.append(name)
        return 0

    monkeypatch.setattr(acks, "_settle_at", settle)
    for turn in range(1, 4):
        acks.settle_later(tasks_of(acks))
        rig.client.clock.advance_ms(GATHER_MS)
        while rig.delayed.run_due():
            pass
        eventually(lambda turn=turn: Counter(told) == {"broker-a": turn, "broker-c": turn})
    back.set()
    eventually(lambda: told.count("broker-b") == 2, "what was gathered meanwhile is one request")
    acks.close()


def tasks_of(acks: AckSender, action: Settle = Settle.ACK, delay_ms: int = 0) -> list[SettleTask]:
    leases = [ClientLease(f"broker-{n}", "orders", 0, 1, 1, 0, acks) for n in "abc"]
    return [SettleTask(lease, action, 1, delay_ms) for lease in leases]
