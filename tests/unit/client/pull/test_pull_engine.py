"""The engine of a pull consumer on a scripted client: which queues it holds, what its pulls say,
what a moved offset does.
"""

from __future__ import annotations

from math import inf
from typing import Any

import pytest

from rmq_ray.client.consumer.consumer_options import pull_settings
from rmq_ray.client.consumer.offset_store import ReadOffset
from rmq_ray.client.consumer.subscriptions import SubscriptionTable
from rmq_ray.client.pull.pull_engine import PullEngine
from rmq_ray.model.groups import ConsumerData, ConsumeType, MessageModel
from rmq_ray.model.ids import MessageQueue
from rmq_ray.model.pulling import PullSysFlag
from rmq_ray.remoting.wire.bodies import encode_consumer_ids
from rmq_ray.remoting.wire.codes import RequestCode
from tests.support.clients.scripted_client import ScriptedClient, record

LITE = int(PullSysFlag.SUSPEND | PullSysFlag.SUBSCRIPTION | PullSysFlag.LITE_PULL)


class Rig:
    """An engine whose delayed calls run when told to."""

    def __init__(self, expression: str = "*", stored: int = 10, **options: Any) -> None:
        self.client = ScriptedClient()
        self.queues: list[MessageQueue] = self.client.add_topic("orders", 2)
        self.clock: Any = self.client.clock
        self.client.answer(
            RequestCode.QUERY_CONSUMER_OFFSET,
            lambda command, _address: command.answer(fields={"offset": str(stored)}),
        )
        members = encode_consumer_ids([self.client.client_id])
        self.client.answer(
            RequestCode.GET_CONSUMER_LIST_BY_GROUP,
            lambda command, _address: command.answer(body=members),
        )
        table = SubscriptionTable()
        table.put("orders", expression, 1)
        settings = pull_settings("g", None, options)
        self.data = ConsumerData(
            "g", ConsumeType.CONSUME_ACTIVELY, MessageModel.CLUSTERING, settings.start_from
        )
        self.engine = PullEngine(self.client, settings, table, lambda: self.data)

    def assign(self, *queues: MessageQueue) -> None:
        self.engine.assign(queues)
        self.run()

    def run(self, advance_ms: float = 0) -> None:
        self.clock.advance_ms(advance_ms)
        self.engine.parts.delayed.run_due()

    def reply(self, *offsets: int, next_offset: int | None = None) -> None:
        pull = self.client.pulls[-1]
        queue = MessageQueue(pull.request.topic, "broker-a", pull.request.queue_id)
        pull.reply(
            0,
            offsets[-1] + 1 if next_offset is None else next_offset,
            [record(queue, offset) for offset in offsets],
        )

    def position(self) -> int:
        return self.engine.parts.assigned.snapshot()[self.queues[0]].position

    def polled(self) -> list[int]:
        batch, works = self.engine.ready.take(1_000, 0)
        self.engine.unblock(works)
        return [message.queue_offset for message in batch]


def test_an_assigned_queue_is_pulled_from_the_stored_offset_and_not_committed() -> None:
    rig = Rig("paid")
    rig.assign(rig.queues[0])
    (pull,) = rig.client.pulls
    assert (
        pull.request.offset,
        pull.request.sys_flag & ~int(PullSysFlag.COMMIT_OFFSET),
        pull.request.expression,
    ) == (10, LITE, "paid")
    assert rig.client.heartbeats >= 1


def test_pulled_and_polled_messages_are_no_progress_until_they_are_committed() -> None:
    rig = Rig()
    rig.assign(rig.queues[0])
    rig.reply(10, 11, 12)
    assert rig.client.pulls[-1].request.commit_offset == 10  # the broker's own word
    assert (rig.polled(), rig.position()) == ([10, 11, 12], 13)
    rig.client.pulls[-1].reply(19, 13)
    assert rig.engine.offsets.read(rig.queues[0], ReadOffset.MEMORY) == 10
    rig.engine.offsets.commit(rig.queues[0], 13)
    rig.client.pulls[-1].reply(19, 13)
    assert (rig.client.pulls[-1].request.commit_offset, rig.client.pulls[-1].request.sys_flag) == (
        13,
        LITE | int(PullSysFlag.COMMIT_OFFSET),
    )


def test_a_queue_whose_broker_tells_no_offset_is_asked_about_again_after_a_second() -> None:
    rig = Rig()
    rig.client.down.update(
        address for address in [rig.client.routes.subscribe_address("broker-a")[1]]
    )  # type: ignore[index]
    rig.assign(*rig.queues)
    assert not rig.client.pulls and rig.engine.work_of(rig.queues[0], 0) is None
    rig.client.down.clear()
    rig.run(999)
    assert not rig.client.pulls
    rig.run(1)
    assert len(rig.client.pulls) == 2 and rig.engine.work_of(rig.queues[0], 0) is not None


def test_a_seek_before_the_offset_is_known_counts_and_answers_of_before_are_thrown_away() -> None:
    rig = Rig()
    rig.engine.assign(rig.queues[:1])
    rig.engine.seek(rig.queues[0], 50)
    rig.run()
    assert [pull.request.offset for pull in rig.client.pulls] == [50]
    before = rig.client.pulls[0]
    rig.engine.seek(rig.queues[0], 20)
    before.reply(0, 51, [record(rig.queues[0], 50)])
    assert (rig.polled(), rig.position(), [pull.request.offset for pull in rig.client.pulls]) == (
        [],
        20,
        [50, 20],
    )


def test_a_queue_that_is_no_longer_assigned_hands_its_commit_over_and_loses_what_was_pulled() -> (
    None
):
    rig = Rig()
    rig.assign(*rig.queues)
    rig.reply(10, 11)
    rig.engine.offsets.commit(rig.queues[1], 11)
    rig.assign(rig.queues[0])
    (update,) = rig.client.requests(RequestCode.UPDATE_CONSUMER_OFFSET)
    assert update.fields is not None and (
        update.fields["queueId"],
        update.fields["commitOffset"],
    ) == ("1", "11")
    assert rig.polled() == [] and list(rig.engine.parts.assigned.snapshot()) == [rig.queues[0]]


def test_expired_messages_move_the_pull_forward_and_leave_what_was_pulled() -> None:
    rig = Rig()
    rig.assign(rig.queues[0])
    rig.reply(10, 11)
    rig.client.pulls[-1].reply(21, 40)
    assert rig.client.pulls[-1].request.offset == 40
    rig.reply(40, 41)
    assert (rig.polled(), rig.position(), rig.engine.offsets_moved) == ([10, 11, 40, 41], 42, 1)


def test_a_cut_log_moves_the_pull_back_and_takes_what_was_pulled_and_committed_with_it() -> None:
    rig = Rig()
    rig.assign(rig.queues[0])
    rig.reply(10, 11, 12)
    assert rig.polled() == [10, 11, 12]
    rig.reply(13)
    rig.engine.offsets.commit(rig.queues[0], 13)
    rig.client.pulls[-1].reply(21, 11)
    assert (rig.client.pulls[-1].request.offset, rig.polled(), rig.position()) == (11, [], 11)
    assert rig.engine.offsets.read(rig.queues[0], ReadOffset.MEMORY) == 11


def test_a_cut_log_skips_nothing_that_was_pulled_before_the_cut_and_not_handed_out() -> None:
    rig = Rig()
    rig.assign(rig.queues[0])
    rig.reply(10, 11, 12)
    rig.client.pulls[-1].reply(21, 12)
    assert (rig.client.pulls[-1].request.offset, rig.polled(), rig.position()) == (10, [], 10)
    rig.reply(10, 11)
    assert rig.polled() == [10, 11]


@pytest.mark.seed("S4-163")
def test_a_subscribed_queue_that_nobody_polls_for_long_is_kept() -> None:
    rig = Rig()
    assert rig.engine.rebalancer.rebalance()
    held = rig.engine.parts.assigned.snapshot()
    assert sorted(held) == rig.queues
    rig.clock.advance_ms(10 * 120_000)
    assert rig.engine.rebalancer.rebalance()
    assert dict(rig.engine.parts.assigned.snapshot()) == dict(held)


def test_a_full_queue_is_pulled_again_when_it_was_polled() -> None:
    rig = Rig()
    rig.assign(rig.queues[0])
    rig.reply(*range(10, 1_011))
    assert len(rig.client.pulls) == 1
    assert len(rig.polled()) == 1_000
    assert len(rig.client.pulls) == 2


def test_stats_tell_positions_and_what_lies_here() -> None:
    rig = Rig()
    rig.assign(rig.queues[0])
    rig.reply(10, 11)
    found = rig.engine.stats()
    assert (found["pulled"], found["prefetched"], found["prefetched_bytes"], found["lag"]) == (
        2,
        2,
        8,
        90,
    )
    assert found["queues"] == [
        {"topic": "orders", "broker": "broker-a", "queue_id": 0, "position": 10, "lag": 90}
    ]


def test_a_commit_after_the_program_is_over_is_not_set_back() -> None:
    rig = Rig()
    queue = rig.queues[0]
    rig.assign(queue)
    hand_over = rig.engine.halt()
    rig.engine.offsets.commit(queue, 20)
    assert rig.engine.persist([queue]) == []
    hand_over(inf)
    told = rig.client.requests(RequestCode.UPDATE_CONSUMER_OFFSET)
    assert [command.fields["commitOffset"] for command in told] == ["20", "20"]
