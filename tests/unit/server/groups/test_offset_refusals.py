"""Commits that a broker must not take: beyond a queue's end, and for queues that it does not
have.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from rmq_ray.remoting.wire.codes import RequestCode as Code
from rmq_ray.remoting.wire.codes import ResponseCode
from tests.support.brokers.broker_bench import Bench
from tests.support.faults.fake_peer import FakePeer


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    made = Bench(tmp_path).open()
    yield made
    made.close()


def test_a_commit_beyond_the_queues_end_is_refused_and_counted(bench: Bench) -> None:
    """It comes from before a cut of the log; taken, it would stand for messages that are stored
    there later.
    """
    bench.send(bodies_=[b"x"] * 4)
    for offset in (4, 5):
        fields = {
            "consumerGroup": "billing",
            "topic": "orders",
            "queueId": "0",
            "commitOffset": str(offset),
        }
        assert (
            bench.core.handle(
                bench.command(Code.UPDATE_CONSUMER_OFFSET, fields, oneway=True), FakePeer()
            )
            is None
        )
    assert (
        bench.core.tables.offsets.query("orders", "billing", 0) == 4
        and bench.core.tables.offsets.refused == 1
    )


@pytest.mark.parametrize(
    ("topic", "queue_id"), [("orders", 4), ("orders", -1), ("orders", 1 << 30), ("made@up", 0)]
)
def test_commits_for_queues_that_are_not_here_do_not_fill_the_table(
    bench: Bench, topic: str, queue_id: int
) -> None:
    bench.send()
    fields = {
        "consumerGroup": "billing",
        "topic": topic,
        "queueId": str(queue_id),
        "commitOffset": "0",
    }
    assert bench.ask(Code.UPDATE_CONSUMER_OFFSET, fields).code == ResponseCode.SYSTEM_ERROR
    assert bench.core.tables.offsets.tables() == {}


def test_a_consumer_whose_connection_is_new_is_no_administrator(bench: Bench) -> None:
    """It was paused, lost its connection and its queue, and hands its old offset over before its
    first heartbeat.
    """
    bench.send(bodies_=[b"x"] * 9)
    owner = FakePeer()
    bench.heartbeat(owner, client_id="10.0.0.1@1")
    bench.pull(peer=owner, offset=9)
    fields = {
        "consumerGroup": "billing",
        "topic": "orders",
        "queueId": "0",
        "rmqClient": "10.0.0.1@1",
    }
    assert (
        bench.ask(Code.UPDATE_CONSUMER_OFFSET, fields | {"commitOffset": "9"}, peer=owner).code == 0
    )
    late = fields | {"commitOffset": "1", "rmqClient": "10.0.0.2@2"}
    assert (
        bench.ask(Code.UPDATE_CONSUMER_OFFSET, late, peer=FakePeer()).code
        == ResponseCode.SYSTEM_ERROR
    )
    assert bench.core.tables.offsets.query("orders", "billing", 0) == 9
    again = fields | {"commitOffset": "7"}
    assert bench.ask(Code.UPDATE_CONSUMER_OFFSET, again, peer=FakePeer()).code == 0, (
        "the queue's owner may, over a new connection too"
    )
