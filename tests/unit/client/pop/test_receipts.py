"""Receipts: what a user may do with a received message in which order, and what its broker is
told.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from typing import Any

import numpy as np
import pytest

from rmq_ray.client.messages.received import PulledPage
from rmq_ray.client.pop.receipts import (
    ClientLease,
    ReceivedMessage,
    SettleTask,
    ack_messages,
    delay_ms,
    extend_messages,
    mask_of_indices,
    messages_of,
)
from rmq_ray.codec.frame_encoder import encode_frame
from rmq_ray.errors import ClientError, ReceiptStale
from rmq_ray.model.ids import FrameId, MessageQueue
from rmq_ray.remoting.wire.pops import Settle


class Told:
    """A settler that keeps what it is told."""

    def __init__(self, stale: bool = False) -> None:
        self.now: list[tuple[int, Settle, int, int]] = []
        self.soon: list[tuple[int, Settle, int, int]] = []
        self.failed: list[int | None] = []
        self.stale = stale

    def settle(self, tasks: Sequence[SettleTask]) -> None:
        if self.stale:
            raise ReceiptStale("too late", 1)
        self.failed += [task.failed for task in tasks]
        self.now += [(task.lease.id, task.action, task.mask, task.delay_ms) for task in tasks]

    def settle_later(self, tasks: Sequence[SettleTask]) -> None:
        self.soon += [(task.lease.id, task.action, task.mask, task.delay_ms) for task in tasks]


def received(told: Told, count: int = 3, lease_id: int = 7) -> list[ReceivedMessage]:
    records, sizes = encode_frame(
        "jobs",
        0,
        [b"%d" % n for n in range(count)],
        ["" for _ in range(count)],
        1_000,
        FrameId(bytes(16), lease_id),
    )
    page = PulledPage(MessageQueue("jobs", "broker-a", 0), bytes(records), np.asarray(sizes))
    return messages_of(
        page, ClientLease("broker-a", "jobs", 0, lease_id, count, 31_000, told), None, 1_000
    )


def test_messages_of_one_lease_are_acknowledged_with_one_mask() -> None:
    told = Told()
    messages = received(told)
    ack_messages((messages[0], messages[2]), True)
    ack_messages(messages, True)
    assert told.now == [(7, Settle.ACK, 0b101, 0), (7, Settle.ACK, 0b010, 0)]


def test_an_acknowledgement_that_was_answered_is_not_sent_again() -> None:
    told = Told()
    message = received(told)[1]
    message.ack()
    message.ack()
    message.ack(wait=False)
    assert (told.now, told.soon) == ([(7, Settle.ACK, 0b010, 0)], [])


def test_an_acknowledgement_that_failed_is_sent_again() -> None:
    told = Told(stale=True)
    message = received(told)[0]
    with pytest.raises(ReceiptStale):
        message.ack()
    told.stale = False
    message.ack()
    assert told.now == [(7, Settle.ACK, 0b001, 0)]


def test_what_is_given_back_can_no_longer_be_acknowledged_and_the_other_way_round() -> None:
    told = Told()
    back, bad, done = received(told)
    back.nack(1.5)
    bad.reject()
    done.ack()
    assert told.now == [
        (7, Settle.CHANGE, 0b001, 1_500),
        (7, Settle.REJECT, 0b010, 0),
        (7, Settle.ACK, 0b100, 0),
    ]
    for again in (back.ack, bad.ack, done.nack, done.reject, lambda: done.extend(5)):
        with pytest.raises(ClientError):
            again()


def test_only_who_gives_a_message_back_by_himself_says_that_a_try_failed() -> None:
    told = Told()
    back, longer, bad = received(told)
    back.nack(2)
    longer.extend(10)
    extend_messages([longer], 20)
    bad.reject()
    longer.ack()
    assert told.failed == [0, None, None, None, None]


def test_time_is_extended_as_often_as_wished() -> None:
    told = Told()
    message = received(told)[0]
    message.extend(10)
    message.extend(0.5)
    assert told.now == [(7, Settle.CHANGE, 1, 10_000), (7, Settle.CHANGE, 1, 500)]
    assert message.invisible_until == 31_000


def test_messages_of_two_consumers_are_not_mixed() -> None:
    with pytest.raises(ClientError, match="several consumers"):
        ack_messages([*received(Told()), *received(Told(), lease_id=8)], True)


def test_several_leases_travel_together_and_without_waiting() -> None:
    told = Told()
    ack_messages([*received(told, 1), *received(told, 2, lease_id=8)], False)
    assert told.soon == [(7, Settle.ACK, 0b1, 0), (8, Settle.ACK, 0b11, 0)]
    ack_messages([], True)
    assert told.now == []


@pytest.mark.parametrize("indices", [[0, 1, 2], [2, 0, 1], [0, 1, 1, 2]])
def test_a_whole_lease_has_every_bit_however_it_is_listed(indices: list[int]) -> None:
    assert mask_of_indices(indices, 3) == 0b111


def test_repeated_messages_count_once() -> None:
    assert mask_of_indices([1, 1, 1], 3) == 0b010


@pytest.mark.parametrize("seconds", [-1, 43_201, float("nan"), "5", None, True])
def test_times_out_of_range_are_refused(seconds: object) -> None:
    with pytest.raises(ClientError, match="wait is .*seconds"):
        delay_ms("wait", seconds, 0)


@pytest.mark.parametrize("wrong", [5, [b"body"], [None]])
def test_only_messages_can_be_acknowledged(wrong: Any) -> None:
    with pytest.raises(ClientError, match="receive"):
        ack_messages(wrong, True)


def test_many_are_extended_with_one_task_a_lease_and_settled_ones_are_passed_over() -> None:
    told = Told()
    first, second = received(told), received(told, 2, lease_id=8)
    first[0].ack()
    second[1].nack()
    told.now.clear()
    extend_messages([*first, *second], 30)
    assert told.now == [(7, Settle.CHANGE, 0b110, 30_000), (8, Settle.CHANGE, 0b01, 30_000)]
    extend_messages([first[0]], 30)
    assert len(told.now) == 2, "nothing was left to ask for"
    with pytest.raises(ClientError, match="invisible"):
        extend_messages(first, 0)


@pytest.mark.parametrize("stale", [False, True])
def test_what_is_being_given_back_counts_as_given_back_unless_that_fails(stale: bool) -> None:
    """Who extends looks at it meanwhile."""
    meanwhile = list[int]()

    class Asked(Told):
        def settle(self, tasks: Sequence[SettleTask]) -> None:
            meanwhile.append(tasks[0].lease.returned)
            super().settle(tasks)

    message = received(Asked(stale))[1]
    with pytest.raises(ReceiptStale) if stale else nullcontext():
        message.nack()
    assert meanwhile == [0b010] and message._lease.returned == (0 if stale else 0b010)
