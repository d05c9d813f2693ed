"""Tasks of Ray Serve: our adapter beside Serve's own with Celery and Redis, on the same deployment,
one after the other.
"""

from __future__ import annotations

import itertools
import time
from importlib.util import find_spec
from typing import Any

from ray import serve
from ray.serve.schema import CeleryAdapterConfig, TaskProcessorConfig
from ray.serve.task_consumer import (
    instantiate_adapter_from_config,
    task_consumer,
    task_handler,
)

from benchmarks.report import Figure, percentiles
from benchmarks.scene import PATIENCE_S, Crew, Scene
from rmq_ray.serve import RmqAdapterConfig, RmqTaskProcessorAdapter
from tools.redis import redis_server

CONCURRENCY, CALLERS = 10, 4
EVERY_S = 0.02
WARM_UP = 50
PAYLOAD = {"text": "x" * 200, "size": 64}


def run(scene: Scene) -> None:
    """Tasks a second of four calling threads, from the first call to the last handler; and the time
    from a call to its handler.
    """
    if find_spec("celery") is None:
        raise RuntimeError("Celery is not here: make bench-peers BENCH_ARGS=serve installs it")
    count, single = scene.count(10_000), scene.count(300, 50)
    figures: dict[str, tuple[float, float]] = {}
    with redis_server(scene.directory / "redis") as url, scene.cluster() as mq:
        serve.start(proxy_location="Disabled")
        configs = {
            "Celery with Redis": TaskProcessorConfig(
                queue_name="celery-tasks",
                adapter_config=CeleryAdapterConfig(broker_url=f"{url}/0", backend_url=f"{url}/1"),
            ),
            "rmq_ray": TaskProcessorConfig(
                queue_name="rmq-tasks",
                adapter=RmqTaskProcessorAdapter,
                adapter_config=RmqAdapterConfig(cluster=mq.name),
            ),
        }
        try:
            for name, config in configs.items():
                figures[name] = _measured(config, count, single)
        finally:
            serve.shutdown()
    (base_rate, base_ms), (rate, ms) = figures.values()
    what = f"tasks of Serve, {CONCURRENCY} at once, {CALLERS} callers"
    scene.report.tell(f"{what}, Celery with Redis", base_rate, "tasks/s")
    scene.report.rate(f"{what}, rmq_ray", rate, "Celery with Redis", base_rate, 5.0)
    what = f"a task each {EVERY_S * 1_000:.0f} ms, from call to handler, p50"
    scene.report.tell(f"{what}, Celery with Redis", base_ms, "ms")
    scene.report.add(Figure(what, ms, "ms", "Celery with Redis", base_ms, 0.5, less_is_better=True))


def _measured(config: TaskProcessorConfig, count: int, single: int) -> tuple[float, float]:
    """Tasks a second, and milliseconds."""
    name = config.queue_name
    handle = serve.run(_application(config), name=name, route_prefix=None)
    tasks = instantiate_adapter_from_config(config)

    def wait_for(done: int) -> None:
        end = time.monotonic() + PATIENCE_S
        while (found := handle.done.remote().result()) < done:
            if time.monotonic() > end:
                raise RuntimeError(f"{name}: {found} of {done} tasks in {PATIENCE_S:.0f} s")
            time.sleep(0.02)

    try:
        for _ in range(WARM_UP):
            tasks.enqueue_task_sync("work", args=[0.0], kwargs=PAYLOAD)
        wait_for(WARM_UP)
        for _ in range(single):
            tasks.enqueue_task_sync("work", args=[time.time()], kwargs=PAYLOAD)
            time.sleep(EVERY_S)
        wait_for(WARM_UP + single)
        (p50,) = percentiles(handle.waited.remote().result(), 50)
        each = count // CALLERS

        def call(_number: int) -> None:
            for _ in range(each):
                tasks.enqueue_task_sync("work", args=[0.0], kwargs=PAYLOAD)

        began = time.perf_counter()
        Crew(CALLERS, call).join()
        wait_for(WARM_UP + single + CALLERS * each)
        return CALLERS * each / (time.perf_counter() - began), p50
    finally:
        if isinstance(tasks, RmqTaskProcessorAdapter):
            tasks.stop_consumer()
        serve.delete(name)


def _application(config: TaskProcessorConfig) -> Any:
    @serve.deployment(max_ongoing_requests=CONCURRENCY, ray_actor_options={"num_cpus": 0})
    @task_consumer(task_processor_config=config)
    class Worker:
        def __init__(self) -> None:
            self.counter = itertools.count()  # a step of it is one, whoever takes it
            self.times: list[float] = []

        @task_handler(name="work")
        def work(self, called: float, text: str, size: int) -> dict[str, int]:
            if called:
                self.times.append((time.time() - called) * 1_000)
            next(self.counter)
            return {"length": len(text) * size}

        def done(self) -> int:
            return int(repr(self.counter)[len("count(") : -1])  # where it stands, without a step

        def waited(self) -> list[float]:
            return self.times

    return Worker.bind()
