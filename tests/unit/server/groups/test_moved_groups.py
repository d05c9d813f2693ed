"""A group that is moved while its members run: which queues they are told, and when the broker
refuses.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from rmq_ray.model.fastjson import loads
from rmq_ray.model.ids import MessageQueue
from rmq_ray.model.topics import TopicConfig
from rmq_ray.remoting.wire.bodies_groups import decode_offsets, encode_offsets
from rmq_ray.remoting.wire.codes import RequestCode as Code
from rmq_ray.remoting.wire.group_headers import ResetOffsetHeader
from tests.support.brokers.broker_bench import Bench
from tests.support.faults.fake_peer import FakePeer

TOPIC, GROUP = "orders", "billing"


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    """Two queues with three messages each, the second of which is only read yet."""
    made = Bench(tmp_path).open()
    for queue_id in (0, 1):
        made.send(TOPIC, queue_id, [b"x"] * 3)
    made.core.tables.topics.put(TopicConfig(TOPIC, 2, 1))
    yield made
    made.close()


@pytest.fixture
def member(bench: Bench) -> FakePeer:
    peer = FakePeer()
    bench.heartbeat(peer)
    peer.take()
    return peer


def moved(
    bench: Bench, member: FakePeer, to: dict[int, int], time_ms: int = -1, force: bool = True
) -> dict[int, int] | str:
    """Queue id -> where the member is told to go on, or the broker's refusal."""
    fields = ResetOffsetHeader(TOPIC, GROUP, time_ms, force).to_fields()
    body = encode_offsets(
        {MessageQueue(TOPIC, "broker-a", queue_id): offset for queue_id, offset in to.items()}
    )
    answer = bench.ask(Code.INVOKE_BROKER_TO_RESET_OFFSET, fields, body if to else b"")
    told = [sent for sent in member.take() if sent.code == Code.RESET_CONSUMER_CLIENT_OFFSET]
    if answer.code != 0:
        assert not told
        return str(answer.remark)
    (command,) = told
    offsets = decode_offsets(command.body_bytes())
    assert offsets == decode_offsets(answer.body_bytes())
    return {queue.queue_id: offset for queue, offset in offsets.items()}


def test_queues_that_are_only_read_yet_are_moved_too(bench: Bench, member: FakePeer) -> None:
    assert moved(bench, member, {0: 1, 1: 2}) == {0: 1, 1: 2}


def test_the_lag_of_all_groups_counts_queues_that_are_only_read_yet(bench: Bench) -> None:
    bench.core.tables.offsets.commit(TOPIC, GROUP, 0, 3, "c")
    answer = bench.ask(Code.GET_BROKER_CONSUME_STATS, {"isOrder": "false"})
    assert loads(answer.body_bytes())["totalDiff"] == 3


def test_a_time_moves_nobody_in_a_queue_without_a_position_unless_it_is_forced(
    bench: Bench, member: FakePeer
) -> None:
    offsets = bench.core.tables.offsets
    assert "not exist" in moved(bench, member, {})
    offsets.commit(TOPIC, GROUP, 0, 2, "c")
    assert "not exist" in moved(bench, member, {}, force=False)
    assert moved(bench, member, {}) == {0: 3, 1: 3}
    offsets.commit(TOPIC, GROUP, 1, 1, "c")
    assert moved(bench, member, {}, force=False) == {0: 2, 1: 1}, "it never rises"
