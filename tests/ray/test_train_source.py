"""A topic for training workers: each row once from a state on, whoever goes on with it."""

from __future__ import annotations

import uuid
from pathlib import Path
from typing import Any

import pytest

import rmq_ray as rmq
from rmq_ray import data as mqd
from tests.support.outcomes import judging

ROWS = 2_000


@pytest.fixture(scope="module")
def topic(mq: rmq.Cluster) -> str:
    name = f"train-{uuid.uuid4().hex[:8]}"
    mq.admin.create_topic(name, queues=4)
    with rmq.Producer(cluster=mq.name) as p:
        for first in range(0, ROWS, 50):
            bodies = [b"%d" % n for n in range(first, first + 50)]
            p.send_batch(name, bodies=bodies, tags=["a", "b"] * 25)
    return name


def source(mq: rmq.Cluster, topic: str, rank: int, workers: int, **more: Any) -> mqd.TrainSource:
    settings: dict[str, Any] = {"batch_size": 90, "shuffle_rows": 300, "seed": 5, "end": "latest"}
    settings |= {"columns": ["body"], "shard": (rank, workers), "cluster": mq.name} | more
    return mqd.train_source(topic, settings.pop("group", "none-yet"), **settings)


def numbers(tables: Any) -> list[int]:
    return [int(body) for table in tables for body in table["body"].to_pylist()]


def test_every_row_comes_once_shuffled_and_the_same_again(mq: rmq.Cluster, topic: str) -> None:
    with source(mq, topic, 0, 1) as one, source(mq, topic, 0, 1) as other:
        found = numbers(one)
        with judging():
            assert sorted(found) == list(range(ROWS))
            assert numbers(other) == found
        assert found != sorted(found)
        one.commit()
    assert {row["lag"] for row in mq.admin.group_lag("none-yet")} == {0}
    with source(mq, topic, 0, 1, tags="a", group="other") as tagged:
        assert sorted(numbers(tagged)) == list(range(0, ROWS, 2))


def test_the_same_number_of_workers_goes_on_in_the_same_order(mq: rmq.Cluster, topic: str) -> None:
    where: dict[str, Any] = {"group": "same-order"}
    whole = numbers(source(mq, topic, 0, 2, **where))
    first = source(mq, topic, 0, 2, **where)
    learnt = numbers([next(first) for _ in range(4)])
    state = first.state_dict()
    next(first)  # lost with the worker
    again = source(mq, topic, 0, 2, **where)
    again.load_state_dict(state)
    with judging():
        assert learnt + numbers(again) == whole


@pytest.mark.parametrize(("before", "after"), [(2, 3), (4, 1)])
def test_another_number_of_workers_goes_on_with_what_is_left(
    mq: rmq.Cluster, topic: str, tmp_path: Path, before: int, after: int
) -> None:
    where: dict[str, Any] = {"group": f"resized-{before}"}
    learnt = []
    for rank in range(before):
        with source(mq, topic, rank, before, **where) as worker:
            learnt += numbers([next(worker) for _ in range(rank + 2)])
            worker.save(tmp_path)
            next(worker)
    assert 0 < len(learnt) < ROWS
    for rank in range(after):
        with source(mq, topic, rank, after, **where) as worker:
            assert worker.restore(tmp_path)
            learnt += numbers(worker)
    with judging():
        assert sorted(learnt) == list(range(ROWS))


def test_states_of_something_else_are_refused(mq: rmq.Cluster, topic: str, tmp_path: Path) -> None:
    state = source(mq, topic, 0, 2).state_dict()
    with pytest.raises(rmq.ClientError, match="states of 2 workers are needed"):
        source(mq, topic, 0, 3).load_state_dict([state])
    with pytest.raises(rmq.ClientError, match="of seed 5"):
        source(mq, topic, 0, 2, seed=6).load_state_dict(state)
    with pytest.raises(rmq.ClientError, match="of topic"):
        source(mq, "another", 0, 2).load_state_dict(state)
    with pytest.raises(rmq.ClientError, match="no state of a train source"):
        source(mq, topic, 0, 2).load_state_dict("model.pt")
    with pytest.raises(rmq.ClientError, match="every worker calls save"):
        source(mq, topic, 0, 2).restore(tmp_path)
    with pytest.raises(rmq.ClientError, match="5 workers cannot share the 4 queues"):
        next(source(mq, topic, 0, 5))
    with pytest.raises(rmq.TopicNotFound):
        next(source(mq, "no-such-topic", 0, 1))
    for wrong in ({"batch_size": 0}, {"shuffle_rows": -1}, {"seed": "x"}, {"shard": (2, 2)}):
        with pytest.raises(rmq.ClientError):
            source(mq, topic, 0, 1, **wrong)


def test_a_run_that_loses_a_worker_and_changes_their_number_learns_each_row_once(
    mq: rmq.Cluster,
) -> None:
    from examples import train_resume

    rows = range(train_resume.ROWS)
    learnt = train_resume.main(mq.name)
    with judging():
        assert learnt == [len(rows), sum(rows), sum(n * n for n in rows)]
