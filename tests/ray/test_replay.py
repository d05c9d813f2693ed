"""A durable replay buffer: room, order, staleness, sampling, and what kills do to it."""

from __future__ import annotations

import os
import pickle
import signal
import threading
import uuid
from typing import Any

import numpy as np
import pytest

import rmq_ray as rmq
from rmq_ray import data as mqd
from tests.support.outcomes import judging


def rows(number: int, count: int = 3) -> dict[str, Any]:
    return {"x": np.full((count, 2), number, np.float32), "done": np.zeros(count, bool)}


def made(mq: rmq.Cluster, **settings: Any) -> mqd.ReplayBuffer:
    name = f"replay-{uuid.uuid4().hex[:8]}"
    return mqd.ReplayBuffer(name, cluster=mq.name, **{"slots": 4, **settings})


def numbers(batch: mqd.ReplayBatch) -> list[int]:
    return [int(entry.numpy()["x"][0, 0]) for entry in batch]


def test_senders_wait_for_room_and_the_oldest_comes_first(mq: rmq.Cluster) -> None:
    with made(mq) as buffer:
        for number in range(4):
            assert buffer.put(rows(number), version=number) == number
        with pytest.raises(rmq.TopicFull):
            buffer.put(rows(4), timeout=0.3)
        waiting = threading.Thread(target=lambda: buffer.put(rows(4), version=4, timeout=30))
        other = pickle.loads(pickle.dumps(buffer))
        waiting.start()
        batch = other.take(2)
        assert (numbers(batch), batch.versions, len(other)) == ([0, 1], [0, 1], 4)
        assert batch.columns["x"].shape == (6, 2) and batch.columns["done"].dtype == bool
        batch.ack()
        waiting.join(30)
        assert numbers(other.take(5, timeout=5)) == [2, 3, 4]
        other.close()
        again = mqd.ReplayBuffer(buffer.name, cluster=mq.name)
        assert numbers(again.take(3)) == [2, 3, 4], "it was not acknowledged"
        again.restore(batch.position)
        assert numbers(again.take(1)) == [2]
        again.close()


def test_stale_entries_are_left_out_and_counted_or_marked(mq: rmq.Cluster) -> None:
    with made(mq, max_versions_behind=1) as buffer:
        for number in range(4):
            buffer.put(rows(number), version=number)
        batch = buffer.take(4, timeout=5)
        assert (numbers(batch), batch.dropped, buffer.dropped) == ([2, 3], 2, 2)
        keeper = mqd.ReplayBuffer(buffer.name, cluster=mq.name, max_versions_behind=1, stale="keep")
        kept = keeper.take(4, version=4)
        assert [entry.stale for entry in kept] == [True, True, True, False] and not kept.dropped
        keeper.close()
        batch.ack()
        assert len(buffer) == 0
        buffer.put(rows(0), version=1)
        assert not buffer.take(1, version=9, timeout=5) and buffer.dropped == 3


def test_samples_are_uniform_seeded_and_take_nothing_out(mq: rmq.Cluster) -> None:
    with made(mq, slots=10, seed=3) as buffer:
        for number in range(10):
            buffer.put(rows(number))
        drawn = [numbers(buffer.sample(4)) for _ in range(30)]
        assert all(len(set(one)) == 4 for one in drawn)
        assert {number for one in drawn for number in one} == set(range(10))
        same = mqd.ReplayBuffer(buffer.name, cluster=mq.name, seed=3)
        assert numbers(same.sample(4)) == drawn[0]
        same.close()
        assert buffer.evict(6) == 6 and len(buffer) == 4
        assert sorted(numbers(buffer.sample(9))) == [6, 7, 8, 9]
        buffer.put(rows(10), timeout=1)


def test_wrong_values_are_refused_before_anything_is_sent(mq: rmq.Cluster) -> None:
    for settings in ({"slots": 0}, {"max_versions_behind": -1}, {"stale": "?"}, {"group": "a b"}):
        with pytest.raises(rmq.RmqError):
            made(mq, **settings)
    with made(mq) as buffer:
        with pytest.raises(rmq.ClientError, match="cannot be a tensor"):
            buffer.put({"x": np.array([object()])})
        for wrong in (-1, "3", True):
            with pytest.raises(rmq.ClientError, match="version must be"):
                buffer.put(rows(1), version=wrong)  # type: ignore[arg-type]
        with pytest.raises(rmq.ClientError, match="n must be"):
            buffer.take(0)
        with pytest.raises(rmq.ClientError, match="no position of"):
            buffer.restore('{"other": {"broker-a": {"0": 1}}}')
        with rmq.Producer(cluster=mq.name) as producer:
            producer.send(buffer.name, b"no arrays")
        with pytest.raises(rmq.BodyUnreadable, match="no entry of a replay buffer"):
            buffer.take(1)
    with pytest.raises(rmq.TopicNotFound):
        mqd.ReplayBuffer("no-such-buffer", cluster=mq.name).take(1)


def test_every_batch_is_learnt_from_once_while_actors_trainer_and_broker_are_killed(
    mortal: rmq.Cluster,
) -> None:
    from examples import replay_buffer

    def kill_broker() -> None:
        os.kill(mortal.status()["broker-a/0"]["pid"], signal.SIGKILL)

    with judging():
        learnt, lives = replay_buffer.main(mortal.name, fault=kill_broker)
    assert learnt >= replay_buffer.STEPS and lives >= 2
