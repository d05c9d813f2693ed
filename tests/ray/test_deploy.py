"""From a decorated function to a scaled group of actors: handling, scaling, draining, and what
keeps it from starting.
"""

from __future__ import annotations

import os
import tempfile
import time
import uuid
from pathlib import Path
from typing import Any

import pytest
import ray

import rmq_ray as rmq
from tests.support.outcomes import judging
from tests.support.waiting import eventually

RAY_SESSIONS = Path(os.environ.get("RAY_TMPDIR", tempfile.gettempdir())) / "ray"


@pytest.fixture
def notes(tmp_path: Path) -> Path:
    """What handlers in other processes saw: a line for each message."""
    file = tmp_path / "notes"
    file.touch()
    return file


@pytest.fixture
def topic(mq: rmq.Cluster) -> str:
    name = f"deploy-{uuid.uuid4().hex[:8]}"
    mq.admin.create_topic(name, queues=4)
    return name


def fill(mq: rmq.Cluster, topic: str, count: int, start: int = 0) -> None:
    with rmq.Producer(cluster=mq.name) as p:
        for first in range(start, start + count, 10):
            p.send_batch(
                [
                    rmq.Message(topic, b"%d" % number)
                    for number in range(first, min(first + 10, start + count))
                ]
            )


def seen(notes: Path) -> list[tuple[str, int]]:
    """(body, process) of every message."""
    lines = [line.split() for line in notes.read_text().splitlines()]
    return [(body, int(process)) for body, process in lines]


def decorated(
    topic: str, notes: Path, pause_s: float = 0.0, gate: Path | None = None, **settings: Any
) -> rmq.ConsumerApp:
    """``gate``: nothing is handled before this file is there."""

    @rmq.consumer(topic, group=f"group-of-{topic}", start_from="first", **settings)
    def handle(msg):
        while gate is not None and not gate.exists():
            time.sleep(0.05)
        time.sleep(pause_s)
        body = ray.get(ray.put(msg.body))  # a handler may wait for Ray
        with notes.open("ab", buffering=0) as file:  # a whole line at once
            file.write(b"%s %d\n" % (body, os.getpid()))

    return handle


def test_a_decorated_function_becomes_a_group_that_shares_the_queues_and_scales(
    mq: rmq.Cluster, topic: str, notes: Path
) -> None:
    began = time.time()
    with decorated(topic, notes).deploy(num_actors=2, num_cpus=0.1, cluster=mq.name) as workers:
        eventually(
            lambda: (
                [
                    sum(row["topic"] == topic for row in worker["queues"])
                    for worker in workers.status()["workers"]
                ]
                == [2, 2]
            ),
            20,
        )
        fill(mq, topic, 200)
        eventually(lambda: len({body for body, _ in seen(notes)}) == 200, 30)
        assert len({pid for _, pid in seen(notes)}) == 2
        eventually(lambda: workers.lag() == 0, 20)
        assert workers.lag().age_ms == 0
        assert workers.scale(1) == 1 == len(workers)
        fill(mq, topic, 50, 200)
        eventually(lambda: len({body for body, _ in seen(notes)}) == 250, 30)
    with judging():
        assert len(seen(notes)) == 250, "a graceful change of the group's members repeats nothing"
    logs = [
        path
        for path in RAY_SESSIONS.glob("session_*/logs/worker-*.err")
        if path.stat().st_mtime >= began
    ]
    assert logs and not any("blocking ray.get" in path.read_text() for path in logs)
    assert mq.admin.group_clients(f"group-of-{topic}") == []


def test_draining_finishes_what_was_begun_and_leaves_the_rest_to_the_next(
    mq: rmq.Cluster, topic: str, notes: Path
) -> None:
    app = decorated(topic, notes, 0.05, concurrency=2)
    workers = app.deploy(num_cpus=0.1, cluster=mq.name)
    fill(mq, topic, 500)
    eventually(lambda: len(seen(notes)) >= 5)
    assert workers.stop(drain=True)
    handled = len(seen(notes))
    assert 5 <= handled < 500
    time.sleep(0.3)
    assert len(seen(notes)) == handled
    with app.deploy(num_cpus=0.1, cluster=mq.name):
        eventually(lambda: len({body for body, _ in seen(notes)}) == 500)
    with judging():
        assert len(seen(notes)) == 500
    assert workers.stop(), "a second time does nothing"


def test_a_lag_brings_workers_and_idleness_takes_them_away(
    mq: rmq.Cluster, topic: str, notes: Path, tmp_path: Path
) -> None:
    gate = tmp_path / "go"
    scale = {
        "actors_max": 3,
        "lag_per_actor": 20,
        "up_after_s": 0.2,
        "down_after_s": 0.5,
        "every_s": 0.1,
    }
    with decorated(topic, notes, 0.02, gate, concurrency=1).deploy(
        num_cpus=0.1, cluster=mq.name, autoscale=scale
    ) as workers:
        fill(mq, topic, 250)
        eventually(lambda: len(workers) == 3, 120)
        gate.touch()
        eventually(lambda: len({body for body, _ in seen(notes)}) == 250, 60)
        assert eventually(lambda: len(workers) == 1, 60)


def test_a_class_keeps_its_state_in_its_worker_and_answers_questions(
    mq: rmq.Cluster, topic: str
) -> None:
    @rmq.consumer(topic, group=f"class-{topic}", start_from="first", batch_size=10)
    class Sum:
        def __init__(self, first: int) -> None:
            self.sum = first

        def __call__(self, messages, ctx):
            self.sum += sum(int(message.body) for message in messages)

        def total(self) -> int:
            return self.sum

    with Sum.deploy(num_cpus=0.1, cluster=mq.name, args=(1_000,)) as workers:
        fill(mq, topic, 10)
        assert eventually(lambda: workers.ask("total") == [1_045], 20)


def test_a_named_group_outlives_its_handle_and_is_found_again(
    mq: rmq.Cluster, topic: str, notes: Path
) -> None:
    app = decorated(topic, notes)
    app.deploy(num_cpus=0.1, cluster=mq.name, name=topic)
    with pytest.raises(rmq.ClusterError, match="runs already"):
        app.deploy(num_cpus=0.1, cluster=mq.name, name=topic)
    found = rmq.workers(topic, mq.name)
    assert found.group == app.group and len(found) == 1
    assert found.stop()
    with pytest.raises(rmq.ClusterError, match="no workers are deployed"):
        rmq.workers(topic, mq.name)


def test_too_few_resources_and_missing_clusters_are_told_not_waited_for(
    mq: rmq.Cluster, topic: str, notes: Path
) -> None:
    app = decorated(topic, notes)
    began = time.monotonic()
    with pytest.raises(rmq.TooFewResources, match="9 actors x CPU 2 = CPU 18.*has CPU 4 in total"):
        app.deploy(9, num_cpus=2, cluster=mq.name, timeout_s=300.0)
    with app.deploy(num_cpus=1, cluster=mq.name) as workers:
        with pytest.raises(rmq.TooFewResources, match="5 actors x CPU 1.*room for 4"):
            workers.scale(5, timeout_s=300.0)
        assert time.monotonic() - began < 200
        with pytest.raises(rmq.ClusterError, match="2 actors x CPU 2.*free now are CPU . of CPU 4"):
            decorated(topic, notes).deploy(2, num_cpus=2, cluster=mq.name, timeout_s=5.0)
        assert len(workers) == 1
    with pytest.raises(rmq.ClusterError, match="no cluster 'nowhere'"):
        app.deploy(cluster="nowhere")


def test_a_worker_that_dies_is_replaced_and_its_messages_come_again(
    mq: rmq.Cluster, topic: str, notes: Path
) -> None:
    @rmq.consumer(topic, group=f"dies-{topic}", start_from="first", concurrency=1)
    def handle(msg):
        died = msg.body == b"7" and b"died" not in notes.read_bytes()
        with notes.open("ab", buffering=0) as file:
            file.write(b"%s %d\n" % (b"died" if died else msg.body, os.getpid()))
        if died:
            os._exit(1)

    with handle.deploy(num_cpus=0.1, cluster=mq.name):
        fill(mq, topic, 20)
        assert eventually(
            lambda: {body for body, _ in seen(notes)} >= {str(number) for number in range(20)}, 60
        )


def test_a_fleet_whose_own_process_dies_brings_its_workers_back(
    mq: rmq.Cluster, topic: str, notes: Path
) -> None:
    with decorated(topic, notes).deploy(num_actors=2, num_cpus=0.1, cluster=mq.name) as workers:
        ray.kill(workers._fleet, no_restart=False)
        eventually(lambda: answers(workers) == 2, 90)
        fill(mq, topic, 20)
        assert eventually(
            lambda: {body for body, _ in seen(notes)} == {str(number) for number in range(20)}, 60
        )


def answers(workers: rmq.Workers) -> int:
    try:
        return len(workers)
    except rmq.ClusterError:
        return 0
