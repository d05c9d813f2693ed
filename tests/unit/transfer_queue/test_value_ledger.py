"""What follows from the records of a ledger."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable
from typing import NamedTuple

import pytest

from rmq_ray.client.pull.queue_queries import PullResult
from rmq_ray.errors import BodyUnreadable, RequestTimeout
from rmq_ray.model.pulling import PullStatus
from rmq_ray.transfer_queue.ledger import BACK, CLEAR, PUT, Book, back_to, keyed
from rmq_ray.transfer_queue.tail import LedgerTail


class Noted(NamedTuple):
    """A message of a ledger."""

    queue_offset: int
    tag: str
    body: bytes


class Ledger(list[Noted]):
    """The records, and a broker that hands out two of them at a time, from ``first`` on."""

    first = 0

    def note(self, tag: str, body: bytes) -> None:
        self.append(Noted(len(self), tag, body))

    def pull(self, expression: str, offset: int, _count: int, _patience: float) -> PullResult:
        offset = max(offset, self.first)
        page = [one for one in self[offset : offset + 2] if expression == "*" or one.tag != PUT]
        end = min(offset + 2, len(self))
        return PullResult(PullStatus.FOUND, end, self.first, len(self), page)  # type: ignore[arg-type]


def tail_of(
    pull: Callable[..., PullResult], expression: str, patience_ms: float = 1e4
) -> LedgerTail:
    return LedgerTail(pull, expression, patience_ms)


def test_the_newest_put_of_a_key_counts_until_its_place_is_cleared() -> None:
    book = Book()
    book.apply(0, PUT, keyed(["0@ids", "1@ids"], ["a:0:0", "a:0:1"]))
    book.apply(1, PUT, keyed(["0@ids"], ["a:0:2"]))
    book.apply(2, CLEAR, keyed(["0@ids"], ["a:0:0"]))
    assert book.index == {"0@ids": "a:0:2", "1@ids": "a:0:1"}
    assert book.is_cleared("a:0:0") and not book.is_cleared("a:0:1")
    book.apply(3, CLEAR, keyed(["0@ids", "1@ids"], ["a:0:2", "a:0:1"]))
    assert not book.index and book.is_cleared("a:0:1-2")


def test_a_key_that_is_put_again_after_it_was_cleared_is_there_again() -> None:
    book = Book()
    book.apply(0, PUT, keyed(["0@ids"], ["a:0:0"]))
    book.apply(1, CLEAR, keyed(["0@ids"], ["a:0:0"]))
    book.apply(2, PUT, keyed(["0@ids"], ["a:1:0"]))
    assert book.index == {"0@ids": "a:1:0"} and not book.is_cleared("a:1:0")


@pytest.mark.parametrize(
    ("tag", "body"), [(PUT, b"\xc1"), (CLEAR, b"\x80"), (BACK, b"\x01"), (PUT, keyed(["a"], []))]
)
def test_what_is_no_record_of_a_ledger_is_told(tag: str, body: bytes) -> None:
    with pytest.raises(BodyUnreadable, match="offset 7"):
        Book().apply(7, tag, body)


def test_a_book_that_is_kept_up_to_date_and_one_from_the_first_record_are_the_same() -> None:
    ledger = Ledger()
    kept, light = tail_of(ledger.pull, "*"), tail_of(ledger.pull, "clear")
    steps = [
        (PUT, keyed(["0@a", "1@a"], ["a:0:0", "a:0:1"])),
        (CLEAR, keyed(["0@a"], ["a:0:0"])),
        (PUT, keyed(["0@a"], ["a:0:2"])),
        (BACK, back_to(1)),
        (CLEAR, keyed(["1@a"], ["a:0:1"])),
        (BACK, back_to(5)),
        (PUT, keyed(["2@a"], ["a:0:3"])),
    ]
    for tag, body in steps:
        ledger.note(tag, body)
        book, end = kept.catch_up()
        anew, _ = tail_of(ledger.pull, "*").catch_up()
        tombstones, _ = light.catch_up()
        assert end == len(ledger) and book.index == anew.index
        for place in ("a:0:0", "a:0:1", "a:0:2"):
            assert book.is_cleared(place) == anew.is_cleared(place) == tombstones.is_cleared(place)
    assert book.index == {"0@a": "a:0:0", "2@a": "a:0:3"}


def test_going_back_makes_void_what_was_noted_since_and_nothing_before() -> None:
    ledger = Ledger()
    ledger.note(PUT, keyed(["0@a", "1@a"], ["a:0:0", "a:0:1"]))
    ledger.note(CLEAR, keyed(["0@a"], ["a:0:0"]))
    ledger.note(CLEAR, keyed(["1@a"], ["a:0:1"]))
    ledger.note(BACK, back_to(2))
    book, _ = tail_of(ledger.pull, "*").catch_up()
    assert book.index == {"1@a": "a:0:1"} and book.is_cleared("a:0:0")


def test_a_later_checkpoint_that_is_loaded_after_an_earlier_one_is_whole() -> None:
    ledger = Ledger()
    ledger.note(PUT, keyed(["k1"], ["a:0:0"]))
    ledger.note(PUT, keyed(["k2"], ["a:0:1"]))
    ledger.note(PUT, keyed(["k3"], ["a:0:2"]))
    ledger.note(BACK, back_to(1))
    ledger.note(PUT, keyed(["k4"], ["a:0:3"]))
    ledger.note(BACK, back_to(2))
    book, _ = tail_of(ledger.pull, "*").catch_up()
    assert book.index == {"k1": "a:0:0", "k2": "a:0:1"}


def test_states_that_are_loaded_in_any_order_are_as_they_were_saved() -> None:
    chance = random.Random(7)
    for _ in range(300):
        ledger, saved = Ledger(), list[tuple[int, dict[str, str]]]()
        kept = tail_of(ledger.pull, "*")
        meant: dict[str, str] = {}
        for number in range(chance.randrange(1, 25)):
            saved.append((len(ledger), dict(meant)))
            key, place = f"{chance.randrange(4)}@a", f"a:0:{number}"
            step = chance.choice((PUT, CLEAR, BACK))
            if step == BACK:
                position, meant = chance.choice(saved)
                meant = dict(meant)
                ledger.note(BACK, back_to(position))
            elif step == PUT:
                meant[key] = place
                ledger.note(PUT, keyed([key], [place]))
            elif key in meant:
                ledger.note(CLEAR, keyed([key], [meant.pop(key)]))
            if chance.random() < 0.5:
                assert kept.catch_up()[0].index == meant
        assert tail_of(ledger.pull, "*").catch_up()[0].index == kept.catch_up()[0].index == meant


def test_a_caller_waits_for_another_one_only_as_long_as_it_has_itself() -> None:
    ledger, asked, back = Ledger(), threading.Event(), threading.Event()
    patience = list[float]()

    def away(expression: str, offset: int, count: int, patience_ms: float) -> PullResult:
        patience.append(patience_ms)
        asked.set()
        assert back.wait(10)
        return ledger.pull(expression, offset, count, patience_ms)

    tail = tail_of(away, "*", patience_ms=50)
    first = threading.Thread(target=tail.catch_up)
    first.start()
    assert asked.wait(10)
    try:
        with pytest.raises(RequestTimeout, match="within 0.05 s"):
            tail.catch_up()
    finally:
        back.set()
        first.join(10)
    assert tail.catch_up()[1] == 0 and max(patience) <= 50


def test_what_retention_took_is_in_no_index_however_long_its_reader_lives() -> None:
    ledger = Ledger()
    for number in range(6):
        ledger.note(PUT, keyed([f"{number % 5}@a"], [f"a:0:{number}"]))
    ledger.note(CLEAR, keyed(["3@a"], ["a:0:3"]))
    kept = tail_of(ledger.pull, "*")
    assert set(kept.catch_up()[0].index) == {"0@a", "1@a", "2@a", "4@a"}
    for ledger.first, there in ((2, {"0@a", "2@a", "4@a"}), (5, {"0@a"}), (7, set[str]())):
        book, _ = kept.catch_up()
        assert set(book.index) == there
        assert book.index == tail_of(ledger.pull, "*").catch_up()[0].index


def test_who_reads_in_a_book_while_an_earlier_state_is_loaded_finds_it_whole() -> None:
    ledger = Ledger()
    ledger.note(PUT, keyed(["0@a"], ["a:0:0"]))
    tail = tail_of(ledger.pull, "*")
    before, _ = tail.catch_up()
    ledger.note(BACK, back_to(0))
    after, _ = tail.catch_up()
    assert before.index == {"0@a": "a:0:0"} and not after.index
