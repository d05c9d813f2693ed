"""Selectors by hash, at random and by machine room; the queue of a message group while routes
change.
"""

from __future__ import annotations

import random
from concurrent.futures import Future

import pytest

from rmq_ray.client.outgoing import queue_choice
from rmq_ray.client.outgoing.queue_choice import GroupOrder
from rmq_ray.client.outgoing.selectors import SelectByMachineRoom, SelectByRandom, select_by_hash
from rmq_ray.errors import ClientError
from rmq_ray.model.hashing import java_hash
from rmq_ray.model.ids import MessageQueue
from rmq_ray.model.message import Message
from rmq_ray.protocol.routing.queue_selection import select_by_group

QUEUES = [MessageQueue("T", "a", number) for number in range(4)]
MESSAGE = Message("T", b"x")


@pytest.mark.parametrize(
    ("arg", "code"),
    [
        ("user-7", java_hash("user-7")),
        (7, 7),
        (-7, -7),
        ((1 << 31), -(1 << 31)),
        ((1 << 40) + 5, 261),
        (-1 << 40, -256),
    ],
)
def test_the_hash_of_strings_and_integers_is_javas(arg: object, code: int) -> None:
    assert select_by_hash(QUEUES, MESSAGE, arg) == QUEUES[abs(code) % 4]


@pytest.mark.parametrize("arg", [None, 1.5, b"x", ("a",)])
def test_what_has_no_hash_that_all_producers_share_is_refused(arg: object) -> None:
    with pytest.raises(ClientError, match="string or an integer"):
        select_by_hash(QUEUES, MESSAGE, arg)


def test_at_random_takes_every_queue() -> None:
    select = SelectByRandom(random.Random(1))
    assert {select(QUEUES, MESSAGE, None) for _ in range(100)} == set(QUEUES)


def test_a_room_takes_only_queues_of_its_brokers() -> None:
    rooms = [
        MessageQueue("T", name, number) for name in ("r1@a", "r2@b", "plain") for number in (0, 1)
    ]
    select = SelectByMachineRoom({"r1", "plain"}, random.Random(1))
    assert {select(rooms, MESSAGE, None) for _ in range(50)} == set(rooms[:2])
    assert select(rooms, MESSAGE, 7) == rooms[1]
    with pytest.raises(ClientError, match="r1"):
        select(QUEUES, MESSAGE, None)


def moving_group() -> tuple[str, list[MessageQueue], MessageQueue, MessageQueue]:
    """A group whose queue differs between 4 and 5 queues."""
    more = [*QUEUES, MessageQueue("T", "a", 4)]
    group = next(
        name
        for name in map(str, range(100))
        if select_by_group(QUEUES, name) != select_by_group(more, name)
    )
    return group, more, select_by_group(QUEUES, group), select_by_group(more, group)


@pytest.mark.seed("S3-072")
def test_a_group_moves_with_the_route_only_when_nothing_of_it_is_on_its_way() -> None:
    order, out = GroupOrder(), Future[None]()
    group, more, before, after = moving_group()
    assert order.choose("T", group, QUEUES) == before
    order.sent(group, before, out)
    assert order.choose("T", group, more) == before, "its last message is not stored yet"
    out.set_result(None)
    assert order.choose("T", group, more) == after


@pytest.mark.seed("S3-073")
def test_other_groups_are_not_held_by_one_that_waits() -> None:
    order = GroupOrder()
    group, more, before, _ = moving_group()
    order.sent(group, before, Future[None]())
    others = [name for name in map(str, range(50)) if name != group]
    assert [order.choose("T", name, more) for name in others] == [
        select_by_group(more, name) for name in others
    ]
    assert order.choose("U", group, more) == select_by_group(more, group)


def test_a_bounded_number_of_groups_is_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(queue_choice, "GROUPS_MAX", 3)
    order, done = GroupOrder(), Future[None]()
    for name in "abcde":
        order.sent(name, QUEUES[0], done)
    assert len(order) == 3


def test_groups_of_which_nothing_is_under_way_are_forgotten() -> None:
    order, ended, out = GroupOrder(), Future[None](), Future[None]()
    ended.set_result(None)
    for n in range(100):
        order.sent(f"ended-{n}", QUEUES[0], ended)
    assert len(order) <= 2
    order.sent("out", QUEUES[0], out)
    for n in range(10):
        order.sent(f"again-{n}", QUEUES[0], ended)
    assert 10 <= len(order) <= 12, "what is younger than one that is under way waits for it"
    out.set_result(None)
    for n in range(10):
        order.sent(f"more-{n}", QUEUES[0], ended)
    assert len(order) <= 3
