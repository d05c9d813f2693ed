"""Answers that wait for the disk."""

from __future__ import annotations

import pytest

from rmq_ray.errors import BrokerBusy
from rmq_ray.server.send.send_path import Acknowledgements


def waiting(*ends: int) -> tuple[Acknowledgements, list[tuple[int, int]]]:
    told: list[tuple[int, int]] = []
    acks = Acknowledgements(timeout_ms=5_000, bytes_max=1_000)
    for end in ends:
        acks.wait(end, 0, 100, now_ms=0, told=lambda code, end=end: told.append((end, code)))
    return acks, told


def test_nobody_is_told_before_the_log_is_durable_that_far() -> None:
    acks, told = waiting(10, 20, 30)
    acks.durable(20)
    assert told == [(10, 0), (20, 0)] and len(acks) == 1 and acks.in_flight_bytes == 100


@pytest.mark.seed("S3-093")
def test_after_the_timeout_the_status_is_flush_disk_timeout() -> None:
    acks, told = waiting(10)
    acks.expire(4_999)
    assert told == []
    acks.expire(5_000)
    assert told == [(10, 10)] and acks.timeouts == 1
    acks.durable(10)
    assert told == [(10, 10)], "nobody is told twice"


def test_what_is_durable_already_is_told_at_once() -> None:
    acks, told = waiting()
    acks.wait(10, 10, 100, 0, lambda code: told.append((10, code)))
    assert told == [(10, 0)] and acks.in_flight_bytes == 0


def test_answers_keep_their_order_even_when_a_repeat_is_durable_already() -> None:
    acks, told = waiting(50)
    acks.wait(10, 10, 100, 0, lambda code: told.append((10, code)))
    assert told == []
    acks.durable(50)
    assert told == [(50, 0), (10, 0)]


def test_beyond_the_limit_of_bytes_sends_are_refused() -> None:
    acks, _ = waiting(*range(10, 19))
    acks.check_room(100)
    with pytest.raises(BrokerBusy):
        acks.check_room(101)


def test_a_failed_log_leaves_all_waiters_in_doubt() -> None:
    acks, told = waiting(10, 20)
    acks.fail_all()
    assert told == [(10, 10), (20, 10)] and acks.in_flight_bytes == 0
