"""Sends to a topic that is not on disk yet."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from rmq_ray.errors import BrokerBusy, StoreFull
from rmq_ray.server.tables.topic_table import BYTES_MAX, PendingTopics

Then = Callable[[], None]


def at_once(then: Then) -> None:
    """The name servers know it already."""
    then()


class Disk:
    def __init__(self) -> None:
        self.saves: list[object] = []

    def save(self, then: object) -> None:
        self.saves.append(then)

    def end(self, error: Exception | None = None) -> None:
        self.saves.pop(0)(error)  # type: ignore[operator]


def test_requests_go_on_in_order_when_the_topic_is_on_disk() -> None:
    disk, resumed = Disk(), []
    pending = PendingTopics(disk.save, at_once)
    pending.created("orders")
    assert "orders" in pending and pending
    for n in range(3):
        pending.wait("orders", 10, lambda error, n=n: resumed.append((n, error)))
    assert resumed == []
    disk.end()
    assert resumed == [(0, None), (1, None), (2, None)] and "orders" not in pending and not pending


def test_requests_go_on_when_the_name_servers_know_the_topic_as_well() -> None:
    disk, resumed = Disk(), []
    unknown: list[Then] = []
    pending = PendingTopics(disk.save, unknown.append)
    pending.created("orders")
    pending.wait("orders", 10, lambda error: resumed.append((0, error)))
    assert unknown == [], "asked when it is on disk"
    disk.end()
    pending.wait("orders", 10, lambda error: resumed.append((1, error)))
    assert resumed == [] and disk.saves == [] and "orders" in pending
    unknown.pop()()
    assert resumed == [(0, None), (1, None)] and unknown == [] and not pending


def test_topics_do_not_wait_for_one_another() -> None:
    disk, resumed = Disk(), []
    pending = PendingTopics(disk.save, at_once)
    pending.created("a")
    pending.created("b")
    pending.wait("b", 1, lambda error: resumed.append("b"))
    disk.end()
    assert resumed == [] and "b" in pending
    disk.end()
    assert resumed == ["b"]


def test_a_failed_write_is_told() -> None:
    disk, resumed = Disk(), []
    pending = PendingTopics(disk.save, at_once)
    pending.created("orders")
    pending.wait("orders", 10, resumed.append)
    disk.end(StoreFull("no room"))
    assert [type(error) for error in resumed] == [StoreFull]


def test_after_a_failed_write_sends_still_wait_and_the_next_one_tries_again() -> None:
    """An acknowledged message must not lie in a topic that only memory knows."""
    disk, resumed = Disk(), []
    pending = PendingTopics(disk.save, at_once)
    pending.created("orders")
    disk.end(StoreFull("no room"))
    assert "orders" in pending and pending and disk.saves == []
    for n in range(2):
        pending.wait("orders", 10, lambda error, n=n: resumed.append((n, error)))
    assert len(disk.saves) == 1
    disk.end()
    assert resumed == [(0, None), (1, None)] and "orders" not in pending and not pending


def test_waiting_bytes_are_limited() -> None:
    disk = Disk()
    pending = PendingTopics(disk.save, at_once)
    pending.created("orders")
    pending.wait("orders", BYTES_MAX, lambda error: None)
    with pytest.raises(BrokerBusy):
        pending.wait("orders", 1, lambda error: None)
    disk.end()
    pending.created("orders")
    pending.wait("orders", 1, lambda error: None)
    assert "orders" in pending
