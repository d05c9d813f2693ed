"""``rmq-ray produce`` of many lines: what it says of a line that cannot be stored."""

from __future__ import annotations

import io
import sys
from concurrent.futures import Future
from typing import Any

import click
import pytest

from rmq_ray.cli import messages
from rmq_ray.errors import BrokerBusy, MessageTooLarge, SendUnconfirmed


class Broker:
    """Stands for the producer: lines of more than five bytes are refused at once, "busy" is refused
    by the broker later, "late" when the next line is on its way; "slack" has no second copy."""

    def __init__(self) -> None:
        self.taken: list[bytes] = []
        self.late: Future[Any] | None = None

    def send_async(self, topic: str, body: bytes) -> Future[Any]:
        if len(body) > 5:
            raise MessageTooLarge(f"the body has {len(body)} bytes", len(body), 5)
        answer: Future[Any] = Future()
        if self.late is not None:
            self.late.set_exception(BrokerBusy("the disk is full"))
            self.late = None
        if body == b"late":
            self.late = answer
        elif body == b"slack":
            answer.set_exception(SendUnconfirmed("SLAVE_NOT_AVAILABLE"))
        elif body == b"busy":
            answer.set_exception(BrokerBusy("the disk is full"))
        else:
            self.taken.append(body)
            answer.set_result(None)
        return answer


def send(text: bytes, monkeypatch: pytest.MonkeyPatch) -> tuple[int | str, Broker]:
    """(what the command says, what the broker has)."""
    broker = Broker()
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(text)))
    try:
        return messages._send_lines(broker, "orders", {}), broker  # type: ignore[arg-type]
    except click.ClickException as error:
        return error.message, broker


def test_all_lines_but_empty_ones_are_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    said, broker = send(b"one\n\ntwo", monkeypatch)
    assert said == 2 and broker.taken == [b"one", b"two"]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (
            b"one\nfar too long\ntwo",
            "1 messages were stored; line 2 was not: the body has 12 bytes [MessageTooLarge]",
        ),
        (
            b"one\nslack\n",
            "1 messages were stored; line 2 may be: SLAVE_NOT_AVAILABLE [SendUnconfirmed]",
        ),
        (b"\nbusy\n", "0 messages were stored; line 2 was not: the disk is full [BrokerBusy]"),
    ],
)
def test_the_line_that_was_not_stored_is_named_and_those_before_it_are_counted(
    text: bytes, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    found, broker = send(text, monkeypatch)
    assert found == said and b"two" not in broker.taken


def test_of_thousands_under_way_the_first_fault_is_told_and_nothing_behind_it_is_read(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(messages, "UNANSWERED_MAX", 2)
    found, broker = send(b"1\n2\n3\n4\n5\nbusy\n6\n", monkeypatch)
    assert (
        found == "5 messages were stored; line 6 was not: the disk is full [BrokerBusy]"
        and broker.taken[-1] == b"5"
    )


def test_a_line_that_is_refused_late_ends_the_command_at_the_next_one_not_after_thousands(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    found, broker = send(b"one\nlate\n" + b"more\n" * 50, monkeypatch)
    assert found == "2 messages were stored; line 2 was not: the disk is full [BrokerBusy]"
    assert broker.taken == [b"one", b"more"]
