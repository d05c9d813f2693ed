"""Ray Serve's asynchronous inference on topics, on real Serve: the page's and the example's
programs, replicas and brokers that are killed while tasks run, replicas by lag.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from ray import serve
from ray.serve.config import AutoscalingConfig, AutoscalingPolicy
from ray.serve.schema import TaskProcessorConfig
from ray.serve.task_consumer import (
    instantiate_adapter_from_config,
    task_consumer,
    task_handler,
)

import rmq_ray as rmq
from rmq_ray.client.admin.dead_letters import DeadLetters
from rmq_ray.serve import LagPolicy, RmqAdapterConfig, RmqTaskProcessorAdapter
from tests.support.outcomes import judging
from tests.support.pages import all_blocks
from tests.support.waiting import eventually

pytestmark = [
    pytest.mark.timeout(300 + int(os.environ.get("RMQ_RAY_TASKS", "0")) // 50),
    pytest.mark.slow,
]
OWN = {"name": "default"}  # the page's programs name none
BROKER = "broker-a/0"
COUNT = int(os.environ.get("RMQ_RAY_TASKS", "2000"))
"""Tasks that kills meet; 100,000 were run by hand."""
PATIENCE_S = 120 + COUNT / 100


@pytest.fixture(scope="module", autouse=True)
def serving() -> Iterator[None]:
    serve.start(proxy_location="Disabled")
    yield
    serve.shutdown()


def tasks_of(cluster: rmq.Cluster, queue: str, **adapter: Any) -> TaskProcessorConfig:
    return TaskProcessorConfig(
        queue_name=queue,
        adapter=RmqTaskProcessorAdapter,
        adapter_config=RmqAdapterConfig(cluster=cluster.name, lease_s=2.0, **adapter),
    )


def deploy(config: TaskProcessorConfig, **options: Any) -> None:
    @serve.deployment(
        max_ongoing_requests=8,
        ray_actor_options={"num_cpus": 0.1},
        graceful_shutdown_timeout_s=2,
        **options,
    )
    @task_consumer(task_processor_config=config)
    class Writer:
        @task_handler(name="write")
        def write(self, path: str, number: int) -> int:
            with Path(path).open("a") as out:
                out.write(f"{number}\n")
            time.sleep(0.005)
            return os.getpid()

        @task_handler(name="hold")
        async def hold(self, seconds: float) -> int:
            import asyncio

            await asyncio.sleep(seconds)
            return os.getpid()

    serve.run(Writer.bind(), name=config.queue_name, route_prefix=None)


def test_the_programs_of_page_and_example_run(own: rmq.Cluster) -> None:
    language, program = all_blocks("docs/serve.md")[0]
    names: dict[str, Any] = {"__name__": "__main__"}
    exec(program, names)  # our own page
    assert language == "python"
    assert names["results"] == [{"name": "cat.png", "pixels": 4_096}, "a picture called dog.png"]
    names["tasks"].stop_consumer()
    serve.delete("images")
    scaling: dict[str, Any] = {}
    exec(all_blocks("docs/serve.md")[1][1], scaling)
    assert scaling["autoscaling"].max_replicas == 8

    from examples import serve_inference

    outcome = serve_inference.main(own.name)
    fine = {"text": "what a fine day", "label": "good"}
    assert outcome["what a fine day"] == ("SUCCESS", fine)
    assert outcome["fails twice"] == ("SUCCESS", {"text": "fails twice", "label": "bad"})
    assert outcome["fails for ever"] == ("FAILURE", "RuntimeError: no label in 4 tries")
    assert outcome["length"] == ("SUCCESS", 7)
    assert "no handler 'translate'" in outcome["translate"][1]
    with_dead = DeadLetters(own.discovery)
    dead = {row["group"]: row["messages"] for row in with_dead.dead_letter_groups()}
    with_dead.close()
    assert dead == {"texts_failed": 1, "texts_unprocessable": 1}


def test_no_task_is_lost_when_replicas_and_the_broker_are_killed(
    own: rmq.Cluster, tmp_path: Path
) -> None:
    config, done = tasks_of(own, "written"), tmp_path / "done"
    done.touch()
    deploy(config, num_replicas=2)
    tasks, unsure, ids = instantiate_adapter_from_config(config), 0, list[str]()
    for number in range(COUNT):
        try:
            ids.append(tasks.enqueue_task_sync("write", args=[str(done), number]).id)
        except rmq.SendUnknown:  # the broker was dying: once more, it may run twice
            unsure += 1
            ids.append(tasks.enqueue_task_sync("write", args=[str(done), number]).id)
        if number == COUNT // 2:
            os.kill(own.status()[BROKER]["pid"], signal.SIGKILL)

    def finished() -> set[int]:
        return set(map(int, done.read_text().split()))

    for kill in range(2):  # a replica, and later another one
        eventually(lambda kill=kill: len(finished()) > COUNT * (kill + 1) // 4, PATIENCE_S)
        held = tasks.enqueue_task_sync("hold", args=[0.0])
        found = eventually(
            lambda held=held: (
                one if (one := tasks.get_task_status_sync(held.id)).status == "SUCCESS" else None
            ),
            PATIENCE_S,
        )
        os.kill(found.result, signal.SIGKILL)
    eventually(lambda: len(finished()) == COUNT, PATIENCE_S)
    eventually(lambda: tasks.get_metrics_sync()["waiting"] == 0, 60)
    with judging():
        assert finished() == set(range(COUNT))
    assert {tasks.get_task_status_sync(task_id).status for task_id in ids[:: COUNT // 50]} == {
        "SUCCESS"
    }
    assert len(done.read_text().split()) < COUNT * 1.5, "few run twice"
    tasks.stop_consumer()
    serve.delete("written")


def test_replicas_follow_the_lag_from_zero_and_back(own: rmq.Cluster) -> None:
    config = tasks_of(own, "scaled")
    deploy(
        config,
        autoscaling_config=AutoscalingConfig(
            min_replicas=0,
            max_replicas=2,
            target_ongoing_requests=4,
            upscale_delay_s=0,
            downscale_delay_s=1,
            metrics_interval_s=1,
            look_back_period_s=2,
            policy=AutoscalingPolicy(
                policy_function=LagPolicy,
                policy_kwargs={
                    "queue_name": "scaled",
                    "cluster": own.name,
                    "poll_interval_s": 0.3,
                },
            ),
        ),
    )

    def replicas() -> int:
        deployment = serve.status().applications["scaled"].deployments["Writer"]
        return sum(deployment.replica_states.values())

    eventually(lambda: replicas() == 0, 60, 0.2)
    tasks = instantiate_adapter_from_config(config)
    ids = [tasks.enqueue_task_sync("hold", args=[2.0]).id for _ in range(24)]
    eventually(lambda: replicas() == 2, 90, 0.2)
    for task_id in ids:
        eventually(
            lambda task_id=task_id: tasks.get_task_status_sync(task_id).status == "SUCCESS", 90
        )
    assert 1 <= len({tasks.get_task_status_sync(task_id).result for task_id in ids}) <= 2
    eventually(lambda: replicas() == 0, 90, 0.2)
    tasks.stop_consumer()
    with suppress(KeyError):
        serve.delete("scaled")
