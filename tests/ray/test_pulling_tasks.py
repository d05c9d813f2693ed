"""The pull consumer through its public name: in this process, and pickled into Ray tasks that share
a topic's queues.
"""

from __future__ import annotations

from typing import Any

import ray

import rmq_ray as rmq
from tests.support.outcomes import judging


def read(pc: rmq.PullConsumer, queues: list[rmq.MessageQueue], count: int) -> list[bytes]:
    """Bodies of exactly ``count`` messages of these queues, committed."""
    found: list[bytes] = []
    with pc:
        pc.assign(queues)
        for _ in range(50):
            batch = pc.poll(1_000, timeout=1.0)
            found += batch.to_arrow(["body"])["body"].to_pylist()
            pc.commit(batch)
            if len(found) >= count:
                break
    return found


def test_a_pickled_consumer_reads_its_share_in_each_task_and_the_group_goes_on_behind_it(
    mq: rmq.Cluster,
) -> None:
    mq.admin.create_topic("shares", queues=4)
    with rmq.Producer(cluster=mq.name) as producer:
        for queue_id in range(4):
            target = rmq.MessageQueue("shares", "broker-a", queue_id)
            producer.send_batch(
                [rmq.Message("shares", b"%d-%d" % (queue_id, i)) for i in range(100)], queue=target
            )
    pc = rmq.PullConsumer("sharers", cluster=mq.name, start_from="first", auto_commit=False)
    remote: Any = ray.remote(num_cpus=0.1)(read)
    queues = [rmq.MessageQueue("shares", "broker-a", queue_id) for queue_id in range(4)]
    halves = ray.get(
        [remote.remote(pc, queues[:2], 200), remote.remote(pc, queues[2:], 200)], timeout=60
    )
    with pc:
        assert {queue: pc.committed(queue) for queue in queues} == dict.fromkeys(queues, 100)
        with judging():
            assert [sorted(half) for half in halves] == [
                sorted(b"%d-%d" % (q, i) for q in pair for i in range(100))
                for pair in ((0, 1), (2, 3))
            ]
        pc.assign(pc.fetch_message_queues("shares"))
        assert not pc.poll(10, timeout=0.2)
        assert (pc.pull(queues[0], "*", 98).status, pc.pull(queues[0], "*", 100).status) == (
            rmq.PullStatus.FOUND,
            rmq.PullStatus.NO_NEW_MSG,
        )
