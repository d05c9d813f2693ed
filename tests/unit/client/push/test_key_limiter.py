"""Messages whose keys have limits, on their way through a consumer without threads."""

from __future__ import annotations

from typing import Any

import pytest

from rmq_ray.client.consumer.assigned_queue import AssignedQueue, ReadyBatch
from rmq_ray.client.consumer.consumer_options import push_settings
from rmq_ray.client.consumer.key_limits import KeyLimits
from rmq_ray.client.push.consume_concurrently import ConcurrentConsumption
from rmq_ray.client.push.listener_breaker import ListenerBreaker
from rmq_ray.errors import ConfigError
from rmq_ray.protocol.breaker import Breaker
from tests.support.clients.consumer_rig import ConsumerRig


class LimitedRig(ConsumerRig):
    """``step``: a thread takes what is ready. ``during``: what happens inside of a call."""

    def __init__(self, limits: KeyLimits) -> None:
        super().__init__(batch_size=1)
        self.turns = Turns(Breaker(), "g", self.clock)
        self.called: list[int] = []
        self.during: Any = lambda: None
        self.consumption = ConcurrentConsumption(
            self.parts,
            self._listen,
            self.send_back,
            self.puller.resume_if_drained,
            breaker=self.turns,
            limits=limits,
        )

    def _listen(self, messages: Any, _ctx: Any) -> None:
        (message,) = messages
        self.called.append(message.queue_offset)
        during, self.during = self.during, lambda: None
        during()

    def bring(self, work: AssignedQueue, *properties: str) -> list[ReadyBatch]:
        """A message of the queue for each, ready."""
        first, found = len(self.submitted), list[ReadyBatch]()
        for number, text in enumerate(properties):
            if not work.pulling:
                self.pull(work)
            found += self.found(work, [first + number], properties=text)
        self.consumption.submit(found)
        return found

    def step(self) -> None:
        item = self.consumption._ready.get_nowait()
        if self.consumption._waits_first:
            self.consumption._wait(item)
        self.consumption._handle(item)

    def work_off(self) -> None:
        while not self.consumption._ready.empty():
            self.step()


class Turns(ListenerBreaker):
    """Counts who has stood in line."""

    taken = 0

    def wait(self, over: Any) -> None:
        self.taken += 1


KEY_A, KEY_B = "KEYS\x01a", "KEYS\x01b"


def test_what_waits_for_its_key_takes_no_turn_behind_an_open_breaker() -> None:
    rig = LimitedRig(KeyLimits(concurrency=1))
    work = rig.take()
    rig.bring(work, *[KEY_A] * 5)

    def others() -> None:
        for _ in range(4):
            rig.step()
        assert (rig.consumption.waiting_for_keys, rig.turns.taken) == (4, 1)

    rig.during = others
    rig.work_off()
    assert (rig.called, rig.turns.taken) == ([0, 1, 2, 3, 4], 5)


def test_a_message_whose_key_is_busy_waits_and_the_next_key_goes_on() -> None:
    rig = LimitedRig(KeyLimits(concurrency=1))
    work = rig.take()
    rig.bring(work, KEY_A, KEY_A, KEY_B, "")
    seen = list[tuple[list[int], int]]()

    def others() -> None:
        rig.work_off()
        seen.append((list(rig.called), rig.consumption.waiting_for_keys))
        assert rig.offset(work.queue) in (None, 0), "not past what runs and what waits"

    rig.during = others
    rig.step()
    assert seen == [([0, 2, 3], 1)]
    rig.work_off()
    assert rig.called == [0, 2, 3, 1] and rig.offset(work.queue) == 4
    assert rig.consumption.waiting_for_keys == 0


def test_with_a_rate_the_next_one_comes_at_its_time() -> None:
    rig = LimitedRig(KeyLimits(rate=2))
    work = rig.take()
    rig.bring(work, KEY_A, KEY_A, KEY_A, KEY_B)
    rig.work_off()
    assert rig.called == [0, 3]
    rig.advance(499)
    rig.work_off()
    assert rig.called == [0, 3]
    for wanted in ([0, 3, 1], [0, 3, 1, 2]):
        rig.advance(501)
        rig.work_off()
        assert rig.called == wanted
    assert rig.offset(work.queue) == 4


def test_a_listener_that_raises_frees_its_key() -> None:
    rig = LimitedRig(KeyLimits(concurrency=1))
    work = rig.take()
    rig.bring(work, KEY_A, KEY_A)

    def fails() -> None:
        rig.work_off()
        raise ValueError("no")

    rig.during = fails
    rig.work_off()
    assert rig.called == [0, 1] and work.counters.consumed_failed == 1


def test_what_waits_of_a_queue_that_is_given_away_is_left_to_its_next_owner() -> None:
    rig = LimitedRig(KeyLimits(concurrency=1))
    work, other = rig.take(), rig.take(queue_id=1)
    rig.bring(work, KEY_A, KEY_A)
    rig.bring(other, KEY_A)

    def leaves() -> None:
        rig.work_off()
        assert rig.consumption.waiting_for_keys == 2
        work.process.drop()

    rig.during = leaves
    rig.work_off()
    assert len(rig.called) == 2 and rig.consumption.waiting_for_keys == 0
    assert rig.offset(other.queue) == 3 and rig.offset(work.queue) is None


def test_what_is_given_away_takes_no_turn_of_its_key() -> None:
    rig = LimitedRig(KeyLimits(rate=1))
    work, other = rig.take(), rig.take(queue_id=1)
    rig.bring(work, KEY_A, KEY_A)
    rig.bring(other, KEY_A)
    rig.work_off()
    work.process.drop()
    rig.advance(1_001)
    rig.work_off()
    assert len(rig.called) == 2 and rig.offset(other.queue) == 3


def test_a_property_may_be_the_key() -> None:
    rig = LimitedRig(KeyLimits(concurrency=1, by="tenant"))
    work = rig.take()
    rig.bring(work, "tenant\x01t1\x02" + KEY_A, "tenant\x01t1\x02" + KEY_B, KEY_A)
    rig.during = rig.work_off
    rig.step()
    assert rig.called == [0, 2]
    rig.work_off()
    assert rig.called == [0, 2, 1]


@pytest.mark.parametrize(
    "options", [{"batch_size": 2}, {"batch": "arrow"}, {"orderly": True}, {"key_limits": 7}]
)
def test_limits_beside_what_they_do_not_go_with_are_refused(options: dict[str, Any]) -> None:
    limits = {"key_limits": {"concurrency": 1}}
    assert push_settings("g", None, limits).key_limits == KeyLimits(concurrency=1)
    with pytest.raises(ConfigError, match="key_limits"):
        push_settings("g", None, limits | options)
