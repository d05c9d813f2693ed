"""Ray Serve's asynchronous inference, as Ray's documentation shows it, but for the adapter's line:
no Redis and no Celery, the tasks lie in a topic of the cluster that runs in Ray already.

    python -m examples.serve_inference

Callers hand in texts and get ids at once; replicas label them when they can. One text fails twice
and is done by a retry, one is hopeless and becomes a dead letter, one call names no handler.
"""

from __future__ import annotations

import time
from typing import Any

import ray
from ray import serve
from ray.serve.schema import TaskProcessorConfig
from ray.serve.task_consumer import (
    instantiate_adapter_from_config,
    task_consumer,
    task_handler,
)

import rmq_ray as rmq
from rmq_ray.serve import RmqAdapterConfig, RmqTaskProcessorAdapter

TEXTS = ["what a fine day", "this is awful", "fails twice", "fails for ever"]
PATIENCE_S = 60.0


def processor_config(cluster: str) -> TaskProcessorConfig:
    """With Celery the two lines of the adapter name it, and the Redis that it needs."""
    return TaskProcessorConfig(
        queue_name="texts",
        adapter=RmqTaskProcessorAdapter,
        adapter_config=RmqAdapterConfig(cluster=cluster, retry_backoff_s=0.2, lease_s=5.0),
        max_retries=3,
        failed_task_queue_name="texts_failed",
        unprocessable_task_queue_name="texts_unprocessable",
    )


def application(config: TaskProcessorConfig) -> Any:
    """A deployment whose replicas take tasks, ten at once."""

    @serve.deployment(max_ongoing_requests=10, ray_actor_options={"num_cpus": 0.1})
    @task_consumer(task_processor_config=config)
    class Labels:
        def __init__(self) -> None:
            self.failures: dict[str, int] = {}

        @task_handler(name="label")
        def label(self, text: str) -> dict[str, Any]:
            failures = self.failures[text] = self.failures.get(text, 0) + 1
            if text == "fails for ever" or (text == "fails twice" and failures <= 2):
                raise RuntimeError(f"no label in {failures} tries")
            return {"text": text, "label": "good" if "fine" in text else "bad"}

        @task_handler(name="length")
        async def length(self, text: str) -> int:
            return len(text)

    return Labels.bind()


def main(cluster: str = "default") -> dict[str, tuple[str, Any]]:
    """Run it on a cluster that is up; text -> how its task ended, and with what."""
    config = processor_config(cluster)
    serve.run(application(config), name="texts", route_prefix=None)
    tasks = instantiate_adapter_from_config(config)
    try:
        called = {text: tasks.enqueue_task_sync("label", args=[text]).id for text in TEXTS}
        called["length"] = tasks.enqueue_task_sync("length", kwargs={"text": "seven77"}).id
        called["translate"] = tasks.enqueue_task_sync("translate", args=["?"]).id
        outcome = {text: ended(tasks, task_id) for text, task_id in called.items()}
    finally:
        tasks.stop_consumer()
        serve.delete("texts")
    for text, (status, result) in outcome.items():
        print(f"{text:16} {status:8} {result}")
    return outcome


def ended(tasks: Any, task_id: str) -> tuple[str, Any]:
    """Status and result, once it is over."""
    end = time.monotonic() + PATIENCE_S
    while time.monotonic() < end:
        found = tasks.get_task_status_sync(task_id)
        if found.status in ("SUCCESS", "FAILURE", "REVOKED"):
            return found.status, found.result
        time.sleep(0.05)
    raise TimeoutError(f"task {task_id} did not end within {PATIENCE_S} s")


if __name__ == "__main__":
    ray.init()
    serve.start(proxy_location="Disabled")
    rmq.start(store_path="rmq-data/serve")
    main()
