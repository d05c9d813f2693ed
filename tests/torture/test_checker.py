"""The checker is silent on a history that kept every promise, and each way to break one makes it
speak, by the right rule.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from math import inf
from random import Random
from types import SimpleNamespace
from typing import Any, cast

import pytest

from tests.torture.checker import LOSS_WINDOW_S, RULES, violations
from tests.torture.faults import Card, Faults
from tests.torture.history import (
    EVERY_BROKER,
    Committed,
    Delivery,
    Ended,
    Fate,
    Fault,
    History,
    Place,
    Send,
)
from tests.torture.modes import MODES
from tests.torture.run import EVERY_KIND, note_outages
from tests.torture.workload import Workload

GROUP, ORDERED = "readers", "in-order"


def good() -> History:
    """Ten messages, two of them delayed, a transaction of each fate, a poison, a kill."""
    history = History(groups={GROUP: ["t", "tx", "bad"], ORDERED: ["t"]}, ordered={ORDERED})
    history.stored = {"t": {}, "tx": {}, "bad": {}}
    for n in range(10):
        place = Place("a", n % 2, n // 2)
        due = 100.0 if n >= 8 else 0.0
        history.sends.append(
            Send("t", f"t{n}", n, n + 0.5, Ended.OK, None if due else place, due=due)
        )
        history.stored["t"][place] = f"t{n}"
        for group in (GROUP, ORDERED):
            history.deliveries.append(Delivery(group, "t", f"t{n}", max(n + 1, due), place))
    for n, fate in enumerate((Fate.COMMITTED, Fate.ROLLED_BACK)):
        history.sends.append(Send("tx", f"tx{n}", 20, 21, Ended.OK, Place("a", 0, 0), fate=fate))
    history.stored["tx"][Place("a", 0, 0)] = "tx0"
    history.deliveries.append(Delivery(GROUP, "tx", "tx0", 22, Place("a", 0, 0)))
    history.sends.append(Send("t", "refused", 23, 24, Ended.FAILED))
    history.sends.append(Send("t", "unknown", 23, 24, Ended.UNKNOWN))
    place = Place("a", 0, 0)
    history.sends.append(Send("bad", "poison", 25, 26, Ended.OK, place, poison=True))
    history.stored["bad"][place] = "poison"
    for tries in range(3):
        at = 27.0 + tries
        history.deliveries.append(Delivery(GROUP, "bad", "poison", at, place, tries))
    history.dead = {GROUP: ["poison"]}
    history.faults = [Fault("kill -9 of the master", "a", 30, 31)]
    for offset, at in ((2, 10.0), (4, 20.0), (4, 40.0)):
        history.commits.append(Committed(GROUP, "t", "a", 0, offset, at))
    return history


def send_of(history: History, body: str) -> Send:
    return next(send for send in history.sends if send.body == body)


def forget_stored(history: History) -> None:
    del history.stored["t"][Place("a", 1, 3)]
    history.stored["t"][Place("a", 1, 3)] = "unknown"


def lose_the_last(history: History) -> None:
    del history.stored["t"][Place("a", 1, 4)]
    send_of(history, "t9").place = Place("a", 1, 4)


def lose_a_delayed_one(history: History) -> None:
    del history.stored["t"][Place("a", 0, 4)]
    history.deliveries = [d for d in history.deliveries if d.body != "t8"]


def lose_a_commit(history: History) -> None:
    history.stored["tx"].clear()
    history.deliveries = [d for d in history.deliveries if d.topic != "tx"]


def deliver_a_rollback(history: History) -> None:
    history.deliveries.append(Delivery(GROUP, "tx", "tx1", 30, Place("a", 0, 1)))


def store_a_phantom(history: History) -> None:
    history.stored["t"][Place("a", 0, 5)] = "nobody sent this"
    for group in (GROUP, ORDERED):
        history.deliveries.append(Delivery(group, "t", "nobody sent this", 50, Place("a", 0, 5)))


def store_a_refused_one(history: History) -> None:
    history.stored["t"][Place("a", 0, 5)] = "refused"
    for group in (GROUP, ORDERED):
        history.deliveries.append(Delivery(group, "t", "refused", 50, Place("a", 0, 5)))


def store_twice(history: History) -> None:
    history.stored["t"][Place("a", 0, 5)] = "t0"
    history.deliveries.append(Delivery(ORDERED, "t", "t0", 50, Place("a", 0, 5)))


def make_a_hole(history: History) -> None:
    history.sends.append(Send("t", "late", 50, 51, Ended.UNKNOWN))
    history.stored["t"][Place("a", 0, 6)] = "late"
    history.deliveries.append(Delivery(GROUP, "t", "late", 52, Place("a", 0, 6)))
    history.deliveries.append(Delivery(ORDERED, "t", "late", 52, None))


def begin_late(history: History) -> None:
    history.stored["tx"] = {Place("a", 0, 1): "tx0"}


def two_of_one_offset(history: History) -> None:
    history.deliveries.append(Delivery(GROUP, "t", "unknown", 50, Place("a", 0, 0)))


def swap(history: History) -> None:
    places = history.stored["t"]
    first, second = Place("a", 0, 1), Place("a", 0, 2)
    places[first], places[second] = places[second], places[first]
    send_of(history, "t2").place, send_of(history, "t4").place = second, first
    history.deliveries = [
        replace(d, place={"t2": second, "t4": first}.get(d.body, d.place))
        for d in history.deliveries
    ]
    history.deliveries.sort(key=lambda d: (d.place is None, d.place))


def never_deliver(history: History) -> None:
    history.deliveries = [d for d in history.deliveries if (d.group, d.body) != (GROUP, "t9")]


def leave_lag(history: History) -> None:
    never_deliver(history)
    history.waiting = {GROUP: 1}


def repeat_without_a_fault(history: History) -> None:
    history.faults.clear()
    history.deliveries.append(replace(history.deliveries[0]))


def skip_in_order(history: History) -> None:
    mine = [d for d in history.deliveries if d.group == ORDERED and d.body in ("t2", "t4")]
    for delivery in mine:
        history.deliveries.remove(delivery)
    history.deliveries += reversed(mine)


def move_an_offset_back(history: History) -> None:
    history.commits.append(Committed(GROUP, "t", "a", 0, 1, 41.0))


def commit_too_far(history: History) -> None:
    history.deliveries = [d for d in history.deliveries if (d.group, d.body) != (GROUP, "t2")]
    history.waiting = {GROUP: 1}


def deliver_early(history: History) -> None:
    for delivery in history.deliveries:
        if delivery.body == "t8" and delivery.group == GROUP:
            delivery.at = 99.999


def bury_alive(history: History) -> None:
    history.dead[GROUP].append("t0")


def bury_too_soon(history: History) -> None:
    history.deliveries = [d for d in history.deliveries if d.tries < 2]


def forget_the_dead(history: History) -> None:
    history.dead[GROUP].clear()


PLANTED: tuple[tuple[Callable[[History], None], str], ...] = (
    (forget_stored, "acknowledged_is_kept"),
    (lose_the_last, "acknowledged_is_kept"),
    (lose_a_delayed_one, "acknowledged_is_kept"),
    (lose_a_commit, "committed_is_delivered_and_rolled_back_is_not"),
    (deliver_a_rollback, "committed_is_delivered_and_rolled_back_is_not"),
    (store_a_phantom, "nothing_is_made_up"),
    (store_a_refused_one, "refused_is_not_stored"),
    (store_twice, "stored_once_on_a_broker"),
    (make_a_hole, "offsets_are_dense"),
    (begin_late, "offsets_are_dense"),
    (two_of_one_offset, "one_offset_is_one_message"),
    (swap, "order_is_that_of_answers"),
    (never_deliver, "everything_is_delivered"),
    (leave_lag, "everything_is_delivered"),
    (repeat_without_a_fault, "repeats_are_few"),
    (skip_in_order, "ordered_queues_come_in_order"),
    (move_an_offset_back, "offsets_of_groups_do_not_go_back"),
    (commit_too_far, "no_commit_passes_what_did_not_come"),
    (deliver_early, "delayed_is_never_early"),
    (bury_alive, "dead_letters_come_after_all_tries"),
    (bury_too_soon, "dead_letters_come_after_all_tries"),
    (forget_the_dead, "dead_letters_come_after_all_tries"),
)


def test_a_history_that_kept_every_promise_has_no_violation() -> None:
    assert violations(good()) == []


@pytest.mark.parametrize(("plant", "rule"), PLANTED, ids=[plant.__name__ for plant, _ in PLANTED])
def test_a_planted_fault_is_found_by_its_rule(plant: Callable[[History], None], rule: str) -> None:
    history = good()
    plant(history)
    assert rule in {line.partition(":")[0] for line in violations(history)}


def test_every_rule_has_a_planted_fault() -> None:
    assert {rule.__name__ for rule in RULES} == {rule for _, rule in PLANTED}


def test_what_a_mode_may_lose_is_what_its_broker_acknowledged_last_and_nothing_else() -> None:
    history = good()
    lose_the_last(history)
    history.deliveries = [d for d in history.deliveries if d.body != "t9"]
    history.faults = [Fault("loss of power", "a", 9.8, 10.0, may_lose=True)]
    assert violations(history) == []
    history.faults[0].broker = "b"
    assert violations(history)
    history.faults[0] = Fault("loss of power", "a", 9.6 + LOSS_WINDOW_S, 21.0, may_lose=True)
    assert violations(history)


def test_an_offset_may_go_back_where_a_fault_says_so() -> None:
    history = good()
    move_an_offset_back(history)
    history.faults = [Fault("loss of power", "a", 40.2, 40.9, may_move_back=True)]
    assert violations(history) == []
    history.faults[0].broker = "b"
    assert violations(history)


@pytest.mark.parametrize(("may_lose", "named"), [(True, True), (False, False)])
def test_a_reader_beyond_a_cut_hears_of_it_later(may_lose: bool, named: bool) -> None:
    history = good()
    move_an_offset_back(history)
    before = history.commits[-2].at
    history.faults = [
        Fault("loss of power", "a", before - 9, before - 8, may_lose=may_lose, may_move_back=True)
    ]
    assert (violations(history) == []) is named


def test_a_fault_without_a_broker_that_may_change_masters_is_one_of_every_broker() -> None:
    """A controller that hangs renews nobody's lease."""
    history = History()
    workload = cast("Workload", SimpleNamespace(last_ok=inf))
    nobody = cast("Any", None)
    faults = Faults(nobody, nobody, nobody, MODES["both"], workload, Random(1), EVERY_KIND)
    faults._play(Card("hang of the controller", lambda: "", kills=True), history)
    faults._play(Card("hang of the name server", lambda: ""), history)
    faults._play(Card("kill -9 of the master", lambda: "broker-a", kills=True), history)
    assert [fault.broker for fault in history.faults] == [EVERY_BROKER, "", "broker-a"]


def test_a_flipped_bit_may_cost_one_record_and_not_two() -> None:
    history = good()
    history.faults.append(Fault("a bit flips", "a", 32, 33, flips=1))
    for body, place in (("t2", Place("a", 0, 1)), ("t5", Place("a", 1, 2))):
        del history.stored["t"][place]
        history.deliveries = [d for d in history.deliveries if d.body != body]
        if body == "t2":
            assert violations(history) == []
    found = {line.partition(":")[0] for line in violations(history)}
    assert found == {"acknowledged_is_kept", "offsets_are_dense"}


def test_a_broker_whose_clock_jumped_may_be_early() -> None:
    history = good()
    deliver_early(history)
    history.faults.append(Fault("clock an hour ahead", "a", 99.0, 99.9, early=True))
    assert violations(history) == []


def test_what_was_delayed_by_a_wrong_clock_waits_for_it_and_nothing_else_does() -> None:
    history = good()
    lose_a_delayed_one(history)
    history.stored["t"][Place("a", 0, 4)] = "unknown"  # a queue has no hole
    history.deliveries.append(Delivery(GROUP, "t", "unknown", 101, Place("a", 0, 4)))
    history.deliveries.append(Delivery(ORDERED, "t", "unknown", 101, Place("a", 0, 4)))
    assert {line.partition(":")[0] for line in violations(history)} == {"acknowledged_is_kept"}
    history.faults.append(Fault("clock an hour ahead", "a", 8.2, 8.4, early=True))
    assert violations(history) == []


def test_an_outage_is_the_longest_time_without_an_acknowledged_send() -> None:
    history = good()
    history.sends = [Send("t", f"t{n}", n, n + 0.5, Ended.OK) for n in (0, 10, 11, 20, 21)]
    history.faults = [Fault("first", "a", 2.0), Fault("second", "a", 12.0), Fault("last", "a", 30)]
    note_outages(history)
    assert [fault.outage_s for fault in history.faults] == [10.0, 9.0, 0.0]
